"""What is compared, and with which budget. The plan is written down before the work begins, so that a
comparison is continued as it was started, or not at all.

A model is one word:

bag_of_words                            a family, its default size
recurrent:tiny+cell=gru+layers=2        a size, and settings of the model
bert+head.pooling=mean                  a setting of another part of a run
recurrent+width={32,64}+cell={gru,lstm} a grid: each of the four
minilm=FOLDER+train.layer_decay=0.9     a checkpoint to fine-tune, and its name in the comparison
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from seqloom import files, manifest
from seqloom.config import SECTIONS, DataConfig, RunConfig, TrainConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.readers.records import data_files
from seqloom.errors import UsageError, printable
from seqloom.evaluation.corpus_scores import LOWER_IS_BETTER
from seqloom.familiar_names import familiar_model
from seqloom.json_values import is_number
from seqloom.models import families_for, model_family
from seqloom.protocols import FittedModel
from seqloom.registry import find_task, task_to_train
from seqloom.run_file import apply_settings, parse, to_plain
from seqloom.runs.settings import absolute
from seqloom.tasks.setting_names import FITTED
from seqloom.tasks.settings import FROM_CHECKPOINT
from seqloom.tasks.text.training_data import expand_folders

PLAN = "plan.json"
MATCHES = ("steps", "time", "parameters")
CHECKPOINT_MARK = " from "
CHANGEABLE = {"threads", "test"}
"""What may differ when a comparison is continued: neither changes what is trained."""

GRID_CENTRES = {"bert": 3e-4, "gpt": 3e-4, "t5": 3e-4, "transformer": 3e-4}
"""family -> the middle of its grid of learning rates when trained from scratch; of other families it is the
default of the task."""
GRID_FACTOR = 3.0
"""Between neighbouring learning rates."""

SHARED_SETTINGS = (
    "train.seed",
    "train.max_steps",
    "train.epochs",
    "train.threads",
    "data.train",
    "data.validation",
    "model.name",
    "model.size",
)
"""Settings that no single model may have: they are the same for all, or set in another way."""
OWN_DATA_SETTINGS = (
    "data.tokenizer",
    "data.vocabulary",
    "data.learn_from",
    "data.normalisation",
    "data.max_length",
    "data.stride",
)
"""Settings of data that a single model may have. They leave the labels alone, so all models do the same
task."""
NOT_FOR_CHECKPOINTS = ("model.", *(f"data.{name}=" for name in (*FROM_CHECKPOINT, "learn_from")))
"""How settings begin that a checkpoint cannot follow: it comes with its own model and tokenizer."""


@final
@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What the user asks for."""

    task: str
    data: Sequence[str]
    models: str = ""
    """Models as words (see the module), separated by commas."""
    output_dir: str | Path
    validation: Sequence[str] = ()
    test: Sequence[str] = ()
    settings: Sequence[str] = ()
    """key=value, for all models."""
    seeds: int = 3
    match: str = "steps"
    parameters: int | None = None
    seconds: float | None = None
    grid: int = 3
    processes: int = 1
    """Trainings at the same time; they change no result."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model of the comparison."""

    name: str
    """As it is shown."""
    model: str | None
    """NAME or NAME:SIZE; None of a checkpoint."""
    checkpoint: str | None
    """Its folder."""
    settings: tuple[str, ...] = ()
    """key=value, of this model alone."""

    @property
    def fitted(self) -> bool:
        """Whether it is estimated without gradients, and has no steps and no learning rate."""
        family = (self.model or "").partition(":")[0]
        return bool(family) and issubclass(model_family(family)[1], FittedModel)

    @property
    def slug(self) -> str:
        """Its part in the names of folders."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", self.name).strip("-.") or "model"

    @property
    def identity(self) -> str:
        """Says everything that makes this model another one."""
        if self.checkpoint is None:
            return self.name
        return self.name + CHECKPOINT_MARK + "+".join((absolute(self.checkpoint), *self.settings))


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison, as plan.json has it."""

    task: str
    data: tuple[str, ...]
    validation: tuple[str, ...]
    """Empty: a part of the data is split off, the same for all."""
    test: tuple[str, ...]
    """Empty: models are measured on the validation part."""
    models: tuple[str, ...]
    """Their names; of checkpoints the folder and the settings too."""
    settings: tuple[str, ...]
    seeds: int
    match: str
    """One of MATCHES: what is the same for all models."""
    parameters: int | None
    """Of every model; None: as many as the first has."""
    seconds: float | None
    """Of every training; None: as many as the first model takes."""
    grid: int
    """Learning rates tried for each model."""
    steps: int | None
    """Of each training; None: those of the first model's epochs."""
    metric: str
    """The score of the leaderboard; on the validation part it also chooses learning rates and checkpoints."""
    threads: int
    files: tuple[dict[str, object], ...]
    """Name, size and SHA-256 of each data and validation file."""

    @property
    def score(self) -> str:
        """What models are ranked by: the metric, but of a loss the score of the task, if it has one."""
        task = find_task(self.task)
        own = task.score if task is not None else ""
        return own if own and self.metric == "loss" else self.metric

    @property
    def higher_is_better(self) -> bool:
        return self.score not in LOWER_IS_BETTER

    @property
    def names(self) -> list[str]:
        """Of the models."""
        return [model.partition(CHECKPOINT_MARK)[0] for model in self.models]

    @property
    def measured_on(self) -> str:
        return "test" if self.test else "validation"


class TrainingChoice(NamedTuple):
    """What the short runs decided for a model."""

    steps: int
    learning_rate: float
    fields: dict[str, int]
    """Of the model, where its width was solved for."""
    pace: float
    """Seconds a step."""


def read_entries(words: str, task: str) -> list[ModelEntry]:
    """The models that a user names, separated by commas. Raises UsageError for a word that names none, and
    for models that cannot be told apart."""
    entries = []
    for part in _split_at_commas(words):
        if part.strip():
            entries += [_entry(word, task) for word in _each_of_braces(part.strip())]
    if len(entries) < 2:
        raise UsageError(
            f"--models must name at least two models with commas between, but is {printable(repr(words))}"
        )
    seen: dict[str, ModelEntry] = {}
    for entry in entries:
        other = seen.setdefault(entry.slug.casefold(), entry)
        if other is not entry:
            raise UsageError(
                f"--models must name each model once, but {printable(other.name)} and {printable(entry.name)}"
                " would have one folder; change one of them"
            )
    return entries


def _split_at_commas(words: str) -> list[str]:
    """Commas inside brackets do not count: model.windows=[3,4,5] is one word."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _each_of_braces(word: str) -> list[str]:
    """A grid of settings: gru+width={32,64}+layers={1,2} is four words."""
    choices = [part.split(",") for part in re.findall(r"\{([^{}]*)\}", word)]
    between = re.split(r"\{[^{}]*\}", word)
    found = []
    for chosen in itertools.product(*choices):
        pairs = zip(between, (*chosen, ""), strict=True)
        found.append("".join(text + value.strip() for text, value in pairs))
    return found


def _entry(word: str, task: str) -> ModelEntry:
    """MODEL or NAME=MODEL, or NAME=FOLDER for a checkpoint; each with its own settings."""
    first, *rest = word.split("+")
    settings = tuple(_own_setting(setting, word) for setting in rest)
    name, equals, model = first.partition("=")
    if not equals:
        name, model = word, first
    elif not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not model:
        raise UsageError(
            "a name of --models must be NAME=MODEL, or NAME=FOLDER for a checkpoint, NAME of letters, digits,"
            f" . _ and -, but is {printable(repr(first))}"
        )
    families = families_for(task_to_train(task))
    given, colon, size = model.partition(":")
    family, fields = familiar_model(given, families)
    if equals and (family not in families or Path(model).is_dir()):
        return ModelEntry(name=name, model=None, checkpoint=model, settings=settings)
    if family not in families:
        raise UsageError(
            f"--models must name families that can do {task} ({', '.join(families)}), such as"
            f" {families[0]}:small+width=64, or NAME=FOLDER for a checkpoint, but {printable(repr(word))} is"
            " none"
        )
    settings += tuple(f"model.{key}={value}" for key, value in fields.items())
    return ModelEntry(name=name, model=f"{family}{colon}{size}", checkpoint=None, settings=settings)


def _own_setting(setting: str, word: str) -> str:
    """A setting of one model. It is of `model.` unless it names another section. Raises UsageError for one
    that all models must share."""
    key, equals, value = (part.strip() for part in setting.partition("="))
    if not equals:
        raise UsageError(
            f"after + a model of --models must have key=value such as width=64, but {printable(repr(word))}"
            f" has {printable(repr(setting))}"
        )
    section, dot, _ = key.partition(".")
    if not dot or section not in (*SECTIONS, "model"):
        key = f"model.{key}"
    if key in SHARED_SETTINGS or (key.startswith("data.") and key not in OWN_DATA_SETTINGS):
        raise UsageError(
            f"{key} cannot be set for one model of --models, but {printable(repr(word))} does; leave it out"
        )
    return f"{key}={value}"


def set_value(settings: Sequence[str], key: str) -> Any:
    """The value that settings give a dotted key; None if none does."""
    section, _, name = key.partition(".")
    return apply_settings({}, list(settings)).get(section, {}).get(name)


def settings_of(entry: ModelEntry, common: Sequence[str]) -> list[str]:
    """The settings of all models, as far as this one can follow them, then its own."""
    if entry.fitted:
        common = [s for s in common if not s.strip().startswith("train.") or _key(s) in FITTED]
    if entry.checkpoint is not None:
        common = [
            s for s in common if not s.strip().replace("-", "_").startswith(NOT_FOR_CHECKPOINTS)
        ]
    return [*common, *entry.settings]


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip().replace("-", "_")


def learning_rates(entry: ModelEntry, task: str, common: Sequence[str], count: int) -> list[float]:
    """`count` (odd) rates, a factor GRID_FACTOR apart, around the one that is set, or the usual one of its
    family or of fine-tuning."""
    middle = set_value(settings_of(entry, common), "train.learning_rate")
    if not is_number(middle):
        family = (entry.model or "").partition(":")[0]
        model = {"name": family} if entry.checkpoint is None else {"from": entry.checkpoint}
        train = task_to_train(task).defaults({"model": model}).get("train", {})
        default = train.get("learning_rate", TrainConfig().learning_rate)
        middle = GRID_CENTRES.get(family, default)
    half = count // 2
    return [float(f"{middle * GRID_FACTOR**step:.3g}") for step in range(-half, half + 1)]


def check_budget(config: CompareConfig, entries: Sequence[ModelEntry]) -> None:
    """Raises UsageError if the budget is impossible."""
    match, seeds, grid = config.match, config.seeds, config.grid
    if match not in MATCHES:
        raise UsageError(
            f"--match must be one of {', '.join(MATCHES)}, but is {printable(repr(match))}"
        )
    amounts = {"parameters": (config.parameters, "parameters"), "seconds": (config.seconds, "time")}
    for name, (amount, needed) in amounts.items():
        if amount is not None and match != needed:
            raise UsageError(f"--{name} must go with --match {needed}, but that is {match}")
        if amount is not None and amount <= 0:
            raise UsageError(f"--{name} must be above 0, but is {amount:g}")
    if config.processes < 1:
        raise UsageError(f"--processes must be at least 1, but is {config.processes}")
    if seeds < 1 or grid < 1 or grid % 2 == 0:
        raise UsageError(
            f"--seeds must be at least 1 and --grid an odd number such as 3, but they are {seeds} and {grid}"
        )
    if set_value(config.settings, "train.seed") is not None:
        raise UsageError("train.seed cannot be set here: --seeds N takes the seeds 0 to N-1")
    if grid == 1 and (match != "steps" or set_value(config.settings, "train.max_steps") is None):
        raise UsageError(
            "--grid 1 tries nothing out, so it needs --match steps and --set train.max_steps=N"
        )
    task = task_to_train(config.task)
    if task.score and not (config.validation or config.test):
        raise UsageError(
            f"models of {config.task} are compared on files that none is trained on: name them after --test"
            " or --validation"
        )
    if task.score and match == "parameters":
        raise UsageError(
            f"--match parameters is for tasks of an encoder with a head, but the task is {config.task};"
            " choose --match steps or time"
        )
    if match == "parameters" and config.parameters is None and entries[0].checkpoint is not None:
        raise UsageError(
            "--match parameters goes by the first model, which is a checkpoint; put another first, or add"
            " --parameters N"
        )
    if match == "parameters" and all(entry.checkpoint is not None for entry in entries):
        raise UsageError(
            "--match parameters changes widths, but all models are checkpoints; choose --match steps or time"
        )


def make_plan(
    config: CompareConfig, entries: Sequence[ModelEntry], runs: Sequence[RunConfig]
) -> ComparisonPlan:
    """The plan for `entries`, whose run configurations are `runs`. Raises UsageError if they do not go
    together, DataError if a file is missing."""
    metrics = sorted({run.train.best for run in runs})
    if len(metrics) > 1:
        raise UsageError(
            f"train.best must be the same for all models, but they have {' and '.join(metrics)}; set it for"
            " all with --set"
        )
    data, validation, test = (
        named_files(config.task, paths, runs[0].data)
        for paths in (config.data, config.validation, config.test)
    )
    fingerprints(test)  # a missing test file is an error now, not after the training
    trained = [run for run, entry in zip(runs, entries, strict=True) if not entry.fitted]
    train = (trained or list(runs))[0].train
    return ComparisonPlan(
        task=config.task,
        data=data,
        validation=validation,
        test=test,
        models=tuple(entry.identity for entry in entries),
        settings=tuple(config.settings),
        seeds=config.seeds,
        match=config.match,
        parameters=config.parameters,
        seconds=config.seconds,
        grid=config.grid,
        steps=train.max_steps,
        metric=metrics[0],
        threads=train.threads or torch.get_num_threads(),
        files=fingerprints([*data, *validation]),
    )


def named_files(task: str, paths: Sequence[str], data: DataConfig) -> tuple[str, ...]:
    """The absolute paths; of text pairs a prefix stands for two files."""
    places = tuple(map(absolute, paths))
    of_pairs = "data.source" in task_to_train(task).reading
    if of_pairs and len(places) == 1 and not os.path.lexists(places[0]) and places[0] != "-":
        return tuple(data_files(places, data))
    return places


def fingerprints(paths: Sequence[str]) -> tuple[dict[str, object], ...]:
    """Of files, and of all files in folders. Raises DataError for a path that does not exist."""
    if "-" in paths:
        raise UsageError(
            "a comparison reads its data several times, so standard input cannot be compared on; name a file"
        )
    return tuple(fingerprint(path) for path in expand_folders(paths))


def started_plan(folder: Path, plan: ComparisonPlan, threads_given: bool) -> ComparisonPlan:
    """Writes the plan into a new folder; in an earlier comparison's folder, checks that it is the same plan.

    The number of threads stays that of the start unless the user sets another. Raises UsageError for another
    plan.
    """
    path = folder / PLAN
    new = to_plain(plan)
    if not files.is_there(path):
        manifest.write_checked(path, new)
        return plan
    old = manifest.read_checked(path, needed=False)
    fixed = new.keys() - CHANGEABLE | ({"threads"} if threads_given else set())
    changes = [
        "the data have changed"
        if key == "files"
        else f"{key} was {old.get(key)!r} and is {new[key]!r}"
        for key in new
        if key in fixed and old.get(key) != new[key]
    ]
    if changes:
        raise UsageError(
            f"{printable(str(folder))}: a comparison is continued as it was started, but"
            f" {printable(', '.join(changes))[:500]}; name another --output-dir"
        )
    if old.get("test") != new["test"]:
        manifest.write_checked(path, {**old, "test": new["test"]})
    if threads_given:
        return plan
    threads = parse(TrainConfig, {"threads": old.get("threads")}, "train.").threads
    return replace(plan, threads=threads or plan.threads)
