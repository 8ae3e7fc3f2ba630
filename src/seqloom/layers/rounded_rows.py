"""Few numbers of rows for products in bfloat16 on a CPU.

For every number of rows oneDNN compiles kernels of their own and keeps them, about 0.8 MB for each product.
Batches of texts have hundreds of such numbers: a training grew to gigabytes. Rows of zeros make them few.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST = 16
"""All numbers are multiples of it: small ones are many, each is rare, and a few rows more cost little."""


def rounded(rows: int) -> int:
    """The next number that is a multiple of LEAST, and at most four binary digits and zeros: from 128 rows on
    at most an eighth more."""
    step = max(LEAST, 1 << max(rows.bit_length() - 4, 0))
    return -(-rows // step) * step


def are_rows_rounded(x: Tensor) -> bool:
    """Whether products with x are such products."""
    return x.is_cpu and (x.dtype is torch.bfloat16 or torch.is_autocast_enabled("cpu"))


def with_rounded_rows(x: Tensor) -> Tensor:
    """x `(n, width)` -> `(rounded(n), width)`, zeros after the rows of x; x itself where its number of rows
    does no harm."""
    missing = rounded(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, missing)) if missing and are_rows_rounded(x) else x
