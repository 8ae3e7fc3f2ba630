"""Shows degeneration: how a model's texts differ from people's, by decoding strategy (Holtzman et al. 2020,
arXiv:1904.09751).

The first tokens of each human text are a prompt. Each strategy continues the prompt for as many tokens as the
person did. Then the same model scores all of them, without any rule of decoding: how probable was each token?
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast, final

import numpy as np

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig
from seqloom.decoding.generate import Earlier, finish, steps
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.errors import DataError, UsageError, counted, printable
from seqloom.evaluation.perplexity import score_texts
from seqloom.evaluation.repetition import (
    RepetitionStatistics,
    ScoredContinuation,
    repeated_share,
    repetition_loop,
)
from seqloom.explaining.charts import require_extra, save_chart
from seqloom.explaining.degeneration import Mean, ProbabilityCurve, degeneration_chart
from seqloom.protocols import Decodable, context_of
from seqloom.runs.decoding_names import strategy_settings
from seqloom.runs.decoding_options import generation_options, require_hypotheses
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.language_modeling.documents import each_document
from seqloom.tasks.language_modeling.generate import text_after
from seqloom.tasks.language_modeling.score import language_model
from seqloom.tasks.model import refuse_unread_data

logger = logging.getLogger(__name__)

HUMAN = "human"
STRATEGIES = (
    "greedy",
    "beam=5",
    "beam=20",
    "sampling",
    "temperature=0.7",
    "top_k=40",
    "top_p=0.95",
    "min_p=0.05",
    "greedy+repetition_penalty=1.2",
    "greedy+no_repeat_ngram=3",
)
CHARTED = ("beam=5", "top_p=0.95")
"""Strategies whose curves are drawn beside the human one; if neither was run, the first two are."""
NEW_TOKENS = 100
EDGE = 20
"""Tokens of the beginning and of the end that the chart's subtitle compares."""
ROWS = 64
"""Rows that are decoded together, hypotheses of a beam counted; changes no result."""
HEADER = ("text", "ppl", "p", "rep-4", "loops", "distinct 1-3", "len", "ended")
LEGEND = (
    "ppl, p: perplexity and mean probability of a token, the model's own, given the prompt; in percent: rep-4"
    " (4-grams that came before in the same text), loops (texts that end in three copies of a phrase),"
    " distinct n-grams of all, and texts that ended by themselves"
)


@final
@dataclass(frozen=True, kw_only=True)
class DegenerationConfig:
    """What is compared, and where the results go."""

    output: str = "degeneration.png"
    samples_output: str | None = None
    """For every text with its token probabilities, as JSON lines."""
    prompt_tokens: int = 16
    new_tokens: int | None = None
    """None: NEW_TOKENS, or what fits the context."""
    limit: int = 50
    """Documents."""
    strategies: Sequence[str] = STRATEGIES
    seed: int = 0


class HumanText(NamedTuple):
    """The beginning of a text that a person wrote."""

    document: int
    """Its number in the data, from 0 on."""
    prompt: list[int]
    continuation: list[int]
    finished: bool
    """Whether the text ends there."""


@final
@dataclass(frozen=True, kw_only=True)
class Degeneration:
    rows: dict[str, RepetitionStatistics]
    """By strategy; HUMAN comes first."""
    texts: int
    too_short: int
    """Documents that were read and were too short."""
    unknown: int
    """Tokens of the human continuations that are `<unk>`."""
    prompt_tokens: int
    new_tokens: int
    seed: int
    picture: Path

    def summary(self) -> dict[str, object]:
        return asdict(self) | {"picture": str(self.picture)}

    def table(self) -> list[tuple[str, ...]]:
        """As HEADER says."""
        return [(name, *_table_cells(row)) for name, row in self.rows.items()]


def _table_cells(row: RepetitionStatistics) -> Iterator[str]:
    yield f"{row.perplexity:,.4g}"
    yield f"{row.mean_probability:.3f}"
    yield _percent(row.rep_4)
    yield _percent(row.loops)
    yield " ".join(map(_percent, (row.distinct_1, row.distinct_2, row.distinct_3)))
    yield f"{row.mean_length:.1f}"
    yield f"{100 * row.finished:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "none"


def degeneration(
    folder: str | Path,
    paths: Sequence[str],
    data_settings: Mapping[str, object],
    config: DegenerationConfig,
) -> Degeneration:
    """Compares the strategies: a table, a chart in `output`, and the texts in `samples_output`.

    Raises UsageError for a model of another task, a setting that cannot be or a file that exists already;
    DataError if no document is long enough.
    """
    picture = new_file(config.output, PICTURES)
    samples = (
        None if config.samples_output is None else new_file(config.samples_output, (".jsonl",))
    )
    strategies = _strategies(config)
    if not paths:
        raise UsageError(
            "degeneration needs human texts: seqloom degeneration FOLDER TEXTS, with documents as for train"
        )
    require_extra()  # a missing extra is an error now, not after the work
    bundle = language_model(folder)
    new_tokens = fitting_new_tokens(bundle, config.prompt_tokens, config.new_tokens)
    refuse_unread_data(bundle.task, data_settings, paths)
    data = data_config(Path(folder), data_settings)
    humans, too_short = read_human_texts(
        bundle, paths, data, config.prompt_tokens, new_tokens, config.limit
    )
    texts = {
        HUMAN: score_continuations(
            bundle, humans, [(human.continuation, human.finished) for human in humans]
        )
    }
    for number, (name, settings) in enumerate(strategies.items(), start=1):
        started = time.monotonic()
        hypotheses = continue_prompts(bundle, humans, settings, new_tokens)
        outputs = [(output.tokens, output.finished) for output in hypotheses]
        texts[name] = score_continuations(bundle, humans, outputs)
        tokens = sum(len(output.tokens) for output in hypotheses)
        seconds = time.monotonic() - started
        logger.info(f"{number} of {len(strategies)}: {name}, {tokens:,} tokens in {seconds:.1f} s")
    if samples is not None:
        records = (_records(bundle, name, humans, decoded) for name, decoded in texts.items())
        files.write_json_lines(samples, chain.from_iterable(records))
    rows = {name: RepetitionStatistics.from_texts(decoded) for name, decoded in texts.items()}
    _draw(bundle, humans, texts, rows, picture)
    return Degeneration(
        rows=rows,
        texts=len(humans),
        too_short=too_short,
        unknown=count_unknown_tokens(bundle, humans),
        prompt_tokens=config.prompt_tokens,
        new_tokens=new_tokens,
        seed=config.seed,
        picture=picture,
    )


def _strategies(config: DegenerationConfig) -> dict[str, DecodeConfig]:
    """Name -> settings of each strategy. Raises UsageError for numbers and strategies that cannot be."""
    numbers = {
        "prompt-tokens": config.prompt_tokens,
        "new-tokens": config.new_tokens,
        "limit": config.limit,
    }
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, but is {value}")
    strategies = {name: strategy_settings(name, config.seed) for name in config.strategies}
    if not strategies:
        raise UsageError(
            f"degeneration needs a strategy such as {STRATEGIES[0]} or {STRATEGIES[1]}; name one"
        )
    return strategies


def read_human_texts(
    bundle: LoadedRun,
    paths: Sequence[str],
    data: DataConfig,
    prompt_tokens: int,
    new_tokens: int,
    limit: int,
) -> tuple[list[HumanText], int]:
    """The first `limit` documents that are long enough, and how many were too short before the last of them.

    A document is long enough if it has `prompt_tokens + new_tokens`, its end mark counted: all human texts
    are then as long as the decoded ones may become. Raises DataError if there is none.
    """
    texts: list[HumanText] = []
    too_short: list[int] = []
    end, needed = _end_mark(bundle), prompt_tokens + new_tokens
    for number, document in enumerate(each_document(paths, data, bundle.tokenizer)):
        ids: list[int] = document.ids.tolist()
        length = len(ids) + len(end)
        if length < needed:
            too_short.append(length)
            continue
        continuation = [*ids[prompt_tokens:], *end][:new_tokens]
        finished = continuation[-1:] == end
        if finished:
            continuation = continuation[: len(continuation) - 1]
        texts.append(HumanText(number, ids[:prompt_tokens], continuation, finished))
        if len(texts) == limit:
            break
    if not texts:
        longest = "there is none"
        if too_short:
            longest = f"the longest of {len(too_short):,} has {max(too_short):,}"
        raise DataError(
            f"{printable(' '.join(paths))}: a document must have {needed} tokens, prompt and all, but"
            f" {longest}; ask for fewer with --new-tokens, or for longer documents with --set"
            " data.document=paragraph or file"
        )
    short = counted(len(too_short), "document was", "documents were")
    logger.info(
        f"{counted(len(texts), 'text')}: the first {prompt_tokens} tokens of each are the prompt,"
        f" {new_tokens} more are compared; {short} too short"
    )
    if unknown := count_unknown_tokens(bundle, texts):
        logger.info(
            f"{counted(unknown, 'token')} of the human texts are <unk>: scored as such, and never decoded"
        )
    return texts, len(too_short)


def count_unknown_tokens(bundle: LoadedRun, texts: Sequence[HumanText]) -> int:
    """In the human continuations."""
    unknown = bundle.tokenizer.special_ids.unk
    return 0 if unknown is None else sum(text.continuation.count(unknown) for text in texts)


def _end_mark(bundle: LoadedRun) -> list[int]:
    """Empty where no token ends a text."""
    eos = bundle.tokenizer.special_ids.eos
    return [] if eos is None else [eos]


def continue_prompts(
    bundle: LoadedRun, texts: Sequence[HumanText], settings: DecodeConfig, new_tokens: int
) -> list[Hypothesis]:
    """The best hypothesis, or a sample, for each prompt. Text number i draws its random numbers as sample i
    of the seed does."""
    options = generation_options(settings, bundle.tokenizer)
    bos = bundle.tokenizer.special_ids.bos
    batch_rows = ROWS if settings.strategy == "sample" else max(ROWS // settings.width, 1)
    model = cast(Decodable, bundle.model)
    outputs: list[Hypothesis] = []
    for first in range(0, len(texts), batch_rows):
        prompts = [[*bos, *text.prompt] for text in texts[first : first + batch_rows]]
        earlier = [Earlier(sample=first + number) for number in range(len(prompts))]
        found = finish(
            steps(model, None, prompts, [new_tokens] * len(prompts), options, earlier=earlier)
        )
        outputs += [require_hypotheses(hypotheses, options.strategy)[0] for hypotheses in found]
    return outputs


def fitting_new_tokens(bundle: LoadedRun, prompt_tokens: int, new_tokens: int | None) -> int:
    """How many new tokens fit the context: each must be predicted from all tokens before it. Raises
    UsageError if those asked for do not fit."""
    context = context_of(bundle.model)
    room: float = math.inf
    if context is not None:
        # the last token is not read
        room = context + 1 - len(bundle.tokenizer.special_ids.bos) - prompt_tokens
    if room < (new_tokens or 1):
        raise UsageError(
            f"--prompt-tokens and --new-tokens must sum to at most the model's context of {context} tokens, "
            f"but are {prompt_tokens} and {new_tokens or 1}; ask for fewer"
        )
    if new_tokens is None and room < NEW_TOKENS:
        logger.info(
            f"{room} new tokens instead of {NEW_TOKENS}: the model looks at {context} tokens"
        )
    return new_tokens or int(min(room, NEW_TOKENS))


def score_continuations(
    bundle: LoadedRun, texts: Sequence[HumanText], continuations: Sequence[tuple[list[int], bool]]
) -> list[ScoredContinuation]:
    """Adds the probabilities of its tokens to each (continuation, whether the text ends there)."""
    whole = [
        [*text.prompt, *tokens] for text, (tokens, _) in zip(texts, continuations, strict=True)
    ]
    scores = score_texts(bundle.model, whole, bundle.tokenizer.special_ids)
    written = []
    for (tokens, finished), score in zip(continuations, scores, strict=True):
        log_probs = score.last(len(tokens)).log_probs[: len(tokens) + finished]
        written.append(ScoredContinuation(tokens, finished, log_probs))
    return written


def _records(
    bundle: LoadedRun,
    strategy: str,
    humans: Sequence[HumanText],
    texts: Sequence[ScoredContinuation],
) -> Iterator[dict[str, object]]:
    for human, text in zip(humans, texts, strict=True):
        loop = repetition_loop(text.tokens)
        curve = _curve(bundle, human, text)
        yield {
            "strategy": strategy,
            "document": human.document,
            "prompt": bundle.tokenizer.decode(human.prompt),
            "text": curve.text,
            "tokens": text.tokens,
            "pieces": curve.tokens,
            "probabilities": curve.probabilities,
            "log_probability": float(text.log_probs.sum()),
            "finished": text.finished,
            "rep_4": repeated_share(text.tokens, 4),
            "loop": None if loop is None else loop._asdict(),
        }


def _curve(bundle: LoadedRun, human: HumanText, text: ScoredContinuation) -> ProbabilityCurve:
    """The pieces of a text, as many as there are probabilities, and these."""
    pieces = bundle.tokenizer.pieces([*text.tokens, *_end_mark(bundle)][: len(text.log_probs)])
    words = text_after(bundle.tokenizer, human.prompt, text.tokens)
    return ProbabilityCurve(pieces, np.exp(text.log_probs).tolist(), words)


def _draw(
    bundle: LoadedRun,
    humans: Sequence[HumanText],
    texts: dict[str, list[ScoredContinuation]],
    rows: dict[str, RepetitionStatistics],
    picture: Path,
) -> None:
    """The human texts beside CHARTED. The example is the median text by the mean probability of the first of
    these strategies."""
    charted = [HUMAN, *([name for name in CHARTED if name in texts] or list(texts)[1:3])]
    by_probability = [float(np.exp(text.log_probs).mean()) for text in texts[charted[1]]]
    middle = sorted(range(len(humans)), key=by_probability.__getitem__)[len(humans) // 2]
    example = {name: _curve(bundle, humans[middle], texts[name][middle]) for name in charted[:2]}
    means, edges = {}, []
    for name in charted:
        row = rows[name]
        # positions that at least half of the texts reach; the number of texts only falls
        shown = sum(2 * count >= len(humans) for count in row.texts_by_position)
        means[name] = Mean(row.by_position[:shown], row.texts_by_position[:shown])
        first, last = row.by_position[:shown][:EDGE], row.by_position[:shown][-EDGE:]
        edges.append(f"{name} {sum(first) / len(first):.2f} → {sum(last) / len(last):.2f}")
    chart = degeneration_chart(
        example,
        means,
        prompt=bundle.tokenizer.decode(humans[middle].prompt),
        title="How predictable is each next token?",
        subtitle=f"Mean probability of the first and the last {EDGE} tokens: {'; '.join(edges)}",
    )
    save_chart(chart, picture)
