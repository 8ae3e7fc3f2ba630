"""The parameters of Hugging Face's tasks. One that changes nothing here is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, final

from pydantic import BaseModel, Field

from seqloom.serving.routes.bodies import Body, Count, Seed, Share, Temperature, checked

P = TypeVar("P", bound=BaseModel)
TopK = Annotated[int, Field(ge=1, le=1000)]


class NoParameters(Body):
    """None at all."""


class LabelParameters(Body):
    top_k: TopK | None = None


class ZeroShotParameters(Body):
    candidate_labels: Annotated[list[str], Field(min_length=1)]
    multi_label: bool = False
    hypothesis_template: Annotated[str, Field(pattern=r"\{\}")] = "This example is {}."


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
    """Of every text that is written."""

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


class PairParameters(WritingParameters):
    generate_parameters: dict[str, object] = Field(default_factory=dict)
    """The same again, as huggingface_hub sends them for summarization and translation."""

    @property
    def wishes(self) -> WritingParameters:
        beside = self.model_dump(exclude={"generate_parameters"})
        return GivenParameters(beside | self.generate_parameters).parameters(WritingParameters)


class TaskParameters(Body):
    """Of a text-to-text model that knows several tasks."""

    task: str | None = None


@final
@dataclass(frozen=True)
class GivenParameters:
    """The parameters of a request as they came."""

    content: dict[str, object]

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    def parameters(self, kind: type[P]) -> P:
        """Raises RequestError that names one that is not known, or not what it must be."""
        given = {name: value for name, value in self.content.items() if value is not None}
        return checked(given, kind)
