"""Texts to what the training of a masked language model reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from torch import nn

from seqloom.config import RunConfig, TrainConfig
from seqloom.errors import UsageError
from seqloom.protocols import MaskedBatch, NewModel, Rows
from seqloom.tasks.fill_mask.masked_rows import MaskedRows
from seqloom.tasks.fill_mask.replaced_scores import measure_rows
from seqloom.tasks.fill_mask.row_settings import masked_rows
from seqloom.tasks.language_modeling.training_data import CorpusTrainingData, prepare_stores
from seqloom.tasks.starting_point import StartingPoint
from seqloom.tasks.training_data import StepTrainingData
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import MaskedLanguageModelling

logger = logging.getLogger(__name__)

HEADS = ("head.", "output.", "replaced.", "pooler.", "next_sentence.")
"""Beginnings of the names of tensors that a checkpoint may have or lack."""


@final
@dataclass(frozen=True, kw_only=True)
class MaskedCorpus(CorpusTrainingData, StepTrainingData):
    """Documents with masks as the training loop reads them."""

    kind: ClassVar = "texts with masks"
    rows: MaskedRows

    def build(self) -> NewModel:
        """A new model. What sees pairs only is frozen where there are none: distributed training waits for
        the gradient of each trained parameter."""
        new = self.start.build()
        if self.run.train.sentence_pairs == "none":
            for name, parameter in new.model.named_parameters():
                if name.startswith(("pooler.", "next_sentence.")):
                    parameter.requires_grad_(False)
        return new

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.rows.epoch(self.corpus, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.rows.texts.count(self.corpus)

    def load(self, rows: Rows, whole: Rows) -> MaskedBatch:
        return self.rows.batch(self.corpus, rows, whole)

    def describe(self, rows: Rows) -> str:
        begins = [self.rows.begins(self.corpus, int(row)) for row in rows[:4]]
        places = ", ".join(map(self.corpus.place, begins))
        return f"the rows that begin in the documents of {places}" + (
            ", ..." if len(rows) > 4 else ""
        )

    def objective(self) -> MaskedLanguageModelling:
        return MaskedLanguageModelling(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        return measure_rows(model, self.rows, self.validation)


def prepare_masked_corpus(run_config: RunConfig, folder: Path, first: bool) -> MaskedCorpus:
    start, corpus, validation = prepare_stores(run_config, folder, first, TextTokenizer.with_mask)
    start = for_masks(start, run_config.train)
    data = MaskedCorpus(
        run=run_config,
        start=start,
        corpus=corpus,
        validation=validation,
        rows=masked_rows(run_config.train, start.tokenizer, start.config),
    )
    # impossible settings are refused before the first step
    data.batches_an_epoch()
    if data.rows.measured(validation).texts is not data.rows.texts:
        logger.info(
            "the validation data are one document: next sentences, which need another, are not measured there"
        )
    return data


def for_masks(start: StartingPoint, train: TrainConfig) -> StartingPoint:
    """The same with the heads that this training needs: a checkpoint may have come with others. Raises
    UsageError for a discriminator without its generator."""
    config = start.config
    if config.replaces_tokens:
        return start
    if config.head == "replaced-token":
        raise UsageError(
            "an ELECTRA is trained further with its generator, but --from is a discriminator alone: put the"
            " generator into the folder generator/ within its own, and make a run folder of both: seqloom"
            " import"
        )
    changes: dict[str, object] = {}
    if config.head != "masked-lm":
        changes["head"] = "masked-lm"
    if train.sentence_pairs != "none" and not config.next_sentence:
        changes |= {"pooler": True, "next_sentence": True}
    return start._replace(config=replace(config, **changes), other_parts=HEADS)
