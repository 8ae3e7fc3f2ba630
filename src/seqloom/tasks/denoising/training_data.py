"""Texts to what the training of a denoising encoder-decoder reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import nn

from seqloom.config import RunConfig
from seqloom.data.batching.corpus_windows import Corpus
from seqloom.data.batching.pair_batches import TranslationBatch
from seqloom.errors import UsageError
from seqloom.evaluation.teacher_forcing import teacher_forcing_score
from seqloom.models import model_family
from seqloom.protocols import EncoderDecoder, Rows, device_of
from seqloom.shapes import on_device
from seqloom.tasks.denoising.noisy_windows import (
    LANGUAGE_MODEL_NOISE,
    MEASURED,
    NoisyWindows,
    needed_sentinels,
    noisy_windows,
    with_window,
)
from seqloom.tasks.language_modeling.training_data import CorpusTrainingData, prepare_stores
from seqloom.tasks.training_data import StepTrainingData
from seqloom.training.objectives import Translation


@final
@dataclass(frozen=True, kw_only=True)
class NoisyCorpus(CorpusTrainingData, StepTrainingData):
    """Documents with noise as the training loop reads them."""

    kind: ClassVar = "texts with noise"
    windows: NoisyWindows

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.windows.epoch(self.corpus, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.windows.plan.count(self.corpus)

    def load(self, rows: Rows, whole: Rows) -> TranslationBatch:
        return self.windows.batch(self.corpus, rows, whole)

    def describe(self, rows: Rows) -> str:
        begins = rows % (len(self.corpus.tokens) + self.windows.plan.window)
        begins = (begins - self.windows.plan.window).clip(min=0)
        places = ", ".join(map(self.corpus.place, begins[:4].tolist()))
        return f"the windows in the documents of {places}" + (", ..." if len(rows) > 4 else "")

    def objective(self) -> Translation:
        return Translation(self.run.train.label_smoothing)

    def validate(self, model: nn.Module) -> dict[str, float]:
        return denoising_metrics(model, self.windows, self.validation)


def prepare_noisy_corpus(run_config: RunConfig, folder: Path, first: bool) -> NoisyCorpus:
    """Raises UsageError for noise that cannot be, before anything is read."""
    train, family = run_config.train, model_family(str(run_config.model["name"]))[1]
    if not issubclass(family, EncoderDecoder) and train.noise != LANGUAGE_MODEL_NOISE:
        raise UsageError(
            f"train.noise must be {LANGUAGE_MODEL_NOISE[0]} for a language model, but is"
            f" {', '.join(train.noise)}"
        )
    sentinels = needed_sentinels(train)
    start, corpus, validation = prepare_stores(
        run_config, folder, first, lambda learned: learned.with_sentinels(sentinels)
    )
    start = start.for_text_pairs()
    return NoisyCorpus(
        run=run_config,
        start=start,
        corpus=corpus,
        validation=validation,
        windows=noisy_windows(with_window(train, start.longest_text), start.tokenizer),
    )


def denoising_metrics(model: nn.Module, windows: NoisyWindows, corpus: Corpus) -> dict[str, float]:
    """How well a model in evaluation mode predicts each token of the targets from those before it, under
    noise that is always the same."""
    device = device_of(model)

    def batches() -> Iterator[TranslationBatch]:
        for rows in windows.epoch(corpus, MEASURED):
            yield on_device(windows.batch(corpus, rows, rows), device)

    with torch.inference_mode():
        score = teacher_forcing_score(model, batches())
    return {
        "loss": score.loss,
        "perplexity": score.perplexity,
        "token_accuracy": score.token_accuracy,
        "tokens": score.count,
    }
