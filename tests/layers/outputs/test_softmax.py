"""The output layer: the same numbers and gradients as torch's cross-entropy, however the positions are cut
into chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from seqloom.layers.outputs import softmax as module
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.shapes import IGNORE

ROWS, STEPS, WIDTH, VOCABULARY = 3, 7, 4, 11


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(tied: nn.Parameter | None = None, *, bias: bool = True) -> FullOutput:
    made = FullOutput(WIDTH, VOCABULARY, tied, bias=bias).double()
    if made.bias is not None:
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
def test_loss_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made, y = layer(), targets()
    total, count = made.loss(hidden := drawn(ROWS, STEPS, WIDTH).requires_grad_(), y, smoothing)
    actual = torch.autograd.grad(3 * total, [hidden, *made.parameters()])

    expected = F.cross_entropy(
        made.logits(hidden).flatten(0, 1),
        y.flatten(),
        reduction="sum",
        ignore_index=IGNORE,
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    for mine, its in zip(
        actual, torch.autograd.grad(3 * expected, [hidden, *made.parameters()]), strict=True
    ):
        torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)
    assert int(count) == (y != IGNORE).sum() == 11


def test_a_loss_is_the_same_in_any_shape() -> None:
    made, hidden, y = layer(), drawn(ROWS, STEPS, WIDTH), targets()
    whole = made.loss(hidden, y)
    flat = made.loss(hidden.flatten(0, 1), y.flatten())
    assert torch.equal(whole.total, flat.total)
    parts = [
        made.loss(hidden[row, step], y[row, step]) for row in range(ROWS) for step in range(STEPS)
    ]
    torch.testing.assert_close(
        sum((p.total for p in parts), torch.zeros(())), whole.total, check_dtype=False
    )
    assert sum(int(p.count) for p in parts) == whole.count


def test_nothing_trained_is_a_loss_of_0_with_gradients_of_0() -> None:
    made, hidden = layer(), drawn(ROWS, STEPS, WIDTH).requires_grad_()
    total, count = made.loss(hidden, torch.full((ROWS, STEPS), IGNORE))
    assert (total.item(), count.item()) == (0.0, 0)
    for gradient in torch.autograd.grad(total, [hidden, *made.parameters()]):
        assert gradient.eq(0).all()


def test_logits_are_a_linear_map_and_may_be_tied_to_an_embedding() -> None:
    embedding = nn.Parameter(drawn(VOCABULARY, WIDTH))
    made, hidden = layer(embedding), drawn(ROWS, STEPS, WIDTH, seed=2)
    assert made.weight is embedding
    torch.testing.assert_close(made.logits(hidden), F.linear(hidden, embedding, made.bias))
    (gradient,) = torch.autograd.grad(made.loss(hidden, targets()).total, [embedding])
    assert gradient.ne(0).any()


@pytest.mark.parametrize("low", [False, True], ids=["float32 hidden", "bfloat16 hidden"])
def test_under_autocast_only_the_products_are_rough(
    monkeypatch: pytest.MonkeyPatch, low: bool
) -> None:
    """A total that is itself held in bfloat16 would be wrong by 1 in 256."""
    monkeypatch.setattr(module, "CHUNK", 64)
    positions, vocabulary, width = 1000, 50, 16
    made = FullOutput(width, vocabulary)
    hidden = (
        drawn(positions, width)
        .bfloat16()
        .to(torch.bfloat16 if low else torch.float32)
        .requires_grad_()
    )
    y = torch.arange(positions) % vocabulary
    with torch.autocast("cpu", torch.bfloat16):
        total, count = made.loss(hidden, y, 0.1)
    assert total.dtype is torch.float32
    assert int(count) == positions
    actual = torch.autograd.grad(total, [hidden, *made.parameters()])
    assert [part.dtype for part in actual] == [hidden.dtype, torch.float32, torch.float32]

    exact = hidden.detach().float().requires_grad_()
    expected = F.cross_entropy(made.logits(exact), y, reduction="sum", label_smoothing=0.1)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=2e-4)
    for mine, its in zip(
        actual, torch.autograd.grad(expected, [exact, *made.parameters()]), strict=True
    ):
        assert float((mine - its).norm() / its.norm()) < 0.01


def test_without_gradients_only_the_logits_are_formed() -> None:
    made, hidden, y = layer(), drawn(5, WIDTH), torch.arange(5)
    product = 2 * 5 * WIDTH * VOCABULARY
    with torch.no_grad(), FlopCounterMode(display=False) as seen:
        made.loss(hidden, y)
    assert seen.get_total_flops() == product
    with FlopCounterMode(display=False) as seen:
        torch.autograd.grad(made.loss(hidden, y).total, list(made.parameters()))
    # and the gradient of the weight, whose addmm_ the counter does not know
    assert seen.get_total_flops() == 2 * product


@pytest.mark.parametrize("chunk", [1, 3, 1024])
@pytest.mark.parametrize("bias", [False, True])
def test_log_probs_are_those_of_the_logits(
    monkeypatch: pytest.MonkeyPatch, bias: bool, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made, y, hidden = layer(bias=bias), targets(), drawn(ROWS, STEPS, WIDTH)
    found = made.log_probs(hidden, y)
    trained = y != IGNORE
    expected = (
        made.logits(hidden).log_softmax(dim=-1).gather(-1, y.where(trained, 0)[..., None])[..., 0]
    )
    torch.testing.assert_close(found, expected.where(trained, 0), rtol=1e-12, atol=1e-14)
    assert not found.requires_grad
    torch.testing.assert_close(-found.sum(), made.loss(hidden, y).total)
    assert made.log_probs(hidden, torch.full_like(y, IGNORE)).eq(0).all()


def test_without_a_bias_it_is_a_bias_of_0() -> None:
    made, hidden, y = layer(bias=False), drawn(ROWS, STEPS, WIDTH).requires_grad_(), targets()
    twin = FullOutput(WIDTH, VOCABULARY, made.weight)
    assert [name for name, _ in made.named_parameters()] == ["weight"]
    assert torch.equal(made.logits(hidden), twin.double().logits(hidden))
    mine, its = made.loss(hidden, y).total, twin.loss(hidden, y).total
    assert torch.equal(mine, its)
    for a, b in zip(
        torch.autograd.grad(mine, [hidden, made.weight]),
        torch.autograd.grad(its, [hidden, made.weight]),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_a_logit_far_below_the_largest_has_a_finite_loss() -> None:
    """Its probability is 0 in float32, its logarithm is not."""
    made = FullOutput(1, 3)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[0.0], [500.0], [-500.0]]))
    total = made.loss(torch.ones(1, 1), torch.tensor([2])).total
    assert float(total.detach()) == pytest.approx(1000)
    assert made.log_probs(torch.ones(1, 1), torch.tensor([2])).tolist() == pytest.approx([-1000])


def test_a_kept_graph_gives_the_same_gradient_again() -> None:
    """The gradients that were formed on the way are handed out without a copy."""
    made, hidden = layer(), drawn(ROWS, STEPS, WIDTH)
    total = made.loss(hidden, targets()).total
    torch.autograd.backward(total, retain_graph=True)
    assert made.weight.grad is not None
    once = made.weight.grad.clone()
    torch.autograd.backward(total)
    torch.testing.assert_close(made.weight.grad, 2 * once)


def test_log_probs_under_autocast_are_close() -> None:
    made, hidden, y = FullOutput(16, 50), drawn(100, 16).float(), torch.arange(100) % 50
    with torch.autocast("cpu", torch.bfloat16):
        found = made.log_probs(hidden, y)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, made.log_probs(hidden, y), rtol=0, atol=0.05)
