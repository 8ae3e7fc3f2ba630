"""Vectors of texts, from every model that has some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import UsageError
from seqloom.serving.http_errors import invalid
from seqloom.serving.served_models import ServedModel


def text_vectors(served: ServedModel, texts: Sequence[str]) -> NDArray[np.float32]:
    """`(texts, width)`"""
    return served.encoder.vectors(texts)


def check_text_lengths(served: ServedModel, texts: Sequence[str], param: str) -> int:
    """How many tokens the texts have. Raises RequestError for one that the model would cut."""
    room = served.encoder.room
    try:
        lengths = [len(ids) for ids in served.text_run.tokenizer.encode(texts)]
    except UsageError as error:
        raise invalid(param, str(error)) from None
    if room is not None and max(lengths) > room:
        raise invalid(
            param, f"must be of texts of at most {room} tokens, but one has {max(lengths)}"
        )
    return sum(lengths)
