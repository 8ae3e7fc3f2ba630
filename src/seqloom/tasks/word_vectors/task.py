"""The task word-vectors: a word in; the words nearest to it out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from seqloom.data.readers.documents import forms_of_documents
from seqloom.protocols import Task
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import FILES, TABLE, TRAINED_ON, data
from seqloom.tasks.word_vectors.training_data import prepare_sentences
from seqloom.tasks.word_vectors.word_vectors import WordVectorModel

READING = FILES | TABLE | data("text", "document")
TRAIN = frozenset(
    f"train.{name}"
    for name in (
        *("max_steps", "epochs", "min_steps", "batch_tokens", "learning_rate", "schedule"),
        *("warmup_steps", "evaluate_every", "best", "patience", "log_every", "tensorboard"),
        *("threads", "seed"),
    )
)


def defaults(content: Mapping[str, Any]) -> Mapping[str, Mapping[str, object]]:
    """As the original program has them; a step is a piece of the text."""
    model = content.get("model", {})
    cbow = "cbow" in (model.get("size"), model.get("architecture"))
    return {
        "train": {
            "epochs": 5.0,
            "batch_tokens": 100_000,
            "learning_rate": 0.05 if cbow else 0.025,
            "schedule": "linear",
            "warmup_steps": 0,
            "device": "cpu",
        },
        "data": {"tokenizer": "words", "normalisation": "lower", "vocabulary": 100_000},
    }


WORD_VECTORS = Task(
    name="word-vectors",
    summary="a word in; the words nearest to it out",
    models=("word2vec",),
    settings=READING
    | TRAINED_ON
    | data("tokenizer", "vocabulary", "normalisation", "learn_from")
    | TRAIN,
    reading=READING,
    open=partial(open_text_model, WordVectorModel),
    training_data=prepare_sentences,
    forms=forms_of_documents,
    defaults=defaults,
    usage="seqloom predict {} words.txt",
    counted="pairs of words",
)
