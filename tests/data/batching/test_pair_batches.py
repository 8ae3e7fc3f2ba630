"""Batches: every row once an epoch, within the budget, the same whatever was skipped;
padding and the shift."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import seqloom.data.batching.pair_batches
from seqloom.data.batching.pair_batches import (
    BatchPlan,
    costs,
    pad,
    pair_batch,
    shard,
    translation_batch,
)
from seqloom.data.batching.token_store import TokenStore
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, EOS, PAD, SPECIAL_IDS


def make_store(rows: int, seed: int = 0, longest: int = 30) -> TokenStore:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, longest + 1, 2 * rows))])
    tokens = rng.integers(16, 1000, offsets[-1]).astype(np.uint16)
    return TokenStore(("source", "target"), tokens, offsets, np.arange(1, rows + 1))


def by_tokens(budget: int, seed: int = 0) -> BatchPlan:
    return BatchPlan(seed=seed, batch_tokens=budget, batch_rows=None)


def by_rows(rows: int, seed: int = 0) -> BatchPlan:
    return BatchPlan(seed=seed, batch_tokens=None, batch_rows=rows)


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seqloom.data.batching.pair_batches, "POOL", 64)


@given(
    st.integers(1, 300),
    st.integers(1, 400),
    st.integers(0, 2**40),
    st.integers(0, 5),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_every_row_stands_once_in_an_epoch(
    rows: int, size: int, seed: int, epoch: int, tokens: bool
) -> None:
    plan = by_tokens(size, seed) if tokens else by_rows(size, seed)
    store = make_store(rows)
    batches = list(plan.epoch(store, epoch))
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(rows))
    assert all(len(batch) for batch in batches)
    assert plan.count(store, epoch) == len(batches)


@given(st.integers(1, 300), st.integers(1, 400), st.data())
@settings(deadline=None, max_examples=60)
def test_to_start_later_is_to_skip(rows: int, size: int, data: st.DataObject) -> None:
    plan, store = by_tokens(size, data.draw(st.integers(0, 9))), make_store(rows)
    batches = [batch.tolist() for batch in plan.epoch(store, 3)]
    start = data.draw(st.integers(0, len(batches) + 1))
    assert [batch.tolist() for batch in plan.epoch(store, 3, start)] == batches[start:]


@given(st.integers(1, 300), st.integers(1, 600), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_the_budget_is_kept_in_tensors(rows: int, budget: int, seed: int) -> None:
    """Only a pair that is longer than the budget by itself goes beyond it, and then alone."""
    store = make_store(rows, seed)
    for batch in by_tokens(budget, seed).epoch(store, 0):
        tensors = translation_batch(store, batch, batch, None)
        assert tensors.source.numel() + tensors.targets.numel() <= budget or len(batch) == 1


def test_batches_are_filled() -> None:
    store = make_store(64)
    batches = list(by_tokens(600).epoch(store, 0))
    spent = sum(
        sum(t.numel() for t in translation_batch(store, batch, batch, None)[1:])
        for batch in batches
    )
    assert spent / (600 * len(batches)) > 0.7


def test_a_number_of_rows_is_kept() -> None:
    assert (
        sorted(len(batch) for batch in by_rows(10).epoch(make_store(64 + 25), 0))
        == [4, 5] + [10] * 8
    )


def test_batches_hold_rows_of_like_length_and_come_in_any_order() -> None:
    store = make_store(64)
    batches = list(by_rows(8).epoch(store, 0))
    spans = [(int(costs(store, batch).min()), int(costs(store, batch).max())) for batch in batches]
    assert sorted(spans) != spans
    ordered = sorted(spans)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))


def test_epochs_and_seeds_differ() -> None:
    store = make_store(200)
    plans = [
        [b.tolist() for b in by_rows(8, seed).epoch(store, epoch)]
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert all(one != other for at, one in enumerate(plans) for other in plans[at + 1 :])
    assert plans[0] == [b.tolist() for b in by_rows(8).epoch(store, 0)]


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_a_partition_of_like_sizes(rows: int, parts: int) -> None:
    shares = [shard(np.arange(rows), part, parts) for part in range(parts)]
    assert sorted(row for one in shares for row in one.tolist()) == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_target_is_shifted_once() -> None:
    batch = pair_batch([[20, 21], [22]], [[30], [31, 32]])
    assert batch.source.tolist() == [[20, 21, EOS], [22, EOS, PAD]]
    assert batch.inputs.tolist() == [[BOS, 30, PAD], [BOS, 31, 32]]
    assert batch.targets.tolist() == [[30, EOS, IGNORE], [31, 32, EOS]]


def test_a_budget_counts_the_marks() -> None:
    """What a row costs is what it holds."""
    store, special_ids = (
        make_store(40),
        SPECIAL_IDS._replace(bos=(5, 6), prefix=(7,), suffix=(8, 9)),
    )
    for used in (SPECIAL_IDS, special_ids, SPECIAL_IDS._replace(eos=None)):
        rows = np.arange(40)
        for row, cost in zip(rows, costs(store, rows, used), strict=True):
            batch = translation_batch(store, rows[row : row + 1], rows, None, used)
            assert cost == batch.source.shape[1] + batch.inputs.shape[1]
        plan = BatchPlan(seed=0, batch_tokens=60, batch_rows=None, special_ids=used)
        for some in plan.epoch(store, 0):
            batch = translation_batch(store, some, some, None, used)
            assert len(some) == 1 or batch.source.numel() + batch.inputs.numel() <= 60


def test_texts_are_cut_before_their_end_mark() -> None:
    store = make_store(20)
    rows = np.arange(20)
    batch = translation_batch(store, rows, rows, 4)
    assert batch.source.shape[1] == batch.targets.shape[1] == 5
    for row in range(20):
        ids = store.sequence(row, 1)[:4].tolist()
        assert batch.targets[row].tolist() == [*ids, EOS] + [IGNORE] * (4 - len(ids))


def test_a_share_without_rows_trains_nothing() -> None:
    store = make_store(5)
    batch = translation_batch(store, np.arange(0), np.arange(3), None)
    assert (
        batch.inputs.tolist()
        == translation_batch(store, np.arange(1), np.arange(1), None).inputs.tolist()
    )
    assert bool((batch.targets == IGNORE).all())


def test_padding_fills_up_on_the_right() -> None:
    assert pad([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3], [4, 9, 9]]
    assert pad([[1]], 9).dtype == torch.int64
