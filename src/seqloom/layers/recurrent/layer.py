"""One recurrent layer in one direction: its weights, its step, and the plain loops over steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.recurrent.batch_norm import StepBatchNorm
from seqloom.layers.recurrent.cell_operations import EPSILON, LayerWeights
from seqloom.layers.recurrent.cells import (
    Cell,
    CellNorm,
    CellOps,
    CellState,
    GateTensors,
    StateProduct,
    StepBuffers,
    gate_names,
    gate_values,
    hidden_gate_names,
)
from seqloom.layers.recurrent.packing import PackedOrder, pack, sort_rows, unpack, unsort_rows
from seqloom.layers.recurrent.torch_kernels import has_step, one_step
from seqloom.layers.recurrent.unroll import Unroll

Normalisation = Literal["none", "layer", "batch"]


class WatchedStep(NamedTuple):
    """One step of a watched layer, in the autograd graph."""

    gates: Tensor
    """`(rows, gates * width)`: the input's part of each gate."""
    old: CellState
    new: CellState


@final
class PlainProduct(NamedTuple):
    """`u -> LN(W (u ⊙ scale))`, where there is a normalisation and a scale, for autograd."""

    w: Tensor
    norm: Callable[[Tensor], Tensor] | None
    scale: Tensor | None

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor:
        scaled = u if self.scale is None else u * self.scale
        result = F.linear(scaled, self.w).to(u.dtype)  # autocast multiplies in bfloat16
        if self.norm is not None:
            result = self.norm(result)
        return result if plus is None else result + plus


@final
class RecurrentLayer(nn.Module):
    """One layer in one direction.

    While `watch` is a list, the layer runs as a plain loop and adds each step to it. While `dropped_weight_h`
    is a tensor, it is used in place of `weight_h` (`weight_drop.py`). Raises UsageError for a projection of a
    cell other than the LSTM.
    """

    bias_shift: Tensor | None

    def __init__(
        self,
        cell: Cell,
        input_width: int,
        width: int,
        *,
        projection: int | None = None,
        normalisation: Normalisation = "none",
        forget_bias: float = 1.0,
        forget_shift: float = 0.0,
        chrono_steps: int = 0,
    ) -> None:
        super().__init__()
        self.forget_bias, self.forget_shift = forget_bias, forget_shift
        self.chrono_steps = chrono_steps
        if projection is not None and cell.state_count == 1:
            raise UsageError("projection needs the cell lstm: no other has one")
        self.cell, self.width, self.normalisation = cell, width, normalisation
        self.output_width = width if projection is None else projection
        self.watch: list[WatchedStep] | None = None
        self.dropped_weight_h: Tensor | None = None
        gates, hidden_gates = len(gate_names(cell)), len(hidden_gate_names(cell))
        products = gates - (cell.raw_input_gate is not None)  # gates with a product with the input
        # where the widths agree, the raw input gate gets x itself; else P x, whose P is one more block of W_x
        blocks = products if input_width == width else gates
        self.weight_x = nn.Parameter(torch.empty(blocks * width, input_width))
        self.weight_h = nn.Parameter(torch.empty(hidden_gates * width, self.output_width))
        self.bias = nn.Parameter(torch.empty(gates * width))
        self.bias_h = nn.Parameter(torch.empty(gates * width)) if cell.has_hidden_bias else None
        self.weight_p = None if projection is None else nn.Parameter(torch.empty(projection, width))
        self.gain_x = self.gain_h = self.gain_c = self.bias_c = None
        self.norm_x = self.norm_h = self.norm_c = None
        if normalisation == "layer":
            self.gain_x = nn.Parameter(torch.ones(products * width))
            self.gain_h = nn.Parameter(torch.ones(hidden_gates * width))
        elif normalisation == "batch":
            self.norm_x = StepBatchNorm(products * width)
            self.norm_h = StepBatchNorm(hidden_gates * width)
        if normalisation != "none" and cell.state_count == 2:
            self.bias_c = nn.Parameter(torch.zeros(width))
            if normalisation == "layer":
                self.gain_c = nn.Parameter(torch.ones(width))
            else:
                self.norm_c = StepBatchNorm(width)
        plain = normalisation == "none" and projection is None and not forget_shift
        self.uses_torch_step = plain and has_step(cell)
        self.register_buffer("bias_shift", self._bias_shift(), persistent=False)
        self.reset_parameters()

    def _bias_shift(self) -> Tensor | None:
        """`(gates * width,)`: what is added to the bias; None for nothing."""
        if not self.forget_shift:
            return None
        gates = gate_names(self.cell)
        shifts = self.bias.new_tensor([self.forget_shift * (gate == "f") for gate in gates])
        return shifts.repeat_interleave(self.width)

    def reset_parameters(self) -> None:
        """W_x Glorot-uniform and W_h orthogonal, block by block; biases 0, but for that of a forget gate
        (Gers et al. 2000), or with `chrono_steps` T b_f = log u, u uniform in 1..T-1, and b_i = -b_f, so that
        each unit remembers about u steps (Tallec and Ollivier 2018, equation 16)."""
        for block in self.weight_x.chunk(len(self.weight_x) // self.width):
            nn.init.xavier_uniform_(block)
        for block in self.weight_h.chunk(len(self.weight_h) // self.width):
            nn.init.orthogonal_(block)
        if self.weight_p is not None:
            nn.init.orthogonal_(self.weight_p)
        nn.init.zeros_(self.bias)
        if self.bias_h is not None:
            nn.init.zeros_(self.bias_h)
        names = gate_names(self.cell)
        if "f" in names:
            forget = names.index("f") * self.width
            nn.init.constant_(self.bias[forget : forget + self.width], self.forget_bias)
            if self.chrono_steps:
                steps = torch.empty(self.width).uniform_(1, max(2, self.chrono_steps) - 1)
                write = names.index("i") * self.width
                with torch.no_grad():
                    self.bias[forget : forget + self.width] = steps.log()
                    self.bias[write : write + self.width] = -steps.log()

    @property
    def _learned(self) -> Mapping[str, Tensor]:
        """The parameters. A look-up through the module takes as long as a small operation."""
        return self._parameters  # type: ignore[return-value]  # those that are None are no parameters

    @property
    def effective_weight_h(self) -> Tensor:
        """W_h as the products with the state use it."""
        return self._learned["weight_h"] if self.dropped_weight_h is None else self.dropped_weight_h

    @property
    def weights(self) -> LayerWeights:
        learned = self._learned
        optional = map(learned.get, ("bias_h", "weight_p", "gain_x", "gain_h", "gain_c", "bias_c"))
        bias = learned["bias"]
        if self.bias_shift is not None:
            bias = bias + self.bias_shift
        return LayerWeights(learned["weight_x"], bias, self.effective_weight_h, *optional)

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        widths = (self.output_width, self.width)[: self.cell.state_count]
        return tuple(self.bias.new_zeros(rows, width) for width in widths)

    # One step

    def input_product(self, inputs: Tensor, start: int = 0) -> Tensor:
        """The linear part of `input_gates`: `(..., input)` -> `(..., gates * width)`.

        It may be had in pieces: where `inputs` are the columns of the whole input from `start` on, the sum of
        the pieces' products is that of the whole.
        """
        width = inputs.shape[-1]
        whole = start == 0 and width == self.weight_x.shape[1]
        weight = self.weight_x if whole else self.weight_x[:, start : start + width]
        result = F.linear(inputs, weight).to(inputs.dtype)
        if len(self.weight_x) == len(self.bias):
            return result
        # the raw input gate has no block of W_x: x itself goes in between
        at = gate_names(self.cell).index(str(self.cell.raw_input_gate)) * self.width
        x = inputs if whole else F.pad(inputs, (start, self.width - start - width))
        return torch.cat([result[..., :at], x, result[..., at:]], dim=-1)

    def input_gates(self, product: Tensor, step_number: int | None = None) -> Tensor:
        """The input's part of each gate from `input_product`: normalised, or its tanh (MUT1), and b added."""
        bias = self.weights.input_bias()
        if not self.cell.tanh_on_input and self.normalisation == "none":
            return product + bias
        parts, first = [], 0
        groups = product.split_with_sizes(self._group_widths(), dim=-1)
        for names, part in zip(self.cell.gate_groups, groups, strict=True):
            if names == (self.cell.raw_input_gate,):
                parts.append(torch.tanh(part) if self.cell.tanh_on_input else part)
                continue
            features = slice(first, first + part.shape[-1])
            first = features.stop
            parts.append(self._normalise(part, self.gain_x, self.norm_x, features, step_number))
        return torch.cat(parts, dim=-1) + bias

    def step(
        self,
        gates: Tensor,
        state: CellState,
        scale: Tensor | None = None,
        step_number: int | None = None,
    ) -> CellState:
        """One step, from `input_gates` `(rows, gates * width)`.

        `scale` `(rows, output_width)` multiplies the state before its products with weights (dropout of the
        state); `step_number` is needed where batches are normalised.
        """
        new, _ = self._step(gates, state, scale, step_number)
        if self.watch is not None:
            self.watch.append(WatchedStep(gates, state, new))
        return new

    def step_from_input(
        self, x: Tensor, state: CellState, scale: Tensor | None = None
    ) -> CellState:
        """One step from the input itself `(rows, input)`."""
        # under autocast torch's step would give the state another type
        plain = (
            scale is None and self.watch is None and not torch.is_autocast_enabled(x.device.type)
        )
        if not (self.uses_torch_step and plain):
            return self.step(self.input_gates(self.input_product(x)), state, scale)
        learned = self._learned
        w_x, b, b_h = learned["weight_x"], learned["bias"], learned.get("bias_h")
        return one_step(self.cell, x, state, w_x, self.effective_weight_h, b, b_h)

    def gate_values(
        self, gates: Tensor, state: CellState, step_number: int | None = None
    ) -> dict[str, Tensor]:
        """The values of the gates in a step, by name: each `(rows, width)`; arguments as of `step`."""
        new, saved = self._step(gates, state, None, step_number)
        return gate_values(self.cell, saved, new)

    def _step(
        self, gates: Tensor, state: CellState, scale: Tensor | None, step_number: int | None
    ) -> tuple[CellState, GateTensors]:
        cell, x = self.cell, gates.split_with_sizes(self._group_widths(), dim=-1)
        # it may have been made under autocast
        state = tuple(part.to(gates.dtype) for part in state)
        new_tensors = StepBuffers((None,) * cell.state_count, (None,) * len(cell.saved_widths))
        return cell.forward(x, state, self._ops(scale, step_number), new_tensors)

    def _group_widths(self) -> list[int]:
        return [len(group) * self.width for group in self.cell.gate_groups]

    def _ops(self, scale: Tensor | None, step_number: int | None) -> CellOps:
        groups = zip(self._group_widths(), self.cell.reads_hidden, strict=True)
        sizes, weight_h = [size for size, reads in groups if reads], self.effective_weight_h
        products, first = [], 0
        for w in weight_h.split_with_sizes(sizes) if len(sizes) > 1 else [weight_h]:
            features = slice(first, first + len(w))
            first = features.stop
            norm = None
            if self.normalisation != "none":
                norm = partial(
                    self._normalise,
                    gain=self.gain_h,
                    batch_norm=self.norm_h,
                    features=features,
                    step_number=step_number,
                )
            products.append(PlainProduct(w, norm, scale))
        project = None if self.weight_p is None else PlainProduct(self.weight_p, None, None)

        def norm_c(c: Tensor) -> Tensor:
            assert self.bias_c is not None
            return (
                self._normalise(c, self.gain_c, self.norm_c, slice(None), step_number) + self.bias_c
            )

        return CellOps(
            cast(tuple[StateProduct, ...], tuple(products)),  # autograd needs no `backward`
            self.weights.candidate_bias(),
            cast(StateProduct | None, project),
            None if self.bias_c is None else cast(CellNorm, norm_c),
        )

    def _normalise(
        self,
        values: Tensor,
        gain: Tensor | None,
        batch_norm: StepBatchNorm | None,
        features: slice,
        step_number: int | None,
    ) -> Tensor:
        if gain is not None:
            return F.layer_norm(values, values.shape[-1:], gain[features], None, EPSILON)
        if batch_norm is None:
            return values
        assert step_number is not None
        result: Tensor = batch_norm(values, step_number, features)
        return result

    # All steps

    def forward(
        self, inputs: Tensor, order: PackedOrder, state: CellState, scale: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, input_width)` -> outputs `(rows, steps, output_width)`, 0 at padding, and the
        state after the last real step in `order`."""
        weights = self.weights
        learned = [inputs, *(weight for weight in weights if weight is not None), *state]
        keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
        tensors = inputs, *weights, *state
        outputs, *after = Unroll.apply(  # type: ignore[no-untyped-call]
            self.cell, order, keep, scale, *tensors
        )
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
        gates = self.input_gates(self.input_product(inputs)).unbind(dim=1)
        keep = StepMask(mask)
        outputs: list[Tensor] = [inputs] * len(gates)
        for t in reversed(range(len(gates))) if backward else range(len(gates)):
            state = keep(t, self.step(gates[t], state, scale), state)
            outputs[t] = state[0]
        if not outputs:
            return inputs.new_zeros(*inputs.shape[:2], self.output_width), state
        return torch.stack(outputs, dim=1), state

    def packed_loop(
        self, inputs: Tensor, order: PackedOrder, state: CellState, scale: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """The same over the real steps of `order`, each numbered, as batch normalisation needs."""
        state = tuple(sort_rows(part, order) for part in state)
        if scale is not None:
            scale = sort_rows(scale, order)
        rows = order.batch_sizes[0] if order.batch_sizes else 0
        outputs = [inputs.new_zeros(0, self.output_width)]
        # the last states of rows that have ended, shortest first
        ended = [tuple(part[rows:] for part in state)]
        state = tuple(part[:rows] for part in state)
        products = self.input_product(pack(inputs, order)).split_with_sizes(order.batch_sizes)
        for number, product in enumerate(products):
            size = len(product)
            ended.append(tuple(part[size:] for part in state))
            state = tuple(part[:size] for part in state)
            scale_now = None if scale is None else scale[:size]
            state = self.step(self.input_gates(product, number), state, scale_now, number)
            outputs.append(state[0])
        ended.append(state)
        after = tuple(
            unsort_rows(torch.cat(parts), order) for parts in zip(*reversed(ended), strict=True)
        )
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
