"""The one loop that turns any next-token model into text.

A row is a live hypothesis. At each step a strategy (`strategies.py`) chooses which continuations of the rows
live on; hypotheses that end leave, and the state is reordered like its rows. Greedy search is a beam of one.

    score of a hypothesis = Σ log p / length^α, the end mark counted

A hypothesis that ends keeps its place in the beam, so at most `width` of them end for one input. The search
of an input is over when no row of it is alive, or when even the best that a live row can still become (its Σ
log p can only fall, its length can only grow to the maximum) is no better than the worst of the hypotheses
that would be returned: never earlier.

The loop (`search`) calls no model. It asks what may come next, and whoever runs it makes the calls: `steps`
for one search, `ContinuousBatch` (`continuous_batch.py`) for many that share each call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor

from seqloom.decoding.decoder import Decoder, Prefill, Step
from seqloom.decoding.hypotheses import (
    NO_TOKEN,
    DecodingStep,
    Hypothesis,
    LiveHypotheses,
    StoppingCriterion,
)
from seqloom.decoding.logits_processors import LogitsProcessor, enough
from seqloom.decoding.strategies import Strategy
from seqloom.errors import UsageError
from seqloom.protocols import Decodable, NextLogProbs, State, device_of

Observer = Callable[[DecodingStep], None]
NewTokens = Callable[[Tensor], None]
"""Is given the new token of each row `(rows,)`, once for each step."""
Search = Generator[Prefill | Step, NextLogProbs, list[list[Hypothesis]]]
"""Yields what the model must read next, is sent what may come after it, returns the hypotheses of each
prompt."""
Steps = Generator[Tensor, None, list[list[Hypothesis]]]
"""Yields the new token of each row `(rows,)` as it comes, returns the hypotheses of each prompt."""
T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How a model is decoded."""

    strategy: Strategy
    eos: int | None
    """The end mark; None where no token ends a text."""
    pad: int
    processors: Sequence[LogitsProcessor] = ()
    stop: StoppingCriterion | None = None
    """Makes a hypothesis complete besides the end mark."""


class Earlier(NamedTuple):
    """What precedes a prompt that continues a generated text."""

    sample: int = 0
    """The number of its first sample."""
    generated: int = 0
    """How many tokens before the new ones were generated: the next random number is the one after theirs."""
    tokens: Sequence[int] = ()
    """Tokens before the prompt, which logits processors see, but not the model."""


def generate(
    model: Decodable,
    state: State,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    options: GenerationOptions,
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt its hypotheses: of beam search the best first, at most `n_best`; of sampling its
    samples in order.

    `state` has one row per prompt, or is None. Prompts may differ in length (they are padded on the left: a
    `<pad>` is a step that does not happen) but none is empty. `max_new_tokens` counts the end mark. Raises
    UsageError for an empty prompt, or a maximum below 1; SeqloomError where a logit is NaN.
    """
    return finish(steps(model, state, prompts, max_new_tokens, options, observer))


def finish(
    generator: Generator[Tensor, None, T], observer: Callable[[Tensor], None] | None = None
) -> T:
    """Runs a generator to its end and gives what it returns; `observer` sees what it yields."""
    while True:
        try:
            yielded = next(generator)
        except StopIteration as end:
            result: T = end.value
            return result
        if observer is not None:
            observer(yielded)


def steps(
    model: Decodable,
    state: State,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    options: GenerationOptions,
    observer: Observer | None = None,
    earlier: Sequence[Earlier] | None = None,
) -> Steps:
    """`generate`, one step at a time. `earlier` tells what precedes each prompt of a continued text."""

    def searching(new_tokens: NewTokens) -> Search:
        device = device_of(model)
        return search(prompts, max_new_tokens, options, device, observer, earlier, new_tokens)

    return run_search(model, state, searching)


def run_search(model: Decodable, state: State, searching: Callable[[NewTokens], Search]) -> Steps:
    """Makes the calls of the model that a search asks for. `state` is that before each of its prompts."""
    chosen: list[Tensor] = []
    decoder, running = Decoder(model), searching(chosen.append)
    try:
        call = next(running)
        while True:
            if isinstance(call, Prefill):
                following = decoder.prefill(call, state)
            else:
                following = decoder.step(call)
            call = running.send(following)
            yield chosen.pop()
    except StopIteration as end:
        yield from chosen
        hypotheses: list[list[Hypothesis]] = end.value
        return hypotheses


@torch.inference_mode()
def search(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    options: GenerationOptions,
    device: torch.device,
    observer: Observer | None = None,
    earlier: Sequence[Earlier] | None = None,
    new_tokens: NewTokens = lambda _: None,
) -> Search:
    """`steps` without the model: it yields what the model must read, and is sent what may come after that."""
    if (
        not all(prompts)
        or not len(prompts) == len(max_new_tokens)
        or min(max_new_tokens, default=1) < 1
    ):
        raise UsageError(
            "every prompt must have at least one token and a maximum of at least 1 new token"
        )
    ended_hypotheses: list[list[Hypothesis]] = [[] for _ in prompts]
    if not prompts:
        return ended_hypotheses
    strategy = options.strategy
    limits, shortest_limit = torch.tensor(list(max_new_tokens), device=device), min(max_new_tokens)
    live = _initial_rows(
        prompts, earlier or [Earlier()] * len(prompts), strategy.rows_per_input, device
    )
    wanted, of_wanted = enough(strategy.likeliest, options.processors)
    if observer is not None:
        wanted = None  # it may look at all
    padded = _left_padded(prompts, options.pad, device)
    log_probs, ids = yield Prefill(padded, strategy.rows_per_input, wanted)
    while True:
        processed = log_probs
        for processor in options.processors if ids is None else of_wanted:
            processed = processor(live, processed)
        chosen = strategy.choose(live, log_probs, processed, ended_hypotheses, ids)
        new_tokens(chosen.ids)
        extended = live.extended(chosen)
        # a hypothesis ends by the end mark, by the stopping criterion, or at its maximum length
        if options.eos is None:
            finished = torch.zeros_like(chosen.ids, dtype=torch.bool)
        else:
            finished = chosen.ids == options.eos
        if options.stop is not None:
            finished = finished | options.stop(extended)
        ended = finished
        if extended.tokens.shape[1] >= shortest_limit:
            ended = finished | (extended.tokens.shape[1] >= limits[extended.input_index])
        if bool(ended.any()):  # the one place of a step that waits for a GPU
            _collect(extended, ended, finished, ended_hypotheses, options)
        kept = ~ended
        if any(ended_hypotheses):
            kept = kept & ~strategy.prunable(extended, limits, ended_hypotheses, kept)
        if observer is not None:
            observer(
                DecodingStep(live, log_probs, processed, chosen, extended, ended, finished, kept)
            )
        # the next step continues the rows that live on
        parents, live = chosen.parents, extended
        if any(ended_hypotheses) and not bool(kept.all()):
            rows = kept.nonzero()[:, 0]
            parents, live = rows if parents is None else parents[rows], live.select(rows)
        if not len(live.input_index):
            return [strategy.ranked(hypotheses) for hypotheses in ended_hypotheses]
        log_probs, ids = yield Step(live.tokens[:, -1:], parents, wanted)


def _left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> Tensor:
    """`(prompts, longest)`"""
    longest = max(len(prompt) for prompt in prompts)
    return torch.tensor(
        [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device
    )


def _initial_rows(
    prompts: Sequence[Sequence[int]],
    earlier: Sequence[Earlier],
    rows_per_input: int,
    device: torch.device,
) -> LiveHypotheses:
    """The rows before any new token."""
    sequences = [[*before.tokens, *prompt] for before, prompt in zip(earlier, prompts, strict=True)]
    live = LiveHypotheses.initial(_left_padded(sequences, NO_TOKEN, device))
    live = live.select(live.input_index.repeat_interleave(rows_per_input))
    counts = torch.tensor([(before.sample, before.generated) for before in earlier], device=device)
    first_sample, generated = counts[live.input_index].unbind(1)
    samples = torch.arange(rows_per_input, device=device).repeat(len(earlier))
    return live._replace(sample_index=first_sample + samples, generated_before=generated)


def _collect(
    live: LiveHypotheses,
    ended: Tensor,
    finished: Tensor,
    hypotheses: list[list[Hypothesis]],
    options: GenerationOptions,
) -> None:
    """Adds the rows that ended to the hypotheses of their inputs."""
    for row in ended.nonzero()[:, 0].tolist():
        total, tokens = float(live.sum_log_probs[row]), live.tokens[row].tolist()
        score = options.strategy.score(total, len(tokens))
        if tokens[-1] == options.eos:
            tokens = tokens[:-1]
        hypothesis = Hypothesis(
            score, total, tokens, bool(finished[row]), int(live.sample_index[row])
        )
        hypotheses[int(live.input_index[row])].append(hypothesis)
