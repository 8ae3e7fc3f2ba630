"""Windows and streams: every id is trained once an epoch, however many share the work; every id is scored
once."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from seqloom.data.batching.corpus_windows import (
    CorpusPlan,
    StreamPlan,
    TextBatch,
    WindowPlan,
    load_windows,
)
from seqloom.data.batching.pair_batches import shard
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS


class Text(NamedTuple):
    """Ids that tell where they stand: 16, 17, .. with `</s>` in between."""

    tokens: NDArray[Any]


def text(lengths: list[int]) -> Text:
    """Documents of these lengths."""
    tokens = np.arange(16, 16 + sum(lengths) + len(lengths), dtype=np.uint16)
    tokens[np.cumsum(np.asarray(lengths) + 1) - 1] = 2
    return Text(tokens)


def shifted(corpus: Text) -> dict[int, int]:
    """Position -> what must be read there."""
    before = np.roll(corpus.tokens, 1)
    return dict(enumerate(np.where(before == 2, 1, before).tolist()))


TEXTS = st.lists(st.integers(0, 12), min_size=1, max_size=8).map(text)
KINDS = (WindowPlan, StreamPlan)
PLANS = st.builds(
    lambda kind, seed, window, rows: kind(seed=seed, window=window, rows=rows),
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.integers(1, 9),
    st.integers(1, 5),
)


def positions(corpus: Text, plan: CorpusPlan, rows: NDArray[np.int64]) -> list[list[int]]:
    """Where the targets of each row stand."""
    starts, lengths, *_ = plan.windows(corpus, rows)
    return [
        [(start + at) % len(corpus.tokens) for at in range(length)]
        for start, length in zip(starts, lengths, strict=True)
    ]


def check_rows(corpus: Text, plan: CorpusPlan, rows: NDArray[np.int64], batch: TextBatch) -> None:
    """Inputs are the ids one place before the targets, padded on the right."""
    inputs = shifted(corpus)
    for row, places in enumerate(positions(corpus, plan, rows)):
        padding = batch.inputs.shape[1] - len(places)
        assert (
            batch.targets[row].tolist()
            == [int(corpus.tokens[at]) for at in places] + [IGNORE] * padding
        )
        assert batch.inputs[row].tolist() == [inputs[at] for at in places] + [0] * padding
    assert batch.inputs.dtype == batch.targets.dtype == batch.streams.dtype == torch.int64


@given(corpus=TEXTS, plan=PLANS, epoch=st.integers(0, 3))
def test_every_id_is_trained_once_an_epoch(corpus: Text, plan: CorpusPlan, epoch: int) -> None:
    batches = list(plan.epoch(corpus, epoch))
    assert len(batches) == plan.count(corpus, epoch)
    seen = []
    for rows in batches:
        batch = load_windows(corpus, plan, rows, rows)
        check_rows(corpus, plan, rows, batch)
        assert batch.inputs.shape[0] == len(rows) <= plan.rows  # type: ignore[attr-defined]
        assert batch.inputs.shape[1] <= plan.window  # type: ignore[attr-defined]
        assert bool((batch.targets != IGNORE).any())
        seen += [at for places in positions(corpus, plan, rows) for at in places]
    assert sorted(seen) == list(range(len(corpus.tokens)))
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


@given(corpus=TEXTS, plan=PLANS, workers=st.integers(1, 3), accumulate=st.integers(1, 3))
def test_workers_and_micro_batches_read_the_same(
    corpus: Text, plan: CorpusPlan, workers: int, accumulate: int
) -> None:
    for rows in plan.epoch(corpus, 1):
        whole = load_windows(corpus, plan, rows, rows)
        at = {int(row): number for number, row in enumerate(rows)}
        trained = 0
        for worker in range(workers):
            for micro in range(accumulate):
                part = shard(shard(rows, worker, workers), micro, accumulate)
                batch = load_windows(corpus, plan, part, rows)
                trained += int((batch.targets != IGNORE).sum())
                if not len(part):
                    assert len(batch.inputs) == 1
                    assert batch.streams.tolist() == [-1]
                    continue
                check_rows(corpus, plan, part, batch)
                assert batch.inputs.shape[1]
                assert batch.streams.tolist() == [int(whole.streams[at[int(row)]]) for row in part]
                assert batch.begins.tolist() == [bool(whole.begins[at[int(row)]]) for row in part]
        assert trained == int((whole.targets != IGNORE).sum())


@given(corpus=TEXTS, plan=PLANS, epoch=st.integers(0, 2), start=st.integers(0, 20))
def test_a_run_goes_on_anywhere(corpus: Text, plan: CorpusPlan, epoch: int, start: int) -> None:
    batches = [rows.tolist() for rows in plan.epoch(corpus, epoch)]
    assert [rows.tolist() for rows in plan.epoch(corpus, epoch, start)] == batches[start:]


@given(corpus=TEXTS, plan=PLANS)
def test_no_two_rows_have_one_number(corpus: Text, plan: CorpusPlan) -> None:
    for epoch in range(2):
        rows = [row for batch in plan.epoch(corpus, epoch) for row in batch.tolist()]
        assert len(set(rows)) == len(rows)


@given(
    corpus=TEXTS,
    seed=st.integers(0, 99),
    window=st.integers(1, 9),
    rows=st.integers(1, 5),
    epoch=st.integers(0, 2),
)
def test_a_lane_goes_on_where_it_was(
    corpus: Text, seed: int, window: int, rows: int, epoch: int
) -> None:
    plan, size = StreamPlan(seed=seed, window=window, rows=rows), len(corpus.tokens)
    streams: list[list[int]] = [[] for _ in range(rows)]
    for number, batch in enumerate(plan.epoch(corpus, epoch)):
        loaded = load_windows(corpus, plan, batch, batch)
        assert loaded.streams.tolist() == list(range(rows))
        assert loaded.begins.tolist() == [number == 0] * rows
        sizes = plan.windows(corpus, batch).lengths
        assert int(sizes.max() - sizes.min()) <= 2
        for stream, places in zip(streams, positions(corpus, plan, batch), strict=True):
            stream += places
    for before, stream in pairwise(streams):
        assert abs(len(before) - len(stream)) <= 1
    joined = [at for stream in streams for at in stream]
    # the streams, one after the other, are the ring
    assert joined == [(joined[0] + at) % size for at in range(size)]


def test_windows_stand_alone() -> None:
    corpus = text([30])
    plan = WindowPlan(seed=0, window=4, rows=3)
    for rows in plan.epoch(corpus, 0):
        batch = load_windows(corpus, plan, rows, rows)
        assert batch.streams.tolist() == [-1] * len(rows)
        assert batch.begins.tolist() == [True] * len(rows)


@given(
    corpus=TEXTS,
    plan=PLANS,
    begin=st.sampled_from([(), (1,), (2,), (7, 8)]),
    end=st.sampled_from([2, None]),
)
def test_each_target_is_read_after_what_its_marks_say(
    corpus: Text, plan: CorpusPlan, begin: tuple[int, ...], end: int | None
) -> None:
    """After an end what begins a text, or the end itself where nothing does; no first id is trained where
    nothing stands before it."""
    special_ids = SPECIAL_IDS._replace(pad=-1, bos=begin, eos=end)
    tokens = corpus.tokens.tolist()
    for rows in plan.epoch(corpus, 0):
        batch = load_windows(corpus, plan, rows, rows, special_ids)
        for row, places in enumerate(positions(corpus, plan, rows)):
            for at, place in enumerate(places):
                starts = tokens[place - 1] == end if end is not None else place == 0
                known = begin or not starts or end is not None
                assert int(batch.targets[row, at]) == (tokens[place] if known else IGNORE)
                assert int(batch.inputs[row, at]) == (
                    begin[-1] if starts and begin else tokens[place - 1]
                )
            assert batch.inputs[row, len(places) :].tolist() == [-1] * (
                batch.inputs.shape[1] - len(places)
            )


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_seeds_differ(kind: type[WindowPlan] | type[StreamPlan]) -> None:
    corpus = text([10] * 50)

    def first(seed: int, epoch: int) -> list[list[int]]:
        plan = kind(seed=seed, window=7, rows=4)
        return positions(corpus, plan, next(iter(plan.epoch(corpus, epoch))))

    assert first(0, 0) == first(0, 0)
    assert len({str(first(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


def test_epochs_cut_everywhere() -> None:
    corpus, plan = text([99]), WindowPlan(seed=0, window=5, rows=100)
    cuts = {
        int(places[0]) % 5
        for epoch in range(60)
        for places in positions(corpus, plan, next(plan.epoch(corpus, epoch)))
        if places[0]
    }
    assert cuts == set(range(5))


def test_a_large_corpus_costs_nothing() -> None:
    class Endless:
        """As long as no memory is."""

        class tokens:
            def __len__(self) -> int:
                return 10**12

    endless: Any = type("Endless", (), {"tokens": Endless.tokens()})()
    for kind in KINDS:
        plan = kind(seed=0, window=1024, rows=64)
        assert plan.count(endless) == pytest.approx(10**12 / 1024 / 64, abs=2)
        assert len(list(islice(plan.epoch(endless, 3, 10**6), 3))) == 3
