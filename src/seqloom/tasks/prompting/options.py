"""What a user asks of prompts. Imports no torch, so that the help of the command line is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

from seqloom.errors import UsageError, counted, printable

SCORES = ("raw", "token", "byte", "pmi", "calibrated")
"""How answers are ranked by likelihood."""
DEFAULT_SCORES, DEFAULT_SEPARATOR = ",".join(SCORES), " "
MOST_SHOTS = 1000


@final
@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Options of prompt."""

    template: str
    """A YAML file of templates in promptsource's form, or one of ours: sentiment, topic, entailment,
    paraphrase, choice, question."""
    name: str | None = None
    """Which template of the file, by its name or id."""
    field: tuple[str, ...] = ()
    """NAME=COLUMN, for a template that has another name for a column; or NAME=an expression of Jinja over
    the columns, such as label=label-1. May be given again."""
    labels: str | None = None
    """The labels of the data in the order of the template's numbers: entailment,neutral,contradiction. Or
    with names for them: 1=World,2=Sports."""
    shots: int = 0
    """Solved examples before each prompt."""
    examples: tuple[str, ...] = ()
    """Files that the shots are drawn from."""
    seeds: str = "0"
    """Seeds of the draw, such as 0,1,2; all are measured."""
    orders: int = 1
    """Orders of the shots for each seed; all are measured."""
    balanced: bool = False
    """Draw as many shots of each label as of every other, give or take one."""
    scores: str = DEFAULT_SCORES
    """How the likeliest answer is chosen: by log p (raw), a token, a byte, against the empty prompt (pmi), or
    against a prompt without content (calibrated). The first is drawn and counted."""
    generate: bool = False
    """Write the answer instead, and compare it with the right one. Always so without answer choices."""
    separator: str = DEFAULT_SEPARATOR
    """What stands between a prompt and its answer. It belongs to the answer."""
    between: str = "\\n\\n"
    """What stands between shots; \\n is a line break."""
    too_long: Literal["error", "cut"] = "error"
    """Prompts that are longer than the context of the model. cut: at the left, and counted."""
    limit: int | None = None
    """The first so many rows only."""
    outputs: str | None = None
    """A new .jsonl file: each prompt, its answers, their scores, which was chosen, which is right."""
    plot: str | None = None
    """A new picture (.png, .svg, .html) of the accuracy by order of the shots, or by seed."""

    def checked_scores(self) -> tuple[str, ...]:
        """The kinds of scores. Raises UsageError for one that there is not."""
        kinds = tuple(kind.strip() for kind in self.scores.split(","))
        if not set(kinds) <= set(SCORES) or len(set(kinds)) < len(kinds):
            raise UsageError(
                f"--scores must be some of {','.join(SCORES)}, each once, but is {printable(self.scores)!r}"
            )
        return kinds

    def seed_numbers(self) -> list[int]:
        """Raises UsageError if they are not different whole numbers."""
        words = [word.strip() for word in self.seeds.split(",")]
        if not all(word.isdecimal() and len(word) < 16 for word in words) or len(set(words)) < len(
            words
        ):
            raise UsageError(
                f"--seeds must be different whole numbers with commas between, such as 0,1,2, but is"
                f" {printable(self.seeds)!r}"
            )
        return [int(word) for word in words]

    def fields(self) -> dict[str, str]:
        """NAME -> column or expression. Raises UsageError."""
        found: dict[str, str] = {}
        for text in self.field:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not name.isidentifier() or not value or name in found:
                raise UsageError(
                    "--field must be NAME=COLUMN or NAME=EXPRESSION, each name once, but is"
                    f" {printable(text)!r}"
                )
            found[name] = value
        return found

    def label_names(self) -> dict[str, str] | None:
        """Label as it is written -> its name, in the order of their numbers. Raises UsageError."""
        if self.labels is None:
            return None
        pairs = [part.partition("=") for part in self.labels.split(",")]
        found = {
            label.strip(): (name if equals else label).strip() for label, equals, name in pairs
        }
        if len(found) < len(pairs) or len({*found.values()}) < len(found) or "" in found:
            raise UsageError(
                "--labels must be the labels with commas between, each once, such as no,yes or 0=no,1=yes,"
                f" but is {printable(self.labels)!r}"
            )
        return found

    def check(self) -> None:
        """Raises UsageError for what cannot be, or would change nothing."""
        self.checked_scores()
        seeds = self.seed_numbers()
        if not 0 <= self.shots <= MOST_SHOTS:
            raise UsageError(f"--shots must be from 0 to {MOST_SHOTS}, but is {self.shots}")
        if not 1 <= self.orders <= 1000:
            raise UsageError(f"--orders must be from 1 to 1000, but is {self.orders}")
        # of 7 shots there are more orders than may be asked for
        if self.shots and self.orders > math.factorial(min(self.shots, 7)):
            most = math.factorial(self.shots)
            raise UsageError(
                f"{counted(self.shots, 'shot')} can have {most} orders, so --orders must not be {self.orders}"
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit must be at least 1, but is {self.limit}")
        given = {
            "--examples": bool(self.examples),
            "--seeds": seeds != [0],
            "--orders": self.orders != 1,
            "--balanced": self.balanced,
            "--between": self.between != "\\n\\n",
            "--plot": self.plot is not None,
        }
        idle = [name for name, is_given in given.items() if is_given]
        if not self.shots and idle:
            raise UsageError(
                f"{idle[0]} changes nothing without shots; leave it out, or add --shots"
            )
        if self.plot is not None and self.orders * len(seeds) == 1:
            raise UsageError(
                "--plot shows several runs, but there is one; add --orders 10, or --seeds 0,1,2"
            )
        if self.shots and not self.examples:
            raise UsageError("--shots are drawn from --examples FILE, but none is named")
