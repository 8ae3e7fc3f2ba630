"""What our recurrent layers are measured against: torch.nn's, and the loops that a good user writes where
torch has none.

Every peer is made from one of our layers and has a copy of its weights, so that the tests can hold it to the
same outputs and gradients. A loop forms all that looks at no state before its first step, in one product; it
multiplies once for each thing that is multiplied, and uses torch's fused operations (addmm, addcmul, lerp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.layers.recurrent.torch_modules import to_torch


@final
class Full(nn.Module):
    """torch.nn's layers over full sequences."""

    def __init__(self, layers: RecurrentStack) -> None:
        super().__init__()
        self.module = to_torch(layers)

    def forward(self, inputs: Tensor, lengths: None) -> Tensor:
        """inputs `(rows, steps, width)` -> outputs `(rows, steps, width)`, as all models here."""
        outputs: Tensor = self.module(inputs)[0]
        return outputs


@final
class Packed(nn.Module):
    """torch.nn's layers over packed sequences, as users run them today."""

    def __init__(self, layers: RecurrentStack) -> None:
        super().__init__()
        self.module = to_torch(layers)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.module(packed)[0], batch_first=True)[0]


class Loop(nn.Module):
    """One layer as a loop over steps: inputs `(rows, steps, input)` -> outputs `(rows, steps, width)`."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.width = layer.width
        self.for_input, self.for_state, self.bias = (
            copied(layer.weight_x),
            copied(layer.weight_h),
            copied(layer.bias),
        )

    def product(self, inputs: Tensor) -> Tensor:
        """Of all steps."""
        return F.linear(inputs, self.for_input, self.bias)


def copied(weight: Tensor | None) -> nn.Parameter:
    """With a gradient of its own."""
    assert weight is not None
    return nn.Parameter(weight.detach().clone())


@final
class ElmanLoop(Loop):
    """Elman 1990: h' = tanh(W_x x + W_h h + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, weight, outputs = inputs.new_zeros(len(inputs), self.width), self.for_state.T, []
        for product in self.product(inputs).unbind(1):
            h = torch.addmm(product, h, weight).tanh()
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class ElmanReluLoop(Loop):
    """h' = max(0, W_x x + W_h h + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, weight, outputs = inputs.new_zeros(len(inputs), self.width), self.for_state.T, []
        for product in self.product(inputs).unbind(1):
            h = torch.addmm(product, h, weight).relu()
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class GRULoop(Loop):
    """Cho et al. 2014, as published: h̃ = tanh(W_x x + W_h (r ⊙ h) + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, outputs, parts = (
            inputs.new_zeros(len(inputs), self.width),
            [],
            [2 * self.width, self.width],
        )
        for_gates, for_candidate = self.for_state.T.split_with_sizes(parts, 1)
        gates, candidates = self.product(inputs).split_with_sizes(parts, -1)
        for gate, candidate in zip(gates.unbind(1), candidates.unbind(1), strict=True):
            r, z = torch.addmm(gate, h, for_gates).sigmoid().chunk(2, 1)
            h = torch.lerp(torch.addmm(candidate, r * h, for_candidate).tanh(), h, z)
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class MUT1Loop(Loop):
    """Jozefowicz et al. 2015: z = σ(W_xz x + b), r = σ(W_xr x + W_hr h + b), h̃ = tanh(W_hh (r ⊙ h) + tanh(x)
    + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, outputs, width = inputs.new_zeros(len(inputs), self.width), [], self.width
        for_r, for_candidate = self.for_state.T.chunk(2, 1)
        z, r = F.linear(inputs, self.for_input, self.bias[: 2 * width]).chunk(2, -1)
        candidate = inputs.tanh() + self.bias[2 * width :]
        for z_t, r_t, candidate_t in zip(
            z.sigmoid().unbind(1), r.unbind(1), candidate.unbind(1), strict=True
        ):
            reset = torch.addmm(r_t, h, for_r).sigmoid() * h
            h = torch.lerp(h, torch.addmm(candidate_t, reset, for_candidate).tanh(), z_t)
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class MUT2Loop(Loop):
    """z = σ(W_xz x + W_hz h + b), r = σ(x + W_hr h + b), h̃ = tanh(W_xh x + W_hh (r ⊙ h) + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, outputs, width = inputs.new_zeros(len(inputs), self.width), [], self.width
        for_gates, for_candidate = self.for_state.T.split_with_sizes([2 * width, width], 1)
        z_x, candidate_x = F.linear(inputs, self.for_input).chunk(2, -1)
        gates = torch.cat([z_x, inputs], -1) + self.bias[: 2 * width]
        candidates = candidate_x + self.bias[2 * width :]
        for gate, candidate in zip(gates.unbind(1), candidates.unbind(1), strict=True):
            z, r = torch.addmm(gate, h, for_gates).sigmoid().chunk(2, 1)
            h = torch.lerp(h, torch.addmm(candidate, r * h, for_candidate).tanh(), z)
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class MUT3Loop(Loop):
    """z = σ(W_xz x + W_hz tanh(h) + b), r = σ(W_xr x + W_hr h + b), h̃ = tanh(W_xh x + W_hh (r ⊙ h) + b)."""

    def forward(self, inputs: Tensor) -> Tensor:
        h, outputs = inputs.new_zeros(len(inputs), self.width), []
        for_z, for_r, for_candidate = self.for_state.T.chunk(3, 1)
        for z, r, candidate in zip(
            *(part.unbind(1) for part in self.product(inputs).chunk(3, -1)), strict=True
        ):
            reset = torch.addmm(r, h, for_r).sigmoid() * h
            new = torch.addmm(candidate, reset, for_candidate).tanh()
            h = torch.lerp(h, new, torch.addmm(z, h.tanh(), for_z).sigmoid())
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class ProjectedLSTMLoop(Loop):
    """Sak et al. 2014: as the LSTM, but h' = W_p (o ⊙ tanh(c'))."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.projection = copied(layer.weight_p)

    def forward(self, inputs: Tensor) -> Tensor:
        h, c = (
            inputs.new_zeros(len(inputs), len(self.projection)),
            inputs.new_zeros(len(inputs), self.width),
        )
        weight, projection, outputs = self.for_state.T, self.projection.T, []
        for product in self.product(inputs).unbind(1):
            i, f, g, o = torch.addmm(product, h, weight).chunk(4, 1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = (o.sigmoid() * c.tanh()) @ projection
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class LayerNormLSTMLoop(Loop):
    """Ba et al. 2016: the sums are LN(W_x x) + LN(W_h h) + b, and h' = o ⊙ tanh(LN(c'))."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.gain_input, self.gain_state = copied(layer.gain_x), copied(layer.gain_h)
        self.gain_cell, self.bias_cell = copied(layer.gain_c), copied(layer.bias_c)

    def forward(self, inputs: Tensor) -> Tensor:
        h = c = inputs.new_zeros(len(inputs), self.width)
        weight, outputs, sums, cells = self.for_state.T, [], (4 * self.width,), (self.width,)
        products = F.layer_norm(F.linear(inputs, self.for_input), sums, self.gain_input) + self.bias
        for product in products.unbind(1):
            i, f, g, o = (product + F.layer_norm(h @ weight, sums, self.gain_state)).chunk(4, 1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * F.layer_norm(c, cells, self.gain_cell, self.bias_cell).tanh()
            outputs.append(h)
        return torch.stack(outputs, 1)


@final
class Stack(nn.Module):
    """Loops, one above the other."""

    def __init__(self, kind: Callable[[RecurrentLayer], nn.Module], layers: RecurrentStack) -> None:
        super().__init__()
        self.loops = nn.Sequential(*(kind(layer) for layer in layers.stack))

    def forward(self, inputs: Tensor, lengths: None) -> Tensor:
        outputs: Tensor = self.loops(inputs)
        return outputs
