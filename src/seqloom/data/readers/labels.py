"""Labels: their order, and what is checked before they are trained on or measured against."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from seqloom.data.readers.examples import LabelledText, TaggedWords
from seqloom.errors import DataError, place

MOST_UNEQUAL = 100
"""From so many times more examples of one label than of another on, it is said."""
SHOWN = 5
"""Labels that a message lists."""


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Different labels in the order that a model keeps: whole numbers by size, else by their characters."""
    found = set(labels)
    whole = all(label.removeprefix("-").isascii() and label.removeprefix("-").isdigit() for label in found)
    return tuple(sorted(found, key=lambda label: (int(label), label)) if whole else sorted(found))


def text_key(example: LabelledText) -> str:
    """The same for examples whose texts differ in nothing but case and white space."""
    return "\n".join(
        " ".join(text.split()).casefold() for text in (example.text, example.second) if text is not None
    )


def check_labels(examples: Sequence[LabelledText]) -> list[str]:
    """What is odd in examples to train on, in sentences: labels of one example, far more examples of one
    label than of another, texts that come again, with the same or other labels.

    Raises DataError where all have one label, and where two labels differ only in case, white space or how a
    number is written.
    """
    first: dict[str, LabelledText] = {}
    for example in examples:
        for label in example.labels:
            first.setdefault(label, example)
    _refuse_alike(first)
    counts = Counter(label for example in examples for label in example.labels)
    if len(counts) < 2 and all(example.labels for example in examples):
        only = f"all {len(examples)} have {next(iter(counts))!r}" if counts else "there is none"
        raise DataError(
            f"examples to train on must have at least two different labels, but {only}",
            examples[0].path if examples else None,
        )
    said = []
    single = [label for label, number in counts.items() if number == 1]
    if single:
        where = ", ".join(f"{label!r} ({_at(first[label])})" for label in single[:SHOWN]) + ", ..." * (
            len(single) > SHOWN
        )
        said.append(
            f"{len(single)} {'labels have' if len(single) > 1 else 'label has'} only one example: {where}"
        )
    if counts:
        (large, most), (small, least) = max(counts.items(), key=_size), min(counts.items(), key=_size)
        if most > MOST_UNEQUAL * least:
            said.append(
                f"the labels are very unequal: {most:,} examples of {large!r}, {least:,} of {small!r}; to"
                " weigh them alike: --set head.class_weights=balanced"
            )
    return said + _repeated(examples)


def check_numbers(examples: Sequence[LabelledText]) -> None:
    """Raises DataError where numbers to train on do not differ."""
    found = {float(label) for example in examples for label in example.labels}
    if len(found) < 2:
        only = f"all {len(examples)} have {next(iter(found)):g}" if found else "there is none"
        raise DataError(
            f"examples to train on must have different numbers, but {only}",
            examples[0].path if examples else None,
        )


def _size(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _at(example: LabelledText | TaggedWords) -> str:
    return place(example.path, example.line)


def _refuse_alike(first: dict[str, LabelledText]) -> None:
    met: dict[str, str] = {}
    for label in first:
        other = met.setdefault(_folded(label), label)
        if other != label:
            raise DataError(
                f"the labels {other!r} ({_at(first[other])}) and {label!r} ({_at(first[label])}) differ only"
                " in case, white space or how a number is written, and are probably the same; write them"
                " alike"
            )


def _folded(label: str) -> str:
    if re.fullmatch(r"\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\s*", label):
        return repr(float(label))
    return " ".join(label.split()).casefold()


def _repeated(examples: Sequence[LabelledText]) -> list[str]:
    met: dict[str, LabelledText] = {}
    again: list[tuple[LabelledText, LabelledText]] = []
    apart: list[tuple[LabelledText, LabelledText]] = []
    for example in examples:
        earlier = met.setdefault(text_key(example), example)
        if earlier is not example:
            (again if set(earlier.labels) == set(example.labels) else apart).append((example, earlier))
    return [
        f"{len(found):,} {'examples repeat' if len(found) > 1 else 'example repeats'} an earlier text with"
        f" {how} (first: {_at(found[0][0])}, before: {_at(found[0][1])})"
        for found, how in ((again, "the same labels"), (apart, "other labels"))
        if found
    ]


def labels_of(
    examples: Iterable[LabelledText | TaggedWords],
) -> Iterator[tuple[str, LabelledText | TaggedWords]]:
    """Each label and tag, and the example that has it."""
    for example in examples:
        for label in example.labels if isinstance(example, LabelledText) else example.tags:
            yield label, example


def check_known(
    examples: Iterable[LabelledText | TaggedWords],
    order: Sequence[str],
    unseen: Literal["error", "ignore"] = "error",
) -> list[str]:
    """A sentence on labels (or tags) that a model has not got, if there are any and they may be.

    Raises DataError where they may not.
    """
    known = frozenset(order)
    counts: Counter[str] = Counter()
    first: LabelledText | TaggedWords | None = None
    for label, example in labels_of(examples):
        if label not in known:
            counts[label] += 1
            first = first or example
    if first is None:
        return []
    listed = ", ".join(f"{label!r} ({number:,})" for label, number in counts.most_common(SHOWN)) + ", ..." * (
        len(counts) > SHOWN
    )
    what = f"labels that the training has not got: {listed}"
    if unseen == "ignore":
        return [f"{what} (first: {_at(first)}); every answer to it is wrong"]
    shown = ", ".join(map(repr, order[: 4 * SHOWN])) + ", ..." * (len(order) > 4 * SHOWN)
    raise DataError(
        f"{what}; known are {shown}; correct them, or count them as answered wrongly with --set"
        " data.unseen_labels=ignore",
        first.path,
        first.line,
    )


def check_leak(training: Iterable[LabelledText], others: Sequence[LabelledText]) -> list[str]:
    """A sentence on examples whose texts stand in the training too, if there are any."""
    known: dict[str, LabelledText] = {}
    for example in training:
        known.setdefault(text_key(example), example)
    found = [(example, known[key]) for example in others if (key := text_key(example)) in known]
    if not found:
        return []
    apart = sum(set(example.labels) != set(other.labels) for example, other in found)
    where = f"(first: {_at(found[0][0])}, there: {_at(found[0][1])})"
    other = f", {apart:,} of them with other labels" if apart else ""
    return [
        (
            f"{len(found):,} of {len(others):,} examples stand in the training too{other} {where}: they measure"
            " memory"
        )
    ]
