"""What prompts have shown: accuracy with its interval, and how much it depends on the shots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from seqloom.arrays import Bools, Floats
from seqloom.tasks.prompting.choices import Accuracy, Spread, accuracy
from seqloom.tasks.prompting.template import RenderedRow


class Answered(NamedTuple):
    """An item and what a model answered."""

    item: RenderedRow
    prompt: str
    """With its shots."""
    scores: dict[str, Floats]
    """Kind -> the score of each choice; empty if the answer was written."""
    chosen: dict[str, int | None]
    """Kind -> which choice; None for a tie."""
    right: dict[str, bool]
    written: str | None

    def summary(self, seed: int, order: int) -> dict[str, object]:
        """As a line of the file of outputs."""
        place = {
            "file": self.item.row.path,
            "line": self.item.row.line,
            "seed": seed,
            "order": order,
        }
        if self.written is not None:
            answer: dict[str, object] = {"answer": self.written, "targets": list(self.item.targets)}
        else:
            choices = self.item.choices or ()
            answer = {
                "options": list(choices),
                "scores": {kind: _finite(scores) for kind, scores in self.scores.items()},
                "choice": self.chosen,
                "truth": choices.index(self.item.targets[0]),
            }
        return {"prompt": self.prompt, **answer, "right": self.right, **place}


@final
@dataclass(frozen=True, kw_only=True)
class PromptRun:
    """All items answered after the shots of one seed, in one order."""

    seed: int
    order: int
    right: dict[str, Bools]
    """Kind -> whether each item is answered rightly."""
    ties: dict[str, int]
    """Kind -> items whose best answers are equally likely."""
    shots: dict[str, int]
    """Label -> how many shots it has."""
    never_chosen: list[str]
    """Where all items have the same choices: those that the first kind of score never chose."""

    @classmethod
    def of(
        cls,
        seed: int,
        order: int,
        kinds: Sequence[str],
        answered: Sequence[Answered],
        shots: dict[str, int],
    ) -> PromptRun:
        right: dict[str, Bools] = {}
        chosen: dict[str, list[int | None]] = {}
        for kind in kinds:
            right[kind] = np.array([answer.right[kind] for answer in answered])
            chosen[kind] = [answer.chosen[kind] for answer in answered if answer.chosen]
        ties = {kind: indices.count(None) for kind, indices in chosen.items()}
        same = {answer.item.choices for answer in answered}
        never: list[str] = []
        if len(same) == 1 and chosen[kinds[0]]:
            (choices,) = same
            taken = set(chosen[kinds[0]])
            never = [text for index, text in enumerate(choices or ()) if index not in taken]
        return cls(seed=seed, order=order, right=right, ties=ties, shots=shots, never_chosen=never)

    def accuracy(self, kind: str) -> Accuracy:
        return accuracy([self.right[kind]])

    def summary(self) -> dict[str, object]:
        found: dict[str, object] = {"seed": self.seed, "order": self.order}
        for kind in self.right:
            found |= self.accuracy(kind).summary(f"accuracy_{kind}")
            found[f"ties_{kind}"] = self.ties[kind]
        return found | {"shots": self.shots, "never_chosen": self.never_chosen}


@final
@dataclass(frozen=True, kw_only=True)
class PromptResult:
    """A model measured on the same items, once for each seed and order of the shots."""

    template: str
    shots: int
    kinds: tuple[str, ...]
    left_out: int
    """Rows that are no items."""
    runs: list[PromptRun]
    chance: float | None
    """The accuracy of choosing at random, 0 to 100; None if answers are written."""

    @property
    def items(self) -> int:
        return len(self.runs[0].right[self.kinds[0]])

    def accuracy(self, kind: str) -> Accuracy:
        """The mean of all runs."""
        return accuracy([run.right[kind] for run in self.runs])

    def never_chosen(self) -> list[str]:
        """Answers that no run chose."""
        never = set(self.runs[0].never_chosen).intersection(
            *(run.never_chosen for run in self.runs)
        )
        return [name for name in self.runs[0].never_chosen if name in never]

    def seeds(self) -> dict[int, list[PromptRun]]:
        found: dict[int, list[PromptRun]] = {}
        for run in self.runs:
            found.setdefault(run.seed, []).append(run)
        return found

    def _by_seed(self, kind: str) -> list[list[float]]:
        """The accuracy of each order of the shots, for each seed."""
        return [[run.accuracy(kind).value for run in runs] for runs in self.seeds().values()]

    def over_seeds(self, kind: str) -> Spread | None:
        """How the accuracy, the mean over orders, differs between seeds; None if there is one."""
        means = [float(np.mean(values)) for values in self._by_seed(kind)]
        return Spread.of(means) if len(means) > 1 else None

    def over_orders(self, kind: str) -> Spread | None:
        """How the accuracy differs between orders of the same shots: of each seed from its own mean, moved to
        the mean of all. None if there is one order."""
        groups = self._by_seed(kind)
        if len(groups[0]) < 2:
            return None
        spreads = [Spread.of(group) for group in groups]
        mean = float(np.mean([spread.mean for spread in spreads]))
        variance = np.mean([spread.deviation**2 for spread in spreads])
        return Spread(
            mean=mean,
            min=mean + min(spread.min - spread.mean for spread in spreads),
            max=mean + max(spread.max - spread.mean for spread in spreads),
            deviation=float(np.sqrt(variance)),
        )

    def summary(self) -> dict[str, object]:
        """As one JSON object."""
        found: dict[str, object] = {
            "template": self.template,
            "items": self.items,
            "left_out": self.left_out,
            "shots": self.shots,
        }
        if self.chance is not None:
            found["chance"] = self.chance
        for kind in self.kinds:
            found |= self.accuracy(kind).summary(f"accuracy_{kind}")
            found[f"ties_{kind}"] = sum(run.ties[kind] for run in self.runs)
            for name, spread in (
                ("seeds", self.over_seeds(kind)),
                ("orders", self.over_orders(kind)),
            ):
                if spread is not None:
                    found[f"{name}_{kind}"] = vars(spread)
        runs = [run.summary() for run in self.runs]
        return found | {"never_chosen": self.never_chosen(), "runs": runs}


def _finite(scores: Floats) -> list[float | None]:
    """Scores as JSON can hold them: None for infinite ones."""
    return [float(score) if np.isfinite(score) else None for score in scores]


def chance_of(items: Sequence[RenderedRow]) -> float:
    """The accuracy of choosing at random."""
    counts = Counter(len(item.choices or ()) for item in items)
    return 100 * sum(number / choices for choices, number in counts.items()) / len(items)
