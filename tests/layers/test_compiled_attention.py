"""Compiled attention: the values and gradients of torch's, whatever the shapes, strides and masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.attention import HeadAttention
from seqloom.layers.compiled_attention import Looks, compiled_attention, has_compiled_attention
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is compiled here")

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Of the largest number; half a step of bfloat16."""


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def self_attention(
    rows: int, heads: int, steps: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A product with query, keys and values, and these as the blocks cut them."""
    parts = drawn(rows, steps, 3, heads, width, dtype=dtype).requires_grad_()
    query, keys, values = parts.transpose(1, 3).unbind(2)
    return parts, (query, keys, values)


def masks(rows: int, queries: int, keys: int) -> Tensor:
    """Some at random; the first query of each row sees nothing."""
    mask = torch.rand(rows, 1, queries, keys, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[:, :, 0] = False
    return mask


def close(actual: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    error = float((actual.detach().double() - exact).abs().max())
    assert error <= TOLERANCE[dtype] * (1 + float(exact.abs().max())), error


def same_as_torch(
    query: Tensor, keys: Tensor, values: Tensor, looks: Looks, parts: tuple[Tensor, ...]
) -> None:
    """Beside float64 of the same numbers; `parts` are what gradients are of."""
    assert has_compiled_attention(query, keys, values, looks)
    exact_parts = tuple(part.detach().double().requires_grad_() for part in (query, keys, values))
    exact_query, exact_keys, exact_values = exact_parts
    exact = F.scaled_dot_product_attention(
        exact_query,
        exact_keys,
        exact_values,
        attn_mask=looks.mask,
        is_causal=looks.causal,
        scale=looks.scale,
    )
    mixed = compiled_attention(query, keys, values, looks)
    assert mixed.shape == query.shape
    close(mixed, exact.detach(), query.dtype)
    d_mixed = drawn(*mixed.shape, dtype=query.dtype, seed=2)
    gradients = torch.autograd.grad(mixed, parts, d_mixed)
    expected = torch.autograd.grad(exact, exact_parts, d_mixed.double())
    if len(parts) == 1:
        expected = (torch.stack(expected, dim=2).transpose(1, 3),)
    for own, other in zip(gradients, expected, strict=True):
        close(own, other, query.dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("looking", ["causal", "all", "mask"])
@pytest.mark.parametrize(
    ("steps", "width"), [(1, 5), (7, 16), (16, 20), (47, 64), (48, 1), (131, 33), (200, 128)]
)
def test_values_and_gradients_are_those_of_torch(
    steps: int, width: int, looking: str, dtype: torch.dtype
) -> None:
    parts, (query, keys, values) = self_attention(2, 3, steps, width, dtype)
    mask = masks(2, steps, steps) if looking == "mask" else None
    looks = Looks(mask, looking == "causal", width**-0.5)
    same_as_torch(query, keys, values, looks, (parts,))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_queries_of_other_rows_than_the_keys_are_of(dtype: torch.dtype) -> None:
    """As a decoder looks at its source; a mask of keys alone is one for all queries."""
    query = drawn(3, 2, 9, 24, dtype=dtype).requires_grad_()
    keys, values = (drawn(3, 2, 30, 24, dtype=dtype, seed=seed).requires_grad_() for seed in (3, 4))
    mask = torch.arange(30) < torch.tensor([30, 4, 17])[:, None]
    looks = Looks(mask[:, None, None], False, 0.3)
    same_as_torch(query, keys, values, looks, (query, keys, values))


def test_a_query_that_sees_nothing_gets_0_and_passes_no_gradient() -> None:
    _, (query, keys, values) = self_attention(2, 2, 20, 8)
    looks = Looks(masks(2, 20, 20), False, 1.0)
    mixed = compiled_attention(query, keys, values, looks)
    assert not mixed[:, :, 0].any()
    (d_query,) = torch.autograd.grad(mixed.sum(), query)
    assert not d_query[:, :, 0].any()
    assert d_query[:, :, 1:].any()


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            parts, inputs = self_attention(4, 5, 60, 16)
            mixed = compiled_attention(*inputs, Looks(None, True, 0.25))
            found.append((mixed.detach(), *torch.autograd.grad(mixed.square().sum(), parts)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_torch_serves_where_it_cannot() -> None:
    _, (query, keys, values) = self_attention(2, 2, 6, 4)
    looks = Looks(None, True, 0.5)
    assert has_compiled_attention(query, keys, values, looks)
    with torch.no_grad():
        assert not has_compiled_attention(query, keys, values, looks)
    assert not has_compiled_attention(query.double(), keys.double(), values.double(), looks)
    assert not has_compiled_attention(query, keys.bfloat16(), values.bfloat16(), looks)
    assert not has_compiled_attention(query, keys[:, :, :0], values[:, :, :0], looks)
    assert not has_compiled_attention(query, keys, values[..., :2], looks)
    biased = looks._replace(mask=torch.zeros(6, 6))
    assert not has_compiled_attention(query, keys, values, biased)
    layer = HeadAttention(2, 0.5, dropout=0.5)
    torch.manual_seed(0)
    dropped = layer.train().mixed(query, keys, values, None, causal=True)
    assert not torch.allclose(dropped, layer.eval().mixed(query, keys, values, None, causal=True))


def test_there_is_no_second_derivative() -> None:
    _, (query, keys, values) = self_attention(2, 2, 6, 4)
    mixed = compiled_attention(query, keys, values, Looks(None, True, 0.5))
    (first,) = torch.autograd.grad(mixed.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()  # type: ignore[no-untyped-call]
