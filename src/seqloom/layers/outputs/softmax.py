"""The output layer: hidden states to a vocabulary, and the cross-entropy that never holds all logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.layers.linear import can_be_packed, linear
from seqloom.layers.outputs.compiled_cross_entropy import (
    cross_entropy_,
    has_compiled_cross_entropy,
)
from seqloom.layers.outputs.likeliest import NativeOutput
from seqloom.layers.outputs.possible_classes import Classes
from seqloom.layers.rounded_rows import rounded, with_rounded_rows
from seqloom.packed_weights import current
from seqloom.protocols import Loss, NextLogProbs, WantedTokens
from seqloom.shapes import IGNORE

CHUNK = 512
"""Positions whose logits exist at one time: fewer make slow products, more do not fit the processor's
cache."""


Context = Any
"""Of `torch.autograd.Function`: what `forward` leaves for `backward`, under any names."""


@final
class FullOutput(nn.Module):
    """`logits = W h + b` over the whole vocabulary, -inf for the ids in `suppressed`; `tied` takes the
    embedding `(vocabulary, width)` as W (Press and Wolf 2017)."""

    def __init__(
        self,
        width: int,
        vocabulary: int,
        tied: Tensor | None = None,
        *,
        bias: bool = True,
        suppressed: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.classes = Classes.without(vocabulary, suppressed)
        self.suppressed = tuple(suppressed)
        self.weight: Tensor = nn.Parameter(torch.empty(vocabulary, width)) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        if tied is None:
            nn.init.normal_(self.weight, std=width**-0.5)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        return self.classes.suppress_(linear(hidden, self.weight, self.bias))

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs | None:
        """hidden `(rows, width)` -> the likeliest next tokens, or None: then logits tell them."""
        weights = current()
        if weights is None or not can_be_packed(hidden, self.weight):
            return None
        native = weights.get(
            self, lambda own: NativeOutput(weights, own.weight, own.bias, own.suppressed)
        )
        return native.likeliest(hidden, wanted)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> cross-entropy in
        nats.

        With `smoothing` ε the target distribution is `(1 - ε) one-hot + ε uniform` over all that is possible
        (Szegedy et al. 2016).
        """
        _, hidden, flat = select_trained(hidden, targets)
        total = linear_cross_entropy(
            hidden, self.weight, self.bias, flat, smoothing, classes=self.classes
        )
        return Loss(total, torch.tensor(len(flat), device=total.device))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)` in nats, 0 at IGNORE;
        float32 or better, no gradient."""
        places, hidden, flat = select_trained(hidden, targets)
        log_probs = linear_log_probs(hidden, self.weight, self.bias, flat, self.classes)
        return at_positions(log_probs, places, targets)


def select_trained(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """hidden `(..., width)`, targets `(...)` -> the n positions that are not IGNORE `(n,)`, their states `(n,
    width)` and targets `(n,)`."""
    flat = targets.reshape(-1)
    places = (flat != IGNORE).nonzero()[:, 0]
    return places, hidden.reshape(-1, hidden.shape[-1])[places], flat[places]


def at_positions(values: Tensor, places: Tensor, targets: Tensor) -> Tensor:
    """The inverse of `select_trained`: values `(n,)` at their positions among the targets `(...)`, 0
    elsewhere."""
    return values.new_zeros(targets.numel()).index_copy_(0, places, values).view(targets.shape)


Score = Callable[[slice, Tensor], tuple[Tensor, Tensor | None]]
"""(rows, logits of those rows) -> (Σ loss, d loss / d extra of those rows); turns the logits into their
gradients in place."""


def chunked_loss(
    score: Score,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extra: Tensor | None = None,
    classes: Classes | None = None,
    exact: bool = True,
) -> Tensor:
    """Σ of a loss of the logits W h + b, of which only a chunk exists at a time, and of `extra`, one value
    per row.

    hidden `(n, width)`, weight `(classes, width)`, bias `(classes,)`, extra `(n,)`. Under autocast the
    products are in low precision, all else in float32 or better. `score` gets logits of that type too where
    they are `exact`, else those of the products.
    """
    trains = torch.is_grad_enabled()  # inside a Function it is always off
    chunks = _Chunks(exact, classes)
    total: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        score, trains, chunks, hidden, weight, bias, extra
    )
    return total


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    *,
    classes: Classes | None = None,
) -> Tensor:
    """hidden `(n, width)`, weight `(classes, width)`, targets `(n,)` -> Σ cross-entropy of softmax(W h + b),
    in nats."""
    classes = classes or Classes(len(weight))
    low = weight[:0].to(_product_dtype(hidden))
    if bias is None and has_compiled_cross_entropy(low, targets):
        trains = torch.is_grad_enabled()

        def compiled(rows: slice, logits: Tensor) -> tuple[Tensor, None]:
            losses = cross_entropy_(logits, targets[rows], classes, smoothing, trains=trains)
            return losses.sum(), None

        return chunked_loss(compiled, hidden, weight, None, exact=False)
    smoothed = classes.possible if smoothing else []
    share = smoothing / classes.possible_count

    def score(rows: slice, logits: Tensor) -> tuple[Tensor, None]:
        y = targets[rows, None]
        wanted = (1 - smoothing) * logits.gather(1, y).sum()
        for part in smoothed:
            wanted += share * logits[:, part].sum()
        loss = softmax_(logits).sum() - wanted
        d_logits = logits  # softmax - target
        for part in smoothed:
            d_logits[:, part] -= share
        d_logits.scatter_add_(1, y, d_logits.new_full((1, 1), smoothing - 1).expand_as(y))
        return loss, None

    return chunked_loss(score, hidden, weight, bias, classes=classes)


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    classes: Classes | None = None,
) -> Tensor:
    """hidden `(n, width)`, targets `(n,)` -> log p of each target `(n,)` in float32 or better; call it
    without gradients."""
    low = _product_dtype(hidden)
    parts = []
    chunks = _Chunks(exact=True, classes=classes)
    for rows, logits, *_ in chunks.of(hidden.to(low), weight.to(low), bias):
        chosen = logits.gather(1, targets[rows, None])[:, 0]
        parts.append(chosen - softmax_(logits))
    return torch.cat(parts)


def softmax_(logits: Tensor) -> Tensor:
    """Turns logits `(n, classes)` into probabilities in place; returns log Σ exp(logits) `(n,)`.

    softmax reads a value for the last time before it writes it, so it may have its input as output. The
    largest p is exp(largest logit) / Σ and cannot underflow, so it tells Σ without another exp.
    """
    largest = logits.amax(dim=1)
    torch.softmax(logits, dim=1, out=logits)
    return largest - logits.amax(dim=1).log_()


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """The precision of products: autocast's, where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


@final
class _Chunks(NamedTuple):
    """How the logits of some rows at a time are formed."""

    exact: bool
    """Whether they are in float32 or better, or as the products are."""
    classes: Classes | None

    def of(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows, `W h + b` of those rows, memory for the next products, and h; the last two may have more
        rows, those of h zeros. At least one chunk.

        All chunks are in the same memory: fresh pages would cost as much as the softmax.
        """
        dtype = hidden.dtype
        wanted = torch.promote_types(dtype, torch.float32) if self.exact else dtype
        size = rounded(min(CHUNK, len(hidden)))
        buffer = hidden.new_empty(size, len(weight), dtype=wanted)
        low = buffer if dtype is wanted else torch.empty_like(buffer, dtype=dtype)
        for start in range(0, max(len(hidden), 1), CHUNK):
            rows = slice(start, min(start + CHUNK, len(hidden)))
            count = rows.stop - start
            h = with_rounded_rows(hidden[rows])
            products = torch.mm(h, weight.T, out=low[: len(h)])
            logits = buffer[:count].copy_(products[:count])
            if bias is not None:
                logits.add_(bias)
            if self.classes is not None:
                self.classes.suppress_(logits)
            yield rows, logits, products, h


@final
class _ChunkedLoss(torch.autograd.Function):
    """Chunk by chunk. The gradients are known as soon as the logits are, so both are formed from each chunk
    before it is dropped."""

    @staticmethod
    def forward(
        ctx: Context,
        score: Score,
        trains: bool,
        chunks: _Chunks,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        extra: Tensor | None,
    ) -> Tensor:
        low = _product_dtype(hidden)
        h, matrix = hidden.to(low), weight.to(low)
        d_hidden, d_weight = torch.empty_like(hidden), torch.empty_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        d_extra = None if extra is None else torch.empty_like(extra)
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for rows, logits, products, inputs in chunks.of(h, matrix, bias):
            loss, part = score(rows, logits)
            total += loss
            if not (trains and any(ctx.needs_input_grad)):
                continue
            if d_extra is not None and part is not None:
                d_extra[rows] = part
            if d_bias is not None:
                d_bias += logits.sum(dim=0)
            count = len(logits)
            products[:count] = logits
            products[count:] = 0
            d_hidden[rows] = (products @ matrix)[:count]
            _add_product(d_weight, products, inputs, first=rows.start == 0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias, d_extra)
        return total

    @staticmethod
    def backward(ctx: Context, d_total: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "the output layer has no second derivative: its backward pass is written by hand"
            )
        gradients = ctx.saved_tensors
        # on a GPU, asking whether it is 1 would cost more than the products
        if d_total.device.type != "cpu" or d_total != 1:
            gradients = [None if part is None else d_total * part for part in gradients]
        return None, None, None, *gradients


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """`total += aᵀ b`, or `=` where it is the first: the sum in the precision of `total`, the product in that
    of `a` and `b`."""
    if total.dtype is a.dtype:
        total.addmm_(a.T, b, beta=0 if first else 1)
    elif first:
        total.copy_(a.T @ b)
    else:
        total += a.T @ b
