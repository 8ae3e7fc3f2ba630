"""How often each of several data sets is drawn from, and which of its examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.data.batching.mixing import JoinedStores, Mixing
from seqloom.data.batching.token_store import TokenStore

MIXTURES = st.builds(
    Mixing,
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5).map(tuple),
    cap=st.none() | st.integers(1, 300),
    temperature=st.sampled_from([1.0, 1.5, 2.0, 8.0, "equal"]),
)


@pytest.mark.parametrize(
    ("cap", "temperature", "rates"),
    [
        (None, 1.0, [100 / 1110, 1000 / 1110, 10 / 1110]),
        (100, 1.0, [100 / 210, 100 / 210, 10 / 210]),
        (None, 2.0, np.sqrt([100, 1000, 10]) / np.sqrt([100, 1000, 10]).sum()),
        (400, 4.0, np.power([100, 400, 10], 0.25) / np.power([100, 400, 10], 0.25).sum()),
        (None, "equal", [1 / 3] * 3),
    ],
)
def test_the_rates_are_those_of_the_formula(cap: int, temperature: Any, rates: Any) -> None:
    mixing = Mixing(sizes=(100, 1000, 10), cap=cap, temperature=temperature)
    assert np.allclose(mixing.rates, rates, atol=1e-12)
    rows = mixing.order(3, 0, 0, len(mixing))
    drawn = np.histogram(rows, [0, 100, 1100, 1110])[0]
    assert np.abs(drawn - np.asarray(rates) * len(mixing)).max() < 1


@given(MIXTURES, st.integers(0, 2**63 - 1), st.integers(1, 5))
def test_every_set_is_drawn_from_evenly(mixing: Mixing, seed: int, epochs: int) -> None:
    """As often as its rate says, and at the end of an epoch no example twice more than another."""
    count = np.zeros(sum(mixing.sizes), np.int64)
    first = np.concatenate([[0], np.cumsum(mixing.sizes)])
    for epoch in range(epochs):
        count += np.bincount(mixing.order(seed, epoch, 0, len(mixing)), minlength=len(count))
    for number, draws in enumerate(mixing.draws.tolist()):
        mine = count[first[number] : first[number + 1]]
        assert draws >= 1
        assert mine.sum() == epochs * draws
        assert mine.max() - mine.min() <= 1


@given(MIXTURES, st.integers(0, 10**6), st.integers(0, 50), st.data())
def test_a_slice_of_the_order_is_a_slice(
    mixing: Mixing, seed: int, epoch: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(mixing)))
    stop = data.draw(st.integers(start, len(mixing)))
    whole = mixing.order(seed, epoch, 0, len(mixing))
    assert mixing.order(seed, epoch, start, stop).tolist() == whole[start:stop].tolist()


def test_epochs_and_seeds_have_other_orders() -> None:
    mixing = Mixing(sizes=(50, 500), cap=50)
    orders = {
        tuple(mixing.order(seed, epoch, 0, 100).tolist()) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4
    # the sets alternate: neither fills the beginning
    assert 20 < (mixing.order(0, 0, 0, 50) < 50).sum() < 30


def test_joined_stores_are_their_rows_one_after_the_other() -> None:
    tokens = np.arange(20, dtype=np.uint16)
    small = TokenStore(("source", "target"), tokens, np.array([0, 2, 3, 4, 8]), np.array([1, 2]))
    other = TokenStore(("source", "target"), tokens, np.array([8, 9, 20]), np.array([7]))
    joined = JoinedStores(stores=(small, other))
    assert len(joined) == 3
    assert [joined.place(row) for row in range(3)] == [(0, 0), (0, 1), (1, 0)]
    assert joined.sequence(1, 1).tolist() == [4, 5, 6, 7]
    assert joined.sequence(2, 0).tolist() == [8]
    rows = np.array([2, 0, 1, 2])
    assert joined.lengths(rows, 0).tolist() == [1, 2, 1, 1]
    assert joined.lengths(rows, 1).tolist() == [11, 1, 4, 11]
