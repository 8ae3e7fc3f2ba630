"""A layer's inputs read where they lie, against the same packed first."""

from __future__ import annotations

import pytest
import torch
from tests.layers.equations import MASKS, drawn, mask_named
from torch import Tensor

from seqloom.layers.recurrent.layer_inputs import LayerInputs
from seqloom.layers.recurrent.packing import packed_order
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(
    library() is None,
    reason="the compiled product needs a C++ compiler when the project is installed",
)

LAYOUTS = {"batch first": (0, 1, 2), "time first": (1, 0, 2), "features first": (2, 0, 1)}


def lying(sequences: Tensor, layout: str) -> Tensor:
    order = LAYOUTS[layout]
    return sequences.permute(order).contiguous().permute(*torch.tensor(order).argsort().tolist())


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in MASKS if mask_named(name).any()])
def test_they_are_the_same_as_packed(name: str, layout: str, backward: bool) -> None:
    mask = mask_named(name)
    order = packed_order(mask, backward)
    sequences = lying(drawn(*mask.shape, 5).masked_fill(~mask[..., None], torch.nan), layout)
    there, packed = (LayerInputs(sequences, order, compiled=compiled) for compiled in (True, False))
    w, other, bias, d = (
        drawn(7, 5),
        drawn(7, 5, seed=2),
        drawn(7, seed=3),
        drawn(int(mask.sum()), 7, seed=4),
    )
    torch.testing.assert_close(there.times(w, bias), packed.times(w, bias))
    one, two = torch.empty(7, 5, dtype=w.dtype), torch.empty(7, 5, dtype=w.dtype)
    there.weight_gradient(d, one)
    packed.weight_gradient(d, two)
    torch.testing.assert_close(one, two)
    for terms in (
        [(d, w)],
        [(d, w), (d + 1, other)],
        [(d, w), (d[:, :5], None)],
        [(d[:, :5], None), (d, w), (d, other)],
    ):
        found, expected = there.gradient(terms), packed.gradient(terms)
        torch.testing.assert_close(found, expected)
        assert (found[~mask] == 0).all()
        if layout != "features first":
            assert found.stride() == sequences.stride()


def test_inputs_that_were_changed_since_are_an_error() -> None:
    """They are kept as they are, not as a copy."""
    inputs = drawn(2, 4, 3).float().requires_grad_() * 1
    outputs, _ = RecurrentStack(RecurrentStackConfig("gru", 3, 5))(inputs)
    inputs.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()
