"""The encoder with a cache gives what the library gives for whole texts, whatever it remembers."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.text.hub.test_tokenizer import FAMILIES, made
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from seqloom.errors import SeqloomError, UsageError
from seqloom.text import segment_encoder
from seqloom.text.hub.cuts import cuts_of
from seqloom.text.segment_encoder import (
    ALL_CUTS,
    Cuts,
    SegmentEncoder,
    _NativeSegments,
    _PlainSegments,
    with_added,
)
from seqloom.text.tokenizer_kinds import KINDS, TokenizerKind, normalizer_of
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

NASTY = [
    *("a", "b", "Cat", "dogs", "x1", "12", "3.5", "_", "'", "'s", "'re", "''", "don't", "A'LL"),
    *(
        "<",
        ">",
        "<unk>",
        "<s>",
        "</s>",
        "<mask>",
        "[MASK]",
        "<extra_id_0>",
        "<added>",
        "##s",
        "</w>",
    ),
    *(".", ",", "!", "?", '"', "(", ")", "[", "]", "=", "/", "-", "--", "@", "~", "`", "{", "$"),
    *(" ", "  ", "   ", " " * 70, "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\0", "\x1c"),
    *("\x7f", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u200a", "\u200b", "\u2028", "\u202f"),
    *("\u205f", "\u3000", "\ufeff", "\u0301", "\u0338", "\u0600", "\u200d", "\u2060", "\U0010fffe"),
    *("▁", "▁a", "é", "e\u0301", "İ", "ß", "Σ", "ﬁ", "½", "ﷺ", "’", "“", "—", "…", "¿"),
    *(
        "漢字",
        "かな",
        "ไทย",
        "हिन्दी",
        "עברית",
        "العربية",
        "가",
        "\u1100\u1161",
        "ⵣ",
        "𝒳",
        "🐈",
        "👩‍👩‍👧",
        "🇳🇴",
    ),
]
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"])))
TEXTS_JOINED = st.tuples(TEXTS, st.sampled_from(["", " ", "\n"])).map(
    lambda one: one[1].join(one[0])
)
CHUNKS = st.lists(st.lists(TEXTS_JOINED, max_size=3), min_size=1, max_size=3)


def examples(number: int) -> settings:
    unchecked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=number, deadline=None, suppress_health_check=unchecked)


@pytest.fixture(params=["native", "plain"], autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through the cache, which is full soon; long texts are divided."""
    if request.param == "plain":
        monkeypatch.setattr(segment_encoder, "library", lambda: None)
    for name, size in (("FEW", 0), ("CHUNK", 32), ("MOST", 256), ("MOST_BYTES", 256)):
        monkeypatch.setattr(segment_encoder, name, size)


def same(encoder: SegmentEncoder, tokenizer: Tokenizer, chunks: list[list[str]]) -> None:
    for texts in chunks:
        whole = tokenizer.encode_batch(texts, add_special_tokens=False)
        assert encoder.encode(texts) == [encoding.ids for encoding in whole]


Words = tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer | None, Cuts]


def ours(kind: TokenizerKind, form: str) -> Words:
    steps = [step for step in [normalizer_of(form), *kind.normalizers()] if step is not None]  # type: ignore[arg-type]
    return normalizers.Sequence(steps), kind.pre_tokenizer(), kind.cuts


def words_of_ours() -> Iterator[tuple[str, Words]]:
    for name, kind in KINDS.items():
        for form in ("none", "nfc", "lower"):
            yield f"{name} {form}", ours(kind, form)
        if kind.former is not None:
            yield f"former {name}", ours(kind.former, "none")


def words_of_hub() -> Iterator[tuple[str, Words]]:
    """What a tokenizer.json may do before its model."""
    byte_level, digits = pre_tokenizers.ByteLevel, pre_tokenizers.Digits(individual_digits=True)
    always = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    spaces = pre_tokenizers.WhitespaceSplit()
    llama = (
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    pre: dict[str, pre_tokenizers.PreTokenizer | None] = {
        "none": None,
        "bert": pre_tokenizers.BertPreTokenizer(),
        "bytes": byte_level(add_prefix_space=False),
        "bytes with a space": byte_level(add_prefix_space=True),
        "bytes whole": byte_level(add_prefix_space=False, use_regex=False),
        "digits": pre_tokenizers.Sequence([digits, byte_level(add_prefix_space=False)]),
        "digits with a space": pre_tokenizers.Sequence([digits, byte_level(add_prefix_space=True)]),
        "words": pre_tokenizers.Whitespace(),
        "spaces": spaces,
        "t5": pre_tokenizers.Sequence([spaces, always]),
        "first": pre_tokenizers.Metaspace(prepend_scheme="first", split=True),
        "llama": pre_tokenizers.Split(Regex(llama), "isolated"),
    }
    post: dict[str, normalizers.Normalizer | None] = {
        "": None,
        "nfd": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
        "bert": normalizers.BertNormalizer(),
        "stripped": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        "nfkc": normalizers.NFKC(),
    }
    for (name, words), (form, normalizer) in itertools.product(pre.items(), post.items()):
        tokenizer = Tokenizer(models.BPE())
        if words is not None:
            tokenizer.pre_tokenizer = words
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        yield f"hub {name} {form}", (normalizer, words, cuts_of(json.loads(tokenizer.to_str())))


WORDS = dict([*words_of_ours(), *words_of_hub()])


WITHOUT_MERGES = ("characters", "bytes")


@pytest.mark.parametrize(
    "words",
    [name for name, (*_, cuts) in WORDS.items() if cuts and not name.startswith(WITHOUT_MERGES)],
)
@examples(25)
@given(text=TEXTS_JOINED)
@example(text="a\u3000  b\u00a0  c d\u2028 e")
@example(text="a ▁b  ▁ c <unk> don't (x)='s a<unk>b.c a_b_.c")
@example(text="a\r\nb \v c\vd\x1c e\u0600 f \u0301 g")
def test_no_word_reaches_across_a_cut(words: str, text: str) -> None:
    """The vocabulary has every word of the text, as whole words, so that another border shows."""
    normalizer, pre_tokenizer, cuts = WORDS[words]
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=10**4, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator([text, text], trainer)
    same(SegmentEncoder(tokenizer, cuts), tokenizer, [[text], ["", text]])


@pytest.fixture(scope="module")
def trained() -> list[TextTokenizer]:
    """Of every kind, also with entries that a user added."""
    text = [
        "the cat's  1st \n\n é漢 \u3000 it's the (catalogue) of the cats\n" * 3,
        " ".join(NASTY).replace("<added>", ""),
    ]
    plain = [train_tokenizer(text, kind, 800, form) for kind in KINDS for form in ("none", "nfc")]
    new = ["<added>", "the.cat", "Äx"]
    added = [one.with_added_tokens(new) for one in plain]
    return [*plain, *added, *(one.with_added_tokens(["New York"]) for one in plain[-2:])]


@examples(40)
@given(chunks=CHUNKS)
@example(chunks=[["the.cat x<added>y <added> zÄx", "New York", "the cat"] * 9])
def test_ids_of_our_kinds_are_those_of_whole_texts(
    chunks: list[list[str]], trained: list[TextTokenizer]
) -> None:
    for tokenizer in trained:
        same(tokenizer._encoder, tokenizer._tokenizer, chunks)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "marian"])
@examples(20)
@given(chunks=CHUNKS)
def test_ids_of_the_hub_are_those_of_whole_texts(family: str, chunks: list[list[str]]) -> None:
    tokenizer = made(family)[2]
    same(tokenizer._encoder, tokenizer.pipeline, chunks)


def test_most_tokenizers_are_cut() -> None:
    """Or the laws above would hold of nothing."""
    cuts = {name: made(name)[2]._encoder._cuts for name in FAMILIES if name != "marian"}
    assert cuts["gpt2"] == cuts["bert"] == ALL_CUTS
    assert cuts["t5"] == Cuts.SPACES | Cuts.ASCII
    assert {name for name, kind in KINDS.items() if kind.cuts == ALL_CUTS} >= {"bpe", "wordpiece"}


@pytest.mark.parametrize(
    ("changes", "cuts"),
    [
        ({"content": "New York"}, Cuts.NONE),
        ({"content": "   "}, ALL_CUTS & ~Cuts.SIGNS),
        ({"content": "x", "rstrip": True}, Cuts.NONE),
        ({"content": "x", "single_word": True}, Cuts.NONE),
        ({"content": "x", "lstrip": True}, ALL_CUTS & ~Cuts.SIGNS),
        ({"content": "x y", "special": True}, ALL_CUTS),
    ],
)
@examples(20)
@given(chunks=CHUNKS)
def test_added_entries_of_the_hub(
    changes: dict[str, object], cuts: Cuts, chunks: list[list[str]]
) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    tokenizer.train_from_iterator(NASTY, trainer)
    is_special = bool(changes.get("special"))
    if not is_special:
        tokenizer.add_tokens([AddedToken(**changes)])  # type: ignore[arg-type]
    content = json.loads(tokenizer.to_str())
    if is_special:
        content["added_tokens"] = [{"id": 0, "rstrip": False, "single_word": False, **changes}]
    assert cuts_of(content) == cuts
    same(SegmentEncoder(tokenizer, cuts), tokenizer, chunks)


class Spy:
    """A tokenizer of the library that gives code points, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Spy.Ids]:
        self.asked += texts
        if self.fails:
            raise Exception("no")
        return [Spy.Ids([*map(ord, text)]) for text in texts]

    class Ids:
        def __init__(self, ids: list[int]) -> None:
            self.ids = ids


def test_what_is_known_is_not_tokenised_again_and_the_cache_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_encoder, "CHUNK", 400)
    for name in ("MOST", "MOST_BYTES"):
        monkeypatch.setattr(segment_encoder, name, 4000)
    spy = Spy()
    encoder = SegmentEncoder(spy, ALL_CUTS)  # type: ignore[arg-type]
    for number in range(100):
        encoder.encode([f"the cat {number} sat {'x' * 200}{number}"])
        cache = encoder._idle[0]
        assert len(cache._ends) <= 4001
        match cache.segments:
            case _NativeSegments() as native:
                assert native._arguments.known == len(cache._ends) - 1 <= 4000
            case _PlainSegments() as plain:
                assert len(plain._known) == len(cache._ends) - 1
                assert plain._bytes <= 4400
    begun = spy.asked.count("the")
    assert 4 < begun < 20
    assert spy.asked.count(" cat") == spy.asked.count(" sat") == begun


def test_after_an_error_nothing_is_half_known() -> None:
    spy = Spy()
    encoder = SegmentEncoder(spy, ALL_CUTS)  # type: ignore[arg-type]
    assert encoder.encode(["a b"]) == [[97, 32, 98]]
    spy.fails = True
    with pytest.raises(SeqloomError, match="could not encode"):
        encoder.encode(["a c"])
    spy.fails = False
    assert encoder.encode(["a c b"]) == [[97, 32, 99, 32, 98]]


def test_texts_are_refused_as_without_it(trained: list[TextTokenizer]) -> None:
    for tokenizer in trained[:2]:
        with pytest.raises(UsageError, match="half a character"):
            tokenizer.encode(["a" * 9000, "b\ud800"])
        with pytest.raises(UsageError, match="must be a string"):
            tokenizer.encode(["a" * 9000, 3])  # type: ignore[list-item]


def test_two_at_a_time_have_a_cache_each(trained: list[TextTokenizer]) -> None:
    tokenizer = trained[8]
    within: list[list[int]] = []

    class Nested(Spy):
        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Spy.Ids]:
            if not within:
                within.append([])
                within.extend(encoder.encode(["c d", "a"]))
            return super().encode_batch_fast(texts, add_special_tokens)

    encoder = SegmentEncoder(Nested(), ALL_CUTS)  # type: ignore[arg-type]
    assert encoder.encode(["a b"]) == [[97, 32, 98]]
    assert within[1:] == [[99, 32, 100], [97]]
    copied = copy.deepcopy(tokenizer._encoder)
    assert copied.encode(["a b"]) == tokenizer.encode(["a b"])


def test_a_long_text_is_divided_where_it_may_be_cut() -> None:
    parts: Callable[[str], list[str]] = SegmentEncoder(Spy(), ALL_CUTS)._parts  # type: ignore[arg-type]
    text = "word " * 40 + "x" * 90 + " end"
    assert "".join(parts(text)) == text
    assert [len(part) for part in parts(text) if len(part) > 32] == [91]
    assert len(parts("y" * 90)) == 1


def test_cuts_with_entries() -> None:
    assert with_added(ALL_CUTS, []) == ALL_CUTS
    assert with_added(Cuts.SPACES, ["<new>"]) == Cuts.NONE
    assert with_added(ALL_CUTS, ["a b"]) == with_added(ALL_CUTS, ["a\t"]) == Cuts.NONE
