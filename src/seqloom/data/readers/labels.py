"""Labels: their order, and what is checked before they are trained on or measured against."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from seqloom.data.formats.columns import first_few
from seqloom.data.readers.examples import Example, LabelledExample, LabelledText
from seqloom.errors import DataError, counted, place

MOST_UNEQUAL = 100
"""A label with so many times more examples than another is noted."""
NO_LABEL = {
    *("-", "--", "_", "?", "n/a", "na", "nan", "#n/a", "null", "none", "undefined"),
    *("no label", "no_label", "unlabeled", "unlabelled"),
}
"""Labels that often mean: no label."""
SHOWN = 5
"""Labels that a message lists."""

Labelled = TypeVar("Labelled", bound=LabelledExample)


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Different labels in the order that a model keeps: whole numbers by size, else by their characters."""
    distinct = set(labels)
    if all(label.isascii() and label.removeprefix("-").isdigit() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def text_key(example: LabelledText) -> str:
    """Equal for examples whose texts differ in nothing but case and white space."""
    texts = (example.text,) if example.second is None else (example.text, example.second)
    return "\n".join(" ".join(text.split()).casefold() for text in texts)


def check_labels(examples: Sequence[LabelledText]) -> list[str]:
    """What is odd in examples to train on, in sentences: labels of one example, far more examples of one
    label than of another, texts that are repeated, with the same or other labels.

    Raises DataError if all have one label, and where two labels differ only in case, white space or how a
    number is written.
    """
    first: dict[str, LabelledText] = {}
    for label, example in labels_of(examples):
        first.setdefault(label, example)
    _refuse_similar(first)
    counts = Counter(label for label, _ in labels_of(examples))
    if len(counts) < 2 and all(example.labels for example in examples):
        raise _all_alike(
            "at least two different labels", [repr(label) for label in counts], examples
        )
    notices = [
        f"the label {label!r} ({counted(counts[label], 'example', 'examples')}, first:"
        f" {_place(first[label])}) looks like no label; to leave its rows out: --set"
        f" {shlex.quote(f'data.no_label={label}')}"
        for label in counts
        if _means_none(label, counts)
    ]
    single = [label for label, number in counts.items() if number == 1]
    if single:
        shown = first_few([f"{label!r} ({_place(first[label])})" for label in single], SHOWN)
        labels = "labels have" if len(single) > 1 else "label has"
        notices.append(f"{len(single)} {labels} only one example: {shown}")
    if counts:
        (large, most), (small, least) = (
            max(counts.items(), key=_by_count),
            min(counts.items(), key=_by_count),
        )
        if most > MOST_UNEQUAL * least:
            notices.append(
                f"the labels are very unequal: {most:,} examples of {large!r}, {least:,} of {small!r}; to"
                " weigh them alike: --set head.class_weights=balanced"
            )
    return notices + _repeated(examples)


def check_numbers(examples: Sequence[LabelledText]) -> None:
    """Raises DataError if numbers to train on do not differ."""
    numbers = {float(label) for label, _ in labels_of(examples)}
    if len(numbers) < 2:
        raise _all_alike("different numbers", [f"{number:g}" for number in numbers], examples)


def _all_alike(must: str, answers: Sequence[str], examples: Sequence[LabelledText]) -> DataError:
    """`answers`: the only one, or none."""
    path = next((example.path for example in examples), None)
    only = f"all {len(examples)} have {answers[0]}" if answers else "there is none"
    return DataError(f"examples to train on must have {must}, but {only}", path)


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _place(example: Example) -> str:
    return place(example.path, example.line)


def _refuse_similar(first: dict[str, LabelledText]) -> None:
    known: dict[str, str] = {}
    for label in first:
        other = known.setdefault(_folded(label), label)
        if other != label:
            raise DataError(
                f"the labels {other!r} ({_place(first[other])}) and {label!r} ({_place(first[label])}) differ"
                " only in case, white space or how a number is written, and are probably the same; write them"
                " alike"
            )


def _folded(label: str) -> str:
    if re.fullmatch(r"\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\s*", label):
        return repr(float(label))
    return " ".join(label.split()).casefold()


def _means_none(label: str, labels: Collection[str]) -> bool:
    """Whether a label looks like none: by its name, or -1 beside numbers that count from 0 to 2 or more."""
    if label == "-1":
        return {"0", "1", "2"} <= set(labels)
    return label.strip().casefold() in NO_LABEL


def _repeated(examples: Sequence[LabelledText]) -> list[str]:
    known: dict[str, LabelledText] = {}
    with_same: list[tuple[LabelledText, LabelledText]] = []
    with_other: list[tuple[LabelledText, LabelledText]] = []
    for example in examples:
        earlier = known.setdefault(text_key(example), example)
        if earlier is not example:
            same = set(earlier.labels) == set(example.labels)
            (with_same if same else with_other).append((example, earlier))
    notices = []
    for pairs, labels in ((with_same, "the same labels"), (with_other, "other labels")):
        if pairs:
            repeat = "examples repeat" if len(pairs) > 1 else "example repeats"
            example, earlier = pairs[0]
            notices.append(
                f"{len(pairs):,} {repeat} an earlier text with {labels} (first: {_place(example)}, before:"
                f" {_place(earlier)})"
            )
    return notices


def labels_of(examples: Iterable[Labelled]) -> Iterator[tuple[str, Labelled]]:
    """Each label and tag, and the example that has it."""
    for example in examples:
        for label in example.labels:
            yield label, example


def check_known(
    examples: Iterable[LabelledExample],
    order: Sequence[str],
    unseen: Literal["error", "ignore"] = "error",
) -> list[str]:
    """A sentence on labels (or tags) that a model does not have, if there are any and they may be.

    Raises DataError if they may not.
    """
    known = frozenset(order)
    unknown = [(label, example) for label, example in labels_of(examples) if label not in known]
    if not unknown:
        return []
    first = unknown[0][1]
    counts = Counter(label for label, _ in unknown)
    listed = [f"{label!r} ({number:,})" for label, number in counts.most_common(SHOWN + 1)]
    what = f"labels that the training has not got: {first_few(listed, SHOWN)}"
    if unseen == "ignore":
        return [f"{what} (first: {_place(first)}); every answer to it is wrong"]
    names = first_few([repr(label) for label in order], 4 * SHOWN)
    raise DataError(
        f"{what}; known are {names}; correct them, or count them as answered wrongly with --set"
        " data.unseen_labels=ignore",
        first.path,
        first.line,
    )


def check_leak(training: Iterable[LabelledText], others: Sequence[LabelledText]) -> list[str]:
    """A sentence on examples whose texts are in the training data too, if there are any."""
    known: dict[str, LabelledText] = {}
    for example in training:
        known.setdefault(text_key(example), example)
    found = [(example, known[key]) for example in others if (key := text_key(example)) in known]
    if not found:
        return []
    differing = sum(set(example.labels) != set(other.labels) for example, other in found)
    where = f"(first: {_place(found[0][0])}, there: {_place(found[0][1])})"
    other = f", {differing:,} of them with other labels" if differing else ""
    repeated = f"{len(found):,} of {len(others):,} examples stand in the training too"
    return [f"{repeated}{other} {where}: they measure memory"]
