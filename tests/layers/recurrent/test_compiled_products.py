"""The compiled product against torch's, whatever the sizes, the layout, the order of rows, the team and the
processor."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from tests.layers.equations import drawn
from torch import Tensor

from seqloom.layers.recurrent import compiled_products
from seqloom.layers.recurrent.compiled_products import Matrix, ProductArguments, gemm, threads_for
from seqloom.native.build import SOURCES
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(
    library() is None,
    reason="the compiled product needs a C++ compiler when the project is installed",
)

SIZES = [
    (1, 1, 1),
    (5, 7, 3),
    (6, 16, 1),
    (13, 2049, 5),
    (12, 33, 513),
    (150, 17, 1030),
    (73, 2070, 515),
    (300, 40, 20),
]
"""(rows, columns, depth): within a tile, and beyond tiles, strips and each block."""


def lying(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers: row by row, column by column, with room between rows, or neither way."""
    if layout == "columns":
        return tensor.T.contiguous().T
    if layout == "apart":
        return torch.cat([tensor, tensor + 1], dim=1)[:, : tensor.shape[1]]
    if layout == "neither":
        return torch.stack([tensor, tensor + 1], dim=-1)[..., 0]
    return tensor


@pytest.mark.parametrize(
    "layouts",
    [
        "rows rows",
        "columns rows",
        "rows columns",
        "columns columns",
        "apart apart",
        "neither neither",
    ],
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_is_the_matrix_product(size: tuple[int, int, int], layouts: str, kind: str) -> None:
    rows, columns, depth = size
    a, b, bias, before = (
        drawn(rows, depth),
        drawn(depth, columns, seed=2),
        drawn(columns, seed=3),
        drawn(rows, columns, seed=4),
    )
    of_a, of_b = (
        lying(tensor, layout) for tensor, layout in zip((a, b), layouts.split(), strict=True)
    )
    torch.testing.assert_close(
        gemm(of_a, of_b, torch.full_like(before, math.nan)), a @ b, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        gemm(of_a, of_b, torch.full_like(before, math.nan), bias),
        a @ b + bias,
        rtol=1e-12,
        atol=1e-12,
    )
    out = lying(before, "apart")
    torch.testing.assert_close(
        gemm(of_a, of_b, out, add=True), before + a @ b, rtol=1e-12, atol=1e-12
    )
    single = gemm(of_a.float(), of_b.float(), torch.empty(rows, columns), bias.float())
    torch.testing.assert_close(single.double(), a @ b + bias, rtol=1e-5, atol=1e-5 * depth**0.5)


@pytest.mark.parametrize("size", [(5, 7, 3), (75, 33, 515), (40, 2051, 9)], ids=str)
def test_rows_may_be_taken_in_an_order_of_their_own(size: tuple[int, int, int], kind: str) -> None:
    """Of each matrix; what is not asked for is neither read nor written."""
    rows, columns, depth = size
    draw = torch.Generator().manual_seed(1)

    def places(count: int) -> Tensor:
        return torch.randperm(2 * count, generator=draw)[:count]

    def among(chosen: Tensor, tensor: Tensor) -> Tensor:
        return tensor.new_full((2 * len(chosen), tensor.shape[1]), math.nan).index_copy(
            0, chosen, tensor
        )

    a, b, before = drawn(rows, depth), drawn(depth, columns, seed=2), drawn(rows, columns, seed=3)
    of_a, of_b, of_out = places(rows), places(depth), places(rows)
    for add in (False, True):
        expected = a @ b + before * add
        out = gemm(among(of_a, a), b, before.clone(), add=add, a_index=of_a)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
        out = gemm(lying(a, "columns"), among(of_b, b), before.clone(), add=add, b_index=of_b)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
        out = gemm(
            among(of_a, a),
            lying(b, "columns"),
            among(of_out, before),
            add=add,
            a_index=of_a,
            out_index=of_out,
        )
        torch.testing.assert_close(
            out, among(of_out, expected), rtol=1e-12, atol=1e-12, equal_nan=True
        )


def test_any_team_makes_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(211, 1030).float(), drawn(1030, 77, seed=2).float()
    found = []
    for team in (1, 2, 3, 8):
        monkeypatch.setattr(compiled_products, "threads_for", lambda operations, team=team: team)
        found.append(gemm(lying(a, "columns"), b, torch.empty(211, 77)))
    assert all(torch.equal(one, found[0]) for one in found)


def test_what_is_no_number_stays_in_its_row_and_column(kind: str) -> None:
    a, b = drawn(20, 9), drawn(9, 20, seed=2)
    a[3, 4], b[5, 7] = math.nan, math.inf
    for left in (a, lying(a, "columns")):
        for right in (b, lying(b, "columns")):
            out = gemm(left, right, torch.empty(20, 20, dtype=a.dtype))
            finite = torch.ones(20, 20, dtype=torch.bool)
            finite[3], finite[:, 7] = False, False
            assert torch.equal(out.isfinite(), finite)


def test_what_does_not_fit_is_an_error(kind: str) -> None:
    a, b, out = torch.zeros(4, 3), torch.zeros(3, 5), torch.zeros(4, 5)
    for wrong in (
        (a, b.T, out),
        (a, b, out.T),
        (a, b, torch.zeros(5, 5)),
        (a.double(), b, out),
        (a.half(), b.half(), out.half()),
    ):
        with pytest.raises(ValueError, match="must"):
            gemm(*wrong)
    with pytest.raises(ValueError, match="row by row"):
        gemm(a, b, torch.zeros(5, 4).T)
    with pytest.raises(ValueError, match="row by row"):
        gemm(lying(a, "columns"), b, out, a_index=torch.arange(4))
    with pytest.raises(ValueError, match="bias"):
        gemm(a, b, out, torch.zeros(4))
    with pytest.raises(ValueError, match="bias"):
        gemm(a, b, out, torch.zeros(5), add=True)
    with pytest.raises(ValueError, match="sizes"):
        gemm(a, b, out, a_index=torch.arange(3))


def test_a_team_is_as_large_as_the_work_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [threads_for(operations) for operations in (0, 10**6, 3 * 10**6, 10**9)] == [1, 1, 3, 4]


def test_the_structures_are_those_of_the_headers() -> None:
    for structure, header, begin in (
        (Matrix, "product.h", "struct Matrix {"),
        (ProductArguments, "gemm.h", "struct Gemm {"),
    ):
        text = (SOURCES / header).read_text().partition(begin)[2].partition("\n\n")[0]
        declared = [line.partition(";")[0] for line in text.splitlines() if ";" in line]
        names = [
            name for line in declared for name in line.replace("*", " ").replace(",", " ").split()
        ]
        assert [
            name
            for name in names
            if name not in ("const", "T", "long", "Matrix<const", "T>", "Matrix<T>")
        ] == [name for name, *_ in structure._fields_]
    assert ctypes.sizeof(Matrix) == 8 * 4
    assert ctypes.sizeof(ProductArguments) == 8 * (3 * 4 + 5)
