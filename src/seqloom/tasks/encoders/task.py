"""The tasks of encoders without a head of their own."""

from __future__ import annotations

from functools import partial

from seqloom.config import RunConfig
from seqloom.data.readers.documents import forms_of_documents
from seqloom.models.elmo import Elmo
from seqloom.protocols import Task
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.encoders.elmo_training import prepare_elmo
from seqloom.tasks.encoders.elmo_vectors import ElmoVectors
from seqloom.tasks.encoders.replaced_tokens import ReplacedTokenFinder
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.language_modeling.check_documents import check_documents
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DOCUMENTS,
    FILES,
    PRETRAINING,
    TABLE,
    data,
    fine_tuning_defaults,
    train,
)


def vectors_of(run: LoadedRun) -> ElmoVectors | SentenceEncoder:
    """Raises UsageError if the model has no vectors of texts."""
    return ElmoVectors(run) if isinstance(run.model, Elmo) else SentenceEncoder(run)


def unused(run: RunConfig) -> dict[str, str]:
    """The settings that say how pairs of texts are read, which are only measured."""
    return {
        f"data.{name}": f"data.{name} is for pairs of texts, which are measured and not trained on"
        for name in ("second", "score", "label")
    }


PAIRS = FILES | TABLE | data("text", "second", "score", "label")

FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    summary="a text in; a vector out",
    models=("elmo",),
    settings=PAIRS | PRETRAINING | train("window"),
    reading=PAIRS | DOCUMENTS,
    open=partial(open_text_model, vectors_of),
    training_data=prepare_elmo,
    forms=forms_of_documents,
    check=check_documents,
    defaults=fine_tuning_defaults,
    unused=unused,
    pretrained=True,
)
REPLACED_TOKEN = Task(
    name="replaced-token",
    summary="a text in; which of its tokens were replaced out",
    models=("bert",),
    settings=FILES | TABLE | data("text"),
    reading=FILES | TABLE | data("text"),
    open=partial(open_text_model, ReplacedTokenFinder),
)
