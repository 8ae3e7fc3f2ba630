"""The laws of the tokenizers, what they refuse, and that special tokens and text never meet."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from seqloom import protocols
from seqloom.errors import DataError, FolderError, MissingExtraError, SeqloomError, UsageError
from seqloom.text.special_tokens import SPECIAL_TOKENS, UNK
from seqloom.text.tokenizer_kinds import Learned, Normalisation
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer
from seqloom.text.tokenizers_library import panics_are_errors

EVERY_KIND = list(KINDS)
EXACT_KINDS = ["bytes", "bpe"]
WORD_KINDS = ["words", "whitespace"]

TEXTS = [
    "the cat sat on the mat, and the dog sat on the log.",
    "Der Hund läuft über die Straße; die Katze schläft.",
    "  two blanks,\ta tab\nand a line\r\n",
    "x = 3.14 if y else 2718",
    "naïve café 猫は寝る 🐈‍⬛ 👩🏽‍🚀",
]
HOSTILE = [
    " ".join(SPECIAL_TOKENS),
    "".join(SPECIAL_TOKENS),
    *SPECIAL_TOKENS,
    "s><s></s",
    "<<s>>",
    "<s",
    "pad>\n</ s>",
] * 200

ONE_PER_PLANE = "".join(chr(c) for c in range(0, 0x110000, 97) if not 0xD800 <= c < 0xE000)

any_text = st.text(max_size=60)
seen_text = st.text(alphabet=sorted(set("".join(TEXTS))), max_size=60)
hostile_text = st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "<", "s", ">", "/", " ", "\n", "pad", "unk>", "-5"]),
    max_size=12,
).map("".join)
contractions = st.lists(
    st.sampled_from(["we", "'", "re", "r", "e", "ll", "l", " ", "v", "  ", "1", "_"]), max_size=6
).map("".join)


@cache
def trained(kind: str) -> TextTokenizer:
    return train_tokenizer(TEXTS, kind, 400)


@cache
def trained_on_hostile_text(kind: str) -> TextTokenizer:
    return train_tokenizer(HOSTILE, kind, 2000)


def alone(tokenizer: TextTokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0]


# --- laws
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(st.one_of(seen_text, any_text, contractions), st.one_of(seen_text, any_text, contractions))
def test_what_a_text_settles_stays_whatever_comes_after_it(kind: str, text: str, more: str) -> None:
    tokenizer = trained(kind)
    ids, rest = tokenizer.stable_prefix(text)
    (longer,) = tokenizer.encode([text + more])
    assert longer[: len(ids)] == ids
    assert tokenizer.encode([text])[0][: len(ids)] == ids
    if not tokenizer.has_unknown:  # what is unknown has no bytes
        assert (
            tokenizer.text_separator.join(tokenizer.token_bytes[i] for i in ids) + rest
            == text.encode()
        )


def test_what_is_given_back_begins_where_the_last_unit_does() -> None:
    def rests(kind: str, *texts: str) -> list[bytes]:
        return [trained(kind).stable_prefix(text)[1] for text in texts]

    assert rests("bpe", "the c", "the ", "cat, the", "c", "") == [b" c", b" ", b" the", b"c", b""]
    assert rests("bpe", "don't", "we'r", "so 'r") == [b"'t", b"'r", b"r"]
    assert rests("words", "the c", "the ", "cat,the", " c", " ", "the cat,", "") == [
        b" c",
        b" ",
        b" the",
        b"c",
        b"",
        b" ,",
        b"",
    ]
    assert rests("characters", "the c") == rests("bytes", "the c") == [b""]


@pytest.mark.parametrize("kind", EXACT_KINDS)
@given(text=any_text)
@example(text="")
@example(text=ONE_PER_PLANE)
@example(text="\0\ufeff\u200b\u202e\ufffd\uffff\U0010ffff\r\n\x85\u2028")
@example(text=" " * 500 + "\n" * 300 + "a" * 1000)
def test_decode_inverts_encode_on_any_text(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids = alone(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert all(len(SPECIAL_TOKENS) <= i < tokenizer.vocabulary_size for i in ids)


@given(text=seen_text)
def test_characters_invert_and_their_pieces_join_to_the_text(text: str) -> None:
    tokenizer = trained("characters")
    ids = alone(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert "".join(tokenizer.pieces(ids)) == text
    assert all(i >= len(SPECIAL_TOKENS) for i in ids)


@given(text=any_text)
@example(text=ONE_PER_PLANE)
def test_characters_give_one_id_for_each_code_point_and_drop_none(text: str) -> None:
    tokenizer = trained("characters")
    known = set("".join(TEXTS))
    assert [i == UNK for i in alone(tokenizer, text)] == [c not in known for c in text]
    assert all(i == UNK or i >= len(SPECIAL_TOKENS) for i in alone(tokenizer, text))


@given(text=any_text)
@example(text=ONE_PER_PLANE)
def test_bytes_are_the_bytes_of_utf_8(text: str) -> None:
    assert alone(trained("bytes"), text) == [len(SPECIAL_TOKENS) + byte for byte in text.encode()]


@given(text=any_text)
@example(text=ONE_PER_PLANE)
def test_words_lose_nothing_but_blanks(text: str) -> None:
    tokenizer = train_tokenizer([text + " a"], "words", 5000)
    ids = alone(tokenizer, text)
    assert all(i >= len(SPECIAL_TOKENS) for i in ids)
    assert "".join(tokenizer.decode(ids).split()) == "".join(text.split())


@given(text=seen_text)
def test_wordpiece_loses_nothing_but_blanks_of_characters_that_it_knows(text: str) -> None:
    tokenizer = trained("wordpiece")
    ids = alone(tokenizer, text)
    assert UNK not in ids
    assert "".join(tokenizer.decode(ids).split()) == "".join(text.split())


@given(
    text=seen_text.map(lambda text: text.replace("\r", ""))
)  # which sentencepiece takes for the end of a sentence
def test_unigram_makes_runs_of_blanks_one_and_drops_those_at_the_ends(text: str) -> None:
    tokenizer = trained("unigram")
    ids = alone(tokenizer, text)
    assert UNK not in ids
    assert tokenizer.decode(ids) == re.sub(" +", " ", text).strip(" ")


def test_wordpiece_takes_the_longest_piece_and_unigram_the_likeliest_ones() -> None:
    vocabulary = {
        token: i for i, token in enumerate([*SPECIAL_TOKENS, "a", "ab", "##b", "##c", "##bc"])
    }
    wordpiece = TextTokenizer("wordpiece", Learned(vocabulary, [], []))
    assert wordpiece.pieces(alone(wordpiece, "abc a<s>")) == [
        " ab",
        "c",
        " a",
        "<unk>",
        "<unk>",
        "<unk>",
    ]
    scores = [0.0] * 16 + [-9.0, -2.0, -1.0, -1.5, -1.0]
    pieces = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "▁", "▁ab", "▁a", "bc", "c"])}
    unigram = TextTokenizer("unigram", Learned(pieces, [], scores))
    assert unigram.pieces(alone(unigram, "abc")) == [" a", "bc"]  # -2.5, and -3 the other way


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(texts=st.lists(any_text, max_size=8))
def test_a_batch_gives_what_each_text_gives_alone(kind: str, texts: list[str]) -> None:
    tokenizer = trained(kind)
    assert tokenizer.encode(texts) == [alone(tokenizer, text) for text in texts]


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("normalisation", ["none", "nfc", "lower"])
def test_json_gives_the_same_tokenizer_back(kind: str, normalisation: Any) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 400, normalisation)
    again = TextTokenizer.from_json(tokenizer.to_json())
    texts = [*TEXTS, *HOSTILE[:30], ONE_PER_PLANE, "e\u0301"]
    assert again.encode(texts) == tokenizer.encode(texts)
    assert (again.kind, again.normalisation, again.vocabulary_size) == (
        kind,
        normalisation,
        tokenizer.vocabulary_size,
    )
    assert again.fingerprint == tokenizer.fingerprint
    assert again.decode(range(tokenizer.vocabulary_size)) == tokenizer.decode(
        range(tokenizer.vocabulary_size)
    )


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(text=seen_text)
def test_the_library_itself_reads_the_file_and_agrees(kind: str, text: str) -> None:
    ids = alone(trained(kind), text)
    library = Tokenizer.from_str(trained(kind).to_json())
    assert library.encode(text).ids == ids
    assert library.decode([i for i in ids if i != UNK], skip_special_tokens=False) == trained(
        kind
    ).decode(ids)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_it_is_a_tokenizer_by_protocol(kind: str) -> None:
    tokenizer: protocols.Tokenizer = trained(kind)
    assert [list(map(type, ids)) for ids in tokenizer.encode(["a cat"])] == [
        [int] * len(tokenizer.encode(["a cat"])[0])
    ]
    assert tokenizer.encode([]) == []
    assert tokenizer.encode(("", "")) == [[], []]
    assert tokenizer.decode([]) == ""


# --- special tokens
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [trained, trained_on_hostile_text])
@pytest.mark.parametrize("kind", EVERY_KIND)
@given(text=hostile_text)
@example(text="<s>")
@example(text=" </s>")
@example(text=" ".join(SPECIAL_TOKENS))
def test_text_that_spells_a_special_token_stays_text(
    make: Callable[[str], TextTokenizer], kind: str, text: str
) -> None:
    tokenizer = make(kind)
    ids = alone(tokenizer, text)
    assert all(i >= len(SPECIAL_TOKENS) or (i == UNK and tokenizer.has_unknown) for i in ids)
    if make is trained_on_hostile_text and kind == "characters":
        assert UNK not in ids
    if not tokenizer.has_unknown:
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_hostile_training_text_is_learned_as_text(kind: str) -> None:
    tokenizer = trained_on_hostile_text(kind)
    ids = tokenizer.encode(HOSTILE)
    tokens = "".join(SPECIAL_TOKENS)
    if kind in WORD_KINDS:  # `<unk>` alone is the unknown word
        ids = [[i for i in each if i != UNK] for each in ids]
        tokens = tokens.replace("<unk>", "")
    assert min(min(each, default=99) for each in ids) >= len(SPECIAL_TOKENS)
    assert "".join(tokenizer.decode(ids[0]).split()) == tokens
    assert tokenizer.pieces(range(len(SPECIAL_TOKENS))) == list(SPECIAL_TOKENS)
    content = json.loads(tokenizer.to_json())
    assert content["added_tokens"] == []
    assert not [
        merge for merge in content["model"].get("merges", []) if "".join(merge) in SPECIAL_TOKENS
    ]


@pytest.mark.parametrize("kind", WORD_KINDS)
@pytest.mark.parametrize("normalisation", ["none", "nfc", "lower"])
def test_unk_in_a_text_is_one_unknown_word(kind: str, normalisation: Normalisation) -> None:
    """As the texts of benchmarks mean it; it takes no place among the words."""
    text = "the <unk> sees a <unk> ( <unk> ) ."
    tokenizer = train_tokenizer([f"{text} <unk> " * 9], kind, 16 + 6, normalisation)
    (ids,) = tokenizer.encode([text])
    assert [i == UNK for i in ids] == [word == "<unk>" for word in text.split()]
    assert tokenizer.vocabulary_size == 16 + 6
    assert sorted(tokenizer.pieces(range(16, 22))) == sorted(["the", "sees", "a", "(", ")", "."])
    (spans,) = tokenizer.offsets([text])
    assert [text[begin:end] for begin, end in spans] == text.split()


def test_words_of_whitespace_are_what_ascii_white_space_divides() -> None:
    text = "<s> </s>\t<pad>  <div> a<unk>b\n10\u00a0km \u3000\v<delim>\f<reserved-5>\r's"
    words = re.split(r"[ \t\n\v\f\r]+", text)
    tokenizer = train_tokenizer([text], "whitespace", 100)
    (ids,) = tokenizer.encode([text])
    assert [tokenizer.decode([i]) for i in ids] == words
    assert min(ids) >= len(SPECIAL_TOKENS)
    (spans,) = tokenizer.offsets([text])
    assert [text[begin:end] for begin, end in spans] == words
    assert tokenizer.encode(["<reserved-6>"]) == [[UNK]]
    assert TextTokenizer.from_json(tokenizer.to_json()).encode([text]) == [ids]


@pytest.mark.parametrize(
    ("kind", "expected"), [("words", ["<", "unk", ">"]), ("whitespace", ["<", "unk>"])]
)
def test_a_tokenizer_of_an_earlier_version_goes_on_as_it_was(
    kind: str, expected: list[str]
) -> None:
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL_TOKENS, *expected, "a"])}
    before = TextTokenizer(kind, Learned(vocabulary, [], []), former=True)
    after = TextTokenizer.from_json(before.to_json())
    (ids,) = after.encode(["a\u00a0<unk>"])
    assert after.pieces(ids) == ["a", *expected]
    assert (after.kind, after.to_json()) == (kind, before.to_json())


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_special_ids_spell_nothing_and_are_shown_by_name(kind: str) -> None:
    tokenizer = trained(kind)
    ids = alone(tokenizer, "the cat")
    marked = [1, *ids[:1], 0, 3, *ids[1:], 4, 15, 2]
    assert tokenizer.decode(marked) == "the cat"
    assert tokenizer.pieces(marked)[0] == "<s>"
    assert tokenizer.pieces(marked)[-3:] == ["<delim>", "<reserved-15>", "</s>"]


# --- what is learned
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_order_of_the_texts_does_not_matter(kind: str) -> None:
    texts = [*TEXTS * 3, *HOSTILE[:40]]
    shuffled = random.Random(3).sample(texts, len(texts))
    assert texts != shuffled
    assert (
        train_tokenizer(texts, kind, 350).fingerprint
        == train_tokenizer(iter(shuffled), kind, 350).fingerprint
    )


def in_a_process(program: str, **environment: str) -> tuple[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, done.stderr


def test_neither_threads_nor_the_hash_seed_matter() -> None:
    program = (
        "from seqloom.text.tokenizers import train_tokenizer\ntexts = [f'w{i % 97} word{i % 31}s are {i * i}'"
        " for i in range(3000)]\nprint([train_tokenizer(texts, kind, 500).fingerprint for kind in ('words',"
        " 'bpe', 'characters', 'wordpiece', 'unigram')])"
    )
    one, _ = in_a_process(program, RAYON_NUM_THREADS="1", PYTHONHASHSEED="1")
    four, _ = in_a_process(program, RAYON_NUM_THREADS="4", PYTHONHASHSEED="2")
    assert one == four
    assert len(set(json.loads(one.replace("'", '"')))) == 5


def test_sizes_are_as_asked_for_where_the_text_allows() -> None:
    texts = [" ".join(f"word{i}" for i in range(300))] * 2
    assert train_tokenizer(texts, "bpe", 300).vocabulary_size == 300
    assert train_tokenizer(texts, "words", 150).vocabulary_size == 150
    assert train_tokenizer(texts, "words", 10_000).vocabulary_size == 16 + 300
    assert train_tokenizer(texts, "bytes").vocabulary_size == 16 + 256
    assert train_tokenizer(texts, "characters").vocabulary_size == 16 + len(set(texts[0]))
    # a pair seen once is not merged
    assert train_tokenizer(["abcdefgh ijklmnop"], "bpe").vocabulary_size == 16 + 256
    assert 300 < train_tokenizer(texts, "bpe", 100_000).vocabulary_size < 16 + 256 + 2000


@pytest.mark.parametrize(
    ("kind", "smallest"), [("bytes", 272), ("bpe", 272), ("words", 17), ("characters", 16 + 4)]
)
def test_a_vocabulary_that_is_too_small_is_refused_with_the_smallest(
    kind: str, smallest: int
) -> None:
    with pytest.raises(UsageError, match=f"at least {smallest} entries"):
        train_tokenizer(["ab cab c"], kind, smallest - 1)
    assert train_tokenizer(["ab cab c"], kind, smallest).vocabulary_size == smallest


def test_words_are_the_most_frequent_ones_and_ties_go_by_code_point() -> None:
    tokenizer = train_tokenizer(["b b a a, c"], "words", 16 + 3)
    assert tokenizer.pieces(range(16, 19)) == ["a", "b", ","]
    assert tokenizer.encode(["a  b\nc!"]) == [[16, 17, UNK, UNK]]
    assert tokenizer.decode([16, 18, 17]) == "a , b"


def test_case_is_kept_and_nothing_normalised_unless_asked() -> None:
    plain = train_tokenizer(["Straße e\u0301"], "characters")
    composing = train_tokenizer(["Straße e\u0301"], "characters", normalisation="nfc")
    assert plain.decode(alone(plain, "Se\u0301")) == "Se\u0301"
    assert composing.pieces(alone(composing, "Se\u0301")) == ["S", "é"]
    bpe = train_tokenizer(TEXTS, "bpe", 300, "nfc")
    assert bpe.decode(alone(bpe, "e\u0301\u212b")) == unicodedata.normalize("NFC", "e\u0301\u212b")


def test_pieces_are_readable() -> None:
    tokenizer = train_tokenizer(["the cat the cat"] * 3, "bpe", 300)
    assert tokenizer.pieces(alone(tokenizer, "the cat")) == ["the", " cat"]
    assert tokenizer.pieces(alone(tokenizer, "€é")) == ["⟨e2⟩", "⟨82⟩", "⟨ac⟩", "⟨c3⟩", "⟨a9⟩"]
    assert tokenizer.decode(alone(tokenizer, "a€")[:-1]) == "a\ufffd"
    accents = train_tokenizer(["ééé ééé ééé"], "bpe", 300)
    assert accents.pieces(alone(accents, "ééé")) == ["ééé"]
    assert trained("bytes").pieces([16, 16 + 10, 16 + 0xFF]) == ["\0", "\n", "⟨ff⟩"]


def test_config_names_the_marks() -> None:
    config = trained("words").tokenizer_config
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    assert "unk_token" in trained("characters").tokenizer_config
    assert not any("unk_token" in trained(kind).tokenizer_config for kind in EXACT_KINDS)


# --- what is refused
# -------------------------------------------------------------------------------------------------


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="characters, words, whitespace, bytes, bpe, wordpiece, unigram"
    ):
        train_tokenizer(TEXTS, "wordpiece\n")
    with pytest.raises(UsageError, match="none, nfc"):
        train_tokenizer(TEXTS, "bpe", 300, "nfkc")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_text_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="must hold a character"):
        train_tokenizer(texts, kind)


def test_without_sentencepiece_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'seqloom\[unigram\]'"):
        train_tokenizer(TEXTS, "unigram")


def test_what_sentencepiece_refuses_is_refused_in_one_line() -> None:
    with pytest.raises(
        UsageError, match="cannot learn a unigram vocabulary of 18 entries"
    ) as caught:
        train_tokenizer(TEXTS, "unigram", 18)
    assert "\n" not in str(caught.value)


def test_spaces_hold_no_word() -> None:
    with pytest.raises(DataError, match="must hold a word"):
        train_tokenizer([" \n\t "], "words")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_half_a_character_is_refused_with_its_place(kind: str) -> None:
    with pytest.raises(UsageError, match=r"^text 1 .*position 2 .*\\ud800") as caught:
        trained(kind).encode(["fine", "no\ud800", "fine"])
    assert "\n" not in str(caught.value)
    if kind != "bytes":  # which learns nothing from the text
        with pytest.raises(UsageError, match=r"^text 2 "):
            train_tokenizer(["a a", "b", "\udfff"], kind)


@pytest.mark.parametrize("wrong", [None, 3, b"x", ("a", "b"), ["a", "b"]])
def test_what_is_no_string_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"text 1 .* must be a string, but is"):
        trained("bpe").encode(["fine", wrong])
    with pytest.raises(UsageError, match=r"text 1 .* must be a string, but is"):
        train_tokenizer(["fine", wrong], "bpe")


def test_one_string_is_no_batch() -> None:
    with pytest.raises(UsageError, match="list of texts"):
        trained("bpe").encode("abc")


@pytest.mark.parametrize("wrong", [-1, 272])
def test_ids_outside_of_the_vocabulary_are_refused(wrong: int) -> None:
    for read in (trained("bytes").decode, trained("bytes").pieces):
        with pytest.raises(UsageError, match=f"from 0 to 271, but {wrong} was given"):
            read([20, wrong])


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", ["characters", "words", "bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize(
    "error",
    [OSError("the disk"), KeyboardInterrupt(), SystemExit(3), DataError("bad", "file", 7), Stop()],
)
def test_errors_of_whoever_reads_the_texts_pass(kind: str, error: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise error

    with pytest.raises(type(error)) as caught:
        train_tokenizer(texts(), kind)
    assert caught.value is error


def test_a_panic_of_the_library_is_an_error_of_ours() -> None:
    with pytest.raises(SeqloomError, match="could not load") as caught, panics_are_errors("load"):
        # panics in tokenizers 0.23, an Exception in others
        models.BPE({"a": 0, "b": 1}, [("a", "b")])
    assert "\n" not in str(caught.value)


# --- damaged and foreign files
# ---------------------------------------------------------------------------------------


def swap(content: dict[str, Any], one: str, other: str) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def rename(content: dict[str, Any], old: str, new: str) -> None:
    content["model"]["vocab"][new] = content["model"]["vocab"].pop(old)


DAMAGE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "special tokens that match inside of text": (
        "bpe",
        lambda c: c.update(
            added_tokens=[{"id": 1, "content": "<s>", "special": True, "normalized": False}]
        ),
    ),
    "another pre-tokenizer": (
        "bpe",
        lambda c: c.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}}),
    ),
    "a charsmap that panics": (
        "bpe",
        lambda c: c.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ),
    "truncation": ("bpe", lambda c: c.update(truncation={"max_length": 3})),
    "whole words past the merges": ("bpe", lambda c: c["model"].update(ignore_merges=True)),
    "dropout": ("bpe", lambda c: c["model"].update(dropout=0.5)),
    "another model": ("bpe", lambda c: c["model"].update(type="Unigram")),
    "swapped special tokens": ("bpe", lambda c: swap(c, "<s>", "</s>")),
    "a special token among the words": ("words", lambda c: swap(c, "<s>", "the")),
    "an id twice": ("words", lambda c: c["model"]["vocab"].update(the=20)),
    "an id left out": ("words", lambda c: c["model"]["vocab"].update(the=10**9)),
    "a negative id": ("words", lambda c: c["model"]["vocab"].update(the=-1)),
    "an id that is no number": ("words", lambda c: c["model"]["vocab"].update(the="16")),
    "an id that is true": ("words", lambda c: c["model"]["vocab"].update({"<s>": True})),
    "no vocabulary": ("words", lambda c: c["model"].pop("vocab")),
    "a vocabulary that is a list": ("words", lambda c: c["model"].update(vocab=[])),
    "an empty vocabulary": ("characters", lambda c: c["model"].update(vocab={})),
    "half a character": (
        "characters",
        lambda c: c["model"]["vocab"].update({"\ud800": len(c["model"]["vocab"])}),
    ),
    "two characters": (
        "characters",
        lambda c: c["model"]["vocab"].update({"ab": len(c["model"]["vocab"])}),
    ),
    "bytes out of order": ("bytes", lambda c: swap(c, "a", "b")),
    "a byte too few": ("bpe", lambda c: rename(c, "a", "bc")),
    "a piece that is no bytes": (
        "bpe",
        lambda c: c["model"]["vocab"].update({"猫": len(c["model"]["vocab"])}),
    ),
    "a merge without its piece": ("bpe", lambda c: c["model"]["merges"].append(["q", "q"])),
    "a merge of three": ("bpe", lambda c: c["model"]["merges"].append(["a", "b", "c"])),
    "merges that are a number": ("bpe", lambda c: c["model"].update(merges=3)),
    "a piece of unigram twice": (
        "unigram",
        lambda c: c["model"]["vocab"].append(c["model"]["vocab"][-1]),
    ),
    "a score that is no number": ("unigram", lambda c: c["model"]["vocab"].append(["new", "x"])),
    "a score that is infinite": (
        "unigram",
        lambda c: c["model"]["vocab"].append(["new", float("inf")]),
    ),
    "a piece that is empty": ("unigram", lambda c: c["model"]["vocab"].append(["", -1.0])),
    "another unknown piece": ("unigram", lambda c: c["model"].update(unk_id=2)),
    "another mark of what goes on": (
        "wordpiece",
        lambda c: c["model"].update(continuing_subword_prefix="@@"),
    ),
    "merges for characters": ("characters", lambda c: c["model"]["merges"].append(["a", "b"])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_file_is_refused_in_one_line(
    damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, spoil = DAMAGE[damage]
    content = json.loads(trained(kind).to_json())
    TextTokenizer.from_json(json.dumps(content))
    spoil(content)
    with pytest.raises(
        FolderError, match=r"^tokenizer\.json must be as seqloom wrote it, but .*; restore"
    ) as caught:
        TextTokenizer.from_json(json.dumps(content))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""  # a panic of the library would have shown itself


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "\ufeff{}",
        '{"model": 3}',
        '{"model": {}}',
        "[" * 100_000,
        "NaN",
        '"\\ud800"',
    ],
)
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(FolderError, match=r"^tokenizer\.json must be as seqloom wrote it"):
        TextTokenizer.from_json(text)


@given(end=st.integers(0, 10_000))
def test_a_file_that_was_cut_off_is_refused(end: int) -> None:
    whole = trained("characters").to_json()
    with pytest.raises(FolderError):
        TextTokenizer.from_json(whole[: end % len(whole)])


def test_a_file_of_another_version_of_the_library_may_lack_or_add_an_empty_key() -> None:
    content = json.loads(trained("bpe").to_json())
    del content["model"]["ignore_merges"], content["padding"]
    content["model"]["a_new_option"] = None
    assert TextTokenizer.from_json(json.dumps(content)).fingerprint == trained("bpe").fingerprint


# --- processes
# -------------------------------------------------------------------------------------------------------

FORK = """
import os, signal
from seqloom.text.tokenizer_kinds import Learned
from seqloom.text.tokenizers import train_tokenizer
texts = [f"a word {i}" for i in range(2000)]
tokenizer = train_tokenizer(texts, "bpe", 300)
before = tokenizer.encode(texts)
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if tokenizer.encode(texts) == before else 5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.environ.get("TOKENIZERS_PARALLELISM"))
"""


@pytest.mark.parametrize("chosen", [None, "true", "false"])
def test_a_child_encodes_too_and_the_parent_keeps_its_setting(chosen: str | None) -> None:
    out, err = in_a_process(FORK, **({} if chosen is None else {"TOKENIZERS_PARALLELISM": chosen}))
    assert out.split() == ["0", str(chosen)]
    assert "huggingface/tokenizers" not in err
