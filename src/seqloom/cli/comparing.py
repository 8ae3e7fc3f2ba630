"""The verb compare."""

from __future__ import annotations

import logging

from seqloom.cli.options import EXIT_CODES, Data, Flag, Settings, Several
from seqloom.cli.terminal import progress_bar, put, put_json, put_table

logger = logging.getLogger(__name__)


def compare(
    task: str,
    /,
    *data: Data,
    models: str,
    output_dir: str,
    validation: Several = None,
    test: Several = None,
    seeds: int = 3,
    match: str = "steps",
    parameters: int | None = None,
    seconds: float | None = None,
    grid: int = 3,
    settings: Settings = None,
    json: Flag = False,
) -> int:
    """Train several models on the same data with the same budget: a leaderboard with intervals, tests and
    costs, as a table and a chart.

    Args:
        task: A task that models can be trained for, such as text-classification.
        data: Training files, as for train.
        models: Families with commas between, each with a size and settings if need be, such as
            bag_of_words,recurrent:tiny+cell=gru+layers=2; NAME=FOLDER is a checkpoint to fine-tune.
        output_dir: Folder of the comparison; the same command goes on with it.
        validation: Validation files, which choose learning rates and checkpoints; without them a part of the
            data is split off, the same for all.
        test: Test files, read once when all is chosen and trained; without them models are measured on the
            validation part.
        seeds: Trainings of each model.
        match: steps: all take as many steps (train.max_steps, or those of the first model's epochs); time: as
            many seconds of training;
            parameters: as many steps, with widths solved so that parameters are within 5 %.
        parameters: What all models have with --match parameters; by default as many as the first.
        seconds: Of each training with --match time; by default what the first model takes.
        grid: Learning rates tried for each model, a factor 3 apart, each for a third of the steps; 1 tries
            none out.
        settings: key=value for all models, such as train.max_steps=600, as for train.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.compare.plan import CompareConfig
    from seqloom.workflows.compare.run import run_compare

    config = CompareConfig(
        task=task,
        data=data,
        models=models,
        output_dir=output_dir,
        validation=validation or (),
        test=test or (),
        settings=settings or (),
        seeds=seeds,
        match=match,
        parameters=parameters,
        seconds=seconds,
        grid=grid,
    )
    with progress_bar("compare") as progress:
        result = run_compare(config, progress=progress)
    found = result.leaderboard
    if json:
        put_json(
            {
                "output_dir": str(result.folder),
                "stopped": result.stopped,
                **({} if found is None else found.to_json()),
            }
        )
    elif found is not None:
        header, rows = found.table()
        put_table(f"{task}: {found.plan.metric}, {seeds} seed{'s' if seeds > 1 else ''}", rows, header)
        for note in found.notes():
            put(note)
        put(f"folder: {result.folder}")
    if result.stopped is not None:
        logger.info("go on with the same command")
        return EXIT_CODES[result.stopped]
    return 0


VERBS = (compare,)
