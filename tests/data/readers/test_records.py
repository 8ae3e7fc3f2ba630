"""Records from parallel text, tables and JSONL: every form, and every row that is wrong in some way."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import read_pairs, read_texts
from seqloom.errors import DataError, UsageError
from seqloom.run_file import apply_settings, parse


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def pairs(
    *paths: str, report: ReadReport | None = None, **options: Any
) -> list[tuple[str, str, int]]:
    """(source, target, line) of every record."""
    report = report or ReadReport()
    records = list(read_pairs(paths, DataConfig(**options), report))
    assert report.used == len(records)
    assert report.read == report.used + report.skipped
    assert all(record.fields.keys() == {"source", "target"} for record in records)
    return [(record.fields["source"], record.fields["target"], record.line) for record in records]


def refusal(*paths: str, report: ReadReport | None = None, **options: Any) -> str:
    """The one line of the DataError that reading ends with."""
    with pytest.raises(DataError) as caught:
        list(read_pairs(paths, DataConfig(**options), report or ReadReport()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Plain text


def test_texts_keep_blank_lines_and_their_numbers(tmp_path: Path) -> None:
    path, report = write(tmp_path, "a.txt", " one\n\n<s> two\t\r\n"), ReadReport()
    records = list(read_texts(path, DataConfig(), report))
    assert records == [
        Record({"text": text}, path, line)
        for line, text in enumerate([" one", "", "<s> two\t"], start=1)
    ]
    assert report.read == report.used == 3


def test_texts_take_the_options(tmp_path: Path) -> None:
    path, report = write(tmp_path, "a.txt", b"one\n\xe9t\xe9\nlong line\n"), ReadReport()
    assert [
        r.fields["text"] for r in read_texts(path, DataConfig(encoding="latin-1"), ReadReport())
    ] == [
        "one",
        "été",
        "long line",
    ]
    assert [r.line for r in read_texts(path, DataConfig(on_bad_line="skip"), report)] == [1, 3]
    assert report.notices() == [f"1 line skipped: bad UTF-8 (first: {path}:2)"]
    with pytest.raises(DataError, match=r"a.txt:3: .*at most 5 bytes"):
        list(read_texts(path, DataConfig(encoding="latin-1", max_line_bytes=5), ReadReport()))


def test_texts_of_every_line(tmp_path: Path) -> None:
    path, report = write(tmp_path, "a.txt", b"one\n\xff\n\nfour"), ReadReport()
    records = list(read_texts(path, DataConfig(on_bad_line="skip"), report, every_line=True))
    assert records == [
        Record({"text": text}, path, line)
        for line, text in enumerate(["one", "", "", "four"], start=1)
    ]
    assert report.notices()[0] == f"1 line skipped: bad UTF-8 (first: {path}:2)"
    assert (
        list(read_texts(write(tmp_path, "b.txt", ""), DataConfig(), ReadReport(), every_line=True))
        == []
    )
    with pytest.raises(DataError, match="is empty"):
        list(read_texts(write(tmp_path, "b.txt", ""), DataConfig(), ReadReport()))


# Parallel text


def test_parallel_text_is_paired_by_line(tmp_path: Path) -> None:
    source, target = (
        write(tmp_path, "a", " one\r\ntwo \u2028x\nthree"),
        write(tmp_path, "b", "\ufeffeins\nzwei\ndrei\n"),
    )
    records = list(read_pairs([source, target], DataConfig(), ReadReport()))
    assert [record.fields for record in records] == [
        {"source": " one", "target": "eins"},
        {"source": "two \u2028x", "target": "zwei"},
        {"source": "three", "target": "drei"},
    ]
    assert [(record.path, record.line) for record in records] == [
        (source, 1),
        (source, 2),
        (source, 3),
    ]


def test_blank_sides_are_skipped_together_and_counted(tmp_path: Path) -> None:  # row 51
    source, target = (
        write(tmp_path, "a", "1\n\n3\n \n5\n6\n"),
        write(tmp_path, "b", "one\ntwo\n\u00a0\n\nfive\n\n"),
    )
    report = ReadReport()
    assert pairs(source, target, report=report) == [("1", "one", 1), ("5", "five", 5)]
    assert report.notices() == [
        f"3 lines skipped: one side of the pair is blank (first: {source}:2)",
        f"1 line skipped: blank (first: {source}:4)",
    ]


@pytest.mark.parametrize("which", ["a", "b", "ab"])
def test_a_bad_line_on_either_side_skips_the_pair_once(tmp_path: Path, which: str) -> None:
    content = {name: b"1\n\xff\n3\n" if name in which else b"x\ny\nz\n" for name in "ab"}
    paths = [write(tmp_path, name, content[name]) for name in "ab"]
    report = ReadReport()
    assert [line for _, _, line in pairs(*paths, report=report, on_bad_line="skip")] == [1, 3]
    assert report.notices() == [f"1 line skipped: bad UTF-8 (first: {tmp_path / which[0]}:2)"]
    assert re.search(rf"{which[0]}:2: is not UTF-8: 0xFF at byte 2", refusal(*paths))


@pytest.mark.parametrize(
    ("source", "target", "place", "counts", "hint"),
    [
        ("1\n2\n3\n", "1\n2\n", "b:2", (3, 2), None),
        ("1\n", "1\n2\n3\n4\n", "a:1", (1, 4), None),
        ("1\n2\n3\n4\n", "1\n\n2\n", "b:3", (4, 3), "b:2"),
        ("1\n\n3\n", "1\n2\n3\n4\n", "a:3", (3, 4), "a:2"),
        ("1\n\n\n4\n", "1\n2\n3\n4\n5\n", "a:4", (4, 5), "a:2"),
    ],
)
def test_unequal_sides_are_an_error_even_at_the_end(  # row 50
    tmp_path: Path, source: str, target: str, place: str, counts: tuple[int, int], hint: str | None
) -> None:
    paths = write(tmp_path, "a", source), write(tmp_path, "b", target)
    message = refusal(*paths)
    assert message.startswith(f"{tmp_path}/{place}: ends here")
    assert f"{paths[0]} has {counts[0]}, {paths[1]} has {counts[1]}" in message
    assert ("suspicious" in message) == (hint is not None)
    assert (
        hint is None
        or f"the first suspicious line is {tmp_path}/{hint} (blank on one side only)" in message
    )


def test_a_nul_does_not_change_the_count_of_lines(tmp_path: Path) -> None:  # row 8
    paths = write(tmp_path, "a", b"1\n2\0\n3\n"), write(tmp_path, "b", b"1\n2\n3\n")
    assert f"{paths[0]}:2: holds a NUL" in refusal(*paths)
    assert [line for _, _, line in pairs(*paths, on_bad_line="skip")] == [1, 3]
    assert pairs(*paths, on_bad_line="replace")[1] == ("2\ufffd", "2", 2)


def test_an_empty_side_is_named(tmp_path: Path) -> None:  # rows 11 and 12
    full, empty, blank = (
        write(tmp_path, "a", "1\n"),
        write(tmp_path, "b", ""),
        write(tmp_path, "c", "\n"),
    )
    assert refusal(full, empty) == f"{empty}: must hold text, but is empty (0 bytes)"
    assert (
        refusal(full, blank)
        == f"{full}: there are no usable pairs in it (rows read: 1, all blank on a side or skipped)"
    )


# Prefixes


def test_a_prefix_names_both_sides(tmp_path: Path) -> None:
    write(tmp_path, "train.de", "eins\n")
    write(tmp_path, "train.en.gz", gzip.compress(b"one\n"))
    (tmp_path / "train.old").mkdir()
    prefix, report = str(tmp_path / "train"), ReadReport()
    assert pairs(prefix, report=report) == [("one", "eins", 1)]
    assert report.notices() == [
        (
            f"{prefix}: 'en' is taken as source and 'de' as target; to turn it: --set data.source=de --set"
            " data.target=en"
        )
    ]
    for source, target in (("de", "en"), ("de", None), (None, "en")):
        assert pairs(prefix, source=source, target=target) == [("eins", "one", 1)]
    report = ReadReport()
    pairs(prefix, report=report, source="de", target="en")
    assert report.notices() == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["p.src", "p.ref"], "p.src"),
        (["p.fr", "p.de"], "p.de"),
        (["p.b", "p.a"], "p.a"),
        (["p.tgt", "p.x", "p.input"], "p.input"),
        (["p.en", "p.zh", "p.log"], "p.en"),
    ],
)
def test_sides_are_guessed_by_suffix(tmp_path: Path, names: list[str], expected: str) -> None:
    for name in names:
        write(tmp_path, name, f"{name}\n")
    report = ReadReport()
    assert pairs(str(tmp_path / "p"), report=report)[0][0] == expected
    assert "is taken as source" in report.notices()[0]


def test_a_prefix_that_fits_nothing_or_too_much_says_so(tmp_path: Path) -> None:
    for name in ("train.en", "train.de", "train.fr"):
        write(tmp_path, name, "x\n")
    prefix = str(tmp_path / "train")
    assert "beside it stand 'de', 'en', 'fr'; two must be taken" in refusal(prefix)
    assert "two must be taken" in refusal(prefix, source="en")
    assert "no file 'ef' for data.target (found: 'de', 'en', 'fr'" in refusal(
        prefix, source="en", target="ef"
    )
    assert refusal(str(tmp_path / "tran")).endswith(
        "there is no such file, nor two files such as tran.en and tran.de; near it: train, train.fr, train.en"
    )
    assert "is a folder" in refusal(str(tmp_path))
    assert "parallel text must be two files" in refusal(f"{prefix}.en", format="parallel")
    write(tmp_path, "train.en.gz", gzip.compress(b"x\n"))
    assert "train.en: stands beside train.en.gz" in refusal(prefix, source="en", target="de")


# Which form


def test_the_form_follows_the_name_or_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [("a", "b", 2)]
    assert pairs(write(tmp_path, "t.tsv.gz", gzip.compress(b"source\ttarget\na\tb\n"))) == expected
    assert pairs(write(tmp_path, "t.CSV", "source,target\na,b\n")) == expected
    assert pairs(write(tmp_path, "t.jsonl", '\n{"source": "a", "target": "b"}\n')) == expected
    unknown = write(tmp_path, "t.txt", "source\ttarget\na\tb\n")
    assert pairs(unknown, format="tsv") == expected
    assert "say it with --set data.format=tsv" in refusal(unknown)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"source\ttarget\na\tb\n")))
    assert pairs("-", format="tsv") == expected


@pytest.mark.parametrize(
    ("paths", "options", "message"),
    [
        (["-"], {}, r"form of standard input must be said: --set data.format=tsv"),
        (["-", "-"], {}, "one side of parallel text, not both"),
        (["a.tsv", "b.tsv"], {}, "two files can only be parallel text"),
        (["a", "b"], {"format": "csv"}, "two files can only be parallel text"),
        (["a", "b", "c"], {}, "3 files are given"),
        ([], {}, "0 files are given"),
    ],
)
def test_paths_that_fit_no_form_are_usage_errors(
    paths: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        list(read_pairs(paths, DataConfig(**options), ReadReport()))


# Columns and headers


@pytest.mark.parametrize(
    ("header", "source"),
    [
        ("source,target", 0),
        ("target,source", 1),
        ("id,document,summary", 1),
        ("Text,Output", 0),
        ("de,en", 1),
        ("fr,de", 0),
        ("id,tgt,note,src", 3),
        ("mr,ref", 0),
    ],
)
def test_columns_are_known_by_name(tmp_path: Path, header: str, source: int) -> None:
    width, report = header.count(",") + 1, ReadReport()
    path = write(tmp_path, "t.csv", header + "\n" + ",".join(str(i) for i in range(width)) + "\n")
    [(text, _, line)] = pairs(path, report=report)
    assert (text, line) == (str(source), 2)
    guessed = {"source", "target"} != set(header.split(","))
    assert [("is taken as source" in notice) for notice in report.notices()] == [True] * guessed


def test_columns_by_option(tmp_path: Path) -> None:
    path = write(tmp_path, "t.tsv", "a\tb\tc\n1\t2\t3\n")
    report = ReadReport()
    assert pairs(path, report=report, source="c", target="a") == [("3", "1", 2)]
    assert report.notices() == []
    assert (
        "the columns of source and target are not known by name (found: 'a', 'b', 'c')"
        in refusal(path, source="c")
    )
    assert pairs(write(tmp_path, "u.tsv", "a\tb\n1\t2\n"), target="a") == [("2", "1", 2)]


@pytest.mark.parametrize("wrong", ["Text", "text ", "texxt"])
def test_a_missing_column_names_the_nearest(tmp_path: Path, wrong: str) -> None:  # row 38
    for name, content in (
        ("t.csv", f"id,{wrong},label\n1,2,3\n"),
        ("t.jsonl", json.dumps({"id": "1", wrong: "2", "label": "3"})),
    ):
        path = write(tmp_path, name, content)
        message = refusal(path, source="text", target="label")
        assert (
            message
            == f"{path}:1: there is no column 'text' for data.source (found: 'id', '{wrong}', 'label';"
            f" nearest: '{wrong}')"
        )


def test_a_table_without_header_has_two_columns(tmp_path: Path) -> None:  # row 39
    path, report = write(tmp_path, "t.tsv", "Hi.\t嗨。\nRun.\t跑。\n"), ReadReport()
    assert pairs(path, report=report) == [("Hi.", "嗨。", 1), ("Run.", "跑。", 2)]
    [notice] = report.notices()
    assert notice.startswith(
        f"{path}:1: no header; the first row is read as data, the first column as source"
    )
    assert notice.endswith("--set data.header=true): Hi. | 嗨。")
    three = write(tmp_path, "u.tsv", "\n1\t2\t3\n")
    assert f"{three}:2: a table without a header must have 2 columns, but has 3" in refusal(three)
    assert (
        f"{path}:1: the columns of source and target are not known by name (found: 'Hi.', '嗨。')"
        in refusal(path, header=True)
    )


def test_a_header_that_is_read_as_data_is_said(tmp_path: Path) -> None:  # row 39
    path, report = write(tmp_path, "t.tsv", "source\ttarget\na\tb\n"), ReadReport()
    assert pairs(path, report=report, header=False) == [("source", "target", 1), ("a", "b", 2)]
    assert "though it looks like a header" in report.notices()[0]
    with pytest.raises(UsageError, match=r"leave out data\.header=false"):
        pairs(path, header=False, source="source")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_names_that_stand_twice_are_an_error(tmp_path: Path, name: str) -> None:  # rows 37 and 44
    content = (
        "source,target,note,note\n1,2,3,4\n"
        if name == "t.csv"
        else '{"source": "1", "target": "2", "note": 3, "note": 4}'
    )
    path = write(tmp_path, name, content)
    assert re.match(re.escape(f"{path}:1: ") + ".*'note' stands twice", refusal(path))


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize(
    "options", [{}, {"header": True}, {"source": "source", "target": "target"}]
)
def test_a_wrong_delimiter_is_guessed(
    tmp_path: Path, mark: str, options: dict[str, Any]
) -> None:  # row 40
    path = write(tmp_path, "t.csv", f"source{mark}target\na{mark}b\n")
    setting = "data.delimiter=" + mark.replace("\t", "\\t")
    assert refusal(path, **options).startswith(
        f"{path}:1: one column found; did you mean --set '{setting}' ?"
    )
    followed = parse(DataConfig, apply_settings({}, [setting])["data"])
    assert [record.fields for record in read_pairs([path], followed, ReadReport())] == [
        {"source": "a", "target": "b"}
    ]
    assert pairs(path, delimiter=mark) == [("a", "b", 2)]


def test_delimiters_by_option(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "source\ttarget\na,x\tb\n")
    assert pairs(path, delimiter=parse(DataConfig, {"delimiter": "\\t"}).delimiter) == [
        ("a,x", "b", 2)
    ]
    assert pairs(write(tmp_path, "v.csv", 'source||target\n"a||x"||b|\n'), delimiter="||") == [
        ("a||x", "b|", 2)
    ]
    blanks = write(tmp_path, "u.csv", "source target\n")
    assert refusal(blanks, delimiter=";").startswith(
        f"{blanks}:1: one column found; pairs need two, with ';' between them"
    )
    with pytest.raises(UsageError, match=r"data\.delimiter must hold no quote"):
        pairs(path, delimiter='"')
    with pytest.raises(UsageError, match=r"data\.delimiter must not be empty, but is ''"):
        parse(DataConfig, {"delimiter": ""}, "data.")


# Cells and quotes


def test_quotes_in_csv(tmp_path: Path) -> None:  # row 35
    content = 'source,target\r\n"a ""q"", b", c \r\n"one\r\ntwo\n\n three","x"\r\n20" screen,"" \r\n'.replace(
        '"" \r', '""\r'
    )
    path = write(tmp_path, "t.csv", content + 'y,"",\r\n'.replace(",\r", "\r") + "last,z")
    report = ReadReport()
    assert pairs(path, report=report) == [
        ('a "q", b', " c ", 2),
        ("one\ntwo\n\n three", "x", 3),
        ("last", "z", 9),
    ]
    assert report.notices() == [f"2 lines skipped: one side of the pair is blank (first: {path}:7)"]


@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.lists(
            st.text(
                st.sampled_from(["a", '"', ",", "\n", " ", "é", "\t"])
                | st.characters(blacklist_categories=["Cs", "Cc"])
            ),
            min_size=2,
            max_size=2,
        )
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_comes_back_with_its_line_numbers(
    tmp_path: Path, rows: list[list[str]], end: str
) -> None:
    rows.append(["x", "y"])
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["source", "target"])
    expected = []
    for row in rows:
        if all(cell.strip() for cell in row):
            expected.append((*row, file.getvalue().count("\n") + 1))
        writer.writerow(row)
    report = ReadReport()
    assert pairs(write(tmp_path, "t.csv", file.getvalue()), report=report) == expected
    assert report.read == len(rows)


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ('a,b\n"open,c\nd,e\n', 3, "the quote opened here is never closed"),
        ('a,b\nx,"open\nd,e\n"f","g"\n', 3, "the quote opened here closes in line 5 before 'f"),
        ('a,b\n"close" d,e\n', 3, "the quote opened here closes before ' d,e'"),
        ('"one\ntwo","open\n', 3, "the quote opened here is never closed"),
        (
            'a,b\n"open,c\n' + "d,e\n" * 100,
            3,
            "the quote opened here is not closed within 200 characters",
        ),
        (
            'a,b\n"open,c\nd,"\ne,f\n',
            3,
            "the row must have 2 cells like the first, but has 1; a quote makes it go on to line 4",
        ),
    ],
)
def test_an_unbalanced_quote_is_named_where_it_opened(
    tmp_path: Path, rows: str, line: int, message: str
) -> None:  # row 33
    path = write(tmp_path, "t.csv", "source,target\n" + rows)
    found = refusal(path, max_line_bytes=200)
    assert found.startswith(f"{path}:{line}: {message}")
    assert "--set data.quoting=false" in found


def test_quotes_in_tsv_are_text(tmp_path: Path) -> None:  # row 34
    path = write(tmp_path, "t.tsv", 'source\ttarget\n"open\t20"\n"a"\t""\n')
    assert pairs(path) == [('"open', '20"', 2), ('"a"', '""', 3)]
    message = refusal(path, quoting=True)
    assert message.startswith(
        f"{path}:2: the row must have 2 cells like the first, but has 1; '\\t' stands in quotes"
    )
    assert "--set data.quoting=false" in message
    assert pairs(write(tmp_path, "t.csv", 'source,target\n"open,20"\n'), quoting=False) == [
        ('"open', '20"', 2)
    ]


@pytest.mark.parametrize(("row", "count"), [("c", 1), ("c,d,e", 3), ("c,d,", 3), ('"c,d"', 1)])
def test_rows_with_another_number_of_cells(tmp_path: Path, row: str, count: int) -> None:  # row 36
    path, report = write(tmp_path, "t.csv", f"source,target\na,b\n{row}\ne,f\n"), ReadReport()
    for policy in ("error", "replace"):
        message = refusal(path, on_bad_line=policy)
        assert message.startswith(
            f"{path}:3: the row must have 2 cells like the first, but has {count}"
        )
        assert "c" in message[message.index("(the row: ") :]
    assert pairs(path, report=report, on_bad_line="skip") == [("a", "b", 2), ("e", "f", 4)]
    assert report.notices()[-1] == f"1 line skipped: wrong number of cells (first: {path}:3)"


def test_bad_bytes_in_a_table_skip_the_whole_row(tmp_path: Path) -> None:
    path, report = write(tmp_path, "t.csv", b'source,target\na,"b\n\xff\nc"\nd,e\n'), ReadReport()
    assert pairs(path, report=report, on_bad_line="skip") == [("d", "e", 5)]
    assert report.notices()[-1] == f"1 line skipped: bad UTF-8 (first: {path}:2)"
    assert pairs(path, on_bad_line="replace")[0] == ("a", "b\n\ufffd\nc", 2)
    assert refusal(path).startswith(f"{path}:3: is not UTF-8")
    head = write(tmp_path, "u.csv", b"source,target\xff\nsource,target\n")
    assert refusal(head, on_bad_line="skip").startswith(
        f"{head}:1: the first row cannot be skipped"
    )


def test_long_cells_are_read_up_to_our_own_limit(tmp_path: Path) -> None:  # row 41
    long = "x" * 500_000
    path = write(tmp_path, "t.csv", f'source,target\n"{long}",b\n')
    assert pairs(path) == [(long, "b", 2)]
    assert f"{path}:2: the line must have at most 400000 bytes" in refusal(
        path, max_line_bytes=400_000
    )


def test_what_spreadsheets_write(tmp_path: Path) -> None:  # row 42
    path, report = (
        write(tmp_path, "t.csv", "\ufeffsep=;\r\nsource;target;\r\na,x;b;\r\n#N/A;c;\r\n;;\r\n"),
        ReadReport(),
    )
    assert pairs(path, report=report) == [("a,x", "b", 3), ("#N/A", "c", 4)]
    notices = report.notices()
    assert notices[0] == f"{path}:1: sep=; is taken as Excel's mark of the delimiter, not as data"
    assert notices[1:] == [
        f"1 line skipped: blank (first: {path}:5)",
        f"1 line kept unchanged: the cell is #N/A, an error of a spreadsheet (first: {path}:4)",
    ]


def test_a_table_of_nothing_is_an_error(tmp_path: Path) -> None:  # rows 11 and 12
    for name, content in (
        ("a.csv", "source,target\n"),
        ("b.csv", "\n\n"),
        ("c.tsv", "source\ttarget\n\ta\n"),
        ("d.jsonl", "\n"),
    ):
        path = write(tmp_path, name, content)
        assert refusal(path).startswith(f"{path}: there are no usable pairs in it (")
    assert "is empty (0 bytes)" in refusal(write(tmp_path, "e.csv", ""))


# JSONL


def test_json_lines(tmp_path: Path) -> None:
    path, report = (
        write(
            tmp_path,
            "t.jsonl",
            '{"id": 1, "input": " a\\n", "output": "ü\\ud83d\\ude00"}\r\n\n{"output": "", "input": "x"}\n',
        ),
        ReadReport(),
    )
    assert pairs(path, report=report) == [(" a\n", "ü😀", 1)]
    assert report.notices()[0].startswith(
        f"{path}: 'input' is taken as source and 'output' as target"
    )
    assert report.skipped == 2


def test_the_form_of_hugging_face(tmp_path: Path) -> None:
    path = write(tmp_path, "t.jsonl", '{"id": "0", "translation": {"de": "eins", "en": "one"}}\n')
    assert pairs(path) == [("one", "eins", 1)]
    assert pairs(path, source="de", target="en") == [("eins", "one", 1)]
    both = write(
        tmp_path, "u.jsonl", '{"src": "a", "tgt": "b", "translation": {"src": "c", "tgt": "d"}}\n'
    )
    assert pairs(both, source="src", target="tgt") == [("a", "b", 1)]
    assert "no column 'fr' for data.target (found: 'de', 'en'" in refusal(
        path, source="de", target="fr"
    )


GOOD = '{"source": "a", "target": "b"}\n'
WRONG_JSON = {
    "43 broken": (GOOD + '{"source": "a", "target": }\n', 2, "is not JSON at column 27: "),
    "43 two": (GOOD + GOOD.strip() + GOOD, 2, "is not JSON at column 31: Extra data"),
    "43 array": (
        f"[{GOOD.strip()}, {GOOD.strip()}]",
        1,
        "is an array; convert it with: jq -c '.[]' FILE",
    ),
    "43 array of lines": (f"[\n{GOOD}]", 1, "is an array; convert it with: jq -c '.[]' FILE"),
    "43 pretty": (
        '{\n  "source": "a"\n}',
        1,
        "is an object over several lines; convert it with: jq -c . FILE",
    ),
    "43 text": (GOOD + '"a"\n', 2, "must be a JSON object, but is a text"),
    "44": (
        GOOD + '{"source": "a", "target": "b", "source": "c"}\n',
        2,
        "the key 'source' stands twice",
    ),
    "44 deep": (
        GOOD + '{"source": "a", "target": "b", "more": [{"x": 1, "x": 2}]}\n',
        2,
        "the key 'x' stands twice",
    ),
    "45 NaN": (GOOD + '{"source": "a", "target": "b", "n": NaN}\n', 2, "NaN is no number in JSON"),
    "45 Infinity": (
        GOOD + '{"source": "a", "target": "b", "n": -Infinity}\n',
        2,
        "-Infinity is no number in JSON",
    ),
    "45 1e999": (
        GOOD + '{"source": "a", "target": "b", "n": 1e999}\n',
        2,
        "the number 1e999 is too large",
    ),
    "46 null": (
        GOOD + '{"source": null, "target": "b"}\n',
        2,
        "'source' must be a text, but is null",
    ),
    "46 number": (
        GOOD + '{"source": "a", "target": 1.5}\n',
        2,
        "'target' must be a text, but is a number",
    ),
    "46 list": (
        GOOD + '{"source": ["a"], "target": "b"}\n',
        2,
        "'source' must be a text, but is a list",
    ),
    "46 bool": (
        GOOD + '{"source": "a", "target": true}\n',
        2,
        "'target' must be a text, but is true or false",
    ),
    "46 missing": (
        GOOD + '{"sorce": "a", "target": "b"}\n',
        2,
        "there is no 'source' in this object",
        "nearest: 'sorce'",
    ),
    "47": (
        GOOD + '{"source": "\\ud800", "target": "b"}\n',
        2,
        "half of a surrogate pair",
        "--set data.on_bad_line=skip",
    ),
    "48 deep": (
        GOOD + '{"source": ' + "[" * 200_000 + "]" * 200_000 + "}\n",
        2,
        "is JSON nested too deeply",
    ),
    "48 int": (
        GOOD + '{"source": "a", "target": "b", "n": ' + "9" * 5000 + "}\n",
        2,
        "a number has 5000 digits",
    ),
}


@pytest.mark.parametrize("row", WRONG_JSON)
def test_wrong_json_names_its_line(tmp_path: Path, row: str) -> None:  # rows 43 to 48
    content, line, *expected = WRONG_JSON[row]
    path, report = write(tmp_path, "t.jsonl", str(content)), ReadReport()
    message = refusal(path, report=report)
    assert message.startswith(f"{path}:{line}: ")
    assert len(message) < 400
    for part in expected:
        assert str(part) in message
    assert (report.read, report.used, report.rejected) == (line, int(str(line)) - 1, 1)


@pytest.mark.parametrize("bad", ["\\ud800", "\\udc00x", "\\u0000"])
def test_half_characters_in_json_are_skipped_or_replaced(
    tmp_path: Path, bad: str
) -> None:  # row 47
    path = write(tmp_path, "t.jsonl", GOOD + f'{{"source": "a", "target": "b{bad}"}}\n')
    skipped, replaced = ReadReport(), ReadReport()
    assert pairs(path, report=skipped, on_bad_line="skip") == [("a", "b", 1)]
    assert skipped.notices()[-1] == f"1 line skipped: lone surrogate or NUL (first: {path}:2)"
    repaired = pairs(path, report=replaced, on_bad_line="replace")[1]
    assert repaired[1].startswith("b\ufffd")
    assert repaired[1].encode().decode() == repaired[1]
    assert replaced.replaced == 1


# Messages, laws, memory


def test_messages_show_no_control_characters(tmp_path: Path) -> None:  # row 32
    path = write(tmp_path, "t.csv", "source,target\n\x1b[31mred\u202e,b,c\n")
    assert refusal(path).endswith(r"(the row: \x1b[31mred\u202e | b | c)")
    assert "\x1b" not in refusal(
        write(tmp_path, "u.csv", "sou\x1brce,x\n1,2\n"), source="source", target="x"
    )


def test_text_that_spells_special_tokens_stays_text(tmp_path: Path) -> None:  # row 31
    assert pairs(write(tmp_path, "t.tsv", "source\ttarget\n<s> </s>\t[MASK]<pad>\n")) == [
        ("<s> </s>", "[MASK]<pad>", 2)
    ]


awkward = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"\t",
            b",",
            b'"',
            b"a",
            b" ",
            b"\xff",
            b"\0",
            b"\r\n",
            b"source",
            b"target",
            b'{"source": "a", "target": "b"}',
        ]
    )
)


@settings(
    deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=awkward.map(b"".join),
    form=st.sampled_from(["tsv", "csv", "jsonl"]),
    policy=st.sampled_from(["error", "skip", "replace"]),
)
@example(content=b"a\tb\n\xff\tc\nd\n\n e\tf", form="tsv", policy="skip")
def test_any_bytes_end_in_records_or_one_error(
    tmp_path: Path, content: bytes, form: str, policy: str
) -> None:
    path, report, used, refused = write(tmp_path, "t", content), ReadReport(), 0, None
    try:
        options = DataConfig(format=form, on_bad_line=policy)  # type: ignore[arg-type]
        for record in read_pairs([path], options, report):
            used += 1
            assert all(text.strip() for text in record.fields.values())
    except DataError as error:
        refused = error
    assert report.used == used
    assert report.read == report.used + report.skipped + report.rejected
    if refused is None and form != "csv":
        header = (
            any("is taken as source" in notice for notice in report.notices()) and form == "tsv"
        )
        assert report.read + header == content.count(b"\n") + (not content.endswith(b"\n"))
    if refused is not None and refused.line is None:
        assert not used


def test_pairs_are_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(b"some words here\tand some there\n" * 1000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_pairs([str(path)], DataConfig(), ReadReport()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 500_000
