"""The line reader meets every row of bytes and encodings that a user's file may hold."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.formats.lines import Line, read_lines, scan_lines
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError

GZIP = gzip.compress(b"one\ntwo\n", mtime=0)


def write(folder: Path, content: bytes, name: str = "a.txt") -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def texts(
    path: str, report: ReadReport | None = None, *, every_line: bool = False, **options: Any
) -> list[str]:
    lines = list(
        read_lines(path, report or ReadReport(), DataConfig(**options), every_line=every_line)
    )
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1))
    return [text for _, text in lines]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),  # row 1
        (b"one\ntwo", ["one", "two"]),  # row 13
        (b"one\r\ntwo\r\n", ["one", "two"]),  # row 14
        (b"one\r\n\r\ntwo", ["one", "", "two"]),
        (b"a\rb\r\r\nc\r", ["a\rb\r", "c\r"]),  # row 15
        (
            "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei\n".encode(),
            ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei"],
        ),  # row 16
        (b" \tone \n", [" \tone "]),
        (b"<s> [MASK] </s>\n\x1b[31m\n", ["<s> [MASK] </s>", "\x1b[31m"]),  # rows 31 and 32
    ],
)
def test_lines_end_at_newlines_only(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    report = ReadReport()
    assert texts(write(tmp_path, content), report) == expected
    assert report.read == report.used == len(expected)


def test_marks_and_carriage_returns_inside_are_kept_and_said(tmp_path: Path) -> None:
    report = ReadReport()
    path = write(tmp_path, "\ufeffone\n\ufefftwo\nthr\ree\n\ufeff\n\n".encode())
    assert texts(path, report) == ["one", "\ufefftwo", "thr\ree", "\ufeff", ""]  # row 2
    assert report.notices() == [
        (
            "2 lines kept unchanged: U+FEFF (byte order mark) inside the file; were files joined? (first:"
            f" {path}:2)"
        ),
        rf"1 line kept unchanged: a lone carriage return; lines end at \n or \r\n only (first: {path}:3)",
        f"1 line kept unchanged: blank (first: {path}:5)",
    ]


REFUSED: dict[str, Any] = {
    "3 utf-16 le": ("one\n".encode("utf-16"), 1, "looks like UTF-16", "--set data.encoding=utf-16"),
    "3 utf-16 be": (
        b"\xfe\xff" + "one\n".encode("utf-16-be"),
        1,
        "looks like UTF-16",
        "--set data.encoding=utf-16",
    ),
    "3 utf-32": ("one\n".encode("utf-32"), 1, "looks like UTF-32", "--set data.encoding=utf-32"),
    "4 le": (
        "one\ntwo\n".encode("utf-16-le"),
        1,
        "looks like UTF-16",
        "--set data.encoding=utf-16",
    ),
    "4 be": (
        "é mixed дa\n".encode("utf-16-be"),
        1,
        "looks like UTF-16",
        "--set data.encoding=utf-16",
    ),
    "4 utf-32": ("one\n".encode("utf-32-le"), 1, "looks like UTF-32", "--set data.encoding=utf-32"),
    "5": (
        b"one\ncaf\xe9 noir\n",
        2,
        "is not UTF-8: 0xE9 at byte 7 of the file",
        "--set data.encoding=latin-1 (or cp1252)",
    ),
    "6": (
        b"one\ncaf\xc3",
        2,
        "the file ends inside a character (0xC3 at byte 7 of the file): was the download cut off?",
    ),
    "7 overlong": (b"\xc0\xaf\n", 1, "is not UTF-8: 0xC0 at byte 0"),
    "7 surrogate": (b"one\n\xed\xa0\x80\n", 2, "is not UTF-8: 0xED at byte 4"),
    "8": (
        b"one\nt\0wo\nthree\n",
        2,
        "holds a NUL",
        "at byte 5 of the file",
        "--set data.on_bad_line=skip",
    ),
    "8 several": (b"one\nt\0\0\nthree\n", 2, "holds a NUL", "at byte 5 of the file"),
    "8 far between": (b"a\0" + b"b" * 41 + b"\0c\n", 1, "holds a NUL", "at byte 1 of the file"),
    "9 short": (b"a\0\0\0", 1, "the last 3 bytes are zero"),
    "9": (b"one\ntw" + b"\0" * 5000, 2, "the last 5000 bytes are zero", "truncated"),
    "10 gzip": (GZIP, 1, "must be text, but is gzip"),
    "10 zstd": (b"\x28\xb5\x2f\xfdxyz\n", 1, "is zstd"),
    "10 zip": (b"PK\x03\x04\x14\0\0\0word/document.xml", 1, "is a ZIP archive", ".docx"),
    "10 pdf": (b"%PDF-1.7\n%\xe2\xe3\n", 1, "is a PDF"),
    "10 bzip2": (b"BZh91AY&SYxyz", 1, "is bzip2"),
    "11": (b"", None, "is empty (0 bytes)"),
    "12": (b"\n \n\t\r\n\n\n", None, "there are no usable lines in it (5 blank lines, 0 skipped)"),
    "12 only a mark": (b"\xef\xbb\xbf", None, "no usable lines"),
}


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_no_text_is_refused_in_one_line_that_says_where(tmp_path: Path, row: str) -> None:
    content, line, expected = REFUSED[row][0], REFUSED[row][1], REFUSED[row][2:]
    path, report = write(tmp_path, content), ReadReport()
    with pytest.raises(DataError) as caught:
        texts(path, report)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert "\n" not in message
    for part in expected:
        assert part in message
    assert report.read == report.used + report.rejected
    assert report.rejected == (line is not None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9 noir", "bad UTF-8"),
        (b"caf\xc3", "bad UTF-8"),
        (b"\xc0\xaf", "bad UTF-8"),
        (b"\xed\xa0\x80", "bad UTF-8"),
        (b"a\0b", "NUL"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\nlast\n"])
def test_bad_lines_are_skipped_or_repaired_and_counted(
    tmp_path: Path, content: bytes, reason: str, end: bytes
) -> None:
    path, skipped, replaced = write(tmp_path, b"one\n" + content + end), ReadReport(), ReadReport()
    lines = list(read_lines(path, skipped, DataConfig(on_bad_line="skip")))
    rest = [(3, "last")] if end.endswith(b"last\n") else []
    assert lines == [(1, "one"), *rest]
    assert skipped.notices() == [f"1 line skipped: {reason} (first: {path}:2)"]
    assert (skipped.read, skipped.used, skipped.skipped) == (2 + len(rest), 1 + len(rest), 1)
    repaired = texts(path, replaced, on_bad_line="replace")
    assert "\ufffd" in repaired[1]
    assert not set(repaired[1]) & {"\0", "\n", "\r"}
    assert replaced.notices() == [f"1 line repaired with U+FFFD: {reason} (first: {path}:2)"]
    assert (replaced.read, replaced.used, replaced.replaced) == (2 + len(rest), 2 + len(rest), 1)


def test_all_lines_skipped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no usable lines in it \(1 blank lines, 2 skipped\)"):
        texts(write(tmp_path, b"\xff\n\n\xff\n"), on_bad_line="skip")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n \n\n", ["", " ", ""]),
        (b"\xff\n", [""]),
        (b"one\n\xff\n\nt\0wo\nlast", ["one", "", "", "", "last"]),
    ],
)
def test_every_line_has_its_place_where_that_is_asked_for(
    tmp_path: Path, content: bytes, expected: list[str]
) -> None:
    report = ReadReport()
    path = write(tmp_path, content)
    assert texts(path, report, on_bad_line="skip", every_line=True) == expected
    assert report.read == len(expected)
    assert report.skipped == content.count(b"\xff") + content.count(b"\0")


def test_every_line_is_no_cover_for_what_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        texts(str(tmp_path / "none"), every_line=True)
    with pytest.raises(DataError, match=r":2: is not UTF-8"):
        texts(write(tmp_path, b"one\n\xff\n"), every_line=True)


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("row", ["3 utf-16 le", "4 le", "4 utf-32", "9", "10 zip"])
def test_no_policy_makes_text_of_another_kind_of_file(
    tmp_path: Path, row: str, policy: str
) -> None:
    with pytest.raises(DataError, match=r"looks |is a ZIP"):
        texts(write(tmp_path, REFUSED[row][0]), on_bad_line=policy)


# bytes 0x0A and 0x0D inside characters
LINES = [
    "\u010a\u0a0a äöü ",
    "",
    "日本語\u2028\u0a0d",
    "last",
]


@pytest.mark.parametrize(
    "name",
    ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8", "utf-8-sig", "gb18030"],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_other_encodings_by_option(tmp_path: Path, name: str, end: str, mark: str) -> None:
    if name == "gb18030":
        mark = ""
    content = (
        (mark if name not in ("utf-16", "utf-32", "utf-8-sig") else "") + end.join(LINES)
    ).encode(name)
    assert texts(write(tmp_path, content), encoding=name) == LINES


@pytest.mark.parametrize("name", ["utf-16", "utf-32"])
@pytest.mark.parametrize("order", ["le", "be"])
def test_byte_order_without_a_mark(tmp_path: Path, name: str, order: str) -> None:
    assert texts(write(tmp_path, "\none\ntwö".encode(f"{name}-{order}")), encoding=name) == [
        "",
        "one",
        "twö",
    ]


def test_single_byte_encodings_keep_every_byte(tmp_path: Path) -> None:
    path = write(tmp_path, bytes(b for b in range(1, 256) if b != 10) + b"\n\x85\n")
    assert texts(path, encoding="latin-1") == [
        "".join(chr(b) for b in range(1, 256) if b != 10),
        "\x85",
    ]
    with pytest.raises(DataError, match=r":1: is not CP1252: 0x81 at byte 127 "):
        texts(path, encoding="cp1252")


def test_errors_in_wide_encodings_know_their_place(tmp_path: Path) -> None:
    content = "one\n".encode("utf-16-le") + b"\x00\xd8\n\0"
    with pytest.raises(DataError, match=r":2: is not UTF-16-LE: 0x00 0xD8 at byte 8 of the file"):
        texts(write(tmp_path, content), encoding="utf-16")
    with pytest.raises(DataError, match=r":2: the file ends inside a character \(0x61 at byte 8"):
        texts(write(tmp_path, "one\na".encode("utf-16-le")[:-1]), encoding="utf-16")
    with pytest.raises(DataError, match=r":2: the file ends inside a character \(0x00 at byte 12"):
        # 0x0A 0x00 at an odd place
        texts(write(tmp_path, "one\na".encode("utf-16-le") + b"a\n\0"), encoding="utf-16")
    with pytest.raises(DataError, match=r":2: holds a NUL \(zero byte, at byte 12 of the file\)"):
        texts(write(tmp_path, "one\nab\0c\n".encode("utf-16-le")), encoding="utf-16")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("latin-1", "utf-8"),
        ("utf-16", "utf-8"),
        ("utf-16-be", "utf-16"),
        ("utf-8", "utf-32"),
        ("cp1252", "utf-16"),
    ],
)
def test_a_mark_that_contradicts_the_encoding_is_an_error(
    tmp_path: Path, name: str, found: str
) -> None:
    path = write(tmp_path, "one\n".encode("utf-8-sig" if found == "utf-8" else found))
    with pytest.raises(
        DataError, match=f":1: looks like {found.upper()} .*--set data.encoding={found}$"
    ):
        texts(path, encoding=name)
    assert texts(path, encoding=found) == ["one"]


@pytest.mark.parametrize("name", ["utf-9", "hex", "a\0b", "cp037", ""])
def test_an_encoding_that_cannot_be_read_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"data\.encoding"):
        texts(write(tmp_path, b"one\n"), encoding=name)


def test_the_limit_counts_bytes_without_the_line_end(tmp_path: Path) -> None:  # row 17
    for end in (b"", b"\n", b"\r\n", b"\nx"):
        assert (
            texts(write(tmp_path, b"one\n" + b"a" * 100 + end), max_line_bytes=100)[1] == "a" * 100
        )
        with pytest.raises(
            DataError,
            match=r"a.txt:2: the line must have at most 100 bytes, but has more.*--set data.max_line_bytes=N",
        ):
            texts(write(tmp_path, b"one\n" + b"a" * 101 + end), max_line_bytes=100)
    wide = ("one\n" + "a" * 50 + "\n").encode("utf-16")
    assert texts(write(tmp_path, wide), encoding="utf-16", max_line_bytes=100)[1] == "a" * 50
    with pytest.raises(DataError, match=r"a.txt:2: the line must have at most 98 bytes"):
        texts(write(tmp_path, wide), encoding="utf-16", max_line_bytes=98)


def test_zeros_inside_a_line_over_the_limit_are_not_called_the_end(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.txt:1: the line must have at most 100 bytes"):
        texts(write(tmp_path, b"a" * 90 + b"\0" * 100_000 + b"b\n"), max_line_bytes=100)


@pytest.mark.parametrize(
    ("fill", "message"), [(b"a", "must have at most"), (b"\0", "the last 50000000 bytes are zero")]
)
def test_a_huge_line_is_refused_in_little_memory(tmp_path: Path, fill: bytes, message: str) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"one\n")
        for _ in range(50):
            file.write(fill * 1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"bomb.gz:2: .*{message}"):
            texts(str(path), max_line_bytes=100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_gzip_is_unpacked_by_name(tmp_path: Path) -> None:
    assert texts(write(tmp_path, GZIP + GZIP, "a.txt.gz")) == ["one", "two", "one", "two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text\n", r"a.gz:1: is named .gz, but is not gzip data"),
        (GZIP[:-6], r"a.gz:\d: the gzip data is damaged or cut off"),
        (GZIP[:11] + b"\xff\xff\xff" + GZIP[14:], r"a.gz:\d: the gzip data is damaged or cut off"),
        (GZIP[:-8] + b"\0" * 8, r"a.gz:\d: the gzip data is damaged or cut off"),
        (b"", r"a.gz: must hold text, but is empty"),
    ],
)
def test_damaged_gzip_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts(write(tmp_path, content, "a.gz"))


def test_standard_input_is_read_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert texts("-") == ["one", "two"]
    assert not stdin.buffer.closed


def test_a_pipe_is_read_and_a_folder_and_a_device_are_not(tmp_path: Path) -> None:  # row 20
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=("one\ntwo\n".encode("utf-16"),))
    writer.start()
    assert texts(str(pipe), encoding="utf-16") == ["one", "two"]
    writer.join()
    with pytest.raises(DataError, match="is a folder"):
        texts(str(tmp_path))
    with pytest.raises(DataError, match="is a device"):
        texts("/dev/zero")


def test_a_path_that_cannot_be_opened_says_why(tmp_path: Path) -> None:  # rows 20 and 21
    write(tmp_path, b"one\n", "train.txt")
    with pytest.raises(DataError, match=r"train.tx: there is no such file; near it: train.txt"):
        texts(str(tmp_path / "train.tx"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="loop of symbolic links"):
        texts(str(tmp_path / "loop"))
    if os.geteuid() != 0:  # root may read everything
        os.chmod(tmp_path / "train.txt", 0)
        with pytest.raises(DataError, match="permission denied"):
            texts(str(tmp_path / "train.txt"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a b\n.txt", r"a b\\n.txt:1:"), (os.fsdecode(b"\xff\x1b.txt"), r"\\udcff\\x1b.txt:1:")],
)
def test_odd_names_are_read_and_shown_escaped(tmp_path: Path, name: str, shown: str) -> None:
    assert texts(write(tmp_path, b"one\n", name)) == ["one"]
    with pytest.raises(DataError, match=shown):
        texts(write(tmp_path, b"\xff\n", name))


def test_a_file_is_closed_when_reading_stops_early(tmp_path: Path) -> None:
    path = write(tmp_path, GZIP, "a.gz")
    lines = read_lines(path, ReadReport(), DataConfig())
    next(lines)
    before = set(os.listdir("/proc/self/fd"))
    lines.close()  # type: ignore[attr-defined]
    assert len(set(os.listdir("/proc/self/fd"))) < len(before)


awkward = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"\r",
            b"\0",
            b"\xef\xbb\xbf",
            b"\xff\xfe",
            b"\xc3",
            b"\xc3\xa9",
            b"a",
            b" ",
            b"PK\x03\x04",
        ]
    )
)


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=awkward.map(b"".join) | st.binary(),
    policy=st.sampled_from(["error", "skip", "replace"]),
    limit=st.integers(1, 40),
)
@example(content=b"a\nb\xff\nc", policy="skip", limit=40)
@example(content=b"a\nb\xff\nc", policy="replace", limit=40)
@example(content=b"too long to read\0\0\na\nb\n", policy="skip", limit=16)
def test_every_line_is_used_skipped_or_named_in_an_error(
    tmp_path: Path, content: bytes, policy: str, limit: int
) -> None:
    path, report = write(tmp_path, content), ReadReport()
    in_file = content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    given_out, refused = 0, None
    try:
        options = DataConfig(on_bad_line=policy, max_line_bytes=limit)  # type: ignore[arg-type]
        for _ in read_lines(path, report, options):
            given_out += 1
    except DataError as error:
        refused = error
    if refused is not None and refused.line is not None:
        assert (report.read, report.rejected) == (refused.line, 1)
    else:
        assert refused is None or "no usable lines" in str(refused) or not content
        assert (report.read, report.rejected) == (in_file, 0)
    assert report.used == given_out
    assert report.used + report.skipped + report.rejected == report.read


@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0\ufeff")),
        min_size=1,
    ),
    end=st.sampled_from(["\n", "\r\n"]),
    name=st.sampled_from(["utf-8", "utf-16", "utf-32-be"]),
)
def test_any_text_comes_back_as_it_was(
    tmp_path: Path, lines: list[str], end: str, name: str
) -> None:
    lines.append("x")
    content = (end.join(lines) + end).encode(name)
    assert texts(write(tmp_path, content), encoding=name) == lines


PARTS = [
    b"a",
    b"word ",
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xe2\x80",
    b"\xef\xbb\xbf",
    "é漢\u2028".encode(),
]


@settings(max_examples=200, deadline=None)
@given(
    content=st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join),
    policy=st.sampled_from(["skip", "replace"]),
    buffer=st.integers(1, 40),
    most=st.sampled_from([4, 1000]),
)
def test_lines_are_the_same_one_by_one_and_in_blocks(
    content: bytes, policy: str, buffer: int, most: int
) -> None:
    def read(file: BinaryIO) -> tuple[list[Line], object]:
        report = ReadReport()
        data = DataConfig(on_bad_line=policy, max_line_bytes=most)  # type: ignore[arg-type]
        try:
            found = scan_lines("a", report, data, may_be_empty=True, open_file=lambda: file)
            return list(found), report
        except DataError as error:
            return [], str(error)

    in_blocks = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(content)), buffer)
    assert read(in_blocks) == read(io.BytesIO(content))
