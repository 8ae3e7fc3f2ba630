"""Bad input through the command line: every row ends in one line that a person can act on, or is handled and
counted.

The numbers are the rows of the catalogue of bad inputs that the project was designed against.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHECK = ("check", "translation")
TARGETS = b"eins\nzwei\ndrei\n"
JSON = '{"source": "a b", "target": "c d"}\n'


class Refused(NamedTuple):
    row: int
    name: str
    """What is wrong, for the name of the test."""
    files: dict[str, bytes]
    """Name -> content; the names are the data of the command."""
    message: str
    """A pattern of the error, which begins with the file and the line where there is one."""
    words: tuple[str, ...] = ()
    """More of the command line."""


def parallel(row: int, name: str, source: bytes, message: str, *words: str) -> Refused:
    return Refused(row, name, {"a.en": source, "a.de": TARGETS}, message, words)


def table(
    row: int, name: str, content: str | bytes, message: str, *words: str, kind: str = "csv"
) -> Refused:
    return Refused(
        row,
        name,
        {f"t.{kind}": content.encode() if isinstance(content, str) else content},
        message,
        words,
    )


def lines(row: int, name: str, content: str, message: str, *words: str) -> Refused:
    return table(row, name, content, message, *words, kind="jsonl")


REFUSED = [
    parallel(
        3,
        "UTF-16 with mark",
        "one\ntwo\nthree\n".encode("utf-16"),
        "a.en:1: looks like UTF-16.*data.encoding=utf-16",
    ),
    parallel(
        3,
        "UTF-32 with mark",
        "one\ntwo\nthree\n".encode("utf-32"),
        "a.en:1: looks like UTF-32.*data.encoding=utf-32",
    ),
    parallel(
        4,
        "UTF-16 without mark",
        "one\ntwo\nthree\n".encode("utf-16-le"),
        "a.en:1: looks like UTF-16.*data.encoding=utf-16",
    ),
    parallel(
        5,
        "Latin-1",
        b"one\nt\xe9\nthree\n",
        "a.en:2: is not UTF-8: 0xE9 at byte 5 .*data.encoding=latin-1",
    ),
    parallel(
        6,
        "cut inside a character",
        b"one\ntwo\nthr\xc3",
        "a.en:3: the file ends inside a character .*download",
    ),
    parallel(7, "overlong", b"one\n\xc0\xaf\nthree\n", "a.en:2: is not UTF-8: 0xC0 at byte 4"),
    parallel(
        7, "surrogates", b"one\n\xed\xa0\x80\nthree\n", "a.en:2: is not UTF-8: 0xED at byte 4"
    ),
    parallel(8, "NUL", b"one\ntw\0o\nthree\n", "a.en:2: holds a NUL .*data.on_bad_line=skip"),
    parallel(
        9,
        "zeros at the end",
        b"one\ntwo\n" + bytes(4096),
        "a.en:3: the last 4096 bytes are zero.*fetch it again",
    ),
    parallel(
        10, "gzip", gzip.compress(b"one\n"), "a.en:1: must be text, but is gzip data .*name it .gz"
    ),
    parallel(10, "zip", b"PK\x03\x04rest", "a.en:1: must be text, but is a ZIP archive.*unpack it"),
    parallel(10, "PDF", b"%PDF-1.7\n", "a.en:1: must be text, but is a PDF document.*plain text"),
    parallel(
        10, "zstd", b"\x28\xb5\x2f\xfdrest", "a.en:1: must be text, but is zstd data .*zstd -d"
    ),
    parallel(11, "empty", b"", "a.en: must hold text, but is empty"),
    Refused(
        12,
        "blank",
        {"a.en": b"\n \n\n", "a.de": b"\n\n\t\n"},
        "a.en: there are no usable pairs in it .*rows read: 3",
    ),
    parallel(
        17,
        "a line of 1.1 MB",
        b"one\n" + b"x" * 1_100_000,
        "a.en:2: the line must have at most 1000000 bytes.*data.max_line_bytes",
    ),
    parallel(
        17,
        "a line over the limit",
        b"one\ntwo\nthirteen\n",
        "a.en:3: .*at most 5 bytes",
        "--set",
        "data.max_line_bytes=5",
    ),
    Refused(
        20, "missing", {"a.de": TARGETS}, "a.dee: there is no such file; near it: a.de", ("a.dee",)
    ),
    Refused(
        20,
        "a folder",
        {"a.de": TARGETS},
        ".*: must be a file, but is a folder; name a file in it",
        (".",),
    ),
    Refused(
        20,
        "a device",
        {"a.de": TARGETS},
        "/dev/null: must be a regular file, but is a device",
        ("/dev/null",),
    ),
    Refused(20, "a pipe", {"a.de": TARGETS}, "pipe: must be a file, .*but is a pipe", ("pipe",)),
    table(
        32,
        "ANSI in a row",
        "source,target\na,\x1b[31mb,c\n",
        r"t.csv:2: the row must have 2 cells .*\\x1b\[31mb",
    ),
    table(
        33,
        "open quote",
        'source,target\na,b\n"c,d\ne,f\n',
        "t.csv:3: the quote opened here is never closed.*data.quoting=false",
    ),
    table(
        36,
        "too many cells",
        "source,target\na,b\nc,d,e\n",
        r"t.csv:3: the row must have 2 cells .*has 3; .*=skip \(the row: c \| d \| e\)",
    ),
    table(
        36,
        "too few cells",
        "source,target\na,b\nc\n",
        "t.csv:3: the row must have 2 cells .*has 1; ",
    ),
    table(
        37,
        "a column twice",
        "source,target,source\na,b,c\n",
        "t.csv:1: .*'source' stands twice; rename",
    ),
    table(
        38,
        "no such column",
        "Text ,out\na,b\n",
        "t.csv:1: there is no column 'text' .*'Text ', 'out'; nearest: 'Text '",
        "--set=data.source=text",
    ),
    lines(
        43,
        "broken",
        JSON + '{"source": "a", \n',
        "t.jsonl:2: is not JSON at column 1[67]: .*one whole object",
    ),
    lines(
        43,
        "an array",
        '[{"source": "a", "target": "b"}]\n',
        "t.jsonl:1: must be one JSON object a line, but is an array; .*jq -c",
    ),
    lines(
        43,
        "printed prettily",
        '{\n  "source": "a",\n  "target": "b"\n}\n',
        "t.jsonl:1: .*an object over several lines; .*jq -c",
    ),
    lines(
        44,
        "a key twice",
        JSON + '{"source": "a", "source": "b", "target": "c"}\n',
        "t.jsonl:2: .*the key 'source' stands twice",
    ),
    lines(45, "NaN", JSON + '{"source": "a", "target": NaN}\n', "t.jsonl:2: .*NaN is no number"),
    lines(
        45,
        "Infinity",
        JSON + '{"source": "a", "target": Infinity}\n',
        "t.jsonl:2: .*Infinity is no number",
    ),
    lines(
        45, "1e999", JSON + '{"source": "a", "target": 1e999}\n', "t.jsonl:2: .*1e999 is too large"
    ),
    lines(
        46,
        "null",
        JSON + '{"source": "a", "target": null}\n',
        "t.jsonl:2: 'target' must be a text, but is null",
    ),
    lines(
        46,
        "a number",
        JSON + '{"source": 7, "target": "b"}\n',
        "t.jsonl:2: 'source' must be a text, but is a number",
    ),
    lines(
        46,
        "a list",
        JSON + '{"source": ["a"], "target": "b"}\n',
        "t.jsonl:2: 'source' must be a text, but is a list",
    ),
    lines(
        47,
        "half a surrogate",
        JSON + '{"source": "a\\ud800", "target": "b"}\n',
        "t.jsonl:2: .*half of a surrogate pair.*=skip",
    ),
    lines(
        48,
        "nested deeply",
        JSON + '{"source": ' + "[" * 200_000 + "\n",
        "t.jsonl:2: is JSON nested too deeply",
    ),
    lines(
        48,
        "5,000 digits",
        JSON + f'{{"source": "a", "target": {"7" * 5000}}}\n',
        "t.jsonl:2: .*a number has 5000 digits",
    ),
    parallel(
        50,
        "unequal",
        b"one\n\nthree\nfour\nfive\n",
        r"a.de:3: ends here, .*a.en has 5, .*a.de has 3; the first suspicious line is \S*a.en:2",
    ),
    lines(
        66,
        "vocabulary too small",
        JSON * 3,
        "the vocabulary must have at least 272 entries .*but 10 were",
        "--set=data.vocabulary=10",
    ),
    lines(
        66,
        "too small for the characters",
        JSON * 3,
        ".*at least 21 entries",
        "--set=data.vocabulary=20",
        "--set=data.tokenizer=characters",
    ),
    lines(
        68,
        "a setting that is none",
        JSON,
        ".*did you mean train.learning_rate",
        "--set",
        "train.lerning_rate=1",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{case.row}-{case.name}" for case in REFUSED])
def test_is_refused_in_one_line(
    case: Refused, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "pipe" in case.words:
        os.mkfifo("pipe")
    for name, content in case.files.items():
        Path(name).write_bytes(content)
    ran = command(*CHECK, *case.files, *case.words, "--json")
    *notices, line = ran.err.splitlines()
    assert re.match(f"seqloom: {case.message}", line), line
    # a guess is said, whatever comes after it
    assert all(re.search("is taken as source and|no header", notice) for notice in notices)
    assert (ran.code, ran.out) == (2, "")
    assert line.isprintable()


def checked(command: Any, *words: object) -> dict[str, Any]:
    """The report of a check that goes through."""
    ran = command(*CHECK, *words, "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["errors"] == []
    assert isinstance(report, dict)
    for measured in ("seconds_a_step", "minutes_without_validations"):
        report["training"].pop(measured, None)
    return report


def write(folder: Path, source: bytes, target: bytes = TARGETS) -> tuple[Path, Path]:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return folder / "a.en", folder / "a.de"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(b"\xef\xbb\xbfone\ntwo\nthree\n", b"\xef\xbb\xbf" + TARGETS, id="1-BOM"),
        pytest.param(b"one\ntwo\nthree", TARGETS[:-1], id="13-no newline at the end"),
        pytest.param(b"one\r\ntwo\r\nthree\r\n", TARGETS.replace(b"\n", b"\r\n"), id="14-CRLF"),
        pytest.param(b"one\r\ntwo\nthree", TARGETS, id="15-mixed line ends"),
    ],
)
def test_reads_as_if_it_were_plain(
    source: bytes, target: bytes, command: Any, tmp_path: Path
) -> None:
    plain = checked(
        command, *write(tmp_path, b"one\ntwo\nthree\n"), "--set=data.tokenizer=characters"
    )
    assert (
        checked(command, *write(tmp_path, source, target), "--set=data.tokenizer=characters")
        == plain
    )
    assert plain["splits"]["train"] == {"read": 3, "used": 3, "skipped": 0, "repaired": 0}


def test_10_gzip_by_name_is_read(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(JSON.encode() * 3))
    assert checked(command, tmp_path / "t.jsonl.gz")["splits"]["train"]["used"] == 3


ODD_TEXT = "one\x0bx\x0cx\x1cx\x1dx\x1ex\x85x\u2028x\u2029x\n"


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        pytest.param("one\n\ufefftwo\nthree\n", "U+FEFF", id="2-BOM in the middle"),
        pytest.param("one\ntwo\rx\nthree\n", "a lone carriage return", id="15-lone CR"),
        pytest.param(
            "zero\n" + ODD_TEXT + "three\n", "source: line or page break", id="16-other line ends"
        ),
        pytest.param(
            "zero\n\x1b[31mred\x1b[0m\nthree\n", "source: control character", id="32-ANSI"
        ),
        pytest.param("zero\na\u202eb\nthree\n", "source: mark of writing direction", id="32-bidi"),
    ],
)
def test_is_kept_and_counted(source: str, finding: str, command: Any, tmp_path: Path) -> None:
    report = checked(command, *write(tmp_path, source.encode()))
    assert report["splits"]["train"]["used"] == 3
    (found,) = (one for one in report["findings"] if finding in one["what"])
    assert (found["number"], found["first"]) == (1, f"{tmp_path}/a.en:2")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", {"read": 3, "used": 2, "skipped": 1, "repaired": 0}),
        ("replace", {"read": 3, "used": 3, "skipped": 0, "repaired": 1}),
    ],
)
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"t\xe9", id="5-Latin-1"),
        pytest.param(b"\xed\xa0\x80", id="7-surrogates"),
        pytest.param(b"t\0o", id="8-NUL"),
    ],
)
def test_goes_by_policy(
    bad: bytes, policy: str, expected: dict[str, int], command: Any, tmp_path: Path
) -> None:
    report = checked(
        command, *write(tmp_path, b"one\n" + bad + b"\nthree\n"), f"--set=data.on_bad_line={policy}"
    )
    assert report["splits"]["train"] == expected
    assert report["findings"][0]["first"] == f"{tmp_path}/a.en:2"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        pytest.param(
            b"one\ntwo\nthree\n",
            [],
            "validation must hold other pairs than train",
            id="the training data again",
        ),
        pytest.param(
            b"one\n\n\n",
            [],
            "train must have at least 2 pairs, but has 1 (rows read: 3)",
            id="one pair",
        ),
        pytest.param(
            b"one\ntwo\nthree\n", ["--set=data.max_length=1"], "but cuts 6 of 6; raise it", id="cut"
        ),
    ],
)
def test_data_that_no_training_should_have_fails_the_check(
    source: bytes, options: list[str], message: str, command: Any, tmp_path: Path
) -> None:
    files = write(tmp_path, source)
    (tmp_path / "v.jsonl").write_text(JSON)
    validation = files if message.startswith("validation") else [tmp_path / "v.jsonl"]
    words = (
        *CHECK,
        *files,
        "--validation",
        *validation,
        "--set=data.tokenizer=characters",
        *options,
    )
    ran = command(*words)
    assert ran.code == 1
    (line,) = (line for line in ran.out.splitlines() if line.startswith("error: "))
    assert message in line
    told = command(*words, "--json")
    assert told.code == 1
    assert [f"error: {error}" for error in told.json["errors"]] == [line]


def test_36_rows_of_another_width_are_skipped_by_policy(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("source,target\na,b\nc,d,e\nf,g\n")
    report = checked(command, tmp_path / "t.csv", "--set=data.on_bad_line=skip")
    assert report["splits"]["train"] == {"read": 3, "used": 2, "skipped": 1, "repaired": 0}
    assert report["findings"][0] == {
        "what": "train, skipped: wrong number of cells",
        "number": 1,
        "first": f"{tmp_path}/t.csv:3",
        "advice": "",
    }


def test_34_quotes_in_tsv_are_text(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('source\ttarget\na 20" screen\tx\n"b\ty\n')
    report = checked(command, tmp_path / "t.tsv", "--set=data.tokenizer=characters")
    assert report["splits"]["train"]["used"] == 2
    assert report["lengths"]["words"]["train source"]["max"] == 3


def test_35_lines_in_cells_keep_the_numbers_right(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('source,target\n"a\nb\nc",d\ne\tf,g\nh,i\n')
    report = checked(command, tmp_path / "t.csv")
    firsts = {one["what"]: one["first"] for one in report["findings"]}
    assert firsts["train source: line or page break"] == f"{tmp_path}/t.csv:2"
    assert firsts["train source: tab"] == f"{tmp_path}/t.csv:5"


def test_51_a_pair_with_an_empty_side_is_skipped_on_both(command: Any, tmp_path: Path) -> None:
    report = checked(command, *write(tmp_path, b"one\n \nthree\n"))
    assert report["splits"]["train"] == {"read": 3, "used": 2, "skipped": 1, "repaired": 0}
    assert report["findings"][0]["first"] == f"{tmp_path}/a.en:2"


SPELLED = "<s> </s> <pad> <unk> [MASK]"


def test_31_text_that_spells_a_special_token_stays_text(
    command: Any, trained: Path, tmp_path: Path
) -> None:
    for kind in ("bpe", "bytes", "characters", "words"):
        report = checked(
            command, *write(tmp_path, f"{SPELLED}\n".encode() * 3), f"--set=data.tokenizer={kind}"
        )
        for row in report["first_batch"]:
            assert (
                row["source"].count("</s>")
                == row["targets"].count("</s>")
                == row["inputs"].count("<s>")
                == 1
            )
            assert "".join(row["source"]).replace(" ", "") == SPELLED.replace(" ", "") + "</s>"
    (tmp_path / "in.txt").write_text(f"{SPELLED}\na b\n")
    assert command("predict", trained, tmp_path / "in.txt").out.count("\n") == 2


def test_32_control_characters_reach_no_terminal(
    command: Any, trained: Path, tmp_path: Path
) -> None:
    files = write(tmp_path, b"\x1b[31mred\x1b[0m\ntwo\nthree\n", "r\u202eo\nzwei\ndrei\n".encode())
    shown = command(*CHECK, *files, "--validation", *files, "--set=data.tokenizer=words")
    assert shown.code == 1  # the validation is the training data
    assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)
    assert "\\x1b" in shown.out
    odd = tmp_path / "od\x1b[2Jd\n.tsv"
    assert "od\\x1b[2Jd\\n.tsv: there is no such file" in command(*CHECK, odd).err
    (tmp_path / "in.txt").write_text("\x1b[31ma b\x1b[0m\na\n")
    assert command("predict", trained, tmp_path / "in.txt").out.count("\n") == 2


# Rows that show in a training


@pytest.fixture
def train(command: Any, few: Path, narrow: list[str]) -> Any:
    """Trains on the three pairs into `run`."""

    def ran(*words: object) -> Any:
        return command(
            "train",
            "translation",
            few / "t.jsonl",
            "--output-dir",
            few / "run",
            *narrow,
            *words,
            "--json",
        )

    return ran


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A folder with three pairs."""
    pairs = [("a b c d e f", "a b"), ("c d", "c d c d c"), ("e", "e")]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs)
    )
    return tmp_path


def test_64_what_is_cut_is_said(command: Any, train: Any, few: Path) -> None:
    (few / "v.jsonl").write_text(JSON)
    limits = (
        "--set=data.tokenizer=words",
        "--set=data.max_length=3",
        "--validation",
        few / "v.jsonl",
    )
    ran = train("--set=train.max_steps=1", *limits)
    assert ran.code == 0
    assert (
        "2 texts are longer than data.max_length=3 and are cut (the longest has 6 ids)" in ran.err
    )
    report = checked(command, few / "t.jsonl", *limits)
    findings = [
        (one["what"], one["number"], one["first"])
        for one in report["findings"]
        if "data.max_length" in one["what"]
    ]
    assert findings == [
        (
            "train source: longer than data.max_length=3 (the longest has 6 ids)",
            1,
            f"{few}/t.jsonl:1",
        ),
        (
            "train target: longer than data.max_length=3 (the longest has 5 ids)",
            1,
            f"{few}/t.jsonl:2",
        ),
    ]
    assert max(len(row["source"]) for row in report["first_batch"]) == 4


def test_66_a_vocabulary_larger_than_the_text_allows_is_said(train: Any) -> None:
    ran = train("--set=train.max_steps=1", "--set=data.tokenizer=words")
    assert ran.code == 0
    assert re.search(r"the text allows \d+ pieces, fewer than data.vocabulary=8,000", ran.err)


def test_67_fewer_pairs_than_a_batch_are_one_batch(train: Any, few: Path) -> None:
    ran = train(
        "--set=train.batch_rows=64", "--set=train.epochs=2", "--validation", few / "t.jsonl"
    )
    assert ran.code == 0
    assert ran.json["step"] == 2


def test_67_one_pair_cannot_be_split(train: Any, few: Path) -> None:
    (few / "t.jsonl").write_text(JSON)
    ran = train()
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith(
        "seqloom: validation needs pairs of its own, but there is only 1"
    )


def test_68_a_setting_that_is_none_is_refused_before_anything_is_made(
    train: Any, few: Path
) -> None:
    for setting, nearest in (
        ("train.lerning_rate=1", "train.learning_rate"),
        ("data.tokeniser=bpe", "data.tokenizer"),
    ):
        ran = train("--set", setting)
        assert (ran.code, ran.out) == (2, "")
        assert (
            ran.err
            == f"seqloom: there is no setting {setting.partition('=')[0]}; did you mean {nearest}?\n"
        )
    assert not (few / "run").exists()
    ran = train("--set=model.widht=8")
    assert (
        ran.err.splitlines()[-1]
        == "seqloom: there is no setting model.widht; did you mean model.width?"
    )


def test_71_a_folder_that_holds_something_is_refused(train: Any, few: Path) -> None:
    (few / "run").mkdir()
    (few / "run" / "mine.txt").write_text("mine")
    ran = train()
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert (
        "must be new or empty, but it holds something; name another --output-dir, or go on"
        in ran.err
    )
    assert [path.name for path in (few / "run").iterdir()] == ["mine.txt"]


def test_a_mended_command_can_be_given_again(train: Any, few: Path) -> None:
    """What failed for its data or settings leaves no half of a run behind."""
    assert train("--set=data.vocabulary=10").code == 2
    assert train("--validation", few / "nothing.jsonl").code == 2
    assert train("--set=train.max_steps=1").code == 0


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """As the shell sees it: the exit code, and one line without a traceback."""
    (tmp_path / "t.csv").write_text("source,target\na,b,c\n")
    ran = subprocess.run(
        [sys.executable, "-m", "seqloom", *CHECK, tmp_path / "t.csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith(
        f"seqloom: {tmp_path}/t.csv:2: the row must have 2 cells"
    )
    assert "Traceback" not in ran.stderr
