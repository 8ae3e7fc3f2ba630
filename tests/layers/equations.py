"""The recurrent cells' equations, one row and one step at a time: what the tests of this folder hold the
layers to.

Nothing here calls the code under test; only its weights are read, so that autograd gives their gradients too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.layers.recurrent.cells import CELLS, LSTM, CellState
from seqloom.layers.recurrent.layer import Normalisation, RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.testing import tensors

ROWS, STEPS, INPUT, WIDTH, PROJECTION = 4, 6, 3, 4, 2
SHIFT = 1.0
"""Of the forget gate's bias, where it has one."""

MASKS = {
    "full": [[1] * 6] * 4,
    "right": [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]],
    "anywhere, one row empty": [
        [0, 0, 1, 1, 0, 1],
        [1, 0, 1, 0, 0, 1],
        [0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1],
    ],
    "nothing": [[0] * 6] * 4,
    "no steps": [[]] * 4,
}


def mask_named(name: str) -> Tensor:
    return torch.tensor(MASKS[name], dtype=torch.bool)


ANYWHERE = mask_named("anywhere, one row empty")


drawn, gradients = tensors.draw, tensors.gradients
draw_parameters = partial(tensors.draw_parameters, std=0.6)


def close(actual: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    tensors.assert_close(actual, expected, rtol, atol)


def layers_of(cell: str, input_width: int = INPUT, **options: Any) -> RecurrentStack:
    layers = RecurrentStack(RecurrentStackConfig(cell, input_width, WIDTH, **options)).double()
    draw_parameters(layers)
    return layers


def states_of(layers: RecurrentStack, rows: int = ROWS) -> CellState:
    return tuple(drawn(*part.shape, seed=5 + i) for i, part in enumerate(layers.start(rows)))


class Variant(NamedTuple):
    """A cell with its options."""

    cell: str
    input_width: int
    projection: int | None
    normalisation: Normalisation
    scaled: bool
    """Whether the state is scaled (as by dropout) before its products."""
    limit: float | None = None
    """Of c and of a projected h of an LSTM, whose forget gate then has a shifted bias too."""

    def layer(self) -> RecurrentLayer:
        options: dict[str, Any] = {
            "projection": self.projection,
            "normalisation": self.normalisation,
        }
        cell = CELLS[self.cell]
        if self.limit is not None:
            cell = LSTM(cell_clip=self.limit, projection_clip=self.limit)
            options["forget_shift"] = SHIFT
        layer = RecurrentLayer(cell, self.input_width, WIDTH, **options).double()
        draw_parameters(layer)
        return layer

    def scale(self, layer: RecurrentLayer, rows: int = ROWS) -> Tensor | None:
        """As of dropout: 0 or more."""
        return drawn(rows, layer.output_width, seed=9).clamp(min=0) * 2 if self.scaled else None


def _variants() -> dict[str, Variant]:
    widths: list[tuple[str, str, int, int | None]] = [(cell, cell, INPUT, None) for cell in CELLS]
    widths += [("lstm projected", "lstm", INPUT, PROJECTION)]
    widths += [(f"{cell} of its width", cell, WIDTH, None) for cell in BARE]
    kinds: list[tuple[str, Normalisation, bool]] = [
        ("", "none", False),
        (", normalised", "layer", False),
        (", state scaled", "none", True),
        (", normalised, state scaled", "layer", True),
    ]
    variants = {
        name + more: Variant(cell, input_width, projection, normalisation, scaled)
        for name, cell, input_width, projection in widths
        for more, normalisation, scaled in kinds
    }
    clipped = Variant("lstm", INPUT, PROJECTION, "none", False, 0.5)
    return variants | {
        "lstm projected, clipped": clipped,
        "lstm clipped, normalised": clipped._replace(projection=None, normalisation="layer"),
    }


# The equations


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def tanh(x: Tensor) -> Tensor:
    return (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)


PARTS: dict[str, tuple[str, ...]] = {
    "elman": ("h",),
    "elman-relu": ("h",),
    "elman-sigmoid": ("h",),
    "lstm": ("ifgo",),
    "gru": ("rz", "h"),
    "gru-torch": ("rz", "h"),
    "mut1": ("z", "r", "h"),
    "mut2": ("z", "r", "h"),
    "mut3": ("z", "r", "h"),
}
"""The gates in the order of their weights; a normalisation takes those of one string together."""

BARE = {"mut1": "h", "mut2": "r"}
"""The gate that gets x itself."""

UNFED = {"mut1": "z"}
"""The gate that the state does not reach."""

Statistics = Callable[[str, str, Tensor], tuple[Tensor, Tensor]]
"""(x, h or c, the gates, values `(rows, width)`) -> mean and variance of each feature, for batch
normalisation."""


class Sums:
    """What stands inside the gates of one layer, gate by gate."""

    def __init__(
        self,
        cell: str,
        layer: RecurrentLayer,
        scale: Tensor | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        """`scale` `(width of h,)`: of one row's state."""
        gates = "".join(PARTS[cell])
        with_product, fed = (gates.replace(without.get(cell, " "), "") for without in (BARE, UNFED))
        mapped = gates if len(layer.weight_x) == WIDTH * len(gates) else with_product
        self.w_x, self.w_h = blocks(mapped, layer.weight_x), blocks(fed, layer.weight_h)
        self.biases = blocks(gates, layer.bias)
        self.biases_h = {} if layer.bias_h is None else blocks(gates, layer.bias_h)
        x, h, self.gain_c = layer.gain_x, layer.gain_h, layer.gain_c
        if layer.norm_x is not None and layer.norm_h is not None:
            x, h = layer.norm_x.gain, layer.norm_h.gain
        if layer.norm_c is not None:
            self.gain_c = layer.norm_c.gain
        self.gains = {
            "x": {} if x is None else blocks(with_product, x),
            "h": {} if h is None else blocks(fed, h),
        }
        self.bias_c, self.w_p = layer.bias_c, layer.weight_p
        self.bare, self.scale, self.statistics = BARE.get(cell), scale, statistics
        self.limit = layer.cell.cell_clip if isinstance(layer.cell, LSTM) else None
        if self.limit is not None:
            self.biases["f"] = self.biases["f"] + SHIFT

    def x(self, gates: str, x: Tensor) -> Tensor:
        """W_x x of gates that stand together, normalised; of the bare gate x itself, or P x where the widths
        differ."""
        if gates == self.bare:
            return x @ self.w_x[gates].T if gates in self.w_x else x
        return self._normal("x", gates, torch.cat([x @ self.w_x[gate].T for gate in gates], dim=-1))

    def h(self, gates: str, u: Tensor) -> Tensor:
        """W_h u, u being scaled before and the product normalised after."""
        u = u if self.scale is None else u * self.scale
        return self._normal("h", gates, torch.cat([u @ self.w_h[gate].T for gate in gates], dim=-1))

    def b(self, gates: str) -> Tensor:
        return torch.cat([self.biases[gate] for gate in gates])

    def b_h(self, gates: str) -> Tensor:
        return torch.cat([self.biases_h[gate] for gate in gates])

    def c(self, c: Tensor) -> Tensor:
        return (
            c
            if self.gain_c is None or self.bias_c is None
            else self._normalise("c", "", c, self.gain_c) + self.bias_c
        )

    def projected(self, h: Tensor) -> Tensor:
        return h if self.w_p is None else self.clipped(h @ self.w_p.T)

    def clipped(self, value: Tensor) -> Tensor:
        return value if self.limit is None else value.clamp(-self.limit, self.limit)

    def _normal(self, which: str, gates: str, values: Tensor) -> Tensor:
        gains = self.gains[which]
        return (
            self._normalise(which, gates, values, torch.cat([gains[gate] for gate in gates]))
            if gains
            else values
        )

    def _normalise(self, which: str, gates: str, values: Tensor, gain: Tensor) -> Tensor:
        if self.statistics is not None:
            mean, variance = self.statistics(which, gates, values)
        else:
            mean = values.mean(dim=-1, keepdim=True)
            variance = ((values - mean) ** 2).mean(dim=-1, keepdim=True)
        return gain * (values - mean) / torch.sqrt(variance + 1e-5)


def blocks(gates: str, whole: Tensor) -> dict[str, Tensor]:
    return dict(zip(gates, whole.split_with_sizes([WIDTH] * len(gates)), strict=True))


Gates = dict[str, Tensor]
Equations = Callable[[Sums, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Gates]]
"""(sums, x_t, h_{t-1}, c_{t-1}) -> h_t, c_t, and the values of the gates."""


def elman(g: Callable[[Tensor], Tensor]) -> Equations:
    def step(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
        h = g(s.x("h", x) + s.h("h", h) + s.b("h"))
        return h, c, {"h": h}

    return step


def lstm(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    i, f, g, o = (s.x("ifgo", x) + s.h("ifgo", h) + s.b("ifgo")).chunk(4, dim=-1)
    i, f, g, o = sigma(i), sigma(f), tanh(g), sigma(o)
    c = s.clipped(f * c + i * g)
    return s.projected(o * tanh(s.c(c))), c, {"i": i, "f": f, "g": g, "o": o}


def gru_published(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    r, z = sigma(s.x("rz", x) + s.h("rz", h) + s.b("rz")).chunk(2, dim=-1)
    candidate = tanh(s.x("h", x) + s.h("h", r * h) + s.b("h"))
    return z * h + (1 - z) * candidate, c, {"r": r, "z": z, "h": candidate}


def gru_of_torch(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    r, z = sigma(s.x("rz", x) + s.b("rz") + s.h("rz", h) + s.b_h("rz")).chunk(2, dim=-1)
    candidate = tanh(s.x("h", x) + s.b("h") + r * (s.h("h", h) + s.b_h("h")))
    return z * h + (1 - z) * candidate, c, {"r": r, "z": z, "h": candidate}


def mut1(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    z = sigma(s.x("z", x) + s.b("z"))
    r = sigma(s.x("r", x) + s.h("r", h) + s.b("r"))
    candidate = tanh(s.h("h", r * h) + tanh(s.x("h", x)) + s.b("h"))
    return candidate * z + h * (1 - z), c, {"z": z, "r": r, "h": candidate}


def mut2(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    z = sigma(s.x("z", x) + s.h("z", h) + s.b("z"))
    r = sigma(s.x("r", x) + s.h("r", h) + s.b("r"))
    candidate = tanh(s.h("h", r * h) + s.x("h", x) + s.b("h"))
    return candidate * z + h * (1 - z), c, {"z": z, "r": r, "h": candidate}


def mut3(s: Sums, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Gates]:
    z = sigma(s.x("z", x) + s.h("z", tanh(h)) + s.b("z"))
    r = sigma(s.x("r", x) + s.h("r", h) + s.b("r"))
    candidate = tanh(s.h("h", r * h) + s.x("h", x) + s.b("h"))
    return candidate * z + h * (1 - z), c, {"z": z, "r": r, "h": candidate}


EQUATIONS: dict[str, Equations] = {
    "elman": elman(tanh),
    "elman-relu": elman(lambda x: x.clamp(min=0)),
    "elman-sigmoid": elman(sigma),
    "lstm": lstm,
    "gru": gru_published,
    "gru-torch": gru_of_torch,
    "mut1": mut1,
    "mut2": mut2,
    "mut3": mut3,
}

VARIANTS = _variants()


# Over time


def written_out(
    cell: str,
    layer: RecurrentLayer,
    inputs: Tensor,
    mask: Tensor,
    state: CellState,
    *,
    scale: Tensor | None = None,
    backward: bool = False,
) -> tuple[Tensor, CellState]:
    """Row after row: the outputs, 0 at padding, and the state after the last true step."""
    outputs: list[Tensor] = []
    ends: list[CellState] = []
    for row, real in enumerate(mask.tolist()):
        sums = Sums(cell, layer, None if scale is None else scale[row])
        h, c = state[0][row], state[-1][row]
        at = [torch.zeros_like(h)] * len(real)
        steps = [t for t, true in enumerate(real) if true]
        for t in reversed(steps) if backward else steps:
            h, c, _ = EQUATIONS[cell](sums, inputs[row, t], h, c)
            at[t] = h
        outputs.append(torch.stack(at))
        ends.append((h, c)[: len(state)])
    return torch.stack(outputs), tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def stack_written_out(
    layers: RecurrentStack, inputs: Tensor, mask: Tensor, state: CellState | None = None
) -> tuple[Tensor, CellState]:
    """Layer k reads [→h; ←h] of layer k-1, connected; the final states are →h_n and ←h_1, layer by layer."""
    state = layers.start(len(inputs)) if state is None else state
    below, ends = inputs, list[CellState]()
    for k, ahead in enumerate(layers.stack):
        both = [ahead, *list(layers.backward_layers)[k : k + 1]]
        found = []
        for backward, layer in enumerate(both):
            assert isinstance(layer, RecurrentLayer)
            start = tuple(part[:, len(ends)] for part in state)
            outputs, end = written_out(
                layers.config.cell, layer, below, mask, start, backward=bool(backward)
            )
            found.append(outputs)
            ends.append(end)
        h = torch.cat(found, dim=-1)
        if k and layers.config.connection == "residual":
            h = h + below
        elif k and layers.config.connection == "highway":
            to_gate = layers.highways[k - 1].linear
            assert isinstance(to_gate, nn.Linear)
            gate = sigma(below @ to_gate.weight.T + to_gate.bias)
            h = gate * h + (1 - gate) * below
        below = h * mask[..., None]
    return below, tuple(torch.stack(parts, dim=1) for parts in zip(*ends, strict=True))
