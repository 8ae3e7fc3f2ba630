"""The compiled loops against the driver's own, whatever the width, the padding, the team and the
processor."""

from __future__ import annotations

import copy
import ctypes
import math
from typing import Any

import pytest
import torch
from tests.layers.equations import MASKS, close, draw_parameters, drawn, gradients, mask_named
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from seqloom.layers.recurrent import compiled_loops, unroll
from seqloom.layers.recurrent.cell_operations import LayerWeights
from seqloom.layers.recurrent.cells import CELLS, gate_names
from seqloom.layers.recurrent.compiled_loops import has_compiled_loop, threads_for
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.packing import packed_order
from seqloom.layers.recurrent.stack import LayerRun, RecurrentStack, RecurrentStackConfig
from seqloom.native.build import SOURCES
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled loops need a C++ compiler when the project is installed"
)

LAYERS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": CELLS[cell]} for cell in CELLS},
    "lstm projected": {"cell": CELLS["lstm"], "projection": 11},
    "lstm normalised": {"cell": CELLS["lstm"], "normalisation": "layer"},
}
WIDTHS = [1, 8, 21, 70]
"""Less than a vector, whole ones, more than one, and more than one member's share."""


def team_of(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(compiled_loops, "threads_for", lambda operations, width: threads)


def layer_of(
    name: str, width: int, dtype: torch.dtype = torch.float64, inputs: int = 3
) -> RecurrentLayer:
    layer = RecurrentLayer(input_width=inputs, width=width, **LAYERS[name]).to(dtype)
    draw_parameters(layer, std=layer.effective_weight_h.shape[1] ** -0.5)
    return layer


def run(
    layer: RecurrentLayer, mask: Tensor, backward: bool = False, inputs: Tensor | None = None
) -> list[Tensor]:
    """Outputs, last states and every gradient."""
    dtype = layer.bias.dtype
    x = (
        (drawn(*mask.shape, layer.weight_x.shape[1]) if inputs is None else inputs)
        .to(dtype)
        .requires_grad_()
    )
    state = tuple(
        drawn(*part.shape, seed=5 + i).to(dtype).requires_grad_()
        for i, part in enumerate(layer.start(len(mask)))
    )
    outputs, after = layer(x, packed_order(mask, backward), state)
    return [outputs, *after, *gradients((outputs, *after), [x, *state, *layer.parameters()], mask)]


def run_own(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **named: Any) -> list[Tensor]:
    """The same by the driver's own loop."""
    with monkeypatch.context() as patch:
        patch.setattr(unroll, "has_compiled_loop", lambda *_: False)
        return run(*arguments, **named)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_compiled_loops_equal_the_drivers_own(
    name: str, width: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(name, width)
    assert has_compiled_loop(layer.cell, layer.weights, None)
    for padding in MASKS:
        for backward in (False, True):
            mask = mask_named(padding)
            close(run(layer, mask, backward), run_own(monkeypatch, layer, mask, backward))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_so_they_do_as_a_team(
    name: str, threads: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of which have no share of 21 units."""
    layer, mask = layer_of(name, 21), mask_named("anywhere, one row empty")
    team_of(monkeypatch, threads)
    close(run(layer, mask), run_own(monkeypatch, layer, mask))


@pytest.mark.parametrize("rows", [1, 5, 7, 13, 30])
@pytest.mark.parametrize("name", ["gru", "lstm normalised"])
def test_they_do_for_any_number_of_rows(
    name: str, rows: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team_of(monkeypatch, 2)
    layer, mask = (
        layer_of(name, 37),
        torch.arange(9)
        < torch.randint(0, 10, (rows, 1), generator=torch.Generator().manual_seed(rows)),
    )
    close(run(layer, mask), run_own(monkeypatch, layer, mask))


@pytest.mark.parametrize("rows_full", [32, 20])
@pytest.mark.parametrize("name", ["elman", "lstm", "lstm normalised"])
def test_they_do_at_the_sizes_of_real_models(
    name: str, rows_full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory comes in large pages."""
    layer = layer_of(name, 256, inputs=64)
    mask = torch.arange(17) < torch.tensor([17] * rows_full + [9] * (32 - rows_full))[:, None]
    close(run(layer, mask), run_own(monkeypatch, layer, mask))


@pytest.mark.parametrize("name", LAYERS)
def test_a_team_of_any_size_computes_the_same_bits(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit is one member's work. (Normalised, what they know of a row is put together in another
    order.)"""
    layer, mask = (
        layer_of(name, 200, torch.float32),
        torch.arange(40) < torch.tensor([[40], [40], [33], [20], [3]]),
    )
    team_of(monkeypatch, 1)
    alone = run(layer, mask)
    for threads in (2, 5):
        team_of(monkeypatch, threads)
        for one, other in zip(run(layer, mask), alone, strict=True):
            if "normalised" in name:
                assert (one - other).abs().max() <= 1e-4 * other.abs().max().clamp(min=1)
            else:
                assert torch.equal(one, other)


@pytest.mark.parametrize("name", LAYERS)
def test_single_precision_is_close_to_double(name: str, kind: str) -> None:
    layer, double = layer_of(name, 128, torch.float32, inputs=32), layer_of(name, 128, inputs=32)
    double.load_state_dict({key: value.double() for key, value in layer.state_dict().items()})
    mask = torch.arange(30) < torch.tensor([[30], [30], [11], [7]])
    for single, exact in zip(run(layer, mask), run(double, mask), strict=True):
        assert single.dtype == torch.float32
        assert (single - exact).abs().max() < 2e-5 * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["elman", "elman-sigmoid"])
def test_tanh_and_sigmoid_are_as_good_as_their_type(name: str, kind: str) -> None:
    """To some units in the last place, from the smallest sums to the largest."""
    sums = torch.cat([torch.logspace(-30, 2, 4000), torch.linspace(0, 12, 4000)])
    sums = torch.cat([sums, -sums]).float()
    layer = layer_of(name, 1, torch.float32, inputs=1)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.ones_(layer.weight_x)
    mask = torch.ones(len(sums), 2, dtype=torch.bool)
    outputs, _ = layer(
        sums[:, None, None].expand(-1, 2, -1), packed_order(mask, False), layer.start(len(sums))
    )
    exact = torch.tanh(sums.double()) if name == "elman" else torch.sigmoid(sums.double())
    error = (outputs[:, 0, 0].double() - exact).detach().abs()
    assert (error <= 3e-7 * exact.abs() + 1e-38).all()


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_no_number_stays_in_its_row_and_is_not_hidden(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, mask = layer_of(name, 40, torch.float32), torch.ones(3, 4, dtype=torch.bool)
    for value in (math.nan, math.inf):
        inputs = drawn(3, 4, 3)
        inputs[1, 2] = value
        outputs, expected = (
            run(layer, mask, inputs=inputs)[0],
            run_own(monkeypatch, layer, mask, inputs=inputs)[0],
        )
        assert torch.equal(outputs.isnan(), expected.isnan())
        assert outputs[[0, 2]].isfinite().all()
        assert outputs[1, :2].isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_large_sums_are_the_limits(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, mask = layer_of(name, 40, torch.float32), torch.ones(3, 4, dtype=torch.bool)
    inputs = drawn(3, 4, 3) * 1e5
    if name in ("elman-relu", "mut2"):
        pytest.skip("it may grow without limit")
    for one, other in zip(
        run(layer, mask, inputs=inputs),
        run_own(monkeypatch, layer, mask, inputs=inputs),
        strict=True,
    ):
        assert one.isfinite().all()
        torch.testing.assert_close(
            one, other, rtol=1e-3, atol=1e-30 + 1e-3 * float(other.detach().abs().max())
        )


@pytest.mark.parametrize("name", LAYERS)
def test_inputs_may_lie_in_any_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed as by a convolution: a MUT of its input's width adds its bias to what it gets."""
    layer, mask = layer_of(name, 6, inputs=6), mask_named("full")
    for inputs in (drawn(4, 6, 6).transpose(1, 2), drawn(6, 6, 4).permute(2, 1, 0)):
        close(run(layer, mask, inputs=inputs), run_own(monkeypatch, layer, mask, inputs=inputs))
    layer = layer_of(name, 6, inputs=6)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.set_(parameter.T.contiguous().T)  # type: ignore[call-overload]
    close(run(layer, mask), run_own(monkeypatch, layer, mask))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(2, 8, dtype=torch.bfloat16),
        torch.zeros(2, 8).double(),
        torch.zeros(2, 16),
        torch.zeros(2, 4),
    ],
)
def test_a_state_of_another_type_or_width_is_an_error_as_ever(cell: str, state: Tensor) -> None:
    """And no memory of somebody else's."""
    layer, order = (
        layer_of(cell, 8, torch.float32),
        packed_order(torch.ones(2, 5, dtype=torch.bool), False),
    )
    with pytest.raises(RuntimeError):
        layer(torch.zeros(2, 5, 3), order, (state, *layer.start(2)[1:]))
    assert not has_compiled_loop(
        layer.cell, layer.weights, None, states=(*layer.start(2)[1:], state)
    )


def test_tensors_that_are_only_thought_of_go_the_other_way() -> None:
    layers, inputs = RecurrentStack(RecurrentStackConfig("gru", 3, 8)), torch.zeros(2, 5, 3)
    expected, (state,) = layers(inputs)
    with torch.device("meta"):
        assert torch.equal(layers(inputs, state=(torch.zeros_like(state),))[0], expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [
            None if weight is None else mode.from_tensor(weight)
            for weight in layers.stack[0].weights
        ]
        weights = LayerWeights(*fakes)  # type: ignore[arg-type]
        assert weights.b.device.type == "cpu"
        assert not has_compiled_loop(layers.stack[0].cell, weights, None)


@pytest.mark.parametrize(
    ("name", "gate", "shut"),
    [("gru", "z", 1), ("gru-torch", "z", 1), ("mut1", "z", 0), ("mut3", "z", 0)],
)
def test_a_gate_that_is_shut_keeps_the_state_to_the_last_bit(
    name: str, gate: str, shut: int, kind: str
) -> None:
    layer = layer_of(name, 16, torch.float32)
    at = gate_names(layer.cell).index(gate)
    layer.bias.data[at * 16 : (at + 1) * 16] = 1e4 if shut else -1e4
    state = torch.logspace(-9, 0, 16).repeat(2, 1)
    _, (after,) = layer(
        drawn(2, 400, 3).float(),
        packed_order(torch.ones(2, 400, dtype=torch.bool), False),
        (state,),
    )
    assert torch.equal(after, state)


def test_the_structure_is_the_one_of_the_header() -> None:
    """In its order; all of it is pointers and long integers, so nothing lies between."""
    names = [name for name, *_ in compiled_loops.LoopArguments._fields_]
    text = (SOURCES / "sequence.h").read_text()
    text = text[text.index("struct Sequence {") : text.index("struct Step")]
    declared = [line.partition("//")[0] for line in text.splitlines()[1:] if ";" in line]
    found = [
        word.strip().lstrip("*").partition("[")[0]
        for line in declared
        for word in line.strip().rstrip("; ").removeprefix("const ").split(" ", 1)[1].split(",")
    ]
    found = [
        name.removeprefix("T* ").removeprefix("T *").removeprefix("* ").lstrip("*").strip()
        for name in found
    ]
    assert found == names
    assert ctypes.sizeof(compiled_loops.LoopArguments) == 8 * (len(names) + 2 + 2 + 1 + 2)
    cells = (
        (SOURCES / "cells.h")
        .read_text()
        .partition("enum Cell : long {")[2]
        .partition("}")[0]
        .partition("cells.py")[2]
    )
    assert [name.strip() for name in cells.split(",")] == [
        name.upper().replace("-", "_") for name in CELLS
    ]


def test_which_layers_they_take() -> None:
    scale = torch.ones(2, 8)
    assert all(
        has_compiled_loop(layer_of(name, 8).cell, layer_of(name, 8).weights, None)
        for name in LAYERS
    )
    assert all(
        has_compiled_loop(copy.deepcopy(layer_of(name, 8)).cell, layer_of(name, 8).weights, None)
        for name in LAYERS
    )
    assert not has_compiled_loop(CELLS["gru"], layer_of("gru", 8).weights, scale)
    for options in ({"cell": CELLS["gru"]}, {"cell": CELLS["lstm"], "projection": 3}):
        layer = RecurrentLayer(input_width=3, width=8, normalisation="layer", **options)
        assert not has_compiled_loop(layer.cell, layer.weights, None)
    assert not has_compiled_loop(CELLS["gru"], layer_of("gru", 8, torch.bfloat16).weights, None)
    with torch.device("meta"):
        assert not has_compiled_loop(CELLS["gru"], RecurrentLayer(CELLS["gru"], 3, 8).weights, None)


def test_a_team_is_as_large_as_the_work_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [threads_for(operations, 512) for operations in (1, 10**5, 3 * 10**5, 10**8)] == [
        1,
        1,
        3,
        4,
    ]
    assert threads_for(10**8, 40) == 2


def test_ragged_rows_take_them_where_torchs_kernel_would_compute_padding() -> None:
    layers = RecurrentStack(RecurrentStackConfig("lstm", 3, 8))
    inputs, lengths = torch.randn(8, 20, 3), torch.arange(13, 21)[:, None]
    nearly, ragged = torch.arange(20) < lengths.clamp(min=19), torch.arange(20) < lengths
    assert [LayerRun(layers, inputs, mask).implementation for mask in (None, nearly, ragged)] == [
        "fused",
        "fused",
        "driver",
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_that_is_kept_stays_as_it_is(name: str, kind: str) -> None:
    """Else what goes back lies over what was kept: with the same bits."""
    layer, mask = layer_of(name, 21, torch.float32), mask_named("right")
    inputs, state = (
        drawn(*mask.shape, 3).float().requires_grad_(),
        tuple(part.requires_grad_() for part in layer.start(len(mask))),
    )
    leaves, saved = [inputs, *state, *layer.parameters()], list[Tensor]()

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        outputs, after = layer(inputs, packed_order(mask, False), state)
    before = [tensor.clone() for tensor in saved]
    loss = (torch.cat([outputs.flatten(), *(part.flatten() for part in after)])).square().sum()
    found = [torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(saved, before, strict=True))
    found.append(torch.autograd.grad(loss, leaves))
    assert all(
        torch.equal(one, other)
        for each in found[1:]
        for one, other in zip(found[0], each, strict=True)
    )
    changed = sum(not torch.equal(one, other) for one, other in zip(saved, before, strict=True))
    assert changed == len(layer.cell.backward_widths) * (len(layer.cell.saved_widths) > 0) + (
        layer.normalisation == "layer"
    )
    assert all(
        torch.equal(one, other)
        for one, other in zip(saved, before, strict=True)
        if one.requires_grad
    )


@pytest.mark.parametrize("name", ["gru", "gru-torch", "lstm normalised"])
def test_checkpoints_go_back_as_ever(name: str) -> None:
    layer, mask = layer_of(name, 8), mask_named("left")
    inputs, order = drawn(*mask.shape, 3).requires_grad_(), packed_order(mask, False)

    def run_it(x: Tensor) -> Tensor:
        outputs: Tensor = layer(x, order, layer.start(len(mask)))[0]
        return outputs

    expected = torch.autograd.grad(run_it(inputs).square().sum(), [inputs, *layer.parameters()])
    with torch.autograd.graph.save_on_cpu():
        found = torch.autograd.grad(run_it(inputs).square().sum(), [inputs, *layer.parameters()])
    close(found, expected, rtol=0, atol=0)
    for reentrant in (True, False):
        layer.zero_grad()
        inputs.grad = None
        checkpoint(run_it, inputs, use_reentrant=reentrant).square().sum().backward()
        close(
            [inputs.grad, *(parameter.grad for parameter in layer.parameters())],
            list(expected),
            rtol=0,
            atol=0,
        )
