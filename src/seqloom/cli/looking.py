"""Verbs that look: explain, check, models."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Several, reading
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError


def explain(
    folder: str,
    /,
    *text: Data,
    target: str | None = None,
    gradient_flow: Flag = False,
    rows: int | None = None,
    beside: Folders = None,
    output: str | None = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Draw where the model looks in a text while it writes its answer, or in an image; or how gradient flows
    back through time in it.

    Args:
        folder: A run folder; of a model with attention, to see where it looks.
        text: The source, or an image file. With --gradient-flow: files of pairs, or of texts for a language
            model, in the same forms as for train.
        target: A given output; by default the model's own.
        gradient_flow: Follow the gradient of the loss through the recurrent layers, step by step, on the
            first pairs of the files.
        rows: With --gradient-flow: so many pairs; by default 64.
        beside: With --gradient-flow: another run folder to compare with, on the same pairs; may be given
            again.
        output: A new picture: .png, .svg, .html or .json (Vega-Lite); by default attention.png or
            gradient-flow.png.
        settings: key=value for decode.*; with --gradient-flow for data.*.
        json: All numbers too, as one JSON line.
    """
    if gradient_flow:
        if target is not None:
            raise UsageError(
                "--gradient-flow takes no --target: the targets are those of the data; leave it out"
            )
        _gradient_flow([folder, *(beside or ())], text, 64 if rows is None else rows, output, settings, json)
        return
    if rows is not None or beside:
        raise UsageError("--rows and --beside belong to --gradient-flow; leave them out, or add it")
    if len(text) != 1:
        raise UsageError(
            f"explain takes FOLDER and one TEXT, but {len(text)} texts are given; put the text in quotes"
        )
    from seqloom.protocols import Request
    from seqloom.runs.output_files import PICTURES, new_file
    from seqloom.tasks.model import load

    request = Request(decode=reading(settings, ("decode",)).decode, target=target)
    picture = output or "attention.png"
    new_file(picture, PICTURES)  # said before the work, not after it
    explanation = load(folder).explain(text[0], picture, request)
    if json:
        put_json(explanation.summary())
    else:
        for line in explanation.lines():
            put(line)


def _gradient_flow(
    folders: list[str], data: tuple[str, ...], rows: int, output: str | None, settings: Settings, json: bool
) -> None:
    given, decode, _ = reading(settings)
    if decode:
        raise UsageError("--set can change data.* with --gradient-flow, but not decode.*: nothing is decoded")
    if not data:
        raise UsageError(
            "--gradient-flow needs data: seqloom explain FOLDER DATA --gradient-flow, with files of pairs as"
            " for train"
        )
    from seqloom.workflows.analysis.gradient_flow import LEGEND, explain_gradient_flow

    report = explain_gradient_flow(folders, data, given, rows=rows, output=output or "gradient-flow.png")
    if json:
        put_json(report.summary())
    else:
        for title, header, lines in report.tables():
            put_table(title, lines, header)
            put("")
        put(LEGEND)
        put(f"gradient flow on {report.rows:,} rows: {report.picture}")


def check(
    task: str,
    /,
    *data: Data,
    validation: Several = None,
    test: Several = None,
    model: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    settings: Settings = None,
    json: Flag = False,
) -> int:
    """Examine data before it is trained on: counts, lengths, duplicates, overlap, unknown share, the first
    batch; of labels, tags, answers and choices also what a training would cost.

    Args:
        task: translation, text-generation, text-classification, sentence-similarity, token-classification,
            question-answering or multiple-choice.
        data: Training files, in the same forms as for train.
        validation: Validation files, to look for overlap with the training data.
        test: Test files, likewise.
        model: NAME or NAME:SIZE, as for train: what the training would cost with it.
        start: A run folder, a Hugging Face directory or hf://NAME to begin with, as for train.
        settings: key=value for data.* and train.*, as for train; where a model is made also head.* and
            model.*.
        json: One JSON line instead of tables.
    """
    from seqloom.workflows.check import check as run_check

    report = run_check(task, data, validation or (), test or (), settings or [], model=model, start=start)
    if json:
        put_json(report.to_json())
    else:
        for title, header, rows in report.tables:
            put_table(title, rows, header)
            put("")
        for problem in report.problems():
            put(problem)
    return 1 if report.errors else 0


def models(name: str | None = None, /, *, json: Flag = False) -> None:
    """List the families of models, their sizes and papers; with NAME, every setting of a run with it.

    Args:
        name: A family.
        json: One JSON line instead of tables.
    """
    from seqloom.workflows.models import families, settings_of

    if name is None:
        listed = families()
        if json:
            put_json(listed)
        else:
            for family in listed:
                rows: list[tuple[str, ...]] = [
                    (f"{family['name']}:{size}", about) for size, about in family["about"].items()
                ]
                put_table(
                    f"{family['name']}: {family['summary']}",
                    rows,
                    ("--model", "what for, or where published"),
                )
        return
    keys = settings_of(name)
    if json:
        put_json(keys)
    else:
        put_table(
            f"Settings of a run with {name}",
            [(k["key"], k["default"], k["meaning"]) for k in keys],
            ("--set", "default", "meaning"),
        )


VERBS = (explain, check, models)
