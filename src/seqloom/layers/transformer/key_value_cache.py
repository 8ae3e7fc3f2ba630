"""What a causal Transformer has read: the keys and values of each layer, and what the next tokens may see.

As long as the rows of a batch have equally many tokens, masks and positions are those of one row and cost
nothing. A `<pad>`, or the beginning of a document in the middle of a row, makes rows differ: from then on
they are ragged.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.layers.packed_linear import packed_rows
from seqloom.layers.transformer.cached_rows import reorder_rows
from seqloom.packed_weights import current
from seqloom.protocols import Shared, select_rows

NO_TOKEN = -1
"""Fills slots that no token was ever written to."""

MIN_SLOTS = 64
"""The first size of a buffer of keys, which then doubles."""

AttentionMask = Tensor | Literal["all", "causal"]
"""Which keys a query sees: all, those up to its own place, or a mask `(rows or 1, 1 or heads, steps or 1,
keys)`: true where it looks, or numbers that are added to the scores, -inf where it does not look."""


class KeysValues(NamedTuple):
    """What one layer has read: `(rows, heads, slots, head_width)` each; the first slots are filled."""

    keys: Tensor
    values: Tensor


class RaggedCache(NamedTuple):
    """Of rows that padding, or an `<s>` in the middle, made different."""

    visible: Tensor
    """`(rows, length)`: the keys that the row's next token sees."""
    position: Tensor
    """`(rows,)`: the position of the row's next token."""

    @classmethod
    def even(cls, rows: int, length: int, device: torch.device) -> RaggedCache:
        """Of rows that have read `length` tokens each."""
        visible = torch.ones(rows, length, dtype=torch.bool, device=device)
        return cls(visible, torch.full((rows,), length, device=device))

    def after(self, is_token: Tensor, is_start: Tensor) -> tuple[Tensor, Tensor, RaggedCache]:
        """is_token, is_start `(rows, steps)`: where there is a token, and where it begins a document.

        Returns the mask `(rows, 1, steps, length + steps)`, the positions `(rows, steps)`, and the rows after
        these steps.
        """
        document = is_start.cumsum(1)  # 0 continues the document of earlier calls
        tokens_read = is_token.cumsum(1)
        # A document's position 0 is where it begins, or lies before these steps: -position then. Starts come
        # in ascending order, so the last one so far is the largest.
        starts = torch.where(is_start, tokens_read - 1, -self.position[:, None])
        positions = tokens_read - 1 - starts.cummax(1).values
        old_keys = self.visible[:, None] & (document == 0)[:, :, None]
        same_document = document[:, :, None] == document[:, None]
        new_keys = (same_document & is_token[:, None]).tril()
        last = document[:, -1:]
        visible = torch.cat([self.visible & (last == 0), is_token & (document == last)], dim=1)
        return (
            torch.cat([old_keys, new_keys], dim=2)[:, None],
            positions.clamp(min=0),
            RaggedCache(visible, positions[:, -1] + 1),
        )


class KeyValueCache(NamedTuple):
    """All that has been read. A `ReorderableState`, a `JoinableState` and a `ShareableState`."""

    layers: tuple[KeysValues, ...]
    """Keys and values of each layer, `(rows, heads, slots, head_width)`."""
    tokens: Tensor
    """`(rows, slots)`: the ids that they are of."""
    length: int
    """How many of the slots are filled."""
    ragged: RaggedCache | None
    """None where all rows have read `length` tokens and see them all."""
    context: Shared[KeyValueCache | None] = Shared(None)
    """The one row that all of these go on from, without padding; it is read, and never changed."""

    @property
    def position(self) -> int:
        """Of the next token, where rows are not ragged."""
        context = self.context.value
        return self.length + (context.length if context else 0)

    def shared(self) -> KeyValueCache:
        """The same, as what many rows go on from."""
        if len(self.tokens) > 1 or self.ragged is not None or torch.is_grad_enabled():
            return self
        whole = self.whole()._with_contiguous_layers()
        layers = tuple(
            KeysValues(keys[:, :, :0], values[:, :, :0]) for keys, values in whole.layers
        )
        return KeyValueCache(layers, whole.tokens[:, :0], 0, None, Shared(whole))

    def _with_contiguous_layers(self) -> KeyValueCache:
        """The same, in memory that the compiled step can read: a first call leaves views."""
        parts = [*itertools.chain(*self.layers)]
        if all(part.is_contiguous() for part in parts):
            return self
        layers = [
            KeysValues(keys.contiguous(), values.contiguous()) for keys, values in self.layers
        ]
        return self._replace(layers=tuple(layers))

    def whole(self) -> KeyValueCache:
        """The same, each row with a copy of the context."""
        context = self.context.value
        if context is None:
            return self

        def joined(before: Tensor, own: Tensor) -> Tensor:
            repeated = before[:, :, : context.length].expand(len(own), -1, -1, -1)
            return torch.cat([repeated, own[:, :, : self.length]], dim=2)

        layers = tuple(
            KeysValues(joined(before.keys, own.keys), joined(before.values, own.values))
            for before, own in zip(context.layers, self.layers, strict=True)
        )
        known = context.tokens[:, : context.length].expand(len(self.tokens), -1)
        tokens = torch.cat([known, self.tokens[:, : self.length]], dim=1)
        return KeyValueCache(layers, tokens, self.position, None)

    def reordered(self, rows: Tensor, inputs: Tensor | None = None) -> KeyValueCache:
        """These rows `(n,)`, in place.

        The keys and values of a token are a function of it, of those before it and, where there is one, of
        the input that the row reads (`inputs`, `(rows,)`). So rows that had one text up to some slot, such as
        the hypotheses of a beam, agree so far, and only later slots are copied.
        """
        ragged = self.ragged and select_rows(self.ragged, rows)
        if len(rows) > len(self.tokens) or not torch.is_inference_mode_enabled():
            return self._selected(rows, ragged)
        parts = [*itertools.chain(*self.layers)]
        if not reorder_rows(parts, self.tokens, self.length, rows, inputs):
            changed = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
            self._copy_rows(rows[changed], changed, inputs)
        layers = self.layers
        if len(rows) < len(self.tokens):
            layers = tuple(
                KeysValues(keys[: len(rows)], values[: len(rows)]) for keys, values in layers
            )
        tokens = self.tokens[: len(rows)]
        return KeyValueCache(layers, tokens, self.length, ragged, self.context)

    def _selected(self, rows: Tensor, ragged: RaggedCache | None) -> KeyValueCache:
        """A copy with these rows."""
        length = self.length
        layers = tuple(
            KeysValues(keys[rows, :, :length], values[rows, :, :length])
            for keys, values in self.layers
        )
        return KeyValueCache(layers, self.tokens[rows, :length], length, ragged, self.context)

    def joined(self, others: Sequence[KeyValueCache]) -> KeyValueCache:
        """These rows and those of the others. Shorter texts begin later, after slots that nobody sees; slots
        that no row sees any more are dropped."""
        caches, device = [cache.whole() for cache in (self, *others)], self.tokens.device
        everything = [
            cache.ragged or RaggedCache.even(len(cache.tokens), cache.length, device)
            for cache in caches
        ]
        firsts = []
        for ragged in everything:
            seen = ragged.visible.any(dim=0).nonzero()
            firsts.append(int(seen[0]) if len(seen) else ragged.visible.shape[1])
        length = max(cache.length - first for cache, first in zip(caches, firsts, strict=True))
        rows = sum(len(cache.tokens) for cache in caches)
        layers = []
        for layer in self.layers:
            # zeros, as what is not seen has weight 0, and 0 times NaN would be NaN
            parts = [
                part.new_zeros(rows, part.shape[1], length + MIN_SLOTS, part.shape[3])
                for part in layer
            ]
            layers.append(KeysValues(*parts))
        tokens = self.tokens.new_full((rows, length + MIN_SLOTS), NO_TOKEN)
        visible = torch.zeros(rows, length, dtype=torch.bool, device=device)
        row = 0
        for cache, ragged, first in zip(caches, everything, firsts, strict=True):
            here = slice(row, row + len(cache.tokens))
            old, new = slice(first, cache.length), slice(length - (cache.length - first), length)
            for target, source in zip(layers, cache.layers, strict=True):
                target.keys[here, :, new] = source.keys[:, :, old]
                target.values[here, :, new] = source.values[:, :, old]
            tokens[here, new] = cache.tokens[:, old]
            visible[here, new] = ragged.visible[:, old]
            row = here.stop
        position = torch.cat([ragged.position for ragged in everything])
        even = bool(visible.all()) and bool((position == length).all())
        ragged_after = None if even else RaggedCache(visible, position)
        return KeyValueCache(tuple(layers), tokens, length, ragged_after)

    def _copy_rows(self, source: Tensor, target: Tensor, inputs: Tensor | None) -> None:
        """Rows `source` `(n,)` over rows `target` `(n,)`, from the first slot on where the two differ."""
        differs = self.tokens[source, : self.length] != self.tokens[target, : self.length]
        if inputs is not None:
            differs |= (inputs[source] != inputs[target])[:, None]
        row, slot = differs.cummax(dim=1).values.nonzero(as_tuple=True)
        source, target = source[row], target[row]
        for part in itertools.chain(*self.layers):
            part[target, :, slot] = part[source, :, slot]  # all is read before any is written
        self.tokens[target, slot] = self.tokens[source, slot]


class MaskAndPositions(NamedTuple):
    """What the tokens of one call see, and their positions."""

    mask: AttentionMask
    positions: Tensor
    """`(steps,)` where all rows agree, else `(rows, steps)`."""
    past_length: int
    """Keys from earlier calls."""
    ragged: RaggedCache | None
    """Of the rows after these tokens."""


def mask_and_positions(
    tokens: Tensor, cache: KeyValueCache | None, pad_id: int, bos_id: int | None = None
) -> MaskAndPositions:
    """tokens `(rows, steps)`; a `bos_id` begins a document, which sees nothing before it in its row."""
    rows, steps = tokens.shape
    past_length = cache.length if cache else 0
    ragged = cache.ragged if cache else None
    uneven = tokens == pad_id
    if bos_id is not None:
        is_start = tokens == bos_id
        first = 0 if past_length else 1  # the first token of a row begins its document anyway
        uneven[:, first:] |= is_start[:, first:]
    # the only time that the values of tokens are looked at
    if ragged is None and not bool(uneven.any()):
        positions = torch.arange(past_length, past_length + steps, device=tokens.device)
        return MaskAndPositions(
            causal_mask(steps, past_length, tokens.device), positions, past_length, None
        )
    if bos_id is None:
        is_start = torch.zeros_like(uneven)
    before = ragged or RaggedCache.even(rows, past_length, tokens.device)
    mask, positions, ragged = before.after(tokens != pad_id, is_start)
    return MaskAndPositions(mask, positions, past_length, ragged)


def ids_of_whole_rows(tokens: Tensor) -> Tensor:
    """tokens `(rows, steps)` of which each sees its whole row -> ids to know the row by: as the first keys
    already depend on the last token, two rows agree in all slots or in none. The first id is a hash."""
    factors = torch.full_like(tokens[0], 0x5851F42D4C957F2D).cumprod(0)  # int64 wraps around
    hashes = (tokens * factors).sum(1) & (2**62 - 1)
    return torch.cat([NO_TOKEN - 1 - hashes[:, None], tokens[:, 1:]], dim=1)


def extend_cache(
    cache: KeyValueCache | None,
    layers: tuple[KeysValues, ...],
    tokens: Tensor,
    call: MaskAndPositions,
) -> KeyValueCache:
    """The cache after these tokens `(rows, steps)`, whose keys and values the layers hold already."""
    known = tokens.clone() if cache is None else append(cache.tokens, cache.length, tokens, dim=1)
    return KeyValueCache(layers, known, call.past_length + tokens.shape[1], call.ragged)


def causal_mask(steps: int, past_length: int, device: torch.device) -> AttentionMask:
    """What `steps` tokens see after earlier ones: those, and the new ones up to themselves."""
    if steps == 1:
        return "all"
    if not past_length:
        return "causal"
    mask = torch.ones(1, 1, steps, past_length + steps, dtype=torch.bool, device=device)
    return mask.tril(past_length)


def append(past: Tensor, length: int, new: Tensor, dim: int = 2) -> Tensor:
    """past `(rows, ..., slots, ...)` with `new` `(rows, ..., steps, ...)` after its first `length` slots of
    `dim`.

    Written into `past` where it has room and no gradient needs what it held.
    """
    steps = new.shape[dim]
    if torch.is_grad_enabled() and (past.requires_grad or new.requires_grad):
        return torch.cat([past.narrow(dim, 0, length), new], dim=dim)
    full = past.shape[dim] < length + steps
    if full or (past.is_inference() and not torch.is_inference_mode_enabled()):
        past = with_room(past, length, steps, dim)
    past.narrow(dim, length, steps).copy_(new)
    return past


def with_room(past: Tensor, length: int, steps: int, dim: int = 2) -> Tensor:
    """A copy of the first `length` slots of `dim` in a buffer of about twice as many."""
    shape = list(past.shape)
    shape[dim] = max(MIN_SLOTS, 2 * (length + steps))
    larger = past.new_empty(shape)
    larger.narrow(dim, 0, length).copy_(past.narrow(dim, 0, length))
    return larger


def embed_tokens(embedding: nn.Module, ids: Tensor, pad_id: int) -> Tensor:
    """ids `(...)` -> `(..., width)`. A pad id below 0 has no row in the embedding: any will do."""
    ids, weights = ids.clamp(min=0) if pad_id < 0 else ids, current()
    # with a trained prompt it is no plain table
    if isinstance(embedding, nn.Embedding) and weights is not None and weights.storage != "float32":
        return packed_rows(weights, embedding.weight, ids)
    embedded: Tensor = embedding(ids)
    return embedded
