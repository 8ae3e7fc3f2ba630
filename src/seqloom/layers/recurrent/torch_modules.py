"""Recurrent layers as modules of `torch.nn`, and back: the same weights under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig

TORCH_MODULES: dict[str, tuple[Callable[..., nn.RNNBase], dict[str, str]]] = {
    "elman": (nn.RNN, {"nonlinearity": "tanh"}),
    "elman-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru-torch": (nn.GRU, {}),
}
"""The cells that torch has too, under torch's names."""


def to_torch(layers: RecurrentStack) -> nn.RNNBase:
    """The same weights as a `torch.nn` module (batch first). Raises UsageError for what torch does not
    have."""
    c = layers.config
    if c.cell not in TORCH_MODULES:
        raise UsageError(
            f"torch.nn has no cell {c.cell!r} (torch.nn.GRU is 'gru-torch'); it has"
            f" {', '.join(TORCH_MODULES)}"
        )
    if c.normalisation != "none" or c.connection != "none" or c.variational or c.state_dropout:
        raise UsageError(
            "torch.nn has no normalisation, connections between layers, variational dropout or dropout of the"
            " state"
        )
    kind, options = TORCH_MODULES[c.cell]
    module = kind(
        c.input_width,
        c.width,
        num_layers=c.layers,
        bidirectional=c.bidirectional,
        batch_first=True,
        dropout=c.dropout,
        **options,
        **({} if c.projection is None else {"proj_size": c.projection}),
    ).to(layers.stack[0].bias)
    module.train(layers.training)
    with torch.no_grad():
        for ours, theirs in _same_weights(layers, module):
            theirs.copy_(ours)
        for layer, bias_hh in _hidden_biases(layers, module):
            if layer.bias_h is None:
                bias_hh.zero_()
            else:
                bias_hh.copy_(layer.bias_h)
    return module


CELL_OF_MODE = {
    "RNN_TANH": "elman",
    "RNN_RELU": "elman-relu",
    "LSTM": "lstm",
    "GRU": "gru-torch",
}
"""What torch calls the kind of a module -> the cell."""


def from_torch(module: nn.RNNBase) -> RecurrentStack:
    """A `torch.nn` RNN, LSTM or GRU as our layers. Two biases that do the same work become their sum.

    Raises UsageError for a module without biases.
    """
    if not module.bias:
        raise UsageError("a torch.nn module must have biases to be imported")
    config = RecurrentStackConfig(
        CELL_OF_MODE[module.mode],
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        dropout=module.dropout,
        projection=module.proj_size or None,
    )
    layers = RecurrentStack(config).to(cast(Tensor, module.weight_ih_l0))
    layers.train(module.training)
    with torch.no_grad():
        for ours, theirs in _same_weights(layers, module):
            ours.copy_(theirs)
        for layer, bias_hh in _hidden_biases(layers, module):
            (layer.bias if layer.bias_h is None else layer.bias_h).add_(bias_hh)
    return layers


def _suffixes(layers: RecurrentStack) -> Iterator[tuple[RecurrentLayer, str]]:
    """The end of torch's names for each layer."""
    directions = (layers.forward_layers, ""), (layers.backward_layers, "_reverse")
    for direction, ending in directions:
        for k, layer in enumerate(direction):
            yield cast(RecurrentLayer, layer), f"_l{k}{ending}"


def _same_weights(layers: RecurrentStack, module: nn.RNNBase) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of ours with torch's."""
    for layer, suffix in _suffixes(layers):
        ours = {"weight_ih": layer.weight_x, "weight_hh": layer.weight_h, "bias_ih": layer.bias}
        if layer.weight_p is not None:
            ours["weight_hr"] = layer.weight_p
        for name, weight in ours.items():
            yield weight, module.get_parameter(name + suffix)


def _hidden_biases(
    layers: RecurrentStack, module: nn.RNNBase
) -> Iterator[tuple[RecurrentLayer, Tensor]]:
    """Torch's second bias, which few of our layers have."""
    for layer, suffix in _suffixes(layers):
        yield layer, module.get_parameter("bias_hh" + suffix)
