"""Cross-entropy of rows of logits and its gradient in one compiled pass: `native/cross_entropy.h`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from seqloom.layers.outputs.possible_classes import Classes
from seqloom.native.library import in_memory, team_size, training_functions

GRAIN = 2**14
"""Logits for which one more thread is worth while."""


class CrossEntropyArguments(ctypes.Structure):
    """`CrossEntropy` in `cross_entropy.h`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "classes", "bfloat16")),
        *((name, ctypes.c_void_p) for name in ("logits", "targets", "possible")),
        ("spans", ctypes.c_long),
        *((name, ctypes.c_float) for name in ("smoothing", "smoothed")),
        ("trains", ctypes.c_long),
        ("losses", ctypes.c_void_p),
    ]


def has_compiled_cross_entropy(logits_like: Tensor, targets: Tensor) -> bool:
    """Whether it takes logits of the type of this tensor, in memory as it is, and such targets `(n,)`."""
    return training_functions(logits_like) is not None and in_memory(targets, torch.long)


def cross_entropy_(
    logits: Tensor, targets: Tensor, classes: Classes, smoothing: float, *, trains: bool
) -> Tensor:
    """logits `(n, classes)`, targets `(n,)` -> the cross-entropy of each row `(n,)` in float32. If it trains,
    the logits become their gradients.

    Raises ValueError for sizes, types or targets that do not fit.
    """
    functions = training_functions(logits)
    if functions is None or not logits.is_contiguous() or logits.shape[1:] != (classes.size,):
        raise ValueError(
            f"logits must be numbers in memory, row by row, of {classes.size} classes, but are"
            f" {tuple(logits.shape)} of {logits.dtype} with the strides {logits.stride()}"
        )
    if not in_memory(targets, torch.long) or targets.shape != logits.shape[:1]:
        raise ValueError(f"targets must be numbers of 64 bits, one a row, but are {targets.dtype}")
    losses = torch.empty(len(targets))
    if not len(targets):
        return losses
    targets = targets.contiguous()
    least, most = (int(extreme) for extreme in targets.aminmax())
    if least < 0 or most >= classes.size:
        raise ValueError(
            f"targets must be at least 0 and below {classes.size}, but are {least} to {most}"
        )
    spans = torch.tensor([(part.start, part.stop) for part in classes.possible])
    arguments = CrossEntropyArguments(
        rows=len(targets),
        classes=classes.size,
        bfloat16=logits.dtype is torch.bfloat16,
        logits=logits.data_ptr(),
        targets=targets.data_ptr(),
        possible=spans.data_ptr(),
        spans=len(spans),
        smoothing=smoothing,
        smoothed=smoothing / classes.possible_count,
        trains=trains,
        losses=losses.data_ptr(),
    )
    functions.cross_entropy(ctypes.byref(arguments), team_size(logits.numel(), GRAIN))
    return losses
