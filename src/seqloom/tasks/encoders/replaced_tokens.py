"""Which tokens of a text do not belong there: what the discriminator of an ELECTRA says.

p(token i was replaced) = σ(w · φ(W h_i))      of [CLS] text [SEP], for each token of the text
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, NoReturn, final

import torch

from seqloom.data.batching.pair_batches import encoder_ids
from seqloom.errors import DataError, UsageError, printable
from seqloom.models.bert import Bert
from seqloom.protocols import NO_REQUEST, Answer, Request, device_of
from seqloom.runs.progress import chunked, each_text
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.encoders.sentence_vectors import batches, encoded
from seqloom.tasks.model import TextModel, single_path

CHUNK = 512
"""Texts that are in memory at one time."""


class Judged(NamedTuple):
    """A token of a text."""

    begin: int
    """The token is `text[begin:end]`."""
    end: int
    replaced: float
    """The probability that another token was there."""


@final
class ReplacedTokenFinder(TextModel):
    """A discriminator, ready to be asked. Raises UsageError if the model is none.

    seqloom.load("runs/electra").replaced(["The chef ate the meal."])
    """

    reads: ClassVar = {"predict": frozenset({"lines"})}

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        if not isinstance(run.model, Bert) or run.model.config.head != "replaced-token":
            raise UsageError(
                f"{printable(str(run.folder))}: must be a discriminator of replaced tokens, but is one of"
                f" {run.task}"
            )
        self.discriminator, self.tokenizer = run.model, run.tokenizer

    def replaced(self, texts: Sequence[str]) -> list[list[Judged]]:
        """The tokens of each text, each with the probability that it was replaced."""
        return [tokens for _, tokens in self.judge(texts)]

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Each text with brackets around what was probably replaced."""
        return [_marked(text, tokens) for text, tokens in self.judge(texts)]

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The same of each line of a file; a blank line gives an empty one."""
        self.check("predict", request, paths)
        path = single_path(paths)
        texts = each_text(path, data_config(self.folder, request.data))
        for text, tokens in self.judge(texts, path, 1 if request.interactive else CHUNK):
            content = {"text": text, "tokens": [token._asdict() for token in tokens]}
            yield Answer(_marked(text, tokens), content)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> NoReturn:
        """Raises UsageError: what makes replacements is not there."""
        raise UsageError(
            f"{printable(str(self.folder))}: how well a discriminator finds replaced tokens is measured with"
            " its generator, which this folder has not got; use: seqloom predict FOLDER FILE, or evaluate on"
            " the run folder of its training"
        )

    def judge(
        self, texts: Iterable[str], path: str = "texts", chunk: int = CHUNK
    ) -> Iterator[tuple[str, list[Judged]]]:
        """Each text and its tokens. One that is too long is a DataError that names `path` and its number."""
        first, number = len(self.tokenizer.special_ids.prefix), 0
        for batch in chunked(texts, chunk):
            rows = [
                encoder_ids(ids, self.tokenizer.special_ids) for ids in self.tokenizer.encode(batch)
            ]
            for row in rows:
                number += 1
                if len(row) > self.discriminator.context:
                    raise DataError(
                        f"a text must have at most {self.discriminator.context} tokens, marks counted, but"
                        f" has {len(row)}; give a part of it",
                        path,
                        number,
                    )
            found = zip(
                batch, self.tokenizer.offsets(batch), self._probabilities(rows), strict=True
            )
            for text, offsets, probabilities in found:
                own = probabilities[first : first + len(offsets)]
                yield text, [Judged(*span, token) for span, token in zip(offsets, own, strict=True)]

    @torch.inference_mode()
    def _probabilities(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each token of each row, special ones included."""
        found: list[list[float]] = [[] for _ in rows]
        for batch in batches([len(row) for row in rows], device_of(self.discriminator)):
            with self.run.kept_weights.of():
                hidden, _ = encoded(self.discriminator, [rows[index] for index in batch])
            scores = self.discriminator.logits(hidden).double().sigmoid().tolist()
            for index, of_row in zip(batch, scores, strict=True):
                found[index] = of_row[: len(rows[index])]
        return found


def _marked(text: str, tokens: Sequence[Judged]) -> str:
    parts, done = [], 0
    for begin, end, replaced in tokens:
        if replaced > 0.5:
            parts += [text[done:begin], "[", text[begin:end], "]"]
            done = end
    return "".join([*parts, text[done:]])
