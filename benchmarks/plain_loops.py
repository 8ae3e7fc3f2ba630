"""The loops that a good user writes for a cell that torch.nn lacks: nn.Linear, the equations as they stand,
autograd, with the input's product taken out of the loop. (`peers.py` has the same in the hands of who knows
every fused operation.)
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from seqloom.layers.recurrent.cells import gate_names
from seqloom.layers.recurrent.layer import RecurrentLayer


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """With copies of these."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    return made


class PlainLoop(nn.Module):
    """One layer: inputs `(rows, steps, input)` -> outputs `(rows, steps, width)`."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.width, self.outputs = layer.width, layer.output_width
        self.of_input = linear(
            layer.weight_x, layer.bias if len(layer.weight_x) == len(layer.bias) else None
        )
        self.of_state = nn.ModuleList(
            linear(block) for block in layer.weight_h.chunk(len(layer.weight_h) // layer.width)
        )

    def prepared(self, inputs: Tensor) -> Tensor:
        """What is known of all steps before the first."""
        product: Tensor = self.of_input(inputs)
        return product

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        h, c = (
            inputs.new_zeros(len(inputs), self.outputs),
            inputs.new_zeros(len(inputs), self.width),
        )
        outputs = []
        for x in self.prepared(inputs).unbind(1):
            h, c = self.step(x, h, c)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


@final
class Elman(PlainLoop):
    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x + self.of_state[0](h)), c


@final
class ElmanRelu(PlainLoop):
    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x + self.of_state[0](h)), c


@final
class GRU(PlainLoop):
    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for_r, for_z, for_candidate = self.of_state
        x_r, x_z, x_candidate = x.chunk(3, -1)
        r, z = torch.sigmoid(x_r + for_r(h)), torch.sigmoid(x_z + for_z(h))
        return z * h + (1 - z) * torch.tanh(x_candidate + for_candidate(r * h)), c


class MUT(PlainLoop):
    """The three gates of a MUT in the order z, r, candidate; the bare one is x itself."""

    bare = ""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.bias, self.gates = nn.Parameter(layer.bias.detach().clone()), gate_names(layer.cell)

    def prepared(self, inputs: Tensor) -> Tensor:
        if not self.bare:
            return super().prepared(inputs)
        mapped = dict(
            zip(
                [gate for gate in self.gates if gate != self.bare],
                self.of_input(inputs).chunk(2, -1),
                strict=True,
            )
        )
        mapped[self.bare] = torch.tanh(inputs) if self.bare == "h" else inputs
        return torch.cat([mapped[gate] for gate in self.gates], dim=-1) + self.bias


@final
class MUT1(MUT):
    bare = "h"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for_r, for_candidate = self.of_state
        x_z, x_r, x_candidate = x.chunk(3, -1)
        z, r = torch.sigmoid(x_z), torch.sigmoid(x_r + for_r(h))
        return torch.tanh(for_candidate(r * h) + x_candidate) * z + h * (1 - z), c


@final
class MUT2(MUT):
    bare = "r"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for_z, for_r, for_candidate = self.of_state
        x_z, x_r, x_candidate = x.chunk(3, -1)
        z, r = torch.sigmoid(x_z + for_z(h)), torch.sigmoid(x_r + for_r(h))
        return torch.tanh(for_candidate(r * h) + x_candidate) * z + h * (1 - z), c


@final
class MUT3(PlainLoop):
    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for_z, for_r, for_candidate = self.of_state
        x_z, x_r, x_candidate = x.chunk(3, -1)
        z, r = torch.sigmoid(x_z + for_z(torch.tanh(h))), torch.sigmoid(x_r + for_r(h))
        return torch.tanh(for_candidate(r * h) + x_candidate) * z + h * (1 - z), c


class GatedLoop(PlainLoop):
    """Of an LSTM: one product with the state."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.of_state = nn.ModuleList([linear(layer.weight_h)])


@final
class ProjectedLSTM(GatedLoop):
    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        assert layer.weight_p is not None
        self.projection = linear(layer.weight_p)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (x + self.of_state[0](h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return self.projection(torch.sigmoid(o) * torch.tanh(c)), c


@final
class LayerNormLSTM(GatedLoop):
    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.of_input, self.bias = linear(layer.weight_x), nn.Parameter(layer.bias.detach().clone())
        dtype = layer.bias.dtype
        self.norm_x, self.norm_h = (
            nn.LayerNorm(4 * layer.width, bias=False, dtype=dtype) for _ in range(2)
        )
        self.norm_c = nn.LayerNorm(layer.width, dtype=dtype)
        copies = (
            (self.norm_x.weight, layer.gain_x),
            (self.norm_h.weight, layer.gain_h),
            (self.norm_c.weight, layer.gain_c),
        )
        with torch.no_grad():
            for mine, its in (*copies, (self.norm_c.bias, layer.bias_c)):
                assert its is not None
                mine.copy_(its)

    def prepared(self, inputs: Tensor) -> Tensor:
        normal: Tensor = self.norm_x(self.of_input(inputs)) + self.bias
        return normal

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (x + self.norm_h(self.of_state[0](h))).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(self.norm_c(c)), c
