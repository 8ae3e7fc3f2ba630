"""A trained language model: it generates, scores and completes texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from seqloom.long_work import log_progress
from seqloom.protocols import NO_REQUEST, Evaluation, Request, device_of, last_hidden
from seqloom.run_file import parse
from seqloom.runs.settings import data_config
from seqloom.tasks.explain.explained_model import ExplainedModel, one_text
from seqloom.tasks.explain.look import SHOWS, Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.language_modeling import explained_input
from seqloom.tasks.language_modeling.complete import Completer, Completion
from seqloom.tasks.language_modeling.documents import (
    describe_scoring,
    describe_weights,
    each_document,
    score_documents,
    stride_of,
)
from seqloom.tasks.language_modeling.generate import Continuation, TextGenerator
from seqloom.tasks.language_modeling.score import Scored, Scorer
from seqloom.tasks.prompting.options import PromptOptions
from seqloom.tasks.prompting.prompting import prompt
from seqloom.tasks.prompting.result import PromptResult

logger = logging.getLogger(__name__)


@final
class LanguageModel(ExplainedModel):
    """A trained language model, ready to be asked.

    model = seqloom.load("runs/tales")
    model.generate(["Once upon a time"], temperature=0.8, seed=7)
    list(model.score(["grey tape", "great ape"]))
    model.complete("Once upon a ti")
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data", "stride", "decode.weights"}),
        "explain": frozenset(),
    }
    pictures: ClassVar = frozenset(SHOWS)

    @cached_property
    def generator(self) -> TextGenerator:
        return TextGenerator(self.run)

    @cached_property
    def completer(self) -> Completer:
        return Completer(self.decoder(), self.run.tokenizer)

    def generate(self, prompts: Sequence[str], **decode: Any) -> list[list[Continuation]]:
        """For each prompt its `n_best` continuations; see `TextGenerator.generate`."""
        return self.generator.generate(prompts, **decode)

    def stream(self, prompt: str, **decode: object) -> Iterator[str]:
        """One continuation, in pieces as they come."""
        return self.generator.stream(prompt, **decode)

    def score(
        self,
        texts: Iterable[str],
        *,
        prompt: str = "",
        tokens: bool = False,
        stride: int | None = None,
    ) -> Iterator[Scored]:
        """How likely each text is; see `Scorer.score`."""
        return Scorer(self.run).score(texts, prompt=prompt, tokens=tokens, stride=stride)

    def complete(self, prefix: str, n: int = 5, words: int = 1) -> list[Completion]:
        """The likeliest completions of a text that is being typed; see `Completer.complete`."""
        return self.completer.complete(prefix, n, words)

    def prompt(
        self, paths: Sequence[str], request: Request = NO_REQUEST, **options: Any
    ) -> PromptResult:
        """How good it is at a task that is said and shown in its prompt; the keywords are the fields of
        `PromptOptions`."""
        return prompt(self.run, paths, parse(PromptOptions, options), request)

    def text_vector(self, text: str) -> Tensor:
        """The state after its last token."""
        (ids,) = self.run.tokenizer.encode([text])
        row = [*self.run.tokenizer.special_ids.bos, *ids]
        tokens = torch.tensor([row], device=device_of(self.model))
        hidden = last_hidden(self.model, tokens)
        return super().text_vector(text) if hidden is None else hidden

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        return explained_input.explained_input(self.run, one_text(texts, self.task), look)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """Perplexity and its kin on documents."""
        self.check("evaluate", request, paths)
        weights = request.decode.get("weights", self.run.storage)
        settings, tokenizer = self.run.decode_settings({"weights": weights}), self.run.tokenizer
        model = self.run.decoder(settings)
        logger.info(describe_scoring(model, request.stride, tokenizer))
        if notice := describe_weights(settings.weights, self.run.decode.weights):
            logger.info(notice)
        documents = log_progress(
            each_document(paths, data_config(self.folder, request.data), tokenizer),
            "documents measured",
        )
        stride = stride_of(model, request.stride)
        likelihood = score_documents(model, documents, stride, tokenizer.special_ids)
        metrics = likelihood.metrics()
        if metrics["unknown_percent"]:
            logger.info(
                f"{metrics['unknown_percent']:.2f} % of the tokens are unknown words, whose spelling is not"
                " scored: perplexity can be compared only with that of a model whose vocabulary is the same"
            )
        vocabulary = {"vocabulary": tokenizer.vocabulary_size}
        return Evaluation(
            metrics | vocabulary,
            details={"tokenizer": tokenizer.kind},
            statistics={
                "bits_per_byte": likelihood.bits_and_bytes(),
                "loss": likelihood.nats_and_tokens(),
                "perplexity": likelihood.nats_and_tokens(),
            },
        )
