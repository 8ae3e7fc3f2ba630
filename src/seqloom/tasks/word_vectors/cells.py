"""Texts to what GloVe's training reads: cells of the matrix of how often words are near each other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.config import RunConfig
from seqloom.data.batching.cooccurrences import CellArray, build_cells
from seqloom.errors import DataError, counted
from seqloom.layers.glove import Cells, CountWeights, Factors, train_cells
from seqloom.long_work import every_few_seconds
from seqloom.models.word_vectors.glove import Glove, GloveConfig
from seqloom.protocols import Loss, Rows
from seqloom.tasks.language_modeling.training_data import prepare_stores
from seqloom.tasks.word_vectors.training_data import PieceTrainingData

logger = logging.getLogger(__name__)


class CellBatch(NamedTuple):
    """Some cells."""

    rows: Tensor
    columns: Tensor
    counts: Tensor


@final
class GloveObjective:
    """The weighted squares over some cells: an `UpdatingObjective` that trains by AdaGrad."""

    def __init__(self, weights: CountWeights) -> None:
        self.weights = weights

    def optimizer(self, model: nn.Module) -> torch.optim.Adagrad:
        """Sums of squared gradients that begin at 1."""
        return torch.optim.Adagrad(model.parameters(), initial_accumulator_value=1.0)

    @torch.no_grad()
    def __call__(self, model: nn.Module, batch: CellBatch) -> Loss:
        """The loss alone, by which nothing is updated."""
        factors = _factors(model)
        return self._pass(factors, factors, batch, 0.0)

    @torch.no_grad()
    def update(
        self, model: nn.Module, batch: CellBatch, optimizer: torch.optim.Optimizer, rate: float
    ) -> Loss:
        """Updates the vectors. Its loss is that before each cell's own update."""
        factors = _factors(model)
        squares = Factors(*(optimizer.state[parameter]["sum"] for parameter in factors))
        return self._pass(factors, squares, batch, rate)

    def _pass(self, factors: Factors, squares: Factors, batch: CellBatch, rate: float) -> Loss:
        cells = Cells(batch.rows.numpy(), batch.columns.numpy(), batch.counts.numpy())
        threads = torch.get_num_threads()
        loss = train_cells(factors, squares, cells, self.weights, rate, threads)
        return Loss(torch.tensor(loss, dtype=torch.float64), torch.tensor(len(batch.rows)))


def _factors(model: nn.Module) -> Factors:
    glove = cast(Glove, model)
    return Factors(glove.embedding.weight, glove.output.weight, glove.bias, glove.output_bias)


@final
@dataclass(frozen=True, kw_only=True)
class CellTrainingData(PieceTrainingData):
    """Cells as the training loop reads them, those of a piece in another order each epoch."""

    kind: ClassVar = "cells"
    config: GloveConfig
    cells: CellArray

    def about(self) -> str:
        totals = self.corpus.totals
        return (
            f"{counted(len(self.cells), 'pair')} of words that are near each other in"
            f" {counted(totals.documents, 'document')} of {counted(totals.ids, 'token')}"
        )

    def batches_an_epoch(self) -> int:
        return -(-len(self.cells) // self.run.train.batch_tokens)

    def load(self, rows: Rows, whole: Rows) -> CellBatch:
        epoch, number = divmod(int(whole[0]), self.batches_an_epoch())
        cells = self._piece(number)
        order = np.random.default_rng([self.run.train.seed, epoch, number]).permutation(len(cells))
        return _batch(cells[order])

    def describe(self, rows: Rows) -> str:
        return f"piece {int(rows[0]) % self.batches_an_epoch() + 1} of the cells"

    def figures(self, counts: NDArray[np.int64]) -> dict[str, object]:
        return {"pairs of near words": len(self.cells)}

    def objective(self) -> GloveObjective:
        return GloveObjective(CountWeights(self.config.x_max, self.config.alpha))

    def initialise(self, model: nn.Module) -> None:
        """A word that is near no other has no vector: 0."""
        alone = torch.ones(self.tokenizer.vocabulary_size, dtype=torch.bool)
        for number in range(self.batches_an_epoch()):
            alone[torch.from_numpy(self._piece(number)["row"].astype(np.int64))] = False
        for factor in _factors(model):
            factor.data[alone] = 0

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The mean loss of all cells: what is minimised."""
        objective, total = self.objective(), 0.0
        for number in range(self.batches_an_epoch()):
            total += float(objective(model, _batch(self._piece(number))).total)
        return {"loss": total / len(self.cells)}

    def _piece(self, number: int) -> CellArray:
        size = self.run.train.batch_tokens
        return self.cells[number * size : (number + 1) * size]


def _batch(cells: CellArray) -> CellBatch:
    return CellBatch(*(torch.from_numpy(cells[name].copy()) for name in ("row", "column", "count")))


def prepare_cells(run_config: RunConfig, folder: Path, first: bool) -> CellTrainingData:
    """Raises DataError if no two words are near each other."""
    start, corpus, validation = prepare_stores(run_config, folder, first, holds_out=False)
    config: GloveConfig = start.config
    cells = build_cells(
        corpus,
        start.tokenizer.vocabulary_size,
        config.window,
        count_progress(len(corpus.tokens)),
    )
    if not len(cells):
        raise DataError("two words of a sentence must be near each other, but no sentence has two")
    return CellTrainingData(
        run=run_config,
        start=start,
        corpus=corpus,
        validation=validation,
        config=config,
        cells=cells,
    )


def count_progress(tokens: int) -> Callable[[int], None]:
    """Logs every few seconds of how many tokens the near words are counted."""
    is_due = every_few_seconds()

    def show(done: int) -> None:
        if is_due():
            logger.info(f"near words: {done:,} of {counted(tokens, 'token')} counted")

    return show
