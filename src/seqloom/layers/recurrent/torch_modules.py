"""Recurrent layers as modules of `torch.nn`, and back: the same weights under torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

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
        for layer, theirs in _pairs(layers, module):
            theirs.weight_ih.copy_(layer.weight_x)
            theirs.weight_hh.copy_(layer.weight_h)
            theirs.bias_ih.copy_(layer.bias)
            theirs.bias_hh.copy_(torch.zeros_like(layer.bias) if layer.bias_h is None else layer.bias_h)
            if layer.weight_p is not None:
                cast(Tensor, theirs.weight_hr).copy_(layer.weight_p)
    return module


def from_torch(module: nn.RNNBase) -> RecurrentStack:
    """A `torch.nn` RNN, LSTM or GRU as our layers. Two biases that do the same work become their sum.

    Raises UsageError for a module without biases.
    """
    if not module.bias:
        raise UsageError("a torch.nn module must have biases to be imported")
    cell = {nn.RNN: "elman", nn.LSTM: "lstm", nn.GRU: "gru-torch"}[type(module)]
    if isinstance(module, nn.RNN) and module.nonlinearity == "relu":
        cell = "elman-relu"
    config = RecurrentStackConfig(
        cell,
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
        for layer, theirs in _pairs(layers, module):
            layer.weight_x.copy_(theirs.weight_ih)
            layer.weight_h.copy_(theirs.weight_hh)
            layer.bias.copy_(theirs.bias_ih)
            (layer.bias if layer.bias_h is None else layer.bias_h).add_(theirs.bias_hh)
            if layer.weight_p is not None:
                layer.weight_p.copy_(cast(Tensor, theirs.weight_hr))
    return layers


class TorchWeights(NamedTuple):
    """Of one layer in one direction."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    weight_hr: Tensor | None


def _pairs(layers: RecurrentStack, module: nn.RNNBase) -> list[tuple[RecurrentLayer, TorchWeights]]:
    """Each of our layers with torch's."""
    suffixes = [f"_l{k}" for k in range(len(layers.stack))]
    if layers.config.bidirectional:
        suffixes += [f"{suffix}_reverse" for suffix in suffixes]
    theirs, pairs = dict(module.named_parameters()), []
    for layer, suffix in zip(layers.all_layers(), suffixes, strict=True):
        weights = TorchWeights(
            weight_ih=theirs[f"weight_ih{suffix}"],
            weight_hh=theirs[f"weight_hh{suffix}"],
            bias_ih=theirs[f"bias_ih{suffix}"],
            bias_hh=theirs[f"bias_hh{suffix}"],
            weight_hr=theirs.get(f"weight_hr{suffix}"),
        )
        pairs.append((layer, weights))
    return pairs
