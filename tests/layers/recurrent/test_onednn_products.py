"""Products on oneDNN or not: the same numbers, and a choice that depends on shapes alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from seqloom.layers.recurrent import onednn_products
from seqloom.layers.recurrent.onednn_products import RepeatedProduct, has_onednn, product

needs_onednn = pytest.mark.skipif(
    not has_onednn(torch.ones(1)), reason="this torch has no oneDNN products"
)

SHAPES = [
    (64, 128, 183),
    (64, 128, 184),
    (8, 512, 366),
    (8, 512, 367),
    (65, 512, 512),
    (7, 512, 512),
    (1, 3, 5),
    (0, 3, 5),
    (9, 1, 1),
    (4096, 5, 1024),
]
"""(rows, in, out): below and above the operations from which oneDNN takes part, rows and a result that it
does not get."""

WEIGHTS = [(512, 512), (512, 511), (300, 1024), (5, 3)]
"""(out, in): on both sides of the size from which a weight gets oneDNN's layout."""


def values(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def summands(rows: int, out: int) -> Iterator[Tensor | None]:
    """Nothing, a vector, a matrix, and one that is a view."""
    yield from (None, values(out, seed=3), values(rows, out, seed=3), values(out, rows, seed=3).T)


def close(found: Tensor, x: Tensor, weight: Tensor, plus: Tensor | None) -> None:
    """To 1e-5 of the largest number, by the same product in double precision."""
    expected = x.double() @ weight.double().T + (0 if plus is None else plus.double())
    assert found.shape == expected.shape
    assert found.dtype == x.dtype
    if len(found):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def views_of(matrix: Tensor) -> Iterator[Tensor]:
    """As it is, and as a transposed view."""
    yield matrix
    yield matrix.T.contiguous().T


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN was given."""
    shapes: list[tuple[int, ...]] = []
    original = onednn_products._onednn

    def noting(x: Tensor, weight: Tensor, plus: Tensor | None) -> Tensor:
        shapes.append((*x.shape, weight.shape[0]))
        return original(x, weight, plus)

    monkeypatch.setattr(onednn_products, "_onednn", noting)
    return shapes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_many_rows_is_the_matrix_product(shape: tuple[int, int, int]) -> None:
    rows, inner, out = shape
    for x in views_of(values(rows, inner)):
        for weight in views_of(values(out, inner, seed=2)):
            for plus in summands(rows, out):
                kept = None if plus is None else plus.clone()
                close(product(x, weight, plus), x, weight, plus)
                # what is added is not written to
                assert plus is None or kept is None or torch.equal(plus, kept)


@pytest.mark.parametrize("rows", [1, 8, 9, 32])
@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
def test_a_product_of_few_rows_is_the_matrix_product(shape: tuple[int, int], rows: int) -> None:
    out, inner = shape
    for weight in views_of(values(out, inner, seed=2)):
        multiply = RepeatedProduct(weight, rows, uses=8)
        for fewer in {rows, max(rows - 1, 1), max(rows // 2, 1)}:
            for x in views_of(values(fewer, inner)):
                for plus in summands(fewer, out):
                    kept = None if plus is None else plus.clone()
                    close(multiply(x, plus), x, weight, plus)
                    assert plus is None or kept is None or torch.equal(plus, kept)
                into = torch.empty(fewer, out)
                assert multiply.into(x, into) is into
                close(into, x, weight, None)


@needs_onednn
def test_which_one_runs_depends_on_shapes_alone(taken: list[tuple[int, ...]]) -> None:
    expected = [(64, 128, 184), (8, 512, 367)]
    for seed in range(2):
        for shape in SHAPES:
            rows, inner, out = shape
            before = len(taken)
            for x in views_of(values(rows, inner, seed=seed) * 100**seed):
                for weight in views_of(values(out, inner, seed=2 + seed)):
                    for plus in summands(rows, out):
                        product(x, weight, plus)
            assert taken[before:] == ([shape] * 16 if shape in expected else [])


@needs_onednn
@pytest.mark.parametrize(
    ("shape", "rows", "uses", "packed"),
    [
        ((512, 512), 8, 8, True),
        ((1024, 300), 32, 100, True),
        ((512, 512), 7, 8, False),
        ((512, 512), 8, 7, False),
        ((512, 511), 8, 8, False),
    ],
)
def test_a_large_weight_that_is_used_often_takes_onednns_layout(
    shape: tuple[int, int], rows: int, uses: int, packed: bool
) -> None:
    for seed in range(2):
        for weight in views_of(values(*shape, seed=seed)):
            assert (RepeatedProduct(weight, rows, uses).packed is not None) == packed


@needs_onednn
def test_onednn_gets_multiples_of_eight_rows_only(taken: list[tuple[int, ...]]) -> None:
    multiply = RepeatedProduct(values(512, 512), 24, 20)
    for rows in range(1, 25):
        multiply(values(rows, 512))
        product(values(rows * 10, 512), values(512, 512))
    assert {shape[0] for shape in taken} == {8, 16, 24, 40, 80, 120, 160, 200, 240}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_never_take_onednn(
    dtype: torch.dtype, taken: list[tuple[int, ...]]
) -> None:
    x, weight = values(64, 512, dtype=dtype), values(512, 512, seed=2, dtype=dtype)
    found = product(x, weight, x), RepeatedProduct(weight, 64, 100)(x, x)
    assert RepeatedProduct(weight, 64, 100).packed is None
    assert not taken
    for result in found:
        assert torch.equal(result, torch.addmm(x, x, weight.T))


@pytest.mark.parametrize("missing", ["_linear_pointwise", "_reorder_linear_weight"])
def test_a_torch_without_these_names_does_without(
    missing: str, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[int, ...]]
) -> None:
    class Names:
        """`torch.ops.mkldnn` without one of them."""

        def __getattr__(self, name: str) -> object:
            if name == missing:
                raise AttributeError(name)
            return None

    monkeypatch.setattr(torch.ops, "mkldnn", Names())
    x, weight = values(64, 512), values(512, 512, seed=2)
    assert not has_onednn(weight)
    close(product(x, weight, x), x, weight, x)
    close(RepeatedProduct(weight, 64, 100)(x, x), x, weight, x)
    assert not taken


@needs_onednn
def test_switched_off_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch, taken: list[tuple[int, ...]]
) -> None:
    x, weight = values(64, 512), values(512, 512, seed=2)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not has_onednn(weight)
    close(product(x, weight), x, weight, None)
    close(RepeatedProduct(weight, 64, 100)(x), x, weight, None)
    assert not taken
