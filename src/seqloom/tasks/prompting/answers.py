"""Log-probabilities of answers after their prompts.

    log P(answer | prompt) = log P(prompt answer) - log P(prompt)

Both texts are cut into tokens as wholes. Tokens that they have in common are read once, and of an ordinary
answer, whose tokens follow those of the prompt, just these are left: what lm-evaluation-harness computes.
Where a token lies across the join, the tokens from there on are scored in both texts, so that nothing is
lost. The blank between prompt and answer belongs to the answer.

A model of text pairs reads the prompt as its source; the answer and its end are the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, cast, final

import torch
from torch import nn

from seqloom.data.batching.pair_batches import pad, source_batch
from seqloom.errors import UsageError, shown
from seqloom.evaluation.perplexity import ranked_log_probs, score_texts
from seqloom.packed_weights import packed_weights
from seqloom.protocols import (
    Decodable,
    EncoderDecoder,
    State,
    StoredTokenizer,
    context_of,
    device_of,
    read_source,
    select_rows,
    source_room,
    state_after,
    target_log_probs,
)
from seqloom.registry import hub_task
from seqloom.runs.run_folder import LoadedRun
from seqloom.shapes import IGNORE
from seqloom.tasks.language_modeling.generate import TASK
from seqloom.tasks.model import no_such_verb
from seqloom.tasks.translation.translate import target_tokenizer

BATCH_TOKENS = 2**13
"""Tokens that are read together."""

MOST = 2**40
"""Tokens of a source where nothing limits them."""

Ids = tuple[int, ...]


class Span(NamedTuple):
    """Ids that are scored after ids that are read."""

    read: Ids
    """Read once, however many spans follow."""
    first: Ids
    """Read before each span; nothing of it is scored."""
    scored: Ids


class LogProb(NamedTuple):
    """The score of an answer."""

    value: float
    """In nats."""
    tokens: int
    """At least 1."""
    greedy: bool
    """Whether each of its tokens is the most likely one; False where that was not asked for."""
    cut: bool = False
    """Whether the prompt was cut at the left."""


class AnswerScorer(Protocol):
    """A model that says how likely an answer is after a prompt."""

    has_empty_prompt: bool
    """Whether an answer has a probability without a prompt."""
    joins: bool
    """Whether an answer continues its prompt as one text."""

    def score(self, pairs: Sequence[tuple[str, str]], *, greedy: bool = False) -> list[LogProb]:
        """(prompt, answer) -> the score of each; `greedy`: also whether it is what greedy decoding writes."""
        ...


class _PlannedAnswer(NamedTuple):
    """An answer as differences of spans."""

    whole: Span | None
    """None if the answer alone is longer than the context."""
    prompt: Span | None
    """What is subtracted, where a token lies across the join."""
    ids: Ids
    """Of the whole text."""
    tokens: int
    """Of the answer."""
    cut: bool


@final
class LanguageModelAnswers:
    """A language model: the answer continues the prompt."""

    joins = True

    def __init__(
        self, model: nn.Module, tokenizer: StoredTokenizer, bos: Ids | None = None
    ) -> None:
        """`bos` is read before a prompt, unless that is empty; by default what begins a text."""
        self.model, self.tokenizer = model, tokenizer
        self.context = context_of(model)
        special_ids = tokenizer.special_ids
        self.bos = special_ids.bos if bos is None else bos
        end = () if special_ids.eos is None else (special_ids.eos,)
        self.empty_prompt = special_ids.bos or end
        self.has_empty_prompt = bool(self.empty_prompt)

    def score(self, pairs: Sequence[tuple[str, str]], *, greedy: bool = False) -> list[LogProb]:
        planned = self._plan(list(pairs))
        spans = [span for plan in planned for span in (plan.whole, plan.prompt) if span is not None]
        pad_id = self.tokenizer.special_ids.pad
        found = span_scores(self.model, self._states, spans, pad_id, greedy=greedy)
        scores = []
        for plan in planned:
            if plan.whole is None:
                scores.append(LogProb(self._long(plan), plan.tokens, False, True))
                continue
            value, is_greedy = found[plan.whole]
            if plan.prompt is not None:
                value -= found[plan.prompt][0]
            scores.append(LogProb(value, plan.tokens, is_greedy, plan.cut))
        return scores

    def _long(self, answer: _PlannedAnswer) -> float:
        """log P of an answer that is longer than the context, in windows."""
        assert self.context is not None
        special_ids = self.tokenizer.special_ids._replace(bos=(), eos=None)
        stride = max(self.context // 2, 1)
        (score,) = score_texts(self.model, [answer.ids], special_ids, stride=stride)
        return float(score.log_probs[-answer.tokens :].sum())

    def _plan(self, pairs: list[tuple[str, str]]) -> list[_PlannedAnswer]:
        moved = []
        for prompt, answer in pairs:
            stripped = prompt.rstrip()
            moved.append((stripped, prompt[len(stripped) :] + answer))
        named = dict.fromkeys(
            text for prompt, answer in moved for text in (prompt, prompt + answer)
        )
        encoded = self.tokenizer.encode(list(named))
        texts = {text: tuple(ids) for text, ids in zip(named, encoded, strict=True)}
        planned = []
        for prompt, answer in moved:
            # where nothing begins a text (GPT-2), it follows the end of another one
            before = self.bos if prompt else self.empty_prompt
            ids, whole = texts[prompt], texts[prompt + answer]
            planned.append(self._planned((*before, *ids), (*before, *whole), answer))
        return planned

    def _planned(self, prompt: Ids, whole: Ids, answer: str) -> _PlannedAnswer:
        common = _common(prompt, whole)
        if common == 0 or common == len(whole):
            raise UsageError(
                f"the answer {shown(answer)!r} must have a token after one of its prompt, but this model's"
                " tokenizer finds none; write another prompt"
            )
        first = 0
        if self.context is not None:
            # as lm-evaluation-harness cuts: the last token is not read
            first = max(len(whole) - self.context - 1, 0)
        whole_span = _span(whole, first, common) if first < common else None
        subtracted = None
        if common < len(prompt):
            subtracted = _span(prompt, min(first, common - 1), common)
        return _PlannedAnswer(whole_span, subtracted, whole, len(whole) - common, first > 0)

    def _states(self, prompts: Sequence[Ids]) -> State:
        """The state after each prompt. What all begin with, such as their shots, is read once."""
        common = _common(min(prompts), max(prompts))
        state = self._read([prompts[0][:common]], None)
        rows = torch.zeros(len(prompts), dtype=torch.long, device=device_of(self.model))
        return self._read([prompt[common:] for prompt in prompts], select_rows(state, rows))

    def _read(self, texts: Sequence[Ids], state: State) -> State:
        tokens = pad(texts, self.tokenizer.special_ids.pad).to(device_of(self.model))
        if not tokens.shape[1]:
            return state
        return state_after(cast(Decodable, self.model), tokens, state)


def _common(first: Ids, second: Ids) -> int:
    """How many ids both begin with."""
    for position, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return position
    return min(len(first), len(second))


def _span(ids: Ids, first: int, scored: int) -> Span:
    return Span(ids[first : scored - 1], ids[scored - 1 : scored], ids[scored:])


@final
class TextPairAnswers:
    """A model of text pairs: the prompt is its source."""

    has_empty_prompt = True
    joins = False

    def __init__(self, model: nn.Module, tokenizer: StoredTokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    def score(self, pairs: Sequence[tuple[str, str]], *, greedy: bool = False) -> list[LogProb]:
        special_ids = self.tokenizer.special_ids
        end = () if special_ids.eos is None else (special_ids.eos,)
        sources = self.tokenizer.encode([prompt for prompt, _ in pairs])
        # the blank before an answer belongs to running text alone
        answers = target_tokenizer(self.tokenizer).encode([answer.strip() for _, answer in pairs])
        spans = []
        for source, answer in zip(sources, answers, strict=True):
            scored = (*answer, *end)
            room = self._room(len(special_ids.bos) + len(scored))
            spans.append(Span(tuple(source[-room:]), special_ids.bos, scored))
        found = span_scores(self.model, self._states, spans, special_ids.pad, greedy=greedy)
        scores = []
        for span, source in zip(spans, sources, strict=True):
            value, is_greedy = found[span]
            cut = len(span.read) < len(source)
            scores.append(LogProb(value, len(span.scored), is_greedy, cut))
        return scores

    def _room(self, target: int) -> int:
        """The most tokens of a source for a target of so many. Raises UsageError if there is none."""
        room = source_room(self.model, self.tokenizer.special_ids, target)
        if room is None:
            return MOST
        context = context_of(self.model) or 0
        if room < 1 or target > context:
            raise UsageError(
                f"an answer must fit the {context} tokens that the model reads, but has {target}; shorten it"
            )
        return room

    def _states(self, prompts: Sequence[Ids]) -> State:
        sources = source_batch([list(prompt) for prompt in prompts], self.tokenizer.special_ids)
        return read_source(self.model, sources.to(device_of(self.model)))


def answer_scorer(run: LoadedRun, bos: Ids | None = None) -> AnswerScorer:
    """The scorer for a model. Raises UsageError for one that writes no text."""
    if run.task == TASK:
        return LanguageModelAnswers(run.model, run.tokenizer, bos)
    if not isinstance(run.model, EncoderDecoder) and hub_task(run.task) != "translation":
        raise no_such_verb(run.folder, run.task, "prompt")
    return TextPairAnswers(run.model, run.tokenizer)


@torch.inference_mode()
@packed_weights()
def span_scores(
    model: nn.Module,
    states: Callable[[Sequence[Ids]], State],
    spans: Sequence[Span],
    pad_id: int,
    *,
    greedy: bool,
) -> dict[Span, tuple[float, bool]]:
    """log P of each span, and with `greedy` whether it is what greedy decoding writes. `states` reads
    prompts: each one once, whatever is scored after it."""
    unique = sorted(set(spans), key=lambda span: (-len(span.read), span.read))
    groups = [
        (read, list(members)) for read, members in groupby(unique, key=lambda span: span.read)
    ]
    found: dict[Span, tuple[float, bool]] = {}
    first = 0
    while first < len(groups):
        count = max(BATCH_TOKENS // max(len(groups[first][0]), 1), 1)
        batch = groups[first : first + count]
        state = states([read for read, _ in batch])
        rows = [(i, span) for i, (_, members) in enumerate(batch) for span in members]
        rows.sort(key=lambda row: len(row[1].scored))
        for members in _batches(rows):
            found |= _scored(cast(Decodable, model), state, members, pad_id, greedy=greedy)
        first += count
    return found


def _batches(rows: Sequence[tuple[int, Span]]) -> list[list[tuple[int, Span]]]:
    """Rows that are scored together, each of which has a copy of the state of its prompt."""
    batches: list[list[tuple[int, Span]]] = []
    size = 0
    for i, span in rows:
        length = len(span.read) + len(span.scored) + 1
        if not batches or size + length > BATCH_TOKENS:
            batches.append([])
            size = 0
        batches[-1].append((i, span))
        size += length
    return batches


def _scored(
    model: Decodable, state: State, rows: Sequence[tuple[int, Span]], pad_id: int, *, greedy: bool
) -> dict[Span, tuple[float, bool]]:
    device = device_of(model)
    inputs = [[*span.first, *span.scored[:-1]] for _, span in rows]
    targets = [[*[IGNORE] * (len(span.first) - 1), *span.scored] for _, span in rows]
    tokens, wanted = pad(inputs, pad_id).to(device), pad(targets, IGNORE).to(device)
    chosen = select_rows(state, torch.tensor([i for i, _ in rows], device=device))
    is_scored = wanted != IGNORE
    if greedy:
        log_probs, ranks, _ = ranked_log_probs(model, tokens, wanted, chosen)
        likely = ((ranks == 1) | ~is_scored).all(dim=1).tolist()
    else:
        log_probs, _ = target_log_probs(model, tokens, wanted, chosen)
        likely = [False] * len(rows)
    totals = log_probs.double().where(is_scored, 0.0).sum(dim=1).tolist()
    return {
        span: (total, is_greedy)
        for (_, span), total, is_greedy in zip(rows, totals, likely, strict=True)
    }
