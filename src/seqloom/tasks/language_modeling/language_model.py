"""A trained language model: it generates, scores and completes texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

from seqloom.protocols import NO_REQUEST, Evaluation, Request
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.runs.settings import data_config
from seqloom.tasks.language_modeling.complete import Completer, Completion
from seqloom.tasks.language_modeling.documents import (
    describe_scoring,
    each_document,
    evaluate_documents,
    stride_of,
)
from seqloom.tasks.language_modeling.generate import Continuation, TextGenerator
from seqloom.tasks.language_modeling.score import Scored, Scorer
from seqloom.tasks.model import TrainedModel

logger = logging.getLogger(__name__)


@final
class LanguageModel(TrainedModel):
    """A trained language model, ready to be asked.

    model = seqloom.load("runs/tales")
    model.generate(["Once upon a time"], temperature=0.8, seed=7)
    list(model.score(["grey tape", "great ape"]))
    model.complete("Once upon a ti")
    """

    reads: ClassVar = {"evaluate": frozenset({"data", "stride"})}

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run.folder, run.task, run.model, run.model_type)
        self.run = run

    @cached_property
    def generator(self) -> TextGenerator:
        return TextGenerator(self.run)

    @cached_property
    def completer(self) -> Completer:
        return Completer(self.run.model, self.run.tokenizer)

    def generate(self, prompts: Sequence[str], **decode: Any) -> list[list[Continuation]]:
        """For each prompt its `n_best` continuations; see `TextGenerator.generate`."""
        return self.generator.generate(prompts, **decode)

    def stream(self, prompt: str, **decode: Any) -> Iterator[str]:
        """One continuation, in pieces as they come."""
        return self.generator.stream(prompt, **decode)

    def score(
        self, texts: Iterable[str], *, prompt: str = "", tokens: bool = False, stride: int | None = None
    ) -> Iterator[Scored]:
        """How likely each text is; see `Scorer.score`."""
        return Scorer(self.run).score(texts, prompt=prompt, tokens=tokens, stride=stride)

    def complete(self, prefix: str, n: int = 5, words: int = 1) -> list[Completion]:
        """The likeliest completions of a text that is being typed; see `Completer.complete`."""
        return self.completer.complete(prefix, n, words)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """Perplexity and its kin on documents."""
        self.check("evaluate", request)
        run, stride = self.run, request.stride
        logger.info(describe_scoring(run.model, stride, run.tokenizer))
        documents = each_document(paths, data_config(self.folder, request.data), run.tokenizer)
        step = stride_of(run.model, stride)
        return Evaluation(evaluate_documents(run.model, documents, step, run.tokenizer.special_ids))


def open_language_model(folder: Path, device: str) -> LanguageModel:
    """The model of a run folder or of a Hugging Face directory."""
    run = load_run(folder, device)
    for note in run.notes:
        logger.info(note)
    return LanguageModel(run)
