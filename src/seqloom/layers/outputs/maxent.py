"""Hashed maximum entropy features of n-grams beside a neural output: RNN + MaxEnt.

Mikolov et al. 2011 (Strategies for Training Large Scale Neural Network Language Models) add to each logit a
weight for every n-gram that the word would complete:

    logit(v) = (W h_t + b)_v + Σ_k T[start(u_{t-k+2} .. u_t) + v],   k = 2 .. n

Each history, of 1 to n - 1 tokens, has a block of the table T that begins at its hash. Blocks overlap, so
weights are shared by chance. The unigram's weight is b.

`hidden` has the history's ids in its last columns, as floats, which hold integers up to 2^24 exactly.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.layers.outputs.softmax import CHUNK, Context, FullOutput
from seqloom.protocols import Loss
from seqloom.shapes import IGNORE

NO_TOKEN = -1
"""In a history: before the document's first token."""

LARGEST_ID = 2**24
"""Up to here a float32 holds every integer."""

PRIME = 2**31 - 1
MULTIPLIER = 1_327_217_885
"""About PRIME over the golden ratio, so that the blocks of neighbouring ids lie far from each other."""


def histories(tokens: Tensor, past: Tensor) -> Tensor:
    """tokens `(rows, steps)`, padded on the right only, and `past`, the tokens before them `(rows, n - 2)` ->
    at each step the last n - 1 tokens, oldest first, `(rows, steps, n - 1)`."""
    # not `unfold`, which refuses rows without a step
    whole, steps = torch.cat([past, tokens], dim=1), tokens.shape[1]
    return torch.stack(
        [whole[:, first : first + steps] for first in range(past.shape[1] + 1)], dim=2
    )


def next_past(tokens: Tensor, mask: Tensor, past: Tensor) -> Tensor:
    """`past` for the tokens that follow, after the real tokens of each row."""
    index = mask.sum(dim=1)[:, None] + torch.arange(past.shape[1], device=past.device)
    return torch.cat([past, tokens], dim=1).gather(1, index)


@final
class MaxEntOutput(nn.Module):
    """An `OutputLayer`: a full one, plus the hashed weights of n-grams up to `order`.

    Its hidden states are those of `full`, followed by the history `(..., order - 1)` (`histories`).
    """

    def __init__(self, full: FullOutput, vocabulary: int, order: int, size: int) -> None:
        """`size`: weights in the table, at least `vocabulary` and less than 2^31 - 1."""
        super().__init__()
        self.full, self.vocabulary, self.order = full, vocabulary, order
        self.table = nn.Parameter(torch.zeros(size))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width + order - 1)` -> logits `(..., vocabulary)`."""
        states, history = hidden[..., : 1 - self.order], hidden[..., 1 - self.order :]
        starts = self.starts(history.reshape(-1, self.order - 1).long())
        blocks: Tensor = _Blocks.apply(self.table, starts, self.vocabulary)  # type: ignore[no-untyped-call]
        return self.full.logits(states.to(self.table.dtype)) + blocks.view(
            *hidden.shape[:-1], self.vocabulary
        )

    def starts(self, history: Tensor) -> Tensor:
        """history `(positions, order - 1)` -> the first weights of the blocks of the last token, the last
        two, ..., -1 where there are not so many, `(positions, order - 1)`."""
        value, starts = torch.zeros_like(history[:, 0]), []
        for token in reversed(history.unbind(dim=1)):
            value = (value + token + 1) * MULTIPLIER % PRIME
            starts.append(
                torch.where(token == NO_TOKEN, -1, value % (len(self.table) - self.vocabulary + 1))
            )
        return torch.stack(starts, dim=1)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """As in `FullOutput`, chunk by chunk; the gradients of a chunk are formed at once, so that its logits
        can be dropped."""
        flat, trains, classes = targets.reshape(-1), torch.is_grad_enabled(), self.full.classes
        trained = (flat != IGNORE).nonzero()[:, 0]
        hidden, flat = hidden.reshape(-1, hidden.shape[-1])[trained], flat[trained]
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        smoothed = classes.possible if smoothing else []
        share = smoothing / classes.possible_count
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        d_hidden, d_learned = (
            torch.zeros_like(hidden),
            [torch.zeros_like(parameter) for parameter in learned],
        )
        for start in range(0, len(flat), CHUNK):
            rows = slice(start, start + CHUNK)
            part = hidden[rows].detach().requires_grad_(trains)
            log_p = self.logits(part).to(total.dtype).log_softmax(dim=1)
            loss = (1 - smoothing) * F.nll_loss(log_p, flat[rows], reduction="sum")
            for possible in smoothed:
                loss = loss - share * log_p[:, possible].sum()
            total += loss.detach()
            if trains:
                d_hidden[rows], *d_parts = torch.autograd.grad(loss, [part, *learned])
                for d, d_part in zip(d_learned, d_parts, strict=True):
                    d += d_part
        if trains:
            total = _WithGradients.apply(  # type: ignore[no-untyped-call]
                total, [d_hidden, *d_learned], hidden, *learned
            )
        return Loss(total, torch.tensor(len(flat), device=total.device))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width + order - 1)`, targets `(...)` -> log p of each target `(...)` in nats, 0 at
        IGNORE; no gradient."""
        hidden, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        log_probs = hidden.new_zeros(
            flat.shape, dtype=torch.promote_types(hidden.dtype, torch.float32)
        )
        for rows in torch.split((flat != IGNORE).nonzero()[:, 0], CHUNK):
            logits = self.logits(hidden[rows]).to(log_probs.dtype)
            log_probs[rows] = logits.gather(1, flat[rows, None])[:, 0] - logits.logsumexp(dim=1)
        return log_probs.view(targets.shape)


@final
class _Blocks(torch.autograd.Function):
    """Σ_k T[starts_k + v] for all v: `(positions, vocabulary)`.

    The blocks are read through a view in which they overlap, so that no index of every weight is needed.
    Autograd would give that view a gradient of the size table × vocabulary.
    """

    @staticmethod
    def forward(ctx: Context, table: Tensor, starts: Tensor, vocabulary: int) -> Tensor:
        ctx.save_for_backward(starts)
        ctx.size = len(table)
        blocks, sums = table.unfold(0, vocabulary, 1), table.new_zeros(len(starts), vocabulary)
        for of_order in starts.unbind(dim=1):
            present = (of_order >= 0).nonzero()[:, 0]
            sums.index_add_(0, present, blocks.index_select(0, of_order[present]))
        return sums

    @staticmethod
    def backward(ctx: Context, d_sums: Tensor) -> tuple[Tensor | None, ...]:
        (starts,) = ctx.saved_tensors
        d_table, vocabulary = d_sums.new_zeros(ctx.size), d_sums.shape[1]
        for of_order in starts.unbind(dim=1):
            present = (of_order >= 0).nonzero()[:, 0]
            d_blocks = d_sums[present]
            if d_sums.device.type == "cpu":  # eight times faster than the index of every weight
                for start, d_block in zip(
                    of_order[present].tolist(), d_blocks.unbind(), strict=True
                ):
                    d_table[start : start + vocabulary] += d_block
            else:
                index = of_order[present, None] + torch.arange(vocabulary, device=starts.device)
                d_table.index_add_(0, index.flatten(), d_blocks.flatten())
        return d_table, None, None


@final
class _WithGradients(torch.autograd.Function):
    """A value whose gradients are already known."""

    @staticmethod
    def forward(ctx: Context, value: Tensor, gradients: list[Tensor], *leaves: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Context, d_value: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "the output layer has no second derivative: its gradients are formed on the way forward"
            )
        return None, None, *(d_value * gradient for gradient in ctx.saved_tensors)
