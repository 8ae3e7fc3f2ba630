"""How likely a language model holds texts to be: log-probabilities token by token, perplexity and its kin.

    a text      <s> u_1 .. u_L is read, u_1 .. u_L </s> is predicted: L + 1 tokens; <s> is never predicted
    perplexity  exp(Σ -ln p / N), N all predicted tokens of the corpus, summed over it and never a mean of batch means
    per word    N = words (between white space) + one end a text
    bits/byte   Σ -log2 p / (bytes of the texts in UTF-8 + one end a text)

With the marks of others: where nothing begins a text (GPT) u_1 is read and not predicted, though its words
and bytes count; where nothing ends one, no end is predicted and none counts.

A model that can look back on `context` tokens only is read in windows of that many. Each token is scored
once; the windows move on by `stride`, so a token has at least `context - stride` tokens before it where its
text has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.data.batching.pair_batches import pad
from seqloom.errors import DataError, UsageError
from seqloom.evaluation.intervals import ratio_interval
from seqloom.packed_weights import packed_weights
from seqloom.protocols import SpecialIds, State, device_of, select_rows, target_log_probs
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS

BATCH, COUNTED = 2**13, 2**16
"""Tokens that are scored together by a network, and by counts."""
SEGMENT = 256
"""Steps that are read at one time where the state is carried on."""
RANKED = 2**23
"""Logits that exist at one time where ranks are asked for."""
FEW = 30
"""With fewer texts than this, an interval is one over blocks of tokens."""
BLOCK = 256
"""Tokens of such a block."""

Ids = Sequence[int] | NDArray[Any]


class TextScore(NamedTuple):
    """What a model says of one text."""

    log_probs: NDArray[np.float64]
    """`(L + 1,)`: log p of each token and of the end, in nats; `(L,)` or fewer where the marks have no begin
    or no end."""
    ranks: NDArray[np.int64] | None
    """In the same shape: 1 where the model held nothing more likely; None where not asked for."""
    ended: bool = True
    """Whether the last is that of the end."""

    @property
    def complete(self) -> float:
        """log P of the text and its end."""
        return float(self.log_probs.sum())

    @property
    def prefix(self) -> float:
        """log P of a text that begins so."""
        return float(self.log_probs[: len(self.log_probs) - self.ended].sum())

    def last(self, tokens: int) -> TextScore:
        """The score of the last tokens of the text, and of its end."""
        first = max(len(self.log_probs) - tokens - self.ended, 0)
        return TextScore(
            self.log_probs[first:], None if self.ranks is None else self.ranks[first:], self.ended
        )


class Span(NamedTuple):
    """Ids start..end of a text are read as one row, and those after each are predicted; the ones from
    `scored` on are counted."""

    text: int
    start: int
    scored: int
    end: int


def spans(text: int, length: int, context: int | None, stride: int | None) -> Iterator[Span]:
    """The windows over a text of `length` predicted tokens. Raises UsageError for a stride that is not from 1
    to the context."""
    if context is None or length <= context:
        if length:
            yield Span(text, 0, 0, length)
        return
    step = context if stride is None else stride
    if not 1 <= step <= context:
        raise UsageError(f"stride must be from 1 to the model's context {context}, but is {step}")
    yield Span(text, 0, 0, context)
    for scored in range(context, length, step):
        end = min(scored + step, length)
        yield Span(text, end - context, scored, end)


@torch.inference_mode()
@packed_weights()
def score_texts(
    model: Any,
    texts: Sequence[Ids],
    special_ids: SpecialIds = SPECIAL_IDS,
    *,
    stride: int | None = None,
    ranks: bool = False,
    budget: int | None = None,
) -> list[TextScore]:
    """The score of each text of ids (without marks). `budget` is the tokens of a batch and changes no result."""
    budget = budget or (BATCH if next(model.parameters(), None) is not None else COUNTED)
    ends = [] if special_ids.eos is None else [special_ids.eos]
    whole = [
        np.concatenate([np.asarray(part, np.int64) for part in (special_ids.bos, text, ends)])
        for text in texts
    ]
    lengths = [max(len(ids) - 1, 0) for ids in whole]  # the first is read only
    found = [np.zeros(length) for length in lengths]
    places = [np.ones(length, np.int64) for length in lengths]
    rows = [span for at, length in enumerate(lengths) for span in spans(at, length, model.context, stride)]
    rows.sort(
        key=lambda span: span.start - span.end
    )  # the longest first: those that end leave from the end of the batch
    first = 0
    while first < len(rows):
        longest = min(
            rows[first].end - rows[first].start, SEGMENT if model.context is None else model.context
        )
        batch = rows[first : first + max(budget // longest, 1)]
        _score(model, batch, whole, special_ids.pad, found, places if ranks else None)
        first += len(batch)
    given = max(len(special_ids.bos) - 1, 0)  # marks that were fed and not predicted
    return [
        TextScore(log_probs[given:], place[given:] if ranks else None, special_ids.eos is not None)
        for log_probs, place in zip(found, places, strict=True)
    ]


def _score(
    model: Any,
    batch: Sequence[Span],
    texts: Sequence[NDArray[np.int64]],
    padding: int,
    found: list[NDArray[np.float64]],
    places: list[NDArray[np.int64]] | None,
) -> None:
    """Reads the rows of a batch, longest first, segment by segment; puts what is counted into `found` and
    `places`."""
    device = device_of(model)
    inputs = pad([texts[one.text][one.start : one.end].tolist() for one in batch], padding).to(device)
    wanted = pad([texts[one.text][one.start + 1 : one.end + 1].tolist() for one in batch], IGNORE).to(device)
    steps = SEGMENT if model.context is None else inputs.shape[1]
    if places is not None:
        steps = max(min(steps, RANKED // (model.config.vocabulary_size * len(batch))), 1)
    state: State = None
    for at in range(0, inputs.shape[1], steps):
        live = sum(one.end - one.start > at for one in batch)
        if at and live < len(inputs):
            state = select_rows(state, torch.arange(live, device=device))
        inputs, wanted = inputs[:live], wanted[:live]
        some = wanted[:, at : at + steps]
        if places is None:
            log_probs, state = target_log_probs(model, inputs[:, at : at + steps], some, state)
            ranks = some
        else:
            log_probs, ranks, state = _ranked(model, inputs[:, at : at + steps], some, state)
        for one, values, order in zip(
            batch, log_probs.double().cpu().numpy(), ranks.cpu().numpy(), strict=False
        ):
            low, high = max(one.start + at, one.scored), min(one.start + at + some.shape[1], one.end)
            if low < high:
                here = slice(low - one.start - at, high - one.start - at)
                found[one.text][low:high] = values[here]
                if places is not None:
                    places[one.text][low:high] = order[here]


def _ranked(model: Any, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
    logits, state = model(tokens, state)
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    chosen = log_probs.gather(-1, targets.clamp(min=0)[..., None])
    return chosen[..., 0], 1 + (log_probs > chosen).sum(dim=-1), state


@final
@dataclass
class CorpusLikelihood:
    """Sums over a corpus, added up text by text."""

    special_ids: SpecialIds
    nats: list[float]
    tokens: list[int]
    blocks: list[tuple[float, int]]
    """The same by block of tokens, while there are few texts."""
    words: int = 0
    bytes: int = 0
    unknown: int = 0

    @classmethod
    def empty(cls, special_ids: SpecialIds = SPECIAL_IDS) -> CorpusLikelihood:
        return cls(special_ids, [], [], [])

    def add(self, score: TextScore, ids: Ids, *, words: int, size: int) -> None:
        """A text with its number of words and its size in bytes of UTF-8."""
        self.nats.append(-score.complete)
        self.tokens.append(len(score.log_probs))
        if len(self.nats) <= FEW:
            cuts = range(0, len(score.log_probs), BLOCK)
            self.blocks += [
                (-float(part.sum()), len(part)) for part in (score.log_probs[at : at + BLOCK] for at in cuts)
            ]
        self.words += words
        self.bytes += size
        if self.special_ids.unk is not None:
            self.unknown += int(np.count_nonzero(np.asarray(ids) == self.special_ids.unk))

    def metrics(self) -> dict[str, float]:
        """loss (nats a token), perplexity, word_perplexity, bits_per_byte, each with `_low` and `_high`, the
        ends of its 95 % interval.

        Raises DataError where no token was predicted.
        """
        total, tokens = sum(self.nats), sum(self.tokens)
        if not tokens:
            raise DataError("there must be a token that is predicted, but there is none; give longer texts")
        loss, ends = total / tokens, len(self.nats) * (self.special_ids.eos is not None)
        few = len(self.nats) < FEW
        units = np.asarray(self.blocks) if few else np.asarray([self.nats, self.tokens]).T
        low, high = ratio_interval(units[:, 0], units[:, 1])
        metrics: dict[str, float] = {}
        for end, nats in (("", loss), ("_low", low), ("_high", high)):
            metrics[f"loss{end}"] = nats
            metrics[f"perplexity{end}"] = _exp(nats)
            metrics[f"word_perplexity{end}"] = _exp(nats * tokens / (self.words + ends))
            metrics[f"bits_per_byte{end}"] = nats * tokens / math.log(2) / (self.bytes + ends)
        counts = {"documents": len(self.nats), "tokens": tokens, "words": self.words, "bytes": self.bytes}
        return metrics | counts | {"unknown_percent": 100 * self.unknown / max(tokens - ends, 1)}


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
