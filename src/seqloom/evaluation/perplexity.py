"""Log-probabilities of texts under a language model, token by token; perplexity and related metrics.

    a text      <s> u_1 .. u_L is read, u_1 .. u_L </s> is predicted: L + 1 tokens; <s> is never predicted
    perplexity  exp(Σ -ln p / N), N all predicted tokens of the corpus, summed over it, never a mean of means
    per word    N = words (between white space) + one end a text
    bits/byte   Σ -log2 p / (bytes of the texts in UTF-8 + one end a text)

Models of others may have no token that begins a text (GPT): then u_1 is read and not predicted, though its
words and bytes count. Where no token ends a text, no end is predicted and none counts.

A model that sees only `context` tokens reads windows of that many. Each token is scored once; the windows
move on by `stride`, so a token has at least `context - stride` tokens before it where its text has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.arrays import Floats, Numbers
from seqloom.data.batching.pair_batches import pad
from seqloom.errors import DataError, UsageError
from seqloom.evaluation.intervals import ratio_interval
from seqloom.packed_weights import packed_weights
from seqloom.protocols import (
    Decodable,
    ModelConfig,
    SpecialIds,
    State,
    TargetScorer,
    context_of,
    device_of,
    fork,
    select_rows,
    target_log_probs,
)
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import SPECIAL_IDS

BATCH_TOKENS, COUNT_BATCH_TOKENS = 2**13, 2**16
"""Tokens that are scored together by a network, and by a model of counts."""
SEGMENT = 256
"""Steps that a model without a fixed context reads at a time."""
MOST_LOGITS = 2**23
"""Logits in memory at a time, where ranks are wanted."""
FEW_TEXTS = 30
"""With fewer texts than this, an interval is one over blocks of tokens."""
BLOCK = 256
"""Tokens of such a block."""

Ids = Sequence[int] | Numbers


class Likelihood(NamedTuple):
    """How likely a text is."""

    log_probability: float
    """In nats."""
    unknown: int
    """Tokens of it that are `<unk>`: their spelling is not scored."""


class TextScore(NamedTuple):
    """The scores of one text."""

    log_probs: NDArray[np.float64]
    """`(L + 1,)`: log p of each token and of the end, in nats; `(L,)` or fewer where a model has no token
    that begins or ends a text."""
    ranks: NDArray[np.int64] | None
    """In the same shape: 1 where no token was more likely; None if not wanted."""
    ended: bool = True
    """Whether the last one is that of the end."""

    @property
    def complete(self) -> float:
        """log P of the text and its end."""
        return float(self.log_probs.sum())

    @property
    def prefix(self) -> float:
        """log P of the text as the beginning of any text."""
        return float(self.log_probs[: len(self.log_probs) - self.ended].sum())

    def last(self, tokens: int) -> TextScore:
        """The score of the last tokens of the text, and of its end."""
        first = max(len(self.log_probs) - tokens - self.ended, 0)
        ranks = None if self.ranks is None else self.ranks[first:]
        return TextScore(self.log_probs[first:], ranks, self.ended)


class ScoredWindow(NamedTuple):
    """Ids start..end of a text are read as one row, and those after each are predicted; the ones from
    `scored` on count."""

    text: int
    start: int
    scored: int
    end: int


def scored_windows(
    text: int, length: int, context: int | None, stride: int | None
) -> Iterator[ScoredWindow]:
    """The windows over a text of `length` predicted tokens. Raises UsageError for a stride that is not from 1
    to the context."""
    if context is None or length <= context:
        if length:
            yield ScoredWindow(text, 0, 0, length)
        return
    step = context if stride is None else stride
    if not 1 <= step <= context:
        raise UsageError(f"stride must be from 1 to the model's context {context}, but is {step}")
    yield ScoredWindow(text, 0, 0, context)
    for scored in range(context, length, step):
        end = min(scored + step, length)
        yield ScoredWindow(text, end - context, scored, end)


@torch.inference_mode()
@packed_weights()
def score_texts(
    model: nn.Module,
    texts: Sequence[Ids],
    special_ids: SpecialIds = SPECIAL_IDS,
    *,
    stride: int | None = None,
    ranks: bool = False,
    budget: int | None = None,
) -> list[TextScore]:
    """The score of each text of ids (without special ids). `budget` is the tokens of a batch and changes no
    result."""
    if budget is None:
        is_network = next(model.parameters(), None) is not None
        budget = BATCH_TOKENS if is_network else COUNT_BATCH_TOKENS
    context = context_of(model)
    ends = () if special_ids.eos is None else (special_ids.eos,)
    sequences, windows = list[NDArray[np.int64]](), list[ScoredWindow]()
    for number, text in enumerate(texts):
        parts = [np.asarray(part, np.int64) for part in (special_ids.bos, text, ends)]
        sequences.append(np.concatenate(parts))
        predicted = max(len(sequences[-1]) - 1, 0)  # the first token is only read
        windows += scored_windows(number, predicted, context, stride)
    lengths = [max(len(sequence) - 1, 0) for sequence in sequences]
    log_probs = [np.zeros(length) for length in lengths]
    all_ranks = [np.ones(length, np.int64) for length in lengths] if ranks else None
    scorer = _Scorer(model, context, sequences, special_ids.pad, log_probs, all_ranks)
    # the longest first: rows that end leave from the end of the batch
    windows.sort(key=lambda window: window.start - window.end)
    longest_segment = SEGMENT if context is None else context
    first = 0
    while first < len(windows):
        longest = min(windows[first].end - windows[first].start, longest_segment)
        batch = windows[first : first + max(budget // longest, 1)]
        scorer.score(batch)
        first += len(batch)
    # tokens of the beginning that are given, not predicted
    prefix = max(len(special_ids.bos) - 1, 0)
    scores = []
    for number in range(len(texts)):
        text_ranks = None if all_ranks is None else all_ranks[number][prefix:]
        scores.append(TextScore(log_probs[number][prefix:], text_ranks, bool(ends)))
    return scores


@final
@dataclass(frozen=True)
class _Scorer:
    """A model, the sequences of a corpus and their scores so far."""

    model: nn.Module
    context: int | None
    sequences: Sequence[NDArray[np.int64]]
    pad_id: int
    log_probs: list[NDArray[np.float64]]
    ranks: list[NDArray[np.int64]] | None

    def score(self, batch: Sequence[ScoredWindow]) -> None:
        """Reads a batch of windows, longest first, segment by segment."""
        device = device_of(self.model)
        texts = [self.sequences[window.text] for window in batch]
        read = [
            text[window.start : window.end].tolist()
            for text, window in zip(texts, batch, strict=True)
        ]
        next_ids = [
            text[window.start + 1 : window.end + 1].tolist()
            for text, window in zip(texts, batch, strict=True)
        ]
        inputs, targets = pad(read, self.pad_id).to(device), pad(next_ids, IGNORE).to(device)
        steps = SEGMENT if self.context is None else inputs.shape[1]
        if self.ranks is not None:
            steps = max(
                min(
                    steps,
                    MOST_LOGITS
                    // (cast(ModelConfig, self.model.config).vocabulary_size * len(batch)),
                ),
                1,
            )
        state: State = None
        for start in range(0, inputs.shape[1], steps):
            # rows that have ended leave
            live = sum(window.end - window.start > start for window in batch)
            if start and live < len(inputs):
                state = select_rows(state, torch.arange(live, device=device))
            inputs, targets = inputs[:live], targets[:live]
            segment = slice(start, start + steps)
            if self.ranks is None:
                log_probs, state = target_log_probs(
                    self.model, inputs[:, segment], targets[:, segment], state
                )
                ranks = None
            else:
                log_probs, ranks, state = ranked_log_probs(
                    self.model, inputs[:, segment], targets[:, segment], state
                )
            self._keep(batch[:live], start, log_probs, ranks)

    def _keep(
        self, batch: Sequence[ScoredWindow], start: int, log_probs: Tensor, ranks: Tensor | None
    ) -> None:
        """Puts what counts of a segment, `(rows, steps)` from step `start` on, into the scores of the
        texts."""
        values = log_probs.double().cpu().numpy()
        orders = None if ranks is None else ranks.cpu().numpy()
        for row, window in enumerate(batch):
            first = window.start + start
            low, high = max(first, window.scored), min(first + values.shape[1], window.end)
            if low < high:
                self.log_probs[window.text][low:high] = values[row, low - first : high - first]
                if self.ranks is not None and orders is not None:
                    self.ranks[window.text][low:high] = orders[row, low - first : high - first]


def ranked_log_probs(
    model: Decodable, tokens: Tensor, targets: Tensor, state: State
) -> tuple[Tensor, Tensor, State]:
    """log p and rank of each target `(rows, steps)`, and the state after."""
    wanted = targets.clamp(min=0)[..., None]
    if isinstance(model, TargetScorer):
        # what it says of a target is log p, even where that of all words does not sum to 1
        chosen, _ = model.log_probs(tokens, targets, fork(state))
        logits, state = model(tokens, state)
        return chosen, 1 + (logits > logits.gather(-1, wanted)).sum(dim=-1), state
    logits, state = model(tokens, state)
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    found = log_probs.gather(-1, wanted)
    return found[..., 0], 1 + (log_probs > found).sum(dim=-1), state


@final
@dataclass
class CorpusLikelihood:
    """Sums over a corpus, text by text."""

    special_ids: SpecialIds
    nats: list[float]
    tokens: list[int]
    blocks: list[tuple[float, int]]
    """(nats, tokens) of blocks of the first texts, for an interval where there are few texts."""
    words: int = 0
    sizes: list[int] = field(default_factory=list)
    """Bytes of each text."""
    unknown: int = 0

    @classmethod
    def empty(cls, special_ids: SpecialIds = SPECIAL_IDS) -> CorpusLikelihood:
        return cls(special_ids, [], [], [])

    def add(self, score: TextScore, ids: Ids, *, words: int, size: int) -> None:
        """Adds a text with its number of words and its size in bytes of UTF-8."""
        self.nats.append(-score.complete)
        self.tokens.append(len(score.log_probs))
        if len(self.nats) <= FEW_TEXTS:
            for start in range(0, len(score.log_probs), BLOCK):
                block = score.log_probs[start : start + BLOCK]
                self.blocks.append((-float(block.sum()), len(block)))
        self.words += words
        self.sizes.append(size)
        if self.special_ids.unk is not None:
            self.unknown += int(np.count_nonzero(np.asarray(ids) == self.special_ids.unk))

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def bits_and_bytes(self) -> Floats:
        """`(items, 2)`: bits, and the bytes that they are for, the end of a text counted as one. An item is a
        text; with fewer than FEW_TEXTS of them it is a block of tokens, which has its share of the bytes of
        its text."""
        end = int(self.special_ids.eos is not None)
        sizes = np.array(self.sizes, np.float64) + end
        if len(self.nats) >= FEW_TEXTS:
            return np.stack([np.array(self.nats) / math.log(2), sizes], axis=1)
        blocks = np.array(self.blocks, np.float64).reshape(-1, 2)
        of_each_text = [-(-tokens // BLOCK) for tokens in self.tokens]
        bytes_per_token = sizes / np.maximum(self.tokens, 1)
        bytes_of_blocks = blocks[:, 1] * np.repeat(bytes_per_token, of_each_text)
        return np.stack([blocks[:, 0] / math.log(2), bytes_of_blocks], axis=1)

    def nats_and_tokens(self) -> Floats:
        """`(items, 2)`, for the same items."""
        if len(self.nats) < FEW_TEXTS:
            return np.array(self.blocks, np.float64).reshape(-1, 2)
        return np.array([self.nats, self.tokens], np.float64).T

    def metrics(self) -> dict[str, float]:
        """loss (nats a token), perplexity, word_perplexity, bits_per_byte, each with `_low` and `_high`, the
        ends of its 95 % interval.

        Raises DataError if no token was predicted.
        """
        total, tokens = sum(self.nats), sum(self.tokens)
        if not tokens:
            raise DataError(
                "there must be a token that is predicted, but there is none; give longer texts"
            )
        loss, ends = total / tokens, len(self.nats) * (self.special_ids.eos is not None)
        units = self.nats_and_tokens()
        low, high = ratio_interval(units[:, 0], units[:, 1])
        metrics: dict[str, float] = {}
        for end, nats in (("", loss), ("_low", low), ("_high", high)):
            metrics[f"loss{end}"] = nats
            metrics[f"perplexity{end}"] = perplexity_of(nats)
            metrics[f"word_perplexity{end}"] = perplexity_of(nats * tokens / (self.words + ends))
            metrics[f"bits_per_byte{end}"] = nats * tokens / math.log(2) / (self.bytes + ends)
        counts = {
            "documents": len(self.nats),
            "tokens": tokens,
            "words": self.words,
            "bytes": self.bytes,
        }
        return metrics | counts | {"unknown_percent": 100 * self.unknown / max(tokens - ends, 1)}


def perplexity_of(nats: float) -> float:
    """exp of the nats a token; infinite where that is beyond a float."""
    return math.exp(nats) if nats < 700 else math.inf
