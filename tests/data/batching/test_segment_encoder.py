"""The encoder with a memory gives what the tokenizer gives, whatever it remembers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.readers.test_documents import TEXTS

import seqloom.data.batching.segment_encoder
from seqloom.data.batching.segment_encoder import SegmentEncoder
from seqloom.text.special_tokens import SPECIAL_IDS
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer

TEXT = [
    "the cat's  1st \n\n é漢 \u3000 it's the catalogue of the cats\n" * 3,
    "e\u0301 a\u0308 \u2000 cats  cats\t\tcats",
]


@pytest.fixture(scope="module")
def tokenizers() -> list[TextTokenizer]:
    return [train_tokenizer(TEXT, kind, 330, form) for kind in KINDS for form in ("none", "nfc")]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chunks=st.lists(st.lists(TEXTS, max_size=4), max_size=4), most=st.integers(0, 6))
def test_it_is_the_tokenizer(
    chunks: list[list[str]],
    most: int,
    tokenizers: list[TextTokenizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seqloom.data.batching.segment_encoder, "MOST", most)
    monkeypatch.setattr(seqloom.data.batching.segment_encoder, "LONGEST", 3)
    for tokenizer in tokenizers:
        encoder = SegmentEncoder(tokenizer, "H")
        for texts in chunks:
            found = [np.frombuffer(ids, np.uint16).tolist() for ids in encoder.encode(texts)]
            assert found == tokenizer.encode(texts)


def test_what_it_remembers_is_not_tokenised_again_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Spy:
        vocabulary_size = 2**20
        token_bytes: Sequence[bytes] = ()
        text_separator = b""

        special_ids = SPECIAL_IDS
        space_prefix = b""
        space_suffix = b""

        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            asked.extend(texts)
            return [list(map(ord, text)) for text in texts]

        def decode(self, ids: Sequence[int]) -> str:
            return ""

        def pieces(self, ids: Sequence[int]) -> list[str]:
            return []

    monkeypatch.setattr(seqloom.data.batching.segment_encoder, "MOST", 100)
    encoder = SegmentEncoder(Spy(), "I")
    for number in range(2000):
        encoder.encode([f"the cat {number} sat {'x' * 200}{number}"])
        assert len(encoder.young) + len(encoder.old) <= 220
        assert sum(map(len, encoder.young)) < 1000
    assert sorted(text for text in asked if not text[-1].isdigit()) == [" cat", " sat", "the"]
