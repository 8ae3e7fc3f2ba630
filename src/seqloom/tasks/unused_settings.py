"""Settings that change nothing in a run because of its other settings, whatever the task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields

from seqloom.config import DataConfig, RunConfig, TrainConfig
from seqloom.data.formats.form_settings import unread_by
from seqloom.models import model_family
from seqloom.models.config_checks import unused_fields
from seqloom.protocols import FittedModel, Task
from seqloom.runs.decoding_options import idle_decoding
from seqloom.runs.new_model import model_config
from seqloom.runs.quantised_weights import COMPILED
from seqloom.runs.settings import model_fields
from seqloom.tasks.setting_names import FITTED
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizers import WORD_TOKENIZERS

SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 1


def unused_with_others(run: RunConfig) -> dict[str, str]:
    """Setting -> why it changes nothing in this run, as a sentence."""
    reasons = {}
    if run.train.max_steps is not None:
        for name in ("epochs", "min_steps"):
            reasons[f"train.{name}"] = (
                f"train.{name} changes nothing where train.max_steps says how long the training is"
            )
    if run.train.batch_rows is not None:
        reasons["train.batch_tokens"] = (
            "train.batch_tokens changes nothing where train.batch_rows is a fixed number of rows"
        )
    reasons |= _unused_of_prompts(run)
    if run.model.get("from") is not None:
        reasons["train.word_vectors"] = (
            "train.word_vectors changes nothing with --from, whose model has embeddings of its own"
        )
    elif run.data.tokenizer not in WORD_TOKENIZERS:
        reasons["train.word_vectors"] = (
            f"train.word_vectors has vectors of words, which data.tokenizer={run.data.tokenizer} does not cut"
            " a text into, as data.tokenizer=words does"
        )
    if run.train.lora_rank is None:
        for name in ("lora_alpha", "lora_targets"):
            reasons[f"train.{name}"] = f"train.{name} changes nothing without train.lora_rank"
    elif run.model.get("from") is None:
        reasons["train.lora_rank"] = (
            "train.lora_rank needs --from: it freezes the weights that a model starts from, and random ones"
            " are of no use"
        )
    family = str(run.model["name"])
    if family not in COMPILED:
        for name in ("decode.engine", "decode.weights"):
            reasons[name] = f"{name} needs a model with a compiled step, {' or '.join(COMPILED)}"
    if issubclass(model_family(family)[1], FittedModel):
        for field in fields(TrainConfig):
            name = f"train.{field.name}"
            if name not in FITTED:
                reasons[name] = (
                    f"{name} changes nothing for {family}, which is estimated without gradients"
                )
    return reasons | idle_decoding(run.decode)


def _unused_of_prompts(run: RunConfig) -> dict[str, str]:
    if run.train.prompt_length is None:
        return {
            "train.prompt_text": "train.prompt_text changes nothing without train.prompt_length"
        }
    if run.model.get("from") is None:
        return {
            "train.prompt_length": "train.prompt_length trains vectors before the input of a trained model,"
            " which --from names, and there is none"
        }
    frozen = ("train.freeze", "train.layer_decay", "train.weight_decay", "train.lora_rank")
    return {
        name: f"{name} changes nothing where train.prompt_length freezes the model"
        for name in (*frozen, "data.add_tokens")
    }


def unused_by_forms(
    task: Task, data: DataConfig, paths: Sequence[str], given: Collection[str]
) -> dict[str, str]:
    """Setting of reading -> why it changes nothing for these files, as a sentence; of those that are `given`
    and not their default. Raises UsageError or DataError if nothing says in which form the files are."""
    plain = vars(DataConfig())
    of_forms = {
        name
        for name in unread_by(()).intersection(given)
        if f"data.{name}" in task.settings and vars(data)[name] != plain[name]
    }
    if task.forms is None or not paths or not of_forms:
        return {}
    forms = task.forms(paths, data)
    unread = of_forms & unread_by(forms)
    # It joins the columns of any table.
    if any("," in (name or "") for name in (data.text, data.second, data.source, data.target)):
        unread.discard("join")
    named = " and ".join(sorted(forms))
    return {
        f"data.{name}": f"data.{name} changes nothing for files in the form {named}"
        for name in unread
    }


def unused_model_fields(task: Task, run: RunConfig) -> dict[str, str]:
    """Field of the model -> why it changes nothing in this run, as a sentence."""
    family = str(run.model["name"])
    given, fixed = model_fields(run.model), task.fixed_fields.get(family, {})
    reasons = {}
    for name, value in fixed.items():
        if name in given and given[name] != value:
            reasons[name] = (
                f"model.{name} changes nothing for {task.name}, where it is {_shown(value)}"
            )
    for setting, reason in task.unused(run).items():
        section, _, name = setting.partition(".")
        if section == "model":
            reasons[name] = reason
    # how large the vocabulary is shows when it is learnt, and what must fit it is checked again then
    config = model_config(family, run.model["size"], SMALLEST_VOCABULARY, {**given, **fixed})
    for name, needed in unused_fields(config).items():
        reasons.setdefault(name, f"model.{name} changes nothing here: it needs {needed}")
    return reasons


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
