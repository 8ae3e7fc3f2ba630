"""Bytes to lines of text that know their number.

A line ends at `\\n` or `\\r\\n` and nowhere else: U+2028, U+0085, a form feed or a lone `\\r` are text.
Memory is bounded by the longest line that is allowed, whatever the file.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError, printable
from seqloom.files import open_binary

REPLACEMENT = "\ufffd"


class Line(NamedTuple):
    """A line without its end. Where `problem` is set, the line must be skipped and counted under that reason;
    its text is then an approximation, good for finding where a quote closes."""

    number: int
    text: str
    problem: str | None = None


def read_lines(
    path: str,
    report: ReadReport,
    options: DataConfig,
    *,
    every_line: bool = False,
) -> Iterator[tuple[int, str]]:
    """The lines of a file (plain, `.gz` or `-`) as (number from 1, text without line end), blank ones too.

    All are counted in `report`. With `skip` a bad line leaves a gap in the numbers.
    Raises what `scan_lines` raises, and DataError at the end where all lines are white space.

    With `every_line`, for who must answer each line, there is no gap and no such error: a skipped line is
    counted and becomes an empty text, and an empty file has no lines.
    """
    count = blank = skipped = 0
    with report.reading([path], "", required=False):
        for number, text, problem in scan_lines(path, report, options, may_be_empty=every_line):
            count += 1
            if problem is not None:
                skipped += 1
                report.skip(problem, path, number)
                if every_line:
                    yield number, ""
                continue
            report.used += 1
            if not text.strip():
                blank += 1
                report.keep("blank", path, number)
            yield number, text
    if count == blank + skipped and not every_line:
        raise DataError(
            f"there are no usable lines in it ({blank} blank lines, {skipped} skipped)", path
        )


def scan_lines(
    path: str,
    report: ReadReport,
    options: DataConfig,
    *,
    may_be_empty: bool = False,
    open_file: Callable[[], BinaryIO] | None = None,
) -> Iterator[Line]:
    """Every line of a file, those to skip too; only repairs and oddities are counted in `report`. `open_file`
    opens what is not a file of its own, such as one in an archive; `path` is then only for messages.

    Raises DataError if the file cannot be opened or read, is empty (unless it may be), is not text (an
    archive, a PDF, UTF-16 read as something else), ends in zeros or has a line over `max_line_bytes`; with
    `on_bad_line="error"` also where a line is not in `encoding` or holds a NUL. Raises UsageError for an
    encoding that cannot be read.
    """
    codec, max_line_bytes = line_codec(options.encoding), options.max_line_bytes
    number = offset = 0
    with _opened(path, open_file) as file:
        try:
            codec, start = _byte_order(file, codec)
            decoder = _LineDecoder(path, codec, options.on_bad_line, report)
            newline, carriage = "\n".encode(codec), "\r".encode(codec)
            unit = len(newline)
            checked = 0  # up to where lines are read one by one
            while raw := _next_line(file, newline, max_line_bytes + 2 * unit, start):
                start = b""
                number += 1
                if number == 1:
                    _refuse_disguise(raw, codec, path)
                ended = raw.endswith(newline) and len(raw) % unit == 0
                content = raw[:-unit].removesuffix(carriage) if ended else raw
                is_skipped = len(content) > max_line_bytes and options.on_bad_line == "skip"
                if b"\0" in content and unit == 1:
                    # what is read here is lost for the lines after a skipped one
                    rest = None if ended or is_skipped else file
                    _refuse_zeros(content, rest, path, number)
                if is_skipped:
                    zeros = len(content) - len(content.rstrip(b"\0"))
                    while raw and not ended:
                        offset += len(raw)
                        raw = _next_line(file, newline, max_line_bytes + 2 * unit, b"")
                        ended = raw.endswith(newline) and len(raw) % unit == 0
                        zeros = 0 if raw.strip(b"\0") else zeros + len(raw) * bool(zeros)
                    if zeros >= 2 and unit == 1 and not ended:
                        raise _ends_in_zeros(zeros, path, number)
                    offset += len(raw)
                    yield Line(number, "", f"line of more than {max_line_bytes:,} bytes")
                    continue
                if len(content) > max_line_bytes:
                    raise DataError(
                        f"the line must have at most {max_line_bytes} bytes, but has more; is it one record a"
                        " line? If so, allow more with --set data.max_line_bytes=N",
                        path,
                        number,
                    )
                yield decoder.line(content, number, offset, ended)
                offset += len(raw)
                if codec == "utf-8" and offset >= checked:
                    block = _waiting_lines(file)
                    texts = _plain_lines(block) if len(block) <= max_line_bytes else None
                    if texts is None:
                        checked = offset + len(block)
                        continue
                    file.read(len(block))
                    offset += len(block)
                    yield from map(Line, itertools.count(number + 1), texts)
                    number += len(texts)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(_damage(error, number), path, number + 1) from None
        except OSError as error:
            raise DataError(
                f"cannot be read on ({error.strerror or error})", path, number + 1
            ) from None
    if number == 0 and not may_be_empty:
        raise DataError("must hold text, but is empty (0 bytes)", path)


def line_codec(encoding: str) -> str:
    """Python's name of a text encoding. Raises UsageError if there is none or its lines do not end in byte
    0x0A."""
    try:
        newline = "\n".encode(encoding)
        codec = codecs.lookup(encoding).name.removesuffix("-sig")
    except (LookupError, ValueError):
        raise UsageError(
            "data.encoding must be a text encoding that Python knows, such as utf-8, latin-1, cp1252 or"
            f" utf-16, but is {encoding!r}"
        ) from None
    if newline != b"\n" and not codec.startswith(("utf-8", "utf-16", "utf-32")):
        raise UsageError(
            f"data.encoding={encoding} cannot be read line by line; convert the file to UTF-8 with iconv"
        )
    return codec


@contextmanager
def _opened(path: str, open_file: Callable[[], BinaryIO] | None) -> Iterator[BinaryIO]:
    file = open_binary(path) if open_file is None else open_file()
    try:
        yield file
    finally:
        if path != "-":
            file.close()


def _byte_order(file: BinaryIO, codec: str) -> tuple[str, bytes]:
    """utf-16 and utf-32 with their byte order, by the first character, and the bytes of that character."""
    if codec not in ("utf-16", "utf-32"):
        return codec, b""
    start = file.read(int(codec[-2:]) // 8)
    # Without a byte order mark a big-endian ASCII character begins with its zeros.
    big_endian = start.startswith((codecs.BOM_UTF16_BE, b"\0"))
    return f"{codec}-{'be' if big_endian else 'le'}", start


def _next_line(file: BinaryIO, newline: bytes, most: int, start: bytes) -> bytes:
    """`start` and the bytes up to the next line end, which is included; at most `most` bytes; empty at the
    end."""
    unit = len(newline)
    if unit == 1:
        return file.readline(most)
    line = bytearray(start)
    while len(line) < most and not (line.endswith(newline) and len(line) % unit == 0):
        missing = -len(line) % unit  # a byte 0x0A may lie inside a character
        more = file.read(missing) if missing else file.readline(most - len(line))
        if not more:
            break
        line += more
    return bytes(line)


def _waiting_lines(file: BinaryIO) -> bytes:
    """Whole lines that have been read from the file already, and wait in its buffer."""
    if not isinstance(file, (io.BufferedReader, gzip.GzipFile)):
        return b""
    waiting = file.peek(1)
    return waiting[: waiting.rfind(b"\n") + 1]


def _plain_lines(block: bytes) -> list[str] | None:
    """The lines of a block of UTF-8; None if there is anything that may have to be counted or refused."""
    if b"\0" in block or b"\r" in block:
        return None
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    return None if "\ufeff" in text else text.split("\n")[:-1]


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)

_KINDS = (
    (b"\x1f\x8b", "gzip data (name it .gz, or unpack it with gzip -d)"),
    (b"\x28\xb5\x2f\xfd", "zstd data (unpack it with zstd -d)"),
    (
        b"PK\x03\x04",
        "a ZIP archive, as .docx, .xlsx and .odt are too (unpack it, or save it as plain text)",
    ),
    (b"%PDF-", "a PDF document (save it as plain text)"),
    (b"BZh", "bzip2 data (unpack it with bzip2 -d)"),
    (b"\xfd7zXZ\0", "xz data (unpack it with xz -d)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it)"),
    (b"\xd0\xcf\x11\xe0", "an old Office document (save it as plain text)"),
    (b"PAR1\x15", "a Parquet file (name it .parquet)"),
    (b"SQLite format 3\0", "an SQLite database (export a .csv)"),
)


def _refuse_disguise(raw: bytes, codec: str, path: str) -> None:
    """Raises DataError if the first line begins as another kind of file does."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            if encoding != codec:
                raise DataError(_looks_like(encoding, "by its byte order mark"), path, 1)
            return
    for magic, kind in _KINDS:
        if raw.startswith(magic) and (magic != b"BZh" or raw[4:10] == b"1AY&SY"):
            raise DataError(f"must be text, but is {kind}", path, 1)


def _looks_like(encoding: str, evidence: str) -> str:
    name = encoding.removesuffix("-le").removesuffix("-be")
    return f"looks like {name.upper()} ({evidence}); read it with --set data.encoding={name}"


def _refuse_zeros(content: bytes, rest: BinaryIO | None, path: str, number: int) -> None:
    """Raises DataError if the zeros mean wide characters, or a file whose end was never written.

    `rest` is what follows an unfinished line; at most 64 MiB of it are read.
    """
    columns = [content[column:4096:4] for column in range(4)]  # each fourth byte
    zeros = [column.count(0) for column in columns]
    shares = [count / max(1, len(column)) for count, column in zip(zeros, columns, strict=True)]
    if number == 1 and sum(zeros) >= 2 and 0 in zeros:
        if sum(share > 0.9 for share in shares) == 3 and len(content) >= 7:
            raise DataError(_looks_like("utf-32", "three of four bytes are zero"), path, number)
        if 0 in (zeros[0] + zeros[2], zeros[1] + zeros[3]) and max(shares) > 0.3:
            raise DataError(_looks_like("utf-16", "every second byte is zero"), path, number)
    tail = len(content) - len(content.rstrip(b"\0"))
    if rest is None or tail < 2:
        return
    for _ in range(1024):
        chunk = rest.read(2**16)
        if chunk.strip(b"\0"):
            return
        tail += len(chunk)
        if not chunk:
            raise _ends_in_zeros(tail, path, number)


def _ends_in_zeros(count: int, path: str, number: int) -> DataError:
    return DataError(
        f"the last {count} bytes are zero: the file looks truncated (power cut?); fetch it again",
        path,
        number,
    )


@dataclass(frozen=True, slots=True)
class _LineDecoder:
    """Decodes the lines of one file, and applies the policy for bad ones."""

    path: str
    codec: str
    on_bad_line: Literal["error", "skip", "replace"]
    """What becomes of a line that is not text: an error, left out and counted, or its bad characters become
    U+FFFD."""
    report: ReadReport

    def line(self, content: bytes, number: int, offset: int, ended: bool) -> Line:
        """The text of one line that starts at byte `offset`; `ended`: whether it has a line end."""
        problem = None
        message = ""
        try:
            text = content.decode(self.codec)
        except UnicodeDecodeError as error:
            problem, message = (
                f"bad {self.codec.upper()}",
                _not_in(self.codec, error, offset, ended),
            )
            text = content.decode(self.codec, "replace")
        if "\0" in text:
            if problem is None:
                at = offset + len(text[: text.index("\0")].encode(self.codec))
                problem, message = (
                    "NUL",
                    f"holds a NUL (zero byte, at byte {at} of the file){_ADVICE}",
                )
            text = text.replace("\0", REPLACEMENT)
        if number == 1:
            text = text.removeprefix("\ufeff")
        if problem is not None and self.on_bad_line == "error":
            raise DataError(message, self.path, number)
        if problem is not None and self.on_bad_line == "replace":
            self.report.replace(problem, self.path, number)
            problem = None
        if "\ufeff" in text:
            oddity = "U+FEFF (byte order mark) inside the file; were files joined?"
            self.report.keep(oddity, self.path, number)
        if "\r" in text:
            oddity = r"a lone carriage return; lines end at \n or \r\n only"
            self.report.keep(oddity, self.path, number)
        return Line(number, text, problem)


_ADVICE = "; leave such lines out with --set data.on_bad_line=skip"


def _not_in(codec: str, error: UnicodeDecodeError, offset: int, ended: bool) -> str:
    shown = " ".join(f"0x{byte:02X}" for byte in error.object[error.start : error.end][:8])
    where = f"{shown} at byte {offset + error.start} of the file"
    cut_off = error.reason in ("unexpected end of data", "truncated data") and not ended
    if cut_off and error.end == len(error.object):
        return (
            f"the file ends inside a character ({where}): was the download cut off? Fetch it again"
        )
    other = "latin-1 (or cp1252)" if codec == "utf-8" else "NAME"
    return (
        f"is not {codec.upper()}: {where}; if it is in another encoding, say so with --set"
        f" data.encoding={other}{_ADVICE}"
    )


def _damage(error: Exception, number: int) -> str:
    if number == 0 and isinstance(error, gzip.BadGzipFile):
        return f"is named .gz, but is not gzip data ({printable(str(error))}); rename or fetch it again"
    return (
        f"the gzip data is damaged or cut off after line {number} ({printable(str(error))});"
        " fetch it again"
    )
