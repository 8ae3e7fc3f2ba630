"""The verb evaluate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seqloom.cli.options import Also, Data, Flag, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_metrics, put_table
from seqloom.errors import UsageError, printable
from seqloom.json_values import as_object

if TYPE_CHECKING:
    from seqloom.protocols import EvaluatedExample, Evaluation
    from seqloom.workflows.evaluate import Measured

logger = logging.getLogger(__name__)

MOST_LABELS = 40
"""Labels in a table; --json has all."""
MOST_CONFUSED = 12
"""Labels in a table of confusions; with more there is none."""


def evaluate(
    folder: str,
    /,
    *data: Data,
    settings: Settings = (),
    also: Also = (),
    outputs: str | None = None,
    errors: int = 0,
    pictures: str | None = None,
    stride: int | None = None,
    json: Flag = False,
) -> None:
    """Measure how good a trained model is.

    The metrics are those of the task, with confidence intervals except for pairs of texts. Translation: loss,
    perplexity, BLEU, chrF and exact match; summarization has ROUGE. Language models: perplexity and bits per
    byte. Labels: accuracy and macro F1. Masked language models: pseudo-perplexity. Sentence vectors: the
    correlation of their cosines with given scores.

    Args:
        folder: A run folder.
        data: Files in the same forms as for train: pairs, texts for a language model, labelled examples or
            images. For sentence vectors a table of two texts and a score. For a text-to-text model of several
            tasks each file as TASK=FILE.
        settings: key=value for data.*, decode.* and evaluate.*, such as decode.beam=1.
        also: A setting of decode.*, such as decode.weights=int8: measure with it too, and say how much larger
            each metric is then, with the interval of the paired difference where there is one.
        outputs: Also write what the model answers to this new file: a .csv, .tsv, .jsonl or .parquet has each
            input with its place, truth, answer and how right that is; any other file one answer a line.
        errors: Also show so many wrong answers, first those that the model is most sure of.
        pictures: Also draw confusions of labels, confidence against accuracy and the score by length, in this
            new folder.
        stride: For a language model with limited context: the step between the windows over a long text. By
            default half a window.
        json: One line of JSON instead of tables.
    """
    from seqloom.evaluation.worst_examples import worst_examples
    from seqloom.protocols import Request
    from seqloom.runs.output_files import new_file
    from seqloom.runs.table_files import require_writer
    from seqloom.workflows.evaluate import (
        draw_evaluation,
        evaluate_each,
        new_picture_folder,
        write_outputs,
    )

    if errors < 0:
        raise UsageError(f"--errors must be at least 0, but is {errors}")
    given = read_settings(settings, ("data", "decode", "evaluate"))
    if outputs is not None:
        require_writer(new_file(outputs))  # refused before the work, not after it
    folder_of_pictures = None if pictures is None else new_picture_folder(pictures)
    changes = {setting: read_settings((setting,), ("decode",), "--also").decode for setting in also}
    request = Request(data=given.data, decode=given.decode, evaluate=given.evaluate, stride=stride)
    result, others = evaluate_each(folder, data, request, changes)
    try:
        wrong = worst_examples(result.examples, errors) if errors else []
        _put_result(f"{folder} on {' '.join(data)}", result, others, wrong, json)
    finally:
        # A full disk costs no metric, and a full or closed standard output costs no file.
        if outputs is not None and result.outputs:
            write_outputs(outputs, result)
    if (outputs is not None and not result.outputs) or (errors and not result.examples):
        option = "--errors" if errors else "--outputs"
        raise UsageError(
            f"{option} is for models that answer each input, but {folder} was only measured; leave it out"
        )
    if folder_of_pictures is not None:
        drawn = draw_evaluation(folder_of_pictures, result)
        logger.info(f"drawn in {folder_of_pictures}: {', '.join(drawn)}")


def _put_result(
    title: str,
    result: Evaluation,
    others: Sequence[Measured],
    wrong: Sequence[EvaluatedExample],
    json: bool,
) -> None:
    if json:
        signatures = {
            f"{name}_signature": signature for name, signature in result.signatures.items()
        }
        errors = {"errors": [answer._asdict() for answer in wrong]} if wrong else {}
        also = {"also": [_as_json(other) for other in others]} if others else {}
        put_json(result.metrics | signatures | result.details | also | errors)
        return
    put_metrics(title, result.metrics)
    for other in others:
        measured = [
            (name, f"{other.metrics[name]:,.4g}", difference.shown())
            for name, difference in other.differences.items()
        ]
        put_table(f"With {other.setting}", measured, ("metric", "value", "difference"))
    _put_details(result.details)
    for name, signature in result.signatures.items():
        put(f"{name}: {signature}")
    if wrong:
        rows = [
            (
                answer.place,
                answer.input,
                answer.truth,
                answer.answer,
                _number(answer.confidence, answer.right),
            )
            for answer in wrong
        ]
        last = "score" if wrong[0].confidence is None else "probability"
        put_table("Wrong answers", rows, ("where", "input", "truth", "answer", last))


def _as_json(other: Measured) -> dict[str, object]:
    differences = {name: difference.content() for name, difference in other.differences.items()}
    return other._asdict() | {"differences": differences}


def _number(confidence: float | None, right: float | None) -> str:
    value = right if confidence is None else confidence
    return "" if value is None else f"{value:.4f}"


def _put_details(details: Mapping[str, Any]) -> None:
    """Scores of each label, of each kind of entity and of each section of analogies, and confusions. Images
    have plain lists instead, which are not shown."""
    for name in ("labels", "entities"):
        if as_object(details.get(name)):
            _put_scores(name.capitalize(), details[name])
    if sections := details.get("sections"):
        _put_sections(sections)
    match details.get("confusion"):
        case {"order": order, "counts": counts} if len(order) <= MOST_CONFUSED:
            _put_confusions(order, counts)


def _put_scores(title: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    rows: list[tuple[str, ...]] = []
    for name in sorted(scores, key=lambda name: -scores[name]["support"])[:MOST_LABELS]:
        values = [f"{scores[name][key]:.3f}" for key in ("precision", "recall", "f1")]
        rows.append((printable(name), *values, f"{scores[name]['support']:,}"))
    if len(scores) > MOST_LABELS:
        rows.append((f"and {len(scores) - MOST_LABELS:,} more", "", "", "", ""))
    put_table(title, rows, ("", "precision", "recall", "F1", "examples"))


def _put_sections(sections: Mapping[str, Mapping[str, float]]) -> None:
    rows = [
        (
            printable(name),
            f"{scores['questions']:,}",
            f"{scores['accuracy_add']:.2f}",
            f"{scores['accuracy_multiply']:.2f}",
        )
        for name, scores in sections.items()
    ]
    put_table("Sections", rows, ("", "questions", "3CosAdd", "3CosMul"))


def _put_confusions(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Labels that never occur have no row. The last row counts labels that the training did not have."""
    names = [printable(name) for name in labels]
    rows: list[tuple[str, ...]] = []
    for name, row in zip([*names, "(unseen)"], counts, strict=True):
        if sum(row):
            rows.append((name, *(f"{count:,}" for count in row)))
    put_table("Which label (rows) was taken for which (columns)", rows, ("", *names))


VERB = Verb(evaluate, "seqloom evaluate runs/reviews test.csv --json")
