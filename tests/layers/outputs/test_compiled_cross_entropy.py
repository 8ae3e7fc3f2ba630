"""Compiled cross-entropy: the losses and gradients of torch's, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqloom.layers.outputs import softmax
from seqloom.layers.outputs.compiled_cross_entropy import cross_entropy_
from seqloom.layers.outputs.possible_classes import Classes
from seqloom.layers.outputs.softmax import linear_cross_entropy
from seqloom.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is compiled here")

ROWS, SIZE = 37, 113
ALL, SOME = Classes(SIZE), Classes.without(SIZE, (0, 1, 40, 112))


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits, and targets that are possible."""
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(ROWS, SIZE, generator=generator)
    return logits.to(dtype), torch.randint(2, 40, (ROWS,), generator=generator)


def exact(
    logits: Tensor, targets: Tensor, classes: Classes, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The same in float64, by autograd."""
    x = logits.double().requires_grad_()
    possible = torch.cat([torch.arange(part.start, part.stop) for part in classes.possible])
    log_probs = x - x[:, possible].logsumexp(dim=1, keepdim=True)
    wanted = log_probs.gather(1, targets[:, None])[:, 0]
    losses = -(1 - smoothing) * wanted - smoothing * log_probs[:, possible].mean(dim=1)
    (d_logits,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), d_logits


@pytest.mark.parametrize("classes", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_gradients_are_those_of_torch(
    dtype: torch.dtype, smoothing: float, classes: Classes
) -> None:
    logits, targets = drawn(dtype)
    losses, d_logits = exact(logits, targets, classes, smoothing)
    kept = logits.clone()
    found = cross_entropy_(logits, targets, classes, smoothing, trains=False)
    assert torch.equal(logits, kept)
    assert torch.equal(found, cross_entropy_(logits, targets, classes, smoothing, trains=True))
    torch.testing.assert_close(found.double(), losses, rtol=1e-6, atol=1e-6)
    near = {torch.float32: (0, 1e-6), torch.bfloat16: (2**-7.99, 1e-6)}[dtype]
    torch.testing.assert_close(logits.double(), d_logits, rtol=near[0], atol=near[1])
    for part in classes.suppressed:
        assert not logits[:, part].any()


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_the_loss_of_a_layer_is_the_one_without_it(
    monkeypatch: pytest.MonkeyPatch, low: bool
) -> None:
    """In chunks, some of them of a number of rows that is rounded up."""
    monkeypatch.setattr(softmax, "CHUNK", 16)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, 24, generator=generator).requires_grad_()
    weight = torch.randn(SIZE, 24, generator=generator).requires_grad_()
    _, targets = drawn()

    def loss() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            total = linear_cross_entropy(hidden, weight, None, targets, 0.1, classes=SOME)
        return [total.detach(), *torch.autograd.grad(total, (hidden, weight))]

    compiled = loss()
    monkeypatch.setattr(softmax, "has_compiled_cross_entropy", lambda *_: False)
    for own, plain in zip(compiled, loss(), strict=True):
        # a sum of bfloat16 numbers may round to the neighbour
        tolerance = 2**-8 if low else 1e-6
        torch.testing.assert_close(
            own, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max())
        )


def test_what_is_impossible_or_not_finite_shows() -> None:
    logits, targets = drawn()
    targets[0], logits[1, 50], logits[2, 60] = 40, math.nan, math.inf
    losses = cross_entropy_(logits, targets, SOME, 0.0, trains=True)
    assert losses[0] == math.inf
    assert losses[1].isnan()
    assert not losses[2].isfinite()
    assert losses[3:].isfinite().all()
    assert logits[1].isnan().any()


def test_targets_and_layouts_that_do_not_fit_are_refused() -> None:
    logits, targets = drawn()
    for wrong in (targets.int(), targets[1:], targets - 100, targets + 100):
        with pytest.raises(ValueError, match="targets must be"):
            cross_entropy_(logits, wrong, ALL, 0.0, trains=True)
    for bad in (logits.double(), logits.T.contiguous().T, logits[:, 1:]):
        with pytest.raises(ValueError, match="logits must be"):
            cross_entropy_(bad, targets, ALL, 0.0, trains=True)
    assert not len(cross_entropy_(logits[:0], targets[:0], ALL, 0.0, trains=True))
