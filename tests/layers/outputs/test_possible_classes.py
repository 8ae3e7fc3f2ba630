"""What can never be a target has no probability: every output layer is the softmax over all the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.outputs import softmax
from seqloom.layers.outputs.adaptive_softmax import AdaptiveOutput
from seqloom.layers.outputs.kinds import OutputOptions, make_output
from seqloom.layers.outputs.maxent import MaxEntOutput
from seqloom.layers.outputs.possible_classes import Classes
from seqloom.layers.outputs.sampled_softmax import SampledOutput
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.protocols import OutputLayer
from seqloom.shapes import IGNORE
from seqloom.testing.tensors import draw_parameters

WIDTH, VOCABULARY = 6, 19
SUPPRESSED = (0, 1, 4, 5, 6, 18)
POSSIBLE = [one for one in range(VOCABULARY) if one not in SUPPRESSED]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def adaptive(cutoffs: tuple[int, ...], *, counted: bool) -> AdaptiveOutput:
    made = AdaptiveOutput(WIDTH, VOCABULARY, cutoffs, SUPPRESSED)
    if counted:
        made.set_counts(torch.arange(VOCABULARY) * 7 % 5)
    return made


OUTPUTS: dict[str, Callable[[], OutputLayer]] = {
    "full": lambda: FullOutput(WIDTH, VOCABULARY, suppressed=SUPPRESSED),
    "full, without a bias": lambda: FullOutput(
        WIDTH, VOCABULARY, bias=False, suppressed=SUPPRESSED
    ),
    "importance": lambda: SampledOutput("importance", WIDTH, VOCABULARY, suppressed=SUPPRESSED),
    "blackout": lambda: SampledOutput("blackout", WIDTH, VOCABULARY, suppressed=SUPPRESSED),
    "maxent": lambda: MaxEntOutput(
        FullOutput(WIDTH - 2, VOCABULARY, suppressed=SUPPRESSED), VOCABULARY, 3, 40
    ),
    "adaptive": lambda: adaptive((5, 9), counted=False),
    "adaptive, by counts": lambda: adaptive((5, 9), counted=True),
    # 13 words are possible: the last cluster has none, or part of the last one, or of the head
    "adaptive, an empty cluster": lambda: adaptive((5, 15), counted=True),
    "adaptive, clusters that just hold all": lambda: adaptive((5, 13), counted=True),
    "adaptive, all in the head": lambda: adaptive((14, 16), counted=True),
}


@pytest.fixture(params=OUTPUTS)
def output(request: pytest.FixtureRequest) -> Any:
    made: Any = OUTPUTS[request.param]()
    made = made.double().eval()
    draw_parameters(made)
    return made


def test_suppressed_ids_have_no_probability_and_take_none_from_others(output: Any) -> None:
    p = output.logits(drawn(4, 3, WIDTH)).softmax(dim=-1)
    assert p[..., SUPPRESSED].eq(0).all()
    assert p[..., POSSIBLE].gt(0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("chunk", [2, 1024])
def test_loss_and_gradients_are_those_of_a_softmax_over_the_rest(
    output: Any, monkeypatch: pytest.MonkeyPatch, chunk: int, smoothing: float
) -> None:
    if smoothing and isinstance(output, AdaptiveOutput):
        pytest.skip("an adaptive output refuses label smoothing")
    monkeypatch.setattr(softmax, "CHUNK", chunk)
    hidden = drawn(15, WIDTH).requires_grad_()
    place = torch.arange(15) % len(POSSIBLE)
    targets = torch.tensor(POSSIBLE)[place]
    targets[3] = place[3] = IGNORE
    total, count = output.loss(hidden, targets, smoothing)
    logits = output.logits(hidden)[:, POSSIBLE]
    expected = F.cross_entropy(logits, place, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    assert count == 14
    learned = [hidden, *output.parameters()]
    for mine, its in zip(
        torch.autograd.grad(2 * total, learned),
        torch.autograd.grad(2 * expected, learned, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)
    log_probs = logits.detach().log_softmax(-1).gather(1, place.clamp(min=0)[:, None])[:, 0]
    torch.testing.assert_close(
        output.log_probs(hidden, targets), log_probs.where(targets != IGNORE, 0)
    )


@pytest.mark.parametrize("kind", ["importance", "blackout"])
@pytest.mark.parametrize("counted", [False, True])
def test_only_what_is_possible_is_drawn(kind: str, counted: bool) -> None:
    made = make_output(
        OutputOptions(kind, samples=4000, suppressed=SUPPRESSED),  # type: ignore[arg-type]
        WIDTH,
        VOCABULARY,
    )
    assert isinstance(made, SampledOutput)
    if counted:
        made.set_counts(torch.arange(VOCABULARY))
    assert made.draw().ids.tolist() == POSSIBLE
    total, _ = made.train().loss(torch.randn(5, WIDTH), torch.tensor(POSSIBLE[:5]))
    assert total.isfinite()


def test_all_draws_are_importance_without_bias() -> None:
    """As without suppressed ids: where all words are drawn for certain it is the cross-entropy."""
    made = SampledOutput("importance", WIDTH, VOCABULARY, samples=20_000, suppressed=SUPPRESSED)
    hidden, targets = torch.randn(5, WIDTH), torch.tensor(POSSIBLE[:5])
    sampled = made.train().loss(hidden, targets).total
    torch.testing.assert_close(sampled, made.eval().loss(hidden, targets).total)


def test_an_adaptive_output_goes_by_the_ranks_that_it_loads() -> None:
    """Those of a model in whose training nothing was suppressed may be anywhere."""
    trained = AdaptiveOutput(WIDTH, VOCABULARY, (5, 9)).double()
    trained.set_counts(torch.arange(VOCABULARY) * 7 % 19)
    made = AdaptiveOutput(WIDTH, VOCABULARY, (5, 9), SUPPRESSED).double()
    made.load_state_dict(trained.state_dict())
    hidden = drawn(4, WIDTH)
    p, before = made.logits(hidden).softmax(-1), trained.logits(hidden).softmax(-1)
    assert p[:, SUPPRESSED].eq(0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(4).double())
    # within the head, what is left grows alike
    in_head = [one for one in POSSIBLE if trained.rank[one] < 5]
    growth = (p / before)[:, in_head]
    torch.testing.assert_close(growth, growth[:, :1].expand_as(growth))


def test_classes_are_slices() -> None:
    assert Classes.without(9, (7, 1, 0, 3, 8)).suppressed == (
        slice(0, 2),
        slice(3, 4),
        slice(7, 9),
    )
    assert Classes.without(9, (7, 1, 0, 3, 8)).possible == [slice(2, 3), slice(4, 7)]
    assert Classes.without(3, ()).possible == [slice(0, 3)]
    logits = Classes.without(4, (2,)).suppress_(torch.zeros(2, 4))
    assert logits.tolist() == [[0, 0, -math.inf, 0]] * 2


@pytest.mark.parametrize("ids", [(0, 1, 2), (3,), (-1,)])
def test_suppressed_ids_are_some_of_the_vocabulary(ids: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="must be some of the 3 of the vocabulary"):
        Classes.without(3, ids)
