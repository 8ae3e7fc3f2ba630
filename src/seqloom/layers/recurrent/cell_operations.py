"""The operations that the driver (`unroll.py`) gives a cell: products with the input and with the state, and
their gradients by hand.

Layer normalisation (Ba et al. 2016): each product is normalised over the gates that are computed together, so
the sum of a gate is `LN(W_h h) + LN(W_x x) + b`; and so is the cell state before its tanh: `h = o ⊙
tanh(LN(c))`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast, final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cells import Cell, CellOps, GateTensors, gate_names, tanh_backward
from seqloom.layers.recurrent.compiled_products import gemm
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.layer_inputs import LayerInputs
from seqloom.layers.recurrent.onednn_products import RepeatedProduct
from seqloom.layers.recurrent.packing import split_steps

EPSILON = 1e-5
"""Added to the variance by layer normalisation."""


class LayerWeights(NamedTuple):
    """All that a layer in one direction learns."""

    w_x: Tensor
    """`(gates * width, input)`; the raw input gate has no rows where input = width."""
    b: Tensor
    """`(gates * width,)`"""
    w_h: Tensor
    """`(gates that read h * width, width of h)`"""
    b_h: Tensor | None
    """`(gates * width,)`: the bias of the products with the state, where a gate multiplies one of them."""
    w_p: Tensor | None
    """`(width of h, width)`: the projection."""
    gain_x: Tensor | None
    """`(gates * width,)` without the raw input gate: layer normalisation of the input's product."""
    gain_h: Tensor | None
    """`(gates that read h * width,)`: of the state's products."""
    gain_c: Tensor | None
    bias_c: Tensor | None
    """`(width,)`: of the cell state, before its tanh."""

    def width(self, cell: Cell) -> int:
        """Of a gate."""
        return len(self.b) // len(gate_names(cell))

    def input_bias(self) -> Tensor:
        """`(gates * width,)`: b, and b_h except for the candidate's."""
        if self.b_h is None:
            return self.b
        width = self.w_h.shape[1]
        return torch.cat([self.b[:-width] + self.b_h[:-width], self.b[-width:]])

    def candidate_bias(self) -> Tensor | None:
        return None if self.b_h is None else self.b_h[-self.w_h.shape[1] :]


class NormWeights(NamedTuple):
    """What the normalisations of a layer learn, as in `LayerWeights`; or the gradients of that."""

    b: Tensor
    gain_x: Tensor
    gain_h: Tensor
    gain_c: Tensor
    bias_c: Tensor

    @classmethod
    def of(cls, weights: LayerWeights) -> NormWeights:
        """Of a normalised LSTM, which has them all."""
        w = weights
        return cls(*cast(tuple[Tensor, ...], (w.b, w.gain_x, w.gain_h, w.gain_c, w.bias_c)))


class LoopBuffers(NamedTuple):
    """What the loop over time reads and fills, for all real steps in the packed order."""

    gates: list[Tensor]
    """For each group of gates the input's part `(real steps, gates * width)`."""
    saved: list[Tensor]
    """What the cell saves (`Cell.saved_widths`); the first ones are `gates`, overwritten, where widths
    agree."""
    states: list[Tensor]
    """`(rows + real steps, its width)`: the initial states, longest row first, then those after each step."""
    input_saved: list[Tensor]
    """What `InputProduct` saves: raw products, means and deviations of a normalised layer, tanh(x)."""
    raw_h: list[Tensor]
    """Of a normalised layer, each product with the state before it is normalised."""
    moments: list[Tensor]
    """Of a normalised layer, means and deviations of those products, then of the cell state: `(real steps,
    1)`."""


class GateBlock(NamedTuple):
    """Where a group of gates lies in a layer's weights."""

    bias: slice
    weight: slice | None
    """In W_x; None if the group gets x itself."""
    gain: slice | None
    """None if the group is not normalised."""
    has_tanh: bool
    """Whether the group gets tanh of its input."""


def gate_blocks(cell: Cell, weights: LayerWeights) -> list[GateBlock]:
    """In the order of `cell.gate_groups`."""
    width = weights.width(cell)
    has_x_itself = cell.raw_input_gate is not None and len(weights.w_x) < len(weights.b)
    blocks = []
    bias = row = gain = 0
    for group in cell.gate_groups:
        size, is_raw = len(group) * width, group == (cell.raw_input_gate,)
        in_weight = None if is_raw and has_x_itself else slice(row, row + size)
        in_gain = None if is_raw or weights.gain_x is None else slice(gain, gain + size)
        blocks.append(
            GateBlock(slice(bias, bias + size), in_weight, in_gain, is_raw and cell.tanh_on_input)
        )
        bias += size
        row += size if in_weight is not None else 0
        gain += size if in_gain is not None else 0
    return blocks


@final
class InputProduct:
    """The input's part of each gate, for all steps at once, and its gradients."""

    d_w: Tensor
    d_b: Tensor
    d_gain: Tensor | None
    """All three are set by `backward`."""

    def __init__(self, cell: Cell, weights: LayerWeights) -> None:
        self.weights, self.blocks = weights, gate_blocks(cell, weights)

    def __call__(
        self, x: LayerInputs, *, normalise: bool = True
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The parts, and what `backward` needs. Without `normalise`, a normalised layer gets both as empty
        memory for the loop over time to fill; only the product itself is there."""
        parts, saved, bias = list[Tensor](), list[Tensor](), self.weights.input_bias()
        for block in self.blocks:
            b = bias[block.bias]
            if block.weight is not None and block.gain is None and not block.has_tanh:
                parts.append(x.times(self.weights.w_x[block.weight], b))
                continue
            raw = x.packed if block.weight is None else x.times(self.weights.w_x[block.weight])
            if block.has_tanh:
                raw = torch.tanh(raw)
                saved.append(raw)
            if block.gain is None:
                parts.append(raw + b)
                continue
            assert self.weights.gain_x is not None
            if normalise:
                gain = self.weights.gain_x[block.gain]
                normal, *moments = torch.native_layer_norm(raw, raw.shape[1:], gain, b, EPSILON)
            else:
                normal, moments = (
                    fresh(raw, *raw.shape),
                    [raw.new_empty(len(raw), 1) for _ in range(2)],
                )
            saved += [raw, *moments]
            parts.append(normal)
        return parts, saved

    def backward(
        self, d: GateTensors, x: LayerInputs, saved: Sequence[Tensor], norms: NormWeights | None
    ) -> list[tuple[Tensor, Tensor | None]]:
        """The gradients of the parts -> the terms of the input's gradient (`LayerInputs.gradient`).

        `norms` are the gradients of what the normalisations learn where the loop over time has computed them;
        then d is the gradient of the raw product.
        """
        weights, remaining = self.weights, iter(saved)
        self.d_w = torch.empty_like(weights.w_x, memory_format=torch.contiguous_format)
        self.d_b = torch.empty_like(weights.b) if norms is None else norms.b
        self.d_gain = None if weights.gain_x is None else torch.empty_like(weights.gain_x)
        if norms is not None:
            self.d_gain = norms.gain_x
        terms: list[tuple[Tensor, Tensor | None]] = []
        for block, d_part in zip(self.blocks, d, strict=False):
            if norms is None:
                torch.sum(d_part, dim=0, out=self.d_b[block.bias])
            if block.gain is not None and norms is None:
                assert weights.gain_x is not None
                assert self.d_gain is not None
                statistics = NormStatistics(next(remaining), next(remaining), next(remaining))
                gain = weights.gain_x[block.gain]
                d_part, self.d_gain[block.gain] = layer_norm_gradients(d_part, statistics, gain)
            if block.has_tanh:
                d_part = tanh_backward(d_part, next(remaining))
            if block.weight is None:
                terms.append((d_part, None))
            else:
                x.weight_gradient(d_part, self.d_w[block.weight])
                terms.append((d_part, weights.w_x[block.weight]))
        return terms


@final
class StateOperations:
    """The products with the state as a cell uses them in the driver, and their gradients."""

    def __init__(
        self, cell: Cell, weights: LayerWeights, scale: Tensor | None, batch_sizes: list[int]
    ) -> None:
        self.weights, self.batch_sizes = weights, batch_sizes
        rows, steps, width = batch_sizes[0], len(batch_sizes), weights.width(cell)
        groups = zip(cell.gate_groups, cell.reads_hidden, strict=True)
        sizes = [len(group) * width for group, reads in groups if reads]
        w_h = weights.w_h.split_with_sizes(sizes)
        norms: list[StepNorm | None] = [None] * len(sizes)
        if weights.gain_h is not None:
            norms = [StepNorm(gain, None) for gain in weights.gain_h.split_with_sizes(sizes)]
        self.products = [
            DrivenProduct(w, norm, scale, rows, steps) for w, norm in zip(w_h, norms, strict=True)
        ]
        self.norm_h = [product.norm for product in self.products if product.norm is not None]
        self.project = (
            None if weights.w_p is None else DrivenProduct(weights.w_p, None, None, rows, steps)
        )
        self.norm_c: StepNorm | None = None
        if weights.gain_c is not None:
            self.norm_c = StepNorm(weights.gain_c, weights.bias_c)
        self.ops = CellOps(
            tuple(self.products), weights.candidate_bias(), self.project, self.norm_c
        )
        self.backward_widths = [times * width for times in cell.backward_widths]
        """Of what a cell's backward steps write."""
        if weights.w_p is not None:
            self.backward_widths.append(len(weights.w_p))
        self.norm_gradients: NormWeights | None = None
        """Where the compiled loop finds them."""
        self.d_b_h: Tensor | None = None

    @property
    def norms(self) -> list[StepNorm]:
        """In the order of `LoopBuffers.moments`."""
        return self.norm_h if self.norm_c is None else [*self.norm_h, self.norm_c]

    # The forward pass

    def empty_raw(self, like: Tensor) -> list[Tensor]:
        """`LoopBuffers.raw_h`, to be filled."""
        return [fresh(like, len(like), len(product.w)) for product in self.products if product.norm]

    def empty_moments(self, steps: int) -> list[Tensor]:
        """`LoopBuffers.moments`, to be filled by the compiled loop."""
        return [self.weights.b.new_empty(steps, 1) for _ in range(2 * len(self.norms))]

    def moments(self) -> list[Tensor]:
        """The same, computed by the forward steps of the driver's own loop."""
        by_norm = [zip(*norm.moments, strict=True) for norm in self.norms]
        return [torch.cat(of_all_steps) for moments in by_norm for of_all_steps in moments]

    def begin_forward_step(self, raw_h: GateTensors) -> None:
        for product, raw in zip(self.products, raw_h, strict=False):
            product.raw = raw

    # The backward pass of the driver's own loop

    def begin_backward(self, buffers: LoopBuffers, c: Tensor) -> None:
        """c `(real steps, width)`: what the last normalisation was given."""
        raw, moments = [*buffers.raw_h, c], iter(buffers.moments)
        for norm, values in zip(self.norms, raw, strict=False):
            norm.begin_backward(
                NormStatistics(values, next(moments), next(moments)), self.batch_sizes
            )
        for product in self.products:
            product.begin_backward(self.batch_sizes)

    def begin_backward_step(self, step: int) -> None:
        for norm in self.norms:
            norm.step = step
        for product in self.products:
            product.step = step

    # The backward pass of the compiled loop

    def compiled_gradients(
        self, raw_h: Sequence[Tensor], *, overwrite: bool
    ) -> tuple[Tensor | None, NormWeights | None]:
        """In place of `begin_backward`: where the compiled loop writes the gradient of the raw product (over
        that itself where `overwrite`), and zeros to which it adds those of what the normalisations learn."""
        if not self.norm_h:
            return None, None
        (product,), (raw,) = self.products, raw_h
        product.d_raw = raw if overwrite else fresh(raw, *raw.shape)
        self.norm_gradients = NormWeights(*map(torch.zeros_like, NormWeights.of(self.weights)))
        return product.d_raw, self.norm_gradients

    # After either

    def finish_backward(
        self, operands: tuple[tuple[Tensor, Tensor], ...], *, compiled: bool
    ) -> None:
        """The gradient of each weight in one product over all steps: the compiled one, or torch's."""
        if self.norm_gradients is not None:
            self.norm_h[0].d_gain = self.norm_gradients.gain_h
            if self.norm_c is not None:
                self.norm_c.d_gain, self.norm_c.d_bias = (
                    self.norm_gradients.gain_c,
                    self.norm_gradients.bias_c,
                )
        else:
            for norm, (d, _) in zip(self.norm_h, operands, strict=False):
                norm.finish_backward(d)
            if self.norm_c is not None:
                self.norm_c.finish_backward(joined(self.norm_c.d_outputs[::-1]))
        products = self.products if self.project is None else [*self.products, self.project]
        for product, (d, u) in zip(products, operands, strict=True):
            product.finish_backward(d, u, compiled)
        if self.weights.b_h is not None:
            self.d_b_h = torch.cat([d.sum(dim=0) for d, _ in operands])

    def gradients(self, entry: InputProduct) -> LayerWeights:
        """Of all that the layer learns."""
        norm_c = self.norm_c
        return LayerWeights(
            w_x=entry.d_w,
            b=entry.d_b,
            w_h=joined([product.d_w for product in self.products]),
            b_h=self.d_b_h,
            w_p=None if self.project is None else self.project.d_w,
            gain_x=entry.d_gain,
            gain_h=joined([norm.d_gain for norm in self.norm_h]) if self.norm_h else None,
            gain_c=None if norm_c is None else norm_c.d_gain,
            bias_c=None if norm_c is None else norm_c.d_bias,
        )


@final
class DrivenProduct:
    """`u -> LN(W (u ⊙ scale))`, where there is a normalisation and a scale, and its gradients."""

    d_w: Tensor
    """Set by `finish_backward`."""
    d_raw: Tensor
    """`(real steps, out)`: the gradient of the product before it is normalised."""

    def __init__(
        self, w: Tensor, norm: StepNorm | None, scale: Tensor | None, rows: int, steps: int
    ) -> None:
        self.w, self.norm, self.scale, self.rows, self.steps = w, norm, scale, rows, steps
        self.raw: Tensor | None = None
        """`(rows, out)`: where a forward step writes what it normalises."""
        self.step = 0
        self.d_raw_by_step: Sequence[Tensor] = ()
        self.scale_of_steps: Tensor | None = None

    @functools.cached_property
    def _product(self) -> RepeatedProduct:
        return RepeatedProduct(self.w, self.rows, self.steps)

    @functools.cached_property
    def _transposed(self) -> RepeatedProduct:
        return RepeatedProduct(self.w.T, self.rows, self.steps)

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor:
        if self.scale is not None:
            u = u * self.scale[: u.shape[0]]
        if self.norm is None:
            return self._product(u, plus)
        assert self.raw is not None
        normal = self.norm(self._product.into(u, self.raw))
        return normal if plus is None else normal.add_(plus)

    def begin_backward(self, batch_sizes: list[int]) -> None:
        if self.norm is not None:
            raw = self.norm.statistics.raw
            self.d_raw = fresh(raw, *raw.shape)
            self.d_raw_by_step = self.d_raw.split_with_sizes(batch_sizes)
        if self.scale is not None:
            self.scale_of_steps = torch.cat([self.scale[:size] for size in batch_sizes])

    def backward(self, d: Tensor, plus: Tensor | None = None) -> Tensor:
        if self.norm is not None:
            d = self.d_raw_by_step[self.step].copy_(self.norm.backward(d))
        if self.scale is None:
            return self._transposed(d, plus)
        d_u = self._transposed(d).mul_(self.scale[: d.shape[0]])
        return d_u if plus is None else d_u.add_(plus)

    def finish_backward(self, d: Tensor, u: Tensor, compiled: bool) -> None:
        """After all backward steps: d and u as in `Cell.operands`."""
        d = d if self.norm is None else self.d_raw
        u = u if self.scale_of_steps is None else u * self.scale_of_steps
        if compiled:
            out = torch.empty_like(self.w, memory_format=torch.contiguous_format)
            self.d_w = gemm(d.T, u, out)
        else:
            self.d_w = d.T @ u


@final
class StepNorm:
    """Layer normalisation of one step after the other, with a gain and perhaps a bias, and its gradients."""

    statistics: NormStatistics
    """Of all steps; set by `begin_backward`."""
    d_gain: Tensor
    d_bias: Tensor | None
    """Both are set by `finish_backward`."""

    def __init__(self, gain: Tensor, bias: Tensor | None) -> None:
        self.gain, self.bias = gain, bias
        self.step = 0
        self.moments: list[GateTensors] = []
        """Of each forward step, mean and deviation."""
        self.by_step: list[GateTensors] = []
        self.d_outputs: list[Tensor] = []
        """Of each backward step, the gradient of what is normalised."""

    def __call__(self, values: Tensor) -> Tensor:
        normal, *moments = torch.native_layer_norm(
            values, values.shape[1:], self.gain, self.bias, EPSILON
        )
        self.moments.append(tuple(moments))
        return normal

    def begin_backward(self, statistics: NormStatistics, batch_sizes: list[int]) -> None:
        self.statistics, self.by_step = statistics, split_steps(statistics, batch_sizes)

    def backward(self, d: Tensor) -> Tensor:
        self.d_outputs.append(d)
        return layer_norm_gradients(d, self.by_step[self.step], self.gain, (True, False))[0]

    def finish_backward(self, d: Tensor) -> None:
        """d `(real steps, width)`: the gradient of what is normalised, of all steps."""
        raw = self.statistics.raw
        self.d_gain = layer_norm_gradients(d, self.statistics, raw[0], (False, True))[1]
        self.d_bias = None if self.bias is None else d.sum(dim=0)


def joined(parts: list[Tensor]) -> Tensor:
    """`torch.cat`, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class NormStatistics(NamedTuple):
    """What is normalised, its mean, and 1 / its standard deviation, each `(rows, 1)`."""

    raw: Tensor
    mean: Tensor
    deviation: Tensor


def layer_norm_gradients(
    d: Tensor, statistics: GateTensors, gain: Tensor, wanted: tuple[bool, bool] = (True, True)
) -> tuple[Tensor, Tensor]:
    """Of what is normalised, and of the gain."""
    raw, mean, deviation = statistics
    gradients: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        d, raw, raw.shape[1:], mean, deviation, gain, None, (*wanted, False)
    )
    return gradients[0], gradients[1]
