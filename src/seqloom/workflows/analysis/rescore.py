"""Rescores n-best lists with language models and models of text pairs: which hypothesis of each list is
best, and how much better than the first one it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import final

import numpy as np
from numpy.typing import NDArray

from seqloom import files
from seqloom.arrays import Floats
from seqloom.config import DataConfig, EvaluateConfig
from seqloom.data.readers.nbest import LARGEST, WRITERS, NBest, json_list, read_nbest, written
from seqloom.decoding.rescoring import NBestLists, oracle, tune
from seqloom.errors import DataError, UsageError, counted, printable
from seqloom.evaluation.word_errors import METRICS, CorpusMetric, bleu_metric, difference_interval
from seqloom.evaluation.writing_systems import (
    bleu_tokenizer_of,
    require_bleu_tokenizer,
    script_without_spaces,
)
from seqloom.long_work import log_progress
from seqloom.registry import hub_task
from seqloom.runs.output_files import new_file
from seqloom.runs.progress import logged_report
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.tasks.language_modeling.score import Scorer, log_unlike_unknown
from seqloom.tasks.prompting.answers import TextPairAnswers

logger = logging.getLogger(__name__)

GIVEN, WORDS, MEAN = "given", "words", "lm"
"""Two features, and the name for all language models in --weights."""
IMPOSSIBLE = -1e4
"""Log-probability of a text that a model holds impossible: a weight can still be multiplied by it."""

Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """What is rescored, and how. The weights are `weights` ("given=1,lm=20,words=-20"), or tuned on
    `development`, or half the given score and half the models."""

    folders: Sequence[str]
    """Of the models: language models, and models that translate a list's source."""
    path: str
    """The n-best lists."""
    development: str | None = None
    weights: str | None = None
    score: str | None = None
    """The field of the given score."""
    metric: str = "wer"
    output: str | None = None
    data: DataConfig
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)


@final
@dataclass(frozen=True, kw_only=True)
class SystemScores:
    """How good each way to choose is, in percent, on the lists of one file that have references."""

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
    """The rescored lists, and how good they are."""

    metric: str
    weights: dict[str, float]
    lists: list[NBest]
    """Each with the best first, and `total` and `log_probability_NAME` in the fields of each hypothesis."""
    results: dict[str, SystemScores]
    """tuning and test, as far as these lists have references."""
    bleu_tokenizer: str | None = None
    """That of sacreBLEU, where the metric is BLEU."""
    error: DataError | None = None
    """What is wrong with the list after these; None if all could be read."""

    def summary(self) -> dict[str, object]:
        content: dict[str, object] = {
            "metric": self.metric,
            "weights": self.weights,
            "lists": len(self.lists),
        }
        if self.bleu_tokenizer is not None:
            content["bleu_tokenizer"] = self.bleu_tokenizer
        for part, scores in self.results.items():
            value, low, high = scores.difference
            content[part] = {
                "file": scores.path,
                "lists": scores.lists,
                **scores.systems,
                "difference": value,
                "difference_low": low,
                "difference_high": high,
            }
        return content

    def json_lines(self) -> list[str]:
        return [json_list(nbest) for nbest in self.lists]


@final
@dataclass(frozen=True)
class ScoredLists:
    """The lists of a file, and for each the features of its hypotheses."""

    lists: list[NBest]
    tables: list[Floats]
    """`(hypotheses, features)` for each list: the given score (if there is one), each model, words."""

    @cached_property
    def rows(self) -> NBestLists:
        """The hypotheses of all lists in one table."""
        sizes = [len(table) for table in self.tables]
        return NBestLists(features=np.concatenate(self.tables), starts=np.cumsum([0, *sizes[:-1]]))


def rescore(
    config: RescoreConfig, opened: Mapping[str, LoadedRun] = MappingProxyType({})
) -> Rescored:
    """Rescores the lists, writes them where `output` is named, and measures where there are references.
    `opened`: models that are open already, by folder. Raises UsageError, DataError and FolderError."""
    _check_options(config)
    output = None if config.output is None else new_file(config.output, tuple(WRITERS))
    models = model_names(config.folders)
    if config.data.text in ("total", *(f"log_probability_{name}" for name in models)):
        raise UsageError(
            f"data.text is {printable(config.data.text)!r}, under which results are written; rename that"
            " field of the lists"
        )
    parts = {"test": config.path}
    if config.development is not None:
        parts = {"tuning": config.development, **parts}
    read, error = _read_parts(list(parts.values()), config)
    _check_given_scores(read)
    features = [*([GIVEN] if read[0][0].scores is not None else []), *models, WORDS]
    weights = None if config.weights is None else parsed_weights(config.weights, features, models)
    runs = [opened.get(folder) or load_run(folder) for folder in config.folders]
    scored = dict(zip(parts, _score(runs, models, config, read), strict=True))
    with_references = {part: _with_references(file) for part, file in scored.items()}
    if config.development is not None and not with_references["tuning"].lists:
        raise DataError(
            "no list has a reference (ref), which tuning needs; give references, or --weights",
            config.development,
        )
    metric, bleu_tokenizer = _metric(config, with_references)
    measured = {
        part: (file, _statistics(file, metric))
        for part, file in with_references.items()
        if file.lists
    }
    if config.development is not None:
        if os.path.abspath(config.development) == os.path.abspath(config.path):
            logger.info(
                "the weights are tuned on the lists that they are measured on: the result flatters them"
            )
        lists, counts = measured["tuning"]
        logger.info(
            f"tuning {len(features)} weights for the {metric.title} on {counted(len(lists.lists), 'list')}"
        )
        weights = tune(lists.rows, counts, metric.cost, starting_points(features))
    elif weights is None:
        weights = _usual_weights(features)
    results = {part: measure(*pair, metric, features, weights) for part, pair in measured.items()}
    ordered = _best_first(scored["test"], weights, features, models)
    if output is not None:
        files.write_atomic(output, written(ordered, output.suffix.lower()))
    named = dict(zip(features, map(float, weights), strict=True))
    return Rescored(
        metric=config.metric,
        weights=named,
        lists=ordered,
        results=results,
        bleu_tokenizer=bleu_tokenizer,
        error=error,
    )


def _usual_weights(features: Sequence[str]) -> Floats:
    weights = half_and_half(features)
    pairs = zip(features, weights, strict=True)
    chosen = ", ".join(f"{name} {weight:g}" for name, weight in pairs)
    logger.info(f"weights: {chosen}; tune them with --tune DEV")
    return weights


def _check_options(config: RescoreConfig) -> None:
    """Raises UsageError for options that cannot be, or that change nothing."""
    if config.weights is not None and config.development is not None:
        raise UsageError("the weights are given or tuned, not both: leave out --weights or --tune")
    if config.metric not in METRICS:
        raise UsageError(
            f"--metric must be one of {', '.join(METRICS)}, but is {printable(config.metric)!r}"
        )
    name = config.evaluate.bleu_tokenizer
    if name != "auto" and config.metric != "bleu":
        raise UsageError(
            f"evaluate.bleu_tokenizer changes nothing with --metric {config.metric}; leave it out"
        )
    require_bleu_tokenizer(name)


def _metric(
    config: RescoreConfig, files_of_lists: Mapping[str, ScoredLists]
) -> tuple[CorpusMetric, str | None]:
    """The metric, and where it is BLEU its tokenizer: that of the script of all references, unless one is
    named."""
    references = [nbest.reference or "" for file in files_of_lists.values() for nbest in file.lists]
    if config.metric == "wer" and script_without_spaces(references) is not None:
        logger.info(
            "the references put no spaces between words, so a word error rate takes each stretch between"
            " spaces for one word; --metric cer counts characters"
        )
    if config.metric != "bleu":
        return METRICS[config.metric], None
    name: str = config.evaluate.bleu_tokenizer
    if name == "auto" and (name := bleu_tokenizer_of(references)) != "13a":
        logger.info(f"BLEU cuts words with sacreBLEU's tokenizer {name}, by the script")
    return bleu_metric(name), name


def model_names(folders: Sequence[str]) -> list[str]:
    """A short name for each model: the last part of its folder, or the whole path where that is ambiguous.
    Raises UsageError if a folder is given twice."""
    paths = [os.path.abspath(folder) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UsageError(
                f"each model must be given once, but {printable(folder)} is given twice"
            )
    short = [os.path.basename(path) for path in paths]
    names = []
    for name, folder in zip(short, map(os.path.normpath, folders), strict=True):
        if short.count(name) == 1 and name not in (GIVEN, WORDS, MEAN):
            names.append(name)
        else:
            # with a separator in it, it is neither a short name nor a feature: ./given
            name = folder if os.sep in folder else os.path.join(os.curdir, folder)
            names.append(name)
    return names


def parsed_weights(text: str, features: Sequence[str], models: Sequence[str]) -> Floats:
    """The weight of each feature; `lm` is shared equally by all models, and a feature that is not named
    weighs 0. Raises UsageError."""
    weights = dict.fromkeys(features, 0.0)
    known = list(dict.fromkeys([*features, MEAN]))
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
            raise UsageError(
                f"--weights can name {', '.join(known)}, but names {printable(name)!r}{hint}"
            )
        if name == MEAN:
            for model in models:
                weights[model] += weight / len(models)
        else:
            weights[name] += weight
    return np.array([weights[name] for name in features])


def half_and_half(features: Sequence[str]) -> Floats:
    """Half the given score and half the mean log-probability of the models; without a given score the models
    alone."""
    given = 0.5 if GIVEN in features else 0.0
    models = len(features) - 1 - (GIVEN in features)
    special = {GIVEN: given, WORDS: 0.0}
    return np.array([special.get(name, (1.0 - given) / models) for name in features])


def starting_points(features: Sequence[str]) -> Floats:
    """Where tuning starts, and what it is never worse than: the first hypotheses, each feature alone except
    words, half and half."""
    return np.stack([np.zeros(len(features)), *_alone(features).values(), half_and_half(features)])


def _alone(features: Sequence[str]) -> dict[str, Floats]:
    """Weights with which one feature alone chooses; words alone would say nothing."""
    units = dict(zip(features, np.eye(len(features)), strict=True))
    del units[WORDS]
    return units


def _read_parts(
    paths: Sequence[str], config: RescoreConfig
) -> tuple[list[list[NBest]], DataError | None]:
    """The lists of each file; and the error of one that cannot be read, where those before it can be answered
    alone: nothing is measured, tuned or written to a file. Raises DataError otherwise."""
    read: list[list[NBest]] = []
    for path in paths:
        lists: list[NBest] = []
        read.append(lists)
        try:
            with logged_report() as report:
                lists.extend(read_nbest(path, config.data, report, config.score))
        except DataError as error:
            measured = any(nbest.reference is not None for nbest in lists)
            if not lists or len(paths) > 1 or config.output is not None or measured:
                raise
            return read, error
    return read, None


def _check_given_scores(read: Sequence[list[NBest]]) -> None:
    """Raises DataError if one file has given scores and the other has not."""
    without = next((lists[0] for lists in read if lists[0].scores is None), None)
    having = next((lists[0] for lists in read if lists[0].scores is not None), None)
    if without is not None and having is not None:
        raise DataError(
            f"the hypotheses have no score, but those of {printable(having.path)} do; give it to both",
            without.path,
            without.line,
        )


def _score(
    runs: Sequence[LoadedRun],
    names: Sequence[str],
    config: RescoreConfig,
    read: Sequence[list[NBest]],
) -> list[ScoredLists]:
    """Each model scores each text once, however often it occurs in the lists; a model of text pairs each text
    with its source."""
    lists = [nbest for lists in read for nbest in lists]
    models: list[Callable[[NBest], list[float]]] = []
    for run, name in zip(runs, names, strict=True):
        if hub_task(run.task) == "translation":
            models.append(_given_sources(run, name, config.data.source or "source", lists))
        else:
            models.append(_of_texts(Scorer(run), name, lists))

    def table(nbest: NBest) -> Floats:
        columns: list[Sequence[float]] = [] if nbest.scores is None else [nbest.scores]
        columns += [model(nbest) for model in models]
        columns.append([len(text.split()) for text in nbest.texts])
        return np.array(columns, np.float64).T

    return [ScoredLists(lists, list(map(table, lists))) for lists in read]


def _of_texts(scorer: Scorer, name: str, lists: Sequence[NBest]) -> Callable[[NBest], list[float]]:
    """log P(text) of each hypothesis of a list."""
    texts = list(dict.fromkeys(text for nbest in lists for text in nbest.texts))
    scorer.log_unscored_token()
    about = f"of {counted(len(texts), 'text')} scored by {name}"
    scores = {score.text: score for score in log_progress(scorer.score(texts), about, every=15)}
    unknown = [[scores[text].unknown for text in nbest.texts] for nbest in lists]
    log_unlike_unknown(unknown, "lists the hypotheses", name)

    def of(nbest: NBest) -> list[float]:
        return [max(scores[text].log_probability, IMPOSSIBLE) for text in nbest.texts]

    return of


def _given_sources(
    run: LoadedRun, name: str, field: str, lists: Sequence[NBest]
) -> Callable[[NBest], list[float]]:
    """log P(text | source) of each hypothesis of a list. Raises DataError for a list without a source."""
    pairs = [(_source(nbest, field, name), text) for nbest in lists for text in nbest.texts]
    unique = list(dict.fromkeys(pairs))
    found = dict(zip(unique, TextPairAnswers(run.model, run.tokenizer).score(unique), strict=True))
    cut = len({source for source, text in unique if found[source, text].cut})
    if cut:
        logger.info(f"{counted(cut, 'source')} cut at the left to what {name} reads")

    def of(nbest: NBest) -> list[float]:
        source = _source(nbest, field, name)
        return [max(found[source, text].value, IMPOSSIBLE) for text in nbest.texts]

    return of


def _source(nbest: NBest, field: str, name: str) -> str:
    """What a list is a list of translations of. In a table each hypothesis has it."""
    sources = {fields.get(field) for fields in (nbest.others, *nbest.fields)} - {None}
    match list(sources):
        case [str(source)]:
            return source
    raise DataError(
        f"the list must have one text under {printable(field)!r}, from which {name} translates, but has"
        f" {len(sources) or 'none'}; name another field with --set data.source=NAME",
        nbest.path,
        nbest.line,
    )


def _with_references(file: ScoredLists) -> ScoredLists:
    """The lists that have a reference."""
    kept = [
        pair for pair in zip(file.lists, file.tables, strict=True) if pair[0].reference is not None
    ]
    if 0 < len(kept) < len(file.lists):
        logger.info(
            f"{printable(file.lists[0].path)}: {len(file.lists) - len(kept)} of {len(file.lists)} lists have"
            " no reference and are not measured"
        )
    return ScoredLists([nbest for nbest, _ in kept], [table for _, table in kept])


def _statistics(file: ScoredLists, metric: CorpusMetric) -> Ints:
    counts = np.concatenate(
        [metric.statistics(nbest.reference or "", nbest.texts) for nbest in file.lists]
    )
    if not np.isfinite(metric.cost(counts[file.rows.starts].sum(axis=0))):
        raise DataError(
            "all references are empty, so there is no error rate; give references that hold words",
            file.lists[0].path,
        )
    return counts


def measure(
    file: ScoredLists, counts: Ints, metric: CorpusMetric, features: Sequence[str], weights: Floats
) -> SystemScores:
    """All ways to choose, side by side."""
    rows = file.rows
    choices = {"first": rows.starts}
    choices |= {f"{name} alone": rows.chosen(unit) for name, unit in _alone(features).items()}
    choices["rescored"] = rows.chosen(weights)
    scores = {
        name: float(metric.value(counts[chosen].sum(axis=0))) for name, chosen in choices.items()
    }
    sign = -1 if metric.higher_is_better else 1
    best = min(scores, key=lambda name: sign * scores[name])
    ideal = oracle(rows, counts, metric.cost, choices[best])
    scores["oracle"] = float(metric.value(counts[ideal].sum(axis=0)))
    low, high = difference_interval(metric, counts[choices["first"]], counts[choices["rescored"]])
    difference = (scores["rescored"] - scores["first"], low, high)
    return SystemScores(
        path=file.lists[0].path, lists=len(file.lists), systems=scores, difference=difference
    )


def _best_first(
    file: ScoredLists, weights: Floats, features: Sequence[str], models: Sequence[str]
) -> list[NBest]:
    """The lists in the order of their totals; of equal ones the earlier first."""
    totals = np.split(file.rows.totals(weights), file.rows.starts[1:])
    ordered = []
    for nbest, table, total in zip(file.lists, file.tables, totals, strict=True):
        order = np.argsort(-total, kind="stable").tolist()
        fields = []
        for index in order:
            scores = {
                f"log_probability_{name}": float(table[index, features.index(name)])
                for name in models
            }
            fields.append(nbest.fields[index] | {"total": float(total[index])} | scores)
        texts = tuple(nbest.texts[index] for index in order)
        given = None if nbest.scores is None else tuple(nbest.scores[index] for index in order)
        ordered.append(replace(nbest, texts=texts, fields=tuple(fields), scores=given))
    return ordered
