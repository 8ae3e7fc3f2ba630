"""The tasks of an encoder with a head: a text, or two, in; labels, a number, tags, a span or a choice out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from seqloom.config import RunConfig
from seqloom.protocols import Settings, Task
from seqloom.runs.run_folder import family_of_start
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    FILES,
    FINE_TUNING,
    HEAD,
    TABLE,
    TOKENIZER,
    TRAIN,
    TRAINED_ON,
    WORD_VECTORS,
    data,
)
from seqloom.tasks.text import text_tasks
from seqloom.tasks.text.check_labelled import check_labelled
from seqloom.tasks.text.head_task import E
from seqloom.tasks.text.predictor import TextPredictor
from seqloom.tasks.text.text_tasks import TextTaskSpec
from seqloom.tasks.text.training_data import ENCODER_ONLY, prepare_examples

FAMILIES = ("recurrent", "bag_of_words", "mlp", "convolution", "elmo", "bert", "gpt", "t5")
"""Families that read for a head."""
FROM_SCRATCH_STEPS = 1000
"""The least steps of a model trained from scratch, where no setting says how long it is trained: ten epochs
of
a few hundred examples are too few."""
LEARNING_RATES = {"bag_of_words": 1e-2}
"""Family -> its default learning rate when trained from scratch: linear models need larger steps."""

FULL_RATE = ("elmo",)
"""Families that are fine-tuned with the learning rate and epochs of a new model: LSTMs, not Transformers."""

ROW = data("max_length")
LABELS = data("unseen_labels")
TEXT_TABLE = TABLE | data("text", "second", "label")
TRAINING = TRAIN | WORD_VECTORS | {"train.head_learning_rate"}


def defaults(
    best: str, from_scratch: Mapping[str, object], content: Settings
) -> Mapping[str, Mapping[str, object]]:
    """The defaults of a run file with this content: they depend on the family, and on whether the weights are
    pretrained."""
    model = content.get("model", {})
    train: dict[str, object] = {"epochs": 10.0, "best": best}
    if "batch_tokens" not in content.get("train", {}):
        train["batch_rows"] = 32
    if start := model.get("from"):
        learns_fast = family_of_start(start) in FULL_RATE
        return {"train": train if learns_fast else train | FINE_TUNING}
    if "epochs" not in content.get("train", {}):
        train["min_steps"] = FROM_SCRATCH_STEPS
    if (name := str(model.get("name"))) in LEARNING_RATES:
        train["learning_rate"] = LEARNING_RATES[name]
    return {"train": train, "data": from_scratch}


def unused(run: RunConfig) -> Mapping[str, str]:
    """The settings that change nothing in this run, and why."""
    reasons = {}
    if run.task not in ("text-classification", "sentence-similarity"):
        reasons["head.pair"] = (
            f"head.pair is for two texts and their label or score, but the task is {run.task}"
        )
    if run.task in ("token-classification", "question-answering"):
        reasons["head.pooling"] = (
            f"head.pooling makes one state of a text, but {run.task} asks each word"
        )
    if run.task == "sentence-similarity":
        reasons["train.label_smoothing"] = (
            "train.label_smoothing is for labels, but the task is sentence-similarity, which answers a number"
        )
    if run.model["name"] == "gpt" and not run.head.lm_weight:
        for name in ("output_samples", "output_alpha"):
            reasons[f"model.{name}"] = (
                f"model.{name} is for the loss of the next token, which needs head.lm_weight"
            )
    if run.task == "multiple-choice" and run.data.options:
        reasons["data.second"] = (
            "data.second is the column of the option where each has a row, but data.options names columns"
        )
    if run.head.crf:
        reasons["train.label_smoothing"] = (
            "train.label_smoothing changes nothing with head.crf, which learns whole sequences of tags"
        )
    return reasons


def text_task(
    spec: TextTaskSpec[E],
    summary: str,
    reading: frozenset[str],
    best: tuple[str, ...],
    chosen_by: str,
    *,
    splitting: frozenset[str] = frozenset(),
    from_scratch: Mapping[str, object] = MappingProxyType({}),
) -> Task:
    """`reading`: the settings that say how its files are read, `splitting` how examples are held out for
    validation. `best`: the metrics that may choose the best checkpoint, `chosen_by` the one that does by
    default. `from_scratch`: defaults of data for a tokenizer that is trained."""
    reading = reading | FILES | ROW
    return Task(
        name=spec.name,
        summary=summary,
        models=FAMILIES,
        settings=reading
        | splitting
        | data("split_seed")
        | TRAINED_ON
        | TOKENIZER
        | HEAD
        | TRAINING,
        reading=reading,
        open=partial(open_text_model, partial(TextPredictor, spec)),
        training_data=partial(prepare_examples, spec),
        forms=spec.forms,
        check=partial(check_labelled, spec),
        best=best,
        text_metrics=spec.name == text_tasks.TEXT_CLASSIFICATION.name,
        defaults=partial(defaults, chosen_by, from_scratch),
        unused=unused,
        fixed_fields=ENCODER_ONLY,
        pretrained=True,
        comparable=True,
        counted="examples",
    )


TEXT_CLASSIFICATION = text_task(
    text_tasks.TEXT_CLASSIFICATION,
    "a text, or two, in; a label out, or several",
    TEXT_TABLE | LABELS | data("label_separator", "label_until", "no_label"),
    ("accuracy", "loss", "macro_f1", "matthews"),
    "accuracy",
    splitting=data("group"),
)
SENTENCE_SIMILARITY = text_task(
    text_tasks.SENTENCE_SIMILARITY,
    "two texts in; how similar they are out",
    TEXT_TABLE | data("score", "no_label"),
    ("spearman", "pearson", "loss"),
    "spearman",
    splitting=data("group"),
)
TOKEN_CLASSIFICATION = replace(
    text_task(
        text_tasks.TOKEN_CLASSIFICATION,
        "words in; a tag for each out",
        LABELS | data("text", "label", "columns", "tags", "repair_tags", "part", "stride"),
        ("accuracy", "loss", "macro_f1", "f1"),
        "f1",
        from_scratch={"tokenizer": "whitespace", "vocabulary": 20_000},
    ),
    models=("recurrent", "convolution", "elmo", "bert", "gpt", "t5"),
    counted="words",
)
QUESTION_ANSWERING = replace(
    text_task(
        text_tasks.QUESTION_ANSWERING,
        "a question and a context in; the part of the context that answers it out",
        TABLE | data("text", "second", "stride"),
        ("f1", "loss", "exact_match"),
        "f1",
    ),
    models=("bert", "recurrent", "convolution", "elmo", "t5"),
    counted="windows of contexts",
)
MULTIPLE_CHOICE = text_task(
    text_tasks.MULTIPLE_CHOICE,
    "a text and what may follow it in; which of them out",
    TEXT_TABLE | data("options", "answers_from", "no_label"),
    ("accuracy", "loss"),
    "accuracy",
)
