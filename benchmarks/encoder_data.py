"""The labelled sets on which pre-trained encoders are measured, with a few and with all training examples."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

HELD_OUT = 500
"""Examples at most that are held out to choose the learning rate, where a set has no such part."""


class LabelledSet(NamedTuple):
    """Files of one form. Both sizes have the same validation and test part."""

    name: str
    task: str
    settings: tuple[str, ...]
    """How the files are read, as `--set` has it."""
    few: Path
    all: Path
    validation: Path
    test: Path


Rows = list[tuple[str, ...]]
T = TypeVar("T")
UNSEEN = "data.unseen_labels=ignore"
"""A rare label may not be among a few examples."""


def trec(place: Path, out: Path, few: int) -> LabelledSet:
    """Questions, six coarse labels; its own test part."""

    def rows(name: str) -> Rows:
        lines = (place / name).read_text("latin-1").split("\n")
        pairs = (line.split(" ", 1) for line in lines if line)
        return [(text.strip(), label.partition(":")[0]) for label, text in pairs]

    return _classes("trec", out, few, rows("train.txt"), rows("test.txt"))


def mr_polarity(place: Path, out: Path, few: int) -> LabelledSet:
    """Sentences of film reviews, two labels; a tenth is the test part."""
    found: Rows = []
    for label in ("pos", "neg"):
        lines = (place / f"rt-polarity.{label}").read_text("latin-1").split("\n")
        found += [(line.strip(), label) for line in lines if line.strip()]
    shuffled = _shuffled(found)
    tenth = len(shuffled) // 10
    return _classes("mr_polarity", out, few, shuffled[tenth:], shuffled[:tenth])


def rte(place: Path, out: Path, few: int) -> LabelledSet:
    """Whether one text entails another; the labelled development part of GLUE is the test part."""

    def rows(name: str) -> Rows:
        with (place / name).open(newline="", encoding="utf-8") as file:
            return [
                (one["premise"], one["hypothesis"], one["label"]) for one in csv.DictReader(file)
            ]

    return _classes("rte", out, few, rows("train.csv"), rows("dev.csv"))


def ud_english_ewt(place: Path, out: Path, few: int) -> LabelledSet:
    """Universal parts of speech of English web text."""

    def sentences(part: str) -> list[str]:
        text = gzip.decompress((place / f"en_ewt-ud-{part}.conllu.gz").read_bytes()).decode()
        return [one for one in text.split("\n\n") if one.strip()]

    train = _shuffled(sentences("train"))
    parts = {"few": train[:few], "all": train, "validation": sentences("dev")[:HELD_OUT]}
    parts["test"] = sentences("test")
    paths = {}
    for part, content in parts.items():
        paths[part] = out / f"ud_english_ewt.{part}.conllu"
        paths[part].write_text("\n\n".join([*content, ""]), "utf-8")
    return LabelledSet(
        "ud_english_ewt", "token-classification", ("data.tags=upos", UNSEEN), **paths
    )


SETS = {one.__name__: one for one in (trec, mr_polarity, rte, ud_english_ewt)}


def prepared(names: Sequence[str], data: Path, out: Path, few: int) -> list[LabelledSet]:
    """`data` has a folder of each name."""
    out.mkdir(parents=True, exist_ok=True)
    return [SETS[name](data / name, out, few) for name in names]


def _classes(name: str, out: Path, few: int, train: Rows, test: Rows) -> LabelledSet:
    train = _shuffled(train)
    held_out = min(HELD_OUT, len(train) // 10)
    train, validation = train[held_out:], train[:held_out]
    parts = {"few": train[:few], "all": train, "validation": validation, "test": test}
    columns = ("text", "second", "label") if len(train[0]) == 3 else ("text", "label")
    paths = {part: out / f"{name}.{part}.csv" for part in parts}
    for part, rows in parts.items():
        with paths[part].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    second = ("data.second=second",) if len(columns) == 3 else ()
    return LabelledSet(name, "text-classification", ("data.format=csv", UNSEEN, *second), **paths)


def _shuffled(rows: Iterable[T]) -> list[T]:
    rows = list(rows)
    return [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]
