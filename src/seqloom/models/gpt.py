"""The generative pre-trained Transformer: a stack of causal blocks that predicts the next token.

    GPT    Radford, Narasimhan, Salimans and Sutskever 2018
           h_0 = U W_e + W_p,  h_l = block(h_{l-1}),  P(u) = softmax(h_n W_eᵀ)
    GPT-2  Radford, Wu, Child, Luan, Amodei and Sutskever 2019
           The norm moves to the input of each sub-block, and one more comes after the last block. Weights
           that write to the residual stream are initialised smaller, by √(2 layers).

A token sees itself and the earlier tokens of its document. `<pad>` is a step that does not happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.layers.outputs.kinds import OutputKind, OutputOptions, make_output
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import AttentionInputs, Stack
from seqloom.layers.transformer.key_value_cache import (
    AttentionMask,
    KeyValueCache,
    MaskAndPositions,
    embed_tokens,
    extend_cache,
    ids_of_whole_rows,
    mask_and_positions,
)
from seqloom.layers.transformer.native_stack import why_not
from seqloom.layers.transformer.native_step import read_token, run_stack
from seqloom.layers.transformer.positions import LearnedPositions, rotary_angles, sinusoids
from seqloom.layers.transformer.token_embedding import TokenEmbedding
from seqloom.models.compiled import CompiledModel
from seqloom.models.config_checks import (
    ActivationName,
    Epsilon,
    Fraction,
    Size,
    UsedInTasks,
    UsedWith,
    field_problems,
    not_divisible,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import EncodedBatch, EncoderTraits, Loss

STD = 0.02
"""Of the weights at the start (Radford et al. 2018)."""


@final
@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The sizes and choices of a GPT."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    context: Size = 256
    """The most tokens that the model looks at in training; with learned positions no text can be longer."""
    width: Size = 256
    """Width of a hidden state."""
    layers: Size = 4
    """Stacked blocks."""
    heads: Size = 4
    """Heads of attention; they share the width."""
    feed_forward_width: Size | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    activation: ActivationName = "gelu"
    """gelu (exact), gelu-tanh (as the published GPTs approximate it; slower on a CPU), relu, silu or swish
    (with a trained β)."""
    norm: Literal["before", "after"] = "before"
    """Layer normalisation before each sub-block (GPT-2), or after it (GPT)."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """How positions are encoded; only learned positions limit the length of a text."""
    dropout: Fraction = 0.1
    """Share of what each sub-block adds that is dropped in training."""
    embedding_dropout: Fraction = 0.1
    """Share of the embedded tokens' features dropped in training."""
    attention_dropout: Fraction = 0.0
    """Share of the weights of attention dropped in training (slow on a CPU)."""
    tie_output: bool = True
    """Whether the output's weight is the token embedding."""
    output: OutputKind = "full"
    """full, adaptive (rare words in two steps), importance or blackout (trained on the target and a sample of
    the others)."""
    output_samples: Annotated[Size, UsedWith(output=("importance", "blackout"))] = 4096
    """Words that importance and blackout sample for each batch."""
    output_alpha: Annotated[float | None, UsedWith(output=("importance", "blackout"))] = None
    """These words are drawn in proportion to count^alpha; none: 1 for importance, 0.4 for blackout."""
    output_cutoffs: Annotated[tuple[int, ...], UsedWith(output="adaptive")] = ()
    """Ranks by frequency where the clusters of an adaptive output begin; none: at a sixteenth and a quarter
    of the vocabulary."""
    biases: bool = True
    """Whether linear layers and norms have a bias."""
    bidirectional_source: Annotated[bool, UsedInTasks("translation", "denoising")] = False
    """For pairs of texts: whether each token of the source sees all of the source (prefix language model:
    Raffel et al. 2020, section 3.2.1)."""
    documents: Annotated[Literal["separate", "joined"], UsedInTasks("text-generation")] = "separate"
    """separate: a token sees nothing before the last <s>; joined: an <s> after the first is a token like any
    other."""
    norm_epsilon: Epsilon = 1e-5
    """What a norm adds to the variance."""
    pad_id: int = 0
    """The id of <pad>; -1 where the vocabulary has none, and then -1 marks padding."""
    bos_id: int = 1
    """The id of <s>, which begins a document."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that can never be a target, such as <pad>: the output gives them no probability."""

    def __post_init__(self) -> None:
        problems = field_problems(self) + not_divisible("width", self.width, "heads", self.heads)
        if self.output == "adaptive" and self.tie_output:
            problems.append(
                "model.tie_output must be false with model.output=adaptive, whose words have states of"
                " several widths"
            )
        if (
            self.positions == "rotary"
            and self.heads >= 1
            and not self.width % self.heads
            and self.width // self.heads % 2
        ):
            problems.append(
                "model.positions=rotary needs heads of an even width, but model.width / model.heads is"
                f" {self.width // self.heads}"
            )
        if self.pad_id == self.bos_id:
            problems.append(
                f"model.pad_id and model.bos_id must differ, but both are {self.pad_id}"
            )
        raise_problems(problems)

    @property
    def traits(self) -> EncoderTraits:
        # Radford et al. 2018, equation 3: p = softmax(h W), without a bias
        return EncoderTraits(self.width, "last", pair="joined", label_bias=False)

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


SIZES, ABOUT = named_sizes("gpt")


@final
class GPT(CompiledModel):
    """Embedding and positions, blocks, output. A `NeuralDecodable`."""

    carries = False
    """Trained on shuffled windows, each read from the start."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.context = c.context
        """The most tokens of a document that it is trained to look at."""
        self.embedding = nn.Embedding(c.vocabulary_size, c.width)
        self.positions = LearnedPositions(c.context, c.width) if c.positions == "learned" else None
        self.dropout = nn.Dropout(c.embedding_dropout)
        self.stack = Stack(c.block, c.layers)
        tied = self.embedding.weight if c.tie_output else None
        self.output = make_output(
            OutputOptions(
                c.output, c.output_samples, c.output_alpha, c.output_cutoffs, c.suppressed_ids
            ),
            c.width,
            c.vocabulary_size,
            tied=tied,
            bias=False,
        )
        self._initialise()

    def _initialise(self) -> None:
        """N(0, 0.02); what is added to the residual stream starts smaller by √(2 layers), once for each
        addition to it."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                added = name.endswith(("attention.output.weight", "feed_forward.output.weight"))
                std = STD / math.sqrt(2 * self.config.layers) if added else STD
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def why_no_step(self) -> str:
        return why_not(self.stack)

    def why_not_stored(self) -> str:
        return "" if self.config.output == "full" else "only model.output=full can be stored so"

    def read(
        self, tokens: Tensor, state: KeyValueCache | None = None
    ) -> tuple[Tensor, KeyValueCache | None]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens.

        Raises UsageError if a text is longer than learned positions reach.
        """
        if not tokens.shape[1]:
            return self.embedding(tokens), state
        if state is not None and self.config.positions != "rotary":
            found = read_token(self.stack, self._token_embedding, tokens, state)
            if found is not None:
                return found
        state = state and state.whole()
        call = self._mask_and_positions(tokens, state)
        hidden, layers = run_stack(self.stack, *self._embed(tokens, call), state and state.layers)
        return hidden, extend_cache(state, layers, tokens, call)

    def read_source(self, source: Tensor) -> KeyValueCache | None:
        """source `(inputs, steps)`, padded anywhere -> the state after it. Its tokens see earlier ones, or
        all of it."""
        call = self._mask_and_positions(source, None)
        if self.config.bidirectional_source:
            is_token = source != self.config.pad_id
            everything: AttentionMask = is_token[:, None, None] if call.ragged else "all"
            call = call._replace(mask=everything)
        _, layers = self.stack(*self._embed(source, call), None)
        known = ids_of_whole_rows(source) if self.config.bidirectional_source else source
        return extend_cache(None, layers, known, call)

    def forward(
        self, tokens: Tensor, state: KeyValueCache | None = None
    ) -> tuple[Tensor, KeyValueCache | None]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`."""
        hidden, _ = self.read(batch.tokens.where(batch.tokens >= 0, self.config.pad_id), None)
        return hidden

    def next_token_loss(self, hidden: Tensor, targets: Tensor) -> Loss:
        """hidden `(steps, width)`, targets `(steps,)` with IGNORE."""
        return self.output.loss(hidden, targets)

    def freeze_output(self) -> None:
        """Stops training the output layer, unless its weight is the embedding."""
        if not self.config.tie_output:
            self.output.requires_grad_(False)

    def _token_embedding(self) -> TokenEmbedding:
        """Where positions are not rotary."""
        c = self.config
        start = c.bos_id if c.documents == "separate" else c.pad_id
        embedding = TokenEmbedding(self.embedding.weight, c.pad_id, start)
        if self.positions is not None:
            return embedding.with_learned(self.positions)
        if c.positions == "sinusoidal":
            added = partial(sinusoids, width=c.width, dtype=torch.float32)
            return embedding._replace(scale=math.sqrt(c.width), positions=added)
        return embedding

    def _mask_and_positions(self, tokens: Tensor, state: KeyValueCache | None) -> MaskAndPositions:
        c = self.config
        document_start = c.bos_id if c.documents == "separate" else None
        return mask_and_positions(tokens, state, c.pad_id, document_start)

    def _embed(self, tokens: Tensor, call: MaskAndPositions) -> tuple[Tensor, AttentionInputs]:
        """`h_0`, and what each token sees."""
        c = self.config
        x = embed_tokens(self.embedding, tokens, c.pad_id)
        rotary = None
        if self.positions is not None:
            x = x + self.positions(call.positions, call.past_length + tokens.shape[1])
        elif c.positions == "sinusoidal":
            # embeddings are scaled up to the sinusoids (Vaswani et al. 2017, 3.4)
            x = x * math.sqrt(c.width) + sinusoids(call.positions, c.width, x.dtype)
        elif c.positions == "rotary":
            rotary = rotary_angles(call.positions, c.width // c.heads, x.dtype)
        return self.dropout(x), AttentionInputs(call.mask, call.past_length, rotary)
