"""Times things beside each other: interleaved rounds, medians, spreads of ratios, and on which machine that
was.

A machine is rarely all ours. So each round waits a little for a quiet moment, counts for how much of its
runnable time it waited for a core that somebody else had (Linux tells), and is repeated where that was too
much; the quietest rounds are kept.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from seqloom.native.library import library
from seqloom.version import VERSION

QUIET = 0.15
"""Cores that others may use in a quiet moment."""
WAITED = 0.03
"""Share of its runnable time that a clean round may wait for a core."""
PEAK_SIZE = 2048


class Spread(NamedTuple):
    """Of one figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Median, least and greatest."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])

    @property
    def half_range(self) -> float:
        return (self.high - self.low) / 2


class Timing(NamedTuple):
    """What `interleaved` measured."""

    seconds: dict[str, list[float]]
    """Of one run of each way, round by round."""
    waited: float
    """Share of the runnable time without a core: the worst way of the median round; 0 is undisturbed."""

    def ratio(self, ours: str, peer: str) -> Spread:
        """How many times as fast as `peer` is `ours`: paired by round."""
        return Spread.of(b / a for a, b in zip(self.seconds[ours], self.seconds[peer], strict=True))

    def median(self, way: str) -> float:
        """Seconds of one run."""
        return statistics.median(self.seconds[way])


def interleaved(
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    least: float = 0.05,
    patience: float = 0.5,
) -> Timing:
    """Runs all ways by turns, in `rounds` rounds after a warm-up; a way's turn lasts at least `least`
    seconds.

    Every other round goes through the ways from the last to the first, so that no way always follows the same
    one. `patience` is the longest wait in seconds for a quiet moment. At most twice as many rounds are run as
    are kept.
    """
    counts = {way: _warm_up(run, least) for way, run in ways.items()}
    measured: list[tuple[float, dict[str, float]]] = []
    gc.collect()
    gc.disable()
    try:
        while (
            len(measured) < 2 * rounds and sum(waited <= WAITED for waited, _ in measured) < rounds
        ):
            _wait_for_quiet(patience)
            order = list(ways) if len(measured) % 2 == 0 else list(ways)[::-1]
            turns = {way: _turn(ways[way], counts[way]) for way in order}
            measured.append(
                (
                    max(waited for waited, _ in turns.values()),
                    {way: seconds for way, (_, seconds) in turns.items()},
                )
            )
            gc.collect()
    finally:
        gc.enable()
    kept = sorted(measured, key=lambda one: one[0])[:rounds]
    return Timing(
        {way: [seconds[way] for _, seconds in kept] for way in ways},
        statistics.median(waited for waited, _ in kept),
    )


def sgemm_peak(times: int = 5) -> float:
    """Floating-point operations a second of a large float32 matrix product through torch, as the threads are
    set now."""
    a, b = torch.randn(PEAK_SIZE, PEAK_SIZE), torch.randn(PEAK_SIZE, PEAK_SIZE)
    out = torch.empty_like(a)
    timing = interleaved({"mm": lambda: torch.mm(a, b, out=out)}, rounds=times, least=0.0)
    return 2 * PEAK_SIZE**3 / timing.median("mm")


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def machine() -> dict[str, str | int]:
    """What a figure depends on, besides the code."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "seqloom": VERSION,
        "loops": "compiled" if library() is not None else "not compiled",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )


def _warm_up(run: Callable[[], object], least: float) -> int:
    """Runs it until it is warm (at least twice, unless it is slow); how often it has to run for `least`
    seconds."""
    began = last = time.perf_counter()
    seconds = least
    for number in range(100):
        run()
        now = time.perf_counter()
        seconds, last = now - last, now
        if now - began > (least / 2 if number else 10 * least):
            break
    return max(1, math.ceil(least / max(seconds, 1e-9)))


def _turn(run: Callable[[], object], count: int) -> tuple[float, float]:
    """The share of its runnable time that it waited for a core, and the seconds of one run."""
    ran, waited = _scheduled()
    began = time.perf_counter()
    for _ in range(count):
        run()
    seconds = (time.perf_counter() - began) / count
    ran_after, waited_after = _scheduled()
    return (waited_after - waited) / max(ran_after - ran + waited_after - waited, 1), seconds


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that all threads ran, and that they could have run but had no core; zeros where nobody
    tells."""
    ran = waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            one = path.read_text().split()
        except OSError:  # the thread has ended
            continue
        ran, waited = ran + int(one[0]), waited + int(one[1])
    return ran, waited


def _wait_for_quiet(limit: float) -> None:
    """Returns once the others leave the cores alone, or after `limit` seconds."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before, began = _others(), time.perf_counter()
        time.sleep(0.05)
        if (_others() - before) / (time.perf_counter() - began) <= QUIET:
            return


def _others() -> float:
    """Core-seconds that all other processes have used so far; 0 where nobody tells."""
    try:
        user, nice, system, _, _, *rest = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except OSError:
        return 0.0
    own = os.times()
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - sum(own[:4])
