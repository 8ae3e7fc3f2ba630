"""The recurrent language model: an embedding, a stack of any cell, and a softmax over the next token.

    Mikolov et al. 2010     x_t = E u_t,  h_t = f(h_{t-1}, x_t),  p(u_{t+1}) = softmax(W h_t + b)
    Zaremba et al. 2014     stacked LSTMs; dropout between layers but not between steps
    Jozefowicz et al. 2016  large LSTMs whose h is projected
    Merity et al. 2018      AWD-LSTM: tied output, dropout of recurrent weights and of whole words
    Mikolov et al. 2011     RNN + MaxEnt: weights of the n-grams that end in u_{t+1} are added to the logits

There is no setting for both directions: a backward layer would read the tokens that are to be predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.layers.one_hot import OneHot
from seqloom.layers.outputs.kinds import OutputKind, OutputOptions, make_output
from seqloom.layers.outputs.maxent import (
    LARGEST_ID,
    NO_TOKEN,
    PRIME,
    MaxEntOutput,
    histories,
    next_past,
)
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.document_rows import Segments, cut_rows
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.native_step import RecurrentParts, read_steps, read_token
from seqloom.layers.recurrent.stack import (
    EMBEDDING_STD,
    RecurrentStack,
    RecurrentStackConfig,
)
from seqloom.layers.recurrent.weight_drop import dropped_recurrent_weights, embed
from seqloom.models.compiled import CompiledRecurrentModel
from seqloom.models.config_checks import (
    ZERO,
    CellName,
    Count,
    Fraction,
    Size,
    UsedInTasks,
    UsedWith,
    above,
    field_problems,
    raise_problems,
)
from seqloom.models.sizes import named_sizes
from seqloom.protocols import OutputLayer, select_rows


@final
@dataclass(frozen=True, kw_only=True)
class RecurrentLMConfig:
    """The sizes and choices of a recurrent language model."""

    __pydantic_config__ = STRICT
    vocabulary_size: Size
    """Entries of the vocabulary."""
    cell: CellName = "lstm"
    """elman, elman-relu, elman-sigmoid, lstm, gru (as published), gru-torch, mut1, mut2 or mut3."""
    embedding: Literal["trained", "one-hot"] = "trained"
    """What a token is read as: a vector that is trained, or one-hot (Elman 1990; Karpathy 2015)."""
    embedding_width: Annotated[Size, UsedWith(embedding="trained")] = 256
    """Width of an embedded token."""
    width: Size = 256
    """Width of a layer's state."""
    layers: Size = 2
    """Stacked layers."""
    last_width: int | None = None
    """Width of the last layer, where it differs from the others'."""
    projection: int | None = None
    """The width of h where an lstm projects it (Sak et al. 2014)."""
    forget_bias: Annotated[float, UsedWith(cell="lstm", chrono_steps=ZERO)] = 1.0
    """What the bias of an lstm's forget gate starts from; 1 remembers at first (Gers et al. 2000)."""
    chrono_steps: Annotated[Count, UsedWith(cell="lstm")] = 0
    """The longest dependency in steps: an lstm's gates then start so that its units remember from 1 to as
    many (Tallec and Ollivier 2018), in place of forget_bias; 0: they do not."""
    normalisation: Literal["none", "layer"] = "none"
    """Normalisation of the layers' sums (Ba et al. 2016)."""
    connection: Literal["none", "residual", "highway"] = "none"
    """What a stacked layer adds to its input: x + h, or a highway g ⊙ h + (1 - g) ⊙ x."""
    tie_output: bool = True
    """Whether the output's weight is the embedding (Press and Wolf 2017); where widths differ, a linear map
    comes before it."""
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
    dropout: Fraction = 0.2
    """Share of the features dropped in training: of embedded tokens, between layers, and of the last layer.
    """
    input_dropout: Fraction | None = None
    """Dropout of embedded tokens, where it differs from model.dropout."""
    output_dropout: Fraction | None = None
    """Dropout of the last layer's features, where it differs from model.dropout."""
    variational_dropout: bool = False
    """Whether dropout drops the same features at all steps of a document (Gal and Ghahramani 2016)."""
    state_dropout: Fraction = 0.0
    """Share of h dropped on its way into the next step, the same at all steps (Gal and Ghahramani 2016)."""
    weight_dropout: Fraction = 0.0
    """Share of each recurrent matrix's weights dropped, the same at all steps (Merity et al. 2018)."""
    embedding_dropout: Annotated[Fraction, UsedWith(embedding="trained")] = 0.0
    """Share of the vocabulary whose embedding is dropped wherever it occurs (Gal and Ghahramani 2016)."""
    maxent: int | None = None
    """The length, 2 to 9, of the longest n-grams whose hashed weights are added to the logits (Mikolov et al.
    2011); none: no such weights."""
    maxent_size: Annotated[int, UsedWith(maxent=above(0))] = 2**22
    """How many hashed weights there are."""
    documents: Annotated[Literal["separate", "joined"], UsedInTasks("text-generation")] = "separate"
    """What an <s> within a row does: separate, it resets the state to zeros; joined, the state carries on."""
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
        if self.projection is not None and (self.cell != "lstm" or self.projection < 1):
            problems.append(
                f"model.projection needs model.cell=lstm and at least 1, but is {self.projection} with"
                f" {self.cell}"
            )
        if self.last_width is not None and (
            self.last_width < 1 or self.layers < 2 or self.projection is not None
        ):
            problems.append(
                "model.last_width needs at least 1, model.layers of 2 or more and no model.projection, but"
                f" is {self.last_width} with layers {self.layers} and projection {self.projection}"
            )
        if self.output == "adaptive" and self.tie_output:
            problems.append(
                "model.tie_output must be false with model.output=adaptive, whose words have states of"
                " several widths"
            )
        if self.embedding == "one-hot" and self.tie_output:
            problems.append(
                "model.tie_output must be false with model.embedding=one-hot, which has no weights to share"
            )
        if self.maxent is not None:
            if self.output != "full":
                problems.append(f"model.maxent needs model.output=full, but it is {self.output}")
            if not 2 <= self.maxent <= 9:
                problems.append(f"model.maxent must be 2 to 9, but is {self.maxent}")
            if (
                not self.vocabulary_size <= min(self.maxent_size, LARGEST_ID)
                or self.maxent_size >= PRIME
            ):
                problems.append(
                    f"model.maxent_size must be at least the vocabulary's {self.vocabulary_size} (itself at"
                    f" most {LARGEST_ID}) and less than {PRIME}, but is {self.maxent_size}"
                )
        raise_problems(problems)

    @property
    def top_width(self) -> int:
        """Of the last layer's h."""
        return self.last_width or self.projection or self.width

    def stacks(self) -> list[RecurrentStack]:
        """All layers in one stack; the last one in another where its width differs."""
        below = self.layers - (self.last_width is not None)
        is_trained = self.embedding == "trained"
        input_width = self.embedding_width if is_trained else self.vocabulary_size
        stacks = [self._stack(input_width, self.width, below)]
        return (
            stacks
            if self.last_width is None
            else [*stacks, self._stack(self.width, self.last_width, 1)]
        )

    def _stack(self, input_width: int, width: int, layers: int) -> RecurrentStack:
        config = RecurrentStackConfig.of(
            self, input_width, width, layers=layers, variational=self.variational_dropout
        )
        return RecurrentStack(config)


SIZES, ABOUT = named_sizes("recurrent_lm")


class RecurrentLMState(NamedTuple):
    hidden: tuple[Tensor, ...]
    """h (and c) `(rows, layers, width)`; where the last layer has a width of its own, its h (and c) after
    those of the others."""
    past: Tensor | None = None
    """With MaxEnt: the last n - 2 tokens `(rows, n - 2)`; NO_TOKEN where there were none."""


@final
class RecurrentLM(CompiledRecurrentModel):
    """Embedding, layers, output. A `NeuralDecodable`; the first state is zeros."""

    context = None
    """No limit: it remembers what its state can hold."""
    carries = True
    """Trained on a stream: its state carries over from window to window."""

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding: nn.Embedding | OneHot
        tied = None
        if c.embedding == "one-hot":
            self.embedding = OneHot(c.vocabulary_size)
        else:
            self.embedding = nn.Embedding(c.vocabulary_size, c.embedding_width)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
            tied = self.embedding.weight if c.tie_output else None
        self.stacks: list[RecurrentStack] = c.stacks()
        self.layers = nn.ModuleList(self.stacks)
        self.to_output: nn.Module = nn.Identity()
        self.has_map = c.tie_output and c.top_width != c.embedding_width
        if self.has_map:
            self.to_output = nn.Linear(c.top_width, c.embedding_width, bias=False)
        self.output = self._make_output(tied)

    def _make_output(self, tied: Tensor | None) -> OutputLayer:
        c = self.config
        width = c.embedding_width if c.tie_output else c.top_width
        if c.maxent:
            full = FullOutput(width, c.vocabulary_size, tied, suppressed=c.suppressed_ids)
            return MaxEntOutput(full, c.vocabulary_size, c.maxent, c.maxent_size)
        options = OutputOptions(
            c.output, c.output_samples, c.output_alpha, c.output_cutoffs, c.suppressed_ids
        )
        return make_output(options, width, c.vocabulary_size, tied=tied)

    def why_no_step(self) -> str:
        if self.config.maxent is not None:
            return "its output reads the last tokens (MaxEnt)"
        return super().why_no_step()

    def why_not_stored(self) -> str:
        return "" if self.config.output == "full" else "only model.output=full can be stored so"

    def parts(self) -> RecurrentParts:
        """All before the output layer."""
        c = self.config
        start = c.bos_id if c.documents == "separate" else c.pad_id
        to_output = self.to_output if self.has_map else None
        return RecurrentParts(self.embedding, self.stacks, to_output, c.pad_id, start)

    def start(self, rows: int) -> RecurrentLMState:
        """The state before the first token."""
        hidden = tuple(part for stack in self.stacks for part in stack.start(rows))
        past, n = None, self.config.maxent
        if n is not None:
            past = hidden[0].new_full((rows, n - 2), NO_TOKEN, dtype=torch.long)
        return RecurrentLMState(hidden, past)

    def read(
        self, tokens: Tensor, state: RecurrentLMState | None = None
    ) -> tuple[Tensor, RecurrentLMState]:
        """tokens `(rows, steps)`, padded anywhere -> hidden `(rows, steps, width)`, and the state after those
        tokens.

        A row is cut at each `<s>`, and its documents are read as rows of their own, as the compiled loops and
        torch's kernels are fast on ragged rows. The first document continues from the carried state, and the
        state after the last one is that of the row.
        """
        if state is not None and state.past is None:
            found = read_token(self, self.parts, tokens, state.hidden)
            if found is not None:
                return found[0], RecurrentLMState(found[1])
        c = self.config
        document_start = c.bos_id if c.documents == "separate" else None
        pieces = cut_rows(tokens, c.pad_id, document_start)
        hidden, after = self._read(pieces.tokens, self._before(pieces, state))
        if pieces.first is not None:
            after = select_rows(after, pieces.last)
        return pieces.to_rows(hidden, tokens.shape), after

    def forward(
        self, tokens: Tensor, state: RecurrentLMState | None = None
    ) -> tuple[Tensor, RecurrentLMState]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state

    def _before(self, pieces: Segments, carried: RecurrentLMState | None) -> RecurrentLMState:
        """The state before each piece: the carried one where a row continues, the first one where a document
        begins."""
        if carried is None:
            return self.start(len(pieces.tokens))
        start = carried if pieces.first is None else self.start(len(pieces.tokens))

        def before(part: Tensor, first: Tensor, value: int = 0) -> Tensor:
            if pieces.starts_document is not None:
                part = part.masked_fill(
                    pieces.starts_document.view(-1, *[1] * (part.dim() - 1)), value
                )
            return (
                part
                if pieces.first is None
                else first.to(part.dtype).index_copy(0, pieces.first, part)
            )

        past = None
        if carried.past is not None and start.past is not None:
            past = before(carried.past, start.past, NO_TOKEN)
        return RecurrentLMState(tuple(map(before, carried.hidden, start.hidden)), past)

    def _read(self, tokens: Tensor, state: RecurrentLMState) -> tuple[Tensor, RecurrentLMState]:
        """`read` for rows of one document each."""
        if (found := read_steps(self, self.parts, tokens, state.hidden)) is not None:
            return found[0], RecurrentLMState(found[1])
        c, mask, parts = self.config, tokens != self.config.pad_id, iter(state.hidden)
        embedding_dropout = c.embedding_dropout if self.training else 0
        weight_dropout = c.weight_dropout if self.training else 0
        after: list[Tensor] = []
        outputs = self._dropout(embed(self.embedding, tokens, embedding_dropout), c.input_dropout)
        with dropped_recurrent_weights(self._recurrent_layers(), weight_dropout):
            for number, stack in enumerate(self.stacks):
                if number:
                    outputs = self._dropout(outputs, None)
                before = tuple(next(parts) for _ in range(CELLS[c.cell].state_count))
                outputs, end = stack(outputs, mask, before)
                after += end
        hidden = self.to_output(self._dropout(outputs, c.output_dropout))
        if state.past is None:
            return hidden, RecurrentLMState(tuple(after))
        # MaxEnt: the output layer reads the history in further columns of the hidden states
        history = histories(tokens, state.past).to(torch.promote_types(hidden.dtype, torch.float32))
        past = next_past(tokens, mask, state.past)
        return torch.cat([hidden, history], dim=-1), RecurrentLMState(tuple(after), past)

    def _dropout(self, features: Tensor, share: float | None) -> Tensor:
        """features `(rows, steps, width)` after dropout of `share` (None: model.dropout)."""
        share = self.config.dropout if share is None else share
        if not (self.training and share):
            return features
        if not self.config.variational_dropout:
            return F.dropout(features, share)
        return features * F.dropout(torch.ones_like(features[:, :1]), share)

    def _recurrent_layers(self) -> Iterator[RecurrentLayer]:
        return (layer for stack in self.stacks for layer in stack.stack)
