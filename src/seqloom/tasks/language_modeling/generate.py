"""A prompt and how it goes on, with a trained language model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, finish
from seqloom.decoding.hypotheses import DecodingStep, Hypothesis
from seqloom.decoding.long_context import generate_windows, window_start
from seqloom.decoding.string_constraints import cut_at, possible_stop_length
from seqloom.errors import UsageError
from seqloom.packed_weights import packed_weights
from seqloom.protocols import Tokenizer, context_of
from seqloom.runs.decoding_options import generation_options, require_hypotheses
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.tasks.model import no_such_verb

logger = logging.getLogger(__name__)

TASK = "text-generation"
NEW_TOKENS = 200
"""At most, unless decode.max_length says otherwise."""

Progress = Callable[[int], None]


class Continuation(NamedTuple):
    """One text that a model went on with."""

    prompt: str
    sample: int
    """Its number among the outputs for the prompt, from 0 on."""
    text: str
    """The new text; prompt + text reads as a whole."""
    tokens: list[int]
    """The new ids, without the end mark; those of a stop string too."""
    log_probability: float
    """Σ log p under the model (before any rule of sampling), in nats, the end mark's too where it has one."""
    finished: bool
    """False where the maximum length cut it off."""


@final
class TextGenerator:
    """A language model that is ready to go on with texts.

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
            raise no_such_verb(run.folder, run.task, "generate")
        self.run = run
        self._noticed = False
        self._context = context_of(run.model)

    @packed_weights()
    def generate(
        self,
        prompts: Sequence[str],
        progress: Progress = lambda _: None,
        watch: Callable[[DecodingStep], None] | None = None,
        **decode: Any,
    ) -> list[list[Continuation]]:
        """For each prompt its `n_best` texts: samples in order, or of a beam the best first. A prompt may be
        empty, unless nothing begins a text of this model (GPT): then that raises UsageError.

        `batch_rows` prompts are read at a time; `progress` is told how many tokens each step made, `watch`
        sees each step.
        """
        settings = self.run.decode_settings(decode)
        options = generation_options(settings, self.run.tokenizer)
        read = self._read(prompts)
        found: list[list[Hypothesis]] = []
        for at in range(0, len(read), settings.batch_rows):
            found += finish(
                self._steps(read[at : at + settings.batch_rows], settings, options, watch),
                lambda new: progress(len(new)),
            )
        return [
            [
                self._continuation(prompt, ids, number, hypothesis, settings.stop)
                for number, hypothesis in enumerate(require_hypotheses(hypotheses, options.strategy))
            ]
            for prompt, ids, hypotheses in zip(prompts, read, found, strict=True)
        ]

    def stream(self, prompt: str, **decode: Any) -> Iterator[str]:
        """The new text of one output, in pieces as they come; of a wide beam, which may change its mind, all
        at once."""
        settings = self.run.decode_settings(decode | {"n_best": 1})
        options = generation_options(settings, self.run.tokenizer)
        (ids,) = self._read([prompt])
        pieces = IncrementalText(self.run.tokenizer, ids)
        steps = self._steps([ids], settings, options)
        if settings.strategy == "beam" and settings.beam > 1:
            (found,) = finish(steps)
            hypothesis = require_hypotheses(found, options.strategy)[0]
            yield self._continuation(prompt, ids, 0, hypothesis, settings.stop).text
            return
        made, open_ = 0, ""
        while True:
            try:
                new = next(steps)
            except StopIteration as over:
                require_hypotheses(over.value[0], options.strategy)
                break
            for token in new.tolist():
                made += 1
                open_ += pieces.add(token)
                sure = (
                    0
                    if cut_at(open_, settings.stop) != open_
                    else len(open_) - possible_stop_length(open_, settings.stop)
                )
                if sure:
                    yield open_[:sure]
                open_ = open_[sure:]
        if rest := cut_at(open_ + pieces.rest(), settings.stop):
            yield rest
        self._notice(len(ids) + made)

    def _read(self, prompts: Sequence[str]) -> list[list[int]]:
        return [prompt_ids(self.run.tokenizer, ids) for ids in self.run.tokenizer.encode(prompts)]

    def _steps(
        self,
        prompts: list[list[int]],
        settings: DecodeConfig,
        options: GenerationOptions,
        watch: Callable[[DecodingStep], None] | None = None,
    ) -> Generator[Tensor, None, list[list[Hypothesis]]]:
        model: Any = self.run.model
        return generate_windows(
            model, prompts, settings.max_length or NEW_TOKENS, options, self._context, watch
        )

    def _continuation(
        self, prompt: str, ids: list[int], number: int, made: Hypothesis, stop: Sequence[str]
    ) -> Continuation:
        self._notice(len(ids) + len(made.tokens) + made.finished)
        text = cut_at(text_after(self.run.tokenizer, ids, made.tokens), stop)
        return Continuation(prompt, number, text, made.tokens, made.log_probability, made.finished)

    def _notice(self, length: int) -> None:
        """Says, once, that a text of so many tokens did not fit the context; the last of them was not read."""
        if not self._noticed and self._context is not None and window_start(length - 1, self._context):
            logger.info(
                f"the model looks at {self._context:,} tokens at most: where a text was longer, "
                f"it went on from the last {max(1, self._context // 2):,}, read afresh"
            )
            self._noticed = True


@final
class IncrementalText:
    """Tokens to text as they come: a piece is what is sure, whole characters only. All pieces together are
    the whole text."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._before = list(prompt)
        """Ids whose text ends in a whole character: what comes next is read after these, since words are
        joined by blanks."""
        self._open: list[int] = []
        self._given = 0
        """Characters of the text of `_open` that were given away."""

    def add(self, token: int) -> str:
        """What is sure now and was not before. What ends in U+FFFD may be half a character, and waits."""
        self._open.append(token)
        text = text_after(self._tokenizer, self._before, self._open)
        sure = text.rstrip("\ufffd")
        piece, self._given = sure[self._given :], len(sure)
        if text and sure == text:
            self._before, self._open, self._given = self._open, [], 0
        return piece

    def rest(self) -> str:
        """What never became a whole character."""
        return text_after(self._tokenizer, self._before, self._open)[self._given :]


def prompt_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """What a language model reads before it goes on with a text. Raises UsageError where that is nothing."""
    if read := [*tokenizer.special_ids.bos, *ids]:
        return read
    raise UsageError(
        "the text to go on with must not be empty: this model knows no mark that begins a text; give it a"
        " first word"
    )


def text_after(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What `tokens` spell after `before`."""
    return tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]


def load_generator(folder: str | Path, device: str = "auto") -> TextGenerator:
    """Opens a run folder. Raises FolderError where it is none, or is damaged; UsageError where its task is
    another."""
    run = load_run(folder, device)
    for note in run.notes:
        logger.info(note)
    return TextGenerator(run)
