"""The output layers by name."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from seqloom.errors import UsageError
from seqloom.layers.outputs.kinds import OutputKind, OutputOptions, make_output


@pytest.mark.parametrize("kind", get_args(OutputKind))
def test_every_kind_is_an_output(kind: OutputKind) -> None:
    made = make_output(OutputOptions(kind, samples=5), 8, 20)
    hidden, y = torch.randn(3, 2, 8), torch.tensor([[1, 2], [3, 4], [5, -100]])
    total, count = made.loss(hidden, y)
    torch.autograd.backward(total)
    assert int(count) == 5
    assert made.logits(hidden).shape == (3, 2, 20)
    made.eval()
    torch.testing.assert_close(
        -made.log_probs(hidden, y).sum(), made.loss(hidden, y).total.detach()
    )
    with torch.device("meta"):
        shapes = {
            name: value.shape
            for name, value in make_output(OutputOptions(kind, samples=5), 8, 20)
            .state_dict()
            .items()
        }
    assert shapes == {name: value.shape for name, value in made.state_dict().items()}


def test_all_but_the_adaptive_can_be_tied() -> None:
    embedding = nn.Parameter(torch.randn(20, 8))
    for kind in get_args(OutputKind):
        if kind == "adaptive":
            with pytest.raises(UsageError, match="tie_output must be false"):
                make_output(OutputOptions(kind), 8, 20, tied=embedding)
        else:
            assert list(
                make_output(OutputOptions(kind), 8, 20, tied=embedding, bias=False).parameters()
            ) == [embedding]
