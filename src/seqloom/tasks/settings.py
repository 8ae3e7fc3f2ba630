"""What a user asks a training for, as one checked configuration: a run file, arguments, settings,
defaults."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from seqloom.config import SECTIONS, DataConfig, DecodeConfig, RunConfig
from seqloom.errors import UsageError, printable
from seqloom.familiar_names import familiar_model
from seqloom.interop.adapter import is_adapter
from seqloom.interop.hub import is_hub_name
from seqloom.json_values import as_list, as_object, as_text, field_of
from seqloom.models import READS_FOR_HEADS, all_families, families_for, model_family, near_models
from seqloom.models.config_checks import fields_of_tasks
from seqloom.plugins import is_known, names, plugins_used
from seqloom.protocols import FittedModel, Settings, Task
from seqloom.registry import all_tasks, find_task, hub_task, task_to_train
from seqloom.run_file import RunContent, apply_settings, parse, read_run_file, to_plain
from seqloom.runs import run_folder
from seqloom.runs.settings import absolute, model_fields
from seqloom.tasks.model import unread_setting
from seqloom.tasks.unused_settings import unused_by_forms, unused_model_fields, unused_with_others

logger = logging.getLogger(__name__)

FROM_CHECKPOINT = ("tokenizer", "vocabulary", "normalisation", "learn_from")
"""Settings of data that a pretrained model brings along."""


def resolve(
    task: str | None,
    data: Sequence[str],
    output_dir: str | Path | None,
    model: str | None,
    validation: Sequence[str],
    settings: Sequence[str],
    config: str | None,
    start: str | Path | None = None,
) -> RunConfig:
    """The run file, changed by the arguments, changed by the settings; then the defaults of the task. Raises
    UsageError for what cannot be, and for a setting that would change nothing."""
    content: RunContent = read_run_file(config) if config else {}
    content = apply_settings(content, list(settings))
    if task is not None:
        content["task"] = task
    if output_dir is not None:
        content["output_dir"] = str(output_dir)
    _take_paths(content, data, validation, start)
    if model is not None:
        _take_model(content, model)
    if "task" not in content or "output_dir" not in content:
        raise UsageError(
            "a training needs TASK, DATA and --output-dir, or --config with a run file, or --resume DIR"
        )
    run = _checked(content)
    _refuse_named(task_to_train(run.task), settings)
    return run


def _take_model(content: RunContent, model: str) -> None:
    """NAME or NAME:SIZE, where people call a family by its cell too, such as lstm. Raises UsageError if
    that contradicts a setting."""
    given, _, size = model.partition(":")
    task = find_task(str(content.get("task")))
    families = () if task is None else families_for(task)
    name, meant = familiar_model(given, families)
    fields = content.setdefault("model", {})
    for key, value in meant.items():
        if fields.setdefault(key, value) != value:
            raise UsageError(
                f"--model {given} is model.{key}={value}, but --set says model.{key}={fields[key]}; leave"
                " one out"
            )
    if name != given:
        logger.info(
            f"--model {given} is read as {name}"
            + "".join(f" with model.{k}={v}" for k, v in meant.items())
        )
    fields.update({"name": name} | ({"size": size} if size else {}))


def _refuse_named(task: Task, settings: Sequence[str]) -> None:
    """Raises UsageError if a setting is named that the task does not read, be it with its default; a run
    file lists all settings, so only values that are not the default count there."""
    for section, values in apply_settings({}, settings).items():
        for name in values:
            setting = f"{section}.{name}"
            if section in SECTIONS and setting not in task.settings:
                raise UsageError(unread_setting(setting, task.name))


def _take_paths(
    content: RunContent,
    data: Sequence[str],
    validation: Sequence[str],
    start: str | Path | None,
) -> None:
    """Paths become absolute: a run finds its files from wherever it is resumed."""
    section = content.setdefault("data", {})
    sections = [section]
    for key, paths in (("train", data), ("validation", validation)):
        if paths:
            section[key] = list(paths)
    for task in (as_object(content.get("tasks")) or {}).values():
        sections.append(as_object(field_of(task, "data")) or {})
    for data_section in sections:
        for key in ("train", "validation"):
            if (files := as_list(data_section.get(key))) is not None:
                data_section[key] = list(map(absolute, files))
    vectors = as_text(content.get("train", {}).get("word_vectors"))
    if vectors is not None:
        content["train"]["word_vectors"] = absolute(vectors)
    if start is not None:
        place = str(start)
        content.setdefault("model", {})["from"] = place if is_hub_name(place) else absolute(place)


def _checked(content: RunContent) -> RunConfig:
    given = {section: dict(content.get(section, {})) for section in SECTIONS}
    task: Task | None = None
    defaults: Mapping[str, Settings] = {}
    if (name := as_text(content["task"])) is not None:
        task = task_to_train(name)
        defaults = task.defaults(content)
        for section, values in defaults.items():
            content[section] = {**values, **content.get(section, {})}
    run = parse(RunConfig, content)
    task = task or task_to_train(run.task)
    if run.tasks and "tasks" not in task.settings:
        able = ", ".join(known.name for known in all_tasks() if "tasks" in known.settings)
        raise UsageError(f"tasks is for {able}, but the task is {task.name}; leave it out")
    if not run.data.train and not run.tasks:
        raise UsageError(
            "a training needs data: name its files after the task, or data.train in the run file"
        )
    pretrained = run.model.get("from") is not None
    chosen = {"name": task.models[0], "size": "small"} | run.model
    is_known(chosen["name"], all_families())  # loads installed plugins where it is not
    if pretrained:
        chosen = _of_checkpoint(chosen, task, run)
    families = families_for(task)
    if chosen["name"] not in families:
        raise UsageError(
            f"the model of {task.name} must be one of {', '.join(families)}, but is"
            f" {printable(repr(chosen['name']))}{near_models(str(chosen['name']), families)}"
        )
    run = replace(run, model=chosen)
    if pretrained and "decode.beam" in task.settings:
        run = replace(run, decode=_decoding_of_checkpoint(run, given["decode"]))
    run = replace(run, plugins=tuple(plugins_used(to_plain(run))))
    refuse_unread(task, run, given, defaults)
    best = (*task.best, *names("metric")) if task.text_metrics else task.best
    if run.train.best not in best:
        raise UsageError(
            f"train.best must be {' or '.join(best)} for {task.name}, but is {run.train.best!r}"
        )
    # impossible settings are refused before the work
    if not pretrained:
        _check_model(task, run)
    elif run.train.prompt_length is not None and (fields := model_fields(run.model)):
        raise UsageError(
            f"model.{next(iter(fields))} changes nothing where train.prompt_length freezes the model; leave"
            " it out"
        )
    run_folder.choose_device(run.train.device)
    return run


def _check_model(task: Task, run: RunConfig) -> None:
    """Raises UsageError for fields of the model that cannot be, and for those that change nothing with the
    others."""
    given, unused = model_fields(run.model), unused_model_fields(task, run)
    for name, reason in unused.items():
        if name in given:
            raise UsageError(f"{reason}; leave it out")


def refuse_unread(
    task: Task,
    run: RunConfig,
    given: Mapping[str, Settings],
    defaults: Mapping[str, Settings],
) -> None:
    """Raises UsageError if a setting is not its default and changes nothing: because the task does not
    read it, or because of another setting. `given` are the settings of each section that the user named,
    `defaults` those of the task."""
    files = [*run.data.train, *run.data.validation]
    unused = {
        **unused_with_others(run),
        **unused_by_forms(task, run.data, files, given["data"]),
        **task.unused(run),
    }
    for section, kind in SECTIONS.items():
        values = vars(vars(run)[section])
        for field in fields(kind):
            name = f"{section}.{field.name}"
            default = defaults.get(section, {}).get(field.name, field.default)
            if field.name not in given[section] or values[field.name] in (field.default, default):
                continue
            if name not in task.settings:
                raise UsageError(unread_setting(name, task.name))
            if name in unused:
                raise UsageError(f"{unused[name]}; leave it out")
    family = str(run.model["name"])
    for name, tasks in fields_of_tasks(model_family(family)[0]).items():
        if name in run.model and hub_task(task.name) not in tasks:
            raise UsageError(
                f"model.{name} changes nothing for {task.name} (it is for {', '.join(tasks)}); leave it out"
            )


def _of_checkpoint(model: RunContent, task: Task, run: RunConfig) -> RunContent:
    """The model of a run that begins with pretrained weights: their own. Raises UsageError if another is
    asked for, or where the task cannot begin so."""
    if not task.pretrained:
        able = ", ".join(known.name for known in all_tasks() if known.pretrained)
        raise UsageError(f"--from is for {able}, but the task is {task.name}")
    found = run_folder.encoder_of(model["from"])
    part, families = READS_FOR_HEADS.get(found, found), families_for(task)
    if found not in families and part in families:
        found = part
    named = run.model.get("name", found)
    given, defaults = vars(run.data), vars(DataConfig())
    own = [name for name in FROM_CHECKPOINT if given[name] != defaults[name]]
    if own and f"data.{own[0]}" in task.settings:
        raise UsageError(
            f"--from brings its own tokenizer, so data.{own[0]} changes nothing; leave it out"
        )
    if named != found or "size" in run.model:
        raise UsageError(
            f"--from brings its own model ({found}), so --model must be left out, but is"
            f" {printable(str(named))}"
        )
    needs_whole = run.train.lora_rank is not None or run.train.prompt_length is not None
    if needs_whole and is_adapter(run_folder.resolve_folder(model["from"])):
        raise UsageError(
            f"LoRA and prompts start from a whole model, but {printable(str(model['from']))} is an adapter;"
            " merge it first: seqloom import"
        )
    if issubclass(model_family(found)[1], FittedModel):
        raise UsageError(
            f"--from is for models that are trained by steps, but {printable(str(model['from']))} is of"
            f" {found}, which is estimated without gradients"
        )
    return model | {"name": found, "size": "small"}


def _decoding_of_checkpoint(run: RunConfig, given: Settings) -> DecodeConfig:
    """How the pretrained model decodes, changed by the settings that were given."""
    pretrained = run_folder.load_run(run.model["from"], "cpu")
    return parse(DecodeConfig, {**to_plain(pretrained.decode), **given}, "decode.")
