"""Products in bfloat16 on a CPU have few numbers of rows, and the same results."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from seqloom.layers.linear import Linear
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.rounded_rows import rounded, with_rounded_rows


def test_few_numbers_and_at_most_an_eighth_more() -> None:
    sizes = {rounded(rows) for rows in range(1, 4097)}
    assert len(sizes) <= 8 + 8 * 5
    assert all(rows <= rounded(rows) < rows + 16 for rows in range(1, 129))
    assert all(rows <= rounded(rows) <= rows * 9 / 8 for rows in range(128, 4097))
    assert rounded(0) == 0


def test_only_low_precision_has_more_rows() -> None:
    x = torch.ones(17, 4)
    assert with_rounded_rows(x) is x
    assert with_rounded_rows(torch.ones(16, 4, dtype=torch.bfloat16)).shape == (16, 4)
    longer = with_rounded_rows(x.bfloat16())
    assert longer.shape == (32, 4)
    assert longer[17].eq(0).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert with_rounded_rows(x).shape == (32, 4)


@pytest.mark.parametrize("shape", [(17, 8), (3, 11, 8), (8,), (0, 8)])
def test_a_linear_map_has_the_same_results_and_gradients(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(8, 5), torch.randn(shape, requires_grad=True)
    results = []
    for forward in (layer, lambda x: F.linear(x, layer.weight, layer.bias)):
        with torch.autocast("cpu", torch.bfloat16):
            y = forward(x)
        gradients = torch.autograd.grad((y.float() ** 2).sum(), [x, *layer.parameters()])
        results.append((y, *gradients))
    for ours, plain in zip(*results, strict=True):
        assert ours.shape == plain.shape
        torch.testing.assert_close(ours, plain, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rows", [1, 17, 512, 529])
def test_an_output_layer_has_the_loss_and_gradients_of_logits(rows: int) -> None:
    torch.manual_seed(0)
    output, hidden = FullOutput(8, 30), torch.randn(rows, 8, requires_grad=True)
    targets = torch.randint(30, (rows,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = output.loss(hidden, targets)
    plain = F.cross_entropy(output.logits(hidden), targets, reduction="sum")
    leaves = [hidden, *output.parameters()]
    torch.testing.assert_close(loss.total, plain, rtol=0.01, atol=0.01)
    for ours, wanted in zip(
        torch.autograd.grad(loss.total, leaves), torch.autograd.grad(plain, leaves), strict=True
    ):
        torch.testing.assert_close(ours, wanted, rtol=0.03, atol=0.03 * rows**0.5)
