"""Compiled GELU: the values and gradients of torch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.transformer.compiled_gelu import gelu
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is compiled here")

NEAREST = 2**-7.99
"""Half a step of bfloat16, relative to a number."""


def both(x: Tensor, *, tanh: bool) -> list[tuple[Tensor, Tensor]]:
    """Value and gradient: ours, and torch's of the same numbers in float64."""
    found = []
    for one in (x.clone().requires_grad_(), x.double().requires_grad_()):
        y = gelu(one, tanh=tanh)
        (d_x,) = torch.autograd.grad(y, one, torch.cos(x.detach()).to(one.dtype))
        found.append((y.detach(), d_x))
    return found


@pytest.mark.parametrize("tanh", [True, False])
def test_values_and_gradients_are_those_of_torch(tanh: bool) -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e-30, 88.0, -200.0])])
    (y, d_x), (exact_y, exact_d) = both(x, tanh=tanh)
    assert "Gelu" in str(gelu(x.requires_grad_(), tanh=tanh).grad_fn)
    torch.testing.assert_close(y.double(), exact_y, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_x.double(), exact_d, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tanh", [True, False])
def test_bfloat16_is_the_nearest_to_the_exact_value(tanh: bool) -> None:
    x = torch.linspace(-6, 6, 1003).bfloat16()
    for own, exact in zip(*both(x, tanh=tanh), strict=True):
        assert own.dtype is torch.bfloat16
        torch.testing.assert_close(own.double(), exact, rtol=NEAREST, atol=1e-6)


def test_what_is_not_finite_stays_so() -> None:
    x = torch.tensor([math.nan, math.inf, 1.0]).bfloat16().requires_grad_()
    y = gelu(x, tanh=True)
    assert y[0].isnan()
    assert y[1] == math.inf
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad[0].isnan()
    assert x.grad[2].isfinite()


def test_rows_apart_and_no_rows() -> None:
    x = torch.randn(6, 10)[:, :7].requires_grad_()
    gelu(x, tanh=True).sum().backward()  # type: ignore[no-untyped-call]
    expected = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)[0]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=1e-6)
    assert gelu(torch.empty(0, 3, requires_grad=True), tanh=False).shape == (0, 3)
