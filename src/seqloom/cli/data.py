"""The verb about data: check."""

from __future__ import annotations

from seqloom.cli.options import Data, Files, Flag, From, Settings, Verb
from seqloom.cli.terminal import put, put_json, put_table


def check(
    task: str | None = None,
    /,
    *data: Data,
    validation: Files = (),
    test: Files = (),
    model: str | None = None,
    start: From = None,
    config: str | None = None,
    settings: Settings = (),
    json: Flag = False,
) -> int:
    """Examine data before training.

    Shows counts, lengths, duplicates, overlap between files, the share of unknown tokens and the first batch.
    For labels, tags, answers, choices and masks it also estimates what training would cost. The exit code is
    1 if the data has errors.

    Args:
        task: A task of text, as for train.
        data: Training files, in the same forms as for train.
        validation: Validation files. Overlap with the training data is reported.
        test: Test files. Overlap with the training data is reported.
        model: NAME or NAME:SIZE, as for train.
        start: A run folder, a Hugging Face directory or hf://NAME to fine-tune, as for train.
        config: A run file (YAML), as for train. Other arguments and --set override its values.
        settings: key=value, as for train.
        json: One line of JSON instead of tables.
    """
    from seqloom.workflows.check import check as run_check

    report = run_check(
        task, data, validation, test, settings, model=model, start=start, config=config
    )
    if json:
        put_json(report.to_json())
    else:
        for title, header, rows in report.tables:
            put_table(title, rows, header)
            put("")
        for problem in report.problems():
            put(problem)
    return 1 if report.errors else 0


VERBS = (Verb(check, "seqloom check text-classification reviews.csv --test test.csv"),)
