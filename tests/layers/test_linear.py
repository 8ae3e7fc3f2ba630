"""The linear map of decoding is `F.linear`, whatever its weight went through."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers import linear as module
from seqloom.layers.linear import LARGE, MOST_ROWS, MUCH, Linear, linear

WIDE = LARGE // 64
"""Entries of an output for which a weight of width 64 is large enough to be packed for one row."""
FEW = MUCH // 64 // MOST_ROWS
"""Entries for which it is packed for as many rows as that can be, and no fewer."""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(1, 64), (1, 1, 64), (7, 64), (3, 5, 64), (MOST_ROWS, 64), (MOST_ROWS + 1, 64)]
)
def test_it_is_f_linear(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, WIDE, bias=bias), torch.randn(shape)
    with torch.inference_mode():
        found = layer(x)
    torch.testing.assert_close(found, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def sgd(layer: Linear) -> None:
    layer(torch.randn(2, 64)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def fused_adamw(layer: Linear) -> None:
    layer(torch.randn(2, 64)).square().sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()


def loaded(layer: Linear) -> None:
    layer.load_state_dict({"weight": torch.randn(WIDE, 64), "bias": torch.randn(WIDE)})


def replaced_data(layer: Linear) -> None:
    layer.weight.data = torch.randn(WIDE, 64)


def replaced_weight(layer: Linear) -> None:
    layer.weight = nn.Parameter(torch.randn(WIDE, 64))


@pytest.mark.parametrize("change", [sgd, fused_adamw, loaded, replaced_data, replaced_weight])
def test_a_weight_that_changed_is_packed_anew(change: Callable[[Linear], None]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, WIDE), torch.randn(4, 64)
    with torch.no_grad():
        before = layer(x)
    change(layer)
    with torch.no_grad():
        after = layer(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_it_packs_where_that_pays_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def pack(weight: Tensor) -> Tensor:
        packed.append(len(weight))
        return weight

    monkeypatch.setattr(module, "_pack", pack)
    monkeypatch.setattr(module, "_product", lambda x, weight, bias, *_: F.linear(x, weight, bias))
    large, small = Linear(64, WIDE), Linear(64, FEW)
    with torch.no_grad():
        for rows in (1, 2, MOST_ROWS, MOST_ROWS + 1, 0):
            large(torch.randn(rows, 64))
            small(torch.randn(rows, 64))
        assert packed == [WIDE, FEW]
        copy.deepcopy(large)(torch.randn(2, 64))
        assert packed == [WIDE, FEW, WIDE]
        for layer, x in (
            (Linear(64, WIDE).double(), torch.randn(2, 64).double()),
            (Linear(64, WIDE).bfloat16(), torch.randn(2, 64).bfloat16()),
        ):
            layer(x)
        linear(
            torch.randn(2, 64), torch.randn(WIDE, 64)
        )  # a weight that is no parameter is made anew each time
        with torch.autocast("cpu", torch.bfloat16):
            Linear(64, WIDE)(torch.randn(2, 64))
    Linear(64, WIDE)(torch.randn(2, 64))  # with a gradient
    assert packed == [WIDE, FEW, WIDE]


def test_without_the_operators_it_is_f_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_product", None)
    layer, x = Linear(64, WIDE), torch.randn(2, 64)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_a_gradient_goes_through() -> None:
    layer, x = Linear(8, 8), torch.randn(2, 8, requires_grad=True)
    with torch.no_grad():
        layer(x)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 8))


@pytest.mark.parametrize("again", ["data", "vector"])
def test_memory_that_comes_back_is_not_taken_for_the_old_weight(again: str) -> None:
    """A new weight may lie where an old one was that is freed."""
    torch.manual_seed(0)
    layer, x = Linear(64, WIDE), torch.randn(4, 64)
    for turn in range(20):
        if again == "data":
            layer.weight.data = torch.randn(WIDE, 64)
        else:
            nn.utils.vector_to_parameters(torch.randn(WIDE * 65), layer.parameters())
        if turn % 2:
            with torch.no_grad():
                torch.testing.assert_close(
                    layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5
                )


def test_a_packed_layer_is_pickled_and_a_weight_that_goes_takes_its_pack_along() -> None:
    layer = Linear(64, WIDE)
    key = id(layer.weight)
    with torch.no_grad():
        layer(torch.randn(2, 64))
    assert key in module._packs
    assert pickle.loads(pickle.dumps(layer)).weight.equal(layer.weight)  # noqa: S301
    del layer
    gc.collect()
    assert key not in module._packs
