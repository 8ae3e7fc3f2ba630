"""The verbs about how likely text is: score, ensemble."""

from __future__ import annotations

import logging
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Several, reading
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.config import DataConfig
from seqloom.errors import UsageError

logger = logging.getLogger(__name__)

Texts = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False, allow_leading_hyphen=True)]


def score(
    folder: str,
    /,
    *file: Data,
    text: Texts = None,
    prompt: str = "",
    tokens: Flag = False,
    stride: int | None = None,
    pairs: str | None = None,
    by: str | None = None,
    beside: Folders = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Say how likely a language model holds texts to be: each line of a file or of standard input, or each
    --text; or which of two.

    Args:
        folder: A run folder of a language model.
        file: A text file, one text a line; - is standard input. With --pairs: .jsonl, .tsv or .csv files,
            also .gz.
        text: A text, given here; again for another, to see which is likelier.
        prompt: What stands before each text; it is read and not scored.
        tokens: Also each token with its probability, rank and surprisal.
        stride: Of a model with limited context: how far the windows over a long text move on; by default half
            a window.
        pairs: BETTER,WORSE: the columns of two texts; how often the first is held likelier (minimal pairs,
            such as BLiMP's).
        by: With --pairs: the column whose values group the pairs; by default each file is a group.
        beside: With --pairs: another run folder to compare with; may be given again.
        settings: key=value for data.*.
        json: One JSON object a text, or one for all pairs.
    """
    _, decode, data_config = reading(settings)
    if decode:
        raise UsageError("--set can change data.* here, but not decode.*: nothing is decoded")
    if pairs is not None:
        if text or prompt or tokens or stride is not None:
            raise UsageError(
                "--pairs takes files of pairs, but no --text, --prompt, --tokens or --stride; leave these out"
            )
        _pairs([folder, *(beside or ())], file, pairs, by, data_config, json)
        return
    if by is not None or beside:
        raise UsageError("--by and --beside belong to --pairs; leave them out, or add it")
    if len(file) > 1 or (file and text):
        raise UsageError("score takes one FILE, or --text; to score several files, one call each")
    from itertools import chain

    from seqloom.runs.progress import each_text
    from seqloom.tasks.language_modeling.documents import describe_scoring
    from seqloom.tasks.language_modeling.score import Scorer

    scorer = Scorer(folder)
    for note in scorer.run.notes:
        logger.info(note)
    logger.info(describe_scoring(scorer.run.model, stride, scorer.run.tokenizer))
    texts = chain(text) if text else each_text(file[0] if file else "-", data_config)
    scores = scorer.score(texts, prompt=prompt, tokens=tokens, stride=stride)
    if json:
        for one in scores:
            put_json(one.summary())
        return
    few = list(scores) if text else scores
    if text and not tokens:
        _alternatives(few)
        return
    for one in few:
        put(
            f"{one.log_probability:.4f}\t{one.log_probability_without_end:.4f}\t{one.tokens}\t{one.perplexity:.4g}\t{one.text}"
        )
        if tokens:
            rows: list[tuple[str, ...]] = [
                (piece, f"{p:.4g}", f"{rank:,}", f"{bits:.2f}") for piece, p, rank, bits in one.table
            ]
            put_table("", rows, ("token", "probability", "rank", "surprisal (bits)"))


def _alternatives(scores: object) -> None:
    from seqloom.tasks.language_modeling.score import Scored

    assert isinstance(scores, list)
    known: list[Scored] = sorted(scores, key=lambda one: -one.log_probability)
    header = ["text", "log p", "without end", "tokens", "odds"]
    rows: list[tuple[str, ...]] = [
        (
            one.text,
            f"{one.log_probability:.3f}",
            f"{one.log_probability_without_end:.3f}",
            str(one.tokens),
            "" if one is known[0] else f"1 : {_odds(known[0].log_probability - one.log_probability)}",
        )
        for one in known
    ]
    if any(one.unknown for one in known):
        header.append("unknown")
        rows = [(*row, str(one.unknown)) for row, one in zip(rows, known, strict=True)]
    put_table("Likeliest first", rows, tuple(header))


def _odds(nats: float) -> str:
    """e^nats, as people write it."""
    import math

    return f"{math.exp(nats):,.3g}" if nats < 14 else f"10^{nats / math.log(10):.1f}"


def _pairs(
    folders: list[str],
    files: tuple[str, ...],
    pairs: str,
    by: str | None,
    data_config: DataConfig,
    json: bool,
) -> None:
    from seqloom.tasks.language_modeling.score import contrast

    better, comma, worse = pairs.partition(",")
    if not comma or not better.strip() or not worse.strip():
        raise UsageError(f"--pairs must be two columns such as sentence_good,sentence_bad, but is {pairs!r}")
    if not files:
        raise UsageError("--pairs needs files: seqloom score FOLDER FILES --pairs BETTER,WORSE")
    results = contrast(folders, files, better.strip(), worse.strip(), by, data_config)
    groups = sorted(results[0].pairs)
    if json:
        put_json(
            [
                {
                    "folder": one.folder,
                    "accuracy": one.accuracy(),
                    "groups": {group: one.accuracy(group) for group in groups},
                    "pairs": one.pairs,
                }
                for one in results
            ]
        )
        return

    def row(name: str, group: str | None, count: int) -> tuple[str, ...]:
        return (
            name,
            f"{count:,}",
            *("{:.1f} ({:.1f} to {:.1f})".format(*one.accuracy(group)) for one in results),
        )

    rows = [row(group, group, results[0].pairs[group]) for group in groups]
    rows.append(row("all", None, sum(results[0].pairs.values())))
    put_table(
        f"{better.strip()} held likelier than {worse.strip()}, in percent with 95 % interval",
        rows,
        ("group", "pairs", *folders),
    )


def ensemble(
    *folders: str,
    output_dir: str,
    weights: str | None = None,
    tune: Several = None,
    settings: Settings = None,
    json: Flag = False,
) -> None:
    """Mix language models of one vocabulary into a new run folder, with given weights or with those that suit
    development text best.

    Args:
        folders: Run folders of language models, two or more, with the same tokenizer.
        output_dir: The new run folder.
        weights: One number for each, such as 0.5,0.3,0.2; scaled to a sum of 1. By default all alike.
        tune: Development text: the weights that make it likeliest are found by expectation maximisation.
        settings: key=value for data.*, how the development text is read.
        json: One JSON line instead of a table.
    """
    from seqloom.tasks.language_modeling.mixture import mix

    data_config = reading(settings, ("data",)).config
    result = mix(folders, output_dir, weights, tune or (), data_config)
    if json:
        put_json(result)
    else:
        put_table(
            f"Mixture in {output_dir}",
            [(folder, f"{weight:.4f}") for folder, weight in result["weights"].items()],
            ("member", "weight"),
        )


VERBS = (score, ensemble)
