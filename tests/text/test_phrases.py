"""Words are joined as word2phrase joins them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from seqloom.config import DataConfig
from seqloom.text import phrases as module
from seqloom.text.phrases import Phrases

WORDS = DataConfig(tokenizer="words", normalisation="lower")


def learned(texts: list[str], threshold: float, data: DataConfig = WORDS) -> Phrases:
    phrases = Phrases(data)
    phrases.learn(texts, threshold)
    return phrases


def word2phrase(texts: list[str], threshold: float) -> list[str]:
    """As the program reads: pa and pb are the counts of the last word and of this one, 0 after a join."""
    words = Counter(word for text in texts for word in text.split())
    pairs = Counter(
        pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False)
    )
    joined = []
    for text in texts:
        out, last, is_free = "", "", False
        for word in text.split():
            score = 0.0
            if last and is_free:
                score = (pairs[last, word] - 5) / words[last] / words[word] * words.total()
            is_free = score <= threshold
            out += (" " if is_free else "_") + word
            last = word
        joined.append(out.strip())
    return joined


def test_texts_are_joined_as_by_the_program() -> None:
    random = np.random.default_rng(0)
    texts = []
    for _ in range(300):
        words = random.choice([*"abcdefgh", "new york", "new york city", "san san"], 10)
        texts.append(" ".join(words))
    for threshold in (1.0, 2.0, 5.0):
        phrases = learned(texts, threshold)
        wanted = word2phrase(texts, threshold)
        assert [phrases.join(text) for text in texts] == wanted
        assert any("new_york" in text for text in wanted)
    assert learned(texts, 1000.0).counts == {}


@pytest.mark.parametrize(
    ("text", "data", "joined"),
    [
        ("In New\n York, new york.", WORDS, "In New_York, new_york."),
        ("new, york new-york", WORDS, "new, york new-york"),
        ("new york york", WORDS, "new_york york"),
        ("New york", DataConfig(tokenizer="words"), "New york"),
        ("a new york", DataConfig(tokenizer="whitespace"), "a new_york"),
        ("a new york.", DataConfig(tokenizer="whitespace"), "a new york."),
        ("", WORDS, ""),
    ],
)
def test_only_what_white_space_divides_is_joined(text: str, data: DataConfig, joined: str) -> None:
    texts = ["new york"] * 20 + [f"{word} x y" for word in "abcdefgh"] * 20
    assert learned(texts, 2.0, data).join(text) == joined


def test_the_rarest_pairs_are_left_out_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [f"new york w{number} v{number}" for number in range(1000)]
    whole = learned(texts, 0.5).counts
    monkeypatch.setattr(module, "MOST_PAIRS", 10)
    assert learned(texts, 0.5).counts == whole == {("new", "york"): 1000}
