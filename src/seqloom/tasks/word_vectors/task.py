"""The task word-vectors: a word in; the words nearest to it out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from seqloom.config import RunConfig
from seqloom.data.readers.documents import forms_of_documents
from seqloom.errors import UsageError
from seqloom.protocols import Settings, Task
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DOCUMENTS,
    LOOP,
    TRAINED_ON,
    data,
    train,
)
from seqloom.tasks.word_vectors.cells import CellTrainingData, prepare_cells
from seqloom.tasks.word_vectors.check_word_vectors import check_word_vectors
from seqloom.tasks.word_vectors.training_data import (
    SentenceCorpus,
    prepare_sentences,
    thread_notice,
)
from seqloom.tasks.word_vectors.word_vectors import WordVectorModel
from seqloom.text.tokenizers import WORD_TOKENIZERS

TRAIN = LOOP | train(
    *("max_steps", "epochs", "min_steps", "batch_tokens", "learning_rate", "schedule"),
    *("warmup_steps", "threads", "ordered_updates", "seed"),
)


def prepare(run: RunConfig, folder: Path, first: bool) -> SentenceCorpus | CellTrainingData:
    """Raises UsageError if tokens are no words."""
    if run.data.tokenizer not in WORD_TOKENIZERS:
        raise UsageError(
            f"data.tokenizer must be {' or '.join(WORD_TOKENIZERS)} for word vectors, but is"
            f" {run.data.tokenizer}, whose tokens are no words"
        )
    if run.model["name"] == "glove":
        return prepare_cells(run, folder, first)
    return prepare_sentences(run, folder, first)


def notice_of(run: RunConfig, threads: int) -> str:
    """GloVe ends in the same bits for any number of threads."""
    is_repeatable = run.model["name"] == "glove" or run.train.ordered_updates
    return "" if is_repeatable else thread_notice(threads)


def unused(run: RunConfig) -> Mapping[str, str]:
    """GloVe has no text that is held out, and its threads change no row at the same time."""
    reasons = {}
    if run.train.threads == 1:
        reasons["train.ordered_updates"] = "with train.threads=1"
    if run.model.get("loss") == "softmax":
        reasons["train.ordered_updates"] = "with model.loss=softmax, which one thread computes"
    if run.model["name"] == "glove":
        reasons["data.validation"] = "for glove, whose loss is that of the counts of all its text"
        reasons["train.ordered_updates"] = (
            "for glove, which ends in the same bits with any number of threads"
        )
    return {name: f"{name} changes nothing {why}" for name, why in reasons.items()}


def defaults(content: Settings) -> Mapping[str, Mapping[str, object]]:
    """As the original programs have them; a step is a piece of the text, or of the cells."""
    model = content.get("model", {})
    cbow = "cbow" in (model.get("size"), model.get("architecture"))
    rates = {"epochs": 5.0, "learning_rate": 0.05 if cbow else 0.025, "schedule": "linear"}
    if model.get("name") == "glove":
        rates = {"epochs": 25.0, "learning_rate": 0.05, "schedule": "constant"}
    return {
        "train": {"batch_tokens": 100_000, "warmup_steps": 0, "device": "cpu", **rates},
        "data": {"tokenizer": "words", "normalisation": "lower", "vocabulary": 100_000},
    }


WORD_VECTORS = Task(
    name="word-vectors",
    summary="a word in; the words nearest to it out",
    models=("word2vec", "glove"),
    settings=DOCUMENTS
    | TRAINED_ON
    | data("tokenizer", "vocabulary", "normalisation", "learn_from", "phrases", "minimum_count")
    | TRAIN,
    reading=DOCUMENTS,
    open=partial(open_text_model, WordVectorModel),
    training_data=prepare,
    check=partial(check_word_vectors, prepare),
    forms=forms_of_documents,
    defaults=defaults,
    unused=unused,
    usage="seqloom predict {} words.txt",
    counted="pairs of words",
    thread_notice=notice_of,
)
