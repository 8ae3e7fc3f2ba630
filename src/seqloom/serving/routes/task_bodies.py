"""The parameters of Hugging Face's tasks. One that changes nothing here is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import BaseModel, Field

from seqloom.serving.routes.bodies import Body, Count, Seed, Share, Temperature, checked

P = TypeVar("P", bound=BaseModel)
TopK = Annotated[int, Field(ge=1, le=1000)]


class NoParameters(Body):
    """None at all."""


class LabelParameters(Body):
    top_k: TopK | None = None


class TagParameters(Body):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: list[str] | None = None

    @property
    def ignored(self) -> list[str]:
        return ["O"] if self.ignore_labels is None else self.ignore_labels


class SpanParameters(Body):
    top_k: TopK = 1
    handle_impossible_answer: bool = False


class FillMaskParameters(Body):
    top_k: TopK = 5


class VectorParameters(Body):
    normalize: bool | None = None
    truncate: bool | None = None


class WritingParameters(Body):
    """Of every text that is written; huggingface_hub calls them generate_parameters where it is for
    summarization and translation."""

    max_new_tokens: Count | None = None
    do_sample: bool | None = None
    temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: Share | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=100)] | None = None
    seed: Seed | None = None
    num_beams: Count | None = None


class GenerationParameters(WritingParameters):
    stop: list[str] | None = None
    return_full_text: bool = False
    details: bool = False


class PairParameters(Body):
    generate_parameters: dict[str, Any] = Field(default_factory=dict)
    task: str | None = None
    """Of a text-to-text model that knows several."""


@final
@dataclass(frozen=True)
class GivenParameters:
    """The parameters of a request as they came."""

    content: dict[str, Any]

    def parameters(self, kind: type[P]) -> P:
        """Raises RequestError that names one that is not known, or not what it must be."""
        given = {name: value for name, value in self.content.items() if value is not None}
        return checked(given, kind)
