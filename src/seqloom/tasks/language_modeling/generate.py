"""Prompts and their continuations by a trained language model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, finish
from seqloom.decoding.hypotheses import DecodingStep, Hypothesis
from seqloom.decoding.long_context import generate_windows, window_start
from seqloom.decoding.string_constraints import cut_at
from seqloom.errors import UsageError, shown
from seqloom.packed_weights import packed_weights
from seqloom.protocols import Tokenizer, context_of
from seqloom.runs.decoding_options import generation_options, require_hypotheses
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.language_modeling.streamed_text import StreamedText
from seqloom.tasks.model import no_such_verb, open_text_model

logger = logging.getLogger(__name__)

TASK = "text-generation"
NEW_TOKENS = 200
"""At most, unless decode.max_length says otherwise."""

Progress = Callable[[int], None]


class Continuation(NamedTuple):
    """One continuation of a prompt."""

    prompt: str
    sample: int
    """Its number among the outputs for the prompt, from 0 on."""
    text: str
    """The new text; prompt + text reads as a whole."""
    tokens: list[int]
    """The new ids, without `</s>`; those of a stop string too."""
    log_probability: float
    """Σ log p under the model (before any rule of sampling), in nats, that of `</s>` too where it has one."""
    finished: bool
    """False where it reached the maximum length."""


@final
class TextGenerator:
    """A language model that continues texts.

    writer = load_generator("runs/tales")
    writer.generate(["Once upon a time"], strategy="sample", temperature=0.8, n_best=3)
    for piece in writer.stream("Once upon a time", strategy="sample", seed=1):
        print(piece, end="")

    Keywords change the folder's decode settings. The same seed and settings give the same texts, alone or in
    a batch.
    """

    def __init__(self, run: LoadedRun) -> None:
        """Raises UsageError for a model of another task."""
        if run.task != TASK:
            raise no_such_verb(run.folder, run.task, "generate", run.model_type)
        self.run = run
        self._logged = False
        self._said_blank = False
        self._context = context_of(run.model)

    @packed_weights()
    def generate(
        self,
        prompts: Sequence[str],
        progress: Progress = lambda _: None,
        watch: Callable[[DecodingStep], None] | None = None,
        **decode: object,
    ) -> list[list[Continuation]]:
        """For each prompt its `n_best` continuations: samples in order, or of a beam the best first. An empty
        prompt raises UsageError if the model knows no token that begins a text (GPT).

        `batch_rows` prompts are read at a time. `progress` gets the number of new tokens of each step,
        `watch` the step.
        """
        settings = self.run.decode_settings(decode)
        options = generation_options(settings, self.run.tokenizer)
        model, read = self.run.decoder(settings), self._read(prompts)
        found: list[list[Hypothesis]] = []
        for first in range(0, len(read), settings.batch_rows):
            rows = read[first : first + settings.batch_rows]
            steps = self._steps(model, rows, settings, options, watch)
            found += finish(steps, lambda new: progress(len(new)))
        outputs = []
        for prompt, ids, hypotheses in zip(prompts, read, found, strict=True):
            texts = []
            for number, hypothesis in enumerate(require_hypotheses(hypotheses, options.strategy)):
                texts.append(self._continuation(prompt, ids, number, hypothesis, settings.stop))
            outputs.append(texts)
        return outputs

    def stream(self, prompt: str, **decode: object) -> Iterator[str]:
        """The new text of one output, in pieces as they come. A beam of more than one hypothesis gives all at
        once, as it may still change."""
        settings = self.run.decode_settings(decode | {"n_best": 1})
        options = generation_options(settings, self.run.tokenizer)
        (ids,) = self._read([prompt])
        text = StreamedText(self.run.tokenizer, ids, settings.stop)
        steps = self._steps(self.run.decoder(settings), [ids], settings, options)
        if settings.strategy == "beam" and settings.beam > 1:
            (found,) = finish(steps)
            hypothesis = require_hypotheses(found, options.strategy)[0]
            yield self._continuation(prompt, ids, 0, hypothesis, settings.stop).text
            return
        tokens = 0
        while True:
            try:
                new = next(steps)
            except StopIteration as end:
                require_hypotheses(end.value[0], options.strategy)
                break
            for token in new.tolist():
                tokens += 1
                if piece := text.add(token):
                    yield piece
        if rest := text.rest():
            yield rest
        self._log_long_context(len(ids) + tokens)

    def _read(self, prompts: Sequence[str]) -> list[list[int]]:
        if not self._said_blank and (notice := blank_notice(self.run.tokenizer, prompts)):
            logger.info(notice)
            self._said_blank = True
        return [prompt_ids(self.run.tokenizer, ids) for ids in self.run.tokenizer.encode(prompts)]

    def _steps(
        self,
        model: nn.Module,
        prompts: list[list[int]],
        settings: DecodeConfig,
        options: GenerationOptions,
        watch: Callable[[DecodingStep], None] | None = None,
    ) -> Generator[Tensor, None, list[list[Hypothesis]]]:
        return generate_windows(
            model,
            prompts,
            settings.max_length or NEW_TOKENS,
            options,
            self._context,
            watch,
        )

    def _continuation(
        self, prompt: str, ids: list[int], number: int, hypothesis: Hypothesis, stop: Sequence[str]
    ) -> Continuation:
        self._log_long_context(len(ids) + len(hypothesis.tokens) + hypothesis.finished)
        text = cut_at(text_after(self.run.tokenizer, ids, hypothesis.tokens), stop)
        return Continuation(
            prompt, number, text, hypothesis.tokens, hypothesis.log_probability, hypothesis.finished
        )

    def _log_long_context(self, length: int) -> None:
        """Logs once that a text of so many tokens did not fit the context; the last token was not read."""
        if (
            not self._logged
            and self._context is not None
            and window_start(length - 1, self._context)
        ):
            logger.info(
                f"the model looks at {self._context:,} tokens at most: where a text was longer, "
                f"it went on from the last {max(1, self._context // 2):,}, read afresh"
            )
            self._logged = True


def prompt_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """What a language model reads of a prompt. Raises UsageError if that is nothing."""
    if read := [*tokenizer.special_ids.bos, *ids]:
        return read
    raise UsageError(
        "the text to go on with must not be empty: this model knows no mark that begins a text; give it a"
        " first word"
    )


def blank_notice(tokenizer: Tokenizer, prompts: Sequence[str]) -> str:
    """About the first prompt that ends in a blank, where words have theirs before them; empty if there is
    none, or where a blank is a token like any other (bytes, characters)."""
    ending = [prompt for prompt in prompts if prompt.endswith(" ") and prompt.strip()]
    if not ending:
        return ""
    whole, stripped = tokenizer.encode([ending[0], ending[0].rstrip(" ")])
    if whole == stripped:
        reason = "this tokenizer does not read it there, and the text has its own blank before its first word"
    elif any(token[:1] == b" " and token.strip() for token in tokenizer.token_bytes):
        reason = (
            "the tokens of this model have the blank before a word, so hardly any text that it was trained on"
            " goes on after a blank alone"
        )
    else:
        return ""
    return f"the prompt {shown(ending[0])!r} ends in a blank: {reason}; leave it out"


def text_after(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What `tokens` spell after `before`."""
    return tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]


def load_generator(folder: str | Path, device: str = "auto") -> TextGenerator:
    """Opens a run folder. Raises FolderError if it is none, or is damaged; UsageError if its task is
    another."""
    return open_text_model(TextGenerator, folder, device)
