"""What the driver (`unroll.py`) lends a cell: products with the input and with the state, and their gradients
by hand.

Layer normalisation (Ba et al. 2016): each product is normalised over the gates that are computed together, so
the sum of a gate is `LN(W_h h) + LN(W_x x) + b`, and the cell state before its tanh: `h = o ⊙ tanh(LN(c))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from seqloom.layers.recurrent.cells import Cell, CellOps, Parts, gates_of, tanh_slope
from seqloom.layers.recurrent.compiled_products import gemm
from seqloom.layers.recurrent.large_pages import fresh
from seqloom.layers.recurrent.layer_inputs import Inputs
from seqloom.layers.recurrent.onednn_products import Product
from seqloom.layers.recurrent.packing import steps_of

EPSILON = 1e-5
"""Added to the variance by layer normalisation."""


class LayerWeights(NamedTuple):
    """All that a layer in one direction learns."""

    w_x: Tensor
    """`(gates * width, input)`; the bare gate has no rows where input = width."""
    b: Tensor
    """`(gates * width,)`"""
    w_h: Tensor
    """`(fed gates * width, width of h)`"""
    b_h: Tensor | None
    """`(gates * width,)`, where a gate multiplies the product with the state, so that its bias is one of its
    own."""
    w_p: Tensor | None
    """`(width of h, width)`: the projection."""
    gain_x: Tensor | None
    """`(gates * width,)` but for the bare gate: layer normalisation of the input's product."""
    gain_h: Tensor | None
    """`(fed gates * width,)`: of the state's products."""
    gain_c: Tensor | None
    bias_c: Tensor | None
    """`(width,)`: of the cell state, before its tanh."""

    def width(self, cell: Cell) -> int:
        """Of a gate."""
        return len(self.b) // len(gates_of(cell))

    def input_bias(self) -> Tensor:
        """`(gates * width,)`: b, and b_h but for the candidate's."""
        if self.b_h is None:
            return self.b
        width = self.w_h.shape[1]
        return torch.cat([self.b[:-width] + self.b_h[:-width], self.b[-width:]])

    def candidate_bias(self) -> Tensor | None:
        return None if self.b_h is None else self.b_h[-self.w_h.shape[1] :]


class NormGradients(NamedTuple):
    """Of what the normalisations of a layer learn, where the loop over time finds them: as in `LayerWeights`."""

    b: Tensor
    gain_x: Tensor
    gain_h: Tensor
    gain_c: Tensor
    bias_c: Tensor


@final
class InputProduct:
    """The input's part of each gate, for all steps at once, and its gradients."""

    d_w: Tensor
    d_b: Tensor
    d_gain: Tensor | None
    """All three: once `back` has been called."""

    def __init__(self, cell: Cell, weights: LayerWeights) -> None:
        self.cell, self.weights = cell, weights
        self.bias = weights.input_bias()
        width = weights.width(cell)
        identity = cell.bare is not None and len(weights.w_x) < len(self.bias)
        self.places: list[tuple[slice, slice | None, slice | None]] = []
        """Of each part: in b, in W_x (None: x itself), in the gain (None: not normalised)."""
        gate = row = gain = 0
        for part in cell.parts:
            size, bare = len(part) * width, part == (cell.bare,)
            of_w = None if bare and identity else slice(row, row + size)
            of_gain = None if bare or weights.gain_x is None else slice(gain, gain + size)
            self.places.append((slice(gate, gate + size), of_w, of_gain))
            gate, row, gain = (
                gate + size,
                row + size * (of_w is not None),
                gain + size * (of_gain is not None),
            )

    def squashes(self, part: tuple[str, ...]) -> bool:
        return self.cell.squashed and part == (self.cell.bare,)

    def __call__(self, x: Inputs, *, normalise: bool = True) -> tuple[list[Tensor], list[Tensor]]:
        """-> the parts, and what `back` needs. Without `normalise`, of normalised layers, both are still to
        be filled by the loop over time, but for the product itself."""
        parts, saved = [], []
        for names, (of_b, of_w, of_gain) in zip(self.cell.parts, self.places, strict=True):
            b = self.bias[of_b]
            if of_w is not None and of_gain is None and not self.squashes(names):
                parts.append(x.times(self.weights.w_x[of_w], b))
                continue
            raw = x.packed if of_w is None else x.times(self.weights.w_x[of_w])
            if self.squashes(names):
                raw = torch.tanh(raw)
                saved.append(raw)
            if of_gain is not None:
                assert self.weights.gain_x is not None
                if normalise:
                    normal, *moments = torch.native_layer_norm(
                        raw, raw.shape[1:], self.weights.gain_x[of_gain], b, EPSILON
                    )
                else:
                    normal, *moments = (
                        fresh(raw, *raw.shape),
                        raw.new_empty(len(raw), 1),
                        raw.new_empty(len(raw), 1),
                    )
                saved += [raw, *moments]
                parts.append(normal)
            else:
                parts.append(raw + b)
        return parts, saved

    def back(
        self, d: Parts, x: Inputs, saved: Sequence[Tensor], needed: bool, found: NormGradients | None
    ) -> Tensor | None:
        """The gradient of the parts -> that of the layer's inputs (where needed). Where the loop has `found`
        those of the normalisation, d is that of the raw product."""
        weights = self.weights
        self.d_w = torch.empty_like(weights.w_x, memory_format=torch.contiguous_format)
        self.d_b = torch.empty_like(weights.b) if found is None else found.b
        self.d_gain = (
            None
            if weights.gain_x is None
            else torch.empty_like(weights.gain_x)
            if found is None
            else found.gain_x
        )
        rest, terms = iter(saved), []
        for names, d_part, (of_b, of_w, of_gain) in zip(self.cell.parts, d, self.places, strict=False):
            if found is None:
                torch.sum(d_part, dim=0, out=self.d_b[of_b])
            if of_gain is not None and found is None:
                assert weights.gain_x is not None
                assert self.d_gain is not None
                gain = weights.gain_x[of_gain]
                statistics = NormStatistics(next(rest), next(rest), next(rest))
                d_part, self.d_gain[of_gain] = layer_norm_gradients(d_part, statistics, gain)
            if self.squashes(names):
                d_part = tanh_slope(d_part, next(rest))
            if of_w is not None:
                x.weight_gradient(d_part, self.d_w[of_w])
            terms.append((d_part, None if of_w is None else weights.w_x[of_w]))
        return x.gradient(terms) if needed else None


@final
class Recurrence:
    """The products with the state as a cell uses them in the driver, and their gradients."""

    def __init__(self, cell: Cell, weights: LayerWeights, scale: Tensor | None, sizes: list[int]) -> None:
        self.weights, self.sizes, rows, uses = weights, sizes, sizes[0], len(sizes)
        width = weights.width(cell)
        blocks = [len(part) * width for part, fed in zip(cell.parts, cell.fed, strict=True) if fed]
        gains = [None] * len(blocks) if weights.gain_h is None else weights.gain_h.split_with_sizes(blocks)
        self.products = [
            StateProduct(w, gain, scale, rows, uses)
            for w, gain in zip(weights.w_h.split_with_sizes(blocks), gains, strict=True)
        ]
        self.project = None if weights.w_p is None else StateProduct(weights.w_p, None, None, rows, uses)
        self.norm_c = (
            None
            if weights.gain_c is None or weights.bias_c is None
            else StateNorm(weights.gain_c, weights.bias_c)
        )
        self.has_b_h = weights.b_h is not None
        self.d_b_h: Tensor | None = None
        self.tools = CellOps(tuple(self.products), weights.candidate_bias(), self.project, self.norm_c)
        self.left = [times * width for times in cell.left] + (
            [] if weights.w_p is None else [len(weights.w_p)]
        )
        """Widths of what a cell's steps back leave for `form_gradients` and for the input."""
        self.found: NormGradients | None = None
        """Where other loops than this module's find them."""
        self.normalised = [product for product in self.products if product.gain is not None]

    def buffers(self, like: Tensor) -> list[Tensor]:
        """For what the products are before they are normalised."""
        return [fresh(like, len(like), len(product.w)) for product in self.normalised]

    def moments(self) -> list[Tensor]:
        """What the steps forward found: means and deviations, for `prepare`."""
        found = [product.moments for product in self.normalised] + (
            [] if self.norm_c is None else [self.norm_c.moments]
        )
        return [torch.cat(part) for moments in found for part in zip(*moments, strict=True)]

    def moments_of(self, steps: int) -> list[Tensor]:
        """The same, still to be found, for so many true steps of all rows."""
        count = 2 * (len(self.normalised) + (self.norm_c is not None))
        return [self.products[0].w.new_empty(steps, 1) for _ in range(count)]

    def at(self, raws: Parts) -> None:
        """Before a step forward."""
        for product, raw in zip(self.normalised, raws, strict=True):
            product.raw = raw

    def prepare(self, raws: Sequence[Tensor], moments: Sequence[Tensor], c: Tensor) -> None:
        """Before the way back."""
        rest = iter(moments)
        for number, product in enumerate(self.products):
            product.prepare(
                NormStatistics(raws[number], next(rest), next(rest)) if raws else None, self.sizes
            )
        if self.norm_c is not None:
            self.norm_c.prepare(NormStatistics(c, next(rest), next(rest)), self.sizes)

    def back_at(self, step: int) -> None:
        """Before a step back."""
        for product in self.normalised:
            product.step = step
        if self.norm_c is not None:
            self.norm_c.step = step

    def left_to_find(
        self, raws: Sequence[Tensor], *, over: bool
    ) -> tuple[Tensor | None, NormGradients | None]:
        """In the place of `prepare`: where other loops than this module's leave the gradient of the raw
        product (over that itself, or not), and add those of the normalisations."""
        if not self.normalised:
            return None, None
        (product,), (raw,) = self.normalised, raws
        product.d_raws = raw if over else fresh(raw, *raw.shape)
        self.found = NormGradients(
            *(torch.zeros_like(getattr(self.weights, name)) for name in NormGradients._fields)
        )
        return product.d_raws, self.found

    def form_gradients(self, operands: tuple[tuple[Tensor, Tensor], ...], *, compiled: bool) -> None:
        """When all steps went back; with the compiled product, or torch's."""
        products = self.products if self.project is None else [*self.products, self.project]
        for product, (d, u) in zip(products, operands, strict=True):
            product.form_gradient(d, u, None if self.found is None else self.found.gain_h, compiled)
        if self.has_b_h:
            self.d_b_h = torch.cat([d.sum(dim=0) for d, _ in operands])
        if self.norm_c is not None:
            self.norm_c.form_gradient(self.found)

    def gradients(self, entry: InputProduct) -> LayerWeights:
        """Of all that the layer learns."""
        d_w_h = joined([product.d_w for product in self.products])
        d_gains = [product.d_gain for product in self.products if product.d_gain is not None]
        return LayerWeights(
            w_x=entry.d_w,
            b=entry.d_b,
            w_h=d_w_h,
            b_h=self.d_b_h,
            w_p=None if self.project is None else self.project.d_w,
            gain_x=entry.d_gain,
            gain_h=joined(d_gains) if d_gains else None,
            gain_c=None if self.norm_c is None else self.norm_c.d_gain,
            bias_c=None if self.norm_c is None else self.norm_c.d_bias,
        )


@final
class StateProduct:
    """`u -> LN(W (u ⊙ scale))`, each of the two where given, and its gradients."""

    d_w: Tensor
    """Once `form_gradient` has been called."""

    def __init__(self, w: Tensor, gain: Tensor | None, scale: Tensor | None, rows: int, uses: int) -> None:
        self.w, self.gain, self.scale, self.rows, self.uses = w, gain, scale, rows, uses
        self.ahead: Product | None = None
        self.behind: Product | None = None
        self.raw: Tensor | None = None
        """`(rows, out)`: where the step forward leaves what it normalises."""
        self.step = 0
        self.moments: list[Parts] = []
        self.raws: NormStatistics | None = None
        self.statistics: list[Parts] = []
        self.d_raws: Tensor | None = None
        self.d_raw: Sequence[Tensor] = ()
        self.scales: Tensor | None = None
        self.d_gain: Tensor | None = None

    def __call__(self, u: Tensor, plus: Tensor | None = None) -> Tensor:
        if self.ahead is None:
            self.ahead = Product(self.w, self.rows, self.uses)
        if self.scale is not None:
            u = u * self.scale[: u.shape[0]]
        if self.gain is None:
            return self.ahead(u, plus)
        assert self.raw is not None
        raw = self.ahead.into(u, self.raw)
        normal, *moments = torch.native_layer_norm(raw, raw.shape[1:], self.gain, None, EPSILON)
        self.moments.append(tuple(moments))
        return normal if plus is None else normal.add_(plus)

    def prepare(self, raws: NormStatistics | None, sizes: list[int]) -> None:
        """Before the way back."""
        if raws is not None:
            self.raws, self.d_raws = raws, fresh(raws.raw, *raws.raw.shape)
            self.statistics, self.d_raw = steps_of(raws, sizes), self.d_raws.split_with_sizes(sizes)
        if self.scale is not None:
            self.scales = torch.cat([self.scale[:size] for size in sizes])

    def back(self, d: Tensor, plus: Tensor | None = None) -> Tensor:
        if self.behind is None:
            self.behind = Product(self.w.T, self.rows, self.uses)
        if self.gain is not None:
            d = self.d_raw[self.step].copy_(layer_norm_back(d, self.statistics[self.step], self.gain))
        if self.scale is None:
            return self.behind(d, plus)
        d_u = self.behind(d).mul_(self.scale[: d.shape[0]])
        return d_u if plus is None else d_u.add_(plus)

    def form_gradient(self, d: Tensor, u: Tensor, d_gain: Tensor | None, compiled: bool) -> None:
        """When all steps went back; `d_gain` where it is known."""
        if self.gain is not None:
            assert self.d_raws is not None
            if d_gain is None:
                assert self.raws is not None
                d_gain = gain_gradient(d, self.raws)
            self.d_gain, d = d_gain, self.d_raws
        u = u if self.scales is None else u * self.scales
        self.d_w = (
            gemm(d.T, u, torch.empty_like(self.w, memory_format=torch.contiguous_format))
            if compiled
            else d.T @ u
        )


@final
class StateNorm:
    """`c -> LN(c)`, with a gain and a bias, and its gradients."""

    d_gain: Tensor
    d_bias: Tensor
    """Both: once `form_gradient` has been called."""

    def __init__(self, gain: Tensor, bias: Tensor) -> None:
        self.gain, self.bias = gain, bias
        self.step = 0
        self.moments: list[Parts] = []
        self.cs: NormStatistics | None = None
        self.statistics: list[Parts] = []
        self.ds: list[Tensor] = []

    def __call__(self, c: Tensor) -> Tensor:
        normal, *moments = torch.native_layer_norm(c, c.shape[1:], self.gain, self.bias, EPSILON)
        self.moments.append(tuple(moments))
        return normal

    def prepare(self, cs: NormStatistics, sizes: list[int]) -> None:
        self.cs, self.ds, self.statistics = cs, [], steps_of(cs, sizes)

    def back(self, d: Tensor) -> Tensor:
        self.ds.append(d)
        return layer_norm_back(d, self.statistics[self.step], self.gain)

    def form_gradient(self, found: NormGradients | None) -> None:
        if found is not None:
            self.d_gain, self.d_bias = found.gain_c, found.bias_c
            return
        assert self.cs is not None
        d = joined(self.ds[::-1])
        self.d_gain, self.d_bias = gain_gradient(d, self.cs), d.sum(dim=0)


def joined(parts: list[Tensor]) -> Tensor:
    """`torch.cat`, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class NormStatistics(NamedTuple):
    """What is normalised, its mean, and 1 / its standard deviation, each `(rows, 1)`."""

    raw: Tensor
    mean: Tensor
    deviation: Tensor


def layer_norm_gradients(
    d: Tensor, statistics: Parts, gain: Tensor, wanted: tuple[bool, bool] = (True, True)
) -> tuple[Tensor, Tensor]:
    """Of what is normalised, and of the gain."""
    raw, mean, deviation = statistics
    found = torch.ops.aten.native_layer_norm_backward(
        d, raw, raw.shape[1:], mean, deviation, gain, None, (*wanted, False)
    )
    return found[0], found[1]


def layer_norm_back(d: Tensor, statistics: Parts, gain: Tensor) -> Tensor:
    """The gradient of what is normalised."""
    return layer_norm_gradients(d, statistics, gain, (True, False))[0]


def gain_gradient(d: Tensor, statistics: NormStatistics) -> Tensor:
    return layer_norm_gradients(d, statistics, statistics.raw[0], (False, True))[1]
