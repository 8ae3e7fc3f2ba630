"""What each word adds to a score F of an answer: the difference of two logits, or of two log-probabilities.

    leave one out          F(x) - F(x without word i): replaced by the mask, or deleted if there is none
    integrated gradients   Σ over the word's features of (x - b) ∫ ∂F(b + α (x - b)) / ∂x dα, with b the
                           mask's embedding, else 0, or that of padding where the path from 0 is too steep (a
                           norm of small vectors): Sundararajan, Taly and Yan 2017. They sum to F(x) - F(b).

The integral is a Gauss-Legendre sum of 16 points, or of more where the words do not sum to F(x) - F(b). The
answer is the same along the whole path, and F is of logits, as probabilities saturate. A word's share is the
signed sum of those of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.long_work import LongWork
from seqloom.protocols import EncodedBatch, modules_of

BATCH_STEPS = 2048
"""Tokens of the variants that are read together."""
SUMS = ((16, 1), (32, 1), (64, 3), (128, 3), (256, 3), (512, 3), (1024, 3))
"""(points, power) of the sums in the place of the integral, until the error is below WANTED_ERROR: α =
t^power puts more points near the baseline, where a norm of vectors near 0 is steep."""
WANTED_ERROR, MOST_ERROR = 1e-3, 1e-2

Places = Sequence[tuple[int, int]]
"""(row, step) of each token of a word."""
ScoreOf = Callable[[EncodedBatch], Tensor]
"""Rows of several variants of an input -> F of each `(variants,)`."""


class Integrated(NamedTuple):
    """Integrated gradients of an input."""

    shares: Tensor
    """Of each word."""
    score: float
    """F(x)"""
    baseline: float
    """F(b)"""
    base: int | None
    """The token that words are at b; None for vectors of 0."""
    error: float
    """|Σ - (F(x) - F(b))|, as a share of the larger of F(x) - F(b) and Σ of the absolute shares."""
    points: int


@torch.inference_mode()
def leave_one_out(
    batch: EncodedBatch,
    words: Sequence[Places],
    score: ScoreOf,
    *,
    replacement: int | None,
    of_nothing: int,
) -> tuple[float, Tensor]:
    """F(x), and how much it falls without each word. Without a `replacement` words are deleted; a row of
    which nothing is left becomes the token `of_nothing`."""
    variants = [batch]
    for places in words:
        if replacement is None:
            variants.append(_without(batch, set(places), of_nothing))
        else:
            variants.append(_replaced(batch, places, replacement))
    scores = []
    at_a_time = max(1, BATCH_STEPS // max(batch.tokens.numel(), 1))
    work = LongWork("variants of the text scored", len(variants))
    for first in range(0, len(variants), at_a_time):
        some = variants[first : first + at_a_time]
        scores.append(score(stacked(some)).double().cpu())
        work.add(len(some))
    found = torch.cat(scores)
    return float(found[0]), found[0] - found[1:]


def _replaced(batch: EncodedBatch, places: Places, token: int) -> EncodedBatch:
    """With another token at these places, which has no characters."""
    tokens, characters = batch.tokens.clone(), batch.characters.clone()
    for row, step in places:
        tokens[row, step] = token
        characters[row, step] = -1
    return batch._replace(tokens=tokens, characters=characters)


def _without(batch: EncodedBatch, places: set[tuple[int, int]], of_nothing: int) -> EncodedBatch:
    """Without the tokens at these places."""
    rows = []
    for row, tokens in enumerate(batch.tokens):
        left = [
            step
            for step, token in enumerate(tokens.tolist())
            if token >= 0 and (row, step) not in places
        ]
        rows.append(torch.tensor(left, dtype=torch.long, device=tokens.device))
    steps = max(1, *map(len, rows))

    def kept_of(part: Tensor, filler: int) -> Tensor:
        found = part.new_full((len(part), steps, *part.shape[2:]), filler)
        for row, kept in enumerate(rows):
            found[row, : len(kept)] = part[row, kept]
        return found

    tokens = kept_of(batch.tokens, -1)
    for row, kept in enumerate(rows):
        if not len(kept):
            tokens[row, 0] = of_nothing
    return batch._replace(
        tokens=tokens,
        segments=kept_of(batch.segments, 0),
        characters=kept_of(batch.characters, -1),
    )


def stacked(variants: Sequence[EncodedBatch]) -> EncodedBatch:
    """Variants of one input as the examples of a batch."""
    steps = max(variant.tokens.shape[1] for variant in variants)

    def padded(parts: Sequence[Tensor], filler: int) -> Tensor:
        after = [steps - part.shape[1] for part in parts]
        sides = [
            (0, 0) * (part.dim() - 2) + (0, more) for part, more in zip(parts, after, strict=True)
        ]
        return torch.cat(
            [F.pad(part, side, value=filler) for part, side in zip(parts, sides, strict=True)]
        )

    first = variants[0]
    rows = len(first.tokens)
    return EncodedBatch(
        tokens=padded([variant.tokens for variant in variants], -1),
        segments=padded([variant.segments for variant in variants], 0),
        characters=padded([variant.characters for variant in variants], -1),
        owner=torch.arange(len(variants), device=first.owner.device).repeat_interleave(rows),
        places=torch.cat([variant.places for variant in variants]),
        targets=torch.cat([variant.targets for variant in variants]),
    )


def integrated_gradients(
    model: nn.Module,
    batch: EncodedBatch,
    words: Sequence[Places],
    score: ScoreOf,
    bases: Sequence[int | None],
) -> Integrated:
    """Between the input and one whose words are the first of the tokens `bases` (None: vectors of 0) from
    which the sum is exact enough, or else the one from which it is most exact.

    Raises UsageError if the model reads its tokens in another way than by their embeddings, or where even
    the finest sum is off by more than MOST_ERROR.
    """
    places = [place for word in words for place in word]
    best: Integrated | None = None
    for base in bases:
        path = _Path(model, batch, places, score, base)
        if best is None:
            path.check()
        found = _integrated(path, words, base)
        if best is None or found.error < best.error:
            best = found
        if best.error <= WANTED_ERROR:
            break
    assert best is not None
    if best.error > MOST_ERROR:
        raise UsageError(
            f"integrated gradients must sum to F(x) - F(b), but are off by {100 * best.error:.1f} % with"
            f" {best.points} points: the model is too rough for them; use leave-one-out"
        )
    return best


def _integrated(path: _Path, words: Sequence[Places], base: int | None) -> Integrated:
    ends = path.scores(torch.tensor([0.0, 1.0], dtype=torch.float64))
    start, end = ends.tolist()
    for points, power in SUMS:
        by_place = path.integral(*nodes_and_weights(points, power))
        difference, total = end - start, float(by_place.sum())
        scale = max(abs(difference), float(by_place.abs().sum()), 1e-12)
        error = abs(total - difference) / scale
        if error <= WANTED_ERROR:
            break
    shares = torch.zeros(len(words), dtype=torch.float64)
    numbers = torch.arange(len(words)).repeat_interleave(torch.tensor([*map(len, words)]))
    shares.index_add_(0, numbers, by_place)
    return Integrated(shares, end, start, base, error, points)


def nodes_and_weights(points: int, power: int) -> tuple[Tensor, Tensor]:
    """Of a Gauss-Legendre sum over t in 0..1, with α = t^power: the α, and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    t = torch.from_numpy((nodes + 1) / 2)
    return t**power, torch.from_numpy(weights / 2) * power * t ** (power - 1)


class _Path:
    """The way from the baseline's embeddings to those of an input, in every embedding that reads them."""

    def __init__(
        self,
        model: nn.Module,
        batch: EncodedBatch,
        places: Places,
        score: ScoreOf,
        baseline: int | None,
    ) -> None:
        self.batch, self.score = batch, score
        self.rows = torch.tensor([row for row, _ in places], device=batch.tokens.device)
        self.steps = torch.tensor([step for _, step in places], device=batch.tokens.device)
        self.tables = self._reading(model)
        self.inputs = {table: table(batch.tokens.clamp(min=0)).detach() for table in self.tables}
        self.bases: dict[nn.Embedding, Tensor] = {}
        for table, embedded in self.inputs.items():
            base = embedded.clone()
            base[self.rows, self.steps] = (
                0 if baseline is None else table(batch.tokens.new_tensor(baseline)).detach()
            )
            self.bases[table] = base

    def _reading(self, model: nn.Module) -> list[nn.Embedding]:
        """The embeddings that are asked for the tokens of the batch."""
        found: dict[nn.Embedding, None] = {}

        def watch(table: nn.Module, arguments: tuple[Any, ...], _: object) -> None:
            ids, tokens = arguments[0], self.batch.tokens
            either = ids.dim() > 1 and (
                self._is_input(ids, tokens) or self._is_input(ids.flip(1), tokens)
            )
            if either:
                found[cast(nn.Embedding, table)] = None

        tables = modules_of(model, nn.Embedding).values()
        handles = [table.register_forward_hook(watch) for table in tables]
        try:
            with torch.no_grad():
                self.score(self.batch)
        finally:
            for handle in handles:
                handle.remove()
        if not found:
            raise UsageError(
                "integrated gradients need embeddings of the tokens, which this model has not got; use"
                " --method leave-one-out"
            )
        return list(found)

    def _is_input(self, ids: Tensor, tokens: Tensor) -> bool:
        """Whether ids `(rows, steps, ...)` begin with the tokens, whatever stands at padding."""
        rows, steps = tokens.shape
        if ids.dim() != 2 or len(ids) != rows or ids.shape[1] < steps:
            return False
        return bool(((ids[:, :steps] == tokens) | (tokens < 0)).all())

    @contextmanager
    def _embedded_as(self, tokens: Tensor, vectors: dict[nn.Embedding, Tensor]) -> Iterator[None]:
        """Inside, these vectors `(rows, steps, width)` are read in the place of the tokens'."""

        def replace(table: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor | None:
            given = vectors[cast(nn.Embedding, table)]
            if self._is_input(arguments[0].flip(1), tokens):  # a source that is read from its end
                return given.flip(1)
            if not self._is_input(arguments[0], tokens):
                return None
            return torch.cat([given, output[:, given.shape[1] :]], dim=1)

        handles = [table.register_forward_hook(replace) for table in self.tables]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def check(self) -> None:
        """Raises UsageError if other tokens are read otherwise than by their embeddings: by characters,
        n-grams, or a second table that is not on the path."""
        tokens, characters = self.batch.tokens.clone(), self.batch.characters.clone()
        rows, steps = self.rows, self.steps
        tokens[rows, steps] = self.batch.tokens[rows.flip(0), steps.flip(0)]
        characters[rows, steps] = self.batch.characters[rows.flip(0), steps.flip(0)]
        turned = self.batch._replace(tokens=tokens, characters=characters)
        vectors = {table: table(tokens.clamp(min=0)).detach() for table in self.tables}
        with torch.no_grad():
            read = self.score(turned)
            with self._embedded_as(self.batch.tokens, vectors):
                moved = self.score(self.batch)
        if not torch.allclose(read, moved, rtol=1e-4, atol=1e-4):
            raise UsageError(
                "integrated gradients need a model that reads tokens by their embeddings alone, but this one"
                " reads them in another way too, such as characters, n-grams or weights of words; use"
                " --method leave-one-out"
            )

    def _at(
        self, shares: Tensor
    ) -> Iterator[tuple[EncodedBatch, dict[nn.Embedding, Tensor], slice]]:
        """The inputs at these shares of the way, several at a time."""
        at_a_time = max(1, BATCH_STEPS // max(self.batch.tokens.numel(), 1))
        work = LongWork("points of the integral", len(shares))
        for first in range(0, len(shares), at_a_time):
            chunk = shares[first : first + at_a_time]
            vectors = {}
            for table, embedded in self.inputs.items():
                base, alpha = self.bases[table], chunk.to(embedded)[:, None, None, None]
                vectors[table] = (base + alpha * (embedded - base)).flatten(0, 1)
            yield stacked([self.batch] * len(chunk)), vectors, slice(first, first + len(chunk))
            work.add(len(chunk))

    @torch.no_grad()
    def scores(self, shares: Tensor) -> Tensor:
        """F at these shares of the way."""
        found = torch.zeros(len(shares), dtype=torch.float64)
        for batch, vectors, part in self._at(shares):
            with self._embedded_as(batch.tokens, vectors):
                found[part] = self.score(batch).double().cpu()
        return found

    def integral(self, shares: Tensor, weights: Tensor) -> Tensor:
        """Of each place: `(x - b) ∫ ∂F/∂x dα`, summed over its features, as a weighted sum over these shares
        of the way."""
        found = torch.zeros(len(self.rows), dtype=torch.float64)
        for batch, vectors, part in self._at(shares):
            leaves = {table: given.requires_grad_() for table, given in vectors.items()}
            with torch.enable_grad(), self._embedded_as(batch.tokens, leaves):
                gradients = torch.autograd.grad(self.score(batch).sum(), list(leaves.values()))
            share = weights[part]
            for table, gradient in zip(self.tables, gradients, strict=True):
                by_point = gradient.double().cpu().view(len(share), *self.inputs[table].shape)
                mean = torch.einsum("p,prsw->rsw", share, by_point)
                way = (self.inputs[table] - self.bases[table]).double().cpu()
                rows, steps = self.rows.cpu(), self.steps.cpu()
                found += (mean * way).sum(dim=-1)[rows, steps]
        return found
