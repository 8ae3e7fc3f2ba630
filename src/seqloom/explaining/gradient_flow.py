"""Gradient flow through time in the recurrent layers of any model: where it vanishes, where it does not, and
why.

    ∂L/∂h_t        gradient of the loss at each state: from its own step, and from all later ones
    ∂h_n/∂h_t      how the last state depends on an earlier one. With a loss at every step only this shows
                   vanishing, for ∂L/∂h_t is then mostly the loss of the next few steps. In an Elman RNN it is
                   ∏ diag(g'(a_k)) W_h, k = t+1 .. n; in an LSTM ∂c_n/∂c_t has the open path ∏ diag(f_k)
    W_h            singular values bound how much one step can keep, eigenvalues tell about many steps
    gates          what opens and closes those paths

(Hochreiter 1991; Bengio, Simard and Frasconi 1994; Pascanu, Mikolov and Bengio 2013.)

Steps are counted in the order in which a layer reads, so step 0 of a backward direction is the last token.
Padding is not a step. All derivatives are those of the whole model: ∂c_n/∂c_t includes the paths through h as
well, and in a decoder with attention ∂h_n/∂h_t includes the paths through the attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy
import numpy.typing
import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.explaining.recurrent_steps import (
    NamedLayer,
    StepSequence,
    recorded_steps,
    recurrent_layers,
    step_sequences,
)
from seqloom.layers.recurrent.cells import CELLS, hidden_gate_names
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.protocols import Loss

STATES = ("h", "c")
"""The parts of a state, in the order of CellState."""

DIRECTIONS = 16
"""Orthonormal random directions for each row, from which ‖∂s_n/∂s_t‖ is computed: exact up to this width,
beyond it an estimate whose error over 64 rows is a few percent."""


@final
@dataclass(frozen=True, kw_only=True)
class NormCurve:
    """A norm at each position, over the rows that have the position."""

    mean: list[float]
    median: list[float]
    """The typical row: where norms span many powers of ten, the mean is that of a single row."""
    rows: list[int]
    """The number of rows at each position."""


@final
@dataclass(frozen=True, kw_only=True)
class StateFlow:
    """How gradient flows along one part s of the state: h, or the LSTM's c."""

    gradient_from_start: NormCurve
    """‖∂L/∂s_t‖, at position t: the number of steps before it. L is the sum over a row."""
    gradient_from_end: NormCurve
    """The same, at position n - t: the number of steps after it."""
    gradient_per_step: float
    """The factor by which it changes with each step back, fitted to the median's logarithm; NaN where the
    median is 0 everywhere."""
    jacobian: NormCurve
    """‖∂s_n/∂s_t‖_F / √width at position n - t: 1 at 0, and 1 everywhere if nothing is lost (J
    orthogonal)."""
    jacobian_per_step: float


@final
@dataclass(frozen=True, kw_only=True)
class GateFlow:
    """A gate's values at each step from the start, over all rows and units."""

    mean: list[float]
    low: list[float]
    """The 5th percentile."""
    high: list[float]
    """The 95th."""


@final
@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values and eigenvalues of one block of W_h, largest first."""

    singular_values: list[float]
    eigenvalue_moduli: list[float]
    """Empty where the block is not square (a state with a projection)."""


@final
@dataclass(frozen=True, kw_only=True)
class LayerFlow:
    """One layer in one direction."""

    name: str
    """`encoder 1` is the lowest layer of the encoder; with `→` or `←` in a bidirectional stack."""
    direction: str
    """forward or backward."""
    cell: str
    width: int
    """Of h."""
    steps: int
    """Of the longest row."""
    states: dict[str, StateFlow]
    """By part of the state: h, and c where there is one."""
    gates: dict[str, GateFlow]
    spectra: dict[str, Spectrum]
    """By gate, of those that h feeds."""
    exact: bool
    """Whether the Jacobian is exact, not estimated."""


@final
@dataclass(frozen=True, kw_only=True)
class GradientFlow:
    loss: float
    """The mean where the loss has a count; otherwise the loss itself."""
    layers: tuple[LayerFlow, ...]


def gradient_flow(model: nn.Module, loss: Callable[[], Loss | Tensor]) -> GradientFlow:
    """Runs `loss` once, with the model in eval mode, and follows its gradient through every recurrent layer
    that it ran.

    Works in the model's own type; in float64 a gradient may shrink to 1e-308 before it is lost. Changes
    neither weights nor their `grad`. Raises UsageError if the loss ran no recurrent layer.
    """
    error = UsageError(
        "the model must have a recurrent layer for gradient to flow through time, but has none that this loss"
        " runs"
    )
    named = recurrent_layers(model)
    if not named:
        raise error
    with recorded_steps(model, [layer for _, _, layer in named]) as recorded, torch.enable_grad():
        value = loss()
        total, count = value if isinstance(value, Loss) else (value, torch.tensor(1.0))
        flows = []
        for place, steps in zip(named, recorded, strict=True):
            sequences = list(step_sequences(steps, total))
            if sequences:
                flows.append(_layer_flow(place, sequences))
    if not flows:
        raise error
    return GradientFlow(loss=float(total.detach()) / float(count), layers=tuple(flows))


def _layer_flow(place: NamedLayer, sequences: list[StepSequence]) -> LayerFlow:
    layer = place.layer
    widths = [part.shape[1] for part in sequences[0].steps[0].new]
    gates = hidden_gate_names(layer.cell)
    blocks = layer.weight_h.detach().double().chunk(len(gates))
    known = [name for name, cell in CELLS.items() if cell == layer.cell]
    cell_name = known[0] if known else type(layer.cell).__name__
    return LayerFlow(
        name=place.name,
        direction=place.direction,
        cell=cell_name,
        width=widths[0],
        steps=max(int(sequence.mask.sum(dim=0).max()) for sequence in sequences),
        states={STATES[part]: _state_flow(sequences, part) for part in range(len(widths))},
        gates=_gate_flows(layer, sequences),
        spectra={gate: _spectrum(block) for gate, block in zip(gates, blocks, strict=True)},
        exact=max(widths) <= DIRECTIONS,
    )


def _state_flow(sequences: list[StepSequence], part: int) -> StateFlow:
    norms = torch.cat(
        [sequence.gradients[part].norm(dim=-1)[sequence.mask] for sequence in sequences]
    )
    jacobians = torch.cat([_jacobian(sequence, part)[sequence.mask] for sequence in sequences])
    from_start = torch.cat([sequence.from_start for sequence in sequences])
    from_end = torch.cat([sequence.from_end for sequence in sequences])
    gradient, jacobian = _curve(norms, from_end), _curve(jacobians, from_end)
    return StateFlow(
        gradient_from_start=_curve(norms, from_start),
        gradient_from_end=gradient,
        gradient_per_step=_factor_per_step(gradient),
        jacobian=jacobian,
        jacobian_per_step=_factor_per_step(jacobian),
    )


def _jacobian(sequence: StepSequence, part: int) -> Tensor:
    """`(steps, rows)`: ‖∂s_n/∂s_t‖_F / √width, n the last step of each row.

    ‖J‖_F² is the sum of ‖Jᵀv‖² over an orthonormal basis; all rows share one backward pass for each v.
    """
    states, mask = [step.new[part] for step in sequence.steps], sequence.mask
    last = mask & (mask.flip(0).cumsum(dim=0).flip(0) == 1)
    ends = last.any(dim=1).nonzero()[:, 0].tolist()  # steps that are the last one of a row
    squares = torch.zeros_like(last, dtype=states[0].dtype)
    directions = _directions(states[0])
    for direction in directions:
        vectors = [(direction * last[t, :, None])[: len(states[t])] for t in ends]
        gradients = torch.autograd.grad(
            [states[t] for t in ends], states, vectors, retain_graph=True, allow_unused=True
        )
        for t, gradient in enumerate(gradients):
            if gradient is not None:
                squares[t, : len(gradient)] += gradient.square().sum(dim=-1)
    return (squares / len(directions)).sqrt()


def _directions(state: Tensor) -> Tensor:
    """`(directions, rows, width)`: orthonormal for each row."""
    rows, width = state.shape
    shape, generator = (rows, width, min(width, DIRECTIONS)), torch.Generator().manual_seed(0)
    basis: Tensor = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=state.dtype)).Q
    return basis.permute(2, 0, 1).to(state.device)


def _curve(values: Tensor, position: Tensor) -> NormCurve:
    """values, position `(true steps,)`"""
    groups = _by_position(values.detach(), position)
    return NormCurve(
        mean=[float(group.mean()) for group in groups],
        median=[float(numpy.median(group)) for group in groups],
        rows=[len(group) for group in groups],
    )


def _by_position(values: Tensor, position: Tensor) -> list[numpy.typing.NDArray[numpy.float64]]:
    """The values `(true steps, ...)` at each position."""
    array, positions = values.double().cpu().numpy(), position.cpu().numpy()
    return [array[positions == number] for number in range(int(positions.max()) + 1)]


def _factor_per_step(curve: NormCurve) -> float:
    """f of the fit `median ~ f^position`: least squares of the logarithm, weighted by rows, without zeros."""
    median, rows = numpy.array(curve.median), numpy.array(curve.rows, dtype=numpy.float64)
    usable = numpy.isfinite(median) & (median > 0)
    if usable.sum() < 2:
        return float("nan")
    position, logarithm, weight = usable.nonzero()[0], numpy.log(median[usable]), rows[usable]
    position = position - numpy.average(position, weights=weight)
    return float(numpy.exp((weight * position * logarithm).sum() / (weight * position**2).sum()))


@torch.no_grad()
def _gate_flows(layer: RecurrentLayer, sequences: list[StepSequence]) -> dict[str, GateFlow]:
    position = torch.cat([sequence.from_start for sequence in sequences])
    values: dict[str, list[Tensor]] = {}
    for sequence in sequences:
        for number, (step, rows) in enumerate(zip(sequence.steps, sequence.mask, strict=True)):
            for gate, value in layer.gate_values(step.gates, step.old, number).items():
                values.setdefault(gate, []).append(value[rows[: len(value)]])
    flows = {}
    for gate, steps in values.items():
        groups = _by_position(torch.cat(steps), position)
        flows[gate] = GateFlow(
            mean=[float(group.mean()) for group in groups],
            low=[float(numpy.quantile(group, 0.05)) for group in groups],
            high=[float(numpy.quantile(group, 0.95)) for group in groups],
        )
    return flows


def _spectrum(block: Tensor) -> Spectrum:
    square = block.shape[0] == block.shape[1]
    moduli = (
        torch.linalg.eigvals(block).abs().sort(descending=True).values.tolist() if square else []
    )
    return Spectrum(singular_values=torch.linalg.svdvals(block).tolist(), eigenvalue_moduli=moduli)
