"""The compiled loops and products that this machine can run, the passes of word2vec and GloVe, the steps of
decoding and of training, and the cutting of texts.

Nothing is missing without them: the driver's own loop computes the same, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqloom.native.build import SOURCES, built_from, library_path
from seqloom.packed_weights import current

KINDS = {torch.float32: "float", torch.float64: "double"}
"""The types of numbers that they are compiled for, and the endings of their names."""

STORED = (torch.float32, torch.bfloat16)
"""The types of numbers that a training step reads and writes."""

OFF = "SEQLOOM_NATIVE"
"""Environment variable: 0 leaves the compiled loops alone."""

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


class NativeFunctions(NamedTuple):
    """The functions of `recurrent.cpp` for one type of numbers."""

    gemm: Callable[..., None]
    """(Gemm, threads)"""
    workspace_size: Callable[..., int]
    """(Sequence, gates, threads) -> how many numbers `Sequence.workspace` must hold."""
    run: Callable[..., None]
    """(cell, whether backward, Sequence, threads)"""
    word2vec: Callable[..., None]
    """(Word2Vec, threads)"""
    glove: Callable[..., None]
    """(Glove, threads)"""


class DecodingFunctions(NamedTuple):
    """Those for steps of decoding, in float32."""

    lanes: int
    """Outputs of a strip of `PackedLinear`."""
    multiplies_integers: bool
    """Whether this processor has instructions for products of int8."""
    linear: Callable[..., None]
    """(LinearCall, threads)"""
    rows: Callable[..., None]
    """(PackedLinear, ids, how many, their rows of it)"""
    likeliest: Callable[..., None]
    """(Likeliest, threads)"""
    encode: Callable[..., None]
    """(Encoder, threads)"""
    recurrent_step: Callable[..., bool]
    """(RecurrentStep, threads) -> whether each token goes on with its document; else nothing was done."""
    transformer_step: Callable[..., bool]
    """(TransformerStep, threads) -> whether its rows are even; otherwise nothing was done."""
    reorder: Callable[..., bool]
    """(CachedRows) -> whether there are such rows; otherwise nothing was done."""


class TrainingFunctions(NamedTuple):
    """Those for steps of training, in float32 and bfloat16."""

    attention: Callable[..., None]
    """(Attention, threads)"""
    gelu: Callable[..., None]
    """(Gelu, threads)"""
    cross_entropy: Callable[..., None]
    """(CrossEntropy, threads)"""


class NativeLibrary(NamedTuple):
    """All functions of one library."""

    by_type: dict[torch.dtype, NativeFunctions]
    decoding: DecodingFunctions
    training: TrainingFunctions
    find_segments: Callable[..., None]
    """(Segments)"""


@functools.cache
def library() -> NativeLibrary | None:
    """None where there is no library for this processor, or one of other sources than these."""
    if os.environ.get(OFF) == "0":
        return None
    return load(library_path(SOURCES, torch.backends.cpu.get_cpu_capability()))


def missing() -> bool:
    """Whether nobody has compiled them, or not from these sources."""
    return library() is None and os.environ.get(OFF) != "0"


def why_missing(what: str) -> str:
    """Why there is no compiled `what`, as a clause; empty if there is a library."""
    if missing():
        return f"the compiled {what} is missing, which this makes: python -m seqloom.native"
    return f"{OFF}=0 forbids the compiled {what}" if library() is None else ""


def decoding_functions() -> DecodingFunctions | None:
    """None where `library` is, and where torch alone shall decode."""
    loaded, weights = library(), current()
    by_torch = weights is not None and not weights.compiled
    return None if loaded is None or by_torch else loaded.decoding


def load(path: Path) -> NativeLibrary | None:
    """None where there is no such file, it does not load, or it was built from other sources than these."""
    try:
        loaded = ctypes.CDLL(str(path))  # its OpenMP is the one that torch has loaded
        stamp: ctypes._NamedFuncPointer = loaded.seqloom_built_from
    except (OSError, AttributeError):
        return None
    stamp.restype = ctypes.c_char_p
    if stamp() != built_from(SOURCES).encode():
        return None
    by_type = {dtype: _functions(loaded, kind) for dtype, kind in KINDS.items()}
    find_segments = loaded.seqloom_find_segments
    find_segments.argtypes, find_segments.restype = (_POINTER,), None
    training = [loaded[f"seqloom_{name}"] for name in TrainingFunctions._fields]
    for function in training:
        function.argtypes, function.restype = (_POINTER, _LONG), None
    return NativeLibrary(
        by_type, _decoding_functions(loaded), TrainingFunctions(*training), find_segments
    )


def _decoding_functions(loaded: ctypes.CDLL) -> DecodingFunctions:
    loaded.seqloom_lanes.restype = loaded.seqloom_multiplies_integers.restype = _LONG
    linear, rows, likeliest = loaded.seqloom_linear, loaded.seqloom_rows, loaded.seqloom_likeliest
    encode = loaded.seqloom_encode
    steps = [loaded.seqloom_recurrent_step, loaded.seqloom_transformer_step]
    for function in (linear, likeliest, encode, *steps):
        function.argtypes, function.restype = (_POINTER, _LONG), None
    rows.argtypes, rows.restype = (_POINTER, _POINTER, _LONG, _POINTER), None
    steps.append(loaded.seqloom_reorder)
    steps[-1].argtypes = (_POINTER,)
    for function in steps:
        function.restype = ctypes.c_bool
    integers = bool(loaded.seqloom_multiplies_integers())
    return DecodingFunctions(
        loaded.seqloom_lanes(), integers, linear, rows, likeliest, encode, *steps
    )


def _functions(loaded: ctypes.CDLL, kind: str) -> NativeFunctions:
    gemm = loaded[f"seqloom_gemm_{kind}"]
    gemm.argtypes, gemm.restype = (_POINTER, _LONG), None
    workspace_size = loaded[f"seqloom_workspace_{kind}"]
    workspace_size.argtypes, workspace_size.restype = (_POINTER, _LONG, _LONG), _LONG
    run = loaded[f"seqloom_run_{kind}"]
    run.argtypes, run.restype = (_LONG, _LONG, _POINTER, _LONG), None
    passes = []
    for name in ("word2vec", "glove"):
        function = loaded[f"seqloom_{name}_{kind}"]
        function.argtypes, function.restype = (_POINTER, _LONG), None
        passes.append(function)
    return NativeFunctions(gemm, workspace_size, run, *passes)


def in_memory(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether it is a CPU tensor of this type with data: neither a meta nor a fake tensor, nor a subclass."""
    return tensor.dtype == dtype and tensor.is_cpu and type(tensor) in (Tensor, nn.Parameter)


def team_size(operations: int, grain: int, parts: int | None = None) -> int:
    """Threads for a call of so many operations, `grain` of which are worth one more thread; at most one for
    each of the parts, where the work has few."""
    most = torch.get_num_threads() if parts is None else min(torch.get_num_threads(), parts)
    return max(1, min(most, operations // grain))


def training_functions(*tensors: Tensor) -> TrainingFunctions | None:
    """None where `library` is, where something is traced, and for tensors that are not all float32 or all
    bfloat16 in memory."""
    loaded, dtype = library(), tensors[0].dtype
    fits = dtype in STORED and all(in_memory(tensor, dtype) for tensor in tensors)
    return None if loaded is None or not fits or torch.compiler.is_compiling() else loaded.training
