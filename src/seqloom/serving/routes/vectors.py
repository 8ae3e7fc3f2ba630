"""Vectors of texts, from every model that has some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import UsageError
from seqloom.serving.http_errors import RequestError, invalid
from seqloom.serving.served_models import ServedModel
from seqloom.tasks.encoders.elmo_vectors import ElmoVectors
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.fill_mask.mask_filler import MaskFiller

Encoder = SentenceEncoder | ElmoVectors


def encoder_of(served: ServedModel) -> Encoder:
    """Raises RequestError where the model has no vectors of texts."""
    if isinstance(served.model, SentenceEncoder | ElmoVectors):
        return served.model
    if isinstance(served.model, MaskFiller):
        return SentenceEncoder(served.model.run)
    raise RequestError(
        400, f"model {served.name} is one of {served.task} and has no vectors of texts", "model"
    )


def text_vectors(served: ServedModel, texts: Sequence[str]) -> NDArray[np.float32]:
    """`(texts, width)`"""
    return encoder_of(served).vectors(texts)


def check_text_lengths(served: ServedModel, texts: Sequence[str], param: str) -> int:
    """How many tokens the texts have. Raises RequestError for one that the model would cut."""
    encoder = encoder_of(served)
    room = encoder.room if isinstance(encoder, SentenceEncoder) else None
    try:
        lengths = [len(ids) for ids in served.text_run.tokenizer.encode(texts)]
    except UsageError as error:
        raise invalid(param, str(error)) from None
    if room is not None and max(lengths) > room:
        raise invalid(
            param, f"must be of texts of at most {room} tokens, but one has {max(lengths)}"
        )
    return sum(lengths)
