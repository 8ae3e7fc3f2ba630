"""The metrics of runs as a picture, by any of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqloom.files import require_folder
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.training.metrics_log import METRICS
from seqloom.workflows.compare.curves import draw_curves


def plot(folders: Sequence[str], metric: str, output: str) -> list[str]:
    """Draws a metric of the validation of each run by step; the names of the runs that are drawn. Raises
    UsageError if the picture is there already, or no run has logged the metric."""
    picture = new_file(output, PICTURES)
    runs: dict[str, Path] = {}
    for folder in folders:
        place = Path(folder)
        require_folder(place, "a run folder", METRICS)
        name = place.name if place.name not in runs else folder
        runs[name] = place
    return draw_curves(runs, metric, picture)
