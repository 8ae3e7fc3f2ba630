"""Every kind of noise over many documents, from text through a tokenizer: what the papers say, measured.

    python -m tests.campaigns.noise FILES ... [--documents 10000] [--window 128] [--tokenizer bpe]

A document ends at a blank line. Of each kind it prints the share of corrupted tokens with the share that is
asked for, the p-value of the lengths (of random spans: all partitions are equally likely; of infilling:
Poisson), and how often a law does not hold: an unknown token lost from the source, a text that source and
target do not rebuild, the same noise in two epochs (of documents that fill the window: short ones have few
ways to be corrupted), other noise when the same document is read again.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

import numpy as np
from numpy.random import Generator
from scipy.stats import chisquare, poisson  # type: ignore[import-untyped]

from seqloom.config import DataConfig, TrainConfig
from seqloom.data.encoding.noise import (
    BART_NOISE,
    T5_NOISE,
    Denoising,
    Ids,
    NoiseOptions,
    apply_noise,
    noise_counts,
)
from seqloom.tasks.denoising.noisy_windows import noisy_windows
from seqloom.tasks.language_modeling.documents import each_piece
from seqloom.text.special_tokens import UNK
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

NAMES = (*((name,) for name in (*T5_NOISE, *BART_NOISE)), ("sentence-permutation", "infilling"))
"""All kinds, and BART's own choice."""
CHANGES_ORDER = {"deshuffling", "sentence-permutation", "document-rotation"}


class RecordingGenerator:
    """A generator that keeps the lengths of spans which `infilling` draws."""

    def __init__(self, seed: Sequence[int]) -> None:
        self.generator, self.lengths = np.random.default_rng(seed), list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def poisson(self, mean: float) -> int:
        self.lengths.append(int(self.generator.poisson(mean)))
        return self.lengths[-1]


@dataclass
class Findings:
    """Of one kind of noise."""

    documents: int = 0
    tokens: int = 0
    corrupted: int = 0
    expected: float = 0.0
    unknown_lost: int = 0
    not_rebuilt: int = 0
    same_in_two_epochs: int = 0
    not_repeated: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    """How many spans have each length."""
    law: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """How many are expected to have it."""

    def p_value(self) -> float | None:
        """Of the lengths of spans; None for noise without spans."""
        if not self.lengths:
            return None
        kept = [length for length in sorted(self.law) if self.law[length] >= 5]
        found = np.array([self.lengths[length] for length in kept], float)
        law = np.array([self.law[length] for length in kept], float)
        found = np.append(found, self.lengths.total() - found.sum())
        law = np.append(law, sum(self.law.values()) - law.sum())
        if law[-1] < 5:
            found[-2], law[-2] = found[-2:].sum(), law[-2:].sum()
            found, law = found[:-1], law[:-1]
        return float(chisquare(found, law * found.sum() / law.sum()).pvalue)


def examine(
    names: tuple[str, ...], documents: Sequence[Ids], tokenizer: TextTokenizer, window: int
) -> Findings:
    """The laws of one kind of noise over documents."""
    options = noisy_windows(TrainConfig(noise=names, window=window), tokenizer).options
    found = Findings()
    for number, ids in enumerate(documents):
        recording: Any = RecordingGenerator([0, 0, number])
        one = apply_noise(names, ids, options, recording)
        again = apply_noise(names, ids, options, np.random.default_rng([0, 0, number]))
        other = apply_noise(names, ids, options, np.random.default_rng([0, 1, number]))
        found.documents += 1
        found.tokens += len(ids)
        found.corrupted += int(one.corrupted.sum())
        found.expected += expected_corruption(names, ids, options)
        if names != ("prefix-lm",):
            found.unknown_lost += int((ids == UNK).sum() - (one.source == UNK).sum())
        found.not_repeated += not same(one, again)
        found.same_in_two_epochs += len(ids) == window - 1 and same(one, other)
        found.not_rebuilt += not rebuilds(names, ids, one, options)
        count_spans(found, names, ids, one, options, recording.lengths)
    return found


def same(one: Denoising, other: Denoising) -> bool:
    return np.array_equal(one.source, other.source) and np.array_equal(one.target, other.target)


def expected_corruption(names: tuple[str, ...], ids: Ids, options: NoiseOptions) -> float:
    """How many tokens of a text are corrupted on average, by the papers."""
    free = int((~options.protected[ids]).sum())
    if names == ("random-spans",):
        return noise_counts(len(ids), options.density, options.span)[0] * free / len(ids)
    if "infilling" in names:
        return round(len(ids) * options.density) * free / len(ids)
    if names == ("prefix-lm",):
        # the cut is uniform on 1, ..., n - 1
        return len(ids) / 2
    return 0.0 if names[0] in CHANGES_ORDER else free * options.density


def rebuilds(names: tuple[str, ...], ids: Ids, one: Denoising, options: NoiseOptions) -> bool:
    """Whether source and target together give the text back, as far as the kind keeps it."""
    text, source, target = (
        cast(list[int], part.tolist()) for part in (ids, one.source, one.target)
    )
    kept = cast(list[int], ids[~one.corrupted].tolist())
    kind = names[-1]
    if kind in ("random-spans", "iid-spans"):
        return filled_in(source, target, options.sentinels.tolist()) == text
    if kind == "prefix-lm":
        return source + target == text
    if kind == "iid-drop":
        return merged(source, target, one.corrupted) == text and len(source) + len(target) == len(
            text
        )
    if target != text:
        return False
    if kind in CHANGES_ORDER:
        return sorted(source) == sorted(text)
    if kind == "deletion":
        return source == kept
    if kind in ("bert", "mass", "masking"):
        clean = cast(list[int], one.source[~one.corrupted].tolist())
        return len(source) == len(text) and clean == kept
    left = [token for token in source if token != options.mask]
    if len(names) > 1:
        lost = Counter(text) - Counter(left)
        return Counter(left) <= Counter(text) and lost.total() == int(one.corrupted.sum())
    return left == kept


def filled_in(source: list[int], target: list[int], sentinels: list[int]) -> list[int] | None:
    """The source with what the target says for each sentinel; None where sentinels are not in their order, or
    the target does not close with the next one."""
    spans: list[list[int]] = []
    for token in target:
        if token in sentinels:
            if token != sentinels[len(spans)]:
                return None
            spans.append([])
        else:
            spans[-1].append(token)
    if not spans or spans[-1]:
        return None
    text: list[int] = []
    used = 0
    for token in source:
        if token in sentinels:
            if token != sentinels[used]:
                return None
            text += spans[used]
            used += 1
        else:
            text.append(token)
    return text if used == len(spans) - 1 else None


def merged(source: list[int], target: list[int], corrupted: Any) -> list[int]:
    """The text of which `iid-drop` read the clean tokens and wrote the others."""
    parts = {False: iter(source), True: iter(target)}
    return [next(parts[bool(one)]) for one in corrupted]


def count_spans(
    found: Findings,
    names: tuple[str, ...],
    ids: Ids,
    one: Denoising,
    options: NoiseOptions,
    drawn: list[int],
) -> None:
    """Adds the lengths of a text's spans, and their law."""
    if "infilling" in names:
        found.lengths.update(drawn)
        law = poisson(options.span)
        for length in range(int(law.ppf(1 - 1e-9))):
            found.law[length] += len(drawn) * law.pmf(length)
        return
    # a protected token breaks a span
    if names != ("random-spans",) or options.protected[ids].any() or len(ids) < 2:
        return
    runs = [len(list(run)) for is_noise, run in groupby(one.corrupted.tolist()) if is_noise]
    noise, spans = noise_counts(len(ids), options.density, options.span)
    assert (sum(runs), len(runs)) == (noise, spans)
    # the first only: the lengths of a text's spans are not independent
    found.lengths[runs[0]] += 1
    ways = math.comb(noise - 1, spans - 1)
    for length in range(1, noise - spans + 2):
        rest = math.comb(noise - length - 1, spans - 2) if spans > 1 else int(length == noise)
        found.law[length] += rest / ways


def documents_of(
    paths: Sequence[str], kind: str, count: int, window: int
) -> tuple[TextTokenizer, list[Ids]]:
    """A tokenizer of these texts, and the ids of the first that have two tokens or more, up to a
    window each."""
    texts: list[str] = []
    for piece in each_piece(paths, DataConfig(document="paragraph"), notices=False):
        texts.append(piece.text)
        if len(texts) == 2 * count:
            break
    wanted = TrainConfig(noise=("iid-spans",), window=window)
    tokenizer = train_tokenizer(texts, kind, 8000).with_sentinels((wanted.window or 0) // 2 + 2)
    encoded = (np.asarray(ids[: window - 1], np.int64) for ids in tokenizer.encode(texts))
    return tokenizer, [ids for ids in encoded if len(ids) > 1][:count]


def with_unknown(documents: Sequence[Ids], random: Generator) -> list[Ids]:
    """The same with a protected token in every tenth of them."""
    changed = [ids.copy() for ids in documents]
    for ids in changed[::10]:
        ids[random.integers(len(ids))] = UNK
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--tokenizer", default="bpe")
    given = parser.parse_args()
    tokenizer, documents = documents_of(given.files, given.tokenizer, given.documents, given.window)
    documents = with_unknown(documents, np.random.default_rng(0))
    print(f"{len(documents):,} documents, {sum(map(len, documents)):,} tokens")
    print(
        "| noise | corrupted, % (asked) | p of span lengths | unknown lost | not rebuilt"
        " | same in two epochs | not repeated |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for names in NAMES:
        one = examine(names, documents, tokenizer, given.window)
        p_value = one.p_value()
        print(
            f"| {', '.join(names)} | {100 * one.corrupted / one.tokens:.2f}"
            f" ({100 * one.expected / one.tokens:.2f}) | {'' if p_value is None else f'{p_value:.2f}'}"
            f" | {one.unknown_lost} | {one.not_rebuilt} | {one.same_in_two_epochs}"
            f" | {one.not_repeated} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
