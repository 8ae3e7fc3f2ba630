"""Large tensors begin at a large page, whole and separate; everything else is torch's own memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seqloom.layers.recurrent.large_pages import LARGE, PAGE, _advise, contiguous, fresh


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_large_tensor_begins_at_a_large_page(dtype: torch.dtype) -> None:
    like = torch.zeros(1, dtype=dtype)
    rows = LARGE // like.itemsize // 256
    tensors = [fresh(like, rows, 256) for _ in range(3)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((rows, 256), dtype, True)
        assert _advise() is None or tensor.data_ptr() % PAGE == 0
    assert all(tensor.eq(number).all() for number, tensor in enumerate(tensors))


def test_small_and_foreign_tensors_are_torchs_own() -> None:
    small = fresh(torch.zeros(1), 3, 5)
    assert (small.shape, small.untyped_storage().nbytes()) == ((3, 5), 60)
    meta = fresh(torch.zeros(1, device="meta"), LARGE, 2)
    assert (meta.shape, meta.device.type) == ((LARGE, 2), "meta")
    assert fresh(nn.Parameter(torch.zeros(1)), LARGE, 2).shape == (LARGE, 2)
    assert fresh(torch.zeros(1), 0, 7).shape == (0, 7)


@pytest.mark.parametrize("rows", [3, LARGE // 4 // 64])
def test_a_copy_lets_gradients_pass(rows: int) -> None:
    values = torch.randn(64, rows, requires_grad=True)
    copy = contiguous(values.T)
    (gradient,) = torch.autograd.grad(copy, values, torch.ones_like(copy))
    assert gradient.eq(1).all()
    with torch.no_grad():
        again = contiguous(values.T)
        assert contiguous(again) is again
    assert again.is_contiguous()
    assert torch.equal(again, values.T)
