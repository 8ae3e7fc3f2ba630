"""Documents to what the training of an ELMo reads: windows for both of its language models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from seqloom.config import RunConfig
from seqloom.data.batching.corpus_windows import BidirectionalBatch, load_both_directions
from seqloom.errors import UsageError
from seqloom.models.elmo import Elmo, ElmoConfig
from seqloom.protocols import FrequencyOutput, Rows
from seqloom.tasks.encoders.elmo_vectors import (
    bidirectional_metrics,
    both_likelihoods,
    letters_of,
)
from seqloom.tasks.language_modeling.documents import Document
from seqloom.tasks.language_modeling.training_data import (
    WindowedCorpus,
    make_plan,
    prepare_stores,
)
from seqloom.tasks.training_data import StepTrainingData, count_ids
from seqloom.text.special_tokens import BOS, EOS
from seqloom.text.word_characters import TokenSpelling
from seqloom.training.objectives import BidirectionalModelling


@final
@dataclass(frozen=True, kw_only=True)
class BidirectionalCorpus(WindowedCorpus, StepTrainingData):
    """Documents as the training loop reads them in both directions."""

    kind: ClassVar = "texts"
    letters: Tensor | None
    """`(vocabulary, letters)`: the bytes of each id, where the model reads them."""

    def load(self, rows: Rows, whole: Rows) -> BidirectionalBatch:
        special_ids = self.tokenizer.special_ids
        return load_both_directions(self.corpus, self.plan, rows, whole, special_ids, self.letters)

    def objective(self) -> BidirectionalModelling:
        return BidirectionalModelling(self.run.train.label_smoothing, self.stream_states())

    def initialise(self, model: nn.Module) -> None:
        """An output layer that works by frequency needs to know how often each id is a target; `<s>` is one
        as often as `</s>`."""
        output: object = cast(Elmo, model).output
        if self.start.pretrained is None and isinstance(output, FrequencyOutput):
            counts = count_ids(self.corpus.tokens, self.tokenizer.vocabulary_size)
            counts[BOS] = counts[EOS]
            output.set_counts(torch.from_numpy(counts))

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The perplexities of both directions; each document is read from the empty state."""
        indices = range(len(self.validation))
        documents = (Document(self.validation.document(index), 0, 0) for index in indices)
        special_ids, totals = self.tokenizer.special_ids, self.validation.totals
        likelihoods = both_likelihoods(cast(Elmo, model), self.letters, documents, special_ids)
        for corpus in likelihoods:
            corpus.words, corpus.sizes = totals.words, [totals.bytes]
        return bidirectional_metrics(*likelihoods)


def prepare_elmo(run_config: RunConfig, folder: Path, first: bool) -> BidirectionalCorpus:
    """The training data of an ELMo. Raises UsageError for a model that predicts nothing."""
    start, corpus, validation = prepare_stores(run_config, folder, first)
    config: ElmoConfig = start.config
    if config.output == "none":
        raise UsageError(
            "an ELMo is trained to predict, so model.output must be full, adaptive, importance or blackout,"
            " but is none"
        )
    spelling = None
    if config.tokens == "characters":
        spelling = TokenSpelling(start.tokenizer, config.longest_word)
    return BidirectionalCorpus(
        run=run_config,
        start=start,
        corpus=corpus,
        validation=validation,
        plan=make_plan(run_config, config, corpus),
        letters=letters_of(spelling),
    )
