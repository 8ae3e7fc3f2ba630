"""The verb score."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Texts, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError

if TYPE_CHECKING:
    from seqloom.config import DataConfig
    from seqloom.tasks.language_modeling.score import Contrast, Scored

logger = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Options of score."""

    text: Texts = ()
    """A text. Give it again for another text, to see which is more likely."""
    prompt: str = ""
    """Text before each text. It is read, but not scored."""
    tokens: Flag = False
    """Also show each token with its probability, rank and surprisal."""
    stride: int | None = None
    """For a model with limited context: the step between the windows over a long text. By default half a
    window."""
    pairs: str | None = None
    """BETTER,WORSE: the columns of two texts. Shows how often the first is more likely (minimal pairs, as in
    BLiMP). A masked language model goes by its pseudo-likelihood."""
    by: str | None = None
    """With --pairs: a column whose values group the pairs. By default each file is a group."""
    beside: Folders = ()
    """With --pairs: another run folder to compare with. May be given again."""


def score(
    folder: str,
    /,
    *file: Data,
    options: ScoreOptions = ScoreOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Show how likely texts are under a language model.

    Scores each line of a file or of standard input, or each --text; with --pairs, says which of two texts is
    more likely.

    Args:
        folder: A run folder of a language model; with --pairs also of a masked one.
        file: A text file with one text in each line; - is standard input. With --pairs: .jsonl, .tsv or .csv
            files, also .gz.
        settings: key=value for data.*.
        json: One JSON object for each text, or one line for all pairs.
    """
    given = read_settings(settings, () if options.text else ("data",))
    from seqloom.tasks.language_modeling.score import log_unlike_unknown
    from seqloom.tasks.model import refuse_unread_data, refuse_unread_inputs

    if options.pairs is not None:
        if options.text or options.prompt or options.tokens or options.stride is not None:
            raise UsageError(
                "--pairs takes files of pairs, but no --text, --prompt, --tokens or --stride; leave these out"
            )
        named = given.data.keys() & {"source", "target"}
        if named:
            raise UsageError(
                f"data.{min(named)} changes nothing with --pairs, which names the columns; leave it out"
            )
        refuse_unread_data("translation", given.data, file)
        _score_pairs([folder, *options.beside], file, options.pairs, options.by, given.config, json)
        return
    if options.by is not None or options.beside:
        raise UsageError("--by and --beside belong to --pairs; leave them out, or add it")
    if len(file) > 1 or (file and options.text):
        raise UsageError("score takes one FILE, or --text; to score several files, run it for each")
    refuse_unread_inputs(given.data, file[0] if file else "-")
    path = file[0] if file else "-"
    scores = _scores(folder, path, options, given.config)
    if options.text:
        scores = list(scores)
        log_unlike_unknown([[scored.unknown for scored in scores]], "the texts")
    if json:
        for scored in scores:
            put_json(scored.summary())
    elif options.text and not options.tokens:
        _put_alternatives(list(scores))
    else:
        for scored in scores:
            _put_scored(scored, options.tokens)


def _scores(
    folder: str, file: str, options: ScoreOptions, data_config: DataConfig
) -> Iterable[Scored]:
    from seqloom.long_work import log_progress
    from seqloom.runs.progress import each_text
    from seqloom.tasks.language_modeling.documents import describe_scoring, describe_weights
    from seqloom.tasks.language_modeling.score import Scorer

    scorer = Scorer(folder)
    for note in scorer.run.notes:
        logger.info(note)
    logger.info(describe_scoring(scorer.run.model, options.stride, scorer.run.tokenizer))
    if notice := describe_weights("float32", scorer.run.decode.weights):
        logger.info(notice)
    texts = chain(options.text) if options.text else each_text(file, data_config)
    scores = scorer.score(
        texts, prompt=options.prompt, tokens=options.tokens, stride=options.stride
    )
    return scores if sys.stdout.isatty() else log_progress(scores, "texts scored")


def _put_scored(scored: Scored, tokens: bool) -> None:
    put(
        f"{scored.log_probability:.4f}\t{scored.log_probability_without_end:.4f}\t{scored.tokens}"
        f"\t{scored.perplexity:.4g}\t{scored.text}"
    )
    if tokens:
        rows: list[tuple[str, ...]] = [
            (piece, f"{probability:.4g}", f"{rank:,}", f"{bits:.2f}")
            for piece, probability, rank, bits in scored.table
        ]
        put_table("", rows, ("token", "probability", "rank", "surprisal (bits)"))


def _put_alternatives(scores: Sequence[Scored]) -> None:
    """The most likely text first, with the odds of the others against it."""
    best, *others = sorted(scores, key=lambda scored: -scored.log_probability)
    any_unknown = any(scored.unknown for scored in scores)
    header = ["text", "log p", "without end", "tokens", "odds"]
    if any_unknown:
        header.append("unknown")
    rows: list[tuple[str, ...]] = []
    for scored in (best, *others):
        odds = (
            "" if scored is best else f"1 : {_odds(best.log_probability - scored.log_probability)}"
        )
        log_probs = f"{scored.log_probability:.3f}", f"{scored.log_probability_without_end:.3f}"
        cells = scored.text, *log_probs, str(scored.tokens), odds, str(scored.unknown)
        rows.append(cells[: len(header)])
    put_table("Likeliest first", rows, header)


def _odds(nats: float) -> str:
    """e^nats in a form that is easy to read."""
    return f"{math.exp(nats):,.3g}" if nats < 14 else f"10^{nats / math.log(10):.1f}"


def _score_pairs(
    folders: list[str],
    files: Sequence[str],
    pairs: str,
    by: str | None,
    data_config: DataConfig,
    json: bool,
) -> None:
    """How often each model finds the first text of a pair more likely."""
    from seqloom.tasks.language_modeling.score import contrast

    better, comma, worse = (part.strip() for part in pairs.partition(","))
    if not comma or not better or not worse:
        raise UsageError(
            f"--pairs must be two columns such as sentence_good,sentence_bad, but is {pairs!r}"
        )
    if not files:
        raise UsageError("--pairs needs files: seqloom score FOLDER FILES --pairs BETTER,WORSE")
    results = contrast(folders, files, better, worse, by, data_config)
    counts = results[0].pairs
    if json:
        put_json([_contrast_summary(result) for result in results])
        return
    rows = [_contrast_row(group, group, counts[group], results) for group in sorted(counts)]
    rows.append(_contrast_row("all", None, sum(counts.values()), results))
    title = f"{better} more likely than {worse}, in percent with 95 % interval"
    put_table(title, rows, ("group", "pairs", *folders))


def _contrast_row(
    name: str, group: str | None, count: int, results: Iterable[Contrast]
) -> tuple[str, ...]:
    accuracies = ["{:.1f} ({:.1f} to {:.1f})".format(*result.accuracy(group)) for result in results]
    return (name, f"{count:,}", *accuracies)


def _contrast_summary(result: Contrast) -> dict[str, object]:
    return {
        "folder": result.folder,
        "accuracy": result.accuracy(),
        "groups": {group: result.accuracy(group) for group in sorted(result.pairs)},
        "pairs": result.pairs,
    }


VERB = Verb(score, 'seqloom score runs/tales --text "the cat sleeps" --text "the cat sleep"')
