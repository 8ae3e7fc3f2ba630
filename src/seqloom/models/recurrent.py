"""The recurrent encoder: words, and optionally their characters, read in one or both directions.

    x_t = [E u_t; characters(u_t)]
    h_t = [→h_t; ←h_t]            Schuster and Paliwal 1997; Graves and Schmidhuber 2005

    characters = max over the characters of a convolution        Ma and Hovy 2016 (with ReLU)
    characters = [→h_n; ←h_1] of an LSTM over the characters     Lample et al. 2016

Characters inform about words that the vocabulary does not hold. To learn that, words are replaced by <unk> at
random (`word_dropout`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.convolution import TimeConvolution
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.layers.word_characters import read_each_once
from seqloom.models.config_checks import (
    ZERO,
    CellName,
    Count,
    Fraction,
    Size,
    UsedWith,
    field_problems,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits

CHARACTER_WINDOW = 3
"""Characters of a window (Ma and Hovy 2016, table 1)."""


@final
@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The sizes and choices of a recurrent encoder."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    cell: CellName = "lstm"
    """elman, elman-relu, elman-sigmoid, lstm, gru (as published), gru-torch, mut1, mut2 or mut3."""
    embedding_width: Size = 200
    """Width of an embedded token."""
    width: Size = 200
    """Width of a layer's state, of each direction."""
    layers: Size = 1
    """Stacked layers."""
    bidirectional: bool = True
    """Whether each layer reads in both directions."""
    forget_bias: Annotated[float, UsedWith(cell="lstm", chrono_steps=ZERO)] = 1.0
    """What the bias of an lstm's forget gate starts from; 1 remembers at first (Gers et al. 2000)."""
    chrono_steps: Annotated[Count, UsedWith(cell="lstm")] = 0
    """The longest dependency in steps: an lstm's gates then start so that its units remember from 1 to as
    many (Tallec and Ollivier 2018), in place of forget_bias; 0: they do not."""
    normalisation: Literal["none", "layer", "batch"] = "none"
    """Normalisation of the layers' sums (Ba et al. 2016; Cooijmans et al. 2017)."""
    connection: Literal["none", "residual", "highway"] = "none"
    """What a stacked layer adds to its input: x + h, or a highway g ⊙ h + (1 - g) ⊙ x."""
    dropout: Fraction = 0.3
    """Share of the features of embedded tokens, and of those between layers, dropped in training."""
    word_dropout: Fraction = 0.0
    """Share of the tokens that are replaced by <unk> in training."""
    characters: Literal["none", "convolution", "recurrent"] = "none"
    """What encodes the characters of each word, as a second input."""
    alphabet: tuple[str, ...] = ()
    """The known characters; comes from the data."""
    character_width: Annotated[Size, UsedWith(characters=("convolution", "recurrent"))] = 30
    """Width of an embedded character."""
    character_maps: Annotated[Size, UsedWith(characters=("convolution", "recurrent"))] = 50
    """Filters of the convolution over characters, or the width of each direction of the LSTM."""
    unknown_id: int = 3
    """The id of <unk>."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not 0 <= self.unknown_id < self.vocabulary_size:
            problems.append(
                f"model.unknown_id must be an id of {self.vocabulary_size}, but is {self.unknown_id}"
            )
        raise_problems(problems)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def traits(self) -> EncoderTraits:
        width = self.directions * self.width
        return EncoderTraits(width, "max", directions=self.directions)  # Conneau et al. 2017


SIZES, ABOUT = named_sizes("recurrent")


@final
class RecurrentEncoder(nn.Module):
    """Embedding, characters, layers. An `Encoder`."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
        nn.init.normal_(self.embedding.weight, std=c.embedding_width**-0.5)
        self.letters = None if c.characters == "none" else CharacterEncoder(c)
        letters_width = 0 if self.letters is None else self.letters.output_width
        self.layers = RecurrentStack(
            RecurrentStackConfig.of(c, c.embedding_width + letters_width, c.width)
        )

    def forward(self, inputs: Tensor, mask: Tensor, characters: Tensor | None = None) -> Tensor:
        """inputs, mask `(rows, steps)`, true at tokens, characters `(rows, steps, letters)` of the word at
        each step, -1 at padding -> `(rows, steps, both directions together)`, 0 at padding. Without
        characters no word has letters."""
        c = self.config
        if self.training and c.word_dropout:
            dropped = torch.rand(inputs.shape, device=inputs.device) < c.word_dropout
            inputs = inputs.masked_fill(dropped, c.unknown_id)
        embedded = self.embedding(inputs)
        if self.letters is not None:
            embedded = torch.cat([embedded, self.letters(characters, mask)], dim=-1)
        outputs: Tensor = self.layers(F.dropout(embedded, c.dropout, self.training), mask)[0]
        return outputs.masked_fill(~mask[..., None], 0)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, both directions together)`."""
        characters = batch.characters if batch.characters.shape[-1] else None
        return self(batch.tokens.clamp(min=0), batch.tokens >= 0, characters)  # type: ignore[no-any-return]


@final
class CharacterEncoder(nn.Module):
    """Words by their characters."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        width, maps = config.character_width, config.character_maps
        self.embedding = nn.Embedding(1 + len(config.alphabet), width)
        """Of the unknown character, then of the alphabet."""
        bound = (3 / width) ** 0.5  # Ma and Hovy 2016, section 3.1
        nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.convolution = (
            TimeConvolution(width, maps, CHARACTER_WINDOW, centred=True)
            if config.characters == "convolution"
            else None
        )
        self.layers = (
            RecurrentStack(RecurrentStackConfig("lstm", width, maps, bidirectional=True))
            if config.characters == "recurrent"
            else None
        )
        self.output_width = maps if self.layers is None else 2 * maps

    def forward(self, characters: Tensor | None, mask: Tensor) -> Tensor:
        """characters `(rows, steps, letters)`, -1 at padding, mask `(rows, steps)` -> `(rows, steps,
        output_width)`; 0 for a word without characters. Each different word is read once."""
        empty = self.embedding.weight.new_zeros(*mask.shape, self.output_width)
        return read_each_once(characters, mask, empty, self._read)

    def _read(self, words: Tensor) -> Tensor:
        """`(words, letters)` -> `(words, output_width)`."""
        real = words >= 0
        embedded = self.embedding(words.clamp(min=0))
        if self.layers is not None:
            _, (h, _) = self.layers(embedded, real)
            state: Tensor = h.flatten(1)
            return state
        assert self.convolution is not None
        maps: Tensor = self.convolution(embedded.masked_fill(~real[..., None], 0))
        return maps.relu().masked_fill(~real[..., None], 0).amax(dim=1)
