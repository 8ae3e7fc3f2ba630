"""Offsets of tokens: for every kind of tokenizer they lead back to the text."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer
from seqloom.text.offsets import covering, offsets_of
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer

THAI, CHINESE = "ประเทศไทยมีกรุงเทพเป็นเมืองหลวง น้ำใจ 2 คน", "北京是中华人民共和国的首都。上海 1946 年"
TEXTS = [
    THAI,
    CHINESE,
    "The cat sat on the mat, naïve café; Größe 7.",
    "नमस्ते दुनिया",
    "👩‍👩‍👧 🦊 e\u0301 각 \u1112\u1161\u11ab",
]


@cache
def trained(kind: str, normalisation: str) -> TextTokenizer:
    return train_tokenizer(TEXTS * 5, kind, 400, normalisation)  # type: ignore[arg-type]


@cache
def uncased() -> HubTokenizer:
    """As uncased BERT has it: lower case, accents and what cannot be seen dropped, each Chinese character a
    word."""
    letters = sorted(
        {c for text in TEXTS for c in unicodedata.normalize("NFD", text.lower()) if not c.isspace()}
    )
    entries = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "cat",
        "##at",
        *letters,
        *(f"##{c}" for c in letters),
    ]
    special = [
        {
            "id": at,
            "content": one,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for at, one in enumerate(entries[:5])
    ]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {entry: at for at, entry in enumerate(entries)},
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(json.dumps(content))
        return read_hub_tokenizer(Path(folder), {"model_type": "bert", "vocab_size": len(entries)})


ALL = [(kind, normalisation) for kind in KINDS for normalisation in ("none", "nfc")]


def check(tokenizer: TextTokenizer | HubTokenizer, text: str) -> list[tuple[int, int]]:
    """The laws of offsets; returns them."""
    (found,), (ids,) = offsets_of(tokenizer, [text]), tokenizer.encode([text])
    assert len(found) == len(ids)
    assert all(0 <= begin <= end <= len(text) for begin, end in found)
    assert all(one[0] <= other[0] and one[1] <= other[1] for one, other in pairwise(found))
    return found


@pytest.mark.parametrize(("kind", "normalisation"), ALL)
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"])
        | st.sampled_from([*"".join(TEXTS), "\u0301", "\u200b", "\u3000", "\x85"])
    )
)
@example(text="e\u0301\u0327 o\u0308x \u0301")
@example(text="")
def test_offsets_of_ours_leave_out_nothing_but_white_space(
    kind: str, normalisation: str, text: str
) -> None:
    found = check(trained(kind, normalisation), text)
    held = {at for begin, end in found for at in range(begin, end)}
    assert all(at in held or c.isspace() for at, c in enumerate(text))
    for begin, end in found:
        assert text[begin:end] == text[begin:end].strip() or text[begin:end].isspace()


@given(
    st.text(
        st.characters(exclude_categories=["Cs"])
        | st.sampled_from([*"".join(TEXTS), "\u0301", "\u200b"])
    )
)
def test_offsets_of_others_leave_out_only_what_cannot_be_seen_and_marks_of_nothing(
    text: str,
) -> None:
    found = check(uncased(), text)
    held = {at for begin, end in found for at in range(begin, end)}
    for at, c in enumerate(text):
        if at not in held and not c.isspace() and unicodedata.category(c)[0] != "C":
            assert unicodedata.category(c)[0] == "M" or c == "\ufffd"
            before = text[:at].rstrip(
                "".join(
                    one
                    for one in set(text)
                    if unicodedata.category(one)[0] in "M" or one == "\ufffd"
                )
            )
            assert not before or before[-1].isspace() or unicodedata.category(before[-1])[0] == "C"


@pytest.mark.parametrize(("kind", "normalisation"), ALL)
@pytest.mark.parametrize("text", TEXTS)
def test_a_token_comes_from_where_its_offsets_say(kind: str, normalisation: str, text: str) -> None:
    tokenizer = trained(kind, normalisation)
    (ids,), found = tokenizer.encode([text]), check(tokenizer, text)
    for i, (begin, end) in zip(ids, found, strict=True):
        here = (
            unicodedata.normalize("NFC", text[begin:end])
            if normalisation == "nfc"
            else text[begin:end]
        )
        spelled = tokenizer.token_bytes[i].removeprefix(b" ")
        assert spelled in here.encode()
        if spelled and spelled.isascii():
            assert spelled.decode() == here.strip()


def test_a_character_of_several_tokens_belongs_to_each() -> None:
    assert check(trained("bytes", "none"), "aกb") == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert check(trained("bytes", "nfc"), "e\u0301b") == [(0, 2), (0, 2), (2, 3)]
    assert check(trained("bytes", "none"), " \ta") == [(0, 1), (1, 2), (2, 3)]


def test_uncased_bert_by_hand() -> None:
    assert check(uncased(), " Ca\u0301t\u200b 京京") == [(1, 5), (7, 8), (8, 9)]
    assert check(uncased(), "ก\u0e38at\u0301") == [(0, 2), (2, 5)]


@pytest.mark.parametrize("kind", ["characters", "bytes", "wordpiece"])
@pytest.mark.parametrize(
    ("text", "part"),
    [(THAI, "กรุงเทพ"), (THAI, "น้ำใจ"), (CHINESE, "首都"), (CHINESE, "1946"), (TEXTS[2], "Größe")],
)
def test_a_part_of_a_text_is_found_in_its_tokens_and_read_off_them(
    kind: str, text: str, part: str
) -> None:
    begin = text.index(part)
    (found,) = offsets_of(trained(kind, "none"), [text])
    held = covering(found, begin, begin + len(part))
    assert held is not None
    first, last = held
    assert part in text[found[first][0] : found[last][1]]
    if kind != "wordpiece":
        assert text[found[first][0] : found[last][1]] == part
    if first:
        assert found[first - 1][1] <= begin
    if last + 1 < len(found):
        assert found[last + 1][0] >= begin + len(part)


def test_where_there_is_no_token() -> None:
    (found,) = offsets_of(trained("words", "none"), ["a   b"])
    assert covering(found, 2, 3) is None
    assert covering(found, 0, 3) == (0, 0)
    assert covering([], 0, 3) is None
