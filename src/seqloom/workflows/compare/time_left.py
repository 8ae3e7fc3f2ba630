"""The runs of a comparison that are still to come, and how long they will take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import final

from seqloom.workflows.compare.budget import SHORT


@final
class Ahead:
    """What is left of a table of models and seeds, with the short runs that choose learning rates."""

    def __init__(self, models: Sequence[str], rates: int, seeds: int) -> None:
        self._short = dict.fromkeys(models, rates)
        self._whole = dict.fromkeys(models, seeds)
        self._seconds: dict[str, float] = {}
        """Of a whole run of each model, as far as known."""
        self.begun = 0

    @property
    def left(self) -> int:
        return sum(self._short.values()) + sum(self._whole.values())

    def done(self, model: str, *, short: bool, seconds: float | None) -> None:
        """A run has ended; `seconds` is None where it had been made before."""
        self.begun += 1
        left = self._short if short else self._whole
        left[model] = max(left.get(model, 0) - 1, 0)
        if seconds is not None:
            self._seconds[model] = SHORT * seconds if short else seconds

    def chosen(self, model: str, seconds: float) -> None:
        """A model has its learning rate, and a whole run is to take so many seconds; 0 where that is not
        known."""
        self._short[model] = 0
        if seconds:
            self._seconds[model] = seconds

    def leave_out(self, model: str) -> None:
        self._short[model] = self._whole[model] = 0

    def __str__(self) -> str:
        """In words, after a semicolon; nothing where nothing is left."""
        if not self.left:
            return ""
        mean = fmean(self._seconds.values()) if self._seconds else 0.0
        each = {model: self._seconds.get(model, mean) for model in self._whole}
        seconds = sum(each[model] * (self._whole[model] + self._short[model] / SHORT) for model in each)
        known = all(model in self._seconds for model in each if self._short[model] + self._whole[model])
        guess = "" if known else ", if the other models take as long"
        return f"; {self.left} run{'s' if self.left > 1 else ''} to go, about {_minutes(seconds)}{guess}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
