"""The output layer: the same numbers and gradients as torch's cross-entropy, however the positions are cut into chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from seqloom.layers import output as module
from seqloom.layers.output import FullOutput
from seqloom.shapes import IGNORE

ROWS, STEPS, WIDTH, VOCABULARY = 3, 7, 4, 11


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(tied: nn.Parameter | None = None) -> FullOutput:
    made = FullOutput(WIDTH, VOCABULARY, tied).double()
    with torch.no_grad():
        made.bias.copy_(drawn(VOCABULARY, seed=3))
    return made


def targets() -> Tensor:
    """With gaps, also a whole row of them."""
    ids = torch.randint(VOCABULARY, (ROWS, STEPS), generator=torch.Generator().manual_seed(0))
    ids[0, 2:5] = ids[2] = IGNORE
    return ids


@pytest.mark.parametrize("chunk", [1, 3, 11, 1024])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_loss_and_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made, y = layer(), targets()
    total, count = made.loss(hidden := drawn(ROWS, STEPS, WIDTH).requires_grad_(), y, smoothing)
    actual = torch.autograd.grad(3 * total, [hidden, made.weight, made.bias])

    expected = F.cross_entropy(
        made.logits(hidden).flatten(0, 1), y.flatten(), reduction="sum", ignore_index=IGNORE, label_smoothing=smoothing
    )
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    for mine, its in zip(actual, torch.autograd.grad(3 * expected, [hidden, made.weight, made.bias]), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)
    assert int(count) == (y != IGNORE).sum() == 11


def test_a_loss_is_the_same_in_any_shape() -> None:
    made, hidden, y = layer(), drawn(ROWS, STEPS, WIDTH), targets()
    whole = made.loss(hidden, y)
    flat = made.loss(hidden.flatten(0, 1), y.flatten())
    assert torch.equal(whole.total, flat.total)
    parts = [made.loss(hidden[row, step], y[row, step]) for row in range(ROWS) for step in range(STEPS)]
    torch.testing.assert_close(sum((p.total for p in parts), torch.zeros(())), whole.total, check_dtype=False)
    assert sum(int(p.count) for p in parts) == whole.count


def test_nothing_trained_is_a_loss_of_0_with_gradients_of_0() -> None:
    made, hidden = layer(), drawn(ROWS, STEPS, WIDTH).requires_grad_()
    total, count = made.loss(hidden, torch.full((ROWS, STEPS), IGNORE))
    assert (total.item(), count.item()) == (0.0, 0)
    for gradient in torch.autograd.grad(total, [hidden, made.weight, made.bias]):
        assert gradient.eq(0).all()


def test_logits_are_a_linear_map_and_may_be_tied_to_an_embedding() -> None:
    embedding = nn.Parameter(drawn(VOCABULARY, WIDTH))
    made, hidden = layer(embedding), drawn(ROWS, STEPS, WIDTH, seed=2)
    assert made.weight is embedding
    torch.testing.assert_close(made.logits(hidden), hidden @ embedding.T + made.bias)
    (gradient,) = torch.autograd.grad(made.loss(hidden, targets()).total, [embedding])
    assert gradient.ne(0).any()


@pytest.mark.parametrize("low", [False, True], ids=["float32 hidden", "bfloat16 hidden"])
def test_under_autocast_only_the_products_are_rough(monkeypatch: pytest.MonkeyPatch, low: bool) -> None:
    """A total that is itself held in bfloat16 would be wrong by 1 in 256."""
    monkeypatch.setattr(module, "CHUNK", 64)
    positions, vocabulary, width = 1000, 50, 16
    made = FullOutput(width, vocabulary)
    hidden = drawn(positions, width).bfloat16().to(torch.bfloat16 if low else torch.float32).requires_grad_()
    y = torch.arange(positions) % vocabulary
    with torch.autocast("cpu", torch.bfloat16):
        total, count = made.loss(hidden, y, 0.1)
    assert total.dtype is torch.float32
    assert int(count) == positions
    actual = torch.autograd.grad(total, [hidden, made.weight, made.bias])
    assert [part.dtype for part in actual] == [hidden.dtype, torch.float32, torch.float32]

    exact = hidden.detach().float().requires_grad_()
    expected = F.cross_entropy(made.logits(exact), y, reduction="sum", label_smoothing=0.1)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=2e-4)
    for mine, its in zip(actual, torch.autograd.grad(expected, [exact, made.weight, made.bias]), strict=True):
        assert float((mine - its).norm() / its.norm()) < 0.01


def test_without_gradients_only_the_logits_are_formed() -> None:
    made, hidden, y = layer(), drawn(5, WIDTH), torch.arange(5)
    product = 2 * 5 * WIDTH * VOCABULARY
    with torch.no_grad(), FlopCounterMode(display=False) as seen:
        made.loss(hidden, y)
    assert seen.get_total_flops() == product
    with FlopCounterMode(display=False) as seen:
        torch.autograd.grad(made.loss(hidden, y).total, [made.weight, made.bias])
    assert seen.get_total_flops() == 3 * product
