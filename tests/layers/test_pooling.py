"""Pooling beside its equations, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqloom.layers.pooling import POOLINGS, AttentionPooling, Pooling, pool_states

MASKS = {
    "right": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]],
    "left": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]],
    "around": [[0, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 1, 0, 0]],
}
WIDTH = 4


@pytest.fixture(params=MASKS)
def mask(request: pytest.FixtureRequest) -> Tensor:
    return torch.tensor(MASKS[request.param], dtype=torch.bool)


def states(mask: Tensor, seed: int = 0) -> Tensor:
    """nan at padding; below 0 in one feature, so that a 0 of padding would be its largest value."""
    hidden = torch.randn(
        *mask.shape, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    hidden[..., 1] = -hidden[..., 1].abs() - 0.1
    return hidden.masked_fill(~mask[..., None], torch.nan)


def attention() -> AttentionPooling:
    torch.manual_seed(3)
    return AttentionPooling(WIDTH).double()


def by_hand(way: Pooling, directions: int, h: Tensor, looks: AttentionPooling) -> Tensor:
    """h `(steps, width)`, all of them true."""
    if way == "first":
        return h[0]
    if way == "last":
        return h[-1] if directions == 1 else torch.cat([h[-1, : WIDTH // 2], h[0, WIDTH // 2 :]])
    if way == "attention":
        scores = torch.stack([looks.vector @ torch.tanh(looks.weight @ each) for each in h])
        return scores.exp() @ h / scores.exp().sum()
    return {"mean": h.mean(0), "max": h.max(0).values, "sum": h.sum(0)}[way]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("way", POOLINGS)
def test_only_true_steps_count(way: Pooling, directions: int, mask: Tensor) -> None:
    looks, hidden = attention(), states(mask)
    got = pool_states(way, hidden, mask, directions, looks)
    for row in range(len(mask)):
        torch.testing.assert_close(
            got[row], by_hand(way, directions, hidden[row][mask[row]], looks)
        )


@pytest.mark.parametrize("way", POOLINGS)
def test_no_gradient_reaches_padding(way: Pooling, mask: Tensor) -> None:
    hidden = states(mask).requires_grad_()
    looks = attention()
    gradient, *others = torch.autograd.grad(
        (pool_states(way, hidden, mask, 1, looks) ** 2).sum(),
        [hidden, *looks.parameters()],
        allow_unused=True,
    )
    assert gradient.isfinite().all()
    assert bool((gradient[~mask] == 0).all())
    assert float(gradient.abs().sum()) > 0
    assert all(
        (each is not None and bool(each.isfinite().all())) == (way == "attention")
        for each in others
    )


@pytest.mark.parametrize("way", POOLINGS)
def test_a_text_of_no_steps_is_zero(way: Pooling) -> None:
    mask = torch.tensor([[True, False], [False, False]])
    hidden = states(mask).requires_grad_()
    got = pool_states(way, hidden, mask, 2, attention())
    assert got[1].tolist() == [0] * WIDTH
    assert bool(torch.autograd.grad(got.sum(), hidden)[0].isfinite().all())
    nothing = pool_states(
        way, torch.zeros(3, 0, WIDTH), torch.zeros(3, 0, dtype=torch.bool), 1, attention()
    )
    assert nothing.tolist() == [[0] * WIDTH] * 3


def test_attention_looks_at_what_its_vector_likes() -> None:
    looks = attention()
    with torch.no_grad():
        looks.weight.copy_(torch.eye(WIDTH))
        looks.vector.copy_(torch.tensor([50.0, 0, 0, 0]))
    hidden = torch.zeros(1, 3, WIDTH, dtype=torch.float64)
    hidden[0, 1, 0] = 2
    weights = looks(hidden, torch.tensor([[True, True, True]]))
    torch.testing.assert_close(
        weights, torch.tensor([[0.0, 1, 0]], dtype=torch.float64), rtol=0, atol=1e-12
    )
