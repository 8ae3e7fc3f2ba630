"""The data doctor: what is in the files, what is odd about it, and what a training would make of it.

Texts are read one at a time; of each there remain two hashes of 8 bytes, its line and its lengths. The tokenizer and
the token store are made as `train` makes them, so the store is ready when the training comes.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig, RunConfig, TrainConfig, apply_settings, parse
from seqloom.data.batches import SOURCE, TARGET, TranslationBatch, costs, translation_batch
from seqloom.data.columns import Record
from seqloom.data.lines import Tally
from seqloom.data.order import Rows
from seqloom.data.records import read_pairs
from seqloom.data.store import TokenStore
from seqloom.errors import UsageError, place
from seqloom.shapes import IGNORE
from seqloom.tasks import task_named
from seqloom.text.special import EOS, SPECIAL_TOKENS, UNK
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.distributed import World
from seqloom.workflows.prepare import Prepared, planned, prepare
from seqloom.workflows.reading import Say, read_pair_list

SIDES = ("source", "target")

ODD = {
    "no-break space (U+00A0)": re.compile("\u00a0"),
    "zero-width character (soft hyphen, U+200B to U+200D, U+2060)": re.compile("[\u00ad\u200b-\u200d\u2060]"),
    "mark of writing direction (bidi)": re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"),
    "tab": re.compile("\t"),
    "line or page break": re.compile("[\n\r\v\f\x85\u2028\u2029]"),
    "control character": re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"),
    "U+FFFD, left by a broken conversion": re.compile("\ufffd"),
}
"""What one does not see inside a text."""
NOT_NFC, COMPOSED = "not in Unicode form NFC (accents apart from their letters)", "composed"

RATIO, DIFFERENCE = 4, 10
"""A pair is an outlier where target/source, in ids, is so many times off the median and so many ids lie between."""

SHOWN = 16
"""Pieces of a text that are shown."""


class Finding(NamedTuple):
    """Something to look at: how often, where first, and what to do where it is likely to do harm."""

    what: str
    number: int
    first: str
    advice: str = ""


@final
@dataclass
class Split:
    """What remains of the texts of one set of files."""

    name: str
    path: str = ""
    tally: Tally = field(default_factory=Tally)
    lines: array[int] = field(default_factory=lambda: array("q"))
    sources: array[int] = field(default_factory=lambda: array("Q"))
    pairs: array[int] = field(default_factory=lambda: array("Q"))
    words: tuple[array[int], array[int]] = field(default_factory=lambda: (array("I"), array("I")))

    def add(self, record: Record) -> None:
        texts = [record.fields[side] for side in SIDES]
        self.path = record.path
        self.lines.append(record.line)
        self.sources.append(digest(texts[SOURCE]))
        self.pairs.append(digest("\0".join(texts)))
        for side, text, words in zip(SIDES, texts, self.words, strict=True):
            words.append(len(text.split()))
            for what in oddities(text):
                self.tally.keep(f"{side}: {what}", record.path, record.line)
        if texts[SOURCE] == texts[TARGET]:
            self.tally.keep("source and target are the same", record.path, record.line)

    def finding(self, what: str, rows: Rows, advice: str = "") -> list[Finding]:
        """One, or none where there are no such rows."""
        return [Finding(f"{self.name}: {what}", len(rows), places(self.path, [self.lines[row] for row in rows[:3]]), advice)][: len(rows)]


def digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def oddities(text: str) -> Iterator[str]:
    """What is odd about a text, as it is."""
    if text != text.strip():
        yield "white space at an edge"
    if not text.isprintable() or "\ufffd" in text:
        yield from (what for what, pattern in ODD.items() if pattern.search(text))
    if not text.isascii():
        if not unicodedata.is_normalized("NFC", text):
            yield NOT_NFC
        if not unicodedata.is_normalized("NFD", text):
            yield COMPOSED


def places(path: str, lines: Sequence[int]) -> str:
    """`train.en:17, 40, 77`"""
    return ", ".join([place(path, lines[0]), *map(str, lines[1:])])


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found."""

    counts: dict[str, dict[str, int]]
    """split -> read, used, skipped, repaired."""
    lengths: dict[str, dict[str, list[int]]]
    """ids or words -> split and side -> least, median, 95 %, 99 %, most."""
    findings: list[Finding]
    tokenizer: dict[str, Any]
    training: dict[str, Any]
    batch: list[dict[str, Any]]
    """A few rows of the first batch: line, source, inputs, targets (None where nothing is trained), in pieces."""
    errors: list[str]
    """What must stop a training."""

    def summary(self) -> dict[str, Any]:
        """All of it, for a program."""
        names = ("min", "median", "95%", "99%", "max")
        return {
            "splits": self.counts,
            "lengths": {
                unit: {name: dict(zip(names, values, strict=True)) for name, values in rows.items()} for unit, rows in self.lengths.items()
            },
            "findings": [{"what": one.what, "number": one.number, "first": one.first, "advice": one.advice} for one in self.findings],
            "tokenizer": self.tokenizer,
            "training": self.training,
            "first_batch": self.batch,
            "errors": self.errors,
        }

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """(title, header, rows), for people."""
        kinds = list(next(iter(self.counts.values())))
        counts = [(name, *(f"{values[kind]:,}" for kind in kinds)) for name, values in self.counts.items()]
        findings = [(one.what, f"{one.number:,}", one.first) for one in self.findings]
        return [
            ("Pairs", ("", *kinds), counts),
            *(
                (f"Length in {unit}", ("", "least", "median", "95 %", "99 %", "most"), [(n, *map(str, v)) for n, v in rows.items()])
                for unit, rows in self.lengths.items()
            ),
            ("Worth a look", ("what", "how many", "first"), findings or [("nothing", "", "")]),
            ("Tokenizer", ("", ""), [(name, _shown(value)) for name, value in self.tokenizer.items()]),
            ("Training", ("", ""), [(name, _shown(value)) for name, value in self.training.items()]),
            ("The first batch, a few of its rows", ("line", "", "pieces"), [row for one in self.batch for row in _batch_rows(one)]),
        ]

    def problems(self) -> list[str]:
        """Whole sentences: first what must stop a training, then what is likely to do harm."""
        return [f"error: {error}" for error in self.errors] + [
            f"warning: {one.number:,} × {one.what} (first: {one.first}); {one.advice}" for one in self.findings if one.advice
        ]


def check(
    task: str, data: Sequence[str], validation: Sequence[str], test: Sequence[str], settings: Sequence[str], say: Say = lambda _: None
) -> Report:
    """Examines data as a training with these settings would read it.

    Raises DataError where files cannot be read or hold no usable pair, UsageError for settings that fit in no way.
    """
    run = _configured(task, data, validation, settings)
    named = {"train": data, "validation": validation, "test": test}
    splits = [read_split(name, paths, run.data, say) for name, paths in named.items() if paths]
    with TemporaryDirectory() as folder:
        prepared = prepare(run, Path(folder), World(), lambda _: None)
    texts = {"validation" if validation else "validation, split off": prepared.validation}
    if test:
        texts["test"] = read_pair_list(test, run.data, lambda _: None)
    plan, steps = planned(run.train, prepared.store)
    longest = int(costs(prepared.store, np.arange(len(prepared.store))).max())
    rows = next(plan.epoch(prepared.store, 0))
    batch = translation_batch(prepared.store, rows, rows, run.data.max_length)
    lengths, tokenizer = measured(prepared, texts)
    return Report(
        counts={
            one.name: {"read": one.tally.read, "used": one.tally.used, "skipped": one.tally.skipped, "repaired": one.tally.replaced}
            for one in splits
        },
        lengths={
            "ids": lengths,
            "words": {
                f"{one.name} {side}": spread(np.asarray(words)) for one in splits for side, words in zip(SIDES, one.words, strict=True)
            },
        },
        findings=[*text_findings(splits), *store_findings(splits[0], prepared.store, run)],
        tokenizer=tokenizer,
        training={
            "pairs": len(prepared.store),
            "longest pair, in ids": longest,
            "batch": f"{run.train.batch_rows} rows" if run.train.batch_rows else f"{run.train.batch_tokens} ids",
            "batches an epoch": plan.count(prepared.store),
            "steps": steps,
            "trained tokens of the first batch": int((batch.targets != IGNORE).sum()),
            "rows of the first batch": len(rows),
        },
        batch=batch_view(batch, prepared.tokenizer, [place(splits[0].path, int(prepared.store.lines[row])) for row in rows]),
        errors=batch_errors(batch),
    )


def _configured(task: str, data: Sequence[str], validation: Sequence[str], settings: Sequence[str]) -> RunConfig:
    content = apply_settings({}, list(settings))
    task_named(task)
    if not data:
        raise UsageError("a check needs data: name its files after the task")
    if other := content.keys() - {"data", "train"}:
        raise UsageError(f"--set can change data.* and train.* here, but not {', '.join(sorted(other))}.*: no model is made")
    read = content.get("data", {}) | {"train": tuple(data), "validation": tuple(validation)}
    return RunConfig(
        task=task, output_dir="", data=parse(DataConfig, read, "data."), train=parse(TrainConfig, content.get("train", {}), "train.")
    )


def read_split(name: str, paths: Sequence[str], data: DataConfig, say: Say) -> Split:
    """Reads files once; says what had to be guessed."""
    split = Split(name)
    try:
        for record in read_pairs(paths, data, split.tally):
            split.add(record)
    finally:
        for remark in split.tally.remarks:
            say(remark)
    return split


def text_findings(splits: Sequence[Split]) -> Iterator[Finding]:
    """What shows without a tokenizer; the first split is that of the training."""
    train = splits[0]
    known_pairs, known_sources = np.asarray(train.pairs), np.asarray(train.sources)
    for one in splits:
        pairs, sources = np.asarray(one.pairs), np.asarray(one.sources)
        tally = one.tally
        yield from (Finding(f"{one.name}, skipped: {what}", count.number, count.first) for what, count in tally.skips.items())
        yield from (Finding(f"{one.name}, repaired: {what}", count.number, count.first) for what, count in tally.repairs.items())
        for what, count in tally.oddities.items():
            side = what.partition(":")[0]
            if what.endswith(NOT_NFC) and f"{side}: {COMPOSED}" in tally.oddities:
                yield Finding(f"{one.name} {what}, though others are", count.number, count.first, "use --set data.normalisation=nfc")
            elif not what.endswith(COMPOSED):
                yield Finding(f"{one.name} {what}", count.number, count.first)
        yield from one.finding("pair that stood before", repeats(pairs))
        once = np.sort(np.unique(pairs, return_index=True)[1])
        yield from one.finding("source that stood before with another target", once[repeats(sources[once])])
        if one is not train:
            leaks = np.isin(pairs, known_pairs)
            yield from one.finding("pair that is in train too", np.flatnonzero(leaks), "leave it out of train: such a score flatters")
            yield from one.finding(
                "source that is in train too, with another target", np.flatnonzero(np.isin(sources, known_sources) & ~leaks)
            )


def repeats(digests: NDArray[Any]) -> Rows:
    """Where something stands that stood before, in order."""
    by_value = np.argsort(digests, kind="stable")
    again = digests[by_value][1:] == digests[by_value][:-1]
    return np.sort(by_value[1:][again])


def store_findings(train: Split, store: TokenStore, run: RunConfig) -> Iterator[Finding]:
    """What shows in the ids of the training data."""
    rows = np.arange(len(store))
    lengths = [store.lengths(rows, column) for column in (SOURCE, TARGET)]

    def finding(what: str, found: Rows, advice: str) -> list[Finding]:
        return [Finding(f"train{what}", len(found), places(train.path, store.lines[found[:3]].tolist()), advice)][: len(found)]

    for side, length in zip(SIDES, lengths, strict=True):
        if run.data.max_length is not None:
            what = f" {side}: longer than data.max_length={run.data.max_length} (the longest has {length.max()} ids)"
            yield from finding(what, np.flatnonzero(length > run.data.max_length), "it will be cut; raise data.max_length to keep it")
    ratio = np.log((lengths[TARGET] + 1) / (lengths[SOURCE] + 1))
    far = (np.abs(ratio - np.median(ratio)) > np.log(RATIO)) & (np.abs(lengths[TARGET] - lengths[SOURCE]) >= DIFFERENCE)
    what = f": pair with a length ratio {RATIO} times off the median (target/source {np.exp(np.median(ratio)):.2f})"
    yield from finding(what, np.flatnonzero(far), "look whether its sides belong together")
    if run.train.batch_rows is None:
        what = f": pair longer than train.batch_tokens={run.train.batch_tokens}"
        yield from finding(
            what, np.flatnonzero(costs(store, rows) > run.train.batch_tokens), "it is a batch alone, over the budget of memory"
        )


def measured(prepared: Prepared, texts: dict[str, list[tuple[str, str]]]) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """(lengths in ids, what is to be said of the tokenizer)."""
    tokenizer, store = prepared.tokenizer, prepared.store
    lengths = {f"train {side}": spread(store.lengths(np.arange(len(store)), column)) for column, side in enumerate(SIDES)}
    about: dict[str, Any] = {"kind": tokenizer.kind, "vocabulary": tokenizer.vocabulary_size}
    if tokenizer.unknown:
        about["unknown in train, %"] = 100 * float(np.count_nonzero(store.tokens == UNK)) / max(len(store.tokens), 1)
    for name, pairs in texts.items():
        ids = [tokenizer.encode([pair[column] for pair in pairs]) for column in (SOURCE, TARGET)]
        lengths |= {f"{name} {side}": spread(np.array([len(one) for one in ids[column]])) for column, side in enumerate(SIDES)}
        count = sum(len(one) for side in ids for one in side)
        about[f"ids a word in {name}"] = count / sum(len(text.split()) for pair in pairs for text in pair)
        about[f"unknown in {name}, %"] = 100 * sum(one.count(UNK) for side in ids for one in side) / max(count, 1)
    return lengths, about


def spread(values: NDArray[Any]) -> list[int]:
    """Least, median, 95 %, 99 %, most."""
    return [int(value) for value in np.quantile(values, [0, 0.5, 0.95, 0.99, 1], method="higher")]


def batch_errors(batch: TranslationBatch) -> list[str]:
    """What is wrong with the targets of a batch: a model that is never taught to end never ends."""
    if not bool((batch.targets != IGNORE).any()):
        return ["a batch must train at least one token, but in the first batch none is trained"]
    if not bool((batch.targets == EOS).any(dim=1).all()):
        return [f"every target must end in {SPECIAL_TOKENS[EOS]}, but in the first batch some do not, so the model would not learn to stop"]
    return []


def batch_view(batch: TranslationBatch, tokenizer: TextTokenizer, lines: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with the longest, the middle and the shortest target, as the model gets them."""
    by_length = (batch.targets != IGNORE).sum(dim=1).argsort(stable=True).tolist()
    view = []
    for row in dict.fromkeys((by_length[-1], by_length[len(by_length) // 2], by_length[0])):
        targets = [None if one == IGNORE else tokenizer.pieces([one])[0] for one in batch.targets[row].tolist()]
        source, inputs = (tokenizer.pieces(part[row].tolist()) for part in (batch.source, batch.inputs))
        view.append({"line": lines[row], "source": source, "inputs": inputs, "targets": targets})
    return view


def _batch_rows(row: dict[str, Any]) -> list[tuple[str, ...]]:
    told = (("source", "reads"), ("inputs", "is fed"), ("targets", "is trained to write"))
    return [(row["line"] if key == "source" else "", what, _pieces(row[key])) for key, what in told]


def _pieces(pieces: Sequence[str | None]) -> str:
    """Pieces with a blank between them, their own blanks as ␣, and what is not trained as a dash; the middle of a long text is left out."""
    shown = ["–" if piece is None else piece.replace(" ", "␣") for piece in pieces]
    left_out = len(shown) - SHOWN
    return " ".join(shown if left_out <= 1 else [*shown[: SHOWN // 2], f"… {left_out} more …", *shown[-SHOWN // 2 :]])


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
