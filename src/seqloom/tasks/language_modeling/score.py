"""The probabilities that language models give to texts, to their tokens, and to the two texts of minimal
pairs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from seqloom.config import DataConfig
from seqloom.errors import UsageError, printable
from seqloom.evaluation.intervals import wilson_interval
from seqloom.evaluation.perplexity import Likelihood, TextScore, score_texts
from seqloom.protocols import Tokenizer
from seqloom.runs.progress import each_pair
from seqloom.runs.run_folder import LoadedRun, load_run, task_of
from seqloom.tasks.fill_mask.mask_filler import MaskFiller
from seqloom.tasks.language_modeling.documents import stride_of
from seqloom.tasks.language_modeling.generate import blank_notice
from seqloom.tasks.model import NO_LANGUAGE_MODEL, no_such_verb

logger = logging.getLogger(__name__)

CHUNK = 512
"""Texts that are in memory at one time."""


class Token(NamedTuple):
    """One predicted token."""

    token: str
    probability: float
    rank: int
    """1 for the most likely token."""
    surprisal: float
    """-log2 p, in bits."""


@final
@dataclass(frozen=True, kw_only=True)
class Scored:
    """The score of one text."""

    text: str
    log_probability: float
    """Of the text and its end, in nats; given the prompt where there is one."""
    log_probability_without_end: float
    """Of a text that begins so."""
    tokens: int
    """Predicted ones, the end counted; a first token with nothing before it (GPT) is not predicted."""
    unknown: int
    """Tokens of it that are `<unk>`: their spelling is not scored."""
    bytes: int
    ended: bool = True
    """Whether an end is predicted."""
    table: tuple[Token, ...] = ()
    """Token by token, where asked for."""

    @property
    def perplexity(self) -> float:
        """A token; NaN where none is predicted."""
        mean = -self.log_probability / self.tokens if self.tokens else math.nan
        return math.exp(mean) if not mean >= 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """The end counts as one byte; NaN where there is no byte."""
        size = self.bytes + self.ended
        return -self.log_probability / math.log(2) / size if size else math.nan

    def summary(self) -> dict[str, object]:
        content: dict[str, object] = {
            "text": self.text,
            "log_probability": self.log_probability,
            "log_probability_without_end": self.log_probability_without_end,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }
        if self.table:
            content["table"] = [token._asdict() for token in self.table]
        return content


@final
class Scorer:
    """A language model that scores texts.

    Raises FolderError if the folder is no run folder, UsageError if its model predicts no text on its
    own.
    """

    def __init__(self, folder: str | Path | LoadedRun) -> None:
        self.run = language_model(folder)

    def log_unscored_token(self) -> None:
        """Logs where texts that differ in their first token are not compared by it."""
        if not self.run.tokenizer.special_ids.bos:
            logger.info(
                f"{printable(str(self.run.folder))}: nothing begins a text of this model: its first token"
                " is read and not scored"
            )

    def score(
        self,
        texts: Iterable[str],
        *,
        prompt: str = "",
        tokens: bool = False,
        stride: int | None = None,
    ) -> Iterator[Scored]:
        """The score of each text, in order; memory is bounded. With a prompt, log P(text | prompt), cut into
        tokens apart from it."""
        tokenizer, model = self.run.tokenizer, self.run.model
        special_ids = tokenizer.special_ids
        step = stride_of(model, stride)
        if notice := blank_notice(tokenizer, [prompt]):
            logger.info(notice)
        (prompt_ids,) = tokenizer.encode([prompt])
        remaining = iter(texts)
        while some := list(islice(remaining, CHUNK)):
            ids = tokenizer.encode(some)
            inputs = [prompt_ids + text_ids for text_ids in ids]
            scores = score_texts(model, inputs, special_ids, stride=step, ranks=tokens)
            for text, text_ids, with_prompt in zip(some, ids, scores, strict=True):
                score = with_prompt.last(len(text_ids))
                unknown = 0 if special_ids.unk is None else text_ids.count(special_ids.unk)
                yield Scored(
                    text=text,
                    log_probability=score.complete,
                    log_probability_without_end=score.prefix,
                    tokens=len(score.log_probs),
                    unknown=unknown,
                    bytes=len(text.encode()),
                    ended=score.ended,
                    table=token_table(tokenizer, text_ids, score),
                )


def log_unlike_unknown(groups: Iterable[Sequence[int]], which: str, model: str = "") -> None:
    """Logs where texts whose likelihoods are compared have unlike numbers of unknown words, which are given.
    All unknown words share one probability, so that such a comparison says little."""
    numbers = [set(group) for group in groups]
    unlike = sum(len(group) > 1 for group in numbers)
    if unlike:
        of = f"{printable(model)}: " if model else ""
        share = which if len(numbers) == 1 else f"in {unlike:,} of {len(numbers):,} {which}"
        logger.info(
            f"{of}{share} have unlike numbers of unknown words, whose spelling is not scored: a text with"
            " more of them may be ranked too high"
        )


def token_table(tokenizer: Tokenizer, ids: Sequence[int], score: TextScore) -> tuple[Token, ...]:
    if score.ranks is None:
        return ()
    eos = tokenizer.special_ids.eos
    pieces = tokenizer.pieces([*ids, *(() if eos is None else (eos,))])
    pieces = pieces[len(pieces) - len(score.log_probs) :]
    bits = -score.log_probs / math.log(2)
    return tuple(
        Token(piece, float(np.exp(log_prob)), int(rank), float(bit))
        for piece, log_prob, rank, bit in zip(
            pieces, score.log_probs, score.ranks, bits, strict=True
        )
    )


def language_model(folder: str | Path | LoadedRun) -> LoadedRun:
    """The loaded run of a language model. Raises UsageError for a model of another task."""
    run = folder if isinstance(folder, LoadedRun) else load_run(folder)
    if run.model_type in NO_LANGUAGE_MODEL:
        raise no_such_verb(run.folder, run.task, "score", run.model_type)
    if run.task != "text-generation":
        raise UsageError(
            f"{printable(str(run.folder))}: must be a language model (of text-generation), but is one of"
            f" {run.task}; try: seqloom evaluate"
        )
    return run


@final
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Which text of each pair a model finds more likely."""

    folder: str
    hits: dict[str, int]
    """group -> pairs whose first text is more likely; in `halves`, pairs whose texts are equally likely."""
    halves: dict[str, int]
    pairs: dict[str, int]
    unknown: list[tuple[int, int]]
    """Unknown words in the two texts of each pair."""

    def accuracy(self, group: str | None = None) -> tuple[float, float, float]:
        """(percent, low, high) of a group, or of all; the ends of the 95 % interval (Wilson)."""
        groups = list(self.pairs) if group is None else [group]
        hits = sum(2 * self.hits[name] + self.halves[name] for name in groups) / 2
        pairs = sum(self.pairs[name] for name in groups)
        low, high = wilson_interval(hits, pairs)
        return 100 * hits / pairs, 100 * low, 100 * high


def pair_scorer(folder: str) -> Callable[[Sequence[str]], Iterator[Likelihood]]:
    """What says how likely texts are that are compared."""
    if task_of(folder) == "fill-mask":
        return MaskFiller(load_run(folder)).pseudo_likelihoods
    scorer = Scorer(folder)
    scorer.log_unscored_token()

    def likelihoods(texts: Sequence[str]) -> Iterator[Likelihood]:
        for scored in scorer.score(texts):
            yield Likelihood(scored.log_probability, scored.unknown)

    return likelihoods


def contrast(
    folders: Sequence[str],
    paths: Sequence[str],
    better: str,
    worse: str,
    by: str | None,
    data: DataConfig,
) -> list[Contrast]:
    """For each model the accuracy on minimal pairs (Warstadt et al. 2020: the full-sentence log-probability
    decides), by group.

    `better` and `worse` name the columns of the two texts; `by` one of groups, by default each file is a
    group. Of a masked language model it is the pseudo-log-probability. Raises UsageError and DataError.
    """
    scorers = [pair_scorer(folder) for folder in folders]
    found = [
        Contrast(folder=folder, hits={}, halves={}, pairs={}, unknown=[]) for folder in folders
    ]
    for path in paths:
        pairs = list(
            each_pair([path], replace(data, source=better, target=worse), notices=path == paths[0])
        )
        if by is None:
            groups = [Path(path).name.split(".")[0]] * len(pairs)
        else:
            named = {
                record.line: record.fields["target"]
                for record in each_pair(
                    [path], replace(data, source=better, target=by), notices=False
                )
            }
            groups = [named.get(record.line, "") for record in pairs]
        texts = [record.fields[side] for record in pairs for side in ("source", "target")]
        for likelihoods, result in zip(scorers, found, strict=True):
            found_scores = list(likelihoods(texts))
            scores = [score.log_probability for score in found_scores]
            unknown = [score.unknown for score in found_scores]
            result.unknown.extend(zip(unknown[::2], unknown[1::2], strict=True))
            for group, good, bad in zip(groups, scores[::2], scores[1::2], strict=True):
                for counts, hit in (
                    (result.hits, good > bad),
                    (result.halves, good == bad),
                    (result.pairs, True),
                ):
                    counts[group] = counts.get(group, 0) + hit
    for result in found:
        log_unlike_unknown(result.unknown, "pairs the two texts", result.folder)
    return found
