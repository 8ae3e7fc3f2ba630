"""Shots: solved examples before a prompt, drawn by seed (Brown et al. 2020, section 2.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import final

import numpy as np

from seqloom.errors import UsageError, counted
from seqloom.tasks.prompting.template import RenderedRow


@final
class ShotPool:
    """Examples that shots are drawn from."""

    def __init__(self, examples: Sequence[RenderedRow], shots: int, *, balanced: bool) -> None:
        """Raises UsageError if there are too few of them."""
        self.examples, self.shots, self.balanced = list(examples), shots, balanced
        if len({_content(example) for example in examples}) <= shots:
            raise UsageError(
                f"--examples must hold more than {counted(shots, 'example')} that differ, for an item is"
                f" never among its own shots, but {counted(len(self.examples), 'example')} can be used"
            )
        if balanced and any(example.label is None for example in examples):
            raise UsageError(
                "--balanced needs a label in each example, but the rows have no `label`; name it with --field"
                " label=COLUMN"
            )

    def draw(self, seed: int) -> list[RenderedRow]:
        """All examples, repeated ones once, in the order in which they are drawn: the first are the shots,
        the next one takes the place of an item that is tested. Balanced: a label after the other."""
        random = np.random.default_rng((seed, 0))
        by_content: dict[str, RenderedRow] = {}
        for index in random.permutation(len(self.examples)):
            by_content.setdefault(_content(self.examples[index]), self.examples[index])
        drawn = list(by_content.values())
        if not self.balanced:
            return drawn
        by_label: dict[str | None, list[RenderedRow]] = {}
        for shot in drawn:
            by_label.setdefault(shot.label, []).append(shot)
        turns = zip_longest(*by_label.values())
        return [shot for shot in chain.from_iterable(turns) if shot is not None]

    def of(
        self, item: RenderedRow, drawn: Sequence[RenderedRow], seed: int, order: int
    ) -> list[RenderedRow]:
        """The shots of an item in one of their orders, all of which differ; order 0 is that of the draw.
        None of them has the prompt of the item, wherever both come from."""
        tested = _content(item)
        found = [shot for shot in drawn[: self.shots + 1] if _content(shot) != tested][: self.shots]
        return [found[index] for index in _orders(seed, len(found), order)[order]]


@cache
def _orders(seed: int, count: int, last: int) -> list[tuple[int, ...]]:
    """Orders 0 to `last` of so many shots, by seed; no two are the same."""
    found = dict.fromkeys([tuple(range(count))])
    random = np.random.default_rng((seed, 1))
    while len(found) <= last:
        found[tuple(random.permutation(count).tolist())] = None
    return list(found)


def _content(row: RenderedRow) -> str:
    """What makes two rows the same item: the prompt, whatever its white space."""
    return " ".join(row.prompt.split())


def label_counts(shots: Sequence[RenderedRow]) -> dict[str, int]:
    """How many shots there are of each label, or of each answer where there is no label."""
    counts = Counter(shot.label or (shot.targets or ("",))[0] for shot in shots)
    return dict(counts.most_common(20))


def joined(shots: Sequence[RenderedRow], prompt: str, separator: str, between: str) -> str:
    """The shots with their answers, and the prompt after them."""
    solved = [shot.prompt + separator + shot.targets[0] for shot in shots]
    return between.join([*solved, prompt])
