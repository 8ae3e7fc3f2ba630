"""Texts to what the training of word vectors reads: pieces of whole sentences, a document each."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from seqloom.arrays import Numbers
from seqloom.config import RunConfig
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.batching.order import order
from seqloom.layers.word2vec import WindowSampling, kept_probabilities, noise_table
from seqloom.models.word_vectors.word2vec import Word2VecConfig
from seqloom.protocols import Rows, modules_of
from seqloom.tasks.language_modeling.training_data import CorpusTrainingData, prepare_stores
from seqloom.tasks.training_data import StepTrainingData, count_ids
from seqloom.tasks.word_vectors.objective import SentenceBatch, Word2VecObjective
from seqloom.tasks.word_vectors.pieces import word_pieces
from seqloom.text.special_tokens import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

DRAWN = 3
"""The key of what is drawn, beside the seed, the epoch and the position: orders and noise have others."""
MEASURED = 2**32 - 5
"""The epoch of text that is only measured: always the same draws."""


@dataclass(frozen=True, kw_only=True)
class PieceTrainingData(CorpusTrainingData, StepTrainingData):
    """Training data in pieces, each of which is a batch and a row: epoch · pieces + its number."""

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        count = self.batches_an_epoch()
        for number in order(self.run.train.seed, epoch, start, count, count):
            yield np.array([epoch * count + number])

    @abstractmethod
    def batches_an_epoch(self) -> int: ...

    @abstractmethod
    def figures(self, counts: NDArray[np.int64]) -> dict[str, object]:
        """What is read in an epoch, for a report. `counts`: how often each word is in the training text."""

    @property
    def kept(self) -> Numbers | None:
        """`(vocabulary,)`: the probability with which each word is read; None where all are read."""
        return None


@final
@dataclass(frozen=True, kw_only=True)
class SentenceCorpus(PieceTrainingData):
    """Documents, each of which is a sentence, as the training loop reads them."""

    kind: ClassVar = "sentences"
    config: Word2VecConfig

    def batches_an_epoch(self) -> int:
        return len(self._ends(self.corpus)) - 1

    def load(self, rows: Rows, whole: Rows) -> SentenceBatch:
        epoch, number = divmod(int(whole[0]), self.batches_an_epoch())
        return self._piece(self.corpus, number, epoch)

    def describe(self, rows: Rows) -> str:
        first = self._ends(self.corpus)[int(rows[0]) % self.batches_an_epoch()]
        return f"the text from {self.corpus.place(int(self.corpus.offsets[first]))} on"

    def objective(self) -> Word2VecObjective:
        return Word2VecObjective(self.options, self.run.train.ordered_updates)

    @cached_property
    def options(self) -> WindowSampling:
        c, counts = self.config, self._counts
        return WindowSampling(
            window=c.window,
            drawn_window=c.drawn_window,
            negatives=c.negatives,
            cbow=c.architecture == "cbow",
            kept=kept_probabilities(counts, c.subsample, c.subsample_formula),
            # a word that does not occur is never drawn, also where the power is 0
            noise=noise_table(np.where(counts > 0, counts**c.noise_power, 0.0)),
            softmax=c.loss == "softmax",
            pieces=word_pieces(self.tokenizer.token_bytes, c),
        )

    @property
    def kept(self) -> Numbers:
        return self.options.kept

    def figures(self, counts: NDArray[np.int64]) -> dict[str, object]:
        return {
            "words read an epoch": round(float((counts * self.kept).sum())),
            "pairs an epoch (from its first step)": self.pairs_an_epoch(),
        }

    def pairs_an_epoch(self) -> int:
        """As its first step has them."""
        piece = self._piece(self.corpus, 0, 0)
        pairs = int(self.objective()(self.start.build().model, piece).count)
        return round(pairs * int(self._counts.sum()) / max(len(piece.words), 1))

    def initialise(self, model: nn.Module) -> None:
        """A word that is nowhere in the training text has no vector: 0."""
        notice = thread_notice(torch.get_num_threads())
        if notice and not self.run.train.ordered_updates:
            logger.info(notice)
        if self.start.pretrained is None:
            unseen = torch.from_numpy(self._counts == 0)
            for embedding in modules_of(model, nn.Embedding).values():
                embedding.weight.data[: len(unseen)][unseen] = 0

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The mean loss of a pair of words, with draws that are always the same."""
        total, count = 0.0, 0
        for number in range(len(self._ends(self.validation)) - 1):
            loss = self.objective()(model, self._piece(self.validation, number, MEASURED))
            total, count = total + float(loss.total), count + int(loss.count)
        return {"loss": total / max(count, 1), "pairs": count}

    def _piece(self, corpus: CorpusStore, number: int, epoch: int) -> SentenceBatch:
        first, after = self._ends(corpus)[number : number + 2]
        offsets = corpus.offsets[first : after + 1]
        ids = corpus.tokens[offsets[0] : offsets[-1]].astype(np.int32)
        # special tokens and unknown words are left out; the words around them become neighbours
        is_word = ids >= len(SPECIAL_TOKENS)
        starts = np.concatenate([[0], is_word.cumsum()])[offsets - offsets[0]]
        seeds = np.random.SeedSequence([self.run.train.seed, epoch, number, DRAWN])
        seed = int(seeds.generate_state(1, np.uint64)[0] >> np.uint64(1))
        return SentenceBatch(
            torch.from_numpy(ids[is_word]), torch.from_numpy(starts), torch.tensor(seed)
        )

    def _ends(self, corpus: CorpusStore) -> NDArray[np.int64]:
        """Where each piece begins, and where the last ends, in documents: pieces have about
        train.batch_tokens words."""
        size = self.run.train.batch_tokens
        cuts = np.arange(0, len(corpus.tokens), size)
        return np.unique(np.append(np.searchsorted(corpus.offsets, cuts), len(corpus)))

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """`(vocabulary,)`: how often each word is in the training text; 0 for marks."""
        counts = count_ids(self.corpus.tokens, self.tokenizer.vocabulary_size)
        counts[: len(SPECIAL_TOKENS)] = 0
        return counts


def thread_notice(threads: int) -> str:
    """What several threads mean for the weights (Recht et al. 2011); empty for one."""
    if threads == 1:
        return ""
    return (
        f"{threads} threads update the same vectors without waiting for each other (Hogwild): the same"
        " training ends in other last bits each time (train.ordered_updates=true or train.threads=1 repeats"
        " to the bit)"
    )


def prepare_sentences(run_config: RunConfig, folder: Path, first: bool) -> SentenceCorpus:
    start, corpus, validation = prepare_stores(run_config, folder, first)
    return SentenceCorpus(
        run=run_config, start=start, corpus=corpus, validation=validation, config=start.config
    )
