"""Degeneration shown: how a model's texts differ from people's, by strategy of decoding (Holtzman et al.
2020, arXiv:1904.09751).

The first tokens of each human text are a prompt. A person went on with it, and each strategy goes on with it
for as many tokens; then the same model says of all of them, without any rule, how probable each token was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig
from seqloom.decoding.generate import Earlier, finish, steps
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.perplexity import score_texts
from seqloom.evaluation.repetition import RepetitionStatistics, Written, loop_at_end, repeated_share
from seqloom.explaining.charts import require_extra, save_chart
from seqloom.explaining.degeneration import Mean, ProbabilityCurve, degeneration_chart
from seqloom.protocols import context_of
from seqloom.runs.decoding_names import strategy_settings
from seqloom.runs.decoding_options import found_or_refused, generation_options
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import as_trained
from seqloom.tasks.language_modeling.documents import each_document
from seqloom.tasks.language_modeling.generate import text_after
from seqloom.tasks.language_modeling.score import language_model
from seqloom.tasks.translation.translator import new_file
from seqloom.workflows.explain.text import PICTURES

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
"""Strategies whose curves are drawn beside the person's; where they are not asked for, the first two."""
NEW_TOKENS = 100
EDGE = 20
"""Tokens of the beginning and of the end that the chart's heading compares."""
ROWS = 64
"""Rows that are decoded together, hypotheses of a beam counted; changes no result."""


class Excerpt(NamedTuple):
    """The beginning of a human text."""

    document: int
    """Its number among the documents of the data, from 0 on."""
    prompt: list[int]
    tokens: list[int]
    """How the person went on."""
    finished: bool
    """Whether the text ends there."""


HEADER = ("text", "ppl", "p", "rep-4", "loops", "distinct 1-3", "len", "ended")
LEGEND = (
    "ppl, p: perplexity and mean probability of a token, the model's own, given the prompt; in percent: rep-4"
    " (4-grams that came before in the same text), loops (texts that end in three copies of a phrase),"
    " distinct n-grams of all, and texts that ended by themselves"
)


@final
@dataclass(frozen=True, kw_only=True)
class Degeneration:
    rows: dict[str, RepetitionStatistics]
    """By strategy; the people's come first, as HUMAN."""
    texts: int
    too_short: int
    """Documents that were read and were too short."""
    unknown: int
    """Tokens of the human continuations that are `<unk>`."""
    prompt_tokens: int
    new_tokens: int
    seed: int
    picture: Path

    def summary(self) -> dict[str, Any]:
        return asdict(self) | {"picture": str(self.picture)}

    def table(self) -> list[tuple[str, ...]]:
        """As HEADER says."""
        return [(name, *_cells(row)) for name, row in self.rows.items()]


def _cells(row: RepetitionStatistics) -> Iterator[str]:
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
    given: Mapping[str, Any],
    *,
    output: str = "degeneration.png",
    samples_output: str | None = None,
    prompt_tokens: int = 16,
    new_tokens: int | None = None,
    limit: int = 50,
    strategies: Sequence[str] = STRATEGIES,
    seed: int = 0,
) -> Degeneration:
    """The verb. The table, the chart in `output`, and where asked for every text as a line of JSON.

    Raises UsageError for a model of another task, a setting that cannot be or a file that is there already;
    DataError where no document is long enough.
    """
    place = new_file(output, PICTURES)
    listed = None if samples_output is None else new_file(samples_output, (".jsonl",))
    for name, value in {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "limit": limit}.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, but is {value}")
    strategies = list(dict.fromkeys(strategies))
    checked = {name: strategy_settings(name, seed) for name in strategies}
    if not checked:
        raise UsageError(
            f"degeneration needs a strategy such as {STRATEGIES[0]} or {STRATEGIES[1]}; name one"
        )
    if not paths:
        raise UsageError(
            "degeneration needs human texts: seqloom degeneration FOLDER TEXTS, with documents as for train"
        )
    require_extra()  # said before the work, not after it
    bundle = language_model(folder)
    new_tokens = _fitting(bundle, prompt_tokens, new_tokens)
    excerpts, too_short = read_excerpts(
        bundle, paths, as_trained(Path(folder), given), prompt_tokens, new_tokens, limit
    )
    texts = {HUMAN: _scored(bundle, excerpts, [(one.tokens, one.finished) for one in excerpts])}
    for number, (name, settings) in enumerate(checked.items(), start=1):
        began = time.monotonic()
        made = continue_excerpts(bundle, excerpts, settings, new_tokens)
        texts[name] = _scored(bundle, excerpts, [(one.tokens, one.finished) for one in made])
        logger.info(
            f"{number} of {len(checked)}: {name}, {sum(len(one.tokens) for one in made):,} tokens in"
            f" {time.monotonic() - began:.1f} s"
        )
    rows = {name: RepetitionStatistics.of(some) for name, some in texts.items()}
    if listed is not None:
        files.write_atomic(
            listed,
            "".join(
                files.json_line(one) + "\n"
                for name, some in texts.items()
                for one in _records(bundle, name, excerpts, some)
            ),
        )
    _draw(bundle, excerpts, texts, rows, place)
    unknown = unknown_tokens(bundle, excerpts)
    return Degeneration(
        rows=rows,
        texts=len(excerpts),
        too_short=too_short,
        unknown=unknown,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        seed=seed,
        picture=place,
    )


def read_excerpts(
    bundle: LoadedRun,
    paths: Sequence[str],
    data: DataConfig,
    prompt_tokens: int,
    new_tokens: int,
    limit: int,
) -> tuple[list[Excerpt], int]:
    """The first `limit` documents that are long enough, and how many were too short before the last of them.

    Long enough is a document of `prompt_tokens + new_tokens`, its end mark counted: all human texts are then
    as long as the decoded ones may become. Raises DataError where there is none.
    """
    found: list[Excerpt] = []
    lengths: list[int] = []
    end = ends_of(bundle)
    for number, document in enumerate(each_document(paths, data, bundle.tokenizer)):
        ids: list[int] = document.ids.tolist()
        if len(ids) + len(end) < prompt_tokens + new_tokens:
            lengths.append(len(ids) + len(end))
            continue
        rest = [*ids[prompt_tokens:], *end][:new_tokens]
        finished = rest[-1:] == end
        found.append(Excerpt(number, ids[:prompt_tokens], rest[: len(rest) - finished], finished))
        if len(found) == limit:
            break
    if not found:
        longest = f"the longest of {len(lengths):,} has {max(lengths):,}" if lengths else "there is none"
        raise DataError(
            f"{printable(' '.join(paths))}: a document must have {prompt_tokens + new_tokens} tokens, prompt"
            f" and all, but {longest}; ask for fewer with --new-tokens, or for longer documents with --set"
            " data.document=paragraph or file"
        )
    logger.info(
        f"{len(found):,} texts: the first {prompt_tokens} tokens of each are the prompt, {new_tokens} more"
        f" are compared; {len(lengths):,} documents were too short"
    )
    if unknown := unknown_tokens(bundle, found):
        logger.info(f"{unknown:,} tokens of the human texts are <unk>: scored as such, and never decoded")
    return found, len(lengths)


def unknown_tokens(bundle: LoadedRun, excerpts: Sequence[Excerpt]) -> int:
    """How many tokens of the human continuations are the unknown one."""
    unknown = bundle.tokenizer.special_ids.unk
    return 0 if unknown is None else sum(one.tokens.count(unknown) for one in excerpts)


def ends_of(bundle: LoadedRun) -> list[int]:
    """The end mark, or nothing where nothing ends a text."""
    end = bundle.tokenizer.special_ids.eos
    return [] if end is None else [end]


def continue_excerpts(
    bundle: LoadedRun, excerpts: Sequence[Excerpt], settings: DecodeConfig, new_tokens: int
) -> list[Hypothesis]:
    """The best hypothesis, or a sample, for each prompt. Text number i draws its random numbers as sample i
    of the seed does."""
    model: Any = bundle.model
    options = generation_options(settings, bundle.tokenizer)
    bos = bundle.tokenizer.special_ids.bos
    rows = ROWS if settings.strategy == "sample" else max(ROWS // settings.beam, 1)
    made: list[Hypothesis] = []
    for first in range(0, len(excerpts), rows):
        some = excerpts[first : first + rows]
        prompts = [[*bos, *excerpt.prompt] for excerpt in some]
        earlier = [Earlier(sample=first + number) for number in range(len(some))]
        found = finish(steps(model, None, prompts, [new_tokens] * len(some), options, earlier=earlier))
        made += [found_or_refused(hypotheses, options.strategy)[0] for hypotheses in found]
    return made


def _fitting(bundle: LoadedRun, prompt_tokens: int, new_tokens: int | None) -> int:
    """How many new tokens: none may be read without all that stands before it. Raises UsageError where so
    many do not fit the context."""
    context = context_of(bundle.model)
    begin = len(bundle.tokenizer.special_ids.bos)
    room = math.inf if context is None else context + 1 - begin - prompt_tokens  # the last token is not read
    if room < (new_tokens or 1):
        raise UsageError(
            f"--prompt-tokens and --new-tokens must sum to at most the model's context of {context} tokens, "
            f"but are {prompt_tokens} and {new_tokens or 1}; ask for fewer"
        )
    if new_tokens is None and room < NEW_TOKENS:
        logger.info(f"{room} new tokens instead of {NEW_TOKENS}: the model looks at {context} tokens")
    return new_tokens or int(min(room, NEW_TOKENS))


def _scored(
    bundle: LoadedRun, excerpts: Sequence[Excerpt], texts: Sequence[tuple[list[int], bool]]
) -> list[Written]:
    whole = [[*one.prompt, *tokens] for one, (tokens, _) in zip(excerpts, texts, strict=True)]
    return [
        Written(tokens, finished, score.last(len(tokens)).log_probs[: len(tokens) + finished])
        for (tokens, finished), score in zip(
            texts, score_texts(bundle.model, whole, bundle.tokenizer.special_ids), strict=True
        )
    ]


def _records(
    bundle: LoadedRun, strategy: str, excerpts: Sequence[Excerpt], texts: Sequence[Written]
) -> Iterator[dict[str, Any]]:
    for excerpt, one in zip(excerpts, texts, strict=True):
        loop = loop_at_end(one.tokens)
        yield {
            "strategy": strategy,
            "document": excerpt.document,
            "prompt": bundle.tokenizer.decode(excerpt.prompt),
            "text": text_after(bundle.tokenizer, excerpt.prompt, one.tokens),
            "tokens": one.tokens,
            "pieces": _pieces(bundle, one),
            "probabilities": np.exp(one.log_probs).tolist(),
            "log_probability": float(one.log_probs.sum()),
            "finished": one.finished,
            "rep_4": repeated_share(one.tokens, 4),
            "loop": None if loop is None else loop._asdict(),
        }


def _pieces(bundle: LoadedRun, text: Written) -> list[str]:
    """As many as there are probabilities."""
    return bundle.tokenizer.pieces([*text.tokens, *ends_of(bundle)][: len(text.log_probs)])


def _draw(
    bundle: LoadedRun,
    excerpts: Sequence[Excerpt],
    texts: dict[str, list[Written]],
    rows: dict[str, RepetitionStatistics],
    place: Path,
) -> None:
    """The person beside CHARTED. The example is the text that is in the middle by the mean probability of the
    first of these."""
    charted = [HUMAN, *([name for name in CHARTED if name in texts] or list(texts)[1:3])]
    mean = [float(np.exp(one.log_probs).mean()) for one in texts[charted[1]]]
    chosen = sorted(range(len(mean)), key=mean.__getitem__)[len(mean) // 2]
    prompt = excerpts[chosen].prompt
    example = {}
    for name in charted[:2]:
        one = texts[name][chosen]
        example[name] = ProbabilityCurve(
            _pieces(bundle, one),
            np.exp(one.log_probs).tolist(),
            text_after(bundle.tokenizer, prompt, one.tokens),
        )
    means = {}
    for name in charted:
        shown = sum(2 * n >= len(mean) for n in rows[name].texts_by_position)  # it only falls
        means[name] = Mean(rows[name].by_position[:shown], rows[name].texts_by_position[:shown])
    ends = "; ".join(f"{name} {_ends(mean.probabilities)}" for name, mean in means.items())
    chart = degeneration_chart(
        example,
        means,
        prompt=bundle.tokenizer.decode(prompt),
        title="How predictable is each next token?",
        subtitle=f"Mean probability of the first and the last {EDGE} tokens: {ends}",
    )
    save_chart(chart, place)


def _ends(probabilities: Sequence[float]) -> str:
    first, last = probabilities[:EDGE], probabilities[-EDGE:]
    return f"{sum(first) / len(first):.2f} → {sum(last) / len(last):.2f}"
