"""What each task reads, and which families of models can do it. One dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from seqloom.errors import UsageError


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of work that a model can be trained for."""

    columns: tuple[str, ...]
    """Fields of a record: the columns of its token store."""
    models: tuple[str, ...]
    """Families that can do it, the default first."""
    best: tuple[str, ...] = ("loss",)
    """What may choose its best checkpoint."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model that this task needs so."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Settings of decoding where this task has other defaults."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Settings of training where this task has other defaults."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Settings of data where this task has other defaults, for a model that begins anew."""
    reads: tuple[str, ...] = ()
    """Of a reading task: settings of data that tell how its files are read, beside those that tell how any
    file is (READ_BY_ALL)."""
    trained: bool = True
    """Whether `train` can train a model for it; models for the others are imported."""


READERS = ("recurrent", "bag_of_words", "convolution", "bert", "gpt", "t5")
"""Families that read for a head."""
READING: dict[str, Any] = {"batch_rows": 32, "epochs": 10.0}
READING_STEPS = 1000
"""Steps at least of a reader that begins anew, where nobody says how many: ten passes over a few hundred
examples are too few."""
RATES = {"bag_of_words": 1e-2}
"""family of a reader -> the learning rate of one that begins anew, where the default is too small: linear
models want larger steps."""
FINE_TUNING: dict[str, Any] = {
    "learning_rate": 5e-5,
    "epochs": 3.0,
    "schedule": "linear",
    "beta2": 0.999,
}
"""Settings of training where a model begins with weights that were trained before (Devlin et al. 2019,
appendix A.3)."""

TABLE = ("text", "second", "label", "delimiter", "header", "quoting", "part")
"""Settings of data of any table."""
READ_BY_ALL = (
    *("train", "validation", "format", "encoding", "on_bad_line", "max_line_bytes", "split_seed"),
    *("tokenizer", "vocabulary", "normalisation", "max_length"),
)
"""Settings of data that every reading task has."""

TASKS: dict[str, Task] = {
    # text in, text out: pairs of source and target
    "translation": Task(
        columns=("source", "target"),
        models=("seq2seq", "transformer", "t5"),
        best=("loss", "bleu", "chrf", "exact_match"),
    ),
    # language modelling: documents
    "text-generation": Task(
        columns=("text",), models=("gpt", "recurrent_lm", "ngram"), decode={"strategy": "sample"}
    ),
    # an image in, one label out
    "image-classification": Task(columns=(), models=("vit",), best=("loss", "accuracy")),
    # an image with corrupted patches in, their colours out: what an encoder of images is trained for where
    # there are no labels
    "masked-image-modeling": Task(
        columns=(), models=("vit",), best=("loss", "accuracy"), model={"head": "patches"}
    ),
    # a text in, the tokens at its masks out
    "fill-mask": Task(columns=("text",), models=("bert",), trained=False),
    # a text in, one vector out
    "feature-extraction": Task(columns=("text",), models=("bert",), trained=False),
    # a text, or two, in; a label out, or several
    "text-classification": Task(
        columns=("text",),
        reads=(*TABLE, "group", "label_separator", "label_until", "unseen_labels"),
        models=READERS,
        best=("accuracy", "loss", "macro_f1", "matthews"),
        train=READING | {"best": "accuracy"},
    ),
    # two texts in, how alike they are out
    "sentence-similarity": Task(
        columns=("text",),
        reads=(*TABLE, "score", "group"),
        models=READERS,
        best=("spearman", "pearson", "loss"),
        train=READING | {"best": "spearman"},
    ),
    # words in, a tag for each out
    "token-classification": Task(
        columns=("text",),
        reads=("text", "label", "columns", "tags", "repair_tags", "part", "stride", "unseen_labels"),
        models=("recurrent", "convolution", "bert", "gpt", "t5"),
        best=("accuracy", "loss", "macro_f1", "f1"),
        train=READING | {"best": "f1"},
        data={"tokenizer": "whitespace", "vocabulary": 20_000},
    ),
    # a question and a context in, the part of the context that answers it out
    "question-answering": Task(
        columns=("text",),
        reads=("text", "second", "delimiter", "header", "quoting", "stride"),
        models=("bert", "recurrent", "convolution", "t5"),
        best=("f1", "loss", "exact_match"),
        train=READING | {"best": "f1"},
    ),
    # a text and what may follow it in, which of them out
    "multiple-choice": Task(
        columns=("text",),
        reads=(*TABLE, "options", "answers_from"),
        models=READERS,
        best=("accuracy", "loss"),
        train=READING | {"best": "accuracy"},
    ),
}
READING_TASKS = (
    "text-classification",
    "sentence-similarity",
    "token-classification",
    "question-answering",
    "multiple-choice",
)
"""Tasks whose models are readers: an encoder and a head."""


def task_named(name: str) -> Task:
    """A task that can be trained. Raises UsageError for another name."""
    if name not in TASKS or not TASKS[name].trained:
        trained = ", ".join(one for one, task in TASKS.items() if task.trained)
        why = "; models for that task are imported: seqloom import" if name in TASKS else ""
        raise UsageError(f"TASK must be one of {trained}, but is {name!r}{why}")
    return TASKS[name]
