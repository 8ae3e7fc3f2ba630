"""The losses of runs by step, all in one chart."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import MOST_SERIES, line_chart, save_chart
from seqloom.training import metrics_log

logger = logging.getLogger(__name__)


def draw_curves(runs: Mapping[str, Path], metric: str, output: Path) -> list[str]:
    """A line for each run that has logged this metric of validation (`loss`: or of training, where it has no
    validation); the names of those that are drawn. Raises UsageError if there is none."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, folder in runs.items():
        records = metrics_log.read(folder)
        for key in (f"validation_{metric}", metric):
            points = [
                (record["step"], record[key]) for record in records if record.get(key) is not None
            ]
            points = [(step, value) for step, value in points if math.isfinite(value)]
            if points and name not in series:
                series[name] = points
    if not series:
        known = sorted(
            {
                name
                for folder in runs.values()
                for record in metrics_log.read(folder)
                for name in record
            }
        )
        raise UsageError(
            f"there must be a run that has logged {printable(metric)}, but there is none; logged are"
            f" {', '.join(known) or 'no metrics'}"
        )
    shown = dict(list(series.items())[:MOST_SERIES])
    if len(series) > len(shown):
        logger.info(f"of {len(series)} runs the first {len(shown)} are drawn")
    chart = line_chart(shown, x="step", y=metric, title=f"{metric} by step, on the validation data")
    save_chart(chart, output)
    return list(shown)
