"""A benchmark is worth something only where both sides compute the same: outputs, and gradients of input and
weights."""

from __future__ import annotations

import pytest
import torch
from benchmarks.recurrent_cases import CASES, OURS, Case, Size, layers_of, ways_of
from torch import Tensor, nn

SIZE = Size(rows=3, width=4, layers=2)
STEPS = 5
LENGTHS = torch.tensor([4, 5, 2])


def outcome(
    model: nn.Module, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, gradient of the input, and the gradients of all parameters."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(SIZE.rows, STEPS, SIZE.width, generator=draw, dtype=dtype).requires_grad_()
    outputs = model(inputs, lengths)
    (outputs * torch.randn(outputs.shape, generator=draw, dtype=dtype)).sum().backward()
    assert inputs.grad is not None
    return (
        outputs,
        inputs.grad,
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
    )


def squares(gradients: list[Tensor]) -> Tensor:
    """Of the gradients of all weights, but not of biases and gains."""
    return torch.stack(
        [gradient.square().sum() for gradient in gradients if gradient.dim() == 2]
    ).sum()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64]
)  # the first is what is measured, and has kernels of its own
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_peer_computes_what_our_layers_do(case: Case, dtype: torch.dtype) -> None:
    layers = layers_of(case, SIZE).to(dtype)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(std=0.5, generator=draw)
    ways = ways_of(case, layers)
    lengths = None if case.lengths == "full" else LENGTHS
    outputs, d_inputs, ours = outcome(ways.pop(OURS), lengths, dtype)
    assert len(ours) == len(list(layers.parameters()))
    assert set(ways) == set(case.peers)
    near = 1e-4 if dtype == torch.float32 else 1e-9
    for name, peer in ways.items():
        other, d_other, theirs = outcome(peer, lengths, dtype)
        torch.testing.assert_close(other, outputs, rtol=near, atol=near)
        torch.testing.assert_close(d_other, d_inputs, rtol=near, atol=near)
        for one in ours if name != "loop" else []:  # torch has more: two biases
            assert any(
                one.shape == their.shape and torch.allclose(one, their, rtol=near, atol=near)
                for their in theirs
            )
        # a loop has W_h gate by gate
        torch.testing.assert_close(squares(theirs), squares(ours), rtol=10 * near, atol=near)
