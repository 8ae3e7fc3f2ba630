"""The thread that owns a model. All calls of the model are made here, for many requests at once.

Texts that are written share the steps of one `ContinuousBatch`. Texts that are only read (labels, tags,
vectors, scores) are read together where they ask for the same, within a budget of tokens: what came while the
thread was busy is one batch. Between two steps the thread takes what is new and drops what is cancelled.
A text that is read in many passes (an explanation) is given up between two of them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, final

import torch

from seqloom.decoding.continuous_batch import ContinuousBatch, RunningSearch
from seqloom.decoding.generate import Search
from seqloom.errors import SeqloomError, UsageError
from seqloom.long_work import UnwantedWorkError, ends_unless
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import Decodable, State

logger = logging.getLogger(__name__)

Finish = Callable[[object], None]
"""Is given the result of a job, or the exception that it failed with, in the thread of the engine."""


Read = Callable[[Sequence[Any]], Sequence[object]]
"""Any number of inputs, of several jobs, to one output for each."""


class OverloadedError(SeqloomError):
    """The queue is full."""


class StoppedError(SeqloomError):
    """The engine is shut down."""


@final
@dataclass(eq=False, kw_only=True)
class WritingJob:
    """A text that a model writes."""

    search: Callable[[], Search]
    """Called in the thread of the engine."""
    first_state: Callable[[], State] = lambda: None
    """The state before its prompt."""
    rows: int
    """The most rows that it decodes at once."""
    finish: Finish
    """Is given the hypotheses."""
    cancelled: bool = False
    """Whether nobody waits for it any more."""
    finished: bool = False
    running: RunningSearch | None = None


@final
@dataclass(eq=False, kw_only=True)
class ReadingJob:
    """Inputs that a model reads."""

    rows: ClassVar[int] = 0
    """Of those that are decoded."""
    read: Read
    together: Hashable
    """Jobs of which this is equal may be read in one call of `read`."""
    inputs: Sequence[object]
    tokens: int
    """About how many there are in the inputs."""
    finish: Finish
    """Is given the outputs."""
    cancelled: bool = False
    """Whether nobody waits for it any more."""
    finished: bool = False


Job = WritingJob | ReadingJob


class Observed(Protocol):
    """What metrics need to know of an engine."""

    @property
    def rows_running(self) -> int: ...

    @property
    def waiting(self) -> int: ...


@final
@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """How much an engine does at once."""

    rows: int = 16
    """Rows that are decoded together."""
    queue: int = 64
    """Requests that wait."""
    batch_tokens: int = 4096
    """Tokens that are read together."""


@final
@dataclass(eq=False)
class Submission:
    """The jobs of one request. It waits until the last of them has begun."""

    jobs: Sequence[Job]
    unbegun: int = field(init=False)

    def __post_init__(self) -> None:
        self.unbegun = len(self.jobs)


@final
class Engine:
    """A model and its thread. It runs until `stop`."""

    def __init__(self, model: Decodable, limits: EngineLimits, name: str = "engine") -> None:
        self._model = model
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Submission, Job]] = deque()
        self._requests = 0
        """Submissions that wait."""
        self._running: list[WritingJob] = []
        self._batch = ContinuousBatch(self._model)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def rows_running(self) -> int:
        """Rows that are decoded now, or held for a search."""
        return sum(job.rows for job in list(self._running))

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._requests

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def submit(self, jobs: Sequence[Job]) -> None:
        """Takes the jobs of one request, all or none. Each is finished, unless it is cancelled. Raises
        OverloadedError where too many requests wait."""
        rows = max((job.rows for job in jobs), default=0)
        if rows > self._limits.rows:
            raise UsageError(
                f"a text must need at most {self._limits.rows} rows, but one needs {rows}"
            )
        submission = Submission(jobs)
        with self._changed:
            if self._stopping:
                raise StoppedError("the model has stopped; ask again later")
            if self._requests >= self._limits.queue:
                raise OverloadedError(
                    f"at most {self._limits.queue} requests may wait, and so many do; try again later"
                )
            self._requests += 1
            self._waiting.extend((submission, job) for job in jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for these any more: their rows are free before the next step but one."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._drop_waiting()
            self._changed.notify()

    def stop(self) -> None:
        """Ends the thread; what still runs fails."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        """Until it is told to stop. Whatever ends it, nobody is left waiting for a job."""
        begun: list[Job] = []
        try:
            with torch.inference_mode(), PackedWeights():
                while True:
                    with self._changed:
                        while not (self._stopping or self._waiting or self._running):
                            self._changed.wait()
                        if self._stopping:
                            break
                        self._drop_running()
                        reading, writing = self._begin()
                    begun = [*reading, *writing]
                    self._read(reading)
                    for job in writing:
                        self._add(job)
                    self._step()
        # what is no error of a model; a message may hold a text of a request
        except BaseException as error:  # noqa: BLE001
            logger.error(f"an engine ended: {type(error).__name__}")
        with self._changed:
            self._stopping = True
            left = [*begun, *self._running, *(job for _, job in self._waiting)]
        self._tell_stopped(left)

    def _tell_stopped(self, jobs: Iterable[Job]) -> None:
        """Those who still wait."""
        for job in jobs:
            self._finish(job, StoppedError("the model has stopped; ask again later"))

    def _drop_waiting(self) -> None:
        """Cancelled jobs leave the queue. Called with the lock."""
        kept = deque[tuple[Submission, Job]]()
        for submission, job in self._waiting:
            if job.cancelled:
                self._count_begun(submission)
            else:
                kept.append((submission, job))
        self._waiting = kept

    def _drop_running(self) -> None:
        """Cancelled searches leave the batch."""
        for writing in self._running:
            if writing.cancelled and writing.running is not None:
                self._batch.remove(writing.running)
        self._running = [job for job in self._running if not job.cancelled]

    def _begin(self) -> tuple[list[ReadingJob], list[WritingJob]]:
        """Takes jobs from the queue, in order: reading ones that go together, writing ones while there are
        rows for them. Called with the lock."""
        reading: list[ReadingJob] = []
        writing: list[WritingJob] = []
        left = deque[tuple[Submission, Job]]()
        tokens, free = 0, self._limits.rows - self.rows_running
        for submission, job in self._waiting:
            if isinstance(job, ReadingJob):
                fits = tokens + job.tokens <= self._limits.batch_tokens
                begins = not reading or (fits and job.together == reading[0].together)
                if begins:
                    reading.append(job)
                    tokens += job.tokens
            else:
                begins = job.rows <= free
                if begins:
                    writing.append(job)
                    free -= job.rows
                else:
                    # a later job does not overtake this one
                    free = 0
            if begins:
                self._count_begun(submission)
            else:
                left.append((submission, job))
        self._waiting = left
        return reading, writing

    def _count_begun(self, submission: Submission) -> None:
        submission.unbegun -= 1
        if not submission.unbegun:
            self._requests -= 1

    def _read(self, jobs: list[ReadingJob]) -> None:
        """Reads the inputs of all of these jobs together; where that fails, those of each by themselves."""
        jobs = [job for job in jobs if not job.cancelled]
        if not jobs:
            return
        try:
            with ends_unless(lambda: not (self._stopping or all(job.cancelled for job in jobs))):
                outputs = iter(jobs[0].read([one for job in jobs for one in job.inputs]))
            found = [[next(outputs) for _ in job.inputs] for job in jobs]
        except UnwantedWorkError:
            self._tell_stopped(jobs)
            return
        except Exception as error:  # noqa: BLE001
            if len(jobs) == 1:
                self._finish(jobs[0], error)
                return
            for job in jobs:
                self._read([job])
            return
        for job, result in zip(jobs, found, strict=True):
            self._finish(job, result)

    def _add(self, job: WritingJob) -> None:
        try:
            job.running = self._batch.add(job.search(), job.first_state)
        except Exception as error:  # noqa: BLE001
            self._finish(job, error)
            return
        self._running.append(job)

    def _step(self) -> None:
        """One step of all searches."""
        if not self._running:
            return
        self._batch.step()
        for job in list(self._running):
            running = job.running
            if running is not None and running.ended:
                self._running.remove(job)
                self._finish(job, running.error or running.hypotheses)

    def _finish(self, job: Job, result: object) -> None:
        """Hands over a result, once. A listener that fails harms nobody else."""
        with logged_failure():
            if not (job.cancelled or job.finished):
                job.finished = True
                job.finish(result)


@contextmanager
def logged_failure() -> Iterator[None]:
    """Goes on after an error, which is logged by its type alone: a message may hold a text of a request."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        logger.error(f"an answer could not be handed over: {type(error).__name__}")
