"""Sampled outputs: the papers' formulas written out, their limits, and the exact softmax in evaluation."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.outputs import softmax
from seqloom.layers.outputs.sampled_softmax import Draws, Kind, SampledOutput
from seqloom.shapes import IGNORE

KINDS: tuple[Kind, ...] = get_args(Kind)
ROWS, WIDTH, VOCABULARY = 14, 4, 11


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(
    kind: Kind, samples: int = 6, *, bias: bool = True, alpha: float | None = None
) -> SampledOutput:
    made = SampledOutput(kind, WIDTH, VOCABULARY, bias=bias, samples=samples, alpha=alpha).double()
    with torch.no_grad():
        made.full.weight.copy_(drawn(VOCABULARY, WIDTH, seed=2))
        if made.full.bias is not None:
            made.full.bias.copy_(drawn(VOCABULARY, seed=3))
    made.set_counts(torch.arange(VOCABULARY) ** 2)
    return made


def targets() -> Tensor:
    return torch.arange(ROWS) % VOCABULARY


def draws(made: SampledOutput, seed: int) -> Draws:
    torch.manual_seed(seed)
    return made.draw()


def written_out(made: SampledOutput, hidden: Tensor, y: Tensor, sample: Draws) -> Tensor:
    """The formulas of the module, one position and one draw at a time."""
    q = (torch.arange(VOCABULARY) ** 2).double().clamp(min=1) ** made.alpha
    q = q / q.sum()
    chance = 1 - (1 - q) ** made.samples if made.kind == "importance" else q
    a = made.logits(hidden) - chance.log()
    total = hidden.new_zeros(())
    for row, target in enumerate(y.tolist()):
        others = [
            j
            for j, times in zip(sample.ids.tolist(), sample.times.tolist(), strict=True)
            for _ in range(1 if made.kind == "importance" else times)
            if j != target
        ]
        p = a[row, [target, *others]].softmax(dim=0)
        total = total - p[0].log() - (0 if made.kind == "importance" else (1 - p[1:]).log().sum())
    return total


@pytest.mark.parametrize("chunk", [3, 1024])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("samples", [1, 6, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_formula(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, samples: int, bias: bool, chunk: int
) -> None:
    monkeypatch.setattr(softmax, "CHUNK", chunk)
    made, y, hidden = (
        layer(kind, samples, bias=bias),
        targets(),
        drawn(ROWS, WIDTH).requires_grad_(),
    )
    sample = draws(made, seed=samples)
    assert set(sample.ids.tolist()) & set(y.tolist())  # accidental hits
    total, expected = made.sampled_loss(hidden, y, sample), written_out(made, hidden, y, sample)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=0)
    learned = [hidden, *made.parameters()]
    for mine, its in zip(
        torch.autograd.grad(2 * total, learned),
        torch.autograd.grad(2 * expected, learned),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)


def test_importance_with_all_words_drawn_is_the_exact_loss() -> None:
    made, y, hidden = layer("importance", 20_000), targets(), drawn(ROWS, WIDTH).requires_grad_()
    sampled, exact = made.loss(hidden, y).total, made.full.loss(hidden, y).total
    torch.testing.assert_close(sampled, exact, rtol=1e-10, atol=0)
    learned = [hidden, *made.parameters()]
    for mine, its in zip(
        torch.autograd.grad(sampled, learned), torch.autograd.grad(exact, learned), strict=True
    ):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)


def test_the_gradient_of_importance_comes_closer_with_more_samples() -> None:
    """Its expectation, over 200 samples of each size."""
    hidden, y = drawn(ROWS, WIDTH), targets()
    errors = []
    for samples in (4, 16, 64, 256):
        made = layer("importance", samples)
        (exact,) = torch.autograd.grad(made.full.loss(hidden, y).total, [made.full.weight])
        mean = torch.zeros_like(exact)
        for seed in range(200):
            (one,) = torch.autograd.grad(
                made.sampled_loss(hidden, y, draws(made, seed)), [made.full.weight]
            )
            mean += one / 200
        errors.append(float((mean - exact).norm() / exact.norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.03


def test_only_targets_and_draws_have_gradients() -> None:
    for kind in KINDS:
        made, y = layer(kind, 2), torch.tensor([1, 4])
        sample = Draws(torch.tensor([4, 9]), torch.tensor([1, 1]))
        (gradient,) = torch.autograd.grad(
            made.sampled_loss(drawn(2, WIDTH), y, sample), [made.full.weight]
        )
        assert gradient.ne(0).any(dim=1).nonzero()[:, 0].tolist() == [1, 4, 9]


def test_draws_follow_the_counts_raised_to_alpha() -> None:
    made = layer("blackout", 200_000, alpha=0.5)
    sample = draws(made, seed=0)
    share = torch.zeros(VOCABULARY).double()
    share[sample.ids] = sample.times.double() / made.samples
    # (k²)^0.5, and 1 for what never occurs
    expected = torch.arange(VOCABULARY).double().clamp(min=1)
    torch.testing.assert_close(share, expected / expected.sum(), rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_come_from_torchs_global_stream(kind: Kind) -> None:
    made, hidden, y = layer(kind), drawn(ROWS, WIDTH), targets()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(made.loss(hidden, y).total.detach()))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_the_full_softmax(kind: Kind) -> None:
    made, hidden, y = layer(kind).eval(), drawn(ROWS, WIDTH), targets()
    y[3] = IGNORE
    expected = F.cross_entropy(made.logits(hidden), y, reduction="sum", ignore_index=IGNORE)
    torch.testing.assert_close(made.loss(hidden, y).total, expected)
    torch.testing.assert_close(
        made.loss(hidden, y, 0.1).total, made.full.loss(hidden, y, 0.1).total
    )
    torch.testing.assert_close(-made.log_probs(hidden, y).sum(), expected)
    assert made.log_probs(hidden, y)[3] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_ignored_positions_are_as_if_they_were_not_there(kind: Kind) -> None:
    made, hidden, y = layer(kind), drawn(2, ROWS // 2, WIDTH), targets().view(2, -1)
    y[0, 1:3] = y[1, -1] = IGNORE
    torch.manual_seed(0)
    total, count = made.loss(hidden, y)
    trained = y != IGNORE
    torch.testing.assert_close(
        total, made.sampled_loss(hidden[trained], y[trained], draws(made, 0))
    )
    assert int(count) == ROWS - 3
    nothing, none = made.loss(hidden, torch.full_like(y, IGNORE))
    torch.autograd.backward(nothing)
    assert (float(nothing.detach()), int(none)) == (0.0, 0)
    assert all(
        parameter.grad is not None and bool(parameter.grad.eq(0).all())
        for parameter in made.parameters()
    )


def test_a_draw_that_is_all_but_certain_keeps_blackout_finite() -> None:
    made = layer("blackout").float()
    with torch.no_grad():
        made.full.weight.mul_(50)
    total = made.loss(hidden := drawn(ROWS, WIDTH).float().requires_grad_(), targets()).total
    torch.autograd.backward(total)
    assert bool(total.detach().isfinite())
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_it_is_close(kind: Kind) -> None:
    made, hidden, y = (
        layer(kind, 40).float(),
        drawn(200, WIDTH).float().requires_grad_(),
        torch.arange(200) % VOCABULARY,
    )
    sample = draws(made, 0)
    with torch.autocast("cpu", torch.bfloat16):
        low = made.sampled_loss(hidden, y, sample)
    exact = made.sampled_loss(hidden, y, sample)
    assert low.dtype is torch.float32
    assert float(low.detach()) == pytest.approx(float(exact.detach()), rel=1e-2)
    learned = [hidden, *made.parameters()]
    for mine, its in zip(
        torch.autograd.grad(low, learned), torch.autograd.grad(exact, learned), strict=True
    ):
        assert mine.dtype is torch.float32
        assert float((mine - its).norm() / its.norm()) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_tied_and_its_proposal_is_saved(kind: Kind) -> None:
    embedding = nn.Parameter(drawn(VOCABULARY, WIDTH))
    made = SampledOutput(kind, WIDTH, VOCABULARY, embedding, bias=False)
    assert list(made.parameters()) == [embedding]
    made.set_counts(torch.arange(VOCABULARY))
    other = SampledOutput(kind, WIDTH, VOCABULARY)
    other.load_state_dict(made.state_dict(), strict=False)
    assert torch.equal(other.cumulative, made.cumulative)
    assert other.cumulative.dtype is torch.float64
    with torch.device("meta"):  # shapes follow from the config alone
        SampledOutput(kind, WIDTH, VOCABULARY)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        layer("importance", 0)
    with pytest.raises(UsageError, match="smoothing"):
        layer("blackout").loss(drawn(1, WIDTH), torch.tensor([1]), 0.1)
