"""What is odd about pairs of texts, and where first. Of each text only a hash of 8 bytes, its line and its
length are kept in memory."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import SOURCE, TARGET, costs
from seqloom.data.batching.token_store import TokenStore
from seqloom.data.formats.columns import Record
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.records import data_files, read_pairs
from seqloom.errors import place
from seqloom.protocols import Rows
from seqloom.tasks.data_report import Finding

SIDES = ("source", "target")

INVISIBLE = {
    "no-break space (U+00A0)": re.compile("\u00a0"),
    "zero-width character (soft hyphen, U+200B to U+200D, U+2060)": re.compile(
        "[\u00ad\u200b-\u200d\u2060]"
    ),
    "mark of writing direction (bidi)": re.compile(
        "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    ),
    "tab": re.compile("\t"),
    "line or page break": re.compile("[\n\r\v\f\x85\u2028\u2029]"),
    "control character": re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"),
    "U+FFFD, left by a broken conversion": re.compile("\ufffd"),
}
NOT_NFC, COMPOSED = "not in Unicode form NFC (accents apart from letters)", "composed"

RATIO, DIFFERENCE = 4, 10
"""A pair is an outlier where target/source, in ids, is so many times off the median, and the lengths differ
by at least so many ids."""


@final
@dataclass
class PairSplit:
    """What is kept of the pairs of one set of files."""

    name: str
    read_report: ReadReport = field(default_factory=ReadReport)
    path: str = ""
    lines: array[int] = field(default_factory=lambda: array("q"))
    sources: array[int] = field(default_factory=lambda: array("Q"))
    """Hashes of the sources."""
    pairs: array[int] = field(default_factory=lambda: array("Q"))
    """Hashes of the pairs."""
    words: tuple[array[int], array[int]] = field(default_factory=lambda: (array("I"), array("I")))
    """How many words the sources and the targets have, split at white space."""

    def add(self, record: Record, target_path: str | None = None) -> None:
        """Adds a pair; `target_path` is the file of the target where that is another one."""
        texts = [record.fields[side] for side in SIDES]
        paths = (record.path, target_path or record.path)
        self.path = record.path
        self.lines.append(record.line)
        self.sources.append(text_hash(texts[SOURCE]))
        self.pairs.append(text_hash("\0".join(texts)))
        for side, text, words, path in zip(SIDES, texts, self.words, paths, strict=True):
            words.append(len(text.split()))
            for what in oddities(text):
                self.read_report.keep(f"{side}: {what}", path, record.line)
        if texts[SOURCE] == texts[TARGET]:
            self.read_report.keep("source and target are the same", record.path, record.line)

    def counts(self) -> dict[str, float]:
        read = self.read_report
        return {
            "read": read.read,
            "used": read.used,
            "skipped": read.skipped,
            "repaired": read.replaced,
        }

    def findings(self, what: str, rows: Rows, advice: str = "") -> Iterator[Finding]:
        return findings_at(f"{self.name}: {what}", self.path, np.asarray(self.lines), rows, advice)


def read_split(name: str, paths: Sequence[str], data: DataConfig) -> PairSplit:
    """Reads files once. Raises what `read_pairs` raises."""
    split, files = PairSplit(name), data_files(paths, data)
    for record in read_pairs(paths, data, split.read_report):
        split.add(record, files[-1])
    return split


def text_hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def oddities(text: str) -> Iterator[str]:
    """What is odd about a text, each thing once."""
    if text != text.strip():
        yield "white space at an edge"
    if not text.isprintable() or "\ufffd" in text:
        yield from (what for what, pattern in INVISIBLE.items() if pattern.search(text))
    if not text.isascii():
        if not unicodedata.is_normalized("NFC", text):
            yield NOT_NFC
        if not unicodedata.is_normalized("NFD", text):
            yield COMPOSED


def findings_at(
    what: str, path: str, lines: Rows, rows: Rows, advice: str = ""
) -> Iterator[Finding]:
    """A finding with its first places, `train.en:17, 40, 77`; none where there are no rows."""
    if len(rows):
        first, *others = lines[rows[:3]].tolist()
        yield Finding(what, len(rows), ", ".join([place(path, first), *map(str, others)]), advice)


def text_findings(splits: Sequence[PairSplit]) -> Iterator[Finding]:
    """What shows without a tokenizer. The first split is train."""
    train_pairs, train_sources = np.asarray(splits[0].pairs), np.asarray(splits[0].sources)
    for split in splits:
        yield from reading_findings(split.name, split.read_report)
        pairs, sources = np.asarray(split.pairs), np.asarray(split.sources)
        yield from split.findings("pair that stood before", repeats(pairs))
        distinct = np.sort(np.unique(pairs, return_index=True)[1])
        yield from split.findings(
            "source that stood before with another target", distinct[repeats(sources[distinct])]
        )
        if split is splits[0]:
            continue
        leaks, known = np.isin(pairs, train_pairs), np.isin(sources, train_sources)
        advice = "leave them out of train, or the score flatters"
        yield from split.findings("pair that is in train too", np.flatnonzero(leaks), advice)
        yield from split.findings(
            "source that is in train too, with another target", np.flatnonzero(known & ~leaks)
        )


def reading_findings(name: str, report: ReadReport) -> Iterator[Finding]:
    """What was counted while reading."""
    for counts, what in ((report.skips, "skipped"), (report.repairs, "repaired")):
        for reason, count in counts.items():
            yield Finding(f"{name}, {what}: {reason}", count.number, count.first)
    for reason, count in report.oddities.items():
        side, _, what = reason.partition(": ")
        if what == NOT_NFC and f"{side}: {COMPOSED}" in report.oddities:
            yield Finding(
                f"{name} {reason}, while others are",
                count.number,
                count.first,
                "make them one: --set data.normalisation=nfc",
            )
        elif what != COMPOSED:
            separator = " " if what else ": "
            yield Finding(f"{name}{separator}{reason}", count.number, count.first)


def repeats(hashes: NDArray[Any]) -> Rows:
    """The rows of hashes that occurred before, in order."""
    by_value = np.argsort(hashes, kind="stable")
    same = hashes[by_value][1:] == hashes[by_value][:-1]
    return np.sort(by_value[1:][same])


def store_findings(
    path: str, store: TokenStore, max_length: int | None, batch_tokens: int | None
) -> Iterator[Finding]:
    """What shows in the ids of the training data: what is cut, what is out of proportion, what fits in no
    batch."""
    rows = np.arange(len(store))
    source, target = (store.lengths(rows, column) for column in (SOURCE, TARGET))
    for side, length in zip(SIDES, (source, target), strict=True):
        if max_length is not None:
            what = (
                f"train {side}: longer than data.max_length={max_length} (the longest has {length.max():,}"
                " ids)"
            )
            advice = "they are cut; raise it to keep them whole"
            yield from findings_at(
                what, path, store.lines, np.flatnonzero(length > max_length), advice
            )
    ratio = np.log((target + 1) / (source + 1))
    median = np.median(ratio)
    far = np.flatnonzero(
        (np.abs(ratio - median) > np.log(RATIO)) & (np.abs(target - source) >= DIFFERENCE)
    )
    what = f"train: target/source in ids {RATIO} times off the median of {np.exp(median):.2f}"
    yield from findings_at(what, path, store.lines, far, "look whether both sides belong together")
    if batch_tokens is not None:
        long = np.flatnonzero(costs(store, rows) > batch_tokens)
        what = f"train: pair longer than train.batch_tokens={batch_tokens:,}"
        advice = "each is a batch alone and needs more memory than others; raise it, or set data.max_length"
        yield from findings_at(what, path, store.lines, long, advice)
