"""The order of the data is a permutation for every count, seed and epoch, and needs no state."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.batching.order import order, permute

SEEDS = st.integers(0, 2**63 - 1)


@given(st.integers(0, 3000), SEEDS, st.integers(0, 2**32))
def test_every_row_stands_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(order(seed, epoch, 0, count, count).tolist()) == list(range(count))


def test_every_row_stands_once_for_each_small_count() -> None:
    for count in range(400):
        assert sorted(order(count, 1, 0, count, count).tolist()) == list(range(count))


@given(st.integers(1, 10**12), SEEDS, st.integers(0, 2**20), st.data())
def test_a_slice_is_a_slice(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start, min(start + 50, count)))
    rows = order(seed, epoch, start, stop, count)
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        int(order(seed, epoch, at, at + 1, count)[0]) for at in range(start, stop)
    ]
    assert len(set(rows.tolist())) == stop - start
    assert all(0 <= row < count for row in rows)


def test_the_positions_given_are_not_changed() -> None:
    for count in (1, 50):
        positions = np.arange(count)
        permute(positions, count, 0)
        assert positions.tolist() == list(range(count))


def test_seeds_and_epochs_differ() -> None:
    orders = [
        tuple(order(seed, epoch, 0, 1000, 1000)) for seed in (0, 1, 2**40) for epoch in range(5)
    ]
    assert len(set(orders)) == len(orders)
    for one in orders[1:]:
        alike = sum(a == b for a, b in zip(orders[0], one, strict=True))
        assert alike < 10  # of 1,000, one is expected by chance


def test_rows_are_spread_evenly() -> None:
    """Where each row lands over many seeds: χ² with (count - 1)² degrees of freedom, within five standard
    deviations."""
    for count in (7, 16, 50):
        seeds = 2000
        landed = np.zeros((count, count))
        for seed in range(seeds):
            landed[np.arange(count), order(seed, 0, 0, count, count)] += 1
        expected = seeds / count
        chi = float(((landed - expected) ** 2 / expected).sum())
        freedom = (count - 1) ** 2
        assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    rows = order(3, 0, 0, 10_000, 10_000)
    assert abs(float(np.corrcoef(rows[:-1], rows[1:])[0, 1])) < 0.05
    assert abs(float(np.corrcoef(np.arange(10_000), rows)[0, 1])) < 0.05


def test_the_order_is_the_same_in_another_process_and_for_ever() -> None:
    """A run that is resumed by a later version must go on in this order."""
    assert order(5, 2, 10, 20, 1000).tolist() == FROZEN
    code = (
        "from seqloom.data.batching.order import order; print(order(5, 2, 10, 20, 1000).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(FROZEN)


FROZEN = [253, 611, 80, 687, 489, 964, 130, 642, 381, 918]
