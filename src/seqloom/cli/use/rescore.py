"""The verb rescore."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import counted

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from seqloom.workflows.analysis.rescore import Rescored, SystemScores

SYSTEM_NAMES = {
    "first": "first hypotheses",
    "rescored": "rescored",
    "oracle": "oracle: the best in the lists",
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """Options of rescore."""

    beside: Folders = ()
    """Another model, with any tokenizer. May be given again."""
    tune: str | None = None
    """Lists with references. The weights that are best on them are used."""
    weights: str | None = None
    """Given weights, such as given=1,lm=20,words=-20. All models share the weight lm, unless their folders
    are named. By default half the given score and half the models."""
    score: str | None = None
    """Field of the given score. By default score."""
    metric: str = "wer"
    """wer, cer, bleu or exact_match."""
    output: str | None = None
    """A new .jsonl, .tsv or .nbest file: each list with the best hypothesis first, its total and the
    log-probability under each model."""


def rescore(
    folder: str,
    nbest: Data,
    /,
    *,
    options: RescoreOptions = RescoreOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Rescore n-best lists with language models and translation models.

    The lists come from speech recognition, spelling correction or translation. Each hypothesis is chosen by
    its given score, the language models and its length. If the lists have references, a table shows the
    metric of the first hypotheses, of each score alone, of the rescored lists and of the best possible
    choice. Without references and without --output the best text of each list is written, one a line.

    Args:
        folder: A run folder of a language model, or of a model of text pairs, for lists with a source.
        nbest: The lists: .jsonl (id, nbest: list of text and score, ref) or .tsv (one row a hypothesis)
            or Moses' form (.nbest), also .gz. - is JSONL from standard input.
        settings: key=value for data.* and evaluate.*.
        json: One line of JSON instead of the table. Without references one line for each list.
    """
    given = read_settings(settings, ("data", "evaluate"))
    from seqloom.config import EvaluateConfig
    from seqloom.run_file import parse
    from seqloom.workflows.analysis.rescore import RescoreConfig
    from seqloom.workflows.analysis.rescore import rescore as run_rescore

    config = RescoreConfig(
        folders=[folder, *options.beside],
        path=nbest,
        development=options.tune,
        weights=options.weights,
        score=options.score,
        metric=options.metric,
        output=options.output,
        data=given.config,
        evaluate=parse(EvaluateConfig, given.evaluate, "evaluate."),
    )
    result = run_rescore(config)
    if json and result.results:
        put_json(result.summary())
    elif result.results:
        _put_results(result)
    elif options.output is None:
        best_texts = [hypotheses.texts[0] for hypotheses in result.lists]
        for line in result.json_lines() if json else best_texts:
            put(line)
        if result.error is not None:
            raise result.error
    elif json:
        put_json(result.summary() | {"output": options.output})
    else:
        logger.info(f"{counted(len(result.lists), 'list')} written to {options.output}")


def _put_results(result: Rescored) -> None:
    """Tables of the metric, one column for each file with references, and of the weights."""
    from seqloom.evaluation.word_errors import METRICS

    parts = result.results
    rows: list[tuple[str, ...]] = []
    for name in next(iter(parts.values())).systems:
        values = [f"{scores.systems[name]:.2f}" for scores in parts.values()]
        rows.append((SYSTEM_NAMES.get(name, name), *values))
    differences = [_difference(scores) for scores in parts.values()]
    rows.insert(-1, ("rescored - first, 95 % interval", *differences))
    columns = [f"{part}: {counted(scores.lists, 'list')}" for part, scores in parts.items()]
    put_table(f"{METRICS[result.metric].title}, in percent", rows, ("", *columns))
    put("")
    weights = [(name, f"{weight:.6g}") for name, weight in result.weights.items()]
    put_table("Weights", weights, ("feature", "weight"))


def _difference(scores: SystemScores) -> str:
    return "{:+.2f} ({:+.2f} to {:+.2f})".format(*scores.difference)


VERB = Verb(rescore, "seqloom rescore runs/tales test.jsonl --tune dev.jsonl --metric wer")
