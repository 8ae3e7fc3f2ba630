"""What a causal Transformer has read: the keys and values of each layer, and where its rows stand.

The rows of a batch stand alike, which costs nothing, until a `<pad>` or the beginning of a document in the
middle of a row makes them different; from then on they are `RaggedCache`.
"""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.protocols import select_rows

FEWEST_SLOTS = 64
"""A buffer of keys begins with so many places, then doubles."""

Seen = Tensor | Literal["all", "causal"]
"""Which keys a query sees: all, those up to its own place, or a mask `(rows or 1, 1 or heads, steps or 1,
keys)`: true where it looks, or numbers that are added to the scores, -inf where it does not."""


class KeysValues(NamedTuple):
    """What one layer has read: `(rows, heads, slots, head_width)` each, of which the first ones are filled."""

    keys: Tensor
    values: Tensor


class RaggedCache(NamedTuple):
    """Where rows stand that padding, or an `<s>` in the middle, made different."""

    visible: Tensor
    """`(rows, filled)`: the keys that the row's next token sees."""
    position: Tensor
    """`(rows,)`: the position of the row's next token."""

    @classmethod
    def even(cls, rows: int, filled: int, device: torch.device) -> RaggedCache:
        """Of rows that have read `filled` tokens each."""
        visible = torch.ones(rows, filled, dtype=torch.bool, device=device)
        return cls(visible, torch.full((rows,), filled, device=device))

    def after(self, true: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, RaggedCache]:
        """true, begins `(rows, steps)`: where there is a token, and where it begins a document.

        Returns the mask `(rows, 1, steps, filled + steps)`, the positions `(rows, steps)`, and where the rows
        stand then.
        """
        document = begins.cumsum(1)  # 0 goes on with what was read before
        read = true.cumsum(1)
        origin = (
            torch.where(begins, read - 1, -self.position[:, None]).cummax(1).values
        )  # where position 0 would be
        positions = read - 1 - origin
        old = self.visible[:, None] & (document == 0)[:, :, None]
        new = ((document[:, :, None] == document[:, None]) & true[:, None]).tril()
        last = document[:, -1:]
        visible = torch.cat([self.visible & (last == 0), true & (document == last)], dim=1)
        return (
            torch.cat([old, new], dim=2)[:, None],
            positions.clamp(min=0),
            RaggedCache(visible, positions[:, -1] + 1),
        )


class Cache(NamedTuple):
    """All that has been read."""

    layers: tuple[KeysValues, ...]
    """Keys and values of each layer, `(rows, heads, slots, head_width)`."""
    tokens: Tensor
    """`(rows, slots)`: the ids that they are of."""
    filled: int
    """How many of the slots are filled."""
    ragged: RaggedCache | None
    """Where rows stand; None where all have read `filled` tokens and see them all."""

    def reordered(self, rows: Tensor, inputs: Tensor | None = None) -> Cache:
        """These rows `(n,)`, in place. The keys and values of a token are a function of it, of those before
        it and, where there is one, of the input that the row reads (`inputs`, `(rows,)`): rows that were one
        text up to some place, such as the hypotheses of a beam, agree so far, and only what comes after is
        copied."""
        ragged = self.ragged and select_rows(self.ragged, rows)
        if len(rows) > len(self.tokens) or not torch.is_inference_mode_enabled():
            layers, tokens, filled, _ = self
            kept = tuple(
                KeysValues(keys[rows, :, :filled], values[rows, :, :filled]) for keys, values in layers
            )
            return Cache(kept, tokens[rows, :filled], filled, ragged)
        at = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        if len(at):
            unlike = self.tokens[rows[at], : self.filled] != self.tokens[at, : self.filled]
            if inputs is not None:
                unlike |= (inputs[rows[at]] != inputs[at])[:, None]
            row, slot = unlike.cummax(dim=1).values.nonzero(as_tuple=True)
            source, at = rows[at][row], at[row]
            for part in itertools.chain(*self.layers):
                part[at, :, slot] = part[source, :, slot]  # all is read before any is written
            self.tokens[at, slot] = self.tokens[source, slot]
        layers = tuple(KeysValues(keys[: len(rows)], values[: len(rows)]) for keys, values in self.layers)
        return Cache(layers, self.tokens[: len(rows)], self.filled, ragged)


class MaskAndPositions(NamedTuple):
    """Where the tokens of one call stand."""

    seen: Seen
    positions: Tensor
    """`(steps,)` where all rows agree, else `(rows, steps)`."""
    filled: int
    """Keys that earlier calls left."""
    ragged: RaggedCache | None
    """Where the rows stand after these tokens."""


def mask_and_positions(
    tokens: Tensor, cache: Cache | None, pad_id: int, begin_id: int | None = None
) -> MaskAndPositions:
    """tokens `(rows, steps)`; a `begin_id` begins a document, which sees nothing of what stood before it in
    its row."""
    rows, steps = tokens.shape
    filled = cache.filled if cache else 0
    ragged = cache.ragged if cache else None
    uneven = tokens == pad_id
    if begin_id is not None:
        begins = tokens == begin_id
        uneven[:, int(not filled) :] |= begins[:, int(not filled) :]
    if ragged is None and not bool(uneven.any()):  # the one look at the tokens
        return MaskAndPositions(
            causal_mask(steps, filled, tokens.device),
            torch.arange(filled, filled + steps, device=tokens.device),
            filled,
            None,
        )
    if begin_id is None:
        begins = torch.zeros_like(uneven)
    before = ragged or RaggedCache.even(rows, filled, tokens.device)
    seen, positions, ragged = before.after(tokens != pad_id, begins)
    return MaskAndPositions(seen, positions, filled, ragged)


def extended(
    cache: Cache | None, layers: tuple[KeysValues, ...], tokens: Tensor, stood: MaskAndPositions
) -> Cache:
    """The cache after these tokens `(rows, steps)`, of which the layers hold the keys and values already."""
    known = tokens.clone() if cache is None else appended(cache.tokens, cache.filled, tokens, dim=1)
    return Cache(layers, known, stood.filled + tokens.shape[1], stood.ragged)


def causal_mask(steps: int, filled: int, device: torch.device) -> Seen:
    """What `steps` tokens see after `filled` others: those, and the new ones up to themselves."""
    if steps == 1:
        return "all"
    if not filled:
        return "causal"
    return torch.ones(1, 1, steps, filled + steps, dtype=torch.bool, device=device).tril(filled)


def appended(past: Tensor, filled: int, new: Tensor, dim: int = 2) -> Tensor:
    """past `(rows, ..., slots, ...)` with `new` `(rows, ..., steps, ...)` behind its first `filled` places of
    `dim`.

    Written into `past` where it has room and no gradient needs what it held.
    """
    steps = new.shape[dim]
    if torch.is_grad_enabled() and (past.requires_grad or new.requires_grad):
        return torch.cat([past.narrow(dim, 0, filled), new], dim=dim)
    if past.shape[dim] < filled + steps or (past.is_inference() and not torch.is_inference_mode_enabled()):
        shape = list(new.shape)
        shape[dim] = max(FEWEST_SLOTS, 2 * (filled + steps))
        roomy = new.new_empty(shape)
        roomy.narrow(dim, 0, filled).copy_(past.narrow(dim, 0, filled))
        past = roomy
    past.narrow(dim, filled, steps).copy_(new)
    return past


def embedded(table: Tensor, ids: Tensor, pad_id: int) -> Tensor:
    """The rows of a table `(vocabulary, width)` at ids `(...)`; a pad id below 0 has none, and what stands
    there does not matter."""
    return F.embedding(ids if pad_id >= 0 else ids.clamp(min=0), table)
