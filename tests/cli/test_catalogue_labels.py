"""Bad labels, tags and answers through the command line: rows 52 to 65 of the catalogue of bad inputs that
the project was designed against. Each ends in one line that a person can act on, or is handled and counted.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.conftest import Command

TASKS = {
    "csv": "text-classification",
    "conllu": "token-classification",
    "conll": "token-classification",
    "json": "question-answering",
}
QUICK = ("--set", "train.max_steps=2", "--set", "train.threads=1", "--set", "train.batch_rows=4")


class Row(NamedTuple):
    row: int
    name: str
    """What is wrong, for the name of the test."""
    kind: str
    """The end of the file's name."""
    content: str
    message: str
    """A pattern of the error, or of what is said."""
    words: tuple[str, ...] = ()
    """More of the command line."""
    test: str = ""
    """The content of a test file."""


def csv(rows: str) -> str:
    return "text,label\n" + rows


GOOD = csv("".join(f"words number {i},{'ab'[i % 2]}\n" for i in range(12)))


def conllu(*words: str, head: str = "# sent_id = s7\n") -> str:
    return head + "\n".join(words) + "\n\n"


def word(
    number: str, form: str, tag: str = "NOUN", parent: str = "0", relation: str = "root"
) -> str:
    return f"{number}\t{form}\t_\t{tag}\t_\t_\t{parent}\t{relation}\t_\t_"


def squad(**changes: object) -> str:
    answer = {"text": "red", "answer_start": 7} | changes
    qas = [{"id": "q17", "question": "Which colour?", "answers": [answer]}]
    return json.dumps(
        {"data": [{"title": "t", "paragraphs": [{"context": "It was red.", "qas": qas}]}]}
    )


REFUSED = [
    Row(53, "one class", "csv", csv("a b,x\nc d,x\ne f,x\n"), "label"),
    Row(
        54,
        "case",
        "csv",
        csv("a b,pos\nc d,Pos\ne f,neg\n"),
        r"'pos' .*'Pos' .*differ only in case",
    ),
    Row(
        54,
        "blanks",
        "csv",
        csv("a b,pos\nc d,pos \ne f,neg\n"),
        r"'pos' .*'pos ' .*differ only in case, white space",
    ),
    Row(
        55,
        "1.0 and 1",
        "csv",
        csv("a b,1.0\nc d,1\ne f,2\n"),
        r"'1\.0' .*'1' .*how a number is written",
    ),
    Row(55, "no label", "csv", csv("a b,x\nc d,\ne f,y\n"), r"t\.csv:3: .*label"),
    Row(
        57,
        "too many labels",
        "csv",
        csv("a b,x\nc d,x,y\n"),
        r"t\.csv:3: the row must have 2 cells .*has 3",
    ),
    Row(
        58, "blanks for tabs", "conllu", conllu("1 a _ X _ _ 0 root _ _"), r"t\.conllu:2: .*s7.*tab"
    ),
    Row(
        58,
        "9 columns",
        "conllu",
        conllu(word("1", "a").removesuffix("\t_")),
        r"t\.conllu:2: .*s7.*10.*9",
    ),
    Row(58, "11 columns", "conllu", conllu(word("1", "a") + "\t_"), r"t\.conllu:2: .*s7.*10.*11"),
    Row(
        59,
        "an empty range",
        "conllu",
        conllu("3-2\tab" + "\t_" * 8, word("1", "a")),
        r"t\.conllu:2: .*3-2",
    ),
    Row(
        59,
        "a range of one",
        "conllu",
        conllu("73-73\tab" + "\t_" * 8, word("1", "a")),
        r"t\.conllu:2: .*73-73",
    ),
    Row(
        60,
        "a comment inside",
        "conllu",
        conllu(word("1", "a"), "# text = a", word("2", "b", parent="1")),
        r"t\.conllu:3: .*comment",
    ),
    Row(
        62, "I- without B-", "conll", "a\tO\nb\tI-PER\n", r"t\.conll:2: .*I-PER.*data\.repair_tags"
    ),
    Row(62, "an unknown prefix", "conll", "a\tB-PER\nb\tX-PER\n", r"t\.conll:2: .*X-PER"),
    Row(62, "blanks among tabs", "conll", "a\tO\nb O\n", r"t\.conll:2: "),
    Row(63, "an answer elsewhere", "json", squad(answer_start=3), r"q17"),
    Row(63, "an answer outside", "json", squad(answer_start=70), r"q17"),
    Row(63, "a negative start", "json", squad(answer_start=-1), r"q17"),
    Row(
        64,
        "longer than the model reads",
        "csv",
        GOOD + f"{'word ' * 200},a\n",
        r"a text must have at most 128 tokens .*1 has more \(the longest \d+\).*data\.max_length=128",
        ("--model", "bert:tiny", "--set", "data.tokenizer=words"),
    ),
]
HANDLED = [
    Row(52, "a label of the test alone", "csv", GOOD, r"'c' \(1\)", test=csv("a b,c\n")),
    Row(53, "a class with one example", "csv", GOOD + "alone,c\n", r"'c'"),
    Row(
        56,
        "far more of one label",
        "csv",
        GOOD + "".join(f"more of it {i},a\n" for i in range(900)),
        r"unequal: 906 examples of 'a', 6 of",
    ),
    Row(
        56,
        "test examples of the training",
        "csv",
        GOOD,
        r"1 of 2 examples stand in the training too",
        test=csv("words number 1,b\nnew,a\n"),
    ),
    Row(
        59,
        "ranges and empty nodes",
        "conllu",
        "".join(
            conllu(
                "1-2\tab" + "\t_" * 8,
                word("1", "a"),
                "1.1\te" + "\t_" * 8,
                word("2", f"b{i}", "VERB", "1", "x"),
            )
            for i in range(9)
        ),
        r"9 x a range.*3-4",
    ),
    Row(
        60,
        "two blank lines, none at the end",
        "conllu",
        "\n\n".join(
            conllu(word("1", f"a{i}", "NOUN" if i % 2 else "VERB")) for i in range(9)
        ).rstrip(),
        r"",
    ),
    *(
        Row(
            61,
            name,
            "conllu",
            "".join(
                conllu(
                    word("1", f"a{i}", "NOUN" if i % 2 else "VERB", first),
                    word("2", "b", "VERB", second),
                    word("3", "c", "VERB", "2"),
                )
                for i in range(9)
            ),
            r"",
        )
        for name, first, second in (
            ("a head that is not there", "0", "5"),
            ("a cycle", "0", "3"),
            ("two roots", "0", "0"),
            ("no head", "0", "_"),
        )
    ),
    Row(
        62,
        "I- without B-, repaired",
        "conll",
        "".join(f"w{i}\tO\nb\tI-PER\n\n" for i in range(9)),
        r"9 x .*I-",
        ("--set", "data.repair_tags=true"),
    ),
    Row(
        65,
        "a word that is nothing",
        "conll",
        "".join(f"w{i}\tO\n\u200b\tX\n\n" for i in range(9)),
        r"",
    ),
]


def of(row: Row) -> str:
    return f"{row.row}: {row.name}"


@pytest.mark.parametrize("row", REFUSED, ids=of)
def test_a_bad_row_is_refused_in_one_line(
    row: Row, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"t.{row.kind}").write_text(row.content, "utf-8")
    ran = command("check", TASKS[row.kind], f"t.{row.kind}", *QUICK, *row.words)
    last = ran.err.strip().splitlines()[-1]
    assert ran.code == 2, ran.err
    assert last.startswith("seqloom: ")
    assert re.search(row.message, last), last
    assert not re.search("Traceback|Error\\b:", ran.err)


@pytest.mark.parametrize("row", HANDLED, ids=of)
def test_an_odd_row_is_handled_and_counted(
    row: Row, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"t.{row.kind}").write_text(row.content, "utf-8")
    test: tuple[str, ...] = ()
    if row.test:
        (tmp_path / "test.csv").write_text(row.test, "utf-8")
        test = ("--test", "test.csv")
    small = () if row.words[:1] == ("--model",) else ("--model", "recurrent:tiny")
    ran = command("check", TASKS[row.kind], f"t.{row.kind}", *test, *small, *QUICK, *row.words)
    assert ran.code == 0, ran.err
    assert re.search(row.message, ran.out + ran.err), ran.out + ran.err
