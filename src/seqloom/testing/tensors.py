"""What all checks use: random weights, padded rows, comparisons, and how a broken law is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LAYOUTS = ("right", "left", "around")
"""Where a row is padded; around: before, inside and after."""


def run_laws(subject: str, laws: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Calls each law with these arguments. Raises AssertionError that names the one that is broken."""
    for law in laws:
        try:
            law(*arguments)
        except AssertionError as error:
            name = law.__name__.strip("_").replace("_", " ")
            raise AssertionError(f"{subject} breaks a law: {name}\n{error}") from error


def assert_close(actual: Any, expected: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def draw(*shape: int, seed: int = 1) -> Tensor:
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_parameters(module: nn.Module, seed: int = 0, std: float = 0.7) -> None:
    """Every weight, bias and gain at random: one of 0 or 1 would hide that it is not used."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=std, generator=generator)


def gradients(
    results: Sequence[Tensor], leaves: Sequence[Tensor], mask: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Of a weighted sum of all results (of the first, the outputs, where `mask` is true)."""
    weights = [
        draw(*result.shape, seed=20 + index).to(result.dtype)
        for index, result in enumerate(results)
    ]
    if mask is not None:
        weights[0] = weights[0] * mask[..., None]
    products = [(result * weight).sum() for result, weight in zip(results, weights, strict=True)]
    return torch.autograd.grad(
        torch.stack(products).sum(), list(leaves), allow_unused=True, materialize_grads=True
    )


def pad_rows(rows: Sequence[Sequence[int]], layout: str, pad: int) -> Tensor:
    """`(rows, steps)`, padded as the layout says."""
    longest = max(map(len, rows)) + 3 * (layout == "around")
    return torch.tensor([_padded(list(row), longest - len(row), layout, pad) for row in rows])


def _padded(row: list[int], pads: int, layout: str, pad: int) -> list[int]:
    if layout == "right":
        return row + [pad] * pads
    if layout == "left":
        return [pad] * pads + row
    half = (len(row) + 1) // 2
    return [pad, *row[:half], *[pad] * (pads - 2), *row[half:], pad]
