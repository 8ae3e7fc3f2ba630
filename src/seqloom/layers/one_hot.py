"""Tokens as one-hot vectors: 1 in the column of the token, 0 in all others.

Their product with a matrix (vocabulary, width) is the row of the token: what an embedding looks up.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@final
class OneHot(nn.Module):
    """Takes the place of an embedding, and has no weights."""

    one: Tensor

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        # for the type of number and the device of the model
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens `(...)` -> `(..., vocabulary)`."""
        return F.one_hot(tokens, self.vocabulary_size).to(self.one.dtype)
