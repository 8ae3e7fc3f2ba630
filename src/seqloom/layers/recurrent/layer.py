"""One recurrent layer in one direction: its weights, its step, and the plain loop over steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.recurrent.batch_norm import StepBatchNorm
from seqloom.layers.recurrent.cell_operations import EPSILON, LayerWeights
from seqloom.layers.recurrent.cells import (
    LSTM,
    Cell,
    CellOps,
    CellState,
    StepBuffers,
    fed_gates,
    gate_values,
    gates_of,
    has_hidden_bias,
)
from seqloom.layers.recurrent.packing import Order, pack, to_places, to_rows, unpack
from seqloom.layers.recurrent.torch_kernels import has_step, one_step
from seqloom.layers.recurrent.unroll import Unroll

Normalisation = Literal["none", "layer", "batch"]


class Seen(NamedTuple):
    """One step that a watched layer made, in the autograd graph."""

    product: Tensor
    """`(rows, gates * width)`: the input's part of each gate."""
    old: CellState
    new: CellState


@final
class PlainProduct:
    """`u -> LN(W (u ⊙ scale))`, each of the two where given, for autograd."""

    def __init__(self, w: Tensor, norm: Callable[[Tensor], Tensor] | None, scale: Tensor | None) -> None:
        self.w, self.norm, self.scale = w, norm, scale

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor:
        result = F.linear(u if self.scale is None else u * self.scale, self.w).to(
            u.dtype
        )  # autocast multiplies in bfloat16
        if self.norm is not None:
            result = self.norm(result)
        return result if plus is None else result + plus


@final
class RecurrentLayer(nn.Module):
    """One layer in one direction.

    While `watch` is a list, the layer runs as a plain loop and adds each step to it. While `dropped_h` is a
    tensor, it stands in for `weight_h` (`weight_drop.py`). Raises UsageError for a projection
    of a cell other than the LSTM.
    """

    def __init__(
        self,
        cell: Cell,
        input_width: int,
        width: int,
        *,
        projection: int | None = None,
        normalisation: Normalisation = "none",
    ) -> None:
        super().__init__()
        if projection is not None and not isinstance(cell, LSTM):
            raise UsageError("projection needs the cell lstm: no other has one")
        self.cell, self.width, self.normalisation = cell, width, normalisation
        self.output_width = width if projection is None else projection
        self.watch: list[Seen] | None = None
        self.dropped_h: Tensor | None = None
        gates, fed = len(gates_of(cell)), len(fed_gates(cell))
        products = gates - (cell.bare is not None)  # gates with a product with the input
        rows = (
            products if input_width == width else gates
        )  # where the widths agree, the bare gate gets x itself
        self.weight_x = nn.Parameter(torch.empty(rows * width, input_width))
        self.weight_h = nn.Parameter(torch.empty(fed * width, self.output_width))
        self.bias = nn.Parameter(torch.empty(gates * width))
        self.bias_h = nn.Parameter(torch.empty(gates * width)) if has_hidden_bias(cell) else None
        self.weight_p = None if projection is None else nn.Parameter(torch.empty(projection, width))
        self.gain_x = self.gain_h = self.gain_c = self.bias_c = None
        self.norm_x = self.norm_h = self.norm_c = None
        if normalisation == "layer":
            self.gain_x, self.gain_h = (
                nn.Parameter(torch.ones(products * width)),
                nn.Parameter(torch.ones(fed * width)),
            )
        elif normalisation == "batch":
            self.norm_x, self.norm_h = StepBatchNorm(products * width), StepBatchNorm(fed * width)
        if normalisation != "none" and cell.states == 2:
            self.bias_c = nn.Parameter(torch.zeros(width))
            if normalisation == "layer":
                self.gain_c = nn.Parameter(torch.ones(width))
            else:
                self.norm_c = StepBatchNorm(width)
        self.steps_in_torch = normalisation == "none" and projection is None and has_step(cell)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_x Glorot-uniform and W_h orthogonal, block by block; biases 0, but 1 for a forget gate (Gers et
        al. 2000)."""
        for block in self.weight_x.chunk(len(self.weight_x) // self.width):
            nn.init.xavier_uniform_(block)
        for block in [
            *self.weight_h.chunk(len(self.weight_h) // self.width),
            *([] if self.weight_p is None else [self.weight_p]),
        ]:
            nn.init.orthogonal_(block)
        nn.init.zeros_(self.bias)
        if self.bias_h is not None:
            nn.init.zeros_(self.bias_h)
        names = gates_of(self.cell)
        if "f" in names:
            forget = names.index("f")
            nn.init.ones_(self.bias[forget * self.width : (forget + 1) * self.width])

    @property
    def used_h(self) -> Tensor:
        """W_h as the products with the state take it."""
        learned: dict[str, Any] = self._parameters
        return learned["weight_h"] if self.dropped_h is None else self.dropped_h

    @property
    def weights(self) -> LayerWeights:
        learned: dict[str, Any] = (
            self._parameters
        )  # each look-up through the module takes as long as a small operation
        return LayerWeights(
            w_x=learned["weight_x"],
            b=learned["bias"],
            w_h=self.used_h,
            b_h=learned.get("bias_h"),
            w_p=learned.get("weight_p"),
            gain_x=learned.get("gain_x"),
            gain_h=learned.get("gain_h"),
            gain_c=learned.get("gain_c"),
            bias_c=learned.get("bias_c"),
        )

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        return tuple(
            self.bias.new_zeros(rows, width) for width in (self.output_width, self.width)[: self.cell.states]
        )

    def linear(self, inputs: Tensor, start: int = 0) -> Tensor:
        """The linear part of `product`: `(..., input)` -> `(..., gates * width)`.

        It may be had in pieces: `inputs` being the columns of the whole input from `start` on, the pieces'
        sum is that of the whole.
        """
        width = inputs.shape[-1]
        whole = start == 0 and width == self.weight_x.shape[1]
        result = F.linear(inputs, self.weight_x if whole else self.weight_x[:, start : start + width]).to(
            inputs.dtype
        )
        missing = len(self.bias) - len(self.weight_x)
        if missing:
            at = gates_of(self.cell).index(str(self.cell.bare)) * self.width
            x = inputs if whole else F.pad(inputs, (start, self.width - start - width))
            result = torch.cat([result[..., :at], x, result[..., at:]], dim=-1)
        return result

    def product(self, linear: Tensor, number: int | None = None) -> Tensor:
        """The input's part of each gate: normalised, or squashed (MUT1), and b added."""
        bias = self.weights.input_bias()
        if not self.cell.squashed and self.normalisation == "none":
            return linear + bias
        parts, gain = [], 0
        for names, part in zip(
            self.cell.parts, linear.split_with_sizes(self._part_sizes(), dim=-1), strict=True
        ):
            if names == (self.cell.bare,):
                parts.append(torch.tanh(part) if self.cell.squashed else part)
                continue
            features = slice(gain, gain + part.shape[-1])
            gain = features.stop
            parts.append(self._normal(part, self.gain_x, self.norm_x, features, number))
        return torch.cat(parts, dim=-1) + bias

    def step(
        self, product: Tensor, state: CellState, scale: Tensor | None = None, number: int | None = None
    ) -> CellState:
        """One step, from the input's `product` `(rows, gates * width)`.

        `scale` `(rows, output_width)` multiplies the state before its products with weights (dropout of the
        state); `number` says which step it is, where batches are normalised.
        """
        new, _ = self._step(product, state, scale, number)
        if self.watch is not None:
            self.watch.append(Seen(product, state, new))
        return new

    def advance(self, x: Tensor, state: CellState, scale: Tensor | None = None) -> CellState:
        """One step from the input itself `(rows, input)`."""
        # autocast would give torch's step, and so the state, a type of its own
        if (
            self.steps_in_torch
            and scale is None
            and self.watch is None
            and not torch.is_autocast_enabled(x.device.type)
        ):
            learned = self._parameters  # each look-up through the module takes a twentieth of a step
            return one_step(
                self.cell, x, state, learned["weight_x"], self.used_h, learned["bias"], learned.get("bias_h")
            )
        return self.step(self.product(self.linear(x)), state, scale)

    def gates(self, product: Tensor, state: CellState, number: int | None = None) -> dict[str, Tensor]:
        """The values of the gates in a step, by name: each `(rows, width)`; `number` as in `step`."""
        new, kept = self._step(product, state, None, number)
        return gate_values(self.cell, kept, new)

    def _step(
        self, product: Tensor, state: CellState, scale: Tensor | None, number: int | None
    ) -> tuple[CellState, tuple[Tensor, ...]]:
        cell, state = (
            self.cell,
            tuple(part.to(product.dtype) for part in state),
        )  # autocast may have made it elsewhere
        nowhere = StepBuffers((None,) * cell.states, (None,) * len(cell.kept))
        return cell.forward(
            product.split_with_sizes(self._part_sizes(), dim=-1), state, self._tools(scale, number), nowhere
        )

    def _part_sizes(self) -> list[int]:
        return [len(part) * self.width for part in self.cell.parts]

    def _tools(self, scale: Tensor | None, number: int | None) -> CellOps:
        sizes = [size for size, fed in zip(self._part_sizes(), self.cell.fed, strict=True) if fed]
        products, start = [], 0
        for size, w in zip(
            sizes, self.used_h.split_with_sizes(sizes) if len(sizes) > 1 else [self.used_h], strict=True
        ):
            features = slice(start, start + size)
            start = features.stop
            norm = None
            if self.normalisation != "none":
                norm = partial(
                    self._normal, gain=self.gain_h, batch_norm=self.norm_h, features=features, number=number
                )
            products.append(PlainProduct(w, norm, scale))
        project = None if self.weight_p is None else PlainProduct(self.weight_p, None, None)
        norm_c = None
        if self.bias_c is not None:
            norm_c = lambda c: self._normal(c, self.gain_c, self.norm_c, slice(None), number) + self.bias_c  # noqa: E731
        return CellOps(tuple(products), self.weights.candidate_bias(), project, norm_c)  # type: ignore[arg-type]  # they have no `back`

    def _normal(
        self,
        values: Tensor,
        gain: Tensor | None,
        batch_norm: StepBatchNorm | None,
        features: slice,
        number: int | None,
    ) -> Tensor:
        if gain is not None:
            return F.layer_norm(values, values.shape[-1:], gain[features], None, EPSILON)
        if batch_norm is None:
            return values
        assert number is not None
        result: Tensor = batch_norm(values, number, features)
        return result

    def forward(
        self, inputs: Tensor, order: Order, state: CellState, scale: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)` -> outputs `(rows, steps, output_width)`, 0 at padding, and the
        state after the last true step in `order`."""
        learned = [inputs, *(weight for weight in self.weights if weight is not None), *state]
        keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
        outputs, *after = Unroll.apply(self.cell, order, keep, scale, inputs, *self.weights, *state)  # type: ignore[no-untyped-call]
        return outputs, tuple(after)

    def loop(
        self,
        inputs: Tensor,
        mask: Tensor | None,
        state: CellState,
        backward: bool = False,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, CellState]:
        """The same as a plain loop over `step`; at padding the outputs repeat the state."""
        products = self.product(self.linear(inputs)).unbind(dim=1)
        keep = StepMask(mask)
        outputs: list[Tensor] = [inputs] * len(products)
        for t in reversed(range(len(products))) if backward else range(len(products)):
            state = keep(t, self.step(products[t], state, scale), state)
            outputs[t] = state[0]
        if not outputs:
            return inputs.new_zeros(*inputs.shape[:2], self.output_width), state
        return torch.stack(outputs, dim=1), state

    def packed_loop(
        self, inputs: Tensor, order: Order, state: CellState, scale: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """The same over the true steps of `order`, each numbered: what batch normalisation needs."""
        placed = tuple(to_places(part, order) for part in state)
        scale = None if scale is None else to_places(scale, order)
        linear = self.linear(pack(inputs, order))
        outputs, ends = (
            [inputs.new_zeros(0, self.output_width)],
            [tuple(part[order.sizes[0] if order.sizes else 0 :] for part in placed)],
        )
        for step, part in enumerate(linear.split_with_sizes(order.sizes)):
            size = len(part)
            ends.append(tuple(old[size : order.sizes[step - 1]] if step else old[:0] for old in placed))
            placed = tuple(old[:size] for old in placed)
            placed = self.step(
                self.product(part, step), placed, None if scale is None else scale[:size], step
            )
            outputs.append(placed[0])
        if order.sizes:
            ends.append(placed)
        after = tuple(to_rows(torch.cat(parts), order) for parts in zip(*reversed(ends), strict=True))
        return unpack(torch.cat(outputs), order, inputs.shape), after


@final
class StepMask:
    """Keeps the old state at a step of padding; costs nothing at steps where no row is padded."""

    def __init__(self, mask: Tensor | None) -> None:
        self._columns = [] if mask is None else mask.unsqueeze(-1).unbind(dim=1)
        self._full = [] if mask is None else mask.all(dim=0).tolist()

    def __call__(self, step: int, new: CellState, old: CellState) -> CellState:
        if not self._columns or self._full[step]:
            return new
        return tuple(torch.where(self._columns[step], n, o) for n, o in zip(new, old, strict=True))
