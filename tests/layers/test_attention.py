"""Attention of a recurrent decoder: its formulas, and what padding must not do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seqloom.errors import UsageError
from seqloom.layers.attention import (
    SCORES,
    AdditiveScores,
    AttentionScores,
    BilinearScores,
    DotScores,
    attention_weights,
    weighted_mean,
)

ROWS, STEPS, SOURCE, WIDTH, INNER = 3, 4, 5, 6, 2
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 0]], dtype=torch.bool)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scorer(kind: str, memory_width: int = WIDTH) -> AttentionScores:
    """With all weights and biases drawn at random."""
    made = SCORES[kind](WIDTH, memory_width, INNER).double()
    with torch.no_grad():
        for at, parameter in enumerate(made.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=10 + at))
    return made


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def additive(made: AttentionScores, s: Tensor, h: Tensor) -> float:
    assert isinstance(made, AdditiveScores)
    u, v, w, b = made.memory.weight, made.score.weight[0], made.query.weight, made.query.bias
    return sum(float(v[k]) * math.tanh(float(w[k] @ s + b[k] + u[k] @ h)) for k in range(INNER))


def dot(_: AttentionScores, s: Tensor, h: Tensor) -> float:
    return sum(float(a) * float(b) for a, b in zip(s, h, strict=True))


def bilinear(made: AttentionScores, s: Tensor, h: Tensor) -> float:
    assert isinstance(made, BilinearScores)
    return float(s @ (made.memory.weight @ h))


FORMULAS: dict[str, tuple[Callable[[AttentionScores, Tensor, Tensor], float], int]] = {
    "additive": (additive, 3),
    "dot": (dot, WIDTH),
    "bilinear": (bilinear, 3),
}
"""Kind -> its formula for one pair, and a width of the memory that it takes."""


def test_every_kind_has_its_formula_here() -> None:
    assert FORMULAS.keys() == SCORES.keys()


@torch.no_grad()
@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_the_formula_for_one_query_and_for_many(kind: str) -> None:
    formula, memory_width = FORMULAS[kind]
    made, memory, queries = (
        scorer(kind, memory_width),
        drawn(ROWS, SOURCE, memory_width),
        drawn(ROWS, STEPS, WIDTH, seed=2),
    )
    pairs = [
        [[formula(made, s, h) for h in memory[row]] for s in queries[row]] for row in range(ROWS)
    ]
    expected = torch.tensor(pairs, dtype=torch.float64)
    many = made.scores(queries, made.keys(memory))
    close(many, expected)
    for step in range(STEPS):
        close(made.scores(queries[:, step], made.keys(memory)), many[:, step])


@pytest.mark.parametrize("kind", SCORES)
def test_permuting_the_input_permutes_the_weights_and_leaves_the_context(kind: str) -> None:
    made, memory, query = scorer(kind), drawn(ROWS, SOURCE, WIDTH), drawn(ROWS, WIDTH, seed=2)
    order = torch.tensor([3, 0, 4, 2, 1])
    weights = attention_weights(made.scores(query, made.keys(memory)), MASK)
    permuted = attention_weights(made.scores(query, made.keys(memory[:, order])), MASK[:, order])
    close(permuted, weights[:, order])
    close(weighted_mean(permuted, memory[:, order]), weighted_mean(weights, memory))


def test_weights_sum_to_1_and_padding_gets_exactly_0() -> None:
    scores = drawn(ROWS, STEPS, SOURCE) * 50
    scores[:, :, 3] = 1e4  # the largest score of all, where two of the rows have padding
    weights = attention_weights(scores, MASK[:, None])
    assert weights.masked_select(~MASK[:, None]).eq(0).all()
    close(weights.sum(-1), torch.ones(ROWS, STEPS, dtype=torch.float64))
    for row in range(ROWS):
        close(weights[row][:, MASK[row]], scores[row][:, MASK[row]].softmax(-1))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_a_row_with_nothing_to_see_gets_0_and_not_nan(dtype: torch.dtype) -> None:
    scores = drawn(2, SOURCE).to(dtype).requires_grad_()
    weights = attention_weights(
        scores, torch.stack([torch.zeros(SOURCE).bool(), torch.ones(SOURCE).bool()])
    )
    assert weights[0].eq(0).all()
    context = weighted_mean(weights, drawn(2, SOURCE, WIDTH).to(dtype))
    assert context[0].eq(0).all()
    (gradient,) = torch.autograd.grad(context.sum(), scores)
    assert gradient[0].eq(0).all()
    assert gradient[1].isfinite().all()
    assert gradient[1].any()


def test_padding_gets_no_gradient() -> None:
    scores, values = (
        drawn(ROWS, SOURCE).requires_grad_(),
        drawn(ROWS, SOURCE, WIDTH).requires_grad_(),
    )
    total = weighted_mean(attention_weights(scores, MASK), values).square().sum()
    for part in torch.autograd.grad(total, [scores, values]):
        assert part[~MASK].eq(0).all()
        assert part[MASK].ne(0).all()


def test_the_context_is_the_weighted_mean() -> None:
    weights, values = (
        attention_weights(drawn(ROWS, STEPS, SOURCE), MASK[:, None]),
        drawn(ROWS, SOURCE, WIDTH, seed=2),
    )
    context = weighted_mean(weights, values)
    close(context, torch.einsum("rts,rsw->rtw", weights, values))
    close(weighted_mean(weights[:, 1], values), context[:, 1])


def test_dot_needs_equal_widths() -> None:
    with pytest.raises(UsageError, match=r"6 is not 4; .*or take bilinear"):
        DotScores(6, 4, INNER)
