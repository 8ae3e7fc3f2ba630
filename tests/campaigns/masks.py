"""Masks and pairs of sentences over many rows, from text through a tokenizer: what the papers say, measured.

    python -m tests.campaigns.masks FILES ... [--rows 10000] [--window 128] [--document file]

Of each way to make rows it prints the share of chosen tokens, in percent; the shares of the chosen that
became the mask, a random token, or stayed, each with how many standard errors it is off; the share of pairs
whose second text is from elsewhere; and how often a law does not hold: a special token chosen or drawn, a row
that tells what was masked (it changes with the true ids), a second text of the same document under the label
that it is from another, other masks when the same row is made again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from seqloom.data.encoding.masks import Ids, MaskedRow, MaskOptions, apply_masks
from seqloom.shapes import IGNORE
from seqloom.tasks.fill_mask.masked_rows import MASKS, TextRow
from seqloom.tasks.fill_mask.training_data import MaskedCorpus, prepare_masked_corpus
from seqloom.tasks.settings import resolve

WAYS: dict[str, tuple[str, list[str]]] = {
    "tokens": ("bert:tiny", []),
    "words": ("bert:tiny", ["train.mask_units=words"]),
    "spans": ("bert:tiny", ["train.mask_units=spans", "train.noise_span=5"]),
    "next": ("bert:tiny", ["train.sentence_pairs=next"]),
    "order": ("bert:tiny", ["train.sentence_pairs=order"]),
    "roberta": ("bert:roberta-small", ["train.mask_units=words"]),
}
Masking = Callable[[Ids, MaskOptions, np.random.Generator], MaskedRow]


@dataclass
class Findings:
    """Of one way to make rows."""

    rows: int = 0
    tokens: int = 0
    chosen: int = 0
    masked: int = 0
    replaced: int = 0
    """By another token; a random one may be the true one, which counts as kept."""
    kept: int = 0
    groups: int = 0
    """Decisions between mask, random token and true token: tokens, or spans."""
    labels: list[int] = field(default_factory=list)
    special: int = 0
    told: int = 0
    same_document: int = 0
    not_repeated: int = 0
    without: int = 0
    """Rows of which nothing is chosen, though they hold a token."""

    def errors(self) -> dict[str, float]:
        """How many standard errors each share is off."""
        shares = {"masked": 0.8, "replaced": 0.1, "kept": 0.1}
        off = {}
        for name, share in shares.items():
            deviation = math.sqrt(share * (1 - share) / max(self.groups, 1))
            off[name] = (vars(self)[name] / max(self.chosen, 1) - share) / deviation
        return off

    def broken(self) -> int:
        return self.special + self.told + self.same_document + self.not_repeated + self.without


def prepare(
    files: Sequence[str], folder: Path, way: str, window: int, *settings: str
) -> MaskedCorpus:
    model, more = WAYS[way]
    fixed = [f"model.context={window}", f"train.window={window}", "train.batch_rows=64"]
    run = resolve("fill-mask", files, "", model, (), [*fixed, *more, *settings], None)
    return prepare_masked_corpus(run, folder, first=True)


def examine(data: MaskedCorpus, rows: int, masking: Masking = apply_masks) -> Findings:
    """The laws over the first rows, from as many epochs as it takes."""
    found, random = Findings(), np.random.default_rng(0)
    for epoch in itertools.count():
        for batch in data.batches(epoch, 0):
            for number in batch.tolist():
                _examine_row(found, data, number, masking, random)
                if found.rows == rows:
                    return found
    raise AssertionError


def _examine_row(
    found: Findings, data: MaskedCorpus, number: int, masking: Masking, random: np.random.Generator
) -> None:
    options = data.rows.options
    text = data.rows.text(data.corpus, number)
    key = [*_place(data, number), MASKS]
    one = masking(text.ids, options, np.random.default_rng([data.rows.seed, *key]))
    chosen = one.targets != IGNORE
    free = ~options.protected[text.ids]
    found.rows += 1
    found.tokens += int(free.sum())
    found.chosen += int(chosen.sum())
    found.without += bool(free.any()) and not chosen.any()
    found.masked += int((one.inputs[chosen] == options.mask).sum())
    kept = chosen & (one.inputs == text.ids)
    found.kept += int(kept.sum())
    found.replaced += int((chosen & ~kept & (one.inputs != options.mask)).sum())
    found.groups += _groups(chosen, options)
    drawn = one.inputs[one.inputs != text.ids]
    found.special += int((chosen & ~free).sum())
    found.special += int((options.protected[drawn] & (drawn != options.mask)).sum())
    hidden = chosen & ~kept
    again = masking(
        _other_ids(text.ids, hidden, options, random),
        options,
        np.random.default_rng([data.rows.seed, *key]),
    )
    found.told += not np.array_equal(again.inputs, one.inputs)
    found.not_repeated += not np.array_equal(
        data.rows.masked(data.corpus, number, text.ids).inputs, one.inputs
    )
    _examine_pair(found, data, number, text)


def _place(data: MaskedCorpus, number: int) -> tuple[int, int]:
    return divmod(number, data.rows.texts.period(data.corpus))


def _groups(chosen: np.ndarray, options: MaskOptions) -> int:
    """Chosen tokens that are decided by themselves; of spans about as many as there are runs."""
    if options.units != "spans":
        return int(chosen.sum())
    return int((chosen[1:] & ~chosen[:-1]).sum() + chosen[0])


def _other_ids(
    ids: Ids, hidden: np.ndarray, options: MaskOptions, random: np.random.Generator
) -> Ids:
    """Other tokens at the hidden places, which begin and end words as those do."""
    changed = ids.copy()
    kinds = options.begins_inside * 2 + options.ends_inside
    for place in np.flatnonzero(hidden):
        alike = options.drawn[kinds[options.drawn] == kinds[ids[place]]]
        changed[place] = alike[random.integers(len(alike))]
    return changed


def _examine_pair(found: Findings, data: MaskedCorpus, number: int, text: TextRow) -> None:
    """Both texts are looked for where the plan says, by their documents."""
    if text.label == IGNORE:
        return
    found.labels.append(text.label)
    epoch, place = _place(data, number)
    pairs = data.rows.texts
    begins = pairs.text_begins(data.corpus, place, epoch)  # type: ignore[attr-defined]
    documents = np.searchsorted(data.corpus.offsets, begins, side="right")
    from_another = data.run.train.sentence_pairs == "next" and text.label == 1
    found.same_document += bool((documents[0] == documents[1]) == from_another)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--document", default="file")
    given = parser.parse_args()
    print(
        "| rows | tokens | chosen, % | mask, % (off) | random, % (off) | kept, % (off) | from elsewhere, %"
        " | laws broken |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            settings = f"data.document={given.document}"
            data = prepare(given.files, Path(folder), way, given.window, settings)
            one = examine(data, given.rows)
        off = one.errors()
        shares = " | ".join(
            f"{100 * vars(one)[name] / one.chosen:.2f} ({off[name]:+.1f})" for name in off
        )
        elsewhere = f"{100 * np.mean(one.labels):.2f}" if one.labels else ""
        print(
            f"| {way} | {one.tokens:,} | {100 * one.chosen / one.tokens:.2f} | {shares} | {elsewhere}"
            f" | {one.broken()} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
