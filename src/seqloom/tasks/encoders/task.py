"""The tasks of pretrained encoders without a head of their own. Their models are imported, not trained."""

from __future__ import annotations

from functools import partial

from seqloom.data.readers.documents import forms_of_documents
from seqloom.protocols import Task
from seqloom.tasks.encoders.fill_mask import MaskFiller
from seqloom.tasks.encoders.replaced_tokens import ReplacedTokenFinder
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import FILES, TABLE, data

DOCUMENTS = FILES | TABLE | data("text", "document")
PAIRS = FILES | TABLE | data("text", "second", "score", "label")

FILL_MASK = Task(
    name="fill-mask",
    summary="a text with masks in; the tokens at its masks out",
    models=("bert",),
    settings=DOCUMENTS | {"decode.n_best"},
    reading=DOCUMENTS,
    open=partial(open_text_model, MaskFiller),
    forms=forms_of_documents,
)
FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    summary="a text in; a vector out",
    models=("bert",),
    settings=PAIRS,
    reading=PAIRS,
    open=partial(open_text_model, SentenceEncoder),
)
REPLACED_TOKEN = Task(
    name="replaced-token",
    summary="a text in; which of its tokens were replaced out",
    models=("bert",),
    settings=FILES | TABLE | data("text"),
    reading=FILES | TABLE | data("text"),
    open=partial(open_text_model, ReplacedTokenFinder),
)
