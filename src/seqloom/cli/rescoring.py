"""The verb rescore."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from seqloom.cli.options import Data, Flag, Folders, Settings, reading
from seqloom.cli.terminal import put, put_json, put_table

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from seqloom.workflows.analysis.rescore import Rescored, SystemScores


def rescore(
    folder: str,
    nbest: Data,
    /,
    *,
    beside: Folders = None,
    tune: str | None = None,
    weights: str | None = None,
    score: str | None = None,
    metric: str = "wer",
    output: str | None = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Choose again from lists of hypotheses (speech, spelling, translation) with language models, the given
    score and the length.

    Where the lists have references, a table of the metric: first hypotheses, each score alone, rescored, best
    possible. Without references and --output the best text of each list, one a line.

    Args:
        folder: A run folder of a language model.
        nbest: The lists: .jsonl (id, nbest: list of text and score, ref) or .tsv (a row a hypothesis); also
            .gz; - is JSONL from a pipe.
        beside: Another language model, of any tokenizer; may be given again.
        tune: Lists with references: the weights that are best on them are found.
        weights: Weights instead, such as given=1,lm=20,words=-20; lm is shared by all models, or name their
            folders. By default half the given score, half the models.
        score: The field of the given score; by default score.
        metric: wer, cer, bleu or exact_match.
        output: A new .jsonl or .tsv: each list with the best first, its total and the log-probability of each
            model.
        settings: key=value for data.*.
        json: One JSON line instead of the table; without references one a list.
    """
    reads = reading(settings, ("data",))
    from seqloom.workflows.analysis.rescore import RescoreConfig
    from seqloom.workflows.analysis.rescore import rescore as run_rescore

    config = RescoreConfig(
        folders=[folder, *(beside or ())],
        path=nbest,
        development=tune,
        weights=weights,
        score=score,
        metric=metric,
        output=output,
        data=reads.config,
    )
    result = run_rescore(config)
    if result.results:
        if json:
            put_json(result.summary())
        else:
            _put_results(result)
    elif output is not None:
        (
            put_json(result.summary() | {"output": output})
            if json
            else logger.info(f"{len(result.lists):,} lists written to {output}")
        )
    else:
        for line in result.json_lines() if json else [one.texts[0] for one in result.lists]:
            put(line)


def _put_results(result: Rescored) -> None:
    from seqloom.evaluation.word_errors import METRICS

    names = {"first": "first hypotheses", "rescored": "rescored", "oracle": "oracle: the best in the lists"}
    parts = result.results
    systems = next(iter(parts.values())).systems
    rows = [
        (names.get(name, name), *(f"{one.systems[name]:.2f}" for one in parts.values())) for name in systems
    ]
    rows.insert(-1, ("rescored - first, 95 % interval", *(_difference(one) for one in parts.values())))
    header = ("", *(f"{part}: {one.lists:,} lists" for part, one in parts.items()))
    put_table(f"{METRICS[result.metric].title}, in percent", rows, header)
    put("")
    put_table(
        "Weights", [(name, f"{weight:.6g}") for name, weight in result.weights.items()], ("feature", "weight")
    )


def _difference(one: SystemScores) -> str:
    return "{:+.2f} ({:+.2f} to {:+.2f})".format(*one.difference)


VERBS = (rescore,)
