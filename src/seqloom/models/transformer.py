"""The Transformer of Vaswani et al. 2017: an encoder of the source, and a decoder that attends to it.

    encoder  x_0 = E[source] √d + PE,  x_l = FF(A(x_{l-1}))        every token sees every other
    decoder  y_0 = E[target] √d + PE,  y_l = FF(C(A(y_{l-1}), x_n))
                                                                   a token sees earlier ones, and the source
    output   p(y_t | y_<t, x) = softmax(W y_n)

Marian (Junczys-Dowmunt et al. 2018) has another order of the sinusoids; BART (Lewis et al. 2020) has learned
positions and a norm after the embedding. All that the encoder does is make the decoder's first state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.transformer.block_config import BlockConfig, make_norm
from seqloom.layers.transformer.blocks import AttentionInputs, Stack, padding_and_positions
from seqloom.layers.transformer.cross_attention import CrossAttentionInputs, DecoderState
from seqloom.layers.transformer.key_value_cache import (
    MaskAndPositions,
    embed_tokens,
    extend_cache,
    mask_and_positions,
)
from seqloom.layers.transformer.native_encoder import encode
from seqloom.layers.transformer.native_stack import why_not
from seqloom.layers.transformer.native_step import read_target, run_stack
from seqloom.layers.transformer.positions import LearnedPositions, sinusoids
from seqloom.layers.transformer.token_embedding import TokenEmbedding
from seqloom.models.compiled import CompiledModel
from seqloom.models.config_checks import (
    ActivationName,
    Count,
    Epsilon,
    Fraction,
    Size,
    UsedWith,
    field_problems,
    not_divisible,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import Shared


@final
@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and choices of an encoder-decoder."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary, which source and target share."""
    width: Size = 256
    """Width of a hidden state."""
    encoder_layers: Size = 3
    """Stacked blocks of the encoder."""
    decoder_layers: Size = 3
    """Stacked blocks of the decoder."""
    heads: Size = 4
    """Heads of attention; they share the width."""
    decoder_heads: Size | None = None
    """Heads of the decoder, where they differ."""
    feed_forward_width: Size | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    decoder_feed_forward_width: Size | None = None
    """The same for the decoder, where it differs."""
    activation: ActivationName = "relu"
    """relu, gelu (exact), gelu-tanh, silu or swish (with a trained β)."""
    norm: Literal["before", "after"] = "before"
    """Layer normalisation before each sub-block, which trains more stably, or after it (the paper)."""
    positions: Literal["sinusoidal", "sinusoidal-halves", "learned"] = "sinusoidal"
    """How positions are encoded; halves: all sines before all cosines; only learned positions limit the
    length of a text."""
    context: Annotated[Size, UsedWith(positions="learned")] = 1024
    """The most tokens of a source or target with learned positions."""
    position_offset: Annotated[Count, UsedWith(positions="learned")] = 0
    """Unused rows at the start of the table of learned positions (BART: 2)."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the root of the width."""
    embedding_norm: bool = False
    """Whether embedded tokens are normalised (BART)."""
    share_embeddings: bool = True
    """Whether source and target tokens have the same embedding."""
    tie_output: bool = True
    """Whether the output's weight is the target embedding."""
    output_bias: bool = False
    """Whether the output has a bias."""
    biases: bool = True
    """Whether linear layers and norms have a bias."""
    norm_epsilon: Epsilon = 1e-5
    """What a norm adds to the variance."""
    dropout: Fraction = 0.1
    """Share of the embedded tokens' features, and of what each sub-block adds, that is dropped in training.
    """
    attention_dropout: Fraction = 0.0
    """Share of the weights of attention dropped in training (slow on a CPU)."""
    hidden_dropout: Fraction = 0.0
    """Share of the feed-forward layers' hidden features dropped in training."""
    pad_id: int = 0
    """The id of <pad>; -1 where the vocabulary has none, and then -1 marks padding."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that can never be a target, such as <pad>: the output gives them no probability."""

    def __post_init__(self) -> None:
        problems = field_problems(self) + not_divisible("width", self.width, "heads", self.heads)
        raise_problems(
            problems + not_divisible("width", self.width, "decoder_heads", self.decoder_heads)
        )

    @property
    def longest_text(self) -> int | None:
        """The most tokens of a source or target; None if there is no limit."""
        return self.context if self.positions == "learned" else None

    def block(self, *, decoder: bool) -> BlockConfig:
        """A block of the encoder, or one of the decoder, which looks at the encoder too."""
        if not decoder:
            return BlockConfig.of(self)
        return BlockConfig.of(
            self,
            heads=self.decoder_heads or self.heads,
            feed_forward_width=self.decoder_feed_forward_width or self.feed_forward_width,
            cross_attention=True,
        )


SIZES, ABOUT = named_sizes("transformer")


@final
class Transformer(CompiledModel):
    """Embedding, encoder, decoder, output. A `NeuralDecodable`; `encode` makes its first state."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary_size, c.width)
        self.source_embedding = (
            self.embedding if c.share_embeddings else nn.Embedding(c.vocabulary_size, c.width)
        )
        learned = c.positions == "learned"
        self.source_positions = (
            LearnedPositions(c.context, c.width, c.position_offset) if learned else None
        )
        self.positions = (
            LearnedPositions(c.context, c.width, c.position_offset) if learned else None
        )
        block = c.block(decoder=False)
        self.source_norm = make_norm(block) if c.embedding_norm else nn.Identity()
        self.norm = make_norm(block) if c.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = Stack(c.block(decoder=False), c.encoder_layers)
        self.decoder = Stack(c.block(decoder=True), c.decoder_layers)
        tied = self.embedding.weight if c.tie_output else None
        self.output = FullOutput(
            c.width,
            c.vocabulary_size,
            tied,
            bias=c.output_bias,
            suppressed=c.suppressed_ids,
        )
        self._initialise()

    @property
    def context(self) -> int | None:
        """The most tokens of a source or target; None if there is no limit."""
        return self.config.longest_text

    def _initialise(self) -> None:
        """Embeddings N(0, 1/d), all else as Glorot and Bengio 2010 (Vaswani's code), query, key and value
        each by itself."""
        for name, parameter in self.named_parameters():
            if "embedding" in name:
                nn.init.normal_(parameter, std=self.config.width**-0.5)
            elif name.endswith("key_value.weight"):  # of several maps in one product
                for part in parameter.chunk(len(parameter) // self.config.width):
                    nn.init.xavier_uniform_(part)
            elif parameter.dim() > 1 and not name.startswith("output."):
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def why_no_step(self) -> str:
        return why_not(self.decoder)

    def encode(self, source: Tensor) -> DecoderState:
        """source `(inputs, steps)`, padded anywhere -> the state before the first token, one row per input.

        Raises UsageError if a source is longer than learned positions reach.
        """
        mask, positions = padding_and_positions(source != self.config.pad_id)
        x = embed_tokens(self.source_embedding, source, self.config.pad_id)
        x = self._add_positions(x, positions, source.shape[1], self.source_positions)
        memory = encode(self.encoder, self.dropout(self.source_norm(x)), mask)
        return DecoderState.first(self.decoder.keys_values(memory), mask)

    def read(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens.

        Raises UsageError if a text is longer than learned positions reach.
        """
        if not tokens.shape[1]:
            return self.embedding(tokens), state
        found = read_target(self.decoder, self._token_embedding, tokens, state)
        if found is not None:
            return found
        past, cross = state.past, CrossAttentionInputs.of(state)
        call = mask_and_positions(tokens, past, self.config.pad_id)
        hidden, layers = run_stack(
            self.decoder, *self._embed(tokens, call), past and past.layers, cross
        )
        past = extend_cache(past, layers, tokens, call)
        return hidden, state._replace(past=past, groups=Shared(cross.groups))

    def forward(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def _token_embedding(self) -> TokenEmbedding:
        c = self.config
        embedding = TokenEmbedding(
            self.embedding.weight,
            c.pad_id,
            c.pad_id,
            scale=math.sqrt(c.width) if c.scale_embeddings else 1.0,
            norm=self.norm if c.embedding_norm else None,
        )
        if self.positions is not None:
            return embedding.with_learned(self.positions)
        halves = c.positions == "sinusoidal-halves"
        added = partial(sinusoids, width=c.width, dtype=torch.float32, halves=halves)
        return embedding._replace(positions=added)

    def _embed(self, tokens: Tensor, call: MaskAndPositions) -> tuple[Tensor, AttentionInputs]:
        """`y_0`, and what each token sees."""
        x = embed_tokens(self.embedding, tokens, self.config.pad_id)
        x = self._add_positions(
            x, call.positions, call.past_length + tokens.shape[1], self.positions
        )
        return self.dropout(self.norm(x)), AttentionInputs(call.mask, call.past_length)

    def _add_positions(
        self, x: Tensor, positions: Tensor, bound: int, learned: LearnedPositions | None
    ) -> Tensor:
        """Embedded tokens `(rows, steps, width)` with their positions, all below `bound`."""
        c = self.config
        if c.scale_embeddings:
            x = x * math.sqrt(c.width)
        if learned is None:
            return x + sinusoids(
                positions, c.width, x.dtype, halves=c.positions == "sinusoidal-halves"
            )
        vectors: Tensor = learned(positions, bound)
        return x + vectors
