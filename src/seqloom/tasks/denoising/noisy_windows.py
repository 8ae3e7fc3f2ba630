"""Windows of a corpus with noise: which ids are read together, and what becomes of them, as a function of
(seed, epoch, position)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch

from seqloom.config import TrainConfig
from seqloom.data.batching.corpus_windows import Corpus, WindowPlan
from seqloom.data.batching.pair_batches import TranslationBatch, pair_batch
from seqloom.data.encoding.noise import (
    BART_NOISE,
    Denoising,
    Ids,
    NoiseOptions,
    apply_noise,
    check_noise,
    sentinels_needed,
    text_length,
)
from seqloom.errors import UsageError
from seqloom.protocols import Rows, StoredTokenizer
from seqloom.shapes import IGNORE

WINDOW = 512
"""Ids of a source, unless train.window says otherwise (Raffel et al. 2020, section 3.1.2)."""
T5_DENSITY, BART_DENSITY = 0.15, 0.3
NOISE = 2
"""The key of noise beside the seed, the epoch and the position: batches and offsets have others."""
MEASURED = 2**32 - 4
"""The epoch of text that is only measured: always the same noise."""
LANGUAGE_MODEL_NOISE = ("prefix-lm",)
"""The only kind for a language model."""
SENTENCE_ENDS = (b".", b"!", b"?", "。".encode(), "！".encode(), "？".encode())


@final
@dataclass(frozen=True, kw_only=True)
class NoisyWindows:
    """How a run cuts its text into windows, and their noise."""

    names: tuple[str, ...]
    options: NoiseOptions
    plan: WindowPlan
    """Its windows are what is corrupted: longer than the source, where spans become one id each."""
    tokenizer: StoredTokenizer
    between: int | None
    """What stands between two documents; None if words keep apart without it."""

    def epoch(self, corpus: Corpus, epoch: int, start: int = 0) -> Iterator[Rows]:
        """A row is epoch · (ids of the corpus + window) + window + where the row begins."""
        first = epoch * self._period(corpus) + self.plan.window
        for rows in self.plan.epoch(corpus, epoch, start):
            yield rows + first

    def batch(self, corpus: Corpus, rows: Rows, whole: Rows) -> TranslationBatch:
        """No rows: the first of the `whole` batch with nothing trained, since a worker must take part even
        where a batch has fewer rows than there are workers."""
        noisy = [self.denoising(corpus, int(row)) for row in (rows if len(rows) else whole[:1])]
        batch = pair_batch(
            [row.source.tolist() for row in noisy],
            [row.target.tolist() for row in noisy],
            self.tokenizer.special_ids,
        )
        if len(rows):
            return batch
        return batch._replace(targets=torch.full_like(batch.targets, IGNORE))

    def denoising(self, corpus: Corpus, row: int) -> Denoising:
        epoch, place = divmod(row, self._period(corpus))
        random = np.random.default_rng([self.plan.seed, epoch, place, NOISE])
        return apply_noise(self.names, self.text(corpus, row), self.options, random)

    def text(self, corpus: Corpus, row: int) -> Ids:
        """The ids of a window. The end mark of a document becomes the separator of two."""
        begin = row % self._period(corpus) - self.plan.window
        ids = corpus.tokens[max(begin, 0) : begin + self.plan.window].astype(np.int64)
        is_end = ids == self.tokenizer.special_ids.eos
        if self.between is None or is_end.all():
            texts: Ids = ids[~is_end]
            return texts
        # none at the beginning or the end of a window
        first, last = np.flatnonzero(~is_end)[[0, -1]]
        inside: Ids = np.where(is_end, self.between, ids)[first : last + 1]
        return inside

    def _period(self, corpus: Corpus) -> int:
        return len(corpus.tokens) + self.plan.window


def with_window(train: TrainConfig, limit: int | None) -> TrainConfig:
    """The settings with the window that a model reads whose texts have at most `limit` tokens. Raises
    UsageError if they name a longer one."""
    if limit is not None and train.noise == LANGUAGE_MODEL_NOISE:
        # `<s> source <delim> target </s>` is one text, all but the last token being read
        limit -= 1
    window = train.window or (WINDOW if limit is None else min(WINDOW, limit))
    if limit is not None and window > limit:
        raise UsageError(
            f"train.window must be at most {limit:,} with this model and noise, but is {window:,}; make it"
            " shorter, or model.context larger"
        )
    return replace(train, window=window)


def noise_density(train: TrainConfig) -> float:
    bart = train.noise[0] in BART_NOISE
    return train.noise_density or (BART_DENSITY if bart else T5_DENSITY)


def window_length(train: TrainConfig) -> int:
    """Ids of a window of text: as many as its source has room for."""
    source = train.window or WINDOW
    if train.noise == ("random-spans",):
        return text_length(source, noise_density(train), train.noise_span)
    return max(source - 1, 1)


def needed_sentinels(train: TrainConfig) -> int:
    """How many a new tokenizer has. Raises UsageError for noise that cannot be."""
    check_noise(train.noise)
    length = window_length(train)
    return sentinels_needed(train.noise, length, noise_density(train), train.noise_span)


def noisy_windows(train: TrainConfig, tokenizer: StoredTokenizer) -> NoisyWindows:
    """Raises UsageError if the tokenizer has too few sentinels, or nothing that ends a sentence."""
    wanted, sentinels = needed_sentinels(train), tokenizer.sentinels
    mask = tokenizer.special_ids.mask
    if len(sentinels) < wanted and (mask is None or wanted > 1):
        raise UsageError(
            f"this noise needs {wanted} sentinels for a window, but the tokenizer has {len(sentinels)}; make"
            " train.window shorter, or take other noise"
        )
    ends = np.array([ends_sentence(spelled) for spelled in tokenizer.token_bytes])
    if "sentence-permutation" in train.noise and not ends.any():
        raise UsageError(
            "sentence-permutation needs tokens that end a sentence (. ! ? 。 ！ ？), but the tokenizer has"
            " none; leave it out of train.noise"
        )
    length = window_length(train)
    batch = train.batch_rows or max(train.batch_tokens // (2 * length), 1)
    if mask is None:
        mask = sentinels[0]
    options = NoiseOptions(
        density=noise_density(train),
        span=train.noise_span,
        sentinels=np.asarray(sentinels, np.int64),
        mask=mask,
        protected=np.array([not spelled for spelled in tokenizer.token_bytes]),
        ends_sentence=ends,
    )
    return NoisyWindows(
        names=train.noise,
        options=options,
        plan=WindowPlan(seed=train.seed, window=length, rows=batch),
        tokenizer=tokenizer,
        between=_between_documents(tokenizer),
    )


def _between_documents(tokenizer: StoredTokenizer) -> int | None:
    """A line break or a blank, where the last word of a document and the first of the next would be one word
    without it (byte-level BPE, bytes, characters)."""
    spelled = (token.decode("utf-8", "ignore").strip() for token in tokenizer.token_bytes)
    word = next(filter(None, spelled), "a")
    (ids,) = tokenizer.encode([word])
    if tokenizer.decode([*ids, *ids]) != 2 * word:
        return None
    for text in ("\n", " "):
        (ids,) = tokenizer.encode([text])
        if len(ids) == 1 and tokenizer.token_bytes[ids[0]]:
            return ids[0]
    return None


def ends_sentence(spelled: bytes) -> bool:
    return spelled.strip().endswith(SENTENCE_ENDS)
