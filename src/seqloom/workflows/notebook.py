"""A training that is called from Python: a bar in a notebook, lines on standard error elsewhere."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from seqloom.long_work import duration, is_first_worker, logging_to
from seqloom.training.loop import Progress

SECONDS = 0.5
"""Between two changes of the bar."""


def is_notebook() -> bool:
    """Whether the program runs in a kernel of Jupyter, whose pages show HTML."""
    if "IPython" not in sys.modules:
        return False
    shell = importlib.import_module("IPython").get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


@contextmanager
def lines_on_standard_error() -> Iterator[None]:
    """Writes what seqloom logs to standard error, if the program has not set up logging itself; of several
    workers only the first writes notices."""
    if logging.getLogger("seqloom").hasHandlers():
        yield
        return
    level = logging.INFO if is_first_worker() else logging.WARNING
    with logging_to(logging.StreamHandler(sys.stderr), level):
        yield


def notebook_bar() -> Callable[[Progress], None]:
    """Shows step, loss, speed and time left in the output of the cell, in one place."""
    display = importlib.import_module("IPython.display")
    started, first_step, shown = time.monotonic(), 0, 0.0
    place: Any = None

    def show(now: Progress) -> None:
        nonlocal first_step, shown, place
        is_last = now.step == now.total_steps
        if place is not None and not is_last and time.monotonic() - shown < SECONDS:
            return
        shown = time.monotonic()
        if place is None:
            first_step = now.step - 1
            place = display.display(display.HTML(""), display_id=True)
        seconds = (shown - started) / (now.step - first_step)
        bar = display.HTML(_bar(now, seconds * (now.total_steps - now.step)))
        place.update(bar)

    return show


def _bar(now: Progress, seconds_left: float) -> str:
    numbers = (
        f"step {now.step:,} of {now.total_steps:,}: loss {now.loss:.4g},"
        f" {now.tokens_per_second:,.0f} tokens/s, {duration(seconds_left)} left"
    )
    return (
        f'<progress value="{now.step}" max="{now.total_steps}" style="width: 20em"></progress>'
        f" {escape(numbers)}"
    )
