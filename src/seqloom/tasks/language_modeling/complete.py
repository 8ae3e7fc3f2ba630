"""The likely continuations of a text that is being typed, to the end of a word, from inside of one too.

Where a text ends, a token need not: "the qu" is not cut as "the quick" is. So the model reads the text up
to the last certain boundary of tokens (`TextTokenizer.stable_prefix`). The bytes r of the rest are given
back: the next tokens must begin with them. With c the context and t a run of tokens,

    P(s | typed) = Σ_{t spells r s, a word ends after it} P(t | c)
                 / Σ_{t spells r and no shorter run does} P(t | c)

Sums over runs of tokens are sums over all ways to spell, so nothing depends on how the text is cut. The
search goes token by token with the likeliest rows, all in one batch; what it does not find is missing in the
sums.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from seqloom.decoding.hypotheses import NAN_LOGITS
from seqloom.decoding.logits_processors import most_likely
from seqloom.decoding.long_context import window_start
from seqloom.decoding.string_constraints import Lexicon, Spelling
from seqloom.errors import SeqloomError, UsageError
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import (
    State,
    StoredTokenizer,
    context_of,
    device_of,
    fork,
    next_logits,
    reorder_in_place,
    select_rows,
    share,
)
from seqloom.runs.run_folder import load_run
from seqloom.tasks.language_modeling.generate import prompt_ids
from seqloom.tasks.model import no_such_verb

KEPT = 8
"""Contexts whose states are kept, so that a keystroke reads what is new."""
STEPS = {
    "bpe": 6,
    "wordpiece": 6,
    "unigram": 6,
    "words": 2,
    "whitespace": 2,
    "characters": 16,
    "bytes": 24,
}
"""Tokens of a word that is looked for, and one more that ends it, for each kind of tokenizer."""

_WORD = rb"\w\x80-\xff"  # what is not ASCII belongs to words
_END = re.compile(rb"(?<=[%b])[^%b]" % (_WORD, _WORD))
_INSIDE = re.compile(rb"[%b]\Z" % _WORD)
_BREAKS = torch.tensor([not _INSIDE.match(bytes([byte])) for byte in range(256)])
"""Which bytes end a word."""
_TYPED = re.compile(r"[\w\x80-\U0010ffff]*\Z", re.ASCII)


@functools.lru_cache(maxsize=2)
def _breaks(lexicon: Lexicon) -> tuple[Tensor, Tensor]:
    """1 at each token before which a word ends, 0 elsewhere; and the other way round."""
    breaks = _BREAKS[lexicon.first_bytes].float()
    return breaks, 1 - breaks


class Completion(NamedTuple):
    """A possible continuation of a text."""

    text: str
    """What comes after the text as it was typed, up to the end of a word; empty if the word that was typed
    is whole."""
    probability: float
    """Of this and then the end of the word, given the text. Completions exclude each other: they sum to 1 at
    most."""
    ended: bool
    """Whether the text ends there, before it has the words that were asked for."""


class Bounds(NamedTuple):
    """How far the search goes."""

    rows: int = 8
    """Runs of tokens that go on at a time, at least."""
    given_back: int = 3
    """Tokens of the typed text that may be cut otherwise, at most: of a long word the last ones."""
    least: float = 0.1
    """Rows are left that have less of the mass than this share of the last completion that is wanted."""
    steps: int | None = None
    """Calls of the model for a word, at most; by default as `STEPS` says."""


@final
class Completer:
    """A language model that completes what is typed.

    completer = load_completer("runs/tales")
    completer.complete("Once upon a ti")

    It keeps the states of the last contexts, so the next keystroke is cheap.
    """

    def __init__(
        self, model: Any, tokenizer: StoredTokenizer, bounds: Bounds | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._spelling = Spelling.from_tokenizer(tokenizer)
        self._bounds = bounds or Bounds()
        self._model = model
        self._context = context_of(model)
        self._device = device_of(model)
        self._marks = tokenizer.special_ids
        self._never = torch.tensor(self._marks.forbidden, dtype=torch.long, device=self._device)
        self._known: dict[tuple[int, ...], tuple[Tensor, State]] = {}
        self._weights = PackedWeights()  # kept like the states: a keystroke must be cheap

    @torch.inference_mode()
    def complete(self, prefix: str, n: int = 5, words: int = 1) -> list[Completion]:
        """The `n` likeliest completions, the likeliest first, each up to the end of `words` words: that which
        is being typed and those after it. Special tokens but `</s>` have no share. Raises UsageError for a
        number below 1, text that is no Unicode, or no text where nothing begins a text of this model.
        """
        if n < 1 or words < 1:
            raise UsageError(
                f"the numbers of completions and of words must be at least 1, but are {n} and {words}"
            )
        with self._weights:
            return self._search(prefix, n, words)

    def _search(self, prefix: str, n: int, words: int) -> list[Completion]:
        ids, rest = self._given_back(prefix)
        calls = (self._bounds.steps or STEPS[self._tokenizer.kind]) * words
        if self._context is not None:
            calls = min(calls, self._context // 4)
        read = prompt_ids(self._tokenizer, ids)
        logits, state = self._after(tuple(read[window_start(len(read) + calls, self._context) :]))
        inside = bool(_INSIDE.search(prefix.encode()))
        search = _Search(
            self._spelling,
            self._bounds,
            end=self._marks.eos,
            rest=rest,
            inside=inside,
            follows=bool(
                ids or (rest and self._spelling.space_prefix)
            ),  # the rest has its space, at the beginning of a text too
            words=words,
            n=n,
        )
        rows = search.grow([_Row(1.0, b"", 0, 0)], self._probabilities(logits))
        state = share(state)
        for call in range(calls):
            if not rows:
                break
            parents = torch.tensor([row.parent for row in rows], device=self._device)
            # the state of the context is kept, those after it are not used again
            state = reorder_in_place(state, parents) if call else select_rows(state, parents)
            logits, state = next_logits(
                self._model, torch.tensor([[row.token] for row in rows], device=self._device), state
            )
            rows = search.grow(rows, self._probabilities(logits))
        return search.best()

    def _given_back(self, prefix: str) -> tuple[list[int], bytes]:
        """The ids of the context, and the bytes that the next tokens must begin with."""
        ids, rest = self._tokenizer.stable_prefix(prefix)
        if self._tokenizer.text_separator:
            return ids, rest
        (last,) = self._tokenizer.encode([rest.decode()])
        sure = max(0, len(last) - self._bounds.given_back)
        if not sure and not ids and not self._marks.bos:
            sure = min(1, len(last))  # something must be read first
        whole = self._spelling.spell(last)
        if self._spelling.space_prefix and not whole.startswith(rest):  # a space alone is no token
            return ids, rest
        # A piece may spell a space after it that is not typed yet (GPT).
        untyped = len(whole) - len(rest) if whole.startswith(rest) else 0
        given_back = self._spelling.spell(last[sure:])
        return ids + last[:sure], given_back[: max(0, len(given_back) - untyped)]

    def _after(self, ids: tuple[int, ...]) -> tuple[Tensor, State]:
        """The logits `(1, vocabulary)` after a context, and its state, to select from."""
        longest = max(
            (known for known in self._known if ids[: len(known)] == known), key=len, default=()
        )
        if longest != ids:
            state = fork(self._known[longest][1]) if longest else None
            self._known[ids] = next_logits(
                self._model, torch.tensor([ids[len(longest) :]], device=self._device), state
            )
        self._known[ids] = self._known.pop(ids)  # the youngest is the last
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return self._known[ids]

    def _probabilities(self, logits: Tensor) -> Tensor:
        """`(rows, vocabulary)`, on the CPU, where the search is."""
        allowed = logits.float().index_fill(1, self._never, float("-inf"))
        probabilities = allowed.softmax(dim=-1).cpu()
        # one logit that is NaN makes all of its row so
        if bool(probabilities[:, 0].isnan().any()):
            raise SeqloomError(NAN_LOGITS)
        return probabilities


class _Row(NamedTuple):
    """A run of tokens after the context."""

    mass: float
    """Its probability, given the context."""
    text: bytes
    """What it spells."""
    parent: int
    """The row of the step before that it goes on from."""
    token: int
    """Its last token."""


@final
class _Search:
    """What is known of the two sums, while rows go on."""

    def __init__(
        self,
        spelling: Spelling,
        bounds: Bounds,
        *,
        end: int | None,
        rest: bytes,
        inside: bool,
        follows: bool,
        words: int,
        n: int,
    ) -> None:
        self._bounds = bounds
        self._end = end
        self._rest = rest
        self._inside = inside
        """Whether the typed text ends inside of a word."""
        self._words, self._n = words, n
        self._lexicon = spelling.later_tokens if follows else spelling.first_tokens
        self._later = spelling.later_tokens
        self._joined = bool(spelling.text_separator)
        self._typed = 0.0 if rest else 1.0
        """The mass of all that begins as the typed text does."""
        self._found: dict[tuple[bytes, bool], float] = defaultdict(float)
        """The mass of each completion: what comes after the typed text, and whether the text ends there."""

    def grow(self, rows: list[_Row], probabilities: Tensor) -> list[_Row]:
        """Adds up what one more token completes, of probabilities `(rows, vocabulary)`; returns the likeliest
        of the others."""
        lexicon, self._lexicon = self._lexicon, self._later
        shares = torch.tensor([[row.mass] for row in rows])
        ends = [0.0] * len(rows)
        if self._end is not None:
            ends = (probabilities[:, self._end] * shares[:, 0]).tolist()
        # in the order of what tokens spell
        mass = probabilities.index_select(1, lexicon.ids).mul_(shares)
        in_last_word = []
        for index, row in enumerate(rows):
            if len(row.text) < len(self._rest):
                self._cover(lexicon, self._rest[len(row.text) :], mass[index])
            elif self._in_last_word(row.text):
                in_last_word.append(index)
            else:
                self._add(row.text, True, ends[index])
        if in_last_word:
            word_ends = self._take_word_ends(lexicon, mass, in_last_word)
            for index, word_end in zip(in_last_word, word_ends, strict=True):
                self._add(rows[index].text, False, ends[index] + word_end)
        wanted = min(max(self._bounds.rows, self._n), mass.numel())
        values, places = most_likely(mass.view(1, -1), wanted)
        grown = []
        for value, place in zip(values[0].tolist(), places[0].tolist(), strict=True):
            parent, column = divmod(place, len(lexicon.texts))
            text = rows[parent].text + lexicon.texts[column]
            ended = self._word_ends(text)
            if len(ended) >= self._words:  # inside of the token
                self._add(text[: len(self._rest) + ended[self._words - 1]], False, value)
            elif self._joined and self._in_last_word(text):
                # whatever comes next begins with a space
                self._add(text, False, value)
            else:
                grown.append(_Row(value, text, parent, int(lexicon.ids[column])))
        least = self._bounds.least * max(self._worst(), 1e-4 * self._typed)
        return [row for row in grown if row.mass > least]

    def best(self) -> list[Completion]:
        """The likeliest completions. One that ends in a part of a character is none."""
        ranked = sorted(self._found.items(), key=lambda pair: (-pair[1], pair[0]))
        whole = [(text.decode(), ended, mass) for (text, ended), mass in ranked if _whole(text)]
        return [
            Completion(text, min(1.0, mass / self._typed), ended)
            for text, ended, mass in whole[: self._n]
        ]

    def _cover(self, lexicon: Lexicon, rest: bytes, mass: Tensor) -> None:
        """Leaves what goes on with the rest of the typed text: what reaches its end, or a part of it."""
        over = lexicon.with_prefix(rest)
        # where pieces are joined, the rest is one piece
        part = [] if self._joined else lexicon.prefixes_of(rest)
        kept = torch.zeros_like(mass)
        kept[over], kept[part] = mass[over], mass[part]
        mass.copy_(kept)
        self._typed += float(mass[over].sum())

    def _take_word_ends(self, lexicon: Lexicon, mass: Tensor, rows: list[int]) -> list[float]:
        """How much mass of each of these rows is on tokens before which a word ends; `mass` loses it."""
        breaks, others = _breaks(lexicon)
        chosen = mass if len(rows) == len(mass) else mass[rows]
        word_ends: list[float] = (chosen @ breaks).tolist()
        chosen.mul_(others)
        if chosen is not mass:
            mass[rows] = chosen
        return word_ends

    def _add(self, text: bytes, ended: bool, mass: float) -> None:
        if mass > 0:
            self._found[text[len(self._rest) :], ended] += mass

    def _worst(self) -> float:
        """The mass of the last completion that is wanted, so far."""
        return (
            heapq.nlargest(self._n, self._found.values())[-1]
            if len(self._found) >= self._n
            else 0.0
        )

    def _word_ends(self, text: bytes) -> list[int]:
        """Where words end in what comes after the typed text."""
        return [found.start() - 1 for found in _END.finditer(self._after_typed(text))]

    def _in_last_word(self, text: bytes) -> bool:
        return bool(
            len(text) >= len(self._rest)
            and len(self._word_ends(text)) == self._words - 1
            and _INSIDE.search(self._after_typed(text))
        )

    def _after_typed(self, text: bytes) -> bytes:
        """What comes after the typed text, with one byte before it that says whether that is inside of a
        word."""
        return (b"a" if self._inside else b" ") + text[len(self._rest) :]


def _whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def last_word(prefix: str, completion: Completion) -> str:
    """The completion with that part of its word that was typed."""
    typed = _TYPED.search(prefix)
    return (typed[0] if typed else "") + completion.text


def load_completer(folder: str | Path, device: str = "auto") -> Completer:
    """Opens a run folder. Raises FolderError if it is none, or is damaged; UsageError if its task is
    another."""
    run = load_run(folder, device)
    if run.task != "text-generation":
        raise no_such_verb(folder, run.task, "complete", run.model_type)
    return Completer(run.decoder(run.decode_settings({})), run.tokenizer)
