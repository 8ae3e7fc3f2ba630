"""How good a model is on files of known examples, whatever its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from seqloom.errors import UsageError
from seqloom.evaluation.calibration import reliability
from seqloom.evaluation.corpus_scores import OF_SUMS
from seqloom.evaluation.intervals import RESAMPLES
from seqloom.evaluation.significance import Difference, paired_bootstrap
from seqloom.evaluation.worst_examples import by_length, with_text_scores
from seqloom.explaining.charts import require_extra, save_chart
from seqloom.explaining.evaluation_charts import confusion_chart, length_chart, reliability_chart
from seqloom.files import atomic_folder, check_new
from seqloom.json_values import as_whole_number
from seqloom.protocols import EvaluatedExample, Evaluation, Request, Settings
from seqloom.runs.output_files import write_lines
from seqloom.runs.table_files import TABLES, new_table
from seqloom.tasks.model import load


class MetricDifference(NamedTuple):
    """How much larger a metric is in one of two measurements."""

    value: float
    tested: Difference | None = None
    """With its interval, where the metric is one of sums over examples."""

    def content(self) -> dict[str, float]:
        """For programs."""
        return {"value": self.value} if self.tested is None else self.tested._asdict()

    def shown(self) -> str:
        """For people."""
        if self.tested is None:
            return f"{self.value:+.3g}"
        return f"{self.value:+.3g} ({self.tested.low:+.3g} to {self.tested.high:+.3g})"


class Measured(NamedTuple):
    """A model measured once more, with another setting."""

    setting: str
    """key=value"""
    metrics: dict[str, float]
    differences: dict[str, MetricDifference]
    """Metric -> how much larger it is than before; with the interval of a paired bootstrap over items where
    it is a function of sums over them."""


PICTURE_FORMS = (".svg", ".html")
NONE: Mapping[str, Settings] = MappingProxyType({})


def evaluate(
    folder: str | Path,
    paths: Sequence[str],
    given: Settings,
    decode: Settings,
    stride: int | None = None,
    measure: Settings | None = None,
) -> Evaluation:
    """`given` are settings of reading (`DataConfig`), `measure` of measuring (`EvaluateConfig`); those that
    are not given are as in the training.
    `stride` is how far the windows of a language model with limited context move on; by default half a
    window."""
    request = Request(data=given, decode=decode, evaluate=measure or {}, stride=stride)
    return evaluate_each(folder, paths, request)[0]


def evaluate_each(
    folder: str | Path, paths: Sequence[str], request: Request, also: Mapping[str, Settings] = NONE
) -> tuple[Evaluation, list[Measured]]:
    """The measurement that a request asks for, and one more for each of `also`: key=value -> the settings of
    decoding that differ."""
    if also and not all(Path(path).is_file() or Path(path).is_dir() for path in paths):
        raise UsageError("--also reads the data again, so each must be a file or a folder")
    model = load(folder)
    changed = {
        setting: replace(request, decode={**request.decode, **changes})
        for setting, changes in also.items()
    }
    # refused before the work, not after a part of it
    for other in changed.values():
        model.check("evaluate", other, paths)
    first = model.evaluate(paths, request)
    others = []
    for setting, other in changed.items():
        found = model.evaluate(paths, other)
        others.append(Measured(setting, found.metrics, differences(first, found)))
    return first, others


def differences(before: Evaluation, after: Evaluation) -> dict[str, MetricDifference]:
    """How much larger each metric is after."""
    found = {}
    for name, value in after.metrics.items():
        if name.endswith(("_low", "_high")) or as_whole_number(value) is not None:
            continue
        items, score = before.statistics.get(name), OF_SUMS.get(name)
        if items is None or score is None:
            found[name] = MetricDifference(value - before.metrics[name])
        else:
            tested = paired_bootstrap(after.statistics[name], items, score, resamples=RESAMPLES)
            found[name] = MetricDifference(tested.value, tested)
    return found


def write_outputs(path: str, found: Evaluation) -> None:
    """A new file of the answers: a table has each input with its truth, its answer and how right that is, or
    the answers alone where the task knows no more; any other file has one answer a line."""
    if Path(path).suffix.lower() not in TABLES:
        write_lines(path, found.outputs)
    elif found.examples:
        with new_table(Path(path), EvaluatedExample._fields) as write:
            for example in with_text_scores(found.examples):
                write(example._asdict())
    else:
        with new_table(Path(path), ("answer",)) as write:
            for answer in found.outputs:
                write({"answer": answer})


def new_picture_folder(folder: str) -> Path:
    """The folder of pictures, to be asked for before the work."""
    require_extra()
    check_new(Path(folder), "pictures", "name another folder")
    return Path(folder)


def draw_evaluation(folder: Path, found: Evaluation) -> list[str]:
    """Draws what there is of confusions, reliability and scores by length; the names of the pictures. Raises
    UsageError if a model does not answer single examples."""
    if not found.examples:
        raise UsageError("--pictures needs a model that answers each input; leave it out")
    charts: dict[str, Any] = {}
    match found.details.get("confusion"):
        case {"order": order, "counts": counts}:
            charts["confusions"] = confusion_chart(order, counts)
        case list() as counts:
            charts["confusions"] = confusion_chart(found.details["labels"], counts)
    sure = [example for example in found.examples if example.confidence is not None]
    if sure:
        bins = reliability(
            np.array([example.confidence for example in sure]),
            np.array([example.right == 1 for example in sure]),
        )
        known = [
            (group.confidence, group.accuracy, group.examples) for group in bins if group.examples
        ]
        charts["reliability"] = reliability_chart(known)
    if any(example.right is None for example in found.examples):
        score = "chrF"
    else:
        score = (
            "negative error"
            if min(example.right or 0 for example in found.examples) < 0
            else "score"
        )
    groups = by_length(found.examples)
    charts["lengths"] = length_chart([(group.words, group.right) for group in groups], score)
    with atomic_folder(folder, "pictures") as place:
        for name, chart in charts.items():
            for ending in PICTURE_FORMS:
                save_chart(chart, place / f"{name}{ending}")
    return list(charts)
