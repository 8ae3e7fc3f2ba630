"""What a user named, files, folders and patterns, to the documents of a corpus.

A document comes as one or more pieces, so that it may be longer than memory. A piece ends before white space
that follows something else, a single space where there is one. No tokenizer of ours joins anything over that
place (GPT-2's pattern looks ahead of white space, never behind it), so that the ids of the pieces, one after
the other, are the ids of the document.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import TEXT
from seqloom.data.formats.data_file import DataFile
from seqloom.data.formats.forms import FORMS, ending, form_or, read_records
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import refuse_pipe
from seqloom.errors import DataError, UsageError, printable
from seqloom.files import open_binary

TEXT_ENDINGS = (".txt", ".text")
"""How names of plain text end."""
READABLE = (*TEXT_ENDINGS, *(suffix for suffix in FORMS if suffix != ".json"))
"""How names of files in a folder end that are read though `data.format` does not say what they are. JSON is
as often about the texts as it holds them."""
PIECE = 2**16
"""Characters from which on a document is cut."""
MOST_SPACE = 2**24
"""More characters of white space in a row are no text."""

_CUT = re.compile(r"(?<=\S) (?=[^\s▁])")
"""A space between words: no tokenizer joins anything over it."""
_OTHER_CUT = re.compile(r"(?<=\S)[\t\n\v\f\r ]")
"""Where there is none for long. Most tokenizers join nothing over it either."""


class DocumentPiece(NamedTuple):
    """Part of a document, and where it stood (`line` from 1, of a table the row)."""

    text: str
    path: str
    line: int
    last: bool
    """Whether the document ends here."""


def corpus_files(
    paths: Sequence[str], data: DataConfig, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """The files behind what was named: files, folders (all that can be read in them, however deep) and
    patterns, in order.

    Says what is left out of a folder. Raises UsageError if the form cannot be a corpus; DataError if
    nothing is found or where a file can be read only once.
    """
    if data.format == "parallel":
        raise UsageError(
            "a corpus of texts must be text, tsv, csv, jsonl or parquet, but data.format is parallel"
        )
    files: dict[str, None] = {}
    for path in paths:
        matches = [path]
        if path != "-" and not os.path.lexists(path) and glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise DataError("must match a file, but nothing matches this pattern", path)
        for file in [file for match in matches for file in _files_of(match, data, say)]:
            if file in files:
                say(f"{printable(file)} is named twice, and read once")
            files[file] = None
    return list(files)


def _files_of(path: str, data: DataConfig, say: Callable[[str], None]) -> list[str]:
    if not os.path.isdir(path):
        refuse_pipe(path)
        open_binary(path).close()
        return [path]
    inside: list[str] = []
    others: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        others += filter(os.path.islink, (os.path.join(folder, name) for name in folders))
        for name in sorted(names):
            file = os.path.join(folder, name)
            if not name.startswith(".") and os.path.isfile(file):
                readable = data.format != "auto" or _known(name)
                (inside if readable else others).append(file)
    advice = (
        f"a pattern such as '{printable(os.path.join(path, '*.md'))}' reads others too, and --set"
        " data.format=text reads all"
    )
    if not inside:
        known = ", ".join(READABLE)
        raise DataError(
            f"holds no text that can be read ({_listed(others)}); known are {known}; {advice}", path
        )
    if others:
        say(
            f"{printable(path)}: {len(inside):,} files are read; left out: {_listed(others)}; {advice}"
        )
    return sorted(inside)


def _known(name: str) -> bool:
    return ending(name) in READABLE and not name.lower().endswith(".parquet.gz")


def _listed(paths: list[str]) -> str:
    shown = ", ".join(printable(os.path.basename(path)) for path in paths[:3]) or "no files"
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3:,} more"


def read_documents(
    files: Sequence[str], data: DataConfig, report: ReadReport
) -> Iterator[DocumentPiece]:
    """The documents of these files (see `corpus_files`), in pieces; a generator that holds a piece at a time.

    What a document of plain text is follows from `data.document`; in a table it is a row, in the column
    `data.text`. Texts are kept as they are, white space included, but that line ends within are `\\n` and the
    one at the end is left out. Blank documents are skipped. In `report` documents are used and skipped, and
    lines that must be left out are skipped too.

    Raises DataError for data that is wrong, also when that shows only at the end (no document), and
    UsageError for options that cannot be; both when the first piece is asked for or later.
    """
    nothing = "there are no documents in it (read: {rows}, all blank or skipped)"
    with report.reading(files, nothing):
        for path in files:
            for piece in _pieces(DataFile(path, data, report)):
                report.used += piece.last
                yield piece


def forms_of_documents(paths: Sequence[str], options: DataConfig) -> set[str]:
    """The forms of the files behind what was named. Raises what `corpus_files` raises."""
    piped = [path for path in paths if path == "-"]
    files = corpus_files([path for path in paths if path != "-"], options)
    return {form_or("text", path, options) for path in [*files, *piped]}


def _pieces(file: DataFile) -> Iterator[DocumentPiece]:
    form = form_or("text", file.path, file.options)
    if form == "text":
        yield from _text_pieces(file)
        return
    for record in read_records(file, form, TEXT):
        yield from cut(record.fields["text"], file.path, record.line)


def _text_pieces(file: DataFile) -> Iterator[DocumentPiece]:
    document = _Document(file)
    form = file.options.document
    for number, text, problem in file.lines(may_be_empty=True):
        blank = not text or text.isspace()
        if problem is not None:
            file.skip(problem, number)
        elif form == "line":
            if blank:
                file.skip("blank", number)
            elif len(text) <= PIECE:
                yield DocumentPiece(text, file.path, number, True)
            else:
                yield from cut(text, file.path, number)
        elif form == "paragraph" and blank:
            yield from document.end()
        else:
            yield from document.add(number, text)
    yield from document.end()


def cut(text: str, path: str, line: int) -> Iterator[DocumentPiece]:
    """The pieces of a whole document."""
    start = 0
    while len(text) - start > PIECE and (
        found := _CUT.search(text, start + PIECE, start + 2 * PIECE)
        or _OTHER_CUT.search(text, start + PIECE)
    ):
        yield DocumentPiece(text[start : found.start()], path, line, False)
        start = found.start()
    yield DocumentPiece(text[start:], path, line, True)


@final
class _Document:
    """A document that grows line by line, and is handed on in pieces."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self._clear()

    def _clear(self) -> None:
        self.line = 0  # where the waiting text begins; 0: none waits
        self.waiting: list[str] = []
        self.size, self.limit = 0, PIECE
        self.started = False  # whether a piece was handed on

    def add(self, number: int, text: str) -> Iterator[DocumentPiece]:
        if self.line:
            self.waiting.append("\n")
        else:
            self.line = number
        self.waiting.append(text)
        self.size += len(text) + 1
        return self._cut(number) if self.size > self.limit else iter(())

    def _cut(self, number: int) -> Iterator[DocumentPiece]:
        *ready, rest = cut("".join(self.waiting), self.file.path, self.line)
        for piece in ready:
            yield piece._replace(line=self.line)
            self.line += piece.text.count("\n")
            self.started = True
        self.waiting, self.size = [rest.text], len(rest.text)
        # Where there is no place to cut, the text must double before it is searched again.
        self.limit = max(PIECE, 2 * self.size)
        if self.size > MOST_SPACE and rest.text[PIECE:MOST_SPACE].isspace():
            raise self.file.error(
                f"white space must be shorter than {MOST_SPACE:,} characters, but goes on to here",
                number,
            )

    def end(self) -> Iterator[DocumentPiece]:
        text, line, started = "".join(self.waiting), self.line, self.started
        self._clear()
        if started or (text and not text.isspace()):
            yield DocumentPiece(text, self.file.path, line, True)
        elif line:
            self.file.skip("blank", line)
