"""The data doctor, against data whose faults are known."""

from __future__ import annotations

import json
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import pair_batch
from seqloom.data.formats.columns import Record
from seqloom.errors import DataError, UsageError
from seqloom.shapes import IGNORE
from seqloom.tasks.data_report import DataReport, Finding
from seqloom.tasks.translation.check_pairs import batch_errors
from seqloom.tasks.translation.pair_findings import (
    PairSplit,
    oddities,
    read_split,
    repeats,
    text_findings,
)
from seqloom.text.special_tokens import EOS
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.check import check
from seqloom.workflows.train import train

WORDS = "data.tokenizer=words"


def write(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A file of pairs; returns it as data of a command."""
    (folder / f"{name}.jsonl").write_text(
        "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs)
    )
    return [f"{folder}/{name}.jsonl"]


def examined(
    folder: Path,
    pairs: Sequence[tuple[str, str]],
    validation: Sequence[tuple[str, str]] = (("a b", "c"),),
    test: Sequence[tuple[str, str]] = (),
    settings: Sequence[str] = (WORDS,),
) -> DataReport:
    files = [
        write(folder, name, some) if some else []
        for name, some in (("train", pairs), ("validation", validation), ("test", test))
    ]
    return check("translation", files[0], files[1], files[2], settings)


def found(report: DataReport) -> dict[str, tuple[int, str]]:
    """Finding -> how often, and where first without the folder."""
    return {one.what: (one.number, one.first.rpartition("/")[2]) for one in report.findings or ()}


def test_a_clean_file_has_nothing_to_find(tmp_path: Path) -> None:
    report = examined(tmp_path, [("a b", "c d"), ("a", "c"), ("b", "d")], [("b a", "d c")])
    assert report.findings == []
    assert report.errors == []
    assert report.problems() == ["nothing found that is likely to do harm"]
    assert replace(report, errors=["no"]).problems() == ["error: no"]
    assert report.splits == {
        name: {"read": n, "used": n, "skipped": 0, "repaired": 0}
        for name, n in (("train", 3), ("validation", 1))
    }


def test_lengths_and_unknown_words(tmp_path: Path) -> None:
    train_pairs = [(" ".join("ab"[:1] * n), "c.") for n in range(1, 101)]
    report = examined(tmp_path, train_pairs, [("a z a z", "c")], [("a", "z")])
    lengths = {"min": 1, "median": 51, "95%": 96, "99%": 100, "max": 100}
    assert (
        report.lengths["ids"]["train source"] == report.lengths["words"]["train source"] == lengths
    )
    assert report.lengths["ids"]["train target"] == dict.fromkeys(lengths, 2)
    assert report.lengths["words"]["train target"] == dict.fromkeys(lengths, 1)
    assert report.lengths["words"]["validation source"] == dict.fromkeys(lengths, 4)
    assert report.tokenizer["vocabulary"] == 16 + 3
    assert report.tokenizer["unknown_percent"] == {"train": 0, "validation": 40, "test": 50}
    ids, words = 5050 + 200, 5050 + 100  # "c." is two ids, one word
    assert report.tokenizer["ids_per_word"] == {"train": ids / words, "validation": 1, "test": 1}
    scarce = examined(
        tmp_path, [("a a", "b"), ("a b", "c")], settings=[WORDS, "data.vocabulary=18"]
    )
    assert scarce.tokenizer["unknown_percent"]["train"] == pytest.approx(100 / 6)


def test_what_repeats_and_what_leaks(tmp_path: Path) -> None:
    pairs = [
        ("a", "x"),
        ("b", "y"),
        ("a", "x"),
        ("a", "z"),
        ("a", "z"),
        ("b", "y"),
        ("a", "x"),
        ("x", "a"),
    ]
    report = examined(
        tmp_path, pairs, [("n", "n n"), ("a", "q"), ("b", "y")], [("a", "z"), ("y", "b")]
    )
    assert found(report) == {
        "train: pair that stood before": (4, "train.jsonl:3, 5, 6"),
        "train: source that stood before with another target": (1, "train.jsonl:4"),
        "validation: pair that is in train too": (1, "validation.jsonl:3"),
        "validation: source that is in train too, with another target": (1, "validation.jsonl:2"),
        "test: pair that is in train too": (1, "test.jsonl:1"),
    }
    assert report.errors == []  # a leak is for the user to judge
    assert [line.split(":")[:2] for line in report.problems()] == [
        ["warning", " validation"],
        ["warning", " test"],
    ]


def test_ids_a_word_leave_out_what_is_split_off(tmp_path: Path) -> None:
    pairs = [("a " * at + "a", "b") for at in range(60)]
    report = check("translation", write(tmp_path, "train", pairs), (), (), [WORDS])
    assert report.tokenizer["ids_per_word"] == {"train": 1, "split off": 1}
    assert ("train", "1.00", "0.00 %") in report.tables[3][2]


NFD = unicodedata.normalize("NFD", "é")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain. text", []),
        ("Grüße, 你好 🎉", ["composed"]),
        (" a", ["white space at an edge"]),
        ("a\u3000", ["white space at an edge"]),
        ("a\u00a0b\u00a0c", ["no-break space (U+00A0)"]),
        ("soft\u00adhyphen", ["zero-width character (soft hyphen, U+200B to U+200D, U+2060)"]),
        ("👩\u200d💻", ["zero-width character (soft hyphen, U+200B to U+200D, U+2060)"]),
        ("a\u202eb", ["mark of writing direction (bidi)"]),
        ("a\tb", ["tab"]),
        ("a\u2028b", ["line or page break"]),
        ("a\x07b", ["control character"]),
        ("a\ufffdb", ["U+FFFD, left by a broken conversion"]),
        (NFD, ["not in Unicode form NFC (accents apart from letters)"]),
        (f"é{NFD}", ["not in Unicode form NFC (accents apart from letters)", "composed"]),
    ],
)
def test_what_one_does_not_see(text: str, expected: list[str]) -> None:
    assert list(oddities(text)) == expected


def test_mixed_unicode_forms_are_a_problem_one_form_is_not(tmp_path: Path) -> None:
    one = examined(tmp_path, [(f"caf{NFD}", "a"), ("b", "c")])
    assert found(one) == {
        "train source: not in Unicode form NFC (accents apart from letters)": (1, "train.jsonl:1")
    }
    assert one.problems() == ["nothing found that is likely to do harm"]
    both = examined(tmp_path, [(f"caf{NFD}", "a"), ("café", "c"), ("b", "é")])
    assert found(both) == {
        "train source: not in Unicode form NFC (accents apart from letters), while others are": (
            1,
            "train.jsonl:1",
        )
    }
    assert "data.normalisation=nfc" in both.problems()[0]


def test_copies_and_pairs_out_of_proportion(tmp_path: Path) -> None:
    usual = [(f"a{i} b", f"c{i} d") for i in range(20)]
    report = examined(
        tmp_path, [*usual, ("a b c", "a b c"), ("a " * 12, "c d"), ("a", "c d e f g h")]
    )
    what = "train: target/source in ids 4 times off the median of 1.00"
    assert found(report) == {
        "train source: white space at an edge": (1, "train.jsonl:22"),
        "train: source and target are the same": (1, "train.jsonl:21"),
        what: (1, "train.jsonl:22"),  # the last one is too short to judge
    }


def test_places_of_parallel_files_are_those_of_their_side(tmp_path: Path) -> None:
    (tmp_path / "t.en").write_text("a\nb \n")
    (tmp_path / "t.de").write_text(" c\nd\n")
    split = read_split("train", [f"{tmp_path}/t"], DataConfig())
    assert {what: count.first for what, count in split.read_report.oddities.items()} == {
        "target: white space at an edge": f"{tmp_path}/t.de:1",
        "source: white space at an edge": f"{tmp_path}/t.en:2",
    }


def test_a_pair_over_the_budget_and_the_batches(tmp_path: Path) -> None:
    pairs = [("a a", "b b")] * 9 + [("a a a a a a", "b b b b b b")]
    report = examined(tmp_path, pairs, settings=[WORDS, "train.batch_tokens=12", "train.epochs=3"])
    assert found(report)["train: pair longer than train.batch_tokens=12"] == (1, "train.jsonl:10")
    assert report.training["longest_pair_in_ids"] == 14
    # 2 + 2 and marks are 6 ids: two a batch, the last of them and the long one alone
    assert report.training["batches_an_epoch"] == 6
    assert report.training["steps"] == 18
    rows = examined(tmp_path, pairs, settings=[WORDS, "train.batch_rows=4", "train.max_steps=7"])
    assert (rows.training["batches_an_epoch"], rows.training["steps"], rows.training["batch"]) == (
        3,
        7,
        "4 pairs",
    )
    assert not any("batch_tokens" in what for what in found(rows))


def test_it_sees_what_a_training_sees(tmp_path: Path) -> None:
    """The same steps, the same first batch, and the same token store, which the training finds ready."""
    data = write(
        tmp_path, "train", [(f"a{i % 7} b", f"c{i % 5} d" * (i % 3 + 1)) for i in range(40)]
    )
    chosen = ["train.batch_tokens=60", "train.epochs=1", WORDS]
    report = check("translation", data, (), (), chosen)
    narrow = [
        f"model.{name}=4"
        for name in (
            "width",
            "encoder_width",
            "embedding_width",
            "attention_width",
            "readout_width",
        )
    ]
    result = train(
        "translation",
        data,
        output_dir=tmp_path / "run",
        settings=[*chosen, *narrow, "train.log_every=1"],
    )
    assert result.step == report.training["steps"] == report.training["batches_an_epoch"]
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert logged["tokens"] == report.training["trained_tokens_of_the_first_batch"]
    assert len([path for path in (tmp_path / ".seqloom-cache").iterdir() if path.is_dir()]) == 1


def test_the_first_batch_is_shown_as_a_model_gets_it(tmp_path: Path) -> None:
    report = examined(
        tmp_path,
        [("a b", "c d"), ("a", "c"), ("b a b", "d d d")],
        settings=[WORDS, "train.batch_rows=3"],
    )
    assert report.first_batch == [
        {
            "line": f"{tmp_path}/train.jsonl:3",
            "source": ["b", "a", "b", "</s>"],
            "inputs": ["<s>", "d", "d", "d"],
            "targets": ["d", "d", "d", "</s>"],
        },
        {
            "line": f"{tmp_path}/train.jsonl:1",
            "source": ["a", "b", "</s>", "<pad>"],
            "inputs": ["<s>", "c", "d", "<pad>"],
            "targets": ["c", "d", "</s>", None],
        },
        {
            "line": f"{tmp_path}/train.jsonl:2",
            "source": ["a", "</s>", "<pad>", "<pad>"],
            "inputs": ["<s>", "c", "<pad>", "<pad>"],
            "targets": ["c", "</s>", None, None],
        },
    ]
    assert report.training["trained_tokens_of_the_first_batch"] == 9
    shown = {label.strip(): pieces for label, pieces in report.tables[-1][2][-4:]}
    assert shown["reads"] == "a </s> <pad>×2"
    assert shown["is to write"] == "c </s> (untrained)×2"


def test_a_batch_must_train_and_teach_to_stop() -> None:
    good, tokenizer = (
        pair_batch([[20], [21, 22]], [[23], [24, 25]]),
        train_tokenizer(["a"], "bytes", 272),
    )
    assert batch_errors(good, tokenizer) == []
    assert (
        "none is trained"
        in batch_errors(good._replace(targets=torch.full_like(good.targets, IGNORE)), tokenizer)[0]
    )
    endless = good.targets.clone()
    endless[1][endless[1] == EOS] = IGNORE
    assert "must end in </s>" in batch_errors(good._replace(targets=endless), tokenizer)[0]


def test_a_split_that_stands_in_train_is_an_error(tmp_path: Path) -> None:
    pairs = [(f"a{at}", f"b{at}") for at in range(20)]
    most, new = pairs[:9], [("n", "m")]
    report = examined(tmp_path, pairs, [*most, *new], most)
    assert report.errors == [
        f"{name} must hold other pairs than train, but 9 of its {total} stand in train too, "
        "so a score on it says nothing; leave them out of one of both"
        for name, total in (("validation", 10), ("test", 9))
    ]
    assert [f"error: {error}" for error in report.errors] == report.problems()[:2]
    assert examined(tmp_path, pairs, [*most[:8], *new], [*most, *new, ("a0", "b1")]).errors == []


def test_a_length_that_cuts_most_texts_is_an_error(tmp_path: Path) -> None:
    pairs = [("a a a", "b"), ("a a a", "b b b"), ("a", "b b b")]
    report = examined(tmp_path, pairs, settings=[WORDS, "data.max_length=2"])
    assert report.errors == [
        "data.max_length=2 must leave most training texts whole, but cuts 4 of 6; raise it"
    ]
    # half of them
    assert (
        examined(tmp_path, [*pairs, ("a", "b")], settings=[WORDS, "data.max_length=2"]).errors == []
    )


def test_one_pair_is_no_training_set(tmp_path: Path) -> None:
    report = examined(tmp_path, [("a", "b"), (" ", "b"), ("c", "")])
    assert report.errors == [
        "train must have at least 2 pairs, but has 1 (rows read: 3); add more data"
    ]
    assert examined(tmp_path, [("a", "b"), (" ", "b"), ("c", "d")]).errors == []


def test_the_report_fits_json_and_tables(tmp_path: Path) -> None:
    report = examined(tmp_path, [("a " * 40, "a"), ("a", "b"), ("a", "b")], test=[("a", "b")])
    summary = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert summary["splits"]["train"]["used"] == 3
    assert summary["lengths"]["words"]["train source"]["max"] == 40
    assert {"what", "number", "first", "advice"} == summary["findings"][0].keys()
    for _, header, rows in report.tables:
        assert rows
        assert all(
            len(row) == len(header) and all(isinstance(cell, str) for cell in row) for row in rows
        )
    pieces = [row[1] for row in report.tables[-1][2]]
    assert "a a a a a a a a [… 25 more …] a a a a a a a </s>" in pieces


def test_guesses_are_said_and_errors_pass(tmp_path: Path, notices: list[str]) -> None:
    (tmp_path / "t.en").write_text("a\nb\nc\n")
    (tmp_path / "t.de").write_text("a\nb\nc\n")
    check("translation", [f"{tmp_path}/t"], (), (), [WORDS])
    assert notices == [
        (
            f"{tmp_path}/t: 'en' is taken as source and 'de' as target; to turn it: --set data.source=de"
            " --set data.target=en"
        )
    ]
    (tmp_path / "t.de").write_text("a\nb\n")
    with pytest.raises(DataError, match="same number of lines"):
        check("translation", [f"{tmp_path}/t"], (), (), [])
    with pytest.raises(UsageError, match="only 1"):
        examined(tmp_path, [("a", "b")], validation=())


# Laws

letter = st.sampled_from("abc")
some_pairs = st.lists(st.tuples(letter, letter), min_size=1, max_size=30)


def split_of(name: str, pairs: Sequence[tuple[str, str]]) -> PairSplit:
    split = PairSplit(name)
    for line, (source, target) in enumerate(pairs, start=1):
        split.add(Record({"source": source, "target": target}, name, line))
    return split


@settings(max_examples=60, deadline=None)
@given(some_pairs, some_pairs)
def test_repeats_and_leaks_are_those_of_sets(
    train_pairs: list[tuple[str, str]], test_pairs: list[tuple[str, str]]
) -> None:
    findings = {
        one.what: one
        for one in text_findings([split_of("train", train_pairs), split_of("test", test_pairs)])
    }

    def number(what: str) -> int:
        return findings.get(what, Finding(what, 0, "")).number

    seen, sources = set(train_pairs), {source for source, _ in train_pairs}
    targets = Counter(source for source, _ in seen)
    assert number("train: pair that stood before") == len(train_pairs) - len(seen)
    assert number("train: source that stood before with another target") == sum(
        n - 1 for n in targets.values()
    )
    leaks = [pair in seen for pair in test_pairs]
    assert number("test: pair that is in train too") == sum(leaks)
    known = sum(source in sources for source, _ in test_pairs)
    assert number("test: source that is in train too, with another target") == known - sum(leaks)
    if any(leaks):
        assert (
            findings["test: pair that is in train too"].first.split(",")[0]
            == f"test:{leaks.index(True) + 1}"
        )


@given(st.lists(st.integers(0, 5)))
def test_repeats_are_all_but_the_first(values: list[int]) -> None:
    expected = [at for at, value in enumerate(values) if value in values[:at]]
    assert repeats(np.array(values, np.uint64)).tolist() == expected


def test_texts_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    with open(path, "w") as file:
        for i in range(4000):
            file.write(f"{i} " + "x" * 1000 + f"\t{i} " + "y" * 1000 + "\n")
    tracemalloc.start()
    try:
        split = read_split("train", [str(path)], DataConfig())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert split.read_report.used == 4000
    assert peak < 1e6  # the file has 8 MB


def test_the_report_of_any_split_has_each_row(tmp_path: Path) -> None:
    kinds: dict[str, Any] = examined(
        tmp_path, [("a", "b"), ("c", "d")], test=[("e", "f")]
    ).to_json()["lengths"]
    names = [
        f"{name} {side}"
        for name in ("train", "validation", "test")
        for side in ("source", "target")
    ]
    assert list(kinds["ids"]) == list(kinds["words"]) == names
