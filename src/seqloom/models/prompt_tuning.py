"""Prompt tuning: trained vectors that a frozen model reads before its input.

    Lester, Al-Rfou and Constant 2021, section 2
           max_P log p_θ(y | [P; x]),   P = (p_1 .. p_L), each as wide as an embedded token; θ is frozen

    encoder-decoder    the encoder reads p_1 .. p_L x_1 .. x_m
    language model     <s> p_1 .. p_L x_1 .. x_m: the vectors follow the <s> of each document, and come before
                       the first token of a row that begins without one

To the frozen model the vectors are tokens: p_i has the id `vocabulary + i - 1`, which its embedding looks up
in the prompt. So masks, positions and caches are those of a text that begins with L more words, wherever it
is padded. The frozen model is always in evaluation mode, without dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.protocols import (
    EncoderDecoder,
    NeuralDecodable,
    OutputLayer,
    State,
    context_of,
    read_source,
)


@final
class PromptedEmbedding(nn.Module):
    """The embedding of a frozen model; the ids after its vocabulary are those of the prompt."""

    def __init__(self, table: nn.Embedding, prompt: nn.Embedding) -> None:
        super().__init__()
        self.table, self.prompt = table, prompt

    @property
    def weight(self) -> Tensor:
        """`(vocabulary, width)`: without the prompt."""
        return self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        """`(...)` -> `(..., width)`."""
        words, size = self.table.weight, self.table.num_embeddings
        is_prompt = ids >= size
        if not bool(is_prompt.any()):
            return F.embedding(ids, words)
        embedded = F.embedding(ids.clamp(max=size - 1), words)
        prompt = F.embedding((ids - size).clamp(min=0), self.prompt.weight)
        return prompt.where(is_prompt[..., None], embedded)


class PromptTuned(nn.Module):
    """A frozen model and its prompt. Only the prompt is trained, and only it is saved."""

    def __init__(self, base: nn.Module, length: int) -> None:
        super().__init__()
        self.base: Any = base.requires_grad_(False).eval()
        self.config: Any = base.config
        """That of the frozen model."""
        modules = dict(base.named_modules(remove_duplicate=False))
        self.embedding_name = "source_embedding" if "source_embedding" in modules else "embedding"
        table = modules[self.embedding_name]
        assert isinstance(table, nn.Embedding)
        self.prompt = nn.Embedding(length, table.embedding_dim)
        setattr(base, self.embedding_name, PromptedEmbedding(table, self.prompt))
        self.register_state_dict_post_hook(_keep_prompt)  # type: ignore[no-untyped-call]

    def begin_with(self, ids: Sequence[int]) -> Self:
        """Makes the prompt the embeddings of as many tokens."""
        with torch.no_grad():
            self.prompt.weight.copy_(
                self.base.get_submodule(self.embedding_name)(torch.tensor(ids))
            )
        return self

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.base.eval()
        return self

    @property
    def length(self) -> int:
        """Vectors of the prompt."""
        return self.prompt.num_embeddings

    @property
    def context(self) -> int | None:
        """The most tokens that the frozen model reads beside the prompt."""
        context = context_of(self.base)
        return None if context is None else context - self.length

    @property
    def output(self) -> OutputLayer:
        output: OutputLayer = self.base.output
        return output

    @property
    def prompt_ids(self) -> Tensor:
        """`(length,)`: the ids after the vocabulary."""
        first: int = self.config.vocabulary_size
        return torch.arange(first, first + self.length, device=self.prompt.weight.device)


def _keep_prompt(
    module: nn.Module, tensors: dict[str, object], prefix: str, metadata: Mapping[str, object]
) -> None:
    """Leaves the frozen model out of what is saved."""
    for name in [name for name in tensors if not name.startswith(f"{prefix}prompt.")]:
        if name.startswith(prefix):
            del tensors[name]


@final
class PromptTunedEncoderDecoder(PromptTuned):
    """An encoder-decoder that reads a prompt before its source. A `NeuralDecodable`."""

    def encode(self, source: Tensor) -> State:
        """source `(inputs, steps)`, padded anywhere -> the first state, one row per input."""
        prompt = self.prompt_ids.expand(len(source), -1)
        return self.base.encode(torch.cat([prompt, source], dim=1))

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens."""
        hidden, state = self.base.read(tokens, state)
        return hidden, state

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = self.base(tokens, state)
        return logits, state


class PromptedState(NamedTuple):
    """The state of a language model that reads a prompt."""

    inner: State
    """Of the frozen model."""
    begun: Tensor | None
    """`(rows,)`: whether a row has read anything; None if all have."""


class _Insertion(NamedTuple):
    """Tokens with the prompt inserted."""

    ids: Tensor
    """`(rows, more steps)`"""
    ends: Tensor | None
    """`(rows, steps)`: for each token where it stands, or the end of the prompt that follows it. None if
    there is nothing to insert."""
    begun: Tensor | None
    """Of the rows after these tokens."""


@final
class PromptTunedLanguageModel(PromptTuned):
    """A language model that reads a prompt at the beginning of each document. A `NeuralDecodable`."""

    def read(
        self, tokens: Tensor, state: PromptedState | None = None
    ) -> tuple[Tensor, PromptedState]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens."""
        inserted = self._insert(tokens, state)
        hidden, inner = self.base.read(inserted.ids, state and state.inner)
        if inserted.ends is not None:
            hidden = hidden.gather(1, inserted.ends[..., None].expand(-1, -1, hidden.shape[-1]))
        return hidden, PromptedState(inner, inserted.begun)

    def read_source(self, source: Tensor) -> PromptedState:
        """source `(inputs, steps)`, padded anywhere -> the state after it."""
        inserted = self._insert(source, None)
        return PromptedState(read_source(self.base, inserted.ids), inserted.begun)

    def forward(
        self, tokens: Tensor, state: PromptedState | None = None
    ) -> tuple[Tensor, PromptedState]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def _insert(self, tokens: Tensor, state: PromptedState | None) -> _Insertion:
        """tokens `(rows, steps)` with the prompt where a document begins."""
        c, length = self.config, self.length
        is_token, is_bos = tokens != c.pad_id, tokens == c.bos_id
        begun = is_token.new_zeros(len(tokens)) if state is None else state.begun
        begins = is_bos if c.documents == "separate" else torch.zeros_like(is_bos)
        if begun is not None:
            is_first = is_token & (is_token.cumsum(1) == 1)
            begins = begins | (is_first & ~begun[:, None])
            begun = begun | is_token.any(1)
            begun = None if bool(begun.all()) else begun
        if not length or not bool(begins.any()):
            return _Insertion(tokens, None, begun)
        ends = (1 + length * begins).cumsum(1) - 1
        ids = tokens.new_full((len(tokens), int(ends.max()) + 1), c.pad_id)
        ids.scatter_(1, ends - length * (begins & is_bos), tokens)
        rows, steps = begins.nonzero(as_tuple=True)
        first = ends[rows, steps] - length + is_bos[rows, steps].long()
        ids[rows[:, None], first[:, None] + self.prompt_ids - self.prompt_ids[0]] = self.prompt_ids
        return _Insertion(ids, ends, begun)


def prompt_tuned(base: nn.Module, length: int) -> PromptTuned:
    """A model that reads `length` vectors before its input, random ones, and whose own weights are frozen."""
    assert isinstance(base, NeuralDecodable)
    kind = (
        PromptTunedEncoderDecoder if isinstance(base, EncoderDecoder) else PromptTunedLanguageModel
    )
    return kind(base, length)
