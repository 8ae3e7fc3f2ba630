"""torch.nn as the oracle, and as a format to read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.layers.equations import (
    INPUT,
    PROJECTION,
    ROWS,
    STEPS,
    WIDTH,
    close,
    drawn,
    layers_of,
    mask_named,
    states_of,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.errors import UsageError
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.layers.recurrent.torch_modules import TORCH_MODULES, from_torch, to_torch

KINDS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in TORCH_MODULES},
    "lstm projected": {"cell": "lstm", "projection": PROJECTION},
}

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def pairs(ours: RecurrentStack, theirs: nn.RNNBase) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each parameter of ours, and torch's that does the same."""
    groups = [(layer, f"_l{k}") for k, layer in enumerate(ours.forward_layers)]
    groups += [(layer, f"_l{k}_reverse") for k, layer in enumerate(ours.backward_layers)]
    named = {
        "weight_x": "weight_ih",
        "weight_h": "weight_hh",
        "bias": "bias_ih",
        "bias_h": "bias_hh",
        "weight_p": "weight_hr",
    }
    for layer, suffix in groups:
        assert isinstance(layer, RecurrentLayer)
        for mine, its in named.items():
            if getattr(layer, mine) is not None:
                yield its + suffix, getattr(layer, mine), getattr(theirs, its + suffix)


@pytest.mark.parametrize("padding", ["full", "right"])
@pytest.mark.parametrize(
    ("depth", "bidirectional"), [(1, False), (1, True), (2, True), (3, False), (3, True)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch_in_outputs_states_and_every_gradient(
    kind: str, depth: int, bidirectional: bool, padding: str
) -> None:
    ours = layers_of(**KINDS[kind], layers=depth, bidirectional=bidirectional)
    theirs, mask = to_torch(ours), mask_named(padding)
    inputs = [drawn(ROWS, STEPS, INPUT).requires_grad_() for _ in range(2)]
    start = [[part.requires_grad_() for part in states_of(ours)] for _ in range(2)]

    outputs, after = ours(inputs[0], mask, None if bidirectional else tuple(start[0]))
    packed = pack_padded_sequence(inputs[1], mask.sum(1), batch_first=True, enforce_sorted=False)
    first = [part.transpose(0, 1) for part in start[1]]
    found, last = theirs(packed, None if bidirectional else first[0] if len(first) == 1 else first)
    expected, _ = pad_packed_sequence(found, batch_first=True)
    expected_after = tuple(
        part.transpose(0, 1) for part in (last if isinstance(last, tuple) else (last,))
    )

    close(outputs[mask], expected[mask])
    close(after, expected_after)
    of_ours, of_theirs = (
        [tensors[0], *([] if bidirectional else tensors[1])]
        for tensors in zip(inputs, start, strict=True)
    )
    both = [*pairs(ours, theirs)]
    assert len(both) == len([*ours.parameters()])
    of_ours += [mine for _, mine, _ in both]
    of_theirs += [its for _, _, its in both]
    gradients = []
    for out, end, leaves in ((outputs, after, of_ours), (expected, expected_after, of_theirs)):
        total = (out * drawn(*out.shape, seed=2))[mask].sum() + sum(
            (part * drawn(*part.shape, seed=3)).sum() for part in end
        )
        gradients.append(torch.autograd.grad(total, leaves))
    close(gradients[0], gradients[1])


TORCHS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "RNN tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "RNN relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM": (nn.LSTM, {}),
    "LSTM projected": (nn.LSTM, {"proj_size": PROJECTION}),
    "GRU": (nn.GRU, {}),
}


@pytest.mark.parametrize("name", TORCHS)
def test_a_torch_module_is_read_and_written_back(name: str) -> None:
    module, options = TORCHS[name]
    theirs = (
        module(
            INPUT,  # type: ignore[arg-type]
            WIDTH,
            num_layers=2,
            bidirectional=True,
            batch_first=True,
            dropout=0.5,
            **options,
        )
        .double()
        .eval()
    )
    ours = from_torch(theirs)
    assert (ours.config.dropout, ours.config.projection, ours.training) == (
        0.5,
        options.get("proj_size"),
        False,
    )
    inputs = drawn(ROWS, STEPS, INPUT)
    expected = theirs(inputs)[0]
    close(ours(inputs)[0], expected)
    back = to_torch(ours)
    assert type(back) is module
    assert back.dropout == 0.5
    assert back.state_dict().keys() == theirs.state_dict().keys()
    close(back(inputs)[0], expected)
    assert to_torch(ours.train()).training


@pytest.mark.parametrize("kind", KINDS)
def test_from_torch_undoes_to_torch(kind: str) -> None:
    ours = layers_of(**KINDS[kind], layers=2, bidirectional=True)
    again = from_torch(to_torch(ours))
    assert again.config.cell == KINDS[kind]["cell"]
    assert again.state_dict().keys() == ours.state_dict().keys()
    for name, weight in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)


OTHERS: dict[str, dict[str, Any]] = {
    "layer normalisation": {"normalisation": "layer"},
    "batch normalisation": {"normalisation": "batch"},
    "residual connections": {"connection": "residual"},
    "highways": {"connection": "highway"},
    "variational dropout": {"variational": True},
    "dropout of the state": {"state_dropout": 0.1},
}


@pytest.mark.parametrize("option", OTHERS)
def test_options_that_torch_does_not_have_are_refused(option: str) -> None:
    with pytest.raises(
        UsageError, match=r"torch.nn has no normalisation, connections .* or dropout of the state"
    ):
        to_torch(layers_of("lstm", layers=2, **OTHERS[option]))


@pytest.mark.parametrize("cell", ["gru", "elman-sigmoid", "mut1", "mut2", "mut3"])
def test_cells_that_torch_does_not_have_are_refused(cell: str) -> None:
    with pytest.raises(UsageError, match=rf"no cell '{cell}' \(torch.nn.GRU is 'gru-torch'\)"):
        to_torch(layers_of(cell))


def test_a_module_without_biases_is_refused() -> None:
    with pytest.raises(UsageError, match="must have biases"):
        from_torch(nn.GRU(INPUT, WIDTH, bias=False))
