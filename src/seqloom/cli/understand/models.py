"""The verb models."""

from __future__ import annotations

from pathlib import Path

from seqloom.cli.options import Flag, Verb
from seqloom.cli.terminal import put_json, put_table
from seqloom.errors import UsageError


def models(name: str | None = None, task: str | None = None, /, *, json: Flag = False) -> None:
    """List model families with their sizes and papers.

    With NAME it lists the settings that a training with that family reads, and what they are by default (in
    the size small, or another one after a colon); with a run folder, what the model is and how it decodes.

    Args:
        name: A model family, or what people call one, such as lstm, with a size as in gpt:tiny; or a run
            folder.
        task: A task: only settings that it reads are listed, with its own defaults.
        json: One line of JSON instead of tables.
    """
    from seqloom.workflows.models import families, model_of_run, settings_of

    if name is not None and Path(name).is_dir():
        if task is not None:
            raise UsageError(f"{task} is that of the folder {name} alone; leave it out")
        model = model_of_run(name)
        if json:
            put_json(model)
        else:
            put_table(name, [*model.items()], ("", ""))
        return
    if name is not None:
        settings = settings_of(name, task)
        if json:
            put_json(settings)
            return
        rows: list[tuple[str, ...]] = [
            (setting["key"], setting["default"], setting["meaning"]) for setting in settings
        ]
        of_task = "" if task is None else f" for {task}"
        put_table(f"Settings of a run with {name}{of_task}", rows, ("--set", "default", "meaning"))
        return
    listed = families()
    if json:
        put_json(listed)
        return
    for family in listed:
        rows = [(f"{family['name']}:{size}", about) for size, about in family["about"].items()]
        title = f"{family['name']}: {family['summary']}"
        put_table(title, rows, ("--model", "what for, or where published"))


VERB = Verb(models, "seqloom models transformer")
