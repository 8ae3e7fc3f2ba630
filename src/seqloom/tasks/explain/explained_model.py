"""A trained model that can be looked at: every picture is drawn here, from what its task says of an input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.data.encoding.encode_words import space_begins_words
from seqloom.errors import SeqloomError, UsageError, printable
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.studies.attention_maps import part_of
from seqloom.explaining.studies.layer_lens import decoder_stack
from seqloom.json_values import several_texts
from seqloom.layers.attention import HeadAttention, WatchedAttention
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.models.ngrams.ngram import Ngram
from seqloom.protocols import NO_REQUEST, Request, modules_of
from seqloom.run_file import parse
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.tasks.explain.attention import explain_attention
from seqloom.tasks.explain.attribution import explain_attribution
from seqloom.tasks.explain.heads import explain_induction, explain_knock_out
from seqloom.tasks.explain.language import explain_back_off, explain_lens, explain_surprisal
from seqloom.tasks.explain.look import SHOWS, Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.explain.recurrent import explain_gates
from seqloom.tasks.explain.space import (
    Vectors,
    embedded_words,
    explain_space,
    read_points,
)
from seqloom.tasks.model import TextModel
from seqloom.tasks.word_vectors.initial_embeddings import word_embeddings

OF_INPUT: Mapping[str, Callable[[ModelInput, Look], Explanation]] = {
    "attention": explain_attention,
    "attribution": explain_attribution,
    "surprisal": explain_surprisal,
    "gates": explain_gates,
    "lens": explain_lens,
    "knockout": explain_knock_out,
    "backoff": explain_back_off,
}
"""Pictures of what a model does with one input."""


class ExplainedModel(TextModel):
    """A model of texts that can be looked at."""

    pictures: ClassVar[frozenset[str]] = frozenset(
        {"attention", "attribution", "gates", "knockout", "words", "projection"}
    )
    """Those that its task gives a meaning to; its network may have no heads, or no gates (`shows`)."""

    @abstractmethod
    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        """An input as the model reads it. Raises UsageError if it reads another number of texts."""

    def text_vector(self, text: str) -> Tensor:
        """The vector of a whole text `(width,)`. Raises UsageError if it makes no vector."""
        raise UsageError(
            f"{printable(str(self.folder))}: a {self.model_type} makes no vector of a text"
        )

    def word_table(self, words: Sequence[str]) -> tuple[Vectors, list[int]]:
        """The vectors of words, and the numbers of the words that have one: of any model those of its
        embedding."""
        tokenizer = self.run.tokenizer
        lead = " " if space_begins_words(tokenizer) else ""
        encoded = tokenizer.encode([lead + word for word in words])
        return embedded_words(self._token_table(), encoded, tokenizer.special_ids.unk)

    def _token_table(self) -> nn.Embedding:
        """The embedding of the tokens, of two that of the target. Raises UsageError if there is none."""
        tables = word_embeddings(self.model, self.run.tokenizer.vocabulary_size)
        if not tables:
            raise UsageError("this model has no embedding of tokens to show")
        return tables[0][1]

    def shows(self) -> list[str]:
        """The pictures that there are of this model, the default one first."""
        found = self.pictures & self._network_shows()
        if "projection" in found:
            try:
                with torch.inference_mode():
                    self.text_vector("a")
            except SeqloomError:
                found -= {"projection"}
        first = self.default_show()
        return sorted(found, key=lambda show: (show != first, list(SHOWS).index(show)))

    def _network_shows(self) -> set[str]:
        """Of any task."""
        found = {"attribution", "surprisal", "projection"}
        if modules_of(self.model, WatchedAttention):
            found.add("attention")
        for name, module in modules_of(self.model, HeadAttention).items():
            found.add("knockout")
            if part_of(name, module) == "self":
                found.add("induction")
        if modules_of(self.model, RecurrentLayer):
            found.add("gates")
        if self._backs_off:
            found.add("backoff")
        with suppress(UsageError):
            decoder_stack(self.model)
            found.add("lens")
        with suppress(UsageError):
            self._token_table()
            found.add("words")
        return found

    @property
    def _backs_off(self) -> bool:
        """Whether it looks a word up after shorter contexts where it has not seen the longer ones."""
        return isinstance(self.model, Ngram)

    def default_show(self) -> str:
        """The picture that is drawn where none is asked for."""
        if self._backs_off:
            return "backoff"
        if modules_of(self.model, WatchedAttention):
            return "attention"
        return "gates" if modules_of(self.model, RecurrentLayer) else "attribution"

    def explain(
        self,
        texts: str | Sequence[str] = (),
        output: str | None = None,
        request: Request = NO_REQUEST,
        **options: Any,
    ) -> Explanation:
        """A picture of what the model does with a text, or with the two of a pair; the keywords are the
        fields of `Look`: show, target, ... With `output` it is written to a new file.

        Raises UsageError if the file exists already, or where there is no such picture of this model.
        """
        self.check("explain", request)
        if output is not None:
            new_file(output, PICTURES)
        given = several_texts(texts)
        look = parse(Look, {"show": self.default_show(), **options}, "--")
        explanation = self.looked_at(given, look, request)
        return explanation if output is None else explanation.save(output)

    def looked_at(
        self, texts: Sequence[str], look: Look, request: Request = NO_REQUEST, *, files: bool = True
    ) -> Explanation:
        """`files`: whether the only one of `texts` may be a file that holds names or texts."""
        self._refuse_unread(look)
        if look.show == "induction":
            if "induction" not in self.pictures:
                raise UsageError(
                    f"an induction score is of a language model, but this is a model of {self.task}; see"
                    " --show"
                )
            if texts:
                raise UsageError(
                    "an induction score is of random tokens, not of a text; leave it out"
                )
            return explain_induction(self.run)
        if look.show in ("words", "projection"):
            return self._space(texts, look, files)
        if not any(text.strip() for text in texts):
            raise UsageError("the text must hold a word, but it is empty")
        return OF_INPUT[look.show](self.model_input(texts, look, request), look)

    def _refuse_unread(self, look: Look) -> None:
        """Raises UsageError for an option that changes nothing of a picture of this model."""
        if look.word is not None and self.task != "token-classification":
            raise UsageError("--word is for tags, but this model has none; leave it out")
        of_answers = look.show in ("attribution", "knockout")
        if look.target is not None and not of_answers and "surprisal" not in self.pictures:
            raise UsageError(
                f"--target changes nothing of --show {look.show} of a model that writes no text; leave it out"
            )

    def _space(self, given: Sequence[str], look: Look, files: bool) -> Explanation:
        """The space of words, or of whole texts."""
        place = printable(self.folder.name)
        points = read_points(given, look.column, commas=look.show == "words", files=files)
        if look.show == "words":
            vectors, kept = self.word_table(points.names)
            missing = "which have no vector"
            return explain_space(look.show, points, vectors, kept, f"Words of {place}", missing)
        kept = [index for index, text in enumerate(points.names) if text.strip()]
        with torch.inference_mode():
            rows = [self.text_vector(points.names[index]).double().cpu() for index in kept]
        texts = torch.stack(rows).numpy() if rows else np.zeros((0, 1))
        return explain_space(
            look.show, points, texts, kept, f"Texts as {place} reads them", "blank"
        )


def one_text(texts: Sequence[str], of: str) -> str:
    """Raises UsageError for another number of texts."""
    if len(texts) != 1:
        raise UsageError(
            f"explain takes FOLDER and one TEXT of a model of {of}, but {len(texts)} texts are given; put the"
            " text in quotes"
        )
    return texts[0]
