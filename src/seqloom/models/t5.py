"""T5: every task text to text, by an encoder-decoder whose positions are a bias on the scores.

    v1.0  Raffel et al. 2020
          Norms come before, RMS norms without bias; no linear map has a bias. Scores are q · k without 1/√d,
          plus a number for each head and distance, which all layers share. The output is tied, and reads
          states times d^-0.5.
    v1.1  Shazeer 2020
          The feed-forward layer is gated (GELU); the output is neither tied nor scaled.

Each short distance has a bucket of its own, up to half of the buckets. Later buckets are wider and wider, up
to `furthest`. The encoder keeps half of all buckets for keys after the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.errors import UsageError
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import AttentionInputs, Stack, padding_and_positions
from seqloom.layers.transformer.cross_attention import CrossAttentionInputs, DecoderState
from seqloom.layers.transformer.key_value_cache import (
    KeyValueCache,
    MaskAndPositions,
    embed_tokens,
    extend_cache,
    mask_and_positions,
)
from seqloom.layers.transformer.native_encoder import encode
from seqloom.layers.transformer.native_stack import why_not
from seqloom.layers.transformer.native_step import read_target, run_stack
from seqloom.layers.transformer.positions import RelativeBias
from seqloom.layers.transformer.token_embedding import TokenEmbedding
from seqloom.models.compiled import CompiledModel
from seqloom.models.config_checks import (
    ActivationName,
    Count,
    Epsilon,
    Fraction,
    Size,
    UsedWith,
    above,
    field_problems,
    not_divisible,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits, Shared


@final
@dataclass(frozen=True, kw_only=True)
class T5Config:
    """The sizes and choices of a T5."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary, which source and target share."""
    width: Size = 256
    """Width of a hidden state."""
    encoder_layers: Size = 3
    """Stacked blocks of the encoder."""
    decoder_layers: Count = 3
    """Stacked blocks of the decoder; 0: an encoder alone."""
    heads: Size = 4
    """Heads of attention."""
    head_width: Size | None = None
    """Width of a head; by default the heads share the width."""
    feed_forward_width: Size | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    activation: ActivationName = "relu"
    """relu (v1.0), gelu-tanh (v1.1), gelu, silu or swish (with a trained β)."""
    gated: bool = False
    """Whether the feed-forward layer has a gate (v1.1)."""
    buckets: int = 32
    """Buckets of distances; the encoder has half of them for each direction."""
    furthest: int = 128
    """Distances from this one on share the last bucket."""
    tie_output: Annotated[bool, UsedWith(decoder_layers=above(0))] = True
    """Whether the output's weight is the embedding (v1.0)."""
    scale_output: Annotated[bool, UsedWith(decoder_layers=above(0))] = True
    """Whether states are multiplied by width^-0.5 before the output (v1.0)."""
    norm_epsilon: Epsilon = 1e-6
    """What a norm adds to the mean square."""
    dropout: Fraction = 0.1
    """Share dropped in training: of embedded tokens, of what each sub-block adds, of the hidden features of
    feed-forward layers, and of the last states."""
    attention_dropout: Fraction = 0.0
    """Share of the weights of attention dropped in training (the paper: as dropout; slow on a CPU)."""
    pad_id: int = 0
    """The id of <pad>; -1 where the decoder begins with <pad>, and then -1 marks padding."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that can never be a target, such as <pad>: the output gives them no probability."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if self.head_width is None:
            problems += not_divisible("width", self.width, "heads", self.heads)
        if self.buckets < 4 or self.buckets % 4:
            problems.append(f"model.buckets must be a multiple of 4, but is {self.buckets}")
        elif self.furthest <= self.buckets // 2:
            problems.append(
                f"model.furthest must be above half of model.buckets, but is {self.furthest}"
            )
        raise_problems(problems)

    @property
    def traits(self) -> EncoderTraits:
        return EncoderTraits(self.width, "mean", pair="joined")

    def block(self, *, decoder: bool) -> BlockConfig:
        """A block of the encoder, or one of the decoder, which looks at the encoder too."""
        return BlockConfig.of(
            self,
            biases=False,
            hidden_dropout=self.dropout,
            norm_kind="rms",
            scaled=False,
            cross_attention=decoder,
        )


SIZES, ABOUT = named_sizes("t5")


@final
class T5(CompiledModel):
    """Embedding, encoder, decoder, output. A `NeuralDecodable`; `encode` makes its first state."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary_size, c.width)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder_bias = RelativeBias(c.heads, c.buckets, c.furthest, bidirectional=True)
        self.encoder = Stack(c.block(decoder=False), c.encoder_layers)
        if c.decoder_layers:
            self.decoder_bias = RelativeBias(c.heads, c.buckets, c.furthest, bidirectional=False)
            self.decoder = Stack(c.block(decoder=True), c.decoder_layers)
            tied = self.embedding.weight if c.tie_output else None
            self.output = FullOutput(
                c.width, c.vocabulary_size, tied, bias=False, suppressed=c.suppressed_ids
            )
        self._initialise()

    def _initialise(self) -> None:
        """As Mesh TensorFlow: N(0, 1/inputs), queries smaller by √head_width in place of the scores;
        embeddings N(0, 1).

        Tied, the output would begin with logits of N(0, 1) only because of `scale_output`.
        """
        c = self.config
        for name, parameter in self.named_parameters():
            if name.endswith("embedding.weight"):
                nn.init.normal_(parameter)
            elif name.endswith("_bias.table"):
                nn.init.normal_(parameter, std=c.width**-0.5)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
                if name.endswith(("query_key_value.weight", "cross_attention.query.weight")):
                    inner = c.heads * (c.head_width or c.width // c.heads)
                    with torch.no_grad():
                        parameter[:inner] /= math.sqrt(inner // c.heads)

    def why_no_step(self) -> str:
        return why_not(self.decoder)

    def encode(self, source: Tensor) -> DecoderState:
        """source `(inputs, steps)`, padded anywhere -> the state before the first token, one row per input.

        Raises UsageError if there is no decoder.
        """
        if not self.config.decoder_layers:
            raise UsageError(
                "model.decoder_layers must be at least 1 of a model that writes, but is 0: this one is an"
                " encoder alone"
            )
        memory = self.encoded(source)
        layers = self.decoder.keys_values(memory)
        return DecoderState.first(layers, source != self.config.pad_id)

    def encoded(self, source: Tensor) -> Tensor:
        """source `(inputs, steps)`, padded anywhere -> `(inputs, steps, width)`: what the encoder makes of
        it."""
        mask, positions = padding_and_positions(source != self.config.pad_id)
        x = self.dropout(embed_tokens(self.embedding, source, self.config.pad_id))
        memory: Tensor = self.dropout(
            encode(self.encoder, x, mask, self.encoder_bias(positions, positions))
        )
        return memory

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`."""
        return self.encoded(batch.tokens.where(batch.tokens >= 0, self.config.pad_id))

    def read(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens."""
        if not tokens.shape[1]:
            return self.embedding(tokens), state
        found = read_target(self.decoder, self._token_embedding, tokens, state)
        hidden, state = self._read(tokens, state) if found is None else found
        if self.config.scale_output:
            hidden = hidden * self.config.width**-0.5
        return hidden, state

    def _read(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """What the decoder's stack makes of these tokens, and the state after them."""
        past, cross = state.past, CrossAttentionInputs.of(state)
        call = mask_and_positions(tokens, past, self.config.pad_id)
        x, inputs = self._embed(tokens, past, call)
        hidden, layers = run_stack(self.decoder, x, inputs, past and past.layers, cross)
        past = extend_cache(past, layers, tokens, call)
        return self.dropout(hidden), state._replace(past=past, groups=Shared(cross.groups))

    def forward(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def _token_embedding(self) -> TokenEmbedding:
        pad_id = self.config.pad_id

        def bias(positions: Tensor) -> Tensor:
            found: Tensor = self.decoder_bias(positions[-1:], positions)
            return found[0, :, 0]

        return TokenEmbedding(self.embedding.weight, pad_id, pad_id, bias=bias)

    def _embed(
        self, tokens: Tensor, past: KeyValueCache | None, call: MaskAndPositions
    ) -> tuple[Tensor, AttentionInputs]:
        """`y_0`; and what each token sees, with the bias of its distance."""
        pad_id = self.config.pad_id
        key_positions = torch.arange(call.past_length + tokens.shape[1], device=tokens.device)
        if call.ragged is not None:
            key_positions = call.ragged.visible.cumsum(1) - 1
        bias = self.decoder_bias(call.positions, key_positions)
        if isinstance(call.mask, Tensor):
            bias = bias.masked_fill(~call.mask, -math.inf)
        elif call.mask == "causal":
            bias = bias + torch.full(
                bias.shape[2:], -math.inf, dtype=bias.dtype, device=bias.device
            ).triu(1)
        x = self.dropout(embed_tokens(self.embedding, tokens, pad_id))
        return x, AttentionInputs(bias, call.past_length)
