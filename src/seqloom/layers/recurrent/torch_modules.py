"""Recurrent layers as modules of `torch.nn`, and back: the same weights under torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from seqloom.errors import UsageError
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import Recurrent

TORCH_MODULES: dict[str, tuple[Callable[..., nn.RNNBase], dict[str, Any]]] = {
    "elman": (nn.RNN, {"nonlinearity": "tanh"}),
    "elman-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru-torch": (nn.GRU, {}),
}
"""Our cells that torch has too, under torch's names."""


def to_torch(layers: Recurrent) -> nn.RNNBase:
    """The same weights as a `torch.nn` module (batch first). Raises UsageError for what torch does not have."""
    if layers.cell_name not in TORCH_MODULES:
        raise UsageError(
            f"torch.nn has no cell {layers.cell_name!r} (torch.nn.GRU is 'gru-torch'); it has"
            f" {', '.join(TORCH_MODULES)}"
        )
    if (
        layers.normalisation != "none"
        or layers.connection != "none"
        or layers.variational
        or layers.state_dropout
    ):
        raise UsageError(
            "torch.nn has no normalisation, connections between layers, variational dropout or dropout of the"
            " state"
        )
    kind, more = TORCH_MODULES[layers.cell_name]
    module = kind(
        layers.input_width,
        layers.width,
        num_layers=len(layers.stack),
        bidirectional=layers.bidirectional,
        batch_first=True,
        dropout=layers.dropout,
        **more,
        **({} if layers.projection is None else {"proj_size": layers.projection}),
    ).to(layers.stack[0].bias)
    module.train(layers.training)
    with torch.no_grad():
        for suffix, layer in _torch_suffixes(layers):
            getattr(module, f"weight_ih{suffix}").copy_(layer.weight_x)
            getattr(module, f"weight_hh{suffix}").copy_(layer.weight_h)
            getattr(module, f"bias_ih{suffix}").copy_(layer.bias)
            getattr(module, f"bias_hh{suffix}").copy_(
                torch.zeros_like(layer.bias) if layer.bias_h is None else layer.bias_h
            )
            if layer.weight_p is not None:
                getattr(module, f"weight_hr{suffix}").copy_(layer.weight_p)
    return module


def from_torch(module: nn.RNNBase) -> Recurrent:
    """A `torch.nn` RNN, LSTM or GRU as our layers. Where its two biases do the same work, they are summed.

    Raises UsageError for a module without biases.
    """
    if not module.bias:
        raise UsageError("a torch.nn module must have biases to be imported")
    kind = {nn.RNN: "elman", nn.LSTM: "lstm", nn.GRU: "gru-torch"}[type(module)]
    if getattr(module, "nonlinearity", None) == "relu":
        kind = "elman-relu"
    layers = Recurrent(
        kind,
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        dropout=module.dropout,
        projection=getattr(module, "proj_size", 0) or None,
    ).to(module.weight_ih_l0)  # type: ignore[arg-type]
    layers.train(module.training)
    with torch.no_grad():
        for suffix, layer in _torch_suffixes(layers):
            layer.weight_x.copy_(getattr(module, f"weight_ih{suffix}"))
            layer.weight_h.copy_(getattr(module, f"weight_hh{suffix}"))
            layer.bias.copy_(getattr(module, f"bias_ih{suffix}"))
            (layer.bias if layer.bias_h is None else layer.bias_h).add_(getattr(module, f"bias_hh{suffix}"))
            if layer.weight_p is not None:
                layer.weight_p.copy_(getattr(module, f"weight_hr{suffix}"))
    return layers


def _torch_suffixes(layers: Recurrent) -> list[tuple[str, RecurrentLayer]]:
    named = [(f"_l{k}", layer) for k, layer in enumerate(layers.forward_layers)]
    named += [(f"_l{k}_reverse", layer) for k, layer in enumerate(layers.backward_layers)]
    return named  # type: ignore[return-value]
