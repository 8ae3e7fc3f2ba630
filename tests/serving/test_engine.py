"""The thread that owns a model: who may come in, who leaves, and who fails alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.laws.conftest import made

from seqloom.decoding.generate import GenerationOptions, Observer, generate, search
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import Sampling
from seqloom.errors import UsageError
from seqloom.long_work import LongWork
from seqloom.serving.engine import (
    Engine,
    EngineLimits,
    Job,
    OverloadedError,
    ReadingJob,
    StoppedError,
    WritingJob,
)
from seqloom.text.special_tokens import BOS, EOS, PAD

CPU = torch.device("cpu")
LIMITS = EngineLimits(rows=4, queue=3, batch_tokens=10)
ENDLESS = 100_000

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine(made("lstm language model").model, LIMITS)
    yield running
    running.stop()


def options(seed: int, samples: int = 1) -> GenerationOptions:
    never = [PAD, BOS, EOS]
    return GenerationOptions(
        strategy=Sampling(seed=seed, samples=samples), eos=EOS, pad=PAD, processors=[forbid(never)]
    )


class Results:
    """What engines hand over, in order."""

    def __init__(self) -> None:
        self.found: queue.Queue[Any] = queue.Queue()

    def next(self) -> Any:
        return self.found.get(timeout=60)


def writing(
    results: Results,
    tokens: int,
    seed: int = 0,
    samples: int = 1,
    watch: Observer | None = None,
) -> WritingJob:
    return WritingJob(
        search=lambda: search([[BOS]], [tokens], options(seed, samples), CPU, watch),
        rows=samples,
        finish=results.found.put,
    )


def reading(
    results: Results,
    inputs: Sequence[int],
    read: Callable[[Sequence[Any]], Sequence[Any]],
    tokens: int,
) -> ReadingJob:
    return ReadingJob(
        read=read, together="same", inputs=inputs, tokens=tokens, finish=results.found.put
    )


def held_up(engine: Engine, results: Results) -> threading.Event:
    """Keeps the thread busy until the event is set."""
    begun, go = threading.Event(), threading.Event()

    def wait(inputs: Sequence[Any]) -> Sequence[Any]:
        begun.set()
        go.wait(60)
        return inputs

    engine.submit(
        [ReadingJob(read=wait, together="wait", inputs=[0], tokens=1, finish=lambda _: None)]
    )
    begun.wait(60)
    return go


def test_texts_are_those_of_the_loop(engine: Engine) -> None:
    model, results = made("lstm language model").model, Results()
    for seed in range(3):
        engine.submit([writing(results, 8, seed, samples=2)])
    found = sorted(results.next()[0][0].tokens for _ in range(3))
    expected = [generate(model, None, [[BOS]], [8], options(seed, 2))[0] for seed in range(3)]
    assert found == sorted(one[0].tokens for one in expected)


def test_a_cancelled_job_takes_no_more_than_two_steps(engine: Engine) -> None:
    """And its rows are free for the next, which needs all of them."""
    results, steps = Results(), 0
    cancelled_at: list[int] = []
    jobs: list[Job] = []

    def watch(_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 10:
            cancelled_at.append(steps)
            engine.cancel(jobs)

    jobs.append(writing(results, ENDLESS, samples=4, watch=watch))
    engine.submit(jobs)
    engine.submit([writing(results, 3, samples=4)])
    assert len(results.next()[0]) == 4
    assert cancelled_at == [10]
    assert steps <= 12
    assert engine.rows_running == 0


def test_100_cancelled_jobs_leave_nothing_behind(engine: Engine) -> None:
    results = Results()
    for number in range(100):
        job = writing(results, ENDLESS, seed=number, samples=1 + number % 4)
        engine.submit([job])
        engine.cancel([job])
    engine.submit([writing(results, 2)])
    results.next()
    assert results.found.empty(), "nobody is told of a cancelled job"
    assert (engine.rows_running, engine.waiting) == (0, 0)


def test_the_queue_is_bounded(engine: Engine) -> None:
    results = Results()
    go = held_up(engine, results)
    for number in range(3):
        engine.submit([writing(results, 2, seed=number), writing(results, 2, seed=number)])
    assert engine.waiting == 3
    with pytest.raises(OverloadedError, match="at most 3"):
        engine.submit([writing(results, 2)])
    go.set()
    for _ in range(6):
        assert len(results.next()[0][0].tokens) == 2
    engine.submit([writing(results, 2)])
    results.next()


def test_a_job_that_could_never_begin_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="at most 4 rows, but one needs 5"):
        engine.submit([writing(Results(), 2, samples=5)])
    assert engine.waiting == 0


def test_what_came_meanwhile_is_read_together(engine: Engine) -> None:
    """Within the budget of tokens, and each job gets its own outputs."""
    results, calls = Results(), []

    def double(inputs: Sequence[int]) -> list[int]:
        calls.append(list(inputs))
        return [2 * one for one in inputs]

    go = held_up(engine, results)
    for inputs in ([1, 2], [3], [4, 5]):
        engine.submit([reading(results, inputs, double, tokens=4)])
    go.set()
    assert [results.next() for _ in range(3)] == [[2, 4], [6], [8, 10]]
    assert calls == [[1, 2, 3], [4, 5]]


def test_a_text_that_cannot_be_read_fails_alone(engine: Engine) -> None:
    results = Results()

    def inverse(inputs: Sequence[int]) -> list[float]:
        return [1 / one for one in inputs]

    go = held_up(engine, results)
    for inputs in ([1], [0], [2]):
        engine.submit([reading(results, inputs, inverse, tokens=1)])
    go.set()
    first, second, third = (results.next() for _ in range(3))
    assert (first, third) == ([1.0], [0.5])
    assert isinstance(second, ZeroDivisionError)
    engine.submit([writing(results, 2)])
    assert len(results.next()[0][0].tokens) == 2


def test_a_listener_that_fails_harms_nobody(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    results = Results()

    def broken(_: object) -> None:
        raise ValueError("a text of a request")

    engine.submit([ReadingJob(read=list, together=0, inputs=[0], tokens=1, finish=broken)])
    engine.submit([writing(results, 2)])
    assert len(results.next()[0][0].tokens) == 2
    assert "ValueError" in caplog.text
    assert "a text of a request" not in caplog.text


def test_what_runs_when_it_is_stopped_is_told() -> None:
    engine, results = Engine(made("lstm language model").model, LIMITS), Results()
    begun = threading.Event()
    engine.submit([writing(results, ENDLESS, watch=lambda _: begun.set())])
    begun.wait(60)
    engine.stop()
    assert isinstance(results.next(), StoppedError)
    assert not engine.alive
    with pytest.raises(StoppedError):
        engine.submit([writing(results, 2)])


def test_nobody_waits_for_an_engine_that_died(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither those that run, nor those that wait, nor those that come."""
    results, steps = Results(), 0

    def die(_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise SystemExit("a text of a request")

    engine.submit([writing(results, ENDLESS, samples=4, watch=die)])
    engine.submit([writing(results, 2)])
    assert [type(results.next()) for _ in range(2)] == [StoppedError, StoppedError]
    with pytest.raises(StoppedError):
        engine.submit([writing(results, 2)])
    assert not engine.alive
    assert "SystemExit" in caplog.text
    assert "a text of a request" not in caplog.text


def test_work_of_many_passes_ends_once_nobody_waits(engine: Engine) -> None:
    """At the pass after that of the last who left; nobody is told, and the next job is done."""
    results, passes = Results(), 0
    jobs: list[Job] = []
    calls: list[Sequence[Any]] = []
    leaving_at = {3: 0, 5: 1}

    def read(inputs: Sequence[Any]) -> Sequence[Any]:
        nonlocal passes
        calls.append(inputs)
        work = LongWork("passes")
        for _ in range(ENDLESS):
            passes += 1
            if passes in leaving_at:
                engine.cancel([jobs[leaving_at[passes]]])
            work.add()
        return inputs

    go = held_up(engine, results)
    jobs += [reading(results, [number], read, tokens=1) for number in range(2)]
    engine.submit(jobs)
    go.set()
    engine.submit([writing(results, 2)])
    assert len(results.next()[0][0].tokens) == 2
    assert (passes, calls) == (5, [[0, 1]])
    assert results.found.empty()
    assert [(job.cancelled, job.finished) for job in jobs] == [(True, False)] * 2
