"""The driver's loop over time, compiled (`seqloom/native`): for layers on a CPU, where the installation has
it.

The loops write where the driver's own would, so all that stands around them is the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cell_operations import LayerWeights, NormGradients
from seqloom.layers.recurrent.cells import CELLS, Cell, gates_of
from seqloom.layers.recurrent.packing import Rows
from seqloom.native.library import KINDS, in_memory, library

GRAIN = 100_000
"""Operations of a step's products that make one more thread worth while: it takes some microseconds to meet.
"""

NORMALISED = ("raw_x", "raw_h", "mean_x", "deviation_x", "mean_h", "deviation_h", "mean_c", "deviation_c")
"""What the loops find or are given of a normalised layer, in the order of `unroll.normalised`."""


class LoopArguments(ctypes.Structure):
    """`Sequence` in `sequence.h`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("steps", "rows", "width", "outputs")),
        ("sizes", ctypes.c_void_p),
        ("w", ctypes.c_void_p * 3),
        *((name, ctypes.c_void_p) for name in ("b_h", "w_p", *NormGradients._fields)),
        ("part", ctypes.c_void_p * 3),
        ("kept", ctypes.c_void_p * 2),
        *((name, ctypes.c_void_p) for name in ("h", "c", *NORMALISED, "d_y", "order", "d_h", "d_c")),
        ("d_part", ctypes.c_void_p * 3),
        *(
            (name, ctypes.c_void_p)
            for name in ("d_projected", "d_raw_h", *(f"d_{name}" for name in NormGradients._fields), "room")
        ),
    ]


def takes(
    cell: Cell,
    weights: LayerWeights,
    scale: Tensor | None,
    inputs: Sequence[Tensor] = (),
    states: Sequence[Tensor] = (),
) -> bool:
    """Whether the compiled loops have this layer, for such inputs and states. (None of them drops parts of
    the state; of normalised layers they have the LSTM without a projection.)"""
    if library() is None or scale is not None or cell not in CELLS.values() or weights.b.dtype not in KINDS:
        return False
    if weights.gain_h is not None and (cell != CELLS["lstm"] or weights.w_p is not None):
        return False
    widths = (weights.w_h.shape[1], weights.width(cell))
    if any(state.shape[1] != width for state, width in zip(states, widths, strict=False)):
        return False  # the driver's own loop says what is wrong
    tensors = [*inputs, *states, *(weight for weight in weights if weight is not None)]
    return not torch.compiler.is_compiling() and all(in_memory(tensor, weights.b.dtype) for tensor in tensors)


def threads_for(operations: int, width: int) -> int:
    """Of so many operations a step, whose units are shared in sixteens."""
    return max(1, min(torch.get_num_threads(), operations // GRAIN, width // 16))


@final
class NativeLoop:
    """A layer's loop over packed steps, forward and back. What it is given must stay alive as long as it."""

    def __init__(
        self,
        cell: Cell,
        weights: LayerWeights,
        sizes: list[int],
        parts: Sequence[Tensor],
        kept: Sequence[Tensor],
        states: Sequence[Tensor],
        normalised: Sequence[Tensor] = (),
    ) -> None:
        """Of `kept` the first are where `parts` are (`unroll.buffers`). `normalised`, of layers that are: the
        raw products with the input and with the state, and mean and deviation of the first, of the second,
        and of the cell state."""
        found = library()
        assert found is not None
        self.library = found
        self.number = list(CELLS.values()).index(cell)  # as `Cell` in `recurrent.cpp` has them
        self.dtype, self.kind, self.gates = weights.b.dtype, KINDS[weights.b.dtype], len(gates_of(cell))
        width = weights.width(cell)
        blocks = [len(part) * width for part, fed in zip(cell.parts, cell.fed, strict=True) if fed]
        self.holds = [torch.tensor(sizes, device="cpu")]
        self.arguments = LoopArguments(
            steps=len(sizes), rows=sizes[0], width=width, outputs=weights.w_h.shape[1]
        )
        self.arguments.sizes = self.holds[0].data_ptr()
        self._put_all("w", weights.w_h.contiguous().split_with_sizes(blocks))
        self._put_all("part", parts)
        self._put_all("kept", kept[len(cell.parts) :])
        read = {"b_h": weights.candidate_bias(), "w_p": weights.w_p}
        if normalised:
            read |= {name: getattr(weights, name) for name in NormGradients._fields}
            self._put(**dict(zip(NORMALISED, normalised, strict=True)))
        self._put(**{name: None if tensor is None else tensor.contiguous() for name, tensor in read.items()})
        self._put(h=states[0], c=states[1] if len(states) > 1 else None)
        self.threads = threads_for(2 * sizes[0] * weights.w_h.numel(), width)

    def ahead(self) -> None:
        """From the input's share of the gates to the states."""
        self._run(backward=False)

    def back(
        self,
        d_y: Rows,
        d_states: Sequence[Tensor],
        d_parts: Sequence[Tensor],
        d_raw_h: Tensor | None,
        d_norms: NormGradients | None,
    ) -> None:
        """From the gradients of the outputs and of the last states: those of the parts, and, in place, of the
        first states. Of normalised layers, those of the raw products, and, added to `d_norms`, what
        normalisation learns."""
        self._put_all("d_part", d_parts[: 3 if self.arguments.w_p is None else 1])
        d_projected = None if self.arguments.w_p is None else d_parts[1]
        d_c = d_states[1] if len(d_states) > 1 else None
        self._put(d_y=d_y.numbers, d_h=d_states[0], d_c=d_c, d_projected=d_projected, d_raw_h=d_raw_h)
        if d_y.order is not None:
            self.holds.append(d_y.order)
            self.arguments.order = d_y.order.data_ptr()
        self._put(
            **{f"d_{name}": tensor for name, tensor in ({} if d_norms is None else d_norms._asdict()).items()}
        )
        self._run(backward=True)

    def _run(self, *, backward: bool) -> None:
        at = ctypes.byref(self.arguments)
        room = getattr(self.library, f"seqloom_room_{self.kind}")(at, self.gates, self.threads)
        self.holds.append(torch.empty(room, dtype=self.dtype, device="cpu"))
        self.arguments.room = self.holds[-1].data_ptr()
        getattr(self.library, f"seqloom_run_{self.kind}")(self.number, backward, at, self.threads)

    def _put(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self.arguments, name, None if tensor is None else self._address(tensor))

    def _put_all(self, name: str, tensors: Sequence[Tensor]) -> None:
        places = getattr(self.arguments, name)
        for number, tensor in enumerate(tensors):
            places[number] = self._address(tensor)

    def _address(self, tensor: Tensor) -> int:
        if not (tensor.is_contiguous() and in_memory(tensor, self.dtype)):
            raise RuntimeError(
                f"the compiled loops must get contiguous numbers of {self.dtype} in memory, but got"
                f" {tensor.dtype} elsewhere"
            )
        self.holds.append(tensor)
        return tensor.data_ptr()
