"""Verbs that look: explain, check, models."""

from __future__ import annotations

from seqloom.cli.learning import Data, Flag, Settings, Several, reading
from seqloom.cli.terminal import put, put_json, put_table, say


def explain(
    folder: str, text: str, /, *, target: str | None = None, output: str = "attention.png", settings: Settings = None, json: Flag = False
) -> None:
    """Draw where the model looks in a text while it writes its answer, as a heat map.

    Args:
        folder: A run folder of a model with attention.
        text: The source.
        target: A given output; by default the model's own.
        output: A new picture: .png, .svg, .html or .json (Vega-Lite).
        settings: key=value for decode.*.
        json: Also the weights, as one JSON line.
    """
    from seqloom.workflows.explain import explain as run_explain

    _, decode = reading(settings, ("decode",))
    result = run_explain(folder, text, target, output, decode)
    if json:
        put_json(result.summary())
    else:
        put(result.attention.output)
        put(f"heat map: {result.picture}")


def check(
    task: str, /, *data: Data, validation: Several = None, test: Several = None, settings: Settings = None, json: Flag = False
) -> int:
    """Examine data before it is trained on: counts, lengths, duplicates, overlap, unknown share, the first batch.

    Args:
        task: translation.
        data: Training files, in the same forms as for train.
        validation: Validation files, to look for overlap with the training data.
        test: Test files, likewise.
        settings: key=value for data.* and train.*, as for train.
        json: One JSON line instead of tables.
    """
    from seqloom.workflows.check import check as run_check

    report = run_check(task, data, validation or (), test or (), settings or [], say)
    if json:
        put_json(report.summary())
    else:
        for title, header, rows in report.tables():
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
                rows: list[tuple[str, ...]] = [(f"{family['name']}:{size}", about) for size, about in family["about"].items()]
                put_table(f"{family['name']}: {family['summary']}", rows, ("--model", "what for, or where published"))
        return
    keys = settings_of(name)
    if json:
        put_json(keys)
    else:
        put_table(f"Settings of a run with {name}", [(k["key"], k["default"], k["meaning"]) for k in keys], ("--set", "default", "meaning"))


VERBS = (explain, check, models)
