"""How the compiled step of a recurrent decoder reads its input: `native/attention_step.h`."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, final

import torch
from torch import Tensor

from seqloom.layers.attention import AdditiveScores, AttentionMemory, AttentionScores
from seqloom.layers.packed_linear import LinearArguments, packed_linear
from seqloom.native.library import in_memory
from seqloom.packed_weights import PackedWeights

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p
SCORES = ("one vector", "additive", "products")
"""In the order of `Scores` in `attention_step.h`."""


class AttentionArguments(ctypes.Structure):
    """`AttentionStep` in `attention_step.h`."""

    _fields_ = [
        *((name, _LONG) for name in ("scores", "from_current")),
        ("query", LinearArguments),
        *((name, _POINTER) for name in ("score", "keys", "values", "mask", "input_of")),
        *((name, _LONG) for name in ("inputs", "source", "key_width", "width")),
    ]


class ContextParts(NamedTuple):
    """What a decoder reads of its input at each step."""

    scores: AttentionScores | None
    """None: the memory is one vector, the context of all steps."""
    width: int
    """Of a context."""
    from_current: bool
    """Whether the query is the new state, not the last one."""


class ReadMemory(NamedTuple):
    """The memory of all inputs, and `(rows,)` the input that each row reads."""

    memory: AttentionMemory
    source: Tensor


class Attended(NamedTuple):
    """The arguments of one step, and the tensors that they point to."""

    arguments: AttentionArguments
    tensors: list[Tensor]


@final
class NativeAttention:
    """The weights of attention, packed. Keeps every tensor alive whose address it has given away."""

    def __init__(self, context: ContextParts, state_width: int, weights: PackedWeights) -> None:
        """`state_width` is that of a query."""
        self.scores = context.scores
        self._arguments = AttentionArguments(
            from_current=context.from_current,
            width=context.width,
            key_width=context.width if context.scores is None else state_width,
        )
        match context.scores:
            case AdditiveScores(query=query, score=score):
                packed, bias = packed_linear(weights, query.weight), query.bias.detach()
                v = score.weight.detach().contiguous()
                self._alive = packed, bias, v
                self._arguments.key_width = query.out_features
                self._arguments.query, self._arguments.score = packed.arguments(bias), v.data_ptr()
                self._arguments.scores = SCORES.index("additive")
            case AttentionScores():
                self._arguments.scores = SCORES.index("products")

    def watched(self) -> bool:
        """Whether somebody looks at the weights of attention."""
        return self.scores is not None and self.scores.watcher is not None

    def of(self, read: ReadMemory, rows: int) -> Attended:
        """For one step. Raises ValueError where a tensor is of another type or shape."""
        (values, keys, mask, _), own = read.memory, self._arguments
        sizes = mask.shape
        if not (
            len(sizes) == 2
            and values.shape == (*sizes, own.width)
            and keys.shape == (*sizes, own.key_width)
            and read.source.shape == (rows,)
            and all(in_memory(part, torch.float32) for part in (values, keys))
            and in_memory(mask, torch.bool)
            and in_memory(read.source, torch.long)
        ):
            raise ValueError(
                f"a memory on a CPU must have values and keys in float32 of widths {own.width} and"
                f" {own.key_width}, a mask of their sizes, and an input for each of {rows} rows"
            )
        tensors = [part.contiguous() for part in (values, keys, mask, read.source)]
        arguments = AttentionArguments.from_buffer_copy(own)
        arguments.inputs, arguments.source = sizes
        arguments.values, arguments.keys, arguments.mask, arguments.input_of = (
            part.data_ptr() for part in tensors
        )
        return Attended(arguments, tensors)
