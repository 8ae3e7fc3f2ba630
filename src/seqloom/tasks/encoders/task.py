"""The tasks of pretrained encoders without a head of their own. Their models are imported, not trained."""

from __future__ import annotations

from functools import partial

from seqloom.protocols import Task
from seqloom.tasks.encoders.replaced_tokens import ReplacedTokenFinder
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import FILES, TABLE, data

PAIRS = FILES | TABLE | data("text", "second", "score", "label")

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
