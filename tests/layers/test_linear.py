"""The linear map of decoding is `F.linear`; weights are packed while decoding says so, and never outside."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.strategies import BeamSearch
from seqloom.layers import linear as module
from seqloom.layers.linear import LARGE, MOST_ROWS, MUCH, Linear, linear
from seqloom.layers.packed_linear import PackedLinear
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.native.library import library
from seqloom.packed_weights import PackedWeights, current, packed_weights

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
    with torch.inference_mode(), packed_weights():
        found = layer(x)
    torch.testing.assert_close(found, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each weight that is packed, in order."""
    if library() is None:
        pytest.skip("packed products need a C++ compiler when the project is installed")
    lengths: list[int] = []
    original = PackedLinear.__init__

    def counted(self: PackedLinear, weight: Tensor, weights: PackedWeights) -> None:
        lengths.append(len(weight))
        original(self, weight, weights)

    monkeypatch.setattr(PackedLinear, "__init__", counted)
    return lengths


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


def written_through_data(layer: Linear) -> None:
    layer.weight.data.mul_(2)


def written_through_numpy(layer: Linear) -> None:
    layer.weight.detach().numpy()[:] *= 2


CHANGES = [
    sgd,
    fused_adamw,
    loaded,
    replaced_data,
    replaced_weight,
    written_through_data,
    written_through_numpy,
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_follows_every_change_of_the_weight(change: Callable[[Linear], None]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, WIDE), torch.randn(4, 64)
    with torch.no_grad(), packed_weights():
        packed = layer(x)
    with torch.no_grad():
        before = layer(x)
    change(layer)
    with torch.no_grad():
        after = layer(x)
        with packed_weights():
            packed_after = layer(x)
    torch.testing.assert_close(before, packed, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before, after)
    assert torch.equal(after, F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(packed_after, after, rtol=1e-5, atol=1e-5)


def test_nothing_is_packed_outside_of_decoding(packed: list[int]) -> None:
    with torch.no_grad():
        Linear(64, WIDE)(torch.randn(2, 64))
    assert packed == []


def test_it_packs_where_that_pays_and_once(packed: list[int]) -> None:
    large, small = Linear(64, WIDE), Linear(64, FEW)
    with packed_weights():
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
            linear(torch.randn(2, 64), torch.randn(WIDE, 64))  # no parameter: made for this call
            with torch.autocast("cpu", torch.bfloat16):
                Linear(64, WIDE)(torch.randn(2, 64))
        Linear(64, WIDE)(torch.randn(2, 64))  # with a gradient
    assert packed == [WIDE, FEW, WIDE]


def test_decoding_packs_each_weight_once(packed: list[int]) -> None:
    model = GPT(
        GPTConfig(vocabulary_size=LARGE // 64, context=16, width=64, layers=1, heads=2)
    ).eval()
    generate(
        model,
        None,
        [[1], [1, 2]],
        [5, 5],
        GenerationOptions(strategy=BeamSearch(width=2), eos=2, pad=0),
    )
    assert packed == [LARGE // 64, 3 * 64, 64, 4 * 64, 64]  # first the output layer, as it is large
    assert current() is None


def test_the_outer_of_two_contexts_serves_both(packed: list[int]) -> None:
    layer, x = Linear(64, WIDE), torch.randn(2, 64)
    with torch.no_grad(), packed_weights():
        with packed_weights():
            layer(x)
        layer(x)
    assert packed == [WIDE]


def test_a_context_may_be_opened_again_and_is_closed_in_between(packed: list[int]) -> None:
    layer, x, weights = Linear(64, WIDE), torch.randn(2, 64), PackedWeights()
    with torch.no_grad():
        for _ in range(3):
            with weights:
                layer(x)
            assert current() is None
    assert packed == [WIDE]


def test_a_context_is_open_in_its_own_thread_only() -> None:
    seen: list[PackedWeights | None] = []
    with packed_weights():
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_context_that_fails_is_closed() -> None:
    with pytest.raises(ZeroDivisionError), packed_weights():
        raise ZeroDivisionError
    assert current() is None


def test_without_a_library_it_is_f_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decoding_functions", lambda: None)
    layer, x = Linear(64, WIDE), torch.randn(2, 64)
    with torch.no_grad(), packed_weights():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_a_gradient_goes_through() -> None:
    layer, x = Linear(8, 8), torch.randn(2, 8, requires_grad=True)
    with torch.no_grad():
        layer(x)
    with packed_weights():
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
            with torch.no_grad(), packed_weights():
                torch.testing.assert_close(
                    layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5
                )


def test_a_packed_layer_is_pickled_and_its_copy_goes_with_the_context() -> None:
    layer = Linear(64, WIDE)
    weight = weakref.ref(layer.weight)
    with torch.no_grad(), packed_weights():
        layer(torch.randn(2, 64))
        assert pickle.loads(pickle.dumps(layer)).weight.equal(layer.weight)  # noqa: S301
    del layer
    gc.collect()
    assert weight() is None
