"""The adaptive softmax: a distribution over the whole vocabulary, the same as torch's, with words in any
order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.outputs import softmax
from seqloom.layers.outputs.adaptive_softmax import AdaptiveOutput, default_cutoffs
from seqloom.shapes import IGNORE

ROWS, STEPS, WIDTH, VOCABULARY, CUTOFFS = 3, 7, 32, 29, (5, 11)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffled_counts() -> Tensor:
    """All different, so the order is plain."""
    return torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(5))


def layer() -> AdaptiveOutput:
    made = AdaptiveOutput(WIDTH, VOCABULARY, CUTOFFS).double()
    made.set_counts(shuffled_counts())
    return made


def targets() -> Tensor:
    """With gaps, and every cluster hit."""
    ids = torch.arange(ROWS * STEPS).view(ROWS, STEPS) % VOCABULARY
    ids[0, 2:5] = IGNORE
    return ids


def torchs(made: AdaptiveOutput) -> nn.AdaptiveLogSoftmaxWithLoss:
    """torch's own with the same weights; its ids are ranks."""
    its = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, list(CUTOFFS), div_value=4.0).double()
    for mine, other in zip(made.parameters(), its.parameters(), strict=True):
        with torch.no_grad():
            other.copy_(mine)
    return its


def test_it_is_a_distribution_over_the_whole_vocabulary() -> None:
    logits = layer().logits(drawn(ROWS, STEPS, WIDTH))
    assert logits.shape == (ROWS, STEPS, VOCABULARY)
    torch.testing.assert_close(
        logits.exp().sum(dim=-1), torch.ones(ROWS, STEPS).double(), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("chunk", [2, 1024])
def test_loss_and_gradients_are_those_of_its_own_logits(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(softmax, "CHUNK", chunk)
    made, y, hidden = layer(), targets(), drawn(ROWS, STEPS, WIDTH).requires_grad_()
    total, count = made.loss(hidden, y)
    expected = F.nll_loss(
        made.logits(hidden).flatten(0, 1), y.flatten(), reduction="sum", ignore_index=IGNORE
    )
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    assert int(count) == (y != IGNORE).sum()
    learned = [hidden, *made.parameters()]
    for mine, its in zip(
        torch.autograd.grad(2 * total, learned),
        torch.autograd.grad(2 * expected, learned),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)


def test_it_is_torchs_with_ids_for_ranks() -> None:
    made, hidden, y = layer(), drawn(20, WIDTH).requires_grad_(), torch.arange(20)
    its = torchs(made)
    ranks = shuffled_counts().argsort(descending=True).argsort()
    torch.testing.assert_close(
        made.logits(hidden), its.log_prob(hidden)[:, ranks], rtol=1e-12, atol=1e-12
    )
    theirs = its(hidden, ranks[y])
    torch.testing.assert_close(
        made.log_probs(hidden, y), theirs.output.detach(), rtol=1e-12, atol=1e-12
    )
    mine = torch.autograd.grad(made.loss(hidden, y).total, [hidden, *made.parameters()])
    for a, b in zip(
        mine, torch.autograd.grad(-theirs.output.sum(), [hidden, *its.parameters()]), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_log_probs_are_those_of_the_logits_and_0_at_ignore() -> None:
    made, y, hidden = layer(), targets(), drawn(ROWS, STEPS, WIDTH)
    found = made.log_probs(hidden, y)
    trained = y != IGNORE
    chosen = made.logits(hidden).gather(-1, y.where(trained, 0)[..., None])[..., 0]
    torch.testing.assert_close(found, chosen.where(trained, 0), rtol=1e-12, atol=1e-14)
    assert not found.requires_grad


def test_the_most_frequent_words_are_in_the_head() -> None:
    made, counts = layer(), shuffled_counts()
    in_head = made.rank < CUTOFFS[0]
    assert int(counts[in_head].min()) > int(counts[~in_head].max())


def test_the_order_is_saved_with_the_weights() -> None:
    made, other = layer(), AdaptiveOutput(WIDTH, VOCABULARY, CUTOFFS).double()
    other.load_state_dict(made.state_dict())
    hidden = drawn(2, WIDTH)
    assert torch.equal(other.logits(hidden), made.logits(hidden))


@pytest.mark.parametrize("which", [0, IGNORE], ids=["only one word", "nothing"])
def test_every_weight_has_a_gradient_also_where_its_cluster_is_not_hit(which: int) -> None:
    """Workers that hit different clusters would wait for each other."""
    made = layer()
    total, count = made.loss(drawn(4, WIDTH), torch.full((4,), which))
    torch.autograd.backward(total)
    assert all(
        parameter.grad is not None and bool(parameter.grad.isfinite().all())
        for parameter in made.parameters()
    )
    assert int(count) == (4 if which == 0 else 0)
    assert count or total == 0


def test_under_autocast_it_is_close() -> None:
    made, hidden, y = (
        AdaptiveOutput(WIDTH, VOCABULARY, CUTOFFS),
        drawn(60, WIDTH).float(),
        torch.arange(60) % VOCABULARY,
    )
    with torch.autocast("cpu", torch.bfloat16):
        low = made.loss(hidden, y).total
        logits = made.logits(hidden)
    assert low.dtype is logits.dtype is torch.float32
    assert float(low.detach()) == pytest.approx(
        float(made.loss(hidden, y).total.detach()), rel=5e-3
    )
    torch.testing.assert_close(logits, made.logits(hidden), rtol=0, atol=0.1)


def test_what_cannot_be_is_refused() -> None:
    for cutoffs in ([0, 3], [3, 3], [5, 2], [VOCABULARY]):
        with pytest.raises(UsageError, match="cutoffs must rise"):
            AdaptiveOutput(WIDTH, VOCABULARY, cutoffs)
    with pytest.raises(UsageError, match="smoothing"):
        layer().loss(drawn(1, WIDTH), torch.tensor([1]), 0.1)


@pytest.mark.parametrize("vocabulary", [2, 3, 16, 17, 33_000])
def test_the_default_cutoffs_are_possible(vocabulary: int) -> None:
    with torch.device("meta"):  # shapes follow from the config alone
        made = AdaptiveOutput(8, vocabulary)
    assert made.cutoffs == (*default_cutoffs(vocabulary), vocabulary)
