"""Completions beside all runs of tokens of a tiny model."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.toys import Remembering

import seqloom.tasks.language_modeling.complete as workflow
from seqloom.decoding.long_context import window_start
from seqloom.errors import SeqloomError, UsageError
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.ngrams.ngram import Ngram, NgramConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.tasks.language_modeling.complete import (
    Bounds,
    Completer,
    Completion,
    last_word,
    load_completer,
)
from seqloom.text.tokenizers import KINDS, TextTokenizer, train_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = Bounds(rows=10**6, given_back=100, least=0.0, steps=3)
WORDS = ("words", "whitespace")
ALIVE = {
    "characters": "ab é,",
    "words": "",
    "whitespace": "",
    "bytes": "ab é,",
    "bpe": "ab ,",
    "wordpiece": "ab ,",
    "unigram": "ab ,",
}
"""Characters whose tokens the tiny models may say; of words all."""


@functools.cache
def tokenizer_of(kind: str) -> TextTokenizer:
    texts = (
        ["ab abab a, b", "ab ab, abab é", "abab ab"] if kind not in WORDS else ["ab abab a b , abb"]
    )
    return train_tokenizer(texts, kind, vocabulary=16 + 256 + 4 if kind == "bpe" else 16 + 256)


@functools.cache
def alive(kind: str) -> list[int]:
    """The tokens that a tiny model has, and `</s>`."""
    spelled = tokenizer_of(kind).token_bytes
    letters = set(ALIVE[kind].encode())
    return [2, *(i for i in range(16, len(spelled)) if kind in WORDS or set(spelled[i]) <= letters)]


class Few(Remembering):
    """A random model of the tokens that are alive; of the others, special ones too, it has only `<unk>`,
    which must take no share."""

    def __init__(self, kind: str, seed: int, context: int | None = None) -> None:
        super().__init__(tokenizer_of(kind).vocabulary_size, context, seed)
        dead = torch.ones(self.table.shape[1], dtype=torch.bool)
        dead[[3, *alive(kind)]] = False
        self.table[:, dead] = -torch.inf
        self.table[:, 2] += 2
        dead[3] = True
        self.allowed = self.table.masked_fill(dead, -torch.inf).double().softmax(1).tolist()

    def following(self, ids: list[int]) -> list[float]:
        """The probabilities of the next token after `ids`, special ones but `</s>` left out."""
        code = 0
        for token in ids:
            code = (31 * code + 7 * token + 1) % 997
        found: list[float] = self.allowed[code]
        return found


def by_enumeration(
    model: Few, kind: str, prefix: str, words: int, steps: int
) -> dict[tuple[str, bool], float]:
    """P(completion | prefix): every run of at most `steps` tokens and one more, and what it spells."""
    tokenizer = tokenizer_of(kind)
    joint = tokenizer.text_separator
    ids, rest = tokenizer.stable_prefix(prefix)
    before = "a" if re.search(r"[\w\x80-\U0010ffff]\Z", prefix, re.ASCII) else " "
    found: dict[tuple[str, bool], float] = defaultdict(float)
    typed = 0.0

    def visit(run: list[int], text: bytes, mass: float) -> None:
        nonlocal typed
        covered = text.startswith(rest)
        if covered and (not run or not spell(run[:-1]).startswith(rest)):
            typed += mass
        if covered:
            after = (before.encode() + text[len(rest) :]).decode("latin-1")
            over = re.match(
                rf"[^a-zA-Z0-9_\x80-\xff]*(?:[a-zA-Z0-9_\x80-\xff]+[^a-zA-Z0-9_\x80-\xff]+){{{words}}}",
                after,
            )
            if over:
                found[
                    (
                        re.sub(r"[^a-zA-Z0-9_\x80-\xff]+\Z", "", over[0])[1:]
                        .encode("latin-1")
                        .decode("utf-8", "replace"),
                        False,
                    )
                ] += mass
                return
            if (
                joint
                and run
                and re.search(r"\w\Z", after)
                and len(re.findall(r"[\w\x80-\xff]+", after)) == words
            ):
                found[after[1:].encode("latin-1").decode("utf-8", "replace"), False] += mass
                return
        if len(run) > steps:
            return
        following = model.following([1, *ids, *run])
        if covered:
            whole = bool(re.search(r"\w\Z", after, re.ASCII) or after[-1] >= "\x80")
            last = whole and len(re.findall(r"[a-zA-Z0-9_\x80-\xff]+", after)) == words
            found[after[1:].encode("latin-1").decode("utf-8", "replace"), not last] += (
                mass * following[2]
            )
        for token in alive(kind)[1:]:
            longer = spell([*run, token])
            if longer.startswith(rest) or rest.startswith(longer):
                visit([*run, token], longer, mass * following[token])

    def spell(run: list[int]) -> bytes:
        pieces = [tokenizer.token_bytes[i] for i in run]
        return (joint if ids and pieces else b"") + joint.join(pieces)

    visit([], b"", 1.0)
    return {
        one: mass / typed
        for one, mass in found.items()
        if mass and typed and "\ufffd" not in one[0]
    }


PREFIXES = {
    "bpe": ["", "a", "ab", "ab a", "ab ab", "b ", "ab,", "ab  ", "aba"],
    "words": ["", "a", "ab a", "ab ", "b ,", "q ab", "ab q", "ab,"],
    "characters": ["", "a", "ab ", "é", "ab,"],
    "bytes": ["", "a", "b ", "é"],
    "wordpiece": ["a", "ab", "ab a", "b ", "ab,"],
    "unigram": ["a", "ab", "ab a", "b ", "ab,"],
}


@pytest.mark.parametrize(
    ("kind", "prefix"), [(kind, prefix) for kind, some in PREFIXES.items() for prefix in some]
)
@pytest.mark.parametrize("words", [1, 2])
def test_probabilities_are_those_of_all_runs_of_tokens(kind: str, prefix: str, words: int) -> None:
    steps = {"words": 1, "characters": 2}.get(kind, 2 if words == 1 else 1)
    model, bounds = Few(kind, seed=len(prefix)), ALL._replace(steps=steps)
    found = Completer(model, tokenizer_of(kind), bounds).complete(prefix, n=10**6, words=words)
    expected = by_enumeration(model, kind, prefix, words, steps * words)
    assert {(one.text, one.ended) for one in found} == expected.keys()
    for one in found:
        assert one.probability == pytest.approx(expected[one.text, one.ended], rel=1e-4)
    assert sum(one.probability for one in found) <= 1 + 1e-6
    assert [one.probability for one in found] == sorted(
        (one.probability for one in found), reverse=True
    )
    assert bool(found) == (prefix != "ab q" or kind != "words")


TEXT = "ab a, abab é ab a  b ab abab, ab a b"


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("context", [None, 8, 12])
def test_states_that_are_kept_change_nothing_and_spare_reading(
    kind: str, context: int | None
) -> None:
    """`Few` refuses to read more than its context."""
    model = Few(kind, 1, context)
    completer = Completer(model, tokenizer_of(kind))
    typed = [TEXT[:n] for n in [*range(len(TEXT) + 1), 30, 33, 35, 3]]
    found = [completer.complete(prefix, words=1 + (len(prefix) % 2)) for prefix in typed]
    if context is None:
        assert model.begun == 2  # and the jump back at the end
    for prefix, one in zip(typed, found, strict=True):
        assert one == Completer(model, tokenizer_of(kind)).complete(
            prefix, words=1 + (len(prefix) % 2)
        )


def test_a_long_text_is_read_from_where_a_window_begins() -> None:
    """A window of a long text is read as a text of its own, without `<s>`; room is left for the tokens that
    are looked for."""
    tokenizer, context = tokenizer_of("characters"), 16
    model, read = Few("characters", 2, context), list[list[int]]()

    def noted(tokens: torch.Tensor, state: Any) -> Any:
        read.extend(tokens.tolist() if state is None else [])
        return model(tokens, state)

    noted.context = context  # type: ignore[attr-defined]
    Completer(noted, tokenizer).complete(TEXT)
    ids = [1, *tokenizer.encode([TEXT])[0]]
    assert read == [ids[window_start(len(ids) + context // 4, context) :]]


@pytest.mark.parametrize("family", ["recurrent_lm", "gpt", "ngram"])
def test_every_family_completes_while_it_is_typed(family: str) -> None:
    tokenizer = tokenizer_of("bpe")
    completer = Completer(small_model(family, tokenizer.vocabulary_size), tokenizer)
    # on from one state: neither may write into the other's
    two_ways = [
        "ab ",
        "ab a ",
        "ab a b ",
        "ab a a ",
        "ab a b a ",
    ]
    for prefix in [*two_ways, *(TEXT[:n] for n in [*range(len(TEXT) + 1), 20, 12])]:
        fresh = Completer(small_model(family, tokenizer.vocabulary_size), tokenizer).complete(
            prefix
        )
        found = completer.complete(prefix)
        assert [one.text for one in found] == [one.text for one in fresh]
        assert [one.probability for one in found] == pytest.approx(
            [one.probability for one in fresh], rel=1e-4
        )
        assert sum(one.probability for one in found) <= 1 + 1e-6


@functools.cache
def small_model(family: str, vocabulary: int) -> Any:
    torch.manual_seed(0)
    if family == "gpt":
        return GPT(
            GPTConfig(vocabulary_size=vocabulary, context=16, width=8, layers=2, heads=2)
        ).eval()
    if family == "recurrent_lm":
        return RecurrentLM(
            RecurrentLMConfig(
                vocabulary_size=vocabulary, embedding_width=4, width=4, tie_output=False
            )
        ).eval()
    ids = [2, *(i for text in TEXT.split(",") for i in [*tokenizer_of("bpe").encode([text])[0], 2])]
    return Ngram.fit(NgramConfig(vocabulary_size=vocabulary, order=3), np.array(ids)).eval()


def test_a_narrow_search_finds_the_likeliest_and_claims_no_more_than_there_is() -> None:
    for prefix in ("", "ab a", "ab "):
        model = Few("bpe", 5)
        every = Completer(model, tokenizer_of("bpe"), ALL._replace(steps=2)).complete(
            prefix, n=10**6
        )
        few = Completer(model, tokenizer_of("bpe"), Bounds(steps=2)).complete(prefix, n=3)
        exact = {(one.text, one.ended): one.probability for one in every}
        assert few[0][::2] == every[0][::2]
        for one in few:
            assert one.probability == pytest.approx(exact[one.text, one.ended], rel=0.35)


def test_the_word_is_shown_whole() -> None:
    def word(prefix: str, text: str) -> str:
        return last_word(prefix, Completion(text, 0.5, False))

    assert [
        word("the qu", "ick"),
        word("the ", "quick"),
        word("the", ""),
        word("so, ", "be it"),
        word("Stra", "ße"),
    ] == [
        "quick",
        "quick",
        "the",
        "be it",
        "Straße",
    ]


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    completer = Completer(Few("bpe", 0), tokenizer_of("bpe"))
    for numbers in ({"n": 0}, {"words": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            completer.complete("a", **numbers)
    with pytest.raises(UsageError, match="half a character"):
        completer.complete("a\ud800")
    broken = Few("bpe", 0)
    broken.table[:] = torch.nan
    with pytest.raises(SeqloomError, match="NaN"):
        Completer(broken, tokenizer_of("bpe")).complete("a")
    bundle = type("B", (), {"task": "translation", "model_type": "t5", "folder": Path("runs/x")})()
    monkeypatch.setattr(workflow, "load_run", lambda *_: bundle)
    with pytest.raises(
        UsageError, match="runs/x: a model of translation cannot complete; use: seqloom predict"
    ):
        load_completer("runs/x")
