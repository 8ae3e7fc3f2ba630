"""The laws of every encoder: a row has the same states and gradients alone, in a batch, and padded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from seqloom.protocols import EncodedBatch, Encoder
from seqloom.shapes import IGNORE
from seqloom.testing.tensors import assert_close, draw_parameters, pad_rows, run_laws

ROWS = ((5, 3, 4, 7, 9), (6, 2), (8, 8, 8, 10, 1, 4, 3))


@final
@dataclass(frozen=True, eq=False)
class EncoderLaws:
    """An encoder in float64 and evaluation mode, and the laws it must keep."""

    encode: Callable[[Tensor, Tensor], Tensor]
    """ids and mask `(rows, steps)` -> states `(rows, steps, width)`, which mean nothing at padding."""
    parameters: Sequence[nn.Parameter]
    """Those that the states depend on."""
    layouts: Sequence[str] = ("right",)

    def padded(self, layout: str, pad: int = 0) -> tuple[Tensor, Tensor]:
        """ids and mask `(rows, steps)`."""
        rows = pad_rows(ROWS, layout, -1)
        return rows.where(rows >= 0, pad), rows >= 0

    def alone(self, row: int) -> Tensor:
        return self.encode(
            torch.tensor([ROWS[row]]), torch.ones(1, len(ROWS[row]), dtype=torch.bool)
        )[0]

    def batched_and_padded_is_alone(self) -> None:
        for layout in self.layouts:
            ids, mask = self.padded(layout)
            states = self.encode(ids, mask)
            for row in range(len(ROWS)):
                assert_close(states[row][mask[row]], self.alone(row), atol=1e-11)

    def the_gradient_of_a_padded_batch_is_the_sum_of_those_alone(self) -> None:
        ids, mask = self.padded("right")
        together = self._gradients(self.encode(ids, mask)[mask])
        parts = [self._gradients(self.alone(row)) for row in range(len(ROWS))]
        for whole, *each in zip(together, *parts, strict=True):
            assert_close(whole, sum(each), 1e-9, 1e-10)

    def _gradients(self, states: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((states**2).sum(), self.parameters, materialize_grads=True)

    def an_empty_row_disturbs_nobody(self) -> None:
        ids, mask = self.padded("right")
        mask[1] = False
        states = self.encode(ids, mask)
        assert_close(states[0][mask[0]], self.alone(0), atol=1e-11)
        assert all(bool(each.isfinite().all()) for each in self._gradients(states[mask]))

    def check(self, name: str) -> None:
        run_laws(
            name,
            (
                self.batched_and_padded_is_alone,
                self.the_gradient_of_a_padded_batch_is_the_sum_of_those_alone,
                self.an_empty_row_disturbs_nobody,
            ),
        )


def _encode_batch(encoder: Encoder, ids: Tensor, mask: Tensor) -> Tensor:
    nothing = ids.new_zeros(*ids.shape, 0)
    rows = torch.arange(len(ids))
    targets = torch.full_like(rows, IGNORE)
    tokens = ids.where(mask, -1)
    batch = EncodedBatch(tokens, torch.zeros_like(ids), nothing, rows, nothing[:, 0], targets)
    return encoder.encode_batch(batch)


def check_encoder(encoder: nn.Module) -> None:
    """Checks an `Encoder` of at least 11 ids, in a copy with random weights in float64. Raises AssertionError
    with the law that is broken."""
    tested = copy.deepcopy(encoder).double().eval()
    draw_parameters(tested)
    parameters = list(tested.parameters())
    assert isinstance(tested, Encoder), f"{type(encoder).__name__} must have `encode_batch`"
    EncoderLaws(partial(_encode_batch, tested), parameters).check(type(encoder).__name__)
