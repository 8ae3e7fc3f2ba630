"""What models that read answer, in the words of Hugging Face's task schemas.

Sources: the task schemas of huggingface.js (packages/tasks), and what `huggingface_hub.InferenceClient` makes
of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from seqloom.json_values import as_list, as_object, as_text
from seqloom.protocols import LoadedModel, Request
from seqloom.serving.engine import Read
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.routes.task_bodies import (
    FillMaskParameters,
    GivenParameters,
    LabelParameters,
    NoParameters,
    SpanParameters,
    TagParameters,
    VectorParameters,
    ZeroShotParameters,
)
from seqloom.serving.routes.vectors import check_text_lengths, text_vectors
from seqloom.serving.served_models import ServedModel
from seqloom.tasks.fill_mask.mask_filler import Candidate, Filled, MaskFiller
from seqloom.tasks.text.predictor import TextPredictor

_WORD = re.compile(r"\S+")


class Labelled(TypedDict):
    """What models answer: labels of a text."""

    probabilities: dict[str, float]


class Tagged(TypedDict):
    """Tags of words."""

    tags: list[str]
    probabilities: list[float]


class LikelySpan(TypedDict):
    """A part of a context."""

    text: str
    probability: float
    start: int
    end: int


class Spans(TypedDict):
    """The likeliest parts."""

    answers: list[LikelySpan]
    no_answer_probability: float


class TaggedWord(TypedDict):
    """A word as token-classification answers it."""

    entity: str
    score: float
    word: str
    start: int
    end: int


class Reading(NamedTuple):
    """How a task answers one request."""

    inputs: Sequence[object]
    read: Read
    """Inputs of several requests to one output for each."""
    answer: Callable[[Sequence[Any]], object]
    """The outputs of this request to the content of its answer."""
    together: str = "predict"
    """Requests with the same word are read together."""


def predicting(served: ServedModel) -> Read:
    """The model's own `predict`."""
    model = cast(LoadedModel, served.model)
    return lambda inputs: model.predict(list(inputs))


def items_of(inputs: object) -> list[object]:
    """One input, or several, as several."""
    several = as_list(inputs)
    return [inputs] if several is None else several


def texts_of(inputs: object) -> list[str]:
    """A text, or several, as several. Raises RequestError for anything else."""
    texts = [inputs] if as_text(inputs) is not None else as_list(inputs)
    if not texts or None in map(as_text, texts):
        raise invalid("inputs", "must be a text, or a list of texts")
    return cast(list[str], texts)


def labels(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """text-classification: the most likely labels of each text, or pair of texts."""
    if "candidate_labels" in wanted:
        return zero_shot_labels(served, inputs, wanted)
    parameters = wanted.parameters(LabelParameters)
    plain: list[object] = []
    for given in items_of(inputs):
        match given:
            case str():
                plain.append(given)
            case {"text": str(text), "text_pair": str(second), **others} if not others:
                plain.append((text, second))
            case _:
                raise invalid("inputs", "must be a text, or {text, text_pair}, or a list of these")

    def answer(outputs: Sequence[Labelled]) -> list[list[dict[str, object]]]:
        found = []
        for output in outputs:
            ranked = sorted(output["probabilities"].items(), key=lambda item: -item[1])
            best = ranked[: parameters.top_k or len(ranked)]
            found.append([{"label": label, "score": score} for label, score in best])
        return found

    return Reading(plain, predicting(served), answer)


def zero_shot_labels(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """zero-shot-classification: how well each of the labels that are given fits, by a model that says whether
    a text entails another (Yin et al. 2019). The scores are p(entailment) over their sum; with `multi_label`
    p(entailment) of each label against p(contradiction)."""
    parameters = wanted.parameters(ZeroShotParameters)
    model = cast("TextPredictor[Any]", served.model)
    entails = [name for name in model.head_task.labels if name.lower().startswith("entail")]
    if model.head_task.kind != "classification" or len(entails) != 1:
        raise invalid(
            "candidate_labels",
            f"need a model that was trained with a label entailment, but model {served.name} has none",
        )
    if as_text(inputs) is None:
        raise invalid("inputs", "must be a text")
    candidates = parameters.candidate_labels
    pairs = [(inputs, parameters.hypothesis_template.replace("{}", name)) for name in candidates]
    contradicts = [name for name in model.head_task.labels if name.lower().startswith("contra")]

    def answer(outputs: Sequence[Labelled]) -> list[dict[str, object]]:
        def probabilities(label: str) -> NDArray[np.float64]:
            return np.array([output["probabilities"][label] for output in outputs])

        scores = probabilities(entails[0])
        if not parameters.multi_label and len(candidates) > 1:
            scores = scores / max(scores.sum(), 1e-30)
        elif contradicts:
            scores = scores / np.maximum(scores + probabilities(contradicts[0]), 1e-30)
        ranked = np.argsort(-scores, kind="stable").tolist()
        return [{"label": candidates[place], "score": float(scores[place])} for place in ranked]

    asked = model.with_settings(Request(all_labels=True))
    return Reading(pairs, lambda chunk: asked.predict(chunk), answer, together="all labels")


def tags(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """token-classification: the tag of each word, or the entities that the tags mark."""
    parameters = wanted.parameters(TagParameters)
    texts = texts_of(inputs)
    words = list(map(_WORD.findall, texts))
    if not all(words):
        raise invalid("inputs", "must hold a word")

    def answer(outputs: Sequence[Tagged]) -> object:
        found: list[Sequence[object]] = []
        for text, output in zip(texts, outputs, strict=True):
            tagged = tagged_words(text, output)
            if parameters.aggregation_strategy == "none":
                found.append([word for word in tagged if word["entity"] not in parameters.ignored])
            else:
                groups = entities(text, tagged)
                found.append([g for g in groups if g["entity_group"] not in parameters.ignored])
        return _as_given(found, inputs)

    return Reading(words, predicting(served), answer)


def _as_given(answers: Sequence[object], inputs: object) -> object:
    """The answer to one text alone, or the answers to several."""
    return answers if as_text(inputs) is None else answers[0]


def tagged_words(text: str, output: Tagged) -> list[TaggedWord]:
    rows = zip(_WORD.finditer(text), output["tags"], output["probabilities"], strict=True)
    return [
        {
            "entity": tag,
            "score": score,
            "word": match.group(),
            "start": match.start(),
            "end": match.end(),
        }
        for match, tag, score in rows
    ]


def entities(text: str, tagged: Sequence[TaggedWord]) -> list[dict[str, object]]:
    """Runs of words of one kind: B-X begins one, I-X goes on, and so does a plain tag X."""
    groups: list[list[TaggedWord]] = []
    kinds: list[str] = []
    for word in tagged:
        mark, dash, kind = word["entity"].partition("-")
        if not dash:
            mark, kind = "I", word["entity"]
        if groups and mark in ("I", "E") and kinds[-1] == kind:
            groups[-1].append(word)
        else:
            groups.append([word])
            kinds.append(kind)
    found = []
    for kind, group in zip(kinds, groups, strict=True):
        start, end = group[0]["start"], group[-1]["end"]
        score = float(np.mean([word["score"] for word in group]))
        found.append(
            {
                "entity_group": kind,
                "score": score,
                "word": text[start:end],
                "start": start,
                "end": end,
            }
        )
    return found


def spans(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """question-answering: the best spans of a context."""
    parameters = wanted.parameters(SpanParameters)
    match inputs:
        case {"question": str(question), "context": str(context), **others} if not others:
            pass
        case _:
            raise invalid("inputs", "must be {question, context}, two texts")

    def answer(outputs: Sequence[Spans]) -> object:
        (output,) = outputs
        none: LikelySpan = {
            "text": "",
            "probability": output["no_answer_probability"],
            "start": 0,
            "end": 0,
        }
        found = list(output["answers"]) or [none]
        if output["answers"] and parameters.handle_impossible_answer:
            found = sorted([*found, none], key=lambda span: -span["probability"])
        shown = [
            {
                "answer": span["text"],
                "score": span["probability"],
                "start": span["start"],
                "end": span["end"],
            }
            for span in found
        ]
        return shown[0] if parameters.top_k == 1 else shown[: parameters.top_k]

    return Reading([(question, context)], predicting(served), answer)


def masks(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """fill-mask: the most likely tokens at each mask."""
    parameters = wanted.parameters(FillMaskParameters)
    filler, texts = cast(MaskFiller, served.model), texts_of(inputs)
    if not all(filler.spelling in text for text in texts):
        raise invalid("inputs", f"must hold {filler.spelling} where a token is to be predicted")

    def answer(outputs: Sequence[Filled]) -> object:
        found = []
        for text, filled in zip(texts, outputs, strict=True):
            of_masks = []
            for mask in filled.masks:
                of_masks.append([described(text, candidate) for candidate in mask])
            found.append(of_masks[0] if len(of_masks) == 1 else of_masks)
        return _as_given(found, inputs)

    def described(text: str, candidate: Candidate) -> dict[str, object]:
        return {
            "sequence": text.replace(filler.spelling, candidate.token.strip(), 1),
            "score": candidate.probability,
            "token": candidate.id,
            "token_str": candidate.token,
        }

    def read(chunk: Sequence[str]) -> list[Filled]:
        return filler.fill_masks(list(chunk), parameters.top_k)

    return Reading(texts, read, answer, together=f"masks {parameters.top_k}")


def similarities(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """sentence-similarity: how alike one text is to each of several: the cosine of their vectors, or the
    number that a model was trained to say."""
    wanted.parameters(NoParameters)
    match inputs:
        case {"source_sentence": str(source), "sentences": [*others], **more} if not more:
            pass
        case _:
            raise invalid(
                "inputs", "must be {source_sentence, sentences}, a text and a list of texts"
            )
    texts = texts_of(others)
    if served.task == "sentence-similarity":
        pairs = [(source, text) for text in texts]
        return Reading(
            pairs, predicting(served), lambda outputs: [output["score"] for output in outputs]
        )

    def answer(outputs: Sequence[Any]) -> list[float]:
        vectors = np.stack(outputs).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        cosines = vectors[1:] @ vectors[0] / np.maximum(lengths[1:] * lengths[0], 1e-30)
        return [float(cosine) for cosine in cosines]

    check_text_lengths(served, [source, *texts], "inputs")
    return Reading(
        [source, *texts], lambda chunk: list(text_vectors(served, chunk)), answer, "vectors"
    )


def vectors(served: ServedModel, inputs: object, wanted: GivenParameters) -> Reading:
    """feature-extraction: the vector of each text; of a pair of texts how alike they are."""
    if as_object(inputs) is not None:
        return similarities(served, inputs, wanted)
    parameters = wanted.parameters(VectorParameters)
    texts = texts_of(inputs)
    if parameters.truncate is False or parameters.truncate is None:
        check_text_lengths(served, texts, "inputs")

    def answer(outputs: Sequence[Any]) -> list[list[float]]:
        found = np.stack(outputs)
        if parameters.normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        plain: list[list[float]] = found.tolist()
        return plain

    return Reading(texts, lambda chunk: list(text_vectors(served, chunk)), answer, "vectors")


READING: dict[str, Callable[[ServedModel, object, GivenParameters], Reading]] = {
    "text-classification": labels,
    "token-classification": tags,
    "question-answering": spans,
    "fill-mask": masks,
    "sentence-similarity": similarities,
    "feature-extraction": vectors,
}
"""By task."""


OF_VECTORS = ("feature-extraction", "sentence-similarity")
"""What every encoder can be asked for, whatever its own task."""


def reading_of(served: ServedModel, task: str, inputs: object, wanted: GivenParameters) -> Reading:
    """Raises RequestError for a task without a schema."""
    if task not in READING:
        raise RequestError(
            400,
            f"model {served.name} is one of {served.task}, for which Hugging Face has no schema; POST"
            " /api/predict",
            "model",
        )
    return READING[task](served, inputs, wanted)
