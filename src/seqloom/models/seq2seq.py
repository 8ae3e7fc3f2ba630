"""The recurrent encoder-decoder: with one context vector, or with attention.

    Sutskever, Vinyals and Le 2014  the encoder's final state is the decoder's first one (source reversed)
    Cho et al. 2014                 the same vector is the first state, and an input at every step
    Bahdanau, Cho and Bengio 2015   the decoder attends to all states of the encoder, at each step again:
                                    e_i = v · tanh(W s_{t-1} + U h_i),  a = softmax(e),  c_t = Σ a_i h_i,
                                    s_t = f(s_{t-1}, y_{t-1}, c_t),  p(y_t) = softmax g(y_{t-1}, s_t, c_t)

A model without attention is the special case of a memory that holds one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from seqloom.config import STRICT
from seqloom.layers.attention import SCORES, AttentionMemory, AttentionScores, weighted_mean
from seqloom.layers.joined_inputs import joined_sources, padded
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.layer import StepMask
from seqloom.layers.recurrent.native_attention import ContextParts, ReadMemory
from seqloom.layers.recurrent.native_step import RecurrentParts, read_steps, read_token
from seqloom.layers.recurrent.stack import (
    EMBEDDING_STD,
    RecurrentStack,
    RecurrentStackConfig,
    Stepper,
    layer_state,
    stack_states,
)
from seqloom.layers.transformer.key_value_cache import embed_tokens
from seqloom.models.compiled import CompiledRecurrentModel
from seqloom.models.config_checks import (
    ZERO,
    CellName,
    Count,
    Fraction,
    Size,
    UsedWith,
    above,
    field_problems,
    one_of,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import Shared, join_rows
from seqloom.shapes import reverse_each


@final
@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The sizes and choices of a recurrent encoder-decoder."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary, which source and target share."""
    cell: CellName = "gru"
    """elman, elman-relu, elman-sigmoid, lstm, gru (as published), gru-torch, mut1, mut2 or mut3."""
    embedding_width: Size = 256
    """Width of an embedded token."""
    encoder_width: Size = 256
    """Width of the encoder's state, in each direction."""
    width: Size = 256
    """Width of the decoder's state."""
    encoder_layers: Size = 1
    """Stacked encoder layers."""
    decoder_layers: Size = 1
    """Stacked decoder layers."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions."""
    projection: int | None = None
    """The width of h where an lstm projects it (Sak et al. 2014)."""
    forget_bias: Annotated[float, UsedWith(cell="lstm", chrono_steps=ZERO)] = 1.0
    """What the bias of an lstm's forget gate starts from; 1 remembers at first (Gers et al. 2000)."""
    chrono_steps: Annotated[Count, UsedWith(cell="lstm")] = 0
    """The longest dependency in steps: an lstm's gates then start so that its units remember from 1 to as
    many (Tallec and Ollivier 2018), in place of forget_bias; 0: they do not."""
    normalisation: Literal["none", "layer", "batch"] = "none"
    """Normalisation of the recurrent layers' sums: layer (Ba et al. 2016), or batch (Cooijmans et al. 2017;
    in the encoder only)."""
    connection: Literal["none", "residual", "highway"] = "none"
    """What a stacked layer adds to its input: x + h, or a highway g ⊙ h + (1 - g) ⊙ x."""
    reverse_source: bool = False
    """Whether the encoder reads the source's tokens in reverse order (padding stays in place)."""
    attention: Annotated[
        Literal["additive", "dot", "bilinear", "none"], one_of((*SCORES, "none"))
    ] = "additive"
    """How the decoder attends to the source; none: one context vector."""
    attention_width: Annotated[Size, UsedWith(attention="additive")] = 256
    """Width of additive attention's hidden layer."""
    attend_from: Annotated[
        Literal["previous", "current", "luong"], UsedWith(attention=("additive", "dot", "bilinear"))
    ] = "previous"
    """The query: s_{t-1} (Bahdanau; the context enters s_t) or s_t (luong, another name of current; it enters
    the output only)."""
    context: Annotated[Literal["initial", "every_step", "both"], UsedWith(attention="none")] = (
        "both"
    )
    """Without attention: where the context vector enters (Sutskever: initial; Cho: both)."""
    bridge: Literal["final", "backward"] = "final"
    """What the decoder's first state is computed from: all final states, or ←h_1 only (Bahdanau)."""
    readout_width: Size = 256
    """Width of the deep output before the vocabulary."""
    readout: Literal["maxout", "linear", "none"] = "maxout"
    """Deep output: the larger of each pair (Bahdanau's appendix), a linear map, or none: s_t itself."""
    share_embeddings: bool = True
    """Whether source and target tokens have the same embedding."""
    tie_output: bool = False
    """Whether the output's weight is the target embedding (then readout_width must equal embedding_width)."""
    dropout: Fraction = 0.2
    """Share of embedded tokens' and hidden features dropped in training."""
    variational_dropout: Annotated[bool, UsedWith(dropout=above(0))] = False
    """Whether dropout between layers drops the same features at all steps."""
    state_dropout: Fraction = 0.0
    """Share of h dropped on its way into the next step, the same at all steps (Gal and Ghahramani 2016)."""
    pad_id: int = 0
    """The id of <pad>."""
    suppressed_ids: tuple[int, ...] = ()
    """Ids that can never be a target, such as <pad>: the output gives them no probability."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if self.projection is not None and (self.cell != "lstm" or self.projection < 1):
            problems.append(
                f"model.projection needs model.cell=lstm and at least 1, but is {self.projection} with"
                f" {self.cell}"
            )
        if self.attention == "dot" and self.output_width != self.memory_width:
            problems.append(
                "dot attention needs model.width equal to the encoder's output width, but"
                f" {self.output_width} is not {self.memory_width}"
            )
        if self.tie_output and self.readout_width != self.embedding_width:
            problems.append(
                f"model.tie_output needs readout_width = embedding_width, but {self.readout_width} is not"
                f" {self.embedding_width}"
            )
        if self.readout == "none" and self.readout_width != self.output_width:
            problems.append(
                f"model.readout=none needs model.readout_width = model.width, but {self.readout_width} is not"
                f" {self.output_width}"
            )
        if self.readout == "none" and self.attention != "none" and self.attends_from_current:
            problems.append(
                f"model.attend_from={self.attend_from} needs a readout: the context enters nowhere else"
            )
        if self.bridge == "backward" and not self.bidirectional:
            problems.append("model.bridge can be 'backward' only where model.bidirectional is true")
        if self.bridge == "backward" and self.attention == "none" and self.context == "initial":
            problems.append(
                "model.bridge=backward leaves the forward direction unused where the context enters the first"
                " state only"
            )
        raise_problems(problems)

    @property
    def attends_from_current(self) -> bool:
        """Whether the query is s_t."""
        return self.attend_from != "previous"

    @property
    def memory_width(self) -> int:
        return (self.projection or self.encoder_width) * (2 if self.bidirectional else 1)

    @property
    def output_width(self) -> int:
        """Of the decoder's h."""
        return self.projection or self.width

    def recurrent(
        self, input_width: int, width: int, layers: int, *, bidirectional: bool
    ) -> RecurrentStack:
        """The encoder, or the decoder."""
        config = RecurrentStackConfig.of(
            self,
            input_width,
            width,
            layers=layers,
            bidirectional=bidirectional,
            variational=self.variational_dropout,
        )
        return RecurrentStack(config)


SIZES, ABOUT = named_sizes("seq2seq")


class Seq2SeqState(NamedTuple):
    """A `JoinableState`."""

    hidden: CellState
    """The decoder's state, h (and c), each `(rows, decoder_layers, width)`."""
    source: Tensor
    """`(rows,)`: the input that each row reads."""
    memory: Shared[AttentionMemory]

    def joined(self, others: Sequence[Seq2SeqState]) -> Seq2SeqState:
        """These rows and those of the others. The memory of inputs that no row reads is dropped."""
        states = [self, *others]
        memories, sources = [], []
        for state in states:
            used, source = state.source.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            memories.append([part[used] for part in state.memory.value[:-1]])
            sources.append(source)
        longest = max(values.shape[1] for values, *_ in memories)
        parts = []
        for part_of_each in zip(*memories, strict=True):
            parts.append(torch.cat([padded(part, longest, 1) for part in part_of_each]))
        inputs = torch.arange(len(parts[0]), device=self.source.device)
        values, keys, mask = parts
        memory = AttentionMemory(values, keys, mask, inputs)
        hidden = join_rows([state.hidden for state in states])
        return Seq2SeqState(hidden, joined_sources(sources, inputs), Shared(memory))


@final
class Seq2Seq(CompiledRecurrentModel):
    """Encoder, bridge, decoder, readout, output. A `NeuralDecodable`; `encode` makes its first state."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = c = config
        self.target_embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
        nn.init.normal_(self.target_embedding.weight, std=EMBEDDING_STD)
        self.source_embedding = self.target_embedding
        if not c.share_embeddings:
            self.source_embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
            nn.init.normal_(self.source_embedding.weight, std=EMBEDDING_STD)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = c.recurrent(
            c.embedding_width, c.encoder_width, c.encoder_layers, bidirectional=c.bidirectional
        )
        self.bridge = Bridge(c)
        self.attention: AttentionScores | None = None
        if c.attention != "none":
            self.attention = SCORES[c.attention](c.output_width, c.memory_width, c.attention_width)
        self.reads_context = (
            not c.attends_from_current if self.attention else c.context != "initial"
        )
        """Whether the context is an input of the decoder's steps."""
        decoder_input = c.embedding_width + (c.memory_width if self.reads_context else 0)
        decoder = c
        # needs all steps at once, and a decoder makes them one by one
        if c.normalisation == "batch":
            decoder = replace(c, normalisation="none")
        self.decoder = decoder.recurrent(
            decoder_input, c.width, c.decoder_layers, bidirectional=False
        )
        self.readout = Readout(c)
        tied = self.target_embedding.weight if c.tie_output else None
        self.output = FullOutput(
            c.readout_width, c.vocabulary_size, tied, suppressed=c.suppressed_ids
        )

    def parts(self) -> RecurrentParts:
        """All of a step before the output layer."""
        c, context = self.config, None
        if self.reads_context or (self.readout.kind != "none" and self.readout.reads_context):
            from_current = self.attention is not None and c.attends_from_current
            context = ContextParts(self.attention, c.memory_width, from_current)
        to_output = None if self.readout.kind == "none" else self.readout.linear
        return RecurrentParts(
            self.target_embedding,
            [self.decoder],
            to_output,
            c.pad_id,
            c.pad_id,
            context,
            maxout=self.readout.kind == "maxout",
        )

    def encode(self, source: Tensor) -> Seq2SeqState:
        """source `(inputs, steps)`, padded anywhere -> the first state, one row per input."""
        mask = source != self.config.pad_id
        if self.config.reverse_source:
            source = reverse_each(source, mask)
        embedded = embed_tokens(self.source_embedding, source, self.config.pad_id)
        states, final_state = self.encoder(self.dropout(embedded), mask)
        if self.attention is None:
            values = self.bridge.summary(final_state).unsqueeze(1)
            keys, mask = values, torch.ones_like(mask[:, :1])
        else:
            values = states
            if self.config.reverse_source:
                values = reverse_each(states, mask)  # h_i at the position of token i
            keys = self.attention.keys(values)
        inputs = torch.arange(source.shape[0], device=source.device)
        memory = AttentionMemory(values, keys, mask, inputs)
        return Seq2SeqState(self.bridge(final_state), inputs, Shared(memory))

    def read(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """tokens `(rows, steps)` -> readout `(rows, steps, readout_width)`, and the state after them."""
        memory = state.memory.value
        inputs = tokens, state.hidden, ReadMemory(memory, state.source)
        found = read_token(self, self.parts, *inputs) or read_steps(self, self.parts, *inputs)
        if found is not None:
            return found[0], state._replace(hidden=found[1])
        if state.source is not memory.inputs:
            memory = AttentionMemory(*(part.index_select(0, state.source) for part in memory))
        mask = tokens != self.config.pad_id
        embedded = self.dropout(self.target_embedding(tokens))
        attends_first = self.attention is not None and self.reads_context
        decode = self.attend_then_step if attends_first else self.step_then_attend
        decoded, hidden, contexts = decode(embedded, mask, state.hidden, memory)
        return self.readout(decoded, embedded, contexts), state._replace(hidden=hidden)

    def forward(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def attend_then_step(
        self, embedded: Tensor, mask: Tensor, hidden: CellState, memory: AttentionMemory
    ) -> tuple[Tensor, CellState, Tensor]:
        """Bahdanau: s_{t-1} is the query, and the context c_t an input of s_t; so the loop is over time."""
        assert self.attention is not None
        if not embedded.shape[1]:
            rows, _, width = memory.values.shape
            no_outputs = embedded.new_zeros(rows, 0, self.config.output_width)
            return no_outputs, hidden, embedded.new_zeros(rows, 0, width)
        first = self.decoder.stack[0]
        from_tokens = first.input_product(embedded).unbind(dim=1)
        step, keep = Stepper(self.decoder, len(embedded)), StepMask(mask)
        layers = [layer_state(hidden, k) for k in range(len(self.decoder.stack))]
        outputs, contexts = [], []
        for t, from_token in enumerate(from_tokens):
            weights = self.attention.weights(layers[-1][0], memory.keys, memory.mask)
            context = weighted_mean(weights, memory.values)
            # the part of the first layer's product that the token gives was formed for all steps at once
            from_context = first.input_product(context, start=self.config.embedding_width)
            output, after = step(from_token + from_context, layers)
            layers = [keep(t, new, old) for new, old in zip(after, layers, strict=True)]
            outputs.append(output)
            contexts.append(context)
        return torch.stack(outputs, 1), stack_states(layers), torch.stack(contexts, 1)

    def step_then_attend(
        self, embedded: Tensor, mask: Tensor, hidden: CellState, memory: AttentionMemory
    ) -> tuple[Tensor, CellState, Tensor]:
        """Luong: s_t is the query, and the context enters the output only. Without attention all contexts are
        the same."""
        context = memory.values[:, :1].expand(-1, embedded.shape[1], -1)
        inputs = torch.cat([embedded, context], dim=-1) if self.reads_context else embedded
        decoded, hidden = self.decoder(inputs, mask, hidden)
        if self.attention is None:
            return decoded, hidden, context
        weights = self.attention.weights(decoded, memory.keys, memory.mask[:, None])
        return decoded, hidden, weighted_mean(weights, memory.values)


@final
class Bridge(nn.Module):
    """The decoder's first state, layer by layer: `s_0 = tanh(W · [→h_n; ←h_1])`, c_0 likewise; the state
    itself where the widths agree; zeros where the context enters at every step only."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.directions = 2 if config.bidirectional else 1
        self.picked = 1 if config.bridge == "backward" else self.directions
        """How many directions of the encoder are read, the backward one last."""
        self.zeros = config.attention == "none" and config.context == "every_step"
        states = CELLS[config.cell].state_count  # h, or h and c
        inputs = [config.projection or config.encoder_width, config.encoder_width][:states]
        inputs = [self.picked * width for width in inputs]
        self.widths = [config.output_width, config.width][:states]
        self.identity = inputs == self.widths and config.bridge == "final"
        self.maps = nn.ModuleList()
        if not self.zeros and not self.identity:
            for input_width, width in zip(inputs, self.widths, strict=True):
                self.maps.extend(
                    nn.Linear(input_width, width) for _ in range(config.decoder_layers)
                )

    def summary(self, final_state: CellState) -> Tensor:
        """`[→h_n; ←h_1]` of the encoder's top layer: `(inputs, memory_width)`."""
        return final_state[0][:, -self.directions :].flatten(1)

    def forward(self, final_state: CellState) -> CellState:
        """h (and c) of the encoder, each `(inputs, layers * directions, encoder_width)` -> of the decoder,
        each `(inputs, decoder_layers, width)`. The stacks are aligned at the top; a decoder layer above the
        encoder's top starts from the top one."""
        c = self.config
        if self.zeros:
            shapes = [(len(final_state[0]), c.decoder_layers, width) for width in self.widths]
            return tuple(
                part.new_zeros(shape) for part, shape in zip(final_state, shapes, strict=True)
            )
        maps = iter(self.maps)
        lowest, top = max(c.encoder_layers - c.decoder_layers, 0), c.encoder_layers - 1
        states = []
        for part in final_state:
            by_layer = part.reshape(part.shape[0], c.encoder_layers, self.directions, -1)
            by_layer = by_layer[:, :, -self.picked :].flatten(2)
            layers = [by_layer[:, min(lowest + k, top)] for k in range(c.decoder_layers)]
            if not self.identity:
                layers = [torch.tanh(next(maps)(h)) for h in layers]
            states.append(torch.stack(layers, dim=1))
        return tuple(states)


@final
class Readout(nn.Module):
    """The deep output `g(y_{t-1}, s_t, c_t)`: a linear map of what there is, then the larger of each pair
    (maxout) or as it is."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.kind = config.readout
        self.dropout = nn.Dropout(config.dropout)
        self.reads_context = config.attention != "none" or config.context != "initial"
        if self.kind != "none":
            inputs = (
                config.output_width
                + config.embedding_width
                + config.memory_width * self.reads_context
            )
            self.linear = nn.Linear(
                inputs, config.readout_width * (2 if self.kind == "maxout" else 1)
            )

    def forward(self, decoded: Tensor, embedded: Tensor, contexts: Tensor) -> Tensor:
        """`(rows, steps, ...)` each -> `(rows, steps, readout_width)`."""
        if self.kind == "none":
            return decoded
        parts = [decoded, embedded, contexts] if self.reads_context else [decoded, embedded]
        mixed: Tensor = self.linear(self.dropout(torch.cat(parts, dim=-1)))
        if self.kind == "maxout":
            mixed = torch.maximum(*mixed.chunk(2, dim=-1))
        return mixed
