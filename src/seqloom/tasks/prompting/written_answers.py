"""Answers that a model writes after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from seqloom.errors import UsageError
from seqloom.protocols import Settings, context_of, source_room
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.language_modeling.generate import TASK, TextGenerator
from seqloom.tasks.translation.translate import decode_texts

NEW_TOKENS = 64
"""At most, unless decode.max_length says otherwise."""


@final
class AnswerWriter:
    """A model that writes what follows prompts: the most likely text, unless settings say otherwise."""

    def __init__(self, run: LoadedRun, decode: Settings) -> None:
        self.run = run
        self.decode: dict[str, Any] = {"strategy": "greedy", "max_length": NEW_TOKENS}
        if run.task == TASK:
            self.decode["stop"] = ["\n"]
        self.decode |= decode

    def write(self, prompts: Sequence[str]) -> list[str]:
        """The answer to each prompt."""
        if self.run.task == TASK:
            found = TextGenerator(self.run).generate(prompts, **self.decode)
            return [outputs[0].text for outputs in found]
        settings = self.run.decode_settings(self.decode)
        model = self.run.decoder(settings)
        decoded = decode_texts(model, self.run.tokenizer, prompts, settings)
        return [outputs[0].text for outputs in decoded]

    def fitting(self, prompt: str) -> tuple[str, bool]:
        """The prompt, cut at the left where it and its answer are longer than the model reads, and whether it
        is cut. Raises UsageError if the answer alone may fill the context."""
        tokenizer, new = self.run.tokenizer, int(self.decode["max_length"])
        special_ids = tokenizer.special_ids
        room = source_room(self.run.model, special_ids, len(special_ids.bos) + new)
        if room is None:
            return prompt, False
        (ids,) = tokenizer.encode([prompt])
        if len(ids) <= room:
            return prompt, False
        if room < 1:
            raise UsageError(
                f"an answer of {new} tokens leaves no room for a prompt in the"
                f" {context_of(self.run.model)} that the model reads; lower decode.max_length"
            )
        return tokenizer.decode(ids[-room:]), True
