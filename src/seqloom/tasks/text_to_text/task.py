"""The task text2text-generation: pairs of texts, or several tasks at once as pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from seqloom.config import RunConfig
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import TRAINED_ON, data
from seqloom.tasks.text_to_text.check_mixture import check
from seqloom.tasks.text_to_text.evaluate_tasks import SCORE
from seqloom.tasks.text_to_text.mixed_task import check_tasks
from seqloom.tasks.text_to_text.text_to_text_model import text_to_text_model
from seqloom.tasks.text_to_text.training_data import prepare
from seqloom.tasks.translation import measures
from seqloom.tasks.translation.task import READING, pair_task
from seqloom.tasks.translation.task import unused as unused_of_pairs

MIXING = data("mixing_cap", "mixing_temperature")


def unused(run: RunConfig) -> Mapping[str, str]:
    """The settings that change nothing in this run, and why. Raises UsageError for a task that cannot be."""
    reasons = dict(unused_of_pairs(run))
    if not run.tasks:
        for name in MIXING:
            reasons[name] = (
                f"{name} says how several tasks are mixed, but the run file has no tasks"
            )
        if run.train.best == SCORE:
            reasons["train.best"] = (
                "train.best=score is the mean over several tasks, but the run file has no tasks"
            )
        return reasons
    check_tasks(run)
    for name in READING | TRAINED_ON:
        reasons[name] = f"{name} is a setting of each task: tasks.NAME.{name} in the run file"
    if run.train.best != SCORE:
        reasons["train.best"] = (
            f"train.best={run.train.best} is a metric of one task, but the run file has several, whose mean"
            " is score"
        )
    return reasons


OF_PAIRS = pair_task("text2text-generation", "a text in; another text out", measures.TRANSLATION)
TEXT_TO_TEXT = replace(
    OF_PAIRS,
    settings=OF_PAIRS.settings | MIXING | {"tasks"},
    open=partial(open_text_model, text_to_text_model),
    training_data=prepare,
    check=check,
    best=(*OF_PAIRS.best, SCORE),
    unused=unused,
)
