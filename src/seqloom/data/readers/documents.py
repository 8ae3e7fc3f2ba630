"""What a user named, files, folders and patterns, to the documents of a corpus.

A document comes as one or more pieces, so that it may be longer than memory. A piece ends before white space
that follows something else. No tokenizer of ours joins anything over that place (GPT-2's pattern looks ahead
of white space, never behind it), so that the ids of the pieces, one after the other, are the ids of the
document.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

from seqloom.config import DataConfig
from seqloom.data.formats.columns import TEXT
from seqloom.data.formats.jsonl import read_json_lines
from seqloom.data.formats.lines import scan_lines
from seqloom.data.formats.parquet import read_parquet
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.formats.tables import read_table
from seqloom.data.readers.records import FORMS, refuse_pipe
from seqloom.errors import DataError, UsageError, printable
from seqloom.files import open_binary

TEXT_ENDINGS = (".txt", ".text")
"""How names of plain text end; a folder's other files are read only where `data.format` says what they are.
"""
PIECE = 2**16
"""Characters from which on a document is cut."""
MOST_BLANKS = 2**24
"""More characters of white space in a row are no text."""

BLANK = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as the patterns of the tokenizers have it (Unicode's White_Space; Python's own has U+001C to
U+001F too)."""
_CUT = re.compile(f"(?<=[^{BLANK}])[{BLANK}]")


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

    Of a folder what is left out is said. Raises UsageError where the form can be no corpus; DataError where
    nothing is found or where a file can be read only once.
    """
    if data.format == "parallel":
        raise UsageError(
            "a corpus of texts must be text, tsv, csv, jsonl or parquet, but data.format is parallel"
        )
    files: dict[str, None] = {}
    for path in paths:
        if path == "-" or os.path.lexists(path) or not glob.has_magic(path):
            found = _files_of(path, data, say)
        else:
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise DataError("must match a file, but nothing matches this pattern", path)
            found = [file for match in matches for file in _files_of(match, data, say)]
        for file in found:
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
        others += [
            os.path.join(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))
        ]
        for name in sorted(names):
            file = os.path.join(folder, name)
            if name.startswith(".") or not os.path.isfile(file):
                continue
            (inside if data.format != "auto" or _known(name) else others).append(file)
    advice = (
        f"a pattern such as '{printable(os.path.join(path, '*.md'))}' reads others too, and --set"
        " data.format=text reads all"
    )
    if not inside:
        raise DataError(
            f"holds no text that can be read ({_listed(others)}); known are {_KNOWN}; {advice}", path
        )
    if others:
        say(f"{printable(path)}: {len(inside):,} files are read; left out: {_listed(others)}; {advice}")
    return sorted(inside)


_KNOWN = ", ".join([*TEXT_ENDINGS, *FORMS])


def _known(name: str) -> bool:
    return _ending(name) in (*TEXT_ENDINGS, *FORMS) and not name.lower().endswith(".parquet.gz")


def _ending(path: str) -> str:
    return os.path.splitext(path.removesuffix(".gz"))[1].lower()


def _listed(paths: list[str]) -> str:
    shown = ", ".join(printable(os.path.basename(path)) for path in paths[:3]) or "no files"
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3:,} more"


def read_documents(files: Sequence[str], data: DataConfig, report: ReadReport) -> Iterator[DocumentPiece]:
    """The documents of these files (see `corpus_files`), in pieces; a generator that holds a piece at a time.

    Of plain text `data.document` says what a document is; of a table it is a row, in the column `data.text`.
    Texts are kept as they are, white space included, but that line ends within are `\\n` and the one at the
    end is none of it. Blank documents are skipped. In `report` documents are used and skipped, and lines that
    must be left out are skipped too.

    Raises DataError for data that is wrong, also when that shows only at the end (no document), and
    UsageError for options that cannot be; both when the first piece is asked for or later.
    """
    before, used = report.read, 0
    try:
        for path in files:
            for piece in _pieces(path, data, report):
                if piece.last:
                    used += 1
                    report.used += 1
                yield piece
    except DataError as error:
        report.rejected += error.line is not None
        raise
    if not used:
        raise DataError(
            f"there are no documents in it (read: {report.read - before}, all blank or skipped)",
            files[0] if files else None,
        )


def _pieces(path: str, data: DataConfig, report: ReadReport) -> Iterator[DocumentPiece]:
    form = data.format if data.format != "auto" else FORMS.get(_ending(path), "text")
    if form == "text":
        return _texts(path, data, report)
    if form == "jsonl":
        records = read_json_lines(path, data, report, TEXT)
    elif form == "parquet":
        records = read_parquet(path, data, report, TEXT)
    else:
        records = read_table(path, form, data, report, TEXT)
    return (piece for record in records for piece in cut(record.fields["text"], path, record.line))


def _texts(path: str, data: DataConfig, report: ReadReport) -> Iterator[DocumentPiece]:
    policy = data.on_bad_line
    lines = scan_lines(
        path,
        report,
        encoding=data.encoding,
        on_bad_line=policy,
        max_line_bytes=data.max_line_bytes,
        may_be_empty=True,
    )
    document = _Document(path, report)
    for number, text, problem in lines:
        blank = not text or text.isspace()
        if problem is not None:
            report.skip(problem, path, number)
        elif data.document == "line":
            if blank:
                report.skip("blank", path, number)
            elif len(text) <= PIECE:
                yield DocumentPiece(text, path, number, True)
            else:
                yield from cut(text, path, number)
        elif data.document == "paragraph" and blank:
            yield from document.end()
        else:
            yield from document.add(number, text)
    yield from document.end()


def cut(text: str, path: str, line: int) -> Iterator[DocumentPiece]:
    """The pieces of a whole document."""
    start = 0
    while len(text) - start > PIECE and (found := _CUT.search(text, start + PIECE)):
        yield DocumentPiece(text[start : found.start()], path, line, False)
        start = found.start()
    yield DocumentPiece(text[start:], path, line, True)


@final
class _Document:
    """A document that grows line by line, and is handed on in pieces."""

    def __init__(self, path: str, report: ReadReport) -> None:
        self.path, self.report = path, report
        self._begin()

    def _begin(self) -> None:
        self.line = 0  # of what is held; 0: nothing is
        self.held: list[str] = []
        self.size, self.enough = 0, PIECE
        self.begun = False  # whether a piece was handed on

    def add(self, number: int, text: str) -> Iterator[DocumentPiece]:
        if self.line:
            self.held.append("\n")
        else:
            self.line = number
        self.held.append(text)
        self.size += len(text) + 1
        return self._cut(number) if self.size > self.enough else iter(())

    def _cut(self, number: int) -> Iterator[DocumentPiece]:
        *ready, rest = cut("".join(self.held), self.path, self.line)
        for piece in ready:
            yield piece._replace(line=self.line)
            self.line += piece.text.count("\n")
            self.begun = True
        self.held, self.size = [rest.text], len(rest.text)
        self.enough = max(
            PIECE, 2 * self.size
        )  # where there is no place to cut, the next look is worth its time
        if self.size > MOST_BLANKS and rest.text[PIECE:MOST_BLANKS].isspace():
            raise DataError(
                f"white space must be shorter than {MOST_BLANKS:,} characters, but goes on to here",
                self.path,
                number,
            )

    def end(self) -> Iterator[DocumentPiece]:
        text, line, begun = "".join(self.held), self.line, self.begun
        self._begin()
        if begun or (text and not text.isspace()):
            yield DocumentPiece(text, self.path, line, True)
        elif line:
            self.report.skip("blank", self.path, line)
