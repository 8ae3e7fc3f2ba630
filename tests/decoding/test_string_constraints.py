"""Rules on what tokens spell, beside the decoded text itself."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqloom.decoding.hypotheses import NO_TOKEN, LiveHypotheses
from seqloom.decoding.string_constraints import (
    Lexicon,
    Spelling,
    ban,
    begin,
    cut_at,
    possible_stop_length,
    stop_strings,
)
from seqloom.errors import UsageError
from seqloom.text.special_tokens import EOS
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "ab ba aab abab, é bé",
    "aa é 💡, a💡 ab",
    "ba ba, ab é é",
    "💡💡 aab ba",
    "a b, b a, é 💡",
]
KIND = st.sampled_from(sorted(KINDS))
PHRASE = st.text("ab é💡,", min_size=1, max_size=6)
PHRASES = st.lists(PHRASE, min_size=1, max_size=4)


@functools.cache
def tokenizer_of(kind: str) -> TextTokenizer:
    return train_tokenizer(TEXTS, kind, vocabulary={"bpe": 300}.get(kind, 272))


@functools.cache
def spelling_of(kind: str) -> Spelling:
    return Spelling.from_tokenizer(tokenizer_of(kind))


@functools.cache
def useful(kind: str) -> list[int]:
    """Ids whose bytes stand in the texts, so that they meet often, and `<unk>`, which spells nothing."""
    tokenizer = tokenizer_of(kind)
    every = " ".join(TEXTS).encode()
    return [
        3,
        *(i for i in range(16, tokenizer.vocabulary_size) if tokenizer.token_bytes[i] in every),
    ]


@st.composite
def texts(
    draw: st.DrawFn, kinds: st.SearchStrategy[str] = KIND
) -> tuple[str, list[int], list[int]]:
    """A kind of tokenizer, ids of a prompt, new ids."""
    kind = draw(kinds)
    prompt = tokenizer_of(kind).encode([draw(st.text("ab é💡,x", max_size=8))])[0]
    return kind, [1, *prompt], draw(st.lists(st.sampled_from(useful(kind)), max_size=8))


def live(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], generated_before: int = 0
) -> LiveHypotheses:
    """Rows of (prompt, new ids), as many new ids in each; `generated_before` of the last of each prompt are
    new too."""
    longest = max(len(prompt) for prompt, _ in rows)
    first = LiveHypotheses.initial(
        torch.tensor(
            [[NO_TOKEN] * (longest - len(prompt)) + list(prompt) for prompt, _ in rows],
            dtype=torch.long,
        )
    )
    return first._replace(
        tokens=torch.tensor([list(new) for _, new in rows], dtype=torch.long),
        generated_before=first.generated_before + generated_before,
    )


def occurrences(text: str, phrases: Sequence[str]) -> int:
    return sum(text.startswith(phrase, at) for phrase in set(phrases) for at in range(len(text)))


@settings(max_examples=60)
@given(texts(), PHRASES)
@example(("words", [1, 19], [3]), [" "])  # <unk> spells nothing, and what stands before it does
@example(("unigram", [1, 16], []), [" aa"])  # a lead alone, which is no part of the text
def test_a_token_is_banned_iff_an_occurrence_would_end_in_it(
    text: tuple[str, list[int], list[int]], phrases: list[str]
) -> None:
    kind, prompt, new = text
    tokenizer = tokenizer_of(kind)
    log_probs = torch.randn(1, tokenizer.vocabulary_size)
    after = ban(spelling_of(kind), phrases)(live([(prompt, new)]), log_probs)
    before = occurrences(tokenizer.decode([*prompt, *new]), phrases)
    more = [
        occurrences(tokenizer.decode([*prompt, *new, i]), phrases) > before
        for i in range(tokenizer.vocabulary_size)
    ]
    assert torch.equal(after == -math.inf, torch.tensor([more]))
    assert torch.equal(after[after > -math.inf], log_probs[after > -math.inf])


@settings(max_examples=25)
@given(st.lists(texts(st.just("bpe")), min_size=2, max_size=4), PHRASES)
def test_the_rows_of_a_batch_do_not_touch_each_other(
    rows: list[tuple[str, list[int], list[int]]], phrases: list[str]
) -> None:
    steps = min(len(new) for _, _, new in rows)
    spelling = spelling_of("bpe")
    pairs = [(prompt, new[:steps]) for _, prompt, new in rows]
    log_probs = torch.randn(len(rows), len(spelling.token_bytes))
    rule, stop = ban(spelling, phrases), stop_strings(spelling, phrases)
    alone = [
        (rule(live([pair]), log_probs[row : row + 1]), stop(live([pair])))
        for row, pair in enumerate(pairs)
    ]
    assert torch.equal(rule(live(pairs), log_probs), torch.cat([banned for banned, _ in alone]))
    assert torch.equal(stop(live(pairs)), torch.cat([stopped for _, stopped in alone]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_banned_strings_never_come_about_and_the_rest_does(kind: str) -> None:
    tokenizer, draw = tokenizer_of(kind), random.Random(7)
    phrases = (
        ["ab", "é 💡", " a", ", "] if kind not in ("words", "whitespace") else ["ab", "é 💡", ", b"]
    )
    rule, seen = ban(spelling_of(kind), phrases), set()
    for _ in range(30):
        new: list[int] = []
        for _ in range(12):
            allowed = rule(live([([1], new)]), torch.zeros(1, tokenizer.vocabulary_size))[0]
            assert allowed[EOS] == 0
            new.append(draw.choice([i for i in useful(kind) if allowed[i] == 0]))
        text = tokenizer.decode(new)
        assert not any(phrase in text for phrase in phrases), text
        seen |= set(new)
    assert {tokenizer.decode([i]) for i in seen} >= {"a", "b", "💡"} or kind in ("bytes", "bpe")


@settings(max_examples=80)
@given(texts(), PHRASES, st.integers(0, 3))
@example(("unigram", [1], [16, 3]), [" "], 0)
@example(
    ("unigram", [1, 16], [16]), [" "], 0
)  # only the first lead of a text is dropped, and the prompt has it
def test_a_text_stops_when_its_new_part_first_holds_a_string(
    text: tuple[str, list[int], list[int]], phrases: list[str], generated_before: int
) -> None:
    kind, prompt, new = text
    tokenizer = tokenizer_of(kind)
    stop = stop_strings(spelling_of(kind), phrases)
    for n in range(len(new) + 1):
        known = min(generated_before, n)
        found = stop(live([([*prompt, *new[:known]], new[known:n])], generated_before=known))
        after = tokenizer.decode([*prompt, *new[:n]])[len(tokenizer.decode(prompt)) :]
        expected = any(phrase in after for phrase in phrases)
        assert found.tolist() == [expected]
        if expected:
            break


@settings(max_examples=60)
@given(texts(), st.text("ab é💡,", max_size=7), st.randoms())
def test_a_text_begins_as_it_must_in_every_way_that_tokens_allow(
    text: tuple[str, list[int], list[int]], beginning: str, draw: random.Random
) -> None:
    kind, prompt, _ = text
    tokenizer, joint = tokenizer_of(kind), KINDS[kind].text_separator.decode()
    spelling = spelling_of(kind)
    lead = spelling.space_prefix
    target = beginning.removeprefix(joint or lead.decode()).encode()
    try:
        rule = begin(spelling, beginning)
    except UsageError:
        assert kind not in ("bytes", "bpe")
        assert not spellable(kind, b"", target)
        return

    def written(ids: list[int]) -> bytes:
        return spelling.spell(ids).removeprefix(lead)

    new: list[int] = []
    while True:
        before = written(new)
        allowed = rule(live([(prompt, new)]), torch.zeros(1, tokenizer.vocabulary_size))[0]
        over = before.startswith(target)
        after = [written([*new, i]) for i in range(tokenizer.vocabulary_size)]
        expected = [
            over or (i >= 16 and text != before and spellable(kind, text, target))
            for i, text in enumerate(after)
        ]
        assert torch.equal(allowed == 0, torch.tensor(expected))
        if over:
            break
        new.append(draw.choice((allowed[16:] == 0).nonzero()[:, 0].tolist()) + 16)
    assert written(new).startswith(target)


@functools.lru_cache(maxsize=10_000)
def spellable(kind: str, text: bytes, target: bytes) -> bool:
    """Whether more tokens can make it begin with the target."""
    if text.startswith(target) or not target.startswith(text):
        return text.startswith(target)
    before = text + KINDS[kind].text_separator if text else b""
    return any(
        spellable(kind, before + piece, target) for piece in useful_pieces(kind, target, not text)
    )


@functools.lru_cache(maxsize=1000)
def useful_pieces(kind: str, target: bytes, first: bool) -> list[bytes]:
    """All that may spell a part of the target, or its begin, where what leads a text is dropped."""
    pieces = [
        piece.removeprefix(spelling_of(kind).space_prefix if first else b"")
        for piece in tokenizer_of(kind).token_bytes
    ]
    return [
        piece
        for piece in pieces
        if piece
        and any(piece.startswith(target[at : at + len(piece)]) for at in range(len(target)))
    ]


def test_where_nothing_stands_nothing_is_spelled() -> None:
    """Not even the last id, which -1 would be the place of."""
    spelling = Spelling(token_bytes=[b"a", b"b"], text_separator=b"")
    together, alone = live([([0], [0]), ([1, 1, 1, 1], [1])]), live([([0], [0])])
    zeros = torch.zeros(2, 2)
    for phrase in ("baab", "baaa", "aab"):
        assert torch.equal(
            ban(spelling, [phrase])(together, zeros)[:1], ban(spelling, [phrase])(alone, zeros[:1])
        )
    joined = Spelling(token_bytes=[b"a", b"b"], text_separator=b" ")
    for phrase in (" a", "a"):
        for rows in (live([([], [0]), ([1, 1], [1])]), live([([], [0])])):
            assert stop_strings(joined, [phrase])(rows)[:1].tolist() == [phrase == "a"]


def test_what_cannot_be_spelled_is_said_at_once() -> None:
    words, characters = (spelling_of(kind) for kind in ("words", "characters"))
    with pytest.raises(
        UsageError,
        match=r"'ab a, b' it cannot \(its pieces are joined by ' '\); it comes as far as 'ab a'",
    ):
        begin(words, "ab a, b")
    with pytest.raises(UsageError, match=r"'éxb' it cannot; it comes as far as 'é'"):
        begin(characters, "éxb")
    with pytest.raises(UsageError, match="half a character"):
        begin(characters, "a\ud800")
    for rule in (ban, stop_strings):
        with pytest.raises(UsageError, match="at least one character, but one of 2 has none"):
            rule(words, ["a", ""])
        with pytest.raises(UsageError, match="half a character"):
            rule(words, ["\ud800"])


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_cut_and_held_back(text: str, phrases: list[str]) -> None:
    expected = text
    for end in range(len(text) + 1):
        lengths = [len(phrase) for phrase in phrases if text[:end].endswith(phrase)]
        if lengths:
            expected = text[: end - max(lengths)]
            break
    assert cut_at(text, phrases) == expected
    held = possible_stop_length(text, phrases)
    kept = [
        n
        for n in range(len(text) + 1)
        if any(p.startswith(text[len(text) - n :]) and n < len(p) for p in phrases)
    ]
    assert held == max(kept, default=0)


@settings(max_examples=30)
@given(
    st.lists(st.binary(max_size=3), max_size=30),
    st.binary(max_size=3),
    st.text("ab", min_size=1, max_size=2),
)
def test_a_lexicon_finds_what_a_look_at_all_finds(
    spelled: list[bytes], wanted: bytes, string: str
) -> None:
    lexicon = Lexicon(spelled)
    assert set(lexicon.ids[lexicon.with_prefix(wanted)].tolist()) == {
        i for i, p in enumerate(spelled) if p and p.startswith(wanted)
    }
    assert [lexicon.texts[at] for at in lexicon.prefixes_of(wanted)] == sorted(
        p for p in spelled if p and wanted.startswith(p) and p != wanted
    )
    assert set(lexicon.containing(string.encode()).tolist()) == {
        i for i, p in enumerate(spelled) if string.encode() in p
    }


def test_before_the_first_word_of_a_text_stands_no_blank() -> None:
    tokenizer = tokenizer_of("words")
    (ab,) = tokenizer.encode(["ab"])[0]
    rule, stop = ban(spelling_of("words"), [" ab"]), stop_strings(spelling_of("words"), [" ab"])
    for prompt, blank in (([1], False), ([1, 3], False), ([1, ab], True)):
        after = rule(live([(prompt, [])]), torch.zeros(1, tokenizer.vocabulary_size))
        assert bool(after[0, ab] == -math.inf) == blank
        assert stop(live([(prompt, [ab])])).tolist() == [blank]


def test_a_phrase_of_which_the_prompt_ends_in_the_half_of_a_character_in_bytes() -> None:
    tokenizer = tokenizer_of("bytes")
    first, *rest = (16 + byte for byte in "💡".encode())
    rule = ban(spelling_of("bytes"), ["💡"])
    after = rule(
        live([([1, first, *rest[:1]], rest[1:2])]), torch.zeros(1, tokenizer.vocabulary_size)
    )
    assert (after == -math.inf).nonzero().tolist() == [[0, rest[2]]]
