"""How good texts are as answers of their task: the metrics that the task has with a model of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from seqloom.arrays import Ints
from seqloom.config import EvaluateConfig
from seqloom.data.readers.examples import LabelledText, Question, TaggedWords, TextPair
from seqloom.data.readers.tag_scheme import OUTSIDE, scheme_of
from seqloom.errors import counted, printable
from seqloom.evaluation.answer_f1 import answer_metrics, answer_scores
from seqloom.evaluation.classification import (
    UNSEEN,
    LabelPredictions,
    confusion,
    label_metrics,
    per_label,
)
from seqloom.evaluation.correlation import number_metrics
from seqloom.evaluation.entity_f1 import SpanCounts
from seqloom.evaluation.text_metrics import registered_metrics
from seqloom.protocols import Evaluation, StoredTokenizer
from seqloom.tasks.text.classification import MOST_LABELS, score_table
from seqloom.tasks.text_to_text.text_forms import (
    AnswerForm,
    LabelForm,
    NumberForm,
    PairForm,
    TagForm,
)
from seqloom.tasks.translation.evaluate_pairs import prepare_references
from seqloom.tasks.translation.measures import Measure
from seqloom.tasks.translation.translate import target_tokenizer

logger = logging.getLogger(__name__)

NO_LABEL = "(no label)"
"""The row of texts that are no label, in tables."""
Form = LabelForm | NumberForm | AnswerForm | TagForm | PairForm


@final
class HowToScore(NamedTuple):
    """What scores depend on, beside examples and texts."""

    tokenizer: StoredTokenizer
    config: EvaluateConfig
    resamples: int
    """Of intervals; 0: there are none."""
    baselines: bool = False
    """Whether the task's baselines are measured too."""

    def written(self, texts: Sequence[str]) -> list[str]:
        tokenizer = target_tokenizer(self.tokenizer)
        return [tokenizer.decode(ids) for ids in tokenizer.encode(texts)]


def score_texts(
    form: Form,
    measure: Measure | None,
    examples: Sequence[Any],
    texts: Sequence[str],
    how: HowToScore,
) -> Evaluation:
    """The metrics of the task; `measure` is that of pairs. `unreadable` counts the texts that are no answer,
    which is wrong."""
    match form:
        case LabelForm():
            found = _score_labels(form, examples, texts, how)
        case NumberForm():
            found = _score_numbers(form, examples, texts, how)
        case AnswerForm():
            found = _score_answers(examples, texts, how)
        case TagForm():
            found = _score_tags(form, examples, texts, how)
        case PairForm():
            assert measure is not None
            found = _score_pairs(measure, examples, texts, how)
    targets: list[str] = [form.target(example) for example in examples]
    found.metrics.update(registered_metrics(texts, targets))
    return Evaluation(found.metrics, found.signatures, list(texts), found.details, found.by_example)


def _score_labels(
    form: LabelForm, examples: Sequence[LabelledText], texts: Sequence[str], how: HowToScore
) -> Evaluation:
    answers = form.read(examples, texts, how.written)
    _log_unreadable(answers, texts, "label")
    true = _indices([example.labels[0] for example in examples], form.labels, UNSEEN)
    predicted = _indices(answers, form.labels, len(form.labels))
    metrics, details = _label_scores(true, predicted, form.labels, "examples", how.resamples)
    return Evaluation(metrics, details=details, by_example=(true == predicted).astype(np.float64))


def _indices(labels: Sequence[str | None], known: Sequence[str], other: int) -> Ints:
    numbers = {label: number for number, label in enumerate(known)}
    return np.array(
        [other if label is None else numbers.get(label, other) for label in labels], np.int64
    )


def _label_scores(
    true: Ints, predicted: Ints, labels: Sequence[str], what: str, resamples: int
) -> tuple[dict[str, float], dict[str, object]]:
    """Metrics and tables; a predicted number after the last label means a text that is no label."""
    # texts have no probabilities of labels
    nothing = np.zeros(len(true))
    predictions = LabelPredictions(true, predicted, nothing, nothing)
    metrics = label_metrics(predictions, len(labels), what, resamples)
    for name in [name for name in metrics if name.startswith(("loss", "ece"))]:
        del metrics[name]
    unreadable = int((predicted == len(labels)).sum())
    metrics["unreadable"] = unreadable
    if not resamples or len(labels) > MOST_LABELS:
        return metrics, {}
    names = (*labels, NO_LABEL)
    counts = confusion(true, predicted, len(names))
    table = score_table(per_label(counts, names))
    if not unreadable:
        del table[NO_LABEL]
    order = {"order": list(names), "counts": counts.tolist()}
    return metrics, {"labels": table, "confusion": order}


def _score_numbers(
    form: NumberForm, examples: Sequence[LabelledText], texts: Sequence[str], how: HowToScore
) -> Evaluation:
    """A text that is no number counts as the lowest of the right numbers."""
    answers = form.read(examples, texts, how.written)
    _log_unreadable(answers, texts, "number")
    true = np.array([float(example.labels[0]) for example in examples])
    given = np.array([true.min() if answer is None else answer for answer in answers])
    metrics = number_metrics(true, given, how.resamples)
    return Evaluation({**metrics, "unreadable": sum(answer is None for answer in answers)})


def _score_answers(
    examples: Sequence[Question], texts: Sequence[str], how: HowToScore
) -> Evaluation:
    right = [[answer.text for answer in example.answers] for example in examples]
    metrics = answer_metrics(texts, right, how.resamples)
    return Evaluation(metrics, by_example=answer_scores(texts, right)[:, 1])


def _score_tags(
    form: TagForm, examples: Sequence[TaggedWords], texts: Sequence[str], how: HowToScore
) -> Evaluation:
    """accuracy and the like over words, and f1: of entities where the tags are spans, else the accuracy. A
    word without a tag is outside of all entities."""
    tags = [found or () for found in form.read(examples, texts, how.written)]
    true = _indices([tag for example in examples for tag in example.tags], form.labels, UNSEEN)
    given = [tag for row in tags for tag in row]
    predicted = _indices(given, form.labels, len(form.labels))
    metrics, details = _label_scores(true, predicted, form.labels, "words", how.resamples)
    if missing := int(metrics["unreadable"]):
        logger.info(
            f"{missing:,} of {counted(len(true), 'word')} were given no tag, which is wrong"
        )
    for name in [name for name in metrics if name.startswith("accuracy")]:
        metrics[name.replace("accuracy", "f1")] = metrics[name]
    metrics["sentences"] = len(examples)
    if scheme_of(form.labels) != "plain":
        filled = [[tag or OUTSIDE for tag in row] for row in tags]
        spans = SpanCounts([example.tags for example in examples], filled)
        metrics |= spans.metrics(how.resamples)
        details["entities"] = spans.by_kind()
    return Evaluation(metrics, details=details)


def _score_pairs(
    measure: Measure, examples: Sequence[TextPair], texts: Sequence[str], how: HowToScore
) -> Evaluation:
    references = prepare_references(
        how.tokenizer, [example.target for example in examples], how.config, measure
    )
    sources = [example.source for example in examples] if how.baselines else []
    scores = measure.scores(texts, references, sources)
    return Evaluation({**scores.metrics, "pairs": len(examples)}, scores.signatures)


def _log_unreadable(answers: Sequence[object], texts: Sequence[str], what: str) -> None:
    wrong = [text for answer, text in zip(answers, texts, strict=True) if answer is None]
    if wrong:
        shown = printable(repr(wrong[0][:40]))
        logger.info(
            f"{len(wrong):,} of {counted(len(texts), 'text')} {'are' if len(wrong) > 1 else 'is'} no {what},"
            f" which is wrong (first: {shown})"
        )


def main_score(form: Form, measure: Measure | None, metrics: dict[str, float]) -> float:
    """The task's main metric, 0 to 100; a correlation that is not defined counts as 0."""
    match form:
        case LabelForm():
            value = 100 * metrics["accuracy"]
        case NumberForm():
            value = metrics["spearman"]
        case AnswerForm():
            value = metrics["f1"]
        case TagForm():
            value = 100 * metrics["f1"]
        case PairForm():
            assert measure is not None
            value = metrics[measure.names[0]]
    return float(np.nan_to_num(value))
