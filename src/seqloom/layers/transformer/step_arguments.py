"""What the compiled step of a stack is given: the structures of `native/transformer.h`."""

from __future__ import annotations

import ctypes

from seqloom.layers.packed_linear import LinearArguments

LONG, POINTER, FLOAT = ctypes.c_long, ctypes.c_void_p, ctypes.c_float


class NormArguments(ctypes.Structure):
    """`Norm` in `transformer.h`."""

    _fields_ = [("gain", POINTER), ("bias", POINTER), ("centred", LONG), ("epsilon", FLOAT)]


class BlockArguments(ctypes.Structure):
    """`TransformerBlock` in `transformer.h`."""

    _fields_ = [
        ("attention_norm", NormArguments),
        ("memory_norm", NormArguments),
        ("feed_forward_norm", NormArguments),
        ("query_key_value", LinearArguments),
        ("attention_output", LinearArguments),
        ("query", LinearArguments),
        ("memory_output", LinearArguments),
        ("hidden", LinearArguments),
        ("output", LinearArguments),
        ("beta", FLOAT),
    ]


class StackArguments(ctypes.Structure):
    """`TransformerStack` in `transformer.h`."""

    _fields_ = [
        ("blocks", POINTER),
        ("norm", NormArguments),
        *((name, LONG) for name in ("layers", "norm_before", "activation")),
        ("scale", FLOAT),
        *((name, LONG) for name in ("width", "heads", "head_width")),
    ]


class MemoryArguments(ctypes.Structure):
    """`EncoderMemory` in `transformer.h`."""

    _fields_ = [
        *((name, POINTER) for name in ("layers", "is_token", "source")),
        *((name, LONG) for name in ("inputs", "steps")),
    ]


class TokenArguments(ctypes.Structure):
    """`EvenTokens` in `transformer.h`."""

    _fields_ = [
        *((name, POINTER) for name in ("ids", "known")),
        ("known_stride", LONG),
        *((name, POINTER) for name in ("embedding", "positions")),
        ("stored", LinearArguments),
        *((name, LONG) for name in ("vocabulary", "pad", "start")),
        ("scale", FLOAT),
        ("norm", NormArguments),
    ]


class StepArguments(ctypes.Structure):
    """`TransformerStep` in `transformer.h`."""

    _fields_ = [
        ("stack", StackArguments),
        ("caches", POINTER),
        *((name, LONG) for name in ("rows", "slots", "length")),
        ("context", POINTER),
        *((name, LONG) for name in ("context_slots", "context_length")),
        *((name, POINTER) for name in ("visible", "cosines", "sines")),
        ("angle_stride", LONG),
        ("bias", POINTER),
        *((name, LONG) for name in ("row_bias", "head_bias")),
        ("memory", MemoryArguments),
        ("tokens", TokenArguments),
        ("x", POINTER),
    ]
