"""The driver's loop over time, compiled (`seqloom/native`): for layers on a CPU, where the installation has
it.

The compiled loops write into the same buffers as the driver's own loop, so all the code around them is
shared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import LayerWeights, LoopBuffers, NormWeights
from seqloom.layers.recurrent.cells import BUILT_IN, CELLS, Cell, gate_names
from seqloom.layers.recurrent.packing import IndexedRows
from seqloom.native.library import KINDS, in_memory, library, team_size

GRAIN = 100_000
"""Operations of a step's products for which one more thread is worth while: meeting it takes microseconds."""

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p
_NORM_STATISTICS = (
    *("raw_x", "raw_h", "mean_x", "deviation_x"),
    *("mean_h", "deviation_h", "mean_c", "deviation_c"),
)


class LoopArguments(ctypes.Structure):
    """`Sequence` in `sequence.h`."""

    _fields_ = [
        *((name, _LONG) for name in ("steps", "rows", "width", "outputs")),
        ("batch_sizes", _POINTER),
        ("w", _POINTER * 3),
        *((name, _POINTER) for name in ("b_h", "w_p", *NormWeights._fields)),
        ("gates", _POINTER * 3),
        ("saved", _POINTER * 2),
        *((name, _POINTER) for name in ("h", "c", *_NORM_STATISTICS)),
        *((name, _POINTER) for name in ("d_y", "d_y_index", "d_h", "d_c")),
        ("d_gates", _POINTER * 3),
        *((name, _POINTER) for name in ("d_projected", "d_raw_h")),
        *((f"d_{name}", _POINTER) for name in NormWeights._fields),
        ("workspace", _POINTER),
    ]


def has_compiled_loop(
    cell: Cell,
    weights: LayerWeights,
    scale: Tensor | None,
    inputs: Sequence[Tensor] = (),
    states: Sequence[Tensor] = (),
) -> bool:
    """Whether there are compiled loops for this layer, and for such inputs and states. None of them has
    dropout of the state; of normalised layers they have the LSTM without a projection."""
    dtype = weights.b.dtype
    if library() is None or scale is not None or cell not in BUILT_IN or dtype not in KINDS:
        return False
    if weights.gain_h is not None and (cell != CELLS["lstm"] or weights.w_p is not None):
        return False
    widths = (weights.w_h.shape[1], weights.width(cell))
    if any(state.shape[1] != width for state, width in zip(states, widths, strict=False)):
        return False  # the driver's own loop raises the error
    tensors = [*inputs, *states, *(weight for weight in weights if weight is not None)]
    return not torch.compiler.is_compiling() and all(in_memory(tensor, dtype) for tensor in tensors)


def threads_for(operations: int, width: int) -> int:
    """For so many operations a step; the threads share the units of a layer, sixteen at a time."""
    return team_size(operations, GRAIN, width // 16)


@final
class CompiledLoop:
    """A layer's loop over time in `buffers`, forward and backward. Keeps every tensor alive whose address it
    has given away."""

    def __init__(
        self, cell: Cell, weights: LayerWeights, batch_sizes: list[int], buffers: LoopBuffers
    ) -> None:
        compiled = library()
        assert compiled is not None
        self.dtype, self.functions = weights.b.dtype, compiled.by_type[weights.b.dtype]
        self.cell_number = BUILT_IN.index(cell)  # as `Cell` in `recurrent.cpp`
        self.gate_count = len(gate_names(cell))
        width = weights.width(cell)
        self.threads = threads_for(2 * batch_sizes[0] * weights.w_h.numel(), width)
        self._alive: list[Tensor] = []
        self.arguments = LoopArguments(
            steps=len(batch_sizes), rows=batch_sizes[0], width=width, outputs=weights.w_h.shape[1]
        )
        groups = zip(cell.gate_groups, cell.reads_hidden, strict=True)
        blocks = [len(group) * width for group, reads in groups if reads]
        self._set_array("w", weights.w_h.contiguous().split_with_sizes(blocks))
        self._set_array("gates", buffers.gates)
        self._set_array("saved", buffers.saved[len(cell.gate_groups) :])
        self._set_long("batch_sizes", torch.tensor(batch_sizes, device="cpu"))
        learned: dict[str, Tensor | None] = {"b_h": weights.candidate_bias(), "w_p": weights.w_p}
        if buffers.raw_h:
            learned |= NormWeights.of(weights)._asdict()
        for name, weight in learned.items():
            self._set({name: None if weight is None else weight.contiguous()})
        self._set(dict(zip(("h", "c"), buffers.states, strict=False)))
        if buffers.raw_h:
            raw_x, *moments_x = buffers.input_saved
            statistics = raw_x, *buffers.raw_h, *moments_x, *buffers.moments
            self._set(dict(zip(_NORM_STATISTICS, statistics, strict=True)))

    def forward(self) -> None:
        """From the input's part of the gates to the states."""
        self._run(backward=False)

    def backward(
        self,
        d_y: IndexedRows,
        d_states: Sequence[Tensor],
        d_gates: Sequence[Tensor],
        d_raw_h: Tensor | None,
        d_norms: NormWeights | None,
    ) -> None:
        """From the gradients of the outputs and of the last states: writes those of the gates and, in place,
        of the first states; of a normalised layer also those of the raw products, and adds to `d_norms`."""
        has_projection = self.arguments.w_p is not None
        self._set_array("d_gates", d_gates[: 1 if has_projection else 3])
        self._set(
            {
                "d_y": d_y.matrix,
                "d_raw_h": d_raw_h,
                "d_projected": d_gates[1] if has_projection else None,
            }
        )
        self._set(dict(zip(("d_h", "d_c"), d_states, strict=False)))
        if d_y.row_index is not None:
            self._set_long("d_y_index", d_y.row_index)
        if d_norms is not None:
            self._set({f"d_{name}": tensor for name, tensor in d_norms._asdict().items()})
        self._run(backward=True)

    def _run(self, *, backward: bool) -> None:
        arguments = ctypes.byref(self.arguments)
        size = self.functions.workspace_size(arguments, self.gate_count, self.threads)
        self._set({"workspace": torch.empty(size, dtype=self.dtype, device="cpu")})
        self.functions.run(self.cell_number, backward, arguments, self.threads)

    def _set(self, tensors: Mapping[str, Tensor | None]) -> None:
        for name, tensor in tensors.items():
            setattr(self.arguments, name, None if tensor is None else self._address(tensor))

    def _set_array(self, name: str, tensors: Sequence[Tensor]) -> None:
        pointers = getattr(self.arguments, name)
        for number, tensor in enumerate(tensors):
            pointers[number] = self._address(tensor)

    def _set_long(self, name: str, integers: Tensor) -> None:
        self._alive.append(integers)
        setattr(self.arguments, name, integers.data_ptr())

    def _address(self, tensor: Tensor) -> int:
        if not (tensor.is_contiguous() and in_memory(tensor, self.dtype)):
            raise RuntimeError(
                f"the compiled loops must get contiguous numbers of {self.dtype} in memory, but got"
                f" {tensor.dtype} elsewhere"
            )
        self._alive.append(tensor)
        return tensor.data_ptr()
