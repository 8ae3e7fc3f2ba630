"""How a word2vec is trained: it updates its vectors itself, a piece of text at a time."""

from __future__ import annotations

from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn

from seqloom.layers.compiled_word2vec import train_sentences
from seqloom.layers.word2vec import Pairs, SentenceWords, WindowSampling
from seqloom.protocols import Loss


class SentenceBatch(NamedTuple):
    """A piece of text."""

    words: Tensor
    """`(words,)` of all its sentences, int32."""
    starts: Tensor
    """`(sentences + 1,)`: where each begins, and where the last ends."""
    seed: Tensor
    """Of what is drawn."""


@final
class Word2VecObjective:
    """Negative sampling over a piece of text, of skip-gram and CBOW: an `UpdatingObjective`."""

    def __init__(self, options: WindowSampling, ordered: bool) -> None:
        self.options, self.ordered = options, ordered

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """It keeps nothing between steps."""
        return torch.optim.SGD(model.parameters())

    def __call__(self, model: nn.Module, batch: SentenceBatch) -> Loss:
        """The loss alone, by which nothing is updated."""
        return self._loss(model, batch, 0.0)

    def update(
        self, model: nn.Module, batch: SentenceBatch, optimizer: torch.optim.Optimizer, rate: float
    ) -> Loss:
        """Updates the vectors. Its loss is that before each word's own update."""
        return self._loss(model, batch, rate)

    @torch.no_grad()
    def _loss(self, model: nn.Module, batch: SentenceBatch, rate: float) -> Loss:
        sentences = SentenceWords(batch.words.numpy(), batch.starts.numpy())
        pairs = self._pass(model, sentences, rate, int(batch.seed))
        return Loss(torch.tensor(pairs.loss, dtype=torch.float64), torch.tensor(pairs.count))

    def _pass(self, model: nn.Module, sentences: SentenceWords, rate: float, seed: int) -> Pairs:
        embedding = cast(nn.Embedding, model.embedding)
        targets = cast(nn.Embedding, model.targets)
        inputs = embedding.weight.data
        # the same tensor where both are one table
        outputs = inputs if targets is embedding else targets.weight.data
        return train_sentences(
            inputs,
            outputs,
            sentences,
            self.options,
            rate=rate,
            seed=seed,
            threads=torch.get_num_threads(),
            ordered=self.ordered,
        )
