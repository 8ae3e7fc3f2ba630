"""N-best lists rescored by language models: which hypothesis each list should begin with, and how much better
that is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom import files
from seqloom.config import DataConfig
from seqloom.data.readers.nbest import LARGEST, NBest, json_list, read_nbest, written
from seqloom.decoding.rescoring import Lists, oracle, tune
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.word_errors import METRICS, Metric, difference_interval
from seqloom.runs.progress import counted, tallied
from seqloom.tasks.language_modeling.score import Scorer
from seqloom.tasks.translation.predictor import new_file

logger = logging.getLogger(__name__)

GIVEN, WORDS, MEAN = "given", "words", "lm"
"""Features and what stands for all language models in --weights."""
IMPOSSIBLE = -1e4
"""Log-probability of a text that a model holds impossible: a weight can still be multiplied by it."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """How well each way to choose does on the lists of one file that have references, in percent."""

    path: str
    lists: int
    """With references."""
    systems: dict[str, float]
    """first, each feature alone, rescored, oracle."""
    difference: tuple[float, float, float]
    """rescored - first, and the ends of its 95 % interval."""


@final
@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What came out."""

    metric: str
    weights: dict[str, float]
    lists: list[NBest]
    """Each with the best first, and `total` and `log_probability_NAME` in the fields of each hypothesis."""
    results: list[Rescoring]
    """Of the tuning file, if there is one, and of the lists, where they have references."""

    def summary(self) -> dict[str, Any]:
        results = {
            part: {
                "file": one.path,
                "lists": one.lists,
                **one.systems,
                "difference": one.difference[0],
                "difference_low": one.difference[1],
                "difference_high": one.difference[2],
            }
            for part, one in self.parts().items()
        }
        return {"metric": self.metric, "weights": self.weights, "lists": len(self.lists), **results}

    def parts(self) -> dict[str, Rescoring]:
        """tuning and test, as far as there are such results."""
        tuned = len(self.results) > 1 or (bool(self.results) and self.results[0].path != self.lists[0].path)
        return dict(zip(("tuning", "test") if tuned else ("test",), self.results, strict=False))

    def json_lines(self) -> list[str]:
        return [json_list(one) for one in self.lists]


class _File(NamedTuple):
    """A file of lists as numbers."""

    lists: list[NBest]
    rows: Lists
    """Its features: given (where there is one), each model, words."""


def rescore(
    folders: Sequence[str],
    path: str,
    *,
    development: str | None = None,
    weights: str | None = None,
    score: str | None = None,
    metric: str = "wer",
    output: str | None = None,
    data: DataConfig,
) -> Rescored:
    """Rescores the lists of a file, writes them where `output` is named, and measures where there are
    references.

    The weights are those given ("given=1,lm=20,words=-20"), or tuned on the file `development`, or half and
    half. Raises UsageError, DataError and FolderError.
    """
    if weights is not None and development is not None:
        raise UsageError("the weights are given or tuned, not both: leave out --weights or --tune")
    if metric not in METRICS:
        raise UsageError(f"--metric must be one of {', '.join(METRICS)}, but is {printable(metric)!r}")
    place = None if output is None else new_file(output, (".jsonl", ".tsv"))
    models = model_names(folders)
    if data.text in ("total", *(f"log_probability_{name}" for name in models)):
        raise UsageError(
            f"data.text is {printable(data.text)!r}, under which results are written; rename that field of"
            " the lists"
        )
    paths = [path] if development is None else [development, path]
    read = [_read(one, data, score) for one in paths]
    _same_scores(read)
    features = [*([GIVEN] if read[0][0].scores is not None else []), *models, WORDS]
    chosen = None if weights is None else parsed_weights(weights, features, models)
    tables = _features(folders, models, read)
    known = [_with_reference(one) for one in tables]
    if development is not None and known[0] is None:
        raise DataError(
            "no list has a reference (ref), which tuning needs; give references, or --weights", development
        )
    counts = [None if one is None else _statistics(one, METRICS[metric]) for one in known]
    if development is not None:
        assert known[0] is not None
        assert counts[0] is not None
        if os.path.abspath(development) == os.path.abspath(path):
            logger.info(
                "the weights are tuned on the lists that they are measured on: the result flatters them"
            )
        logger.info(
            f"tuning {len(features)} weights for the {METRICS[metric].title} on {len(known[0].lists)} lists"
        )
        chosen = tune(known[0].rows, counts[0], METRICS[metric].cost, starting_points(features))
    elif chosen is None:
        chosen = half_and_half(features)
        logger.info(
            "weights: "
            + ", ".join(f"{name} {weight:g}" for name, weight in zip(features, chosen, strict=True))
            + "; tune them with --tune DEV"
        )
    results = [
        measured(part, table, METRICS[metric], features, chosen)
        for part, table in zip(known, counts, strict=True)
        if part is not None and table is not None
    ]
    ordered = _reordered(tables[-1], chosen, features, models)
    if place is not None:
        files.write_atomic(place, written(ordered, "tsv" if place.suffix.lower() == ".tsv" else "jsonl"))
    named = dict(zip(features, map(float, chosen), strict=True))
    return Rescored(metric=metric, weights=named, lists=ordered, results=results)


def model_names(folders: Sequence[str]) -> list[str]:
    """A short name for each model: the last part of its folder, or all of it where that would be ambiguous.
    Raises UsageError."""
    places = [os.path.abspath(one) for one in folders]
    twice = next((one for one, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise UsageError(f"each language model must be given once, but {printable(twice)} is given twice")
    short = [os.path.basename(place) for place in places]
    # A whole folder has a / in it, and so is no short name and no feature: ./given
    whole = [one if os.sep in one else os.path.join(os.curdir, one) for one in map(os.path.normpath, folders)]
    return [
        one if short.count(one) == 1 and one not in (GIVEN, WORDS, MEAN) else long
        for one, long in zip(short, whole, strict=True)
    ]


def parsed_weights(text: str, features: Sequence[str], models: Sequence[str]) -> Floats:
    """The weight of each feature; `lm` is shared by all models alike, what is not named weighs 0. Raises
    UsageError."""
    found = dict.fromkeys(features, 0.0)
    known = [*features, *([MEAN] if MEAN not in features else [])]
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = np.inf
        if not equals or not abs(weight) <= LARGEST:
            most = f" of size {LARGEST:g} at most" if equals and abs(weight) > LARGEST else ""
            raise UsageError(
                f"--weights must be name=number pairs{most} such as given=1,lm=20,words=-20, but holds"
                f" {printable(part)!r}"
            )
        if name not in known:
            hint = "; the lists have no given score" if name == GIVEN else ""
            raise UsageError(f"--weights can name {', '.join(known)}, but names {printable(name)!r}{hint}")
        for feature in models if name == MEAN else [name]:
            found[feature] += weight / len(models) if name == MEAN else weight
    return np.array([found[name] for name in features])


def half_and_half(features: Sequence[str]) -> Floats:
    """Half the given score and half the mean log-probability of the models; without a given score the models
    alone."""
    models = len(features) - 1 - (GIVEN in features)
    share = 0.5 if GIVEN in features else 1.0
    return np.array(
        [share if name == GIVEN else 0.0 if name == WORDS else share / models for name in features]
    )


def starting_points(features: Sequence[str]) -> Floats:
    """Where tuning begins, and what it is never worse than: the first hypotheses, each feature alone but
    words, half and half."""
    alone = [row for row, name in zip(np.eye(len(features)), features, strict=True) if name != WORDS]
    return np.stack([np.zeros(len(features)), *alone, half_and_half(features)])


def _read(path: str, data: DataConfig, score: str | None) -> list[NBest]:
    with tallied() as tally:
        return list(read_nbest(path, data, tally, score))


def _same_scores(read: Sequence[list[NBest]]) -> None:
    scored = [lists[0].scores is not None for lists in read]
    if len(set(scored)) > 1:
        one, other = (read[scored.index(which)][0] for which in (False, True))
        raise DataError(
            f"the hypotheses have no score, but those of {printable(other.path)} do; give it to both",
            one.path,
            one.line,
        )


def _features(folders: Sequence[str], names: Sequence[str], read: Sequence[list[NBest]]) -> list[_File]:
    """Each text is scored once by each model, however often it stands in the lists."""
    texts = list(dict.fromkeys(text for lists in read for one in lists for text in one.texts))
    scores = []
    for folder, name in zip(folders, names, strict=True):
        scorer = Scorer(folder)
        scorer.notice()
        found = counted(scorer.score(texts), f"of {len(texts):,} texts scored by {name}", every=15)
        scores.append({one.text: max(one.log_probability, IMPOSSIBLE) for one in found})

    def columns(one: NBest) -> list[Iterable[float]]:
        given = [] if one.scores is None else [one.scores]
        return [
            *given,
            *([model[text] for text in one.texts] for model in scores),
            [float(len(text.split())) for text in one.texts],
        ]

    return [_File(lists, _rows([np.array(columns(one), np.float64).T for one in lists])) for lists in read]


def _rows(tables: Sequence[Floats]) -> Lists:
    return Lists(features=np.concatenate(tables), starts=np.cumsum([0, *(len(one) for one in tables[:-1])]))


def _split(file: _File) -> list[Floats]:
    return np.split(file.rows.features, file.rows.starts[1:])


def _with_reference(file: _File) -> _File | None:
    """The lists that have a reference; None where none has."""
    kept = [one.reference is not None for one in file.lists]
    if all(kept) or not any(kept):
        return file if all(kept) else None
    logger.info(
        f"{printable(file.lists[0].path)}: {len(kept) - sum(kept)} of {len(kept)} lists have no reference and"
        " are not measured"
    )
    pairs = [
        (one, table) for one, table in zip(file.lists, _split(file), strict=True) if one.reference is not None
    ]
    return _File([one for one, _ in pairs], _rows([table for _, table in pairs]))


def _statistics(file: _File, metric: Metric) -> Ints:
    counts = np.concatenate([metric.statistics(one.reference or "", one.texts) for one in file.lists])
    if not np.isfinite(metric.cost(counts[file.rows.starts].sum(axis=0))):
        raise DataError(
            "all references are empty, so there is no error rate; give references that hold words",
            file.lists[0].path,
        )
    return counts


def measured(
    file: _File, counts: Ints, metric: Metric, features: Sequence[str], weights: Floats
) -> Rescoring:
    """All ways to choose, side by side."""
    rows = file.rows
    alone = {
        f"{name} alone": rows.chosen(unit)
        for name, unit in zip(features, np.eye(len(features)), strict=True)
        if name != WORDS
    }
    choices = {"first": rows.starts, **alone, "rescored": rows.chosen(weights)}
    values = {name: float(metric.value(counts[rows].sum(axis=0))) for name, rows in choices.items()}
    best = min(choices, key=lambda name: -values[name] if metric.higher_is_better else values[name])
    values["oracle"] = float(
        metric.value(counts[oracle(rows, counts, metric.cost, choices[best])].sum(axis=0))
    )
    low, high = difference_interval(metric, counts[choices["first"]], counts[choices["rescored"]])
    difference = (values["rescored"] - values["first"], low, high)
    return Rescoring(path=file.lists[0].path, lists=len(file.lists), systems=values, difference=difference)


def _reordered(file: _File, weights: Floats, features: Sequence[str], models: Sequence[str]) -> list[NBest]:
    """The lists with the best first; of equal ones the earlier first."""
    totals = np.split(file.rows.totals(weights), file.rows.starts[1:])
    found = []
    for one, table, total in zip(file.lists, _split(file), totals, strict=True):
        order = np.argsort(-total, kind="stable").tolist()
        added = [
            {"total": float(total[at])}
            | {f"log_probability_{name}": float(table[at, features.index(name)]) for name in models}
            for at in range(len(total))
        ]
        found.append(
            replace(
                one,
                texts=tuple(one.texts[at] for at in order),
                fields=tuple(one.fields[at] | added[at] for at in order),
                scores=None if one.scores is None else tuple(one.scores[at] for at in order),
            )
        )
    return found
