"""Every step of a search as text: the candidates of each row, which of them go on, and why the others
fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.decoding.hypotheses import DecodingStep
from seqloom.decoding.logits_processors import LogitsProcessor, most_likely, name_of
from seqloom.decoding.strategies import Sampling, Strategy

SHOWN = 8
"""Candidates of a row, at least, the most likely ones."""


@final
class Trace:
    """An observer of `generate` for one input, which writes what happens, a line at a time.

    `pieces` gives the text of ids; `strategy` and `processors` are those of the search, to tell why a
    candidate was not taken.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        pieces: Callable[[Sequence[int]], list[str]],
        strategy: Strategy,
        processors: Sequence[LogitsProcessor],
    ) -> None:
        self._write = write
        self._pieces = pieces
        self._strategy = strategy
        self._processors = processors

    def __call__(self, step: DecodingStep) -> None:
        lengths, sequences = step.live.new_length.tolist(), step.live.sequences.tolist()
        rows = "1 row" if len(lengths) == 1 else f"{len(lengths)} rows"
        self._write(f"step {max(lengths, default=0) + 1}: {rows}")
        processed = self._after_each_processor(step)
        for row, (length, sequence) in enumerate(zip(lengths, sequences, strict=True)):
            text = "".join(self._pieces(sequence[-length:])) if length else ""
            self._write(f"  {text!r}  log p {float(step.live.sum_log_probs[row]):.4f}")
            for line in self._candidates(step, row, processed):
                self._write(f"    {line}")

    def _after_each_processor(self, step: DecodingStep) -> list[tuple[str, Tensor]]:
        log_probs, after = step.log_probs, []
        for processor in self._processors:
            log_probs = processor(step.live, log_probs)
            after.append((name_of(processor), log_probs))
        return after

    def _candidates(
        self, step: DecodingStep, row: int, after: list[tuple[str, Tensor]]
    ) -> Iterator[str]:
        """A line for each candidate, the likeliest first: those that the model and the processed
        probabilities prefer, and those that were taken."""
        fates = _fates(step, row)
        ids = set(fates)
        shown = min(SHOWN, step.log_probs.shape[1])
        for log_probs in (step.log_probs, step.processed):
            ids |= set(most_likely(log_probs[row : row + 1], shown)[1][0].tolist())
        before, left = step.log_probs[row].tolist(), step.processed[row].tolist()
        ranked = sorted(ids, key=lambda i: (-left[i], -before[i], i))
        for i, piece in zip(ranked, self._pieces(ranked), strict=True):
            if before[i] == left[i] == float("-inf"):
                continue
            changed = ""
            if left[i] == float("-inf"):
                fate = "ruled out by " + next(
                    name for name, part in after if float(part[row, i]) == left[i]
                )
            else:
                if before[i] != left[i]:
                    changed = f" (ruled to {left[i]:.4f})"
                fate = fates.get(i) or self._why_not_taken(step, row, left[i])
            yield f"{piece!r:<16} {before[i]:9.4f}{changed}  {fate}"

    def _why_not_taken(self, step: DecodingStep, row: int, log_prob: float) -> str:
        """Why a candidate that was possible was not taken."""
        if isinstance(self._strategy, Sampling):
            return "is not drawn"
        live, parents = step.live, _parents(step)
        same_input = live.input_index[parents] == live.input_index[row]
        rivals = same_input & (live.sample_index[parents] == live.sample_index[row])
        if not bool(rivals.any()):
            return "falls: its beam is full of what has ended"
        total = float(live.sum_log_probs[row]) + log_prob
        worst = float(step.next_tokens.sum_log_probs[rivals].min())
        if total > worst:
            return f"falls: log p {total:.4f}, but groups before this one took the token"
        return f"falls: log p {total:.4f}, the last that is taken has {worst:.4f}"


def _parents(step: DecodingStep) -> Tensor:
    parents = step.next_tokens.parents
    return torch.arange(len(step.next_tokens.ids)) if parents is None else parents


def _fates(step: DecodingStep, row: int) -> dict[int, str]:
    """id -> what became of the hypothesis that continues the row with it."""
    fates = {}
    for child, parent in enumerate(_parents(step).tolist()):
        if parent != row:
            continue
        total = f"log p {float(step.extended.sum_log_probs[child]):.4f}"
        if bool(step.finished[child]):
            fate = f"ends, {total}"
        elif bool(step.ended[child]):
            fate = f"is as long as it may be, {total}"
        elif bool(step.kept[child]):
            fate = f"goes on, {total}"
        else:
            fate = "falls: it cannot become better than what has ended"
        fates[int(step.next_tokens.ids[child])] = fate
    return fates
