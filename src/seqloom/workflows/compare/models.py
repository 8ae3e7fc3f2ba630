"""Which models are compared, as one word each.

bag_of_words                            a family, its default size
recurrent:tiny+cell=gru+layers=2        a size, and settings of the model
bert+head.pooling=mean                  a setting of another part of a run
minilm=FOLDER+train.layer_decay=0.9     a checkpoint to be fine-tuned, and what it is called
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from seqloom.config import SECTIONS, TrainConfig
from seqloom.errors import UsageError, printable
from seqloom.run_file import apply_settings
from seqloom.runs.settings import BROUGHT
from seqloom.tasks.registry import FINE_TUNING, RATES, task_named

MIDDLES = {**RATES, "bert": 3e-4, "gpt": 3e-4, "t5": 3e-4, "transformer": 3e-4}
"""family -> where its learning rates are looked for when it is trained from scratch; the others: at
train.learning_rate's default."""
FACTOR = 3.0
"""Between two learning rates of a grid."""
OURS = (
    "train.seed",
    "train.max_steps",
    "train.epochs",
    "train.threads",
    "data.train",
    "data.validation",
    "model.name",
    "model.size",
)
"""Settings that no model may have for itself: they are the same for all, or said by other words."""


OWN_DATA = (
    "data.tokenizer",
    "data.vocabulary",
    "data.learn_from",
    "data.normalisation",
    "data.max_length",
    "data.stride",
)
"""What a model may have for itself of how data are read: not what the labels are, so that all do the same
task."""
NOT_FOR_A_CHECKPOINT = ("model.", *(f"data.{name}=" for name in (*BROUGHT, "learn_from")))
"""Beginnings of settings that say nothing to a checkpoint."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model of the comparison."""

    name: str
    """As it is shown."""
    model: str | None
    """NAME or NAME:SIZE; None of a checkpoint."""
    start: str | None
    """The folder of a checkpoint."""
    settings: tuple[str, ...] = ()
    """key=value, changes of the settings of all."""

    @property
    def slug(self) -> str:
        """Its part in the names of folders."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.name).strip("-.") or "model"

    @property
    def family(self) -> str | None:
        return None if self.model is None else self.model.partition(":")[0]


def read_entries(words: str, task: str) -> list[ModelEntry]:
    """The models that a user names, with commas between. Raises UsageError for what is none, or comes twice."""
    entries = [_entry(word.strip(), task) for word in _between_commas(words) if word.strip()]
    if len(entries) < 2:
        raise UsageError(
            f"--models must name at least two models with commas between, but is {printable(repr(words))}"
        )
    seen: dict[str, ModelEntry] = {}
    for entry in entries:
        if (other := seen.setdefault(entry.slug.casefold(), entry)) is not entry:
            raise UsageError(
                f"--models must name each model once, but {printable(other.name)} and {printable(entry.name)}"
                " would have one folder; change one of them"
            )
    return entries


def _between_commas(words: str) -> list[str]:
    """Split at the commas that stand in no brackets: model.windows=[3,4,5] is one word."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _entry(word: str, task: str) -> ModelEntry:
    first, *rest = word.split("+")
    settings = tuple(_setting(one, word) for one in rest)
    name, equals, folder = first.partition("=")
    if equals:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not folder:
            raise UsageError(
                "a checkpoint of --models must be NAME=FOLDER, NAME of letters, digits, . _ and -, but is"
                f" {printable(repr(first))}"
            )
        return ModelEntry(name=name, model=None, start=folder, settings=settings)
    known = task_named(task).models
    if first.partition(":")[0] not in known:
        raise UsageError(
            f"--models must name families that can do {task} ({', '.join(known)}), such as"
            f" {known[0]}:small+width=64, or NAME=FOLDER for a checkpoint, but {printable(repr(word))} is"
            " none"
        )
    return ModelEntry(name=word, model=first, start=None, settings=settings)


def _setting(words: str, where: str) -> str:
    """One of the model where no other part of a run is named. Raises UsageError for one that is not a model's
    own."""
    key, equals, value = (part.strip() for part in words.partition("="))
    if not equals:
        raise UsageError(
            f"after + a model of --models must have key=value such as width=64, but {printable(repr(where))}"
            f" has {printable(repr(words))}"
        )
    key = key if key.partition(".")[0] in (*SECTIONS, "model") and "." in key else f"model.{key}"
    if key in OURS or (key.startswith("data.") and key not in OWN_DATA):
        raise UsageError(
            f"{key} cannot be set for one model of --models, but {printable(repr(where))} does; leave it out"
        )
    return f"{key}={value}"


def set_value(settings: Sequence[str], key: str) -> Any:
    """The value that settings give a dotted key; None where none does."""
    section, _, name = key.partition(".")
    return apply_settings({}, list(settings)).get(section, {}).get(name)


def settings_of(entry: ModelEntry, common: Sequence[str]) -> list[str]:
    """Of all models and this one's own; a checkpoint brings its own model and tokenizer."""
    own = [
        one
        for one in common
        if entry.start is None or not one.strip().replace("-", "_").startswith(NOT_FOR_A_CHECKPOINT)
    ]
    return [*own, *entry.settings]


def learning_rates(entry: ModelEntry, task: str, common: Sequence[str], count: int) -> list[float]:
    """`count` (odd) rates, FACTOR apart, around the one that is set, or that its family or a fine-tuning
    begins with."""
    given = set_value(settings_of(entry, common), "train.learning_rate")
    default = task_named(task).train.get("learning_rate", TrainConfig().learning_rate)
    usual = (
        FINE_TUNING["learning_rate"] if entry.start is not None else MIDDLES.get(entry.family or "", default)
    )
    middle = float(given) if isinstance(given, int | float) else usual
    return [float(f"{middle * FACTOR**step:.3g}") for step in range(-(count // 2), count // 2 + 1)]
