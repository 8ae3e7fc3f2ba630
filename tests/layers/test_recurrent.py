"""Recurrent layers: against their equations written out, against torch.nn, and under every padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.errors import UsageError
from seqloom.layers.cells import CELLS, CellState, cell_named, fed_gates, gates_of
from seqloom.layers.recurrent import Recurrent
from seqloom.layers.recurrent_layer import RecurrentLayer
from seqloom.layers.torch_modules import from_torch, to_torch
from seqloom.protocols import detach
from seqloom.shapes import mask_of

ROWS, STEPS, INPUT, WIDTH = 3, 6, 4, 3
LENGTHS = torch.tensor([4, 6, 1])
MASK = mask_of(LENGTHS, STEPS)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layers_of(cell: str, **options: Any) -> Recurrent:
    """With every weight and bias drawn at random."""
    layers = Recurrent(cell, INPUT, WIDTH, **options).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(std=0.6, generator=generator)
    return layers


def states_of(cell: str, layers: int = 1) -> CellState:
    return tuple(drawn(ROWS, layers, WIDTH, seed=5 + i) for i in range(CELLS[cell].states))


def close(actual: Tensor, expected: Tensor, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-12)


# The equations, one row and one step at a time


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def tanh(x: Tensor) -> Tensor:
    return (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)


Equations = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(weights by name, x_t, h_{t-1}, c_{t-1}) -> h_t, c_t."""


def elman(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return tanh(w["xh"] @ x + w["hh"] @ h + w["bh"]), c


def elman_relu(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.clamp(w["xh"] @ x + w["hh"] @ h + w["bh"], min=0), c


def lstm(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o = (sigma(w[f"x{gate}"] @ x + w[f"h{gate}"] @ h + w[f"b{gate}"]) for gate in "ifo")
    g = tanh(w["xg"] @ x + w["hg"] @ h + w["bg"])
    c = f * c + i * g
    return o * tanh(c), c


def gru_published(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    r = sigma(w["xr"] @ x + w["hr"] @ h + w["br"])
    z = sigma(w["xz"] @ x + w["hz"] @ h + w["bz"])
    candidate = tanh(w["xh"] @ x + w["hh"] @ (r * h) + w["bh"])
    return z * h + (1 - z) * candidate, c


def gru_of_torch(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    r = sigma(w["xr"] @ x + w["br"] + w["hr"] @ h + w["b_hr"])
    z = sigma(w["xz"] @ x + w["bz"] + w["hz"] @ h + w["b_hz"])
    candidate = tanh(w["xh"] @ x + w["bh"] + r * (w["hh"] @ h + w["b_hh"]))
    return z * h + (1 - z) * candidate, c


def elman_sigmoid(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return sigma(w["xh"] @ x + w["hh"] @ h + w["bh"]), c


def bare(w: dict[str, Tensor], gate: str, x: Tensor) -> Tensor:
    """x itself, or P x where the widths differ."""
    return w[f"x{gate}"] @ x if f"x{gate}" in w else x


def mut1(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z = sigma(w["xz"] @ x + w["bz"])
    r = sigma(w["xr"] @ x + w["hr"] @ h + w["br"])
    return tanh(w["hh"] @ (r * h) + tanh(bare(w, "h", x)) + w["bh"]) * z + h * (1 - z), c


def mut2(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z = sigma(w["xz"] @ x + w["hz"] @ h + w["bz"])
    r = sigma(bare(w, "r", x) + w["hr"] @ h + w["br"])
    return tanh(w["hh"] @ (r * h) + w["xh"] @ x + w["bh"]) * z + h * (1 - z), c


def mut3(w: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z = sigma(w["xz"] @ x + w["hz"] @ tanh(h) + w["bz"])
    r = sigma(w["xr"] @ x + w["hr"] @ h + w["br"])
    return tanh(w["hh"] @ (r * h) + w["xh"] @ x + w["bh"]) * z + h * (1 - z), c


EQUATIONS: dict[str, Equations] = {
    "elman": elman,
    "elman-relu": elman_relu,
    "elman-sigmoid": elman_sigmoid,
    "lstm": lstm,
    "gru": gru_published,
    "gru-torch": gru_of_torch,
    "mut1": mut1,
    "mut2": mut2,
    "mut3": mut3,
}


def by_name(layer: RecurrentLayer) -> dict[str, Tensor]:
    """The blocks of a layer's weights under the names of the equations."""
    gates, cell = gates_of(layer.cell), layer.cell
    mapped = gates if len(layer.weight_x) == len(layer.bias) else tuple(gate for gate in gates if gate != cell.bare)
    named: dict[str, Tensor] = {}
    blocks = [("x", mapped, layer.weight_x), ("h", fed_gates(cell), layer.weight_h), ("b", gates, layer.bias)]
    if layer.bias_h is not None:
        blocks.append(("b_h", gates, layer.bias_h))
    for prefix, names, whole in blocks:
        named |= {f"{prefix}{name}": block for name, block in zip(names, whole.chunk(len(names)), strict=True)}
    return named


def written_out(cell: str, layer: RecurrentLayer, inputs: Tensor, h: Tensor, c: Tensor, *, backward: bool = False) -> Tensor:
    """Outputs of one row without padding: `(steps, width)`; the last c stands in an extra last row."""
    weights, outputs = by_name(layer), {}
    steps = range(len(inputs))
    for t in reversed(steps) if backward else steps:
        h, c = EQUATIONS[cell](weights, inputs[t], h, c)
        outputs[t] = h
    return torch.stack([*(outputs[t] for t in steps), c])


def test_every_cell_has_its_equations_here() -> None:
    assert EQUATIONS.keys() == CELLS.keys()


@pytest.mark.parametrize("cell", CELLS)
def test_layer_is_its_equations(cell: str) -> None:
    layers, inputs, state = layers_of(cell), drawn(ROWS, STEPS, INPUT), states_of(cell)
    outputs, after = layers(inputs, MASK, state)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = written_out(cell, layers.stack[0], inputs[row, :length], state[0][row, 0], state[-1][row, 0])
        close(outputs[row, :length], expected[:-1])
        close(after[0][row, 0], expected[-2])
        if len(after) == 2:
            close(after[1][row, 0], expected[-1])


@pytest.mark.parametrize("cell", CELLS)
def test_stacked_bidirectional_layers_are_their_equations(cell: str) -> None:
    """Layer 2 reads [→h; ←h] of layer 1; the final states are →h_n and ←h_1, layer by layer."""
    layers, inputs, zero = layers_of(cell, layers=2, bidirectional=True), drawn(ROWS, STEPS, INPUT), drawn(WIDTH) * 0
    outputs, after = layers(inputs, MASK)
    for row, length in enumerate(LENGTHS.tolist()):
        below, ends = inputs[row, :length], []
        for k in range(2):
            ahead = written_out(cell, layers.stack[k], below, zero, zero)
            back = written_out(cell, layers.backward_layers[k], below, zero, zero, backward=True)  # type: ignore[arg-type]
            below = torch.cat([ahead[:-1], back[:-1]], dim=1)
            ends += [(ahead[-2], ahead[-1]), (back[0], back[-1])]
        close(outputs[row, :length], below)
        for part, state in enumerate(after):
            close(state[row], torch.stack([end[part] for end in ends]))


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_finite_differences(cell: str) -> None:
    layers = layers_of(cell)
    names, weights = zip(*layers.named_parameters(), strict=True)

    def run(inputs: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state, values = rest[: CELLS[cell].states], rest[CELLS[cell].states :]
        outputs, after = torch.func.functional_call(layers, dict(zip(names, values, strict=True)), (inputs, MASK[:2, :4], state))
        return outputs, *after

    given = [drawn(2, 4, INPUT), *(part[:2] for part in states_of(cell))]
    assert torch.autograd.gradcheck(run, [part.detach().requires_grad_() for part in (*given, *weights)])


# torch.nn as the oracle

WITH_TORCH = ("elman", "elman-relu", "lstm", "gru-torch")


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize(("depth", "bidirectional"), [(1, False), (1, True), (2, True), (3, False), (3, True)])
@pytest.mark.parametrize("cell", WITH_TORCH)
def test_equals_torch_in_outputs_states_and_every_gradient(cell: str, depth: int, bidirectional: bool, ragged: bool) -> None:
    ours = layers_of(cell, layers=depth, bidirectional=bidirectional)
    theirs = to_torch(ours)
    mask = MASK if ragged else torch.ones_like(MASK)
    inputs = [drawn(ROWS, STEPS, INPUT).requires_grad_() for _ in range(2)]
    start = [[part.requires_grad_() for part in states_of(cell, depth)] for _ in range(2)]

    outputs, after = ours(inputs[0], mask, None if bidirectional else tuple(start[0]))
    packed = pack_padded_sequence(inputs[1], mask.sum(1), batch_first=True, enforce_sorted=False)
    first = [part.transpose(0, 1) for part in start[1]]
    found, last = theirs(packed, None if bidirectional else first[0] if len(first) == 1 else first)
    expected, _ = pad_packed_sequence(found, batch_first=True)
    expected_after = [part.transpose(0, 1) for part in (last if isinstance(last, tuple) else (last,))]

    close(outputs[mask], expected[mask])
    for mine, its in zip(after, expected_after, strict=True):
        close(mine, its)
    for out, end in ((outputs, after), (expected, expected_after)):
        total = (out * drawn(*out.shape, seed=2))[mask].sum() + sum((part * drawn(*part.shape, seed=3)).sum() for part in end)
        total.backward()
    close(grad(inputs[0]), grad(inputs[1]))
    for mine, its in zip(*start, strict=True):
        if not bidirectional:
            close(grad(mine), grad(its))
    compare_weight_gradients(ours, theirs)


def grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def compare_weight_gradients(ours: Recurrent, theirs: nn.RNNBase) -> None:
    groups = [(layer, f"_l{k}") for k, layer in enumerate(ours.forward_layers)]
    groups += [(layer, f"_l{k}_reverse") for k, layer in enumerate(ours.backward_layers)]
    compared = 0
    for layer, suffix in groups:
        for mine, its in (("weight_x", "weight_ih"), ("weight_h", "weight_hh"), ("bias", "bias_ih"), ("bias_h", "bias_hh")):
            if getattr(layer, mine) is not None:
                close(grad(getattr(layer, mine)), grad(getattr(theirs, its + suffix)))
                compared += 1
    assert compared == len(list(ours.parameters()))


@pytest.mark.parametrize("module", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_torch_module_is_read_and_written_back(module: type[nn.RNNBase], nonlinearity: str) -> None:
    options = {"nonlinearity": nonlinearity} if module is nn.RNN else {}
    theirs = module(INPUT, WIDTH, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5, **options).double().eval()  # type: ignore[arg-type]
    ours = from_torch(theirs).eval()
    assert ours.dropout == 0.5
    inputs = drawn(ROWS, STEPS, INPUT)
    expected = theirs(inputs)[0]
    close(ours(inputs)[0], expected)
    close(to_torch(ours)(inputs)[0], expected)
    assert to_torch(ours.train()).training


def test_from_torch_undoes_to_torch() -> None:
    for cell in WITH_TORCH:
        ours = layers_of(cell, layers=2, bidirectional=True)
        again = from_torch(to_torch(ours))
        assert again.cell_name == cell
        assert again.state_dict().keys() == ours.state_dict().keys()
        for name, weight in ours.state_dict().items():
            assert torch.equal(again.state_dict()[name], weight)


def test_what_torch_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no cell 'gru' \(torch.nn.GRU is 'gru-torch'\)"):
        to_torch(layers_of("gru"))
    with pytest.raises(UsageError, match="must have biases"):
        from_torch(nn.GRU(INPUT, WIDTH, bias=False))


# Laws


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_left_right_and_inside_agree(cell: str, bidirectional: bool) -> None:
    layers = layers_of(cell, layers=2, bidirectional=bidirectional)
    inputs = drawn(1, 3, INPUT)
    expected, state = layers(inputs)
    for places in ([0, 1, 2], [3, 4, 5], [0, 2, 5], [1, 2, 4]):
        mask = torch.zeros(1, 6, dtype=torch.bool)
        mask[0, places] = True
        wide = drawn(1, 6, INPUT, seed=9) * 100  # padding may hold anything
        wide[0, places] = inputs[0]
        outputs, after = layers(wide, mask)
        close(outputs[mask], expected[0])
        for part, same in zip(after, state, strict=True):
            close(part, same)


@pytest.mark.parametrize("cell", CELLS)
def test_the_summary_of_a_padded_row_is_its_last_state_ahead_and_its_first_state_back(cell: str) -> None:
    layers = layers_of(cell, layers=2, bidirectional=True)
    outputs, after = layers(drawn(ROWS, STEPS, INPUT), MASK)
    for row, length in enumerate(LENGTHS.tolist()):
        close(after[0][row, -2], outputs[row, length - 1, :WIDTH])
        close(after[0][row, -1], outputs[row, 0, WIDTH:])


@pytest.mark.parametrize("cell", CELLS)
def test_a_carried_state_goes_on_and_may_be_detached(cell: str) -> None:
    layers, inputs = layers_of(cell, layers=2), drawn(ROWS, STEPS, INPUT).requires_grad_()
    whole, end = layers(inputs, MASK)
    first, state = layers(inputs[:, :2], MASK[:, :2])
    second, after = layers(inputs[:, 2:], MASK[:, 2:], detach(state))
    close(torch.cat([first, second], dim=1)[MASK], whole[MASK])
    for part, same in zip(after, end, strict=True):
        close(part, same)
    (gradient,) = torch.autograd.grad(second.sum(), inputs)
    assert gradient[:, :2].eq(0).all()
    assert gradient[1, 2:].ne(0).any()


@pytest.mark.parametrize("cell", CELLS)
def test_no_steps_change_nothing(cell: str) -> None:
    state = states_of(cell)
    outputs, after = layers_of(cell)(drawn(ROWS, 0, INPUT), None, state)
    assert outputs.shape == (ROWS, 0, WIDTH)
    for part, same in zip(after, state, strict=True):
        assert torch.equal(part, same)


def test_an_lstm_with_an_open_forget_gate_and_a_closed_input_gate_keeps_c() -> None:
    layers, state = layers_of("lstm"), states_of("lstm")
    gates = gates_of(layers.stack[0].cell)
    with torch.no_grad():
        for gate, value in (("f", 1e6), ("i", -1e6)):
            at = gates.index(gate) * WIDTH
            layers.stack[0].bias[at : at + WIDTH] = value
    _, (_, c) = layers(drawn(ROWS, STEPS, INPUT), None, state)
    assert torch.equal(c, state[1])


def test_the_direct_path_through_c_is_the_forget_gate() -> None:
    """∂c_t/∂c_{t-1} = diag(f), where h_{t-1} is held."""
    layer, product, h = layers_of("lstm").stack[0], drawn(1, 4 * WIDTH), drawn(1, WIDTH, seed=2)
    before = drawn(1, WIDTH, seed=3).requires_grad_()
    _, after = layer.step(product, (h, before))
    jacobian = torch.cat([torch.autograd.grad(after[0, k], before, retain_graph=True)[0] for k in range(WIDTH)])
    forget = sigma(product + h @ layer.weight_h.T)[0, WIDTH : 2 * WIDTH]
    close(jacobian, forget.diag())


def test_a_new_layer_starts_as_published() -> None:
    """Orthogonal W_h, biases 0, but 1 for the forget gate."""
    for name, cell in CELLS.items():
        layer = Recurrent(name, INPUT, WIDTH).stack[0]
        for block in layer.weight_h.chunk(len(fed_gates(cell))):
            torch.testing.assert_close(block @ block.T, torch.eye(WIDTH), rtol=0, atol=1e-5)
        for gate, bias in zip(gates_of(cell), layer.bias.chunk(len(gates_of(cell))), strict=True):
            assert torch.equal(bias, torch.full((WIDTH,), float(gate == "f")))
        assert (layer.bias_h is not None) == (name == "gru-torch")
        assert layer.bias_h is None or not layer.bias_h.any()


def test_dropout_is_between_layers_only() -> None:
    inputs = drawn(ROWS, STEPS, INPUT)
    one, two = layers_of("gru", dropout=0.9).train(), layers_of("gru", layers=2, dropout=0.9).train()
    close(one(inputs)[0], one.eval()(inputs)[0])
    dropped, (state,) = two(inputs)
    kept, (full,) = two.eval()(inputs)
    close(state[:, 0], full[:, 0])
    assert not torch.allclose(dropped, kept)


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(UsageError, match="bidirectional layer must start without a carried state"):
        layers_of("gru", bidirectional=True)(drawn(ROWS, STEPS, INPUT), None, states_of("gru", 2))
    with pytest.raises(UsageError, match=r"cell must be one of elman, .*, but is 'gur'"):
        cell_named("gur")
    with pytest.raises(UsageError, match="but is 'GRU'"):
        Recurrent("GRU", INPUT, WIDTH)
