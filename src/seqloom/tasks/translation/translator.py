"""A trained model of text pairs: texts in, texts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from seqloom.config import DataConfig
from seqloom.decoding.hypotheses import DecodingStep
from seqloom.errors import UsageError, place
from seqloom.protocols import (
    NO_REQUEST,
    Answer,
    EvaluatedExample,
    Evaluation,
    Request,
    context_of,
)
from seqloom.run_file import parse
from seqloom.runs.output_files import new_file
from seqloom.runs.progress import chunked, each_pair, each_record
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config, evaluate_config
from seqloom.runs.tracing import decode_with_trace
from seqloom.tasks.data_report import unknown_percent
from seqloom.tasks.explain.explained_model import ExplainedModel, one_text
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.model import single_path
from seqloom.tasks.prompting.options import PromptOptions
from seqloom.tasks.prompting.prompting import prompt
from seqloom.tasks.prompting.result import PromptResult
from seqloom.tasks.translation import explained_input
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs, prepare_references
from seqloom.tasks.translation.measures import TRANSLATION, Measure
from seqloom.tasks.translation.text_limit import TextLimit
from seqloom.tasks.translation.translate import DecodedText, decode_texts

CHUNK = 512
"""Lines that are in memory at one time."""


@final
class Translator(ExplainedModel):
    """A trained model of translation, summarization or another task of text pairs, ready to be asked.

    model = seqloom.load("runs/captions")
    model.predict(["A dog runs."])
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data", "decode", "evaluate"}),
        "explain": frozenset({"decode"}),
        "predict": frozenset({"lines", "decode", "trace"}),
    }
    pictures: ClassVar = ExplainedModel.pictures | {"surprisal", "lens"}

    def __init__(self, run: LoadedRun, measure: Measure = TRANSLATION) -> None:
        super().__init__(run)
        self.measure = measure

    def predict(self, texts: Sequence[str], **decode: object) -> list[str]:
        """The best output for each text; keywords change the folder's settings of decoding (beam=1,
        max_length=50, ...)."""
        return [outputs[0].text for outputs in self.n_best(texts, None, **decode | {"n_best": 1})]

    def n_best(
        self,
        texts: Sequence[str],
        watch: Callable[[DecodingStep], None] | None = None,
        **decode: object,
    ) -> list[list[DecodedText]]:
        """The `n_best` outputs for each text, best first, with scores. `watch` sees each step of decoding."""
        settings = self.run.decode_settings(decode)
        model = self.run.decoder(settings)
        return decode_texts(model, self.run.tokenizer, list(texts), settings, watch)

    def stream(
        self, texts: Iterable[str], chunk: int = CHUNK, **decode: object
    ) -> Iterator[list[DecodedText]]:
        """The same for any number of texts, in order; memory is bounded by the chunk.

        Where `texts` raises a SeqloomError, what came before it is answered first.
        """
        settings = self.run.decode_settings(decode)
        model = self.run.decoder(settings)
        for batch in chunked(texts, chunk):
            yield from decode_texts(model, self.run.tokenizer, batch, settings)

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The outputs for each line of a file; a blank or skipped line gives an empty one."""
        self.check("predict", request, paths)
        path = single_path(paths)
        trace = None if request.trace is None else new_file(request.trace)
        data = data_config(self.folder, request.data)
        texts = self._limit(data).sources(each_record(path, data))
        if trace is None:
            chunk = 1 if request.interactive else CHUNK
            outputs = self.stream(texts, chunk, **request.decode)
        else:

            def decode(text: str, watch: Callable[[DecodingStep], None]) -> list[DecodedText]:
                return self.n_best([text], watch, **request.decode)[0]

            outputs = decode_with_trace(trace, texts, self.run, request.decode, decode)
        for output in outputs:
            yield _answer(output)

    def _limit(self, data: DataConfig) -> TextLimit:
        return TextLimit(
            context=context_of(self.run.model), tokenizer=self.run.tokenizer, data=data
        )

    def text_vector(self, text: str) -> Tensor:
        """A vector of a text: the last states of a recurrent one, the mean over the tokens of
        another; of a language model the state after the source."""
        return explained_input.source_vector(self.run, text)

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        text, decode = one_text(texts, self.task), self.run.decode_settings(request.decode)
        if look.target is not None and request.decode:
            raise UsageError(
                f"decode.{next(iter(request.decode))} changes nothing beside --target, which is given in"
                " place of what is decoded; leave one out"
            )
        return explained_input.explained_input(self.run, text, look, decode)

    def prompt(
        self, paths: Sequence[str], request: Request = NO_REQUEST, **options: Any
    ) -> PromptResult:
        """How good it is at a task that is said and shown in its prompt; the keywords are the fields of
        `PromptOptions`."""
        return prompt(self.run, paths, parse(PromptOptions, options), request)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """The loss and the scores of the task (BLEU, ROUGE, ...) on files of pairs, in the direction of the
        training."""
        self.check("evaluate", request, paths)
        settings = self.run.decode_settings(request.decode)
        data = data_config(self.folder, request.data)
        records = list(each_pair(paths, data))
        every = [(record.fields["source"], record.fields["target"]) for record in records]
        kept = self._limit(data).fitting(every, paths[0])
        pairs = [every[number] for number in kept]
        references = prepare_references(
            self.run.tokenizer,
            [target for _, target in pairs],
            evaluate_config(self.folder, request.evaluate),
            self.measure,
        )
        found = evaluate_pairs(
            self.run.decoder(settings),
            self.run.tokenizer,
            pairs,
            settings,
            references,
            self.measure,
            baselines=True,
        )
        examples = [
            EvaluatedExample(place(records[i].path, records[i].line), every[i][0], truth, output)
            for i, truth, output in zip(kept, references.texts, found.outputs, strict=True)
        ]
        return replace(found, metrics=found.metrics | self._vocabulary(pairs), examples=examples)

    def _vocabulary(self, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
        """What a perplexity depends on, beside the model."""
        tokenizer = self.run.tokenizer
        targets = tokenizer.encode([target for _, target in pairs])
        ids = np.fromiter(chain.from_iterable(targets), np.int64)
        unknown = unknown_percent(ids, tokenizer.special_ids)
        return {"vocabulary": tokenizer.vocabulary_size, "unknown_percent": unknown}


def _answer(outputs: Sequence[DecodedText]) -> Answer:
    """The best output; all of them where there are several."""
    every = [output._asdict() for output in outputs]
    best = outputs[0]
    cells: dict[str, object] = {"output": best.text, "score": best.score}
    if best.score is not None:
        cells["finished"] = best.finished
    if len(outputs) > 1:
        cells["outputs"] = every
    return Answer(best.text, {"outputs": every}, cells)
