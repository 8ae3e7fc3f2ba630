"""Text that is longer than what a model can look at, window by window.

A model with a context of C tokens reads the text so far until it has C tokens; then it forgets it and reads
the last C // 2 tokens as a fresh window. Where a window begins depends on the length of the text alone
(`window_start`), so a text that is gone on with continues as if it had never stopped, and a prompt longer
than C is read as if it had been written here.

A beam searches each window on its own, and the next one goes on from each of the hypotheses that it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from torch import Tensor

from seqloom.decoding.generate import Begun, steps
from seqloom.decoding.live_rows import Hypothesis, Step, Stop
from seqloom.decoding.rules import Rule
from seqloom.decoding.strategies import Strategy
from seqloom.protocols import Decodable


def window_start(length: int, context: int | None) -> int:
    """The first token of the window that the token after a text of `length` tokens is predicted from."""
    if context is None or length <= context:
        return 0
    stride = context + 1 - max(1, context // 2)  # at context + 1 tokens, context // 2 are left
    return stride * -(-(length - context) // stride)


def generate_windows(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    *,
    strategy: Strategy,
    max_new_tokens: int,
    context: int | None,
    eos: int | None,
    pad: int,
    rules: Sequence[Rule] = (),
    stop: Stop | None = None,
    watch: Callable[[Step], None] | None = None,
) -> Generator[Tensor, None, list[list[Hypothesis]]]:
    """As `generate.steps`, for a language model of any context: yields new tokens as they come, returns the
    hypotheses.

    The rules see the whole text. Raises as `generate` does.
    """
    texts = [_Text(prompt=at, so_far=Hypothesis(0.0, 0.0, [], False)) for at in range(len(prompts))]
    ended: list[list[Hypothesis]] = [[] for _ in prompts]
    every = strategy  # in the first window; then each of its hypotheses goes on alone
    while texts:
        known = [[*prompts[text.prompt], *text.so_far.tokens] for text in texts]
        windows = [tokens[window_start(len(tokens), context) :] for tokens in known]
        left = [max_new_tokens - len(text.so_far.tokens) for text in texts]
        room = [max_new_tokens if context is None else context + 1 - len(window) for window in windows]
        found = yield from steps(
            model,
            None,
            windows,
            strategy=every,
            max_new_tokens=[min(pair) for pair in zip(left, room, strict=True)],
            eos=eos,
            pad=pad,
            rules=rules,
            stop=stop,
            watch=watch,
            begun=[Begun(text.so_far.sample, len(text.so_far.tokens)) for text in texts],
            before=[
                tokens[: len(tokens) - len(window)] for tokens, window in zip(known, windows, strict=True)
            ],
        )
        longer = [
            _Text(prompt=text.prompt, so_far=_joined(text.so_far, hypothesis, strategy))
            for text, hypotheses in zip(texts, found, strict=True)
            for hypothesis in hypotheses
        ]
        texts = []
        for text in longer:
            if text.so_far.finished or len(text.so_far.tokens) >= max_new_tokens:
                ended[text.prompt].append(text.so_far)
            else:
                texts.append(text)
        every = strategy.one()
    return [strategy.ranked(hypotheses) for hypotheses in ended]


@dataclass(frozen=True, kw_only=True)
class _Text:
    """One continuation of a prompt."""

    prompt: int
    so_far: Hypothesis


def _joined(before: Hypothesis, new: Hypothesis, strategy: Strategy) -> Hypothesis:
    total = before.log_probability + new.log_probability
    tokens = [*before.tokens, *new.tokens]
    return Hypothesis(
        strategy.score(total, len(tokens) + new.finished), total, tokens, new.finished, new.sample
    )
