"""The model card of a run folder."""

from __future__ import annotations

from pathlib import Path

from seqloom import files
from seqloom.config import RunConfig
from seqloom.errors import printable
from seqloom.registry import find_task
from seqloom.training.checkpoints import TrainerState
from seqloom.version import VERSION

CARD = "README.md"


def write_card(
    folder: Path, run: RunConfig, state: TrainerState, metrics: dict[str, float], place: Path
) -> None:
    """README.md: what the model is, what it was trained on, how good it is, how to use it. `place` is where
    the folder will be."""
    rows = "\n".join(f"| {name} | {value:,.4g} |" for name, value in metrics.items())
    lines = [f"- `{printable(path)}`" for path in run.data.train]
    for name, one in run.tasks.items():
        lines += [f"- {name} ({one.task}): `{printable(path)}`" for path in one.data.train]
    data = "\n".join(lines)
    task = find_task(run.task)
    usage, counted = (task.usage, task.counted) if task else ("seqloom predict {} -", "tokens")
    use = usage.format(printable(str(place)))
    if run.tasks:
        use = f"{use.removesuffix(' -')} {next(iter(run.tasks))}=-"
    how = f"made with seqloom {VERSION} in one go"
    if state.tokens:
        best_step = state.best_step or state.step
        how = (
            f"trained with seqloom {VERSION} for {state.step:,} steps\n({state.tokens:,} {counted});"
            f" its weights are those of step {best_step:,}, the best by validation {run.train.best}"
        )
        if task and (notice := task.thread_notice(run, state.threads)):
            how = f"{how}.\n\n{notice}"
    start = run.model.get("from")
    name, started = f"{run.model['name']}:{run.model['size']}", ""
    if start is not None:
        name, started = run.model["name"], f" that started from `{printable(str(start))}`"
    text = f"""---
library_name: seqloom
pipeline_tag: {run.task}
---

# {printable(place.resolve().name)}

A `{name}` model for {run.task}{started}, {how}.

## Use

    {use}

## Data

{data}

## Validation

| metric | value |
| --- | --- |
{rows}
"""
    files.write_atomic(folder / CARD, text)
