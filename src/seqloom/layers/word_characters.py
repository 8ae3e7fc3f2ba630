"""Words by their characters, as in ELMo: convolutions of several widths, highways, a projection.

    c     = the characters of a word, framed by marks and padded
    m_i   = max over windows of w_i · [c_j; ...; c_{j+h-1}] + b_i     Kim et al. 2016, equations 7 and 8
    y     = highways(activation([m_1; m_2; ...]))                     Kim et al. 2016, equation 9
    x     = P y + b                                                   Jozefowicz et al. 2016, section 3.3

A character is a byte of UTF-8. The ids are those of bilm-tf and AllenNLP, without AllenNLP's shift by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from seqloom.layers.recurrent.highway import HighwayLayer

TEXT_BEGIN, TEXT_END = 256, 257
"""The only characters of the words that begin and end a text."""
WORD_BEGIN, WORD_END, AFTER_WORD = 258, 259, 260
CHARACTERS = 261
MARKS = 2
"""Around each word."""

Activation = Literal["relu", "tanh"]


def read_each_once(
    characters: Tensor | None, mask: Tensor, empty: Tensor, read: Callable[[Tensor], Tensor]
) -> Tensor:
    """characters `(rows, steps, letters)` of the word at each step, -1 at padding, mask `(rows, steps)` ->
    `(rows, steps, width)`: `empty` where the mask is false, or where there are no letters. `read` is given
    each different word once, `(words, letters)` -> `(words, width)`."""
    if characters is None or not characters.shape[-1] or not bool(mask.any()):
        return empty
    words, which = torch.unique(characters[mask], dim=0, return_inverse=True)
    states = read(words)[which]
    return empty.to(states.dtype).masked_scatter(mask[..., None], states)


@final
class CharacterConvolution(nn.Module):
    """Reads words. `filters` are (window, number of filters) for each convolution; of a word its first
    `longest - 2` bytes are read."""

    def __init__(
        self,
        width: int,
        character_width: int,
        filters: Sequence[tuple[int, int]],
        highways: int,
        longest: int,
        activation: Activation,
    ) -> None:
        super().__init__()
        self.width, self.longest, self.activation = width, longest, activation
        self.widest = max(window for window, _ in filters)
        self.embedding = nn.Embedding(CHARACTERS, character_width)
        nn.init.uniform_(self.embedding.weight, -1, 1)
        self.filters = nn.ModuleList(
            nn.Conv1d(character_width, maps, window) for window, maps in filters
        )
        maps = sum(maps for _, maps in filters)
        self.highways = nn.ModuleList(HighwayLayer(maps) for _ in range(highways))
        self.projection = nn.Linear(maps, width)

    def forward(self, characters: Tensor, mask: Tensor) -> Tensor:
        """characters `(rows, steps, letters)`, at least one, -1 after the last of a word, mask `(rows,
        steps)` -> `(rows, steps, width)`, 0 where the mask is false."""
        empty = self.projection.weight.new_zeros(*mask.shape, self.width)
        return read_each_once(characters, mask, empty, self._read)

    def _read(self, words: Tensor) -> Tensor:
        """`(words, letters)` -> `(words, width)`."""
        embedded = self.embedding(self.framed(words)).transpose(1, 2)
        largest = torch.cat([convolution(embedded).amax(dim=2) for convolution in self.filters], 1)
        states = largest.relu() if self.activation == "relu" else largest.tanh()
        for highway in self.highways:
            states = highway(states)
        projected: Tensor = self.projection(states)
        return projected

    def framed(self, words: Tensor) -> Tensor:
        """`(words, letters)`, -1 after the last -> `(words, characters)`, with the marks around each word.

        The published models read words padded to `longest`, and the padding takes part in the maximum. Its
        windows are all alike, so that one of each width is enough.
        """
        words = words[:, : self.longest - MARKS]
        lengths = (words >= 0).sum(dim=1)
        size = min(self.longest, int(lengths.max()) + MARKS + self.widest)
        framed = words.new_full((len(words), size), AFTER_WORD)
        letters = min(words.shape[1], size - 1)
        framed[:, 1 : 1 + letters] = words[:, :letters].where(words[:, :letters] >= 0, AFTER_WORD)
        framed[:, 0] = WORD_BEGIN
        return framed.scatter(1, lengths[:, None] + 1, WORD_END)
