"""The Transformers of the field written out: one text, one query and one head at a time, in float64."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import torch
from tests.layers.transformer.test_blocks import PHI
from torch import Tensor, nn

Sees = Callable[[int, int], bool]
"""(place of the query, place of the key) -> whether it looks there."""
Bias = Callable[[int, int], float]
"""(head, key's place - query's place) -> what is added to the score."""


def drawn(module: Any, std: float = 0.5) -> Any:
    """In float64 and evaluation mode, every parameter drawn at random: the same for the same name and
    shape."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(
                std=std, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))
            )
    return module


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def causal(i: int, j: int) -> bool:
    return j <= i


def every(_: int, __: int) -> bool:
    return True


def linear(layer: Any, x: Tensor) -> Tensor:
    y: Tensor = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def layer_norm(layer: Any, x: Tensor, epsilon: float) -> Tensor:
    """γ (x - μ) / √(σ² + ε) + β."""
    if isinstance(layer, nn.Identity):
        return x
    rows = []
    for row in x:
        mean = sum(row.tolist()) / len(row)
        variance = sum((v - mean) ** 2 for v in row.tolist()) / len(row)
        rows.append((row - mean) / math.sqrt(variance + epsilon) * layer.weight)
    y = torch.stack(rows)
    return y if layer.bias is None else y + layer.bias


def rms_norm(layer: Any, x: Tensor, epsilon: float) -> Tensor:
    """γ x / √(mean x² + ε)."""
    return torch.stack(
        [
            row / math.sqrt(sum(v * v for v in row.tolist()) / len(row) + epsilon) * layer.weight
            for row in x
        ]
    )


def look(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    scale: float,
    sees: Sees,
    bias: Bias | None = None,
) -> tuple[Tensor, Tensor]:
    """queries `(n, inner)`, keys, values `(m, inner)` -> what each query gets `(n, inner)`, and its weights
    `(heads, n, m)`."""
    d = queries.shape[1] // heads
    mixed, weights = torch.zeros_like(queries), queries.new_zeros(heads, len(queries), len(keys))
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        for i in range(len(queries)):
            seen = [j for j in range(len(keys)) if sees(i, j)]
            scores = [
                float(queries[i, part] @ keys[j, part]) * scale
                + (bias(head, j - i) if bias else 0.0)
                for j in seen
            ]
            exps = [math.exp(score - max(scores)) for score in scores]
            for j, e in zip(seen, exps, strict=True):
                weights[head, i, j] = e / sum(exps)
                mixed[i, part] += e / sum(exps) * values[j, part]
    return mixed, weights


def attention(
    layer: Any, x: Tensor, heads: int, scale: float, sees: Sees, bias: Bias | None = None
) -> Tensor:
    """A(x)."""
    query, keys, values = linear(layer.query_key_value, x).chunk(3, dim=1)
    return linear(layer.output, look(query, keys, values, heads, scale, sees, bias)[0])


def cross_attention(
    layer: Any, x: Tensor, memory: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    """C(x, memory) `(steps, width)`, and its weights `(heads, steps, source)`."""
    keys, values = linear(layer.key_value, memory).chunk(2, dim=1)
    mixed, weights = look(linear(layer.query, x), keys, values, heads, scale, every)
    return linear(layer.output, mixed), weights


def feed_forward(layer: Any, x: Tensor, activation: str, *, gated: bool = False) -> Tensor:
    """F(x)."""
    hidden = linear(layer.hidden, x)
    if not gated:
        return linear(layer.output, hidden.clone().apply_(PHI[activation]))
    gate, kept = hidden.chunk(2, dim=1)
    return linear(layer.output, gate.clone().apply_(PHI[activation]) * kept)


def sinusoid(position: int, width: int, *, halves: bool) -> list[float]:
    """PE of one position."""
    angle = [position / 10000 ** (2 * i / width) for i in range((width + 1) // 2)]
    if halves:
        return [math.sin(a) for a in angle] + [math.cos(a) for a in angle[: width // 2]]
    return [(math.cos if j % 2 else math.sin)(angle[j // 2]) for j in range(width)]


def different(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by far more than rounding."""
    return one.shape != other.shape or float((one - other).detach().abs().max()) > 1e-6
