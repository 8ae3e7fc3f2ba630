"""GloVe's pass against autograd, against its plain twin, and its objective at the optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.layers import glove
from seqloom.layers.glove import BLOCKS, Cells, CountWeights, Factors, in_rounds, train_cells
from seqloom.native.library import library

WORDS = 40
WEIGHTS = CountWeights(x_max=20.0, alpha=0.75)
compiled = pytest.mark.skipif(library() is None, reason="the compiled pass needs a C++ compiler")


def cells(words: int = WORDS, share: float = 0.3, seed: int = 0) -> Cells:
    random = np.random.default_rng(seed)
    rows, columns = np.nonzero(random.random((words, words)) < share)
    counts = random.exponential(20.0, len(rows)) + 0.1
    return Cells(rows.astype(np.int32), columns.astype(np.int32), counts.astype(np.float32))


def factors(words: int = WORDS, width: int = 12, dtype: torch.dtype = torch.float64) -> Factors:
    generator = torch.Generator().manual_seed(0)
    shapes = ((words, width), (words, width), (words,), (words,))
    return Factors(
        *(torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    )


def ones(like: Factors) -> Factors:
    return Factors(*(torch.ones_like(one) for one in like))


def copy(of: Factors) -> Factors:
    return Factors(*(one.clone() for one in of))


def objective(of: Factors, data: Cells) -> Tensor:
    """As Pennington et al. (2014) write it, with dense matrices."""
    counts = torch.zeros(len(of.rows), len(of.rows), dtype=torch.float64)
    counts[data.rows, data.columns] = torch.from_numpy(data.counts).double()
    logs = counts.where(counts > 0, 1).log()
    errors = of.rows @ of.columns.T + of.row_biases[:, None] + of.column_biases - logs
    weights = (counts / WEIGHTS.x_max).clamp(max=1) ** WEIGHTS.alpha
    return 0.5 * (weights * errors**2).sum()


def test_a_step_is_the_gradient_of_its_loss_by_adagrad() -> None:
    start, rate = factors(), 0.1
    squares = Factors(*(1 + one for one in start))
    leaves = Factors(*(one.clone().requires_grad_() for one in start))
    some = cells()
    one = Cells(some.rows[:1], some.columns[:1], some.counts[:1])
    loss = objective(leaves, one)
    loss.backward()  # type: ignore[no-untyped-call]
    now, sums = copy(start), copy(squares)
    measured = train_cells(now, sums, one, WEIGHTS, rate)
    assert measured == pytest.approx(loss.item(), rel=1e-12)
    for leaf, square, new, total in zip(leaves, squares, now, sums, strict=True):
        assert leaf.grad is not None
        step = rate * leaf.grad
        torch.testing.assert_close(new, leaf.detach() - step / square.sqrt(), rtol=0, atol=1e-10)
        torch.testing.assert_close(total, square + step**2, rtol=0, atol=1e-10)


@compiled
@pytest.mark.parametrize("width", [1, 12, 33])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_compiled_pass_is_the_plain_one(
    width: int, dtype: torch.dtype, tolerance: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, plain = factors(width=width, dtype=dtype), factors(width=width, dtype=dtype)
    fast_squares, plain_squares = ones(fast), ones(plain)
    loss = train_cells(fast, fast_squares, cells(), WEIGHTS, 0.1, threads)
    monkeypatch.setattr(glove, "library", lambda: None)
    assert loss == pytest.approx(train_cells(plain, plain_squares, cells(), WEIGHTS, 0.1), rel=1e-5)
    for a, b in zip((*fast, *fast_squares), (*plain, *plain_squares), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@compiled
def test_any_number_of_threads_ends_in_the_same_bits() -> None:
    results = []
    for threads in (1, 2, 5):
        now = factors(300)
        squares, data = ones(now), cells(300)
        losses = [train_cells(now, squares, data, WEIGHTS, 0.1, threads) for _ in range(3)]
        results.append((losses, now, squares))
    for losses, now, squares in results[1:]:
        assert losses == results[0][0]
        assert all(map(torch.equal, (*now, *squares), (*results[0][1], *results[0][2])))


def test_no_two_blocks_of_a_round_share_a_row_or_a_column() -> None:
    data = cells(300)
    order, starts = in_rounds(data)
    assert sorted(order.tolist()) == list(range(len(data.rows)))
    for words in (data.rows[order], data.columns[order]):
        for first in range(0, BLOCKS**2, BLOCKS):
            blocks = [
                set(words[starts[block] : starts[block + 1]].tolist())
                for block in range(first, first + BLOCKS)
            ]
            assert len(set().union(*blocks)) == sum(map(len, blocks))


def test_a_rate_of_0_measures_the_whole_objective() -> None:
    start = factors()
    now = copy(start)
    loss = train_cells(now, ones(now), cells(), WEIGHTS, 0.0)
    assert loss == pytest.approx(objective(start, cells()).item(), rel=1e-12)
    assert all(map(torch.equal, now, start))


@compiled
def test_a_long_training_reaches_an_optimum_of_the_objective() -> None:
    """Another method (L-BFGS, over dense matrices) goes on from there and finds nothing that is lower; at its
    end both measure the same, and our steps stay there. The sums of squares begin anew at each pass, for else
    the steps become small long before they are right."""
    data = cells(8, 0.8)
    data = data._replace(counts=data.counts + 5)
    now, passes = factors(8, 1), 6000
    for number in range(passes):
        train_cells(now, ones(now), data, WEIGHTS, 0.1 * 0.01 ** (number / passes))
    leaves = Factors(*(one.clone().requires_grad_() for one in now))
    solver = torch.optim.LBFGS(
        list(leaves),
        max_iter=5000,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = objective(leaves, data)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    optimum = objective(leaves, data).item()
    assert optimum > 0.01
    assert objective(now, data).item() == pytest.approx(optimum, abs=1e-4)
    best = Factors(*(one.detach().clone() for one in leaves))
    measured = train_cells(best, ones(best), data, WEIGHTS, 0.0)
    assert measured == pytest.approx(optimum, abs=1e-10)
    for _ in range(100):
        train_cells(best, ones(best), data, WEIGHTS, 1e-4)
    assert objective(best, data).item() == pytest.approx(optimum, abs=1e-6)
