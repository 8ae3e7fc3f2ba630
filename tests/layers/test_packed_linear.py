"""Products with packed weights are those of the stored weights: exact sums of whole numbers in int8 where the
processor can, whatever the other rows and the number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqloom.layers import packed_linear as module
from seqloom.layers.packed_linear import packed_product
from seqloom.native.library import decoding_functions, library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.stored_weight import QuantisedWeight

pytestmark = pytest.mark.skipif(
    library() is None, reason="packed products need a C++ compiler when the project is installed"
)

SHAPES = [(1, 1), (37, 50), (255, 256), (256, 100)]
"""Inputs, outputs: whole vectors and words, or not."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor) -> Tensor:
    """Each row in whole steps, of which the largest number has 127."""
    steps = x.abs().amax(dim=1, keepdim=True) / 127
    return (x * (1 / steps)).round() * steps


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 5, 8, 13, 30])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_product_of_what_is_stored(
    kind: str, shape: tuple[int, int], rows: int, storage: Storage
) -> None:
    inputs, outputs = shape
    x, weight, bias = drawn(rows, inputs), drawn(outputs, inputs, seed=1), drawn(outputs, seed=2)
    functions = decoding_functions()
    assert functions is not None
    read = rounded(x) if storage == "int8" and functions.multiplies_integers else x
    stored = QuantisedWeight.of(weight, storage).restored()
    expected = read.double() @ stored.double().T + bias
    found = packed_product(PackedWeights(storage), x, weight, bias)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
def test_a_row_has_the_same_bits_alone_and_with_any_threads(
    kind: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = drawn(30, 100), drawn(210, 100, seed=1)
    weights = PackedWeights(storage)
    together = packed_product(weights, x, weight, None)
    for row in range(len(x)):
        assert torch.equal(
            packed_product(weights, x[row : row + 1], weight, None)[0], together[row]
        )
    monkeypatch.setattr(module, "threads_for", lambda _: 3)
    assert torch.equal(packed_product(weights, x, weight, None), together)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(kind: str, broken: float) -> None:
    x = drawn(3, 20)
    x[1, 7] = broken
    found = packed_product(PackedWeights("int8"), x, drawn(30, 20, seed=1), None)
    assert found.isfinite().all(dim=1).tolist() == [True, False, True]
    assert packed_product(PackedWeights("int8"), 0 * drawn(1, 20), drawn(9, 20), None).eq(0).all()
