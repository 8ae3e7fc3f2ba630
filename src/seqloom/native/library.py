"""The compiled loops that this machine can run.

Nothing is missing without them: the driver's own loop computes the same, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from seqloom.native.build import SOURCES, built_from, library_path

KINDS = {torch.float32: "float", torch.float64: "double"}
"""Types of numbers that they are made for."""

OFF = "SEQLOOM_NATIVE"
"""Environment variable: 0 leaves the compiled loops alone."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """None where there are none for this processor, or others than these sources make."""
    if os.environ.get(OFF) == "0":
        return None
    return load(library_path(SOURCES, torch.backends.cpu.get_cpu_capability()))


def missing() -> bool:
    """Whether nobody has made them, or not from these sources."""
    return library() is None and os.environ.get(OFF) != "0"


def load(path: Path) -> ctypes.CDLL | None:
    """None where it is not there, does not load, or was built from other sources than these."""
    try:
        found = ctypes.CDLL(str(path))  # its OpenMP is the one that torch has loaded
        built: ctypes._NamedFuncPointer = found.seqloom_built_from
    except (OSError, AttributeError):
        return None
    built.restype = ctypes.c_char_p
    if built() != built_from(SOURCES).encode():
        return None
    for kind in KINDS.values():
        gemm = getattr(found, f"seqloom_gemm_{kind}")
        gemm.argtypes, gemm.restype = (ctypes.c_void_p, ctypes.c_long), None
        room, run = getattr(found, f"seqloom_room_{kind}"), getattr(found, f"seqloom_run_{kind}")
        room.argtypes, room.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long), ctypes.c_long
        run.argtypes, run.restype = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_long), None
    return found


def in_memory(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether it is numbers of this type in the computer's memory: nothing on another device or only thought
    of."""
    return tensor.dtype == dtype and tensor.is_cpu and type(tensor) in (Tensor, nn.Parameter)
