"""Every step of a search as text: the candidates of each row, which of them go on, and why the others fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.decoding.live_rows import Step
from seqloom.decoding.rules import Rule, most_likely
from seqloom.decoding.strategies import Sample, Strategy

SHOWN = 8
"""Candidates of a row, at least, the most likely ones."""


@final
class Trace:
    """Looks on while one input is decoded (`watch` of `generate`) and writes what it sees, a line at a time.

    `pieces` says what ids spell; `strategy` and `rules` are those of the search, to tell why a candidate was
    not taken.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        pieces: Callable[[Sequence[int]], list[str]],
        strategy: Strategy,
        rules: Sequence[Rule],
    ) -> None:
        self._write = write
        self._pieces = pieces
        self._strategy = strategy
        self._rules = rules

    def __call__(self, step: Step) -> None:
        new, text = step.live.new.tolist(), step.live.text.tolist()
        self._write(f"step {max(new, default=0) + 1}: {_counted(len(new), 'row')}")
        after = self._after_each_rule(step)
        for row in range(len(new)):
            tokens = text[row][len(text[row]) - new[row] :]
            begun = "".join(self._pieces(tokens)) if tokens else ""
            self._write(f"  {begun!r}  log p {float(step.live.total[row]):.4f}")
            for line in self._candidates(step, row, after):
                self._write(f"    {line}")

    def _after_each_rule(self, step: Step) -> list[tuple[str, Tensor]]:
        left, found = step.log_probs, []
        for rule in self._rules:
            left = rule(step.live, left)
            found.append((rule.__qualname__.partition(".")[0], left))
        return found

    def _candidates(self, step: Step, row: int, after: list[tuple[str, Tensor]]) -> Iterator[str]:
        fates = _fates(step, row)
        shown = min(SHOWN, step.log_probs.shape[1])
        likely = torch.cat(
            [most_likely(part[row : row + 1], shown)[1][0] for part in (step.log_probs, step.allowed)]
        ).tolist()
        ids = sorted(
            {*likely, *fates}, key=lambda i: (-float(step.allowed[row, i]), -float(step.log_probs[row, i]), i)
        )
        for i, piece in zip(ids, self._pieces(ids), strict=True):
            model, left = float(step.log_probs[row, i]), float(step.allowed[row, i])
            if model == left == float("-inf"):
                continue
            changed = "" if model == left or left == float("-inf") else f" (ruled to {left:.4f})"
            if left == float("-inf"):
                fate = "ruled out by " + next(name for name, part in after if float(part[row, i]) == left)
            else:
                fate = fates.get(i) or (
                    "is not drawn" if isinstance(self._strategy, Sample) else _fall(step, row, left)
                )
            yield f"{piece!r:<16} {model:9.4f}{changed}  {fate}"


def _fates(step: Step, row: int) -> dict[int, str]:
    """What became of the chosen children of a row, by their ids."""
    parents = range(len(step.chosen.ids)) if step.chosen.parents is None else step.chosen.parents.tolist()
    fates = {}
    for child, (parent, i) in enumerate(zip(parents, step.chosen.ids.tolist(), strict=True)):
        if parent != row:
            continue
        if bool(step.over[child]):
            how = "ends" if bool(step.finished[child]) else "is as long as it may be"
            fates[i] = f"{how}, log p {float(step.going.total[child]):.4f}"
        elif bool(step.kept[child]):
            fates[i] = f"goes on, log p {float(step.going.total[child]):.4f}"
        else:
            fates[i] = "falls: it cannot become better than what has ended"
    return fates


def _fall(step: Step, row: int, log_prob: float) -> str:
    """Why a candidate of a beam that was possible was not taken."""
    live, chosen = step.live, step.chosen
    parents = torch.arange(len(chosen.ids)) if chosen.parents is None else chosen.parents
    rivals = (live.owner[parents] == live.owner[row]) & (live.sample[parents] == live.sample[row])
    total = float(live.total[row]) + log_prob
    if not bool(rivals.any()):
        return "falls: its beam is full of what has ended"
    worst = float(chosen.totals[rivals].min())
    if total > worst:
        return f"falls: log p {total:.4f}, but groups before this one took the token"
    return f"falls: log p {total:.4f}, the last that is taken has {worst:.4f}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
