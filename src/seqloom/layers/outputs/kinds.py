"""The output layers by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.outputs.adaptive_softmax import AdaptiveOutput
from seqloom.layers.outputs.sampled_softmax import SampledOutput
from seqloom.layers.outputs.softmax import FullOutput

OutputKind = Literal["full", "adaptive", "importance", "blackout"]

Outputs = FullOutput | AdaptiveOutput | SampledOutput


class OutputOptions(NamedTuple):
    """What kind of output layer, and the options of that kind."""

    kind: OutputKind = "full"
    samples: int = 4096
    alpha: float | None = None
    cutoffs: Sequence[int] = ()
    suppressed: Sequence[int] = ()
    """Ids that can never be a target."""


def make_output(
    options: OutputOptions,
    width: int,
    vocabulary: int,
    *,
    tied: Tensor | None = None,
    bias: bool = True,
) -> Outputs:
    """The output layer of that kind. All but `full` need the training text's counts before training:
    `set_counts`.

    Raises UsageError for a tied `adaptive` one: its words have states of several widths.
    """
    kind, samples, alpha, cutoffs, suppressed = options
    if kind == "full":
        return FullOutput(width, vocabulary, tied, bias=bias, suppressed=suppressed)
    if kind != "adaptive":
        return SampledOutput(
            kind,
            width,
            vocabulary,
            tied,
            bias=bias,
            samples=samples,
            alpha=alpha,
            suppressed=suppressed,
        )
    if tied is not None:
        raise UsageError(
            "model.tie_output must be false with model.output=adaptive, whose words have states of several"
            " widths"
        )
    return AdaptiveOutput(width, vocabulary, cutoffs, suppressed)
