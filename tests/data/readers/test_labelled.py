"""Whatever the file, its examples are what stands in it, each knows its line, and nothing is dropped without
being counted."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.class_files import class_names
from seqloom.data.readers.examples import LabelledText
from seqloom.data.readers.labelled import read_labelled
from seqloom.errors import DataError, SeqloomError, UsageError

ROWS = [("a good film", "pos"), ("a bad film", "neg"), ("neither, nor", "pos")]


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(
    *paths: str, report: ReadReport | None = None, how: dict[str, Any] | None = None, **options: Any
) -> list[LabelledText]:
    return list(
        read_labelled(
            paths,
            DataConfig(**options),
            report if report is not None else ReadReport(),
            **(how or {}),
        )
    )


def found(*paths: str, **options: Any) -> list[tuple[str, ...]]:
    """(text, labels...) of each example."""
    return [(one.text, *one.labels) for one in read(*paths, **options)]


def refusal(*paths: str, **options: Any) -> str:
    with pytest.raises(SeqloomError) as caught:
        read(*paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def zipped(folder: Path, name: str, content: dict[str, str]) -> str:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file, text in content.items():
            archive.writestr(file, text)
    return str(folder / name)


# One law for all forms

FORMS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "csv": (["t.csv"], {}),
    "tsv": (["t.tsv"], {}),
    "jsonl": (["t.jsonl"], {}),
    "json": (["t.json"], {"part": "train"}),
    "parquet": (["t.parquet"], {}),
    "numbered": (["n.csv"], {"text": "2", "label": "1"}),
    "fasttext": (["f.txt"], {}),
    "label_first": (["l.txt"], {"format": "label_first"}),
    "beside": (["texts.txt", "labels.txt"], {}),
    "folder": (["texts"], {}),
    "zip": (["texts.zip"], {}),
    "files": (["texts/d.pos.txt", "texts/d.neg.txt"], {"format": "folder"}),
}
WORDS = st.text(alphabet="ab\u00e9\u4f60\u0085 ,;", min_size=1, max_size=12).filter(str.strip)


@settings(deadline=None, max_examples=25)
@given(rows=st.lists(st.tuples(WORDS, st.sampled_from(["pos", "neg"])), min_size=1, max_size=9))
def test_every_form_gives_the_same_examples(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("forms")
    rows = [(text.lstrip(), label) for text, label in rows]
    write(
        folder, "t.csv", "text,label\n" + "".join(f'"{text}",{label}\r\n' for text, label in rows)
    )
    write(folder, "t.tsv", "label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    write(folder, "n.csv", "".join(f'{label},"{text}",7\n' for text, label in rows))
    write(
        folder,
        "t.jsonl",
        "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
    )
    write(folder, "t.json", json.dumps({"test": [], "train": rows}))
    parquet.write_table(
        arrow.table({"label": [label for _, label in rows], "text": [text for text, _ in rows]}),
        folder / "t.parquet",
    )
    write(folder, "f.txt", "".join(f"__label__{label} {text}\n" for text, label in rows))
    write(folder, "l.txt", "".join(f"{label} {text}\n" for text, label in rows))
    write(folder, "texts.txt", "".join(f"{text}\n" for text, _ in rows))
    write(folder, "labels.txt", "\n".join(label for _, label in rows))
    sides = {
        f"d.{label}.txt": "".join(f"{text}\n" for text, other in rows if other == label)
        for label in ("pos", "neg")
    }
    for name, content in sides.items():
        write(folder / "texts", name, content)
    zipped(folder, "texts.zip", {f"texts/{name}": content for name, content in sides.items()})
    for form, (names, options) in FORMS.items():
        report = ReadReport()
        examples = found(*(str(folder / name) for name in names), report=report, **options)
        grouped = form in ("folder", "zip", "files")  # the order is that of the files
        assert (sorted(examples) if grouped else examples) == (sorted(rows) if grouped else rows), (
            form
        )
        assert report.used == report.read == len(rows), form


@settings(deadline=None, max_examples=150)
@given(
    content=st.binary(max_size=60),
    form=st.sampled_from(["csv", "tsv", "jsonl", "json", "fasttext", "label_first", "text"]),
)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, form: str
) -> None:
    path, report = write(tmp_path_factory.mktemp("any"), "x", content), ReadReport()
    for answers in (True, False):
        with suppress(SeqloomError):
            examples = read(path, report=report, format=form, how={"answers": answers})
            assert all(
                example.path == path and len(example.labels) == answers for example in examples
            )


# Tables


def test_an_example_knows_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", 'text,label\n"two\nlines",a\n\nc,b\n')
    assert [(one.text, one.line) for one in read(path)] == [("two\nlines", 2), ("c", 5)]
    lines = write(tmp_path, "l.txt", "\na b\n \nc d\n")
    assert [(one.text, one.line) for one in read(lines, format="label_first")] == [
        ("b", 2),
        ("d", 4),
    ]


def test_several_tables_come_one_after_the_other(tmp_path: Path) -> None:
    one, two = (
        write(tmp_path, "a.csv", "text,label\na,1\n"),
        write(tmp_path, "b.jsonl", '{"label": 2, "text": "b"}\n'),
    )
    assert found(one, two) == [("a", "1"), ("b", "2")]
    pair = write(tmp_path, "c.csv", "premise,hypothesis,label\na,b,1\n")
    assert [one.second for one in read(pair, pair)] == ["b", "b"]
    assert "two texts are not known by name (found: 'text', 'label')" in refusal(pair, one)
    assert "'label'" in refusal(one, pair)  # the first file has one text, and so must the second


@pytest.mark.parametrize(
    ("header", "options", "columns", "guessed"),
    [
        ("text,label", {}, (0, None, 1), ""),
        ("Category,Sentence", {}, (1, None, 0), "Category Sentence"),
        ("id,premise,hypothesis,label", {}, (1, 2, 3), "premise hypothesis"),
        ("label,question1,question2", {}, (1, 2, 0), "question1 question2"),
        ("a,b,c", {"text": "c", "label": "a"}, (2, None, 0), ""),
        ("a,b,c", {"text": "c", "second": "b", "label": "a"}, (2, 1, 0), ""),
        ("text,sentence1,sentence2,label", {"text": "text"}, (0, None, 3), ""),
        ("text,sentence1,sentence2,label", {"text": "sentence1"}, (1, 2, 3), "sentence2"),
        (
            "sentence1,sentence2,label",
            {"how": {"pairs": False}, "text": "sentence2"},
            (1, None, 2),
            "",
        ),
        ("source,target,text,label", {}, (2, None, 3), ""),
        ("source,target,label", {"how": {"pairs": True}}, (0, 1, 2), "source target"),
    ],
)
def test_columns_are_known_by_name(
    tmp_path: Path,
    header: str,
    options: dict[str, Any],
    columns: tuple[int, int | None, int],
    guessed: str,
) -> None:
    path, report = (
        write(
            tmp_path,
            "t.csv",
            header + "\n" + ",".join(f"c{at}" for at in range(header.count(",") + 1)) + "\n",
        ),
        ReadReport(),
    )
    [one] = read(path, report=report, **options)
    cells = [f"c{at}" for at in columns if at is not None]
    assert [one.text, *([one.second] if one.second is not None else []), *one.labels] == cells
    assert [
        name
        for name in header.split(",")
        if any(f"'{name}' is taken" in remark for remark in report.notes)
    ] == guessed.split()


def test_a_name_that_is_just_so_comes_before_one_in_other_case(tmp_path: Path) -> None:
    assert found(write(tmp_path, "t.csv", "Text,text,Label\nno,yes,a\n")) == [("yes", "a")]
    assert found(write(tmp_path, "u.csv", "TEXT,Label\nyes,a\n")) == [("yes", "a")]


def test_columns_that_are_not_known_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "text,airline_sentiment,name\na,b,c\n")
    assert (
        refusal(path)
        == f"{path}:1: the column of the label is not known by name (found: 'text', 'airline_sentiment',"
        " 'name'); say which with --set data.label=NAME"
    )
    assert "there is no column 'lable' for data.label" in refusal(path, label="lable")
    assert found(path, label="airline_sentiment") == [("a", "b")]
    assert "there is no column 'doc' for data.group" in refusal(path, label="name", group="doc")


def test_tables_without_header_have_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", '3,Title,"The text, long"\n4,Other,More\n')
    report = ReadReport()
    assert found(path, report=report, text="2,3", label="1") == [
        ("Title The text, long", "3"),
        ("Other More", "4"),
    ]
    assert report.notes[0].startswith(f"{path}:1: no header; columns are counted from 1")
    assert found(path, text="3", label="3", header=False)[1] == ("More", "More")
    assert "has no header, or one without a name that is known" in refusal(path)
    assert "such as --set data.text=1 --set data.label=2" in refusal(path)
    named = write(tmp_path, "named.csv", "text,label\na,b\n")
    assert "there is no column '1' for data.text (found: 'text', 'label')" in refusal(
        named, text="1", label="2"
    )


def test_texts_in_several_columns_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "title,body,label\nOne,two,x\n")
    assert found(path, text="title,body") == [("One two", "x")]
    odd = write(tmp_path, "o.csv", '"a,b",label\nOne,x\n')
    assert found(odd, text="a,b") == [("One", "x")]


def test_a_row_with_too_many_cells_is_refused(tmp_path: Path) -> None:  # row 57
    path = write(tmp_path, "t.csv", "text,label\na,1\nb,1,2\n")
    assert f"{path}:3: the row must have 2 cells like the first, but has 3" in refusal(path)
    report = ReadReport()
    assert found(path, report=report, on_bad_line="skip") == [("a", "1")]
    assert report.skipped == 1


def test_short_rows_without_header_are_counted(tmp_path: Path) -> None:
    path, report = write(tmp_path, "t.tsv", "g\t1.5\ta\tb\tlicence\ng\t2\tc\td\n"), ReadReport()
    examples = read(path, report=report, text="3", second="4", score="2", how={"number": True})
    assert [(one.text, one.second, one.labels) for one in examples] == [
        ("a", "b", ("1.5",)),
        ("c", "d", ("2",)),
    ]
    assert "1 line kept unchanged: the row has other cells than the first" in report.notices()[1]


def test_group_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "text,label,doc\na,1,x\nb,2,\n")
    assert [one.group for one in read(path, group="doc")] == ["x", None]
    assert read(path)[0].group is None


@pytest.mark.parametrize("value", ["1", "1.5", "true", "7"])
def test_labels_of_json_may_be_no_texts(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, "t.jsonl", f'{{"text": "a", "label": {value}}}\n')
    assert found(path) == [("a", value)]


# What is wrong


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_label_is_refused(tmp_path: Path, empty: str) -> None:  # row 55
    path = write(tmp_path, "t.csv", f"text,label\na,b\nc,{empty}\n")
    assert refusal(path).startswith(f"{path}:3: the label is empty")
    report = ReadReport()
    assert found(path, report=report, on_bad_line="skip") == [("a", "b")]
    assert report.notices() == [f"1 line skipped: the label is empty (first: {path}:3)"]
    null = write(tmp_path, "n.jsonl", '{"text": "a", "label": null}\n')
    assert "n.jsonl:1: the label is empty" in refusal(null)


def test_blank_texts_are_counted(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "t.csv", "premise,hypothesis,label\na,b,1\n ,,1\nc,,1\n"),
        ReadReport(),
    )
    assert len(read(path, report=report)) == 1
    assert {reason: count.number for reason, count in report.skips.items()} == {
        "the text is blank": 1,
        "one side of the pair is blank": 1,
    }
    blank = write(tmp_path, "b.csv", "text,label\n ,1\n")
    assert "there are no usable examples in it (rows read: 1" in refusal(blank)


def test_numbers_must_be_numbers(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "t.csv", "sentence1,sentence2,score\na,b,1.0\nc,d,\ne,f,5\n"),
        ReadReport(),
    )
    assert [one.labels for one in read(path, report=report, how={"number": True})] == [
        ("1.0",),
        ("5",),
    ]
    assert report.skips["the score is blank"].number == 1
    for wrong in ("four", "nan", "inf", "1,5", "1_5"):
        assert ":1: the score must be a number" in refusal(
            write(tmp_path, "w.tsv", f"a\tb\t{wrong}\n"), how={"number": True, "pairs": True}
        )


def test_what_is_no_labelled_text_is_refused(tmp_path: Path) -> None:
    plain = write(tmp_path, "p.txt", "a b\n")
    assert (
        "plain text has no labels: say where they are with --set data.format=label_first"
        in refusal(plain)
    )
    packed = write(tmp_path, "p.csv.bz2", bz2.compress(b"text,label\na,b\n"))
    assert "must be text, but is bzip2 data (unpack it with bzip2 -d)" in refusal(packed)
    with pytest.raises(UsageError, match="which is for words with tags"):
        read(plain, format="conll")
    with pytest.raises(UsageError, match=r"data\.label names a column"):
        read(plain, format="label_first", label="x")
    with pytest.raises(UsageError, match="standard input"):
        read("-")
    assert "there is no such file; near it: p.txt" in refusal(str(tmp_path / "q.txt"))
    os.mkfifo(tmp_path / "pipe")
    assert "must be a file, for it is read several times" in refusal(str(tmp_path / "pipe"))


# Lines that begin with labels


def test_fasttext_lines(tmp_path: Path) -> None:
    path, report = (
        write(tmp_path, "f.txt", "__label__a  __label__b\ttext __label__c\n__label__a other\n"),
        ReadReport(),
    )
    assert "a text must have one label, but has 2" in refusal(path)
    assert found(path, report=report, label_separator=" ") == [
        ("text __label__c", "a", "b"),
        ("other", "a"),
    ]
    assert "read as data.format=fasttext" in report.notes[0]
    assert found(write(tmp_path, "bom.txt", "\ufeff\n__label__a one\n")) == [("one", "a")]
    none = write(tmp_path, "n.txt", "__label__a b\nno label\n")
    assert "n.txt:2: the line must begin with __label__NAME" in refusal(none)
    assert found(none, label_separator=" ")[1] == ("no label",)


def test_labels_end_before(tmp_path: Path) -> None:
    path = write(tmp_path, "l.txt", "NUM:dist How far ?\nLOC What ?\n")
    assert found(path, format="label_first", label_until=":") == [
        ("How far ?", "NUM"),
        ("What ?", "LOC"),
    ]
    assert "l.txt:1: the label is empty" in refusal(
        path.replace("l.txt", "l.txt"), format="label_first", label_until="N"
    )


def test_several_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "text,label\na,x; y\nb,\nc,y;y\n")
    assert found(path, label_separator=";") == [("a", "x", "y"), ("b",), ("c", "y")]
    lists = write(
        tmp_path,
        "t.jsonl",
        '{"text": "a", "labels": ["x", "y"]}\n{"text": "b", "labels": []}\n{"text": "c", "labels": ["x"]}\n',
    )
    assert found(lists, label_separator=";") == [("a", "x", "y"), ("b",), ("c", "x")]
    assert (
        "t.jsonl:1: a text must have one label, but has 2; where texts may have several: --set"
        " data.label_separator=," in refusal(lists)
    )


# Labels in a file of their own


def test_labels_beside_texts_take_the_names_of_a_mapping(tmp_path: Path) -> None:
    texts, labels = (
        write(tmp_path, "x_text.txt", "a \nb\n\nd\n"),
        write(tmp_path, "x_labels.txt", "1\n0\n0\n1\n"),
    )
    report = ReadReport()
    assert found(texts, labels) == [("a ", "1"), ("b", "0"), ("d", "1")]
    write(tmp_path, "mapping.txt", "0\tnegative\n1\tvery positive")
    assert found(texts, labels, report=report) == [
        ("a ", "very positive"),
        ("b", "negative"),
        ("d", "very positive"),
    ]
    assert (report.used, report.skipped) == (3, 1)
    write(tmp_path, "x_labels.txt", "1\n2\n0\n1\n")
    # row 57
    assert "x_labels.txt:2: the label must be one of those of mapping.txt" in refusal(texts, labels)
    write(tmp_path, "x_labels.txt", "1\n\n0\n1\n")
    assert "x_labels.txt:2: the label is empty" in refusal(texts, labels)
    write(tmp_path, "mapping.txt", "0\tnegative\n1\tnegative")
    assert "mapping.txt:2: each line must be a number and its name, each once" in refusal(
        texts, labels
    )


@pytest.mark.parametrize(("texts", "labels", "shorter", "counts"), [(3, 2, "l", 3), (2, 5, "t", 5)])
def test_texts_and_labels_must_line_up(
    tmp_path: Path, texts: int, labels: int, shorter: str, counts: int
) -> None:
    paths = write(tmp_path, "t", "a\n" * texts), write(tmp_path, "l", "1\n" * labels)
    message = refusal(*paths)
    assert message.startswith(f"{tmp_path}/{shorter}:{min(texts, labels)}: ends here")
    assert f"has {counts} lines" in message


# A file or a folder for each class


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["rt-polarity.pos", "rt-polarity.neg"], ["pos", "neg"]),
        (["Arabic.txt", "Czech.txt"], ["Arabic", "Czech"]),
        (["plot.tok.gt9.5000", "quote.tok.gt9.5000"], ["plot", "quote"]),
        (["a.b.x.txt.gz", "a.c.x.txt.gz"], ["b", "c"]),
        (["a.txt"], ["a"]),
        (["a", "a.b"], ["a", "a.b"]),
        (["pos", "neg"], ["pos", "neg"]),
    ],
)
def test_a_class_is_what_names_have_not_in_common(names: list[str], classes: list[str]) -> None:
    assert class_names(names) == classes


@pytest.mark.parametrize("archive", [True, False])
def test_a_folder_for_each_class(tmp_path: Path, archive: bool) -> None:
    content = {
        "neg/b.txt": "bad\nfilm\n",
        "neg/a.txt": " worse ",
        "pos/a": "good",
        "README": "about",
        ".git/x": "no",
        "pos/none": "\n",
    }
    if archive:
        path = zipped(
            tmp_path, "t.zip", {f"reviews/{name}": text for name, text in content.items()}
        )
    else:
        path = str(tmp_path)
        for name, text in content.items():
            write(tmp_path, name, text)
    report = ReadReport()
    examples = read(path, report=report)
    assert [(one.text, *one.labels) for one in examples] == [
        ("worse", "neg"),
        ("bad\nfilm", "neg"),
        ("good", "pos"),
    ]
    assert examples[1].path.endswith("neg/b.txt")
    assert report.notes == [f"{path}: left out, for they hold no texts: README"]
    assert report.skipped == 1


def test_folders_of_one_label_may_lie_deeper_but_parts_are_no_labels(tmp_path: Path) -> None:
    for name in ("news/1990/a", "news/1991/b", "mail/c"):
        write(tmp_path / "one", name, "text")
    assert [labels for _, *labels in found(str(tmp_path / "one"))] == [["mail"], ["news"], ["news"]]
    for name in ("train/pos/a", "train/neg/b", "test/pos/c", "test/neg/d"):
        write(tmp_path / "two", name, "text")
    assert (
        "hold folders of the same names (neg, pos); name one of them instead, such as test"
        in refusal(str(tmp_path / "two"))
    )
    assert found(str(tmp_path / "two" / "train")) == [("text", "neg"), ("text", "pos")]


def test_folders_that_hold_no_classes_are_refused(tmp_path: Path) -> None:
    assert "must hold a file or a folder for each class, but holds no file" in refusal(
        str(tmp_path)
    )
    write(tmp_path, "train.csv", "text,label\n")
    assert "train.csv: a table stands among the files of classes" in refusal(str(tmp_path))
    assert "must be a folder, a .zip, or one of several files" in refusal(
        str(tmp_path / "train.csv"), format="folder"
    )
    broken = write(tmp_path, "b.zip", "PK\x03\x04 and no more")
    assert "b.zip: must be a whole ZIP archive" in refusal(broken)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = Path(
        zipped(tmp_path, "t.zip", {"a.pos": "good film\n" * 50, "a.neg": "bad film\n" * 50})
    )
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    assert "the archive is damaged" in refusal(str(path))


def test_the_encoding_is_that_of_all_readers(tmp_path: Path) -> None:
    write(tmp_path, "d/a.pos", b"caf\xe9\nplain\n")
    write(tmp_path, "d/a.neg", b"no\n")
    path, report = str(tmp_path / "d"), ReadReport()
    assert "a.pos:1: is not UTF-8: 0xE9" in refusal(path)
    assert found(path, encoding="latin-1")[1] == ("caf\u00e9", "pos")
    assert found(path, report=report, on_bad_line="skip") == [("no", "neg"), ("plain", "pos")]
    assert report.skipped == 1


# JSON of one value


def test_parts_of_a_json_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "d.json",
        json.dumps({"train": [["a", "x"], ["b", "y"]], "oos_train": [["c", "oos"]], "n": 3}),
    )
    assert found(path, part="train") == [("a", "x"), ("b", "y")]
    assert found(path, part="train,oos_train")[2] == ("c", "oos")
    assert (
        "has several parts ('train', 'oos_train'); say which to read, such as --set data.part=train"
        in refusal(path)
    )
    assert "there is no part 'dev' for data.part (found: 'train', 'oos_train')" in refusal(
        path, part="dev"
    )
    assert [one.line for one in read(path, part="train")] == [1, 2]
    rows = write(
        tmp_path, "rows.json", json.dumps([{"text": "a", "label": 1}, {"text": "b", "label": 2}])
    )
    assert found(rows) == [("a", "1"), ("b", "2")]
    assert "rows.json:1: is not JSON at column" in refusal(write(tmp_path, "rows.json", "[{]"))


def test_labels_as_keys_of_a_json_file(tmp_path: Path) -> None:
    spoken = {
        "Weather": [{"data": [{"text": "will it "}, {"text": "rain", "entity": "what"}]}],
        "Music": ["play", "stop"],
    }
    path = tmp_path / "s.json.gz"
    path.write_bytes(gzip.compress(json.dumps(spoken, indent=1).encode()))
    assert found(str(path)) == [("will it rain", "Weather"), ("play", "Music"), ("stop", "Music")]
    latin = write(
        tmp_path, "l.json", json.dumps({"a": ["caf\u00e9"]}, ensure_ascii=False).encode("latin-1")
    )
    assert "is not UTF-8" in refusal(latin)
    assert found(latin, encoding="latin-1") == [("caf\u00e9", "a")]
    report = ReadReport()
    assert found(latin, report=report, on_bad_line="replace") == [("caf\ufffd", "a")]
    assert report.replaced == 1


# Without answers


def test_without_answers_labels_need_not_be_there(tmp_path: Path) -> None:
    how = {"answers": False}
    plain, report = write(tmp_path, "p.txt", "a\n\nb, c"), ReadReport()
    assert found(plain, how=how, report=report) == [("a",), ("",), ("b, c",)]
    assert (report.used, report.read) == (3, 3)
    assert found(write(tmp_path, "t.csv", "id,text\n1,a\n2,\n"), how=how) == [("a",), ("",)]
    assert found(write(tmp_path, "l.csv", "text,label\na,\n"), how=how, label="label") == [("a",)]
    assert found(write(tmp_path, "one.csv", "only a text\nanother\n"), how=how) == [
        ("only a text",),
        ("another",),
    ]
    pair = read(write(tmp_path, "pair.tsv", "a\tb\n"), how=how | {"pairs": True})
    assert [(one.text, one.second) for one in pair] == [("a", "b")]
    assert found(write(tmp_path, "f.txt", "__label__x a\n"), how=how, format="fasttext") == [("a",)]
    assert found(write(tmp_path, "empty.txt", ""), how=how) == []


def test_a_wrong_row_ends_the_reading_and_is_counted(tmp_path: Path) -> None:
    path, report = write(tmp_path, "t.csv", "text,label\na,1\nb,2\nc\n"), ReadReport()
    with pytest.raises(DataError):
        read(path, report=report)
    assert (report.used, report.rejected, report.read) == (2, 1, 3)


def test_labels_of_parquet_may_be_no_texts(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def path(**columns: Any) -> str:
        parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
        return str(tmp_path / "t.parquet")

    assert found(path(text=["a", "b"], label=[1, 0])) == [("a", "1"), ("b", "0")]
    assert found(path(text=["a", "b"], label=[True, False])) == [("a", "true"), ("b", "false")]
    assert "t.parquet:2: the label is empty" in refusal(path(text=["a", "b"], label=[1, None]))
    assert found(path(text=["a", "b"], label=[["x", "y"], []]), label_separator=",") == [
        ("a", "x", "y"),
        ("b",),
    ]
    assert "must be a text, a number or a list of such, but is an object" in refusal(
        path(text=["a"], label=[{"x": 1}])
    )
    assert "t.parquet:1: 'text' must be a text, but is a number" in refusal(
        path(text=[1], label=["x"])
    )
    report = ReadReport()
    assert found(path(text=["a", None], label=["x", "y"]), report=report) == [("a", "x")]
    assert report.skips["the text is blank"].number == 1


def test_what_is_odd_in_texts_is_counted(tmp_path: Path) -> None:
    rows = ['"two\nlines",a', "a &amp; b,a", "costs #36;10,b", "R&D; #1,b", "C#3; fine,b"]
    path, report = write(tmp_path, "t.csv", "text,label\n" + "\n".join(rows) + "\n"), ReadReport()
    assert len(read(path, report=report)) == len(rows)
    assert report.notices() == [
        f"1 line kept unchanged: a line break inside a text (first: {path}:2)",
        f"2 lines kept unchanged: HTML entities such as &amp; in a text (first: {path}:4)",
    ]


def test_labels_that_mean_none_are_left_out(tmp_path: Path) -> None:
    csv = write(tmp_path, "t.csv", "text,label\na,x\nb,-\nc,y\nd,n/a\n")
    numbers = [{"text": "a", "label": 0}, {"text": "b", "label": -1}, {"text": "c", "label": 1}]
    jsonl = write(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in numbers))
    beside = [write(tmp_path, "t.txt", "a\nb\nc\n"), write(tmp_path, "l.txt", "x\n-\ny\n")]
    pairs = write(tmp_path, "p.csv", "sentence1,sentence2,score\na,b,1\nc,d,-\n")
    for paths, none, left in (
        ([csv], "-, n/a", ["x", "y"]),
        ([jsonl], "-1", ["0", "1"]),
        (beside, "-", ["x", "y"]),
    ):
        report = ReadReport()
        assert [one.labels[0] for one in read(*paths, report=report, no_label=none)] == left
        assert report.skipped == 1 + (paths == [csv])
    how = {"pairs": True, "number": True}
    assert [one.labels for one in read(pairs, how=how, no_label="-")] == [("1",)]


def test_blanks_after_commas(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", 'text, label\n"a, b", x\nc, "y ""z"""\n')
    report = ReadReport()
    assert found(path, report=report) == [("a, b", "x"), ("c", 'y "z"')]
    assert "a blank follows each delimiter of the first line" in report.notes[0]
    assert found(write(tmp_path, "n.csv", "text,label\na, x\nb, y\n")) == [("a", " x"), ("b", " y")]
    quoted = write(tmp_path, "q.csv", 'text,label\n"a", "x, y"\nb,y\n')
    assert "--set data.skip_initial_space=true" in refusal(quoted)
    assert found(quoted, skip_initial_space=True) == [("a", "x, y"), ("b", "y")]
    kept = found(
        write(tmp_path, "k.csv", "text, label\na, x\n"), skip_initial_space=False, label=" label"
    )
    assert kept == [("a", " x")]


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    content = "text,label\na,x\n" + "b" * 100 + ",y\nc,y\n"
    path, report = write(tmp_path, "t.csv", content), ReadReport()
    assert "t.csv:3: the line must have at most 50 bytes" in refusal(path, max_line_bytes=50)
    assert found(path, report=report, max_line_bytes=50, on_bad_line="skip") == [
        ("a", "x"),
        ("c", "y"),
    ]
    assert report.skips["line of more than 50 bytes"].number == 1
    wide = write(tmp_path, "w.csv", content.encode("utf-16"))
    options = {"max_line_bytes": 60, "on_bad_line": "skip", "encoding": "utf-16"}
    assert found(wide, **options) == [("a", "x"), ("c", "y")]


# Lists that are written otherwise


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("l.csv", "text,label\na,\"['x', 'y']\"\nb,['z']\n", "l.csv:2: labels must be separated"),
        ("l.jsonl", '{"text": "a", "label": [0, 1, 0]}\n', "a 0 or 1 for each label"),
        ("l.tsv", "text\tlabel\na\t0,0,1\n", "a 0 or 1 for each label"),
    ],
)
def test_several_labels_are_given_by_name(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    assert said in refusal(write(tmp_path, name, content), label_separator=",")


def test_json_may_hold_a_list_for_each_column(tmp_path: Path) -> None:
    """Before, the names of the columns became two classes."""
    columns = {"text": ["a", "b"], "label": ["x", "y"], "id": [1, 2]}
    assert found(write(tmp_path, "c.json", json.dumps(columns))) == [("a", "x"), ("b", "y")]
    columns["id"] = [1]
    said = "must have one length, but have 'text': 2, 'label': 2, 'id': 1"
    assert said in refusal(write(tmp_path, "d.json", json.dumps(columns)))
