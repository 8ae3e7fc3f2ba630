"""Masks: what is chosen, what becomes of it, and that nothing of a target can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.campaigns.masks import WAYS, Findings, examine, prepare

from seqloom.data.encoding.masks import (
    Ids,
    MaskedRow,
    MaskOptions,
    apply_masks,
    draw_spans,
    joined_row,
    word_numbers,
)
from seqloom.shapes import IGNORE
from seqloom.text.tokenizers import train_tokenizer

SENTENCES = [
    f"The {a} {b} {c}-like {d}; it isn't {b}."
    for a in ("old", "uncommonly", "red")
    for b in ("unsinkable", "boat", "boats")
    for c in ("wave", "ship")
    for d in ("harbour", "harbours")
]
DOCUMENTS = "\n".join(" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in range(0, 36, 2)) + "\n"
ROWS = 300


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("masks") / "text.txt"
    path.write_text(DOCUMENTS * 2)
    return str(path)


def found(text: str, tmp_path: Path, way: str, *settings: str, **changes: Any) -> Findings:
    return examine(
        prepare([text], tmp_path, way, 64, "data.vocabulary=350", *settings), ROWS, **changes
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_shares_are_those_of_the_papers(text: str, tmp_path: Path, way: str) -> None:
    """And no law of a row is broken; `python -m tests.campaigns.masks` says the same of 10,000 rows of any
    text."""
    one = found(text, tmp_path, way)
    assert one.broken() == 0
    # short rows have at least one chosen token, which is more than their share
    assert one.chosen / one.tokens == pytest.approx(0.15, abs=0.008)
    assert max(map(abs, one.errors().values())) < 4.5
    if one.labels:
        assert np.mean(one.labels) == pytest.approx(0.5, abs=4.5 * 0.5 / ROWS**0.5)


def test_a_planted_leak_is_caught(text: str, tmp_path: Path) -> None:
    def telling(ids: Ids, options: MaskOptions, random: np.random.Generator) -> MaskedRow:
        """The random token is the one after the true one."""
        one = apply_masks(ids, options, random)
        replaced = (one.targets != IGNORE) & (one.inputs != ids) & (one.inputs != options.mask)
        following = options.drawn[(np.searchsorted(options.drawn, ids) + 1) % len(options.drawn)]
        return one._replace(inputs=np.where(replaced, following, one.inputs))

    def forgetful(ids: Ids, options: MaskOptions, random: np.random.Generator) -> MaskedRow:
        """Every other mask is forgotten."""
        one = apply_masks(ids, options, random)
        forgotten = (one.inputs == options.mask) & (np.arange(len(ids)) % 2 == 0)
        return one._replace(inputs=np.where(forgotten, ids, one.inputs))

    assert found(text, tmp_path, "tokens", masking=telling).told > ROWS / 4
    assert found(text, tmp_path, "tokens", masking=forgetful).errors()["kept"] > 50


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "words", "characters"])
def test_words_are_found_in_the_pieces_of_any_tokenizer(kind: str) -> None:
    text = "the unsinkable boat-like boats, is it?"
    tokenizer = train_tokenizer([DOCUMENTS, text], kind, 330).with_mask()
    options = MaskOptions.of(tokenizer, 0.15, "words", 3.0)
    (ids,) = tokenizer.encode([text])
    row, _ = joined_row([np.asarray(ids, np.int64)], (1,), (), (2,))
    free = np.flatnonzero(~options.protected[row])
    numbers = word_numbers(row, free, options)
    parts = [b"" for _ in range(int(numbers[-1]) + 1)]
    for place, number in zip(free, numbers, strict=True):
        parts[number] += tokenizer.token_bytes[row[place]]
    spelled = [one.decode().strip() for one in parts]
    if kind == "characters":
        # a space is a sign of its own
        spelled = [one for one in spelled if one]
    expected = ["the", "unsinkable", "boat", "-", "like", "boats", ",", "is", "it", "?"]
    assert spelled == expected


def test_spans_fill_their_share_in_all_arrangements() -> None:
    """Of five words two, in spans of one or two: each pair of places is met."""
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        spans = draw_spans(5, 2, 1.5, random)
        assert (spans >= 0).sum() == 2
        seen.add(tuple(np.flatnonzero(spans >= 0).tolist()))
    assert len(seen) == 10
    spans = draw_spans(12_000, 6000, 5, random)
    lengths = np.bincount(spans[spans >= 0])
    # "yields a mean span length of 3.8" (Joshi et al. 2020)
    assert lengths.max() == 10
    assert lengths.mean() == pytest.approx(3.8, abs=0.2)
    assert np.bincount(draw_spans(90, 30, 1, random) + 1)[1:].max() == 1


def test_a_row_of_special_tokens_has_no_masks() -> None:
    tokenizer = train_tokenizer([DOCUMENTS], "wordpiece", 200).with_mask()
    options = MaskOptions.of(tokenizer, 0.15, "tokens", 3.0)
    row, segments = joined_row([np.zeros(0, np.int64)], (1,), (), (2,))
    one = apply_masks(row, options, np.random.default_rng(0))
    assert (one.inputs.tolist(), one.targets.tolist()) == ([1, 2], [IGNORE] * 2)
    pair, segments = joined_row([np.array([20]), np.array([21, 22])], (1,), (2,), (2,))
    assert (pair.tolist(), segments.tolist()) == ([1, 20, 2, 21, 22, 2], [0, 0, 0, 1, 1, 1])
