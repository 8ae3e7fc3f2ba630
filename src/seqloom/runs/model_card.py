"""The model card of a run folder."""

from __future__ import annotations

from pathlib import Path

from seqloom import files
from seqloom.config import RunConfig
from seqloom.errors import printable
from seqloom.runs.run_folder import IMAGES, PATCHES
from seqloom.training.checkpoints import TrainerState
from seqloom.version import VERSION

CARD = "README.md"
USES = {
    "text-generation": 'seqloom generate {} --prompt "..."',
    IMAGES: "seqloom predict {} image.png",
    PATCHES: "seqloom train image-classification DATA --from {} --output-dir DIR",
}
"""task -> how to use a run folder; else it answers lines."""
COUNTED = {
    IMAGES: "images",
    PATCHES: "patches",
    "token-classification": "words",
    "question-answering": "windows of contexts",
    **dict.fromkeys(("text-classification", "sentence-similarity", "multiple-choice"), "examples"),
}
"""task -> what a training counts; else tokens."""


def write_card(folder: Path, run: RunConfig, state: TrainerState, metrics: dict[str, float]) -> None:
    """README.md: what the model is, what it was trained on, how good it is, how to use it."""
    rows = "\n".join(f"| {name} | {value:,.4g} |" for name, value in metrics.items())
    data = "\n".join(f"- `{printable(path)}`" for path in run.data.train)
    place = printable(str(folder))
    use = USES.get(run.task, "seqloom predict {} -").format(place)
    how = f"made with seqloom {VERSION} in one go"
    if state.tokens:
        read = COUNTED.get(run.task, "tokens")
        how = f"""trained with seqloom {VERSION} for {state.step:,} steps
({state.tokens:,} {read}); its weights are those of step {state.best_step or state.step:,}, the best by validation {run.train.best}"""
    start = run.model.get("from")
    begun = f":{run.model['size']}" if start is None else f"` that began with `{printable(str(start))}"
    text = f"""---
library_name: seqloom
pipeline_tag: {run.task}
---

# {printable(folder.resolve().name)}

A `{run.model["name"]}{begun}` model for {run.task}, {how}.

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
