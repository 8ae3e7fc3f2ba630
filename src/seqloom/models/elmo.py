"""ELMo: a language model of each direction over one token layer, and the mixture of their layers.

    h_0       = the embedding of a token, or of its characters (`layers/word_characters.py`)
    →h_k      = LSTM with projection over →h_{k-1}, from left to right;  →h_k += →h_{k-1} from k = 2 on
    ←h_k      = the same from right to left, with weights of its own
    loss      = Σ_l -log softmax(W →h_K,l-1 + b)_u_l - log softmax(W ←h_K,l+1 + b)_u_l
    a task's  = [x; γ Σ_k s_k →h_k; γ Σ_k s_k ←h_k],  k = 0 .. K,  s = softmax(w)

Peters et al. 2018 (Deep contextualized word representations); Jozefowicz et al. 2016. Both directions share
the token layer and the softmax. x is an embedding of the task's own. No direction sees a text as a whole, so
the model neither generates nor gives a text a probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.outputs.kinds import OutputOptions, make_output
from seqloom.layers.recurrent.cells import CellState
from seqloom.layers.recurrent.document_rows import Segments, cut_rows
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.layers.word_characters import (
    MARKS,
    TEXT_BEGIN,
    TEXT_END,
    Activation,
    CharacterConvolution,
)
from seqloom.models.config_checks import (
    Constraint,
    Count,
    Fraction,
    Size,
    UsedInTasks,
    UsedWith,
    field_problems,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits, OutputLayer

Limit = Annotated[float | None, Constraint("above 0", lambda value: value > 0)]
DirectionState = tuple[CellState, ...]
"""Of each layer."""
FORGET_SHIFT = 1.0
"""What the published models add to the bias of the forget gate when they run, and do not store."""


@final
@dataclass(frozen=True, kw_only=True)
class ElmoConfig:
    """The sizes and choices of an ELMo."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    tokens: Literal["embedding", "characters"] = "embedding"
    """What h_0 is made of: an embedding of each token, or its characters (bytes), as published."""
    character_width: Annotated[Size, UsedWith(tokens="characters")] = 16
    """Width of an embedded character."""
    filters: Annotated[tuple[tuple[int, int], ...], UsedWith(tokens="characters")] = (
        *((1, 32), (2, 32), (3, 64), (4, 128)),
        *((5, 256), (6, 512), (7, 1024)),
    )
    """Window and number of filters of each convolution over characters."""
    highways: Annotated[Count, UsedWith(tokens="characters")] = 2
    """Highway layers after the convolutions."""
    activation: Annotated[Activation, UsedWith(tokens="characters")] = "relu"
    """Activation of the convolutions: relu or tanh."""
    longest_word: Annotated[Size, UsedWith(tokens="characters")] = 50
    """Characters of a word that are read at most, its two marks included."""
    width: Size = 448
    """Width of an LSTM's cell, of each direction."""
    projection: Size = 160
    """Width of h_k, of each direction."""
    layers: Size = 2
    """LSTM layers, of each direction."""
    residual: bool = True
    """Whether a layer's input is added to its output, from the second layer on."""
    cell_clip: Limit = 3.0
    """The largest absolute value of a cell; none: no limit."""
    projection_clip: Limit = 3.0
    """The largest absolute value of an LSTM's output; none: no limit."""
    dropout: Fraction = 0.1
    """Share of the features of h_0, of those between layers and of the last layer dropped in training; and of
    what a task reads."""
    carry_states: Annotated[bool, UsedInTasks("feature-extraction")] = False
    """Whether the states go on from text to text and from batch to batch in training, as in the published
    models. By default each text is read from the empty state, as it is when its vectors are asked for."""
    output: Literal["full", "adaptive", "importance", "blackout", "none"] = "full"
    """full, adaptive (rare words in two steps), importance or blackout (trained on the target and a sample of
    the others); none, where nothing is predicted."""
    tie_output: Annotated[bool, UsedWith(tokens="embedding")] = True
    """Whether the output's weight is the embedding."""
    output_samples: Annotated[Size, UsedWith(output=("importance", "blackout"))] = 4096
    """Words that importance and blackout sample for each batch."""
    output_alpha: Annotated[float | None, UsedWith(output=("importance", "blackout"))] = None
    """These words are drawn in proportion to count^alpha; none: 1 for importance, 0.4 for blackout."""
    output_cutoffs: Annotated[tuple[int, ...], UsedWith(output="adaptive")] = ()
    """Ranks by frequency where the clusters of an adaptive output begin; none: at a sixteenth and a quarter
    of the vocabulary."""
    mix: Annotated[Literal["softmax", "free"], UsedWith(output="none")] = "softmax"
    """The weights s of the layers that a task reads: softmax, of trained w, with a trained γ; free: trained
    as they are, with γ = 1."""
    embedding_width: Annotated[Count, UsedWith(output="none")] = 100
    """Width of x, the task's own embedding of each token, beside the mixed layers; 0: none."""
    pad_id: int = 0
    """The id of <pad>."""
    bos_id: int = 1
    """The id of <s>."""
    eos_id: int = 2
    """The id of </s>."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that can never be a target, such as <pad>: the output gives them no probability."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not self.filters or any(min(pair) < 1 for pair in self.filters):
            problems.append(
                f"model.filters must be pairs of numbers of at least 1, but is {self.filters}"
            )
        elif self.longest_word < max(MARKS + 1, *(window for window, _ in self.filters)):
            problems.append(
                "model.longest_word must be at least 3 and as long as each window of model.filters, but is"
                f" {self.longest_word}"
            )
        if self.output == "adaptive" and self.is_tied:
            problems.append(
                "model.tie_output must be false with model.output=adaptive, whose words have states of"
                " several widths"
            )
        raise_problems(problems)

    @property
    def is_tied(self) -> bool:
        return self.tie_output and self.tokens == "embedding"

    @property
    def traits(self) -> EncoderTraits:
        width = 2 * self.projection + self.embedding_width
        return EncoderTraits(width, "max", directions=1 if self.embedding_width else 2)


SIZES, ABOUT = named_sizes("elmo")


class ElmoState(NamedTuple):
    """What is carried from one batch to the next."""

    forward: DirectionState | None = None
    backward: DirectionState | None = None


@final
class Elmo(nn.Module):
    """Both language models and, where nothing is predicted, the mixture that a task reads. An `Encoder`."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = c = config
        self.bilm = BidirectionalLayers(c)
        self.output: OutputLayer | None = None
        self.mix: LayerMixture | None = None
        self.embedding: nn.Embedding | None = None
        if c.output != "none":
            options = OutputOptions(
                c.output, c.output_samples, c.output_alpha, c.output_cutoffs, c.suppressed_ids
            )
            tied = self.bilm.embedding.weight if self.bilm.embedding and c.is_tied else None
            self.output = make_output(options, c.projection, c.vocabulary_size, tied=tied)
            return
        self.mix = LayerMixture(1 + c.layers, free=c.mix == "free")
        if c.embedding_width:
            self.embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
            nn.init.normal_(self.embedding.weight, std=c.embedding_width**-0.5)

    # As two language models

    def read_direction(
        self,
        tokens: Tensor,
        characters: Tensor | None,
        state: DirectionState | None,
        *,
        backward: bool,
    ) -> tuple[Tensor, DirectionState]:
        """tokens `(rows, steps)` in the order of reading, padded anywhere, characters `(rows, steps,
        letters)` -> the states before the output `(rows, steps, projection)`, and what is carried on.

        Where states are not carried on, a row is cut where a text begins, which is at its end for the
        backward direction.
        """
        c = self.config
        begin = None if c.carry_states else c.eos_id if backward else c.bos_id
        pieces = cut_rows(tokens, c.pad_id, begin)
        mask = pieces.tokens != c.pad_id
        x = _cut(self.bilm.embed(tokens, characters, tokens != c.pad_id), pieces)
        if state is not None:
            state = _state_of_pieces(state, pieces)
        layers, after = self.bilm.read(x, mask, state, backward=backward)
        hidden = F.dropout(layers[-1], c.dropout, self.training)
        if pieces.first is not None:
            after = tuple(tuple(part[pieces.last] for part in layer) for layer in after)
        return pieces.to_rows(hidden, tokens.shape), after

    # As an encoder

    def read(self, tokens: Tensor, state: ElmoState | None = None) -> tuple[Tensor, ElmoState]:
        """tokens `(rows, steps)`, padded anywhere -> the last layer of both directions `(rows, steps, 2 *
        projection)`, and the states to be carried on."""
        mask = tokens != self.config.pad_id
        layers, after = self.layers(tokens, None, mask, state)
        return layers[-1], after

    def layers(
        self,
        tokens: Tensor,
        characters: Tensor | None,
        mask: Tensor,
        state: ElmoState | None = None,
    ) -> tuple[list[Tensor], ElmoState]:
        """h_0 .. h_K of whole texts, marks included: `[→h_k; ←h_k]`, each `(rows, steps, 2 * projection)`;
        and the states to be carried on: forward those after the last token, backward after the first."""
        x = self.bilm.embed(tokens, characters, mask)
        before = state or ElmoState()
        forward, after = self.bilm.read(x, mask, before.forward, backward=False)
        reverse, before_first = self.bilm.read(
            x.flip(1), mask.flip(1), before.backward, backward=True
        )
        both = zip(forward, reverse, strict=True)
        sides = [torch.cat([right, left.flip(1)], dim=-1) for right, left in both]
        return sides, ElmoState(after, before_first)

    def layers_of_texts(
        self, tokens: Tensor, characters: Tensor | None, state: ElmoState | None = None
    ) -> tuple[list[Tensor], ElmoState]:
        """The same for texts without marks, `(rows, steps)`, -1 after the last token: `<s>` and `</s>` are
        read around each, and have no state."""
        c = self.config
        ends = 1 + (tokens >= 0).sum(dim=1, keepdim=True)
        marked = F.pad(tokens, (1, 1), value=-1).scatter(1, ends, c.eos_id)
        marked[:, 0] = c.bos_id
        if characters is not None:
            characters = F.pad(characters, (0, 0, 1, 1), value=-1)
        layers, after = self.layers(marked.clamp(min=0), characters, marked >= 0, state)
        return [layer[:, 1:-1] for layer in layers], after

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`: x, and the mixture of the layers of each direction."""
        c = self.config
        assert self.mix is not None
        layers, _ = self.layers_of_texts(batch.tokens, batch.characters)
        vectors = self.mix(layers)
        if self.embedding is not None:
            x = self.embedding(batch.tokens.clamp(min=0))
            vectors = torch.cat([x.to(vectors.dtype), vectors], dim=-1)
        vectors = F.dropout(vectors, c.dropout, self.training)
        return vectors.masked_fill((batch.tokens < 0)[..., None], 0)


@final
class BidirectionalLayers(nn.Module):
    """The token layer, and the layers of each direction."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding: nn.Embedding | None = None
        self.letters: CharacterConvolution | None = None
        if c.tokens == "embedding":
            self.embedding = nn.Embedding(c.vocabulary_size, c.projection)
            nn.init.normal_(self.embedding.weight, std=c.projection**-0.5)
        else:
            self.letters = CharacterConvolution(
                c.projection,
                c.character_width,
                c.filters,
                c.highways,
                c.longest_word,
                c.activation,
            )
        self.forward_layers = nn.ModuleList(self._layers())
        self.backward_layers = nn.ModuleList(self._layers())

    def _layers(self) -> Iterator[RecurrentStack]:
        c = self.config
        for _ in range(c.layers):
            yield RecurrentStack(
                RecurrentStackConfig(
                    "lstm",
                    c.projection,
                    c.width,
                    projection=c.projection,
                    forget_bias=0.0,
                    forget_shift=FORGET_SHIFT,
                    cell_clip=c.cell_clip,
                    projection_clip=c.projection_clip,
                )
            )

    def embed(self, tokens: Tensor, characters: Tensor | None, mask: Tensor) -> Tensor:
        """h_0, `(rows, steps, projection)`."""
        if self.letters is not None:
            spelled: Tensor = self.letters(self._with_marks(tokens, characters), mask)
            return spelled
        assert self.embedding is not None
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def _with_marks(self, tokens: Tensor, characters: Tensor | None) -> Tensor:
        """The characters, with those of `<s>` and `</s>`. Without characters no word has letters."""
        if characters is None or not characters.shape[-1]:
            characters = tokens.new_full((*tokens.shape, 1), -1)
        for mark, letter in ((self.config.bos_id, TEXT_BEGIN), (self.config.eos_id, TEXT_END)):
            word = characters.new_full((characters.shape[-1],), -1)
            word[0] = letter
            characters = torch.where((tokens == mark)[..., None], word, characters)
        return characters

    def read(
        self, x: Tensor, mask: Tensor, state: DirectionState | None, *, backward: bool
    ) -> tuple[list[Tensor], DirectionState]:
        """h_0 `(rows, steps, projection)` in the order of reading -> h_0 .. h_K, and the state of each layer
        after the last step."""
        c = self.config
        layers, after = [x], list[CellState]()
        stacks = self.backward_layers if backward else self.forward_layers
        for k, stack in enumerate(cast(Sequence[RecurrentStack], stacks)):
            below = F.dropout(layers[-1], c.dropout, self.training)
            before = None if state is None else state[k]
            above, last = stack(below, mask, before)
            layers.append(above + below if k and c.residual else above)
            after.append(last)
        return layers, tuple(after)


@final
class LayerMixture(nn.Module):
    """γ Σ_k s_k h_k: s = softmax(w), which begins uniform, and γ begins as 1; or `free` s and γ = 1."""

    def __init__(self, layers: int, free: bool) -> None:
        super().__init__()
        self.free = free
        self.weight = nn.Parameter(torch.full((layers,), 1 / layers if free else 0.0))
        self.scale = None if free else nn.Parameter(torch.ones(1))

    def weights(self) -> Tensor:
        """s, `(layers,)`."""
        return self.weight if self.free else self.weight.softmax(dim=0)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        mixed = torch.einsum("k,k...->...", self.weights(), torch.stack(tuple(layers)))
        return mixed if self.scale is None else mixed * self.scale


def _cut(x: Tensor, pieces: Segments) -> Tensor:
    """x `(rows, steps, width)` at the places of its tokens in the pieces."""
    if pieces.first is None:
        return x
    values = x.flatten(0, 1)[pieces.row_index]
    flat = x.new_zeros(pieces.tokens.numel(), x.shape[-1])
    placed = flat.index_copy(0, pieces.segment_index, values)
    return placed.view(*pieces.tokens.shape, x.shape[-1])


def _state_of_pieces(state: DirectionState, pieces: Segments) -> DirectionState:
    """The state before each piece: the carried one where a row goes on, zeros where a text begins."""

    def before(part: Tensor) -> Tensor:
        if pieces.starts_document is not None:
            part = part.masked_fill(pieces.starts_document[:, None, None], 0)
        if pieces.first is None:
            return part
        start = part.new_zeros(len(pieces.tokens), *part.shape[1:])
        return start.index_copy(0, pieces.first, part)

    return tuple(tuple(map(before, layer)) for layer in state)
