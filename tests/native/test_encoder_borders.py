"""Whatever shapes and types the compiled encoder is given: it answers, or refuses in Python before an address
is given away. `make check-native` runs this with every array guarded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import Stack
from seqloom.layers.transformer.native_encoder import encode_packed
from seqloom.layers.transformer.native_stack import packed_now
from seqloom.native.library import library
from seqloom.packed_weights import PackedWeights, Storage

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled calls need a C++ compiler when the project is installed"
)


@st.composite
def mistaken(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """It, mostly; or of another size or type, or lying otherwise in memory."""
    kind = draw(st.sampled_from(["as it is"] * 6 + ["longer", "wider", "double", "integers"]))
    match kind:
        case "longer":
            return torch.cat([tensor, tensor[:1]])
        case "wider":
            return torch.cat([tensor, tensor[..., :1]], dim=-1)
        case "double":
            return tensor.double()
        case "integers":
            return tensor.long()
    turned = tensor.movedim(0, -1).contiguous().movedim(-1, 0)
    return turned if draw(st.booleans()) else tensor


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(0, 4),
    steps=st.sampled_from([0, 1, 2, 7, 17, 33]),
    storage=st.sampled_from(["float32", "int8"]),
)
def test_rows_through_blocks(data: st.DataObject, rows: int, steps: int, storage: Storage) -> None:
    stack = Stack(BlockConfig(width=6, heads=2, feed_forward_width=5), 1).eval()
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tensors = (
        torch.randn(rows, steps, 6, generator=chance),
        torch.rand(rows, steps, generator=chance) < 0.8,
        torch.randn(rows, 2, steps, steps, generator=chance),
    )
    x, mask, bias = (data.draw(mistaken(tensor)) for tensor in tensors)
    given = mask if data.draw(st.booleans()) else None
    plus = bias if data.draw(st.booleans()) else None
    fits = x.dtype == torch.float32 and x.shape[2] == 6
    fits &= given is None or (given.dtype == torch.bool and given.shape == x.shape[:2])
    fits &= plus is None or (
        plus.dtype == torch.float32 and plus.shape == (len(x), 2, *2 * x.shape[1:2])
    )
    with torch.no_grad(), PackedWeights(storage):
        packed = packed_now(stack, PackedWeights(storage))
        assert packed is not None
        try:
            found = encode_packed(packed, x, given, plus)
        except ValueError:
            assert not fits
            return
    # the blocks read what is empty, and what has a bias but tokens that are apart
    assert fits if found is not None else not x.numel() or plus is not None
    assert found is None or (found.shape == x.shape and bool(found.isfinite().all()))
