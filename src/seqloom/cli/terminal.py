"""What the verbs print: results on standard output, notices and progress on standard error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from seqloom import files
from seqloom.errors import printable

logger = logging.getLogger(__name__)


class Notices(logging.Handler):
    """Writes what seqloom logs to standard error, each notice on a line."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.waiting: list[str] | None = None
        """Notices that are written later, where there is such a time."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.waiting is not None:
            self.waiting.append(record.getMessage())
            return
        sys.stderr.write(printable(record.getMessage()) + "\n")
        sys.stderr.flush()


@contextmanager
def notices_on_standard_error() -> Iterator[None]:
    """While it lasts, what seqloom logs is written to standard error; of several workers, by the first."""
    package = logging.getLogger("seqloom")
    handler, level = Notices(), package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)


@contextmanager
def notices_afterwards() -> Iterator[None]:
    """Notices that come up in the middle of a text are written after it."""
    handlers = [one for one in logging.getLogger("seqloom").handlers if isinstance(one, Notices)]
    for handler in handlers:
        handler.waiting = []
    try:
        yield
    finally:
        for handler in handlers:
            waiting, handler.waiting = handler.waiting, None
            for message in waiting or []:
                logger.info(message)


def put(text: str) -> None:
    """A line of the result, as UTF-8 whatever the locale; a line break inside it becomes a blank, so a line
    stays one."""
    sys.stdout.buffer.write(text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n")


def put_json(content: Any) -> None:
    """The result as one line of JSON; a number that is not finite (a perplexity beyond a float) is null."""
    put(files.json_line(content))


def put_table(title: str, rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """The result for people: as wide as the terminal, and as UTF-8 whatever the locale."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(title), "table.title"),
        title_justify="left",
        show_edge=False,
        header_style="bold",
    )
    for at, name in enumerate(header):
        numbers = bool(rows) and all(row[at][:1].isdigit() and row[at].isascii() for row in rows)
        table.add_column(Text(printable(name)), overflow="fold", justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    sys.stdout.buffer.write(drawn.get().encode("utf-8", "replace"))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[Any], None]]:
    """A bar with loss, what is trained a second (tokens, examples) and the time left; silent where standard
    error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, note="")

        def show(now: Any) -> None:
            note = f"loss {now.loss:.3f}  {now.tokens_per_second:,.0f}/s"
            bar.update(task, completed=now.step, total=now.total_steps, note=note)

        yield show
