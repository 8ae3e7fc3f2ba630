"""The likeliest next tokens in one compiled call that never holds a row of logits: `native/likeliest.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor

from seqloom.layers.packed_linear import (
    LinearArguments,
    RowsArguments,
    packed_linear,
    require_floats,
    threads_for,
)
from seqloom.native.library import DecodingFunctions, decoding_functions
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import NextLogProbs, WantedTokens

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p


class LikeliestArguments(ctypes.Structure):
    """`Likeliest` in `likeliest.h`."""

    _fields_ = [
        ("linear", LinearArguments),
        ("x", RowsArguments),
        *((name, _LONG) for name in ("rows", "count")),
        *((name, _POINTER) for name in ("suppressed", "forbidden")),
        *((name, _LONG) for name in ("suppressed_count", "forbidden_count")),
        *((name, _POINTER) for name in ("log_probs", "ids")),
    ]


@final
class NativeOutput:
    """The packed weights of a softmax. Keeps every tensor alive whose address it has given away."""

    def __init__(
        self,
        weights: PackedWeights,
        weight: Tensor,
        bias: Tensor | None,
        suppressed: Sequence[int],
    ) -> None:
        self._functions = cast("DecodingFunctions", decoding_functions())
        self._packed = packed_linear(weights, weight)
        self._suppressed = _rising(suppressed)
        bias = None if bias is None else bias.detach()
        self._alive: list[object] = [bias]
        self._arguments = LikeliestArguments(
            linear=self._packed.arguments(bias),
            suppressed=self._suppressed.data_ptr(),
            suppressed_count=len(self._suppressed),
        )
        self._calls: dict[WantedTokens, LikeliestArguments] = {}
        self._numbers = weight.numel()

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs:
        """hidden `(rows, width)` in float32 on a CPU. Raises ValueError if it is not."""
        require_floats(hidden, 2, self._packed.inputs)
        prepared = self._calls.get(wanted)
        if prepared is None:
            prepared = self._calls[wanted] = self._prepared(wanted)
        call = LikeliestArguments.from_buffer_copy(prepared)
        rows, hidden = hidden.shape[0], hidden.contiguous()
        log_probs = torch.empty(rows, call.count, device="cpu")
        ids = torch.empty(rows, call.count, dtype=torch.long, device="cpu")
        call.rows, call.x.data = rows, hidden.data_ptr()
        call.log_probs, call.ids = log_probs.data_ptr(), ids.data_ptr()
        self._functions.likeliest(ctypes.byref(call), threads_for(2 * rows * self._numbers))
        return NextLogProbs(log_probs, ids)

    def _prepared(self, wanted: WantedTokens) -> LikeliestArguments:
        """All of a call but its rows."""
        call = LikeliestArguments.from_buffer_copy(self._arguments)
        forbidden = _rising(wanted.forbidden)
        self._alive.append(forbidden)
        call.x.stride = self._packed.inputs
        call.count = min(wanted.likeliest, self._packed.outputs)
        call.forbidden, call.forbidden_count = forbidden.data_ptr(), len(forbidden)
        return call


def _rising(ids: Sequence[int]) -> Tensor:
    return torch.tensor(sorted({*ids}), dtype=torch.long)
