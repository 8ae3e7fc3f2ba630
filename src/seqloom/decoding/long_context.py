"""Text that is longer than the context of a model, window by window.

A model with a context of C tokens reads the text so far until it has C tokens; then it forgets it and reads
the last C // 2 tokens as a fresh window. Where a window begins depends on the length of the text alone
(`window_start`), so a continued text is the same as one that was never interrupted, and a prompt longer than
C is read as if it had been generated.

A beam searches each window on its own, and the next one continues each of the hypotheses that it returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from seqloom.decoding.generate import (
    Earlier,
    GenerationOptions,
    NewTokens,
    Observer,
    Search,
    Steps,
    run_search,
    search,
)
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.strategies import Strategy
from seqloom.protocols import Decodable, device_of


def window_start(length: int, context: int | None) -> int:
    """The first token of the window that the token after a text of `length` tokens is predicted from."""
    if context is None or length <= context:
        return 0
    stride = context + 1 - max(1, context // 2)  # at context + 1 tokens, context // 2 are left
    return stride * -(-(length - context) // stride)


def generate_windows(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    options: GenerationOptions,
    context: int | None,
    observer: Observer | None = None,
) -> Steps:
    """As `generate.steps`, for a language model of any context: yields new tokens as they come, returns the
    hypotheses.

    Logits processors see the whole text. Raises as `generate` does.
    """

    def searching(new_tokens: NewTokens) -> Search:
        device = device_of(model)
        return search_windows(
            prompts, max_new_tokens, options, context, device, observer, new_tokens
        )

    return run_search(model, None, searching)


def search_windows(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    options: GenerationOptions,
    context: int | None,
    device: torch.device,
    observer: Observer | None = None,
    new_tokens: NewTokens = lambda _: None,
) -> Search:
    """As `generate.search`, for a language model of any context."""
    ended: list[list[Hypothesis]] = [[] for _ in prompts]
    unfinished = [(number, Hypothesis(0.0, 0.0, [], False)) for number in range(len(prompts))]
    window_options = options
    while unfinished:
        windows, limits, earlier = [], [], []
        for number, hypothesis in unfinished:
            text = [*prompts[number], *hypothesis.tokens]
            start = window_start(len(text), context)
            window, generated = text[start:], len(hypothesis.tokens)
            limit = max_new_tokens - generated
            if context is not None:
                limit = min(limit, context + 1 - len(window))  # the last token is not read
            windows.append(window)
            limits.append(limit)
            earlier.append(Earlier(hypothesis.sample, generated, text[:start]))
        found = yield from search(
            windows, limits, window_options, device, observer, earlier, new_tokens
        )
        continued = []
        for (number, before), hypotheses in zip(unfinished, found, strict=True):
            for new in hypotheses:
                joined = _joined(before, new, options.strategy)
                if joined.finished or len(joined.tokens) >= max_new_tokens:
                    ended[number].append(joined)
                else:
                    continued.append((number, joined))
        unfinished = continued
        # after the first window each of its hypotheses continues alone
        window_options = replace(options, strategy=options.strategy.single())
    return [options.strategy.ranked(hypotheses) for hypotheses in ended]


def _joined(before: Hypothesis, new: Hypothesis, strategy: Strategy) -> Hypothesis:
    total = before.log_probability + new.log_probability
    tokens = [*before.tokens, *new.tokens]
    score = strategy.score(total, len(tokens) + new.finished)
    return Hypothesis(score, total, tokens, new.finished, new.sample)
