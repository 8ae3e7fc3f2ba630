"""What verbs write: results on standard output, notices and progress on standard error, help pages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from cyclopts.help import DefaultFormatter, InlineText

from seqloom.cli.process import silence, write_error_line
from seqloom.errors import SeqloomError, one_line, printable
from seqloom.long_work import is_first_worker, logging_to

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

    from seqloom.training.loop import Progress as TrainingProgress

logger = logging.getLogger(__name__)


class Notices(logging.Handler):
    """Writes what seqloom logs to standard error, one line for each notice."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.held_back: list[str] | None = None
        """Notices that are written later; None if they are written at once."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.held_back is not None:
            self.held_back.append(record.getMessage())
            return
        write_error_line(one_line(record.getMessage()))


@contextmanager
def notices_on_standard_error(quiet: bool = False) -> Iterator[None]:
    """Inside it, what seqloom logs is written to standard error; of several workers only the first writes
    notices, and nobody where it is to be quiet."""
    level = logging.INFO if is_first_worker() and not quiet else logging.WARNING
    with logging_to(Notices(), level):
        yield


@contextmanager
def notices_afterwards() -> Iterator[None]:
    """Holds notices back, so that they do not interrupt a text that is being written."""
    handlers = [
        handler for handler in logging.getLogger("seqloom").handlers if isinstance(handler, Notices)
    ]
    for handler in handlers:
        handler.held_back = []
    try:
        yield
    finally:
        for handler in handlers:
            messages, handler.held_back = handler.held_back, None
            for message in messages or []:
                logger.info(message)


class HelpPages(DefaultFormatter):
    """Help pages whose paragraphs are as wide as the terminal, however the source code wraps them."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        for entry in panel.entries:
            _unwrap(entry.description)
        super().__call__(console, options, panel)

    def render_description(
        self, console: Console, options: ConsoleOptions, description: object
    ) -> None:
        """The summary and the explanation of a verb."""
        _unwrap(description)
        super().render_description(console, options, description)


def _unwrap(description: object) -> None:
    """Takes single line breaks out of a text, and leaves those between paragraphs."""
    from rich.text import Text

    if isinstance(description, InlineText) and isinstance(description.primary_renderable, Text):
        text = description.primary_renderable
        paragraphs = [" ".join(part.split()) for part in text.plain.split("\n\n")]
        text.plain = "\n\n".join(paragraphs)


def write_result(text: str) -> None:
    """Writes to standard output, as UTF-8 whatever the locale. Raises SeqloomError where it is full."""
    with _standard_output():
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def flush_results() -> None:
    """Writes what waits to be written. Raises SeqloomError where standard output is full."""
    with _standard_output():
        sys.stdout.flush()


_works_on = False
"""Whether the command goes on where the program that reads its output has ended."""


@contextmanager
def even_if_nobody_reads(promised: object) -> Iterator[None]:
    """Inside it, where a file is promised too, the command goes on though the program that reads its output
    (`| head`) has ended."""
    global _works_on
    _works_on = promised is not None
    try:
        yield
    finally:
        _works_on = False


@contextmanager
def _standard_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        if not _works_on:
            raise
        silence(1)
    except OSError as error:
        silence(1)
        raise SeqloomError(f"standard output cannot be written ({error.strerror})") from None


def put(text: str) -> None:
    """A line of the result, as UTF-8 whatever the locale. A line break inside it becomes a space, so that it
    stays one line."""
    write_result(text.replace("\r", " ").replace("\n", " ") + "\n")


def put_json(content: object) -> None:
    """The result as one line of JSON. A number that is not finite (a perplexity beyond a float) is null."""
    from seqloom import files

    put(files.json_line(content))


def put_table(title: str, rows: Sequence[tuple[str, ...]], header: Sequence[str]) -> None:
    """The result for people: as wide as the terminal, and as UTF-8 whatever the locale."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, header_style="bold")
    for column, name in enumerate(header):
        cells = [row[column] for row in rows]
        are_numbers = bool(rows) and all(cell[:1].isdigit() and cell.isascii() for cell in cells)
        justify: Literal["left", "right"] = "right" if are_numbers else "left"
        table.add_column(Text(printable(name)), overflow="fold", justify=justify)
    for row in rows:
        texts = [Text(printable(cell)) for cell in row]
        for text in texts:
            text.highlight_regex("⟦[^⟧]*⟧", "bold magenta")
        table.add_row(*texts)
    console = Console(file=sys.stdout, highlight=False)
    # the library flushes what was written before
    with _standard_output(), console.capture() as drawn:
        # before the table and not its title, which would be broken to the table's width
        console.print(Text(printable(title), "table.title"))
        console.print(table)
    write_result(drawn.get())


def put_metrics(title: str, metrics: Mapping[str, float]) -> None:
    """A table of metrics. An interval is beside its value; it is left out where an end of it is not known,
    which is so where it is infinite."""
    rows: list[tuple[str, ...]] = []
    for name, value in metrics.items():
        if name.endswith(("_low", "_high")):
            continue
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        if low is not None and high is not None:
            text += f" ({low:,.4g} to {high:,.4g})"
        rows.append((name, text))
    put_table(title, rows, ("metric", "value"))


def is_typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def overwritten_line() -> Iterator[Callable[[str], None]]:
    """A line on standard error. Each call replaces it; nothing is written where it is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


@contextmanager
def progress_bar(activity: str) -> Iterator[Callable[[TrainingProgress], None] | None]:
    """A bar with the loss, the tokens or examples a second, and the time left. None where standard error is
    no terminal, or nothing but results is to be shown."""
    if not sys.stderr.isatty() or not logger.isEnabledFor(logging.INFO):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(activity, total=None, note="")

        def show(now: TrainingProgress) -> None:
            note = f"loss {now.loss:.3f}  {now.tokens_per_second:,.0f}/s"
            bar.update(task, completed=now.step, total=now.total_steps, note=note)

        yield show
