"""What makes a comparison fair: the same steps, the same seconds, or the same number of parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.workflows.compare.models import ModelEntry, set_value

Match = Literal["steps", "time", "parameters"]
SHORT = 3
"""Runs that choose a learning rate are as long as one that does not."""
MATCHES: tuple[Match, ...] = ("steps", "time", "parameters")
CLOSE = 0.05
"""How far the number of parameters may be from what is asked for."""
WIDEST = 2**14
"""Of a search for a width."""
GAP = 64
"""Two widths that a model can have next to each other are not farther apart."""


WIDTHS = (
    "width",
    "embedding_width",
    "feed_forward_width",
    "encoder_width",
    "attention_width",
    "readout_width",
    "maps",
)
"""Fields of a model that grow together; the first that a model has is the one that is solved for."""


class Budget(NamedTuple):
    """What the models have in common, as a user asks for it."""

    seeds: int
    match: str
    parameters: int | None
    seconds: float | None
    grid: int


def check_budget(budget: Budget, settings: Sequence[str], entries: Sequence[ModelEntry]) -> None:
    """Raises UsageError where something of it cannot be."""
    seeds, match, parameters, seconds, grid = budget
    if match not in MATCHES:
        raise UsageError(f"--match must be one of {', '.join(MATCHES)}, but is {printable(repr(match))}")
    for name, value, of in (("parameters", parameters, "parameters"), ("seconds", seconds, "time")):
        if value is not None and (match != of or value <= 0):
            why = (
                f"be above 0, but is {value:g}"
                if match == of
                else f"go with --match {of}, but that is {match}"
            )
            raise UsageError(f"--{name} must {why}")
    if seeds < 1 or grid < 1 or grid % 2 == 0:
        raise UsageError(
            f"--seeds must be at least 1 and --grid an odd number such as 3, but they are {seeds} and {grid}"
        )
    if set_value(settings, "train.seed") is not None:
        raise UsageError("train.seed cannot be set here: --seeds N takes the seeds 0 to N-1")
    if grid == 1 and (match != "steps" or set_value(settings, "train.max_steps") is None):
        raise UsageError("--grid 1 tries nothing out, so it needs --match steps and --set train.max_steps=N")
    if match == "parameters" and parameters is None and entries[0].start is not None:
        raise UsageError(
            "--match parameters goes by the first model, which is a checkpoint; put another first, or add"
            " --parameters N"
        )
    if match == "parameters" and all(entry.start is not None for entry in entries):
        raise UsageError(
            "--match parameters changes widths, but all models are checkpoints; choose --match steps or time"
        )


class Sized(NamedTuple):
    """A model whose width was solved."""

    width: int
    parameters: int


def scaled_widths(config: Any, fixed: Collection[str], width: int) -> dict[str, int]:
    """The fields of a model at a width: all that grow are in proportion to it, but for those that the user
    has fixed."""
    fields = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    growing = [name for name in WIDTHS if isinstance(fields.get(name), int) and name not in fixed]
    return {name: max(round(fields[name] * width / fields[growing[0]]), 1) for name in growing}


def short_steps(steps: int) -> int:
    """Steps of a run that chooses a learning rate."""
    return max(round(steps / SHORT), 1)


def steps_in(seconds: float, pace: float) -> int:
    """The steps that take nearest to `seconds` at `pace` seconds a step, at least one."""
    return max(round(seconds / pace), 1)


def solved_width(name: str, count: Callable[[int], int | None], wanted: int) -> Sized:
    """The width whose number of parameters is nearest to `wanted`.

    `count` gives the parameters at a width, None where the model cannot have that width (its heads do not
    divide it); they grow with the width. Raises UsageError with the nearest where none is within CLOSE.
    """
    low, high = 0, 1
    while high < WIDEST and _grown(count, high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _grown(count, middle) >= wanted else (middle, high)
    around = range(max(high - GAP, 1), high + GAP)
    found = [Sized(width, parameters) for width in around if (parameters := count(width)) is not None]
    nearest = min(found, key=lambda one: abs(one.parameters - wanted), default=None)
    if nearest is None:
        raise UsageError(
            f"{printable(name)} has no width that could be solved for; leave it out, or choose --match steps"
            " or time"
        )
    if abs(nearest.parameters - wanted) > CLOSE * wanted:
        raise UsageError(
            f"{printable(name)} cannot have {wanted:,} parameters within {CLOSE:.0%}: the nearest is"
            f" {nearest.parameters:,} at width {nearest.width}; choose another --parameters, or leave it out"
        )
    return nearest


def _grown(count: Callable[[int], int | None], width: int) -> int:
    """The parameters at the first width from here on that the model can have."""
    return next((found for one in range(width, width + GAP) if (found := count(one)) is not None), 0)
