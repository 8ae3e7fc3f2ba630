"""A trained model that can be looked at: every picture is drawn here, from what its task says of an input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seqloom.errors import UsageError
from seqloom.explaining.explanation import Explanation
from seqloom.layers.attention import WatchedAttention
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.models.ngrams.ngram import Ngram
from seqloom.protocols import NO_REQUEST, Request
from seqloom.run_file import parse
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.tasks.explain.attention import explain_attention
from seqloom.tasks.explain.attribution import explain_attribution
from seqloom.tasks.explain.heads import explain_induction, explain_knock_out
from seqloom.tasks.explain.language import explain_back_off, explain_lens, explain_surprisal
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.explain.recurrent import explain_gates
from seqloom.tasks.model import TextModel

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

    @abstractmethod
    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        """An input as the model reads it. Raises UsageError where it reads another number of texts."""

    def default_show(self) -> str:
        """The picture that is drawn where none is asked for."""
        if isinstance(self.model, Ngram):
            return "backoff"
        modules = list(self.model.modules())
        if any(isinstance(module, WatchedAttention) for module in modules):
            return "attention"
        recurrent = any(isinstance(module, RecurrentLayer) for module in modules)
        return "gates" if recurrent else "attribution"

    def explain(
        self,
        texts: str | Sequence[str] = (),
        output: str | None = None,
        request: Request = NO_REQUEST,
        **options: Any,
    ) -> Explanation:
        """A picture of what the model does with a text, or with the two of a pair; the keywords are the
        fields of `Look`: show, target, ... With `output` it is written to a new file.

        Raises UsageError where the file exists already, or where there is no such picture of this model.
        """
        self.check("explain", request)
        if output is not None:
            new_file(output, PICTURES)
        given = [texts] if isinstance(texts, str) else list(texts)
        look = parse(Look, {"show": self.default_show(), **options}, "--")
        explanation = self.looked_at(given, look, request)
        return explanation if output is None else explanation.save(output)

    def looked_at(self, texts: Sequence[str], look: Look, request: Request) -> Explanation:
        if look.show == "induction":
            if texts:
                raise UsageError(
                    "an induction score is of random tokens, not of a text; leave it out"
                )
            return explain_induction(self.run)
        if not any(text.strip() for text in texts):
            raise UsageError("the text must hold a word, but it is empty")
        return OF_INPUT[look.show](self.model_input(texts, look, request), look)


def one_text(texts: Sequence[str], of: str) -> str:
    """Raises UsageError for another number of texts."""
    if len(texts) != 1:
        raise UsageError(
            f"explain takes FOLDER and one TEXT of a model of {of}, but {len(texts)} texts are given; put the"
            " text in quotes"
        )
    return texts[0]
