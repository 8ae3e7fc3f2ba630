"""Every contract of seqloom on one page. Read this first.

One call serves every model that predicts a next token, and it is torch's own recurrent call:

    logits, state = model(tokens, state)

`tokens` is `(rows, steps)`, `logits` is `(rows, steps, vocabulary)`: the prediction after each token.
Training, scoring, prefill and step-by-step decoding are this one call. All that the
encoder of an encoder-decoder does is make the first state.

The state
    is a tensor, None, a number, a `Shared`, or a (named) tuple of these. Every tensor in it has the row as
    its first dimension. What belongs to an input and not to a row (the memory of an encoder, which all
    hypotheses of one input read) is wrapped in `Shared`, next to an index `source: (rows,)` that says which
    input a row reads. A state is used once: a call may write into its buffers. `fork` copies where two
    continuations are needed, and `select_rows` copies too. A part of it that can do so in place, at less
    cost, is a `ReorderableState`. `join_rows` puts the rows of several states into one; `share` lets many
    rows go on from one. None is the state of a language model that has read nothing; `<s>` begins a
    document, also in the middle of a row.

Padding
    A `<pad>` token is a step that does not happen: the state and the position stay, and its logits mean
    nothing. So padding left, right or none agree, and the call needs no mask.

The loss
    is a pair (total, count), so that adding up over micro-batches, workers and unequal lengths is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeGuard,
    TypeVar,
    cast,
    final,
    runtime_checkable,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.arrays import Integers
from seqloom.config import DataConfig, Pooling, RunConfig
from seqloom.shapes import IGNORE

State = Any
"""What a model carries from one call to the next (see above)."""
Batch = Any
"""What an objective reads: a NamedTuple of tensors, of its own kind."""
ModelConfig = Any
"""The configuration of a model: a dataclass of its family."""
Settings = Mapping[str, Any]
"""Settings that were given, by name."""

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class Loss(NamedTuple):
    """A sum of losses in nats and the number of things summed; `total / count` is the mean."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count


class Decodable(Protocol):
    """A model that predicts the next token."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens `(rows, steps)` -> logits `(rows, steps, vocabulary)`, and the state after those tokens."""
        ...


class OutputLayer(Protocol):
    """The second half of a neural `Decodable`: from hidden states to a vocabulary."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        ...

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """hidden `(..., width)`, targets `(...)` with IGNORE where nothing is trained -> cross-entropy in
        nats."""
        ...

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)`, exact, 0 at IGNORE; never
        holds all logits."""
        ...


class WantedTokens(NamedTuple):
    """What decoding needs to know of the next tokens, where that is not all."""

    likeliest: int
    """So many of each row,"""
    forbidden: tuple[int, ...] = ()
    """but none of these."""


class NextLogProbs(NamedTuple):
    """What may come next in each row."""

    log_probs: Tensor
    """`(rows, vocabulary)`; or `(rows, likeliest)` of those that were wanted,"""
    ids: Tensor | None = None
    """and which these are, `(rows, likeliest)`, in rising order; -inf where there are too few."""

    def select(self, rows: Tensor | slice) -> NextLogProbs:
        return NextLogProbs(self.log_probs[rows], None if self.ids is None else self.ids[rows])


@runtime_checkable
class LikeliestOutput(Protocol):
    """An `OutputLayer` that can tell the likeliest next tokens without a row of logits."""

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs | None:
        """hidden `(rows, width)` -> the likeliest; None where it can not, here and now."""
        ...


@runtime_checkable
class FrequencyOutput(Protocol):
    """An output layer that works by how often each word occurs."""

    def set_counts(self, counts: Tensor) -> None:
        """counts `(vocabulary,)`: how often each id occurs in the training text."""
        ...


@runtime_checkable
class HiddenReader(Protocol):
    """The first half of a neural `Decodable`: from tokens to hidden states."""

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens `(rows, steps)` -> hidden `(rows, steps, width)`, and the state after those tokens."""
        ...


@runtime_checkable
class NeuralDecodable(HiddenReader, Protocol):
    """A `Decodable` in two halves, so that all logits need not be held at once."""

    output: OutputLayer

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


@runtime_checkable
class TargetScorer(Protocol):
    """A `Decodable` that knows log p of given targets without forming all logits: counts, mixtures."""

    def log_probs(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens, targets `(rows, steps)` -> log p of each target `(rows, steps)`, 0 at IGNORE; and the state
        after."""
        ...


@runtime_checkable
class LimitedContext(Protocol):
    """A model that looks at a limited number of tokens."""

    @property
    def context(self) -> int | None:
        """The most tokens of a row, special ones included; None if there is no limit."""
        ...


@runtime_checkable
class EncoderDecoder(Protocol):
    """A `Decodable` that writes about a source: the encoder makes the first state."""

    def encode(self, source: Tensor) -> State:
        """source `(inputs, steps)`, padded anywhere -> the first state, one row per input."""
        ...

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


@runtime_checkable
class PrefixReader(Protocol):
    """A language model whose tokens of a source may see the whole source."""

    def read_source(self, source: Tensor) -> State:
        """source `(inputs, steps)`, padded anywhere -> the state after it."""
        ...


@runtime_checkable
class FittedModel(Protocol):
    """A class of models that are estimated from a text in one go, without gradients."""

    @classmethod
    def fit(cls, config: ModelConfig, ids: Integers) -> nn.Module:
        """The model of the texts in one array of ids, each closed by `</s>`."""
        ...


class EncoderTraits(NamedTuple):
    """What a head must know of its encoder. The defaults of a head are those of the encoder's paper."""

    width: int
    """Width of a hidden state; with two directions of both together."""
    pooling: Pooling
    """How the hidden states of a text become one."""
    pair: Literal["joined", "compared"] = "compared"
    """How two texts are read."""
    pooler: bool = False
    """Whether a hidden layer as wide as the states comes before the scores of a text."""
    label_bias: bool = True
    """Whether the scores of labels have a trained bias."""
    directions: int = 1
    """2 where forward and backward states are side by side."""
    linear: bool = False
    """Whether hidden states are linear in the counts of tokens. A head without a hidden layer then starts as
    the identity, so that embeddings are the weights of each label."""
    one_state: bool = False
    """Whether each step has the same state, that of the whole text. No head can then ask a single word."""


class EncoderConfig(Protocol):
    """The configuration of an `Encoder`."""

    @property
    def traits(self) -> EncoderTraits: ...

    @property
    def width(self) -> int: ...

    @property
    def vocabulary_size(self) -> int: ...


@runtime_checkable
class Encoder(Protocol):
    """A model that reads texts for a head. Its configuration is an `EncoderConfig`; one that limits the
    tokens of a row is a `LimitedContext`."""

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        """`(rows, steps, width)`; states at padding mean nothing."""
        ...


@runtime_checkable
class CausalEncoder(Encoder, Protocol):
    """An `Encoder` whose hidden states also predict the next token."""

    def next_token_loss(self, hidden: Tensor, targets: Tensor) -> Loss:
        """hidden `(steps, width)`, targets `(steps,)` with IGNORE where nothing is trained."""
        ...

    def freeze_output(self) -> None:
        """Stops training what only the next token needs. Nothing would ask for it, and distributed training
        waits for the gradient of each trained parameter."""
        ...


class EncodedBatch(NamedTuple):
    """Texts for an encoder and its head (`models/encoder_with_head.py`). An example is one row, or several:
    one for each of two texts that are compared, for each order of them, for each option. The rows of an
    example are neighbours."""

    tokens: Tensor
    """`(rows, steps)`, -1 at padding, which is at the end."""
    segments: Tensor
    """`(rows, steps)`: 0, and 1 in the second of two texts."""
    characters: Tensor
    """`(rows, steps, letters)`: of the word at each step, -1 at padding; no letters unless the encoder reads
    them.
    """
    owner: Tensor
    """`(rows,)`: the example of each row, 0 0 1 1 2 2 ..."""
    places: Tensor
    """`(rows, places)`: the steps that a head reads, -1 for no place. For tags the first token of each word;
    for spans where one may begin and end, the first place meaning no answer. `(rows, 0)` where the head reads
    the row as a whole."""
    targets: Tensor
    """IGNORE, or nan for numbers, where nothing is trained. Labels `(examples,)`; several labels `(examples,
    labels)` of 0 and 1; numbers `(examples,)`; tags `(rows, places)`; spans `(rows, 2)`, the first and the
    last place; options `(examples,)`, the index of one of the example's rows."""

    @classmethod
    def of_tokens(cls, tokens: Tensor) -> EncodedBatch:
        """Rows `(rows, steps)` that are an example each, and have nothing but tokens."""
        rows = tokens.shape[0]
        return cls(
            tokens=tokens,
            segments=torch.zeros_like(tokens),
            characters=tokens.new_zeros((*tokens.shape, 0)),
            owner=torch.arange(rows, device=tokens.device),
            places=tokens.new_zeros((rows, 0)),
            targets=tokens.new_zeros(rows),
        )


class MaskedBatch(NamedTuple):
    """Rows with masks, each of one text or two."""

    tokens: Tensor
    """`(rows, steps)`: what is read, -1 at padding, which is at the end."""
    segments: Tensor
    """`(rows, steps)`: 0, and 1 in the second of two texts."""
    targets: Tensor
    """`(rows, steps)`: the true id at each chosen place, IGNORE elsewhere."""
    labels: Tensor
    """`(rows,)`: 0 where the second text follows the first, 1 where it does not, IGNORE where nothing is
    asked."""
    label_weights: Tensor
    """`(rows,)`: chosen places of the global batch / rows with a label. What each loss of a label counts for,
    so that the mean over places is the mean loss of a place plus the mean loss of a label."""
    uniform: Tensor
    """`(rows, steps)` in [0, 1): what the replacement of a chosen token is drawn with (ELECTRA); `(rows, 0)`
    where none is replaced."""
    token_weights: Tensor
    """`(rows,)`: chosen places of the global batch / its tokens. What the loss of whether a token was
    replaced counts for, as with labels; 0 where nothing is trained."""


class Objective(Protocol):
    """What a model is trained for."""

    def __call__(self, model: nn.Module, batch: Batch, /) -> Loss:
        """The loss of a batch, which is of the objective's own kind."""
        ...


@runtime_checkable
class UpdatingObjective(Protocol):
    """An objective that updates the model itself, where a gradient of all parameters would be too slow."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """What it keeps between steps, which a checkpoint holds."""
        ...

    def update(
        self, model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, rate: float
    ) -> Loss:
        """Updates the model by one batch; the loss is that from before."""
        ...


def updating(objective: Objective) -> UpdatingObjective | None:
    """The objective, where it updates the model itself."""
    return objective if isinstance(objective, UpdatingObjective) else None


Rows = NDArray[np.int64]
"""Numbers of examples, in the order in which they are trained on."""


class NewModel(NamedTuple):
    """A model that is to be trained."""

    model: nn.Module
    config: ModelConfig
    """Its configuration: what config.json of the run folder holds."""
    model_type: str
    """Its family, as config.json names it."""
    origin: Any = None
    """The checkpoint of the hub that its tokenizer comes from; None if it is ours."""
    prompted: Any = None
    """What a prompt says of its frozen model (`runs/frozen_base.py`); None for a whole model."""


class TrainingData(Protocol):
    """What the training loop needs of the data of a task."""

    @property
    def tokenizer(self) -> StoredTokenizer | None:
        """None if no text is read."""
        ...

    def about(self) -> str:
        """How much there is, in words."""
        ...

    def build(self) -> NewModel:
        """A new model, with the weights that it begins with."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        """The global batches of an epoch from the `start`-th on."""
        ...

    def batches_an_epoch(self) -> int: ...

    def load(self, rows: Rows, whole: Rows) -> Batch:
        """Rows of a worker's share, rows of the global batch -> a NamedTuple of tensors."""
        ...

    def describe(self, rows: Rows) -> str:
        """Where the rows of a batch come from, for messages."""
        ...

    def objective(self) -> Objective: ...

    def initialise(self, model: nn.Module) -> None:
        """Sets what a new model takes from the data, such as the frequency of each id."""
        ...

    def fit(self, model_class: type[FittedModel], config: ModelConfig) -> nn.Module:
        """A model that is estimated without gradients. Raises UsageError if the data allow none."""
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics of a model in evaluation mode on the validation data."""
        ...


class Answer(NamedTuple):
    """What a model answers to one input."""

    text: str
    """On one line, for people."""
    content: Settings
    """All of it, for programs: one JSON object."""
    cells: Settings | None = None
    """Its row in a table, where that is not the content but for the line of the input."""

    def row(self) -> Settings:
        """What a row of a table has of it."""
        if self.cells is not None:
            return self.cells
        return {name: value for name, value in self.content.items() if name != "line"}


class EvaluatedExample(NamedTuple):
    """A known example, and what the model answers."""

    place: str
    """File and line."""
    input: str
    truth: str
    answer: str
    right: float | None = None
    """1 where the answer is right, 0 where it is wrong, or between; of a number minus its error; of a cosine
    minus the error of its rank, 0 to 1; None of a text that is neither."""
    confidence: float | None = None
    """The probability that the model gives to its answer, where it gives one."""


@final
@dataclass(frozen=True)
class Evaluation:
    """How good a model is."""

    metrics: dict[str, float]
    """Name -> value; the ends of an interval are `NAME_low` and `NAME_high`."""
    signatures: dict[str, str] = field(default_factory=dict)
    """How sacreBLEU computed its scores."""
    outputs: list[str] = field(default_factory=list)
    """The model's answers, one line each, in the order of the examples; empty if there are none."""
    details: dict[str, Any] = field(default_factory=dict)
    """What is too long for a table: the scores of each label, and the confusion of labels."""
    by_example: NDArray[np.float64] | None = None
    """`(examples,)`: how right each answer is, larger is better; for tests of two models on the same
    examples."""
    statistics: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Metric -> `(examples, k)`, of whose sums it is a function (`evaluation/corpus_scores.py`)."""
    examples: list[EvaluatedExample] = field(default_factory=list)
    """Each example with its answer; empty if there are none."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks of a trained model, beside the files."""

    data: Settings = field(default_factory=dict)
    """Settings of reading (`DataConfig`) that were given; others are as in the training."""
    decode: Settings = field(default_factory=dict)
    """Settings of decoding (`DecodeConfig`) that were given; others are the folder's."""
    evaluate: Settings = field(default_factory=dict)
    """Settings of measuring (`EvaluateConfig`) that were given; others are the folder's."""
    stride: int | None = None
    """Of a language model: by how much the windows over a long text move on."""
    trace: str | None = None
    """A new file for every step of decoding."""
    target: str | None = None
    """To explain: a given output, in place of the model's own."""
    interactive: bool = False
    """Whether each input must be answered before the next one is read."""
    all_labels: bool = False
    """Whether an answer has the probability of every label."""
    left_out: dict[int, str] | None = None
    """Line -> why it has no answer: filled where it is given."""


NO_REQUEST = Request()
"""Nothing but the files."""


class InputTable(NamedTuple):
    """A file each of whose rows or lines is an input."""

    path: str
    form: str
    """csv, text, ..."""
    data: DataConfig
    """How it is read."""


class TaskModel(Protocol):
    """A trained model, ready to be asked. What else it can do is up to its task."""

    def evaluate(self, paths: Sequence[str], request: Request = ...) -> Evaluation:
        """How good it is on files of known examples."""
        ...


class LoadedModel(TaskModel, Protocol):
    """What `seqloom.load` returns: the model of a task that is not known before it is opened."""

    def __getattr__(self, name: str) -> Any:
        """Other methods, by task: predict, answers, generate, score, complete, explain, ... Raises UsageError
        if one means nothing to its task."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is particular to one task. Every verb is written once, over this object."""

    name: str
    """As the field's hubs call it: token-classification."""
    summary: str
    """What goes in and what comes out, in a line."""
    models: tuple[str, ...]
    """Families that can do it, the default first."""
    settings: frozenset[str]
    """Settings that it reads, such as train.window. Another one would change nothing, and is refused."""
    reading: frozenset[str]
    """Of data.*, what says how files are read: `evaluate` and `predict` take these too."""
    open: Callable[[Path, str], TaskModel]
    """(folder, device) -> the trained model."""
    training_data: Callable[[RunConfig, Path, bool], TrainingData] | None = None
    """(run, folder, whether this worker is the first, which writes) -> what is trained on; None if models
    are only imported."""
    forms: Callable[[Sequence[str], DataConfig], set[str]] | None = None
    """(files, settings of reading) -> in which forms they are; None if they have one form only."""
    check: Callable[[RunConfig, Sequence[str], Path], Any] | None = None
    """(run, test files, a temporary folder) -> the report of `seqloom check`."""
    best: tuple[str, ...] = ("loss",)
    """What may choose the best checkpoint."""
    text_metrics: bool = False
    """Whether metrics from plugins measure its answers too."""
    defaults: Callable[[Settings], Mapping[str, Settings]] = lambda content: {}
    """The content of a run file -> defaults by section, where the task has others than the schema."""
    unused: Callable[[RunConfig], Mapping[str, str]] = lambda run: {}
    """Settings that it reads (and fields of the model) but that change nothing in this run -> why, as a
    sentence."""
    fixed_fields: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Family -> fields of its model that the task sets itself: what a head takes the place of."""
    pretrained: bool = False
    """Whether a model can begin with the weights of another (--from)."""
    hub_task: str = ""
    """The task that checkpoints of the hub name for its models, where it is another: translation for all
    encoder-decoders."""
    comparable: bool = False
    """Whether `compare` can train and measure its models."""
    score: str = ""
    """What `compare` ranks its models by where train.best is the loss, which is no score."""
    verb: str = "predict"
    """What its models are mainly for."""
    usage: str = "seqloom predict {} -"
    """For the model card: how to use a run folder {}."""
    counted: str = "tokens"
    """For the model card: what its training counts."""
    thread_notice: Callable[[RunConfig, int], str] = lambda run, threads: ""
    """(run, threads) -> for the model card, what so many threads mean for its weights, as a sentence."""


class SpecialIds(NamedTuple):
    """The special tokens of a tokenizer. Those of seqloom are in `text/special_tokens.py`; a checkpoint of
    the hub has its own."""

    pad: int
    """A step that does not happen. -1 where the vocabulary has no entry for it alone: GPT-2 has none, and the
    decoder of T5 begins with it."""
    bos: tuple[int, ...]
    """A language model, or a decoder, reads them before a text; GPT has none."""
    eos: int | None
    """It ends a text that a model writes; None if nothing does (GPT)."""
    unk: int | None
    """It replaces text that has no other ids."""
    prefix: tuple[int, ...]
    """An encoder reads them before a text: `[CLS]`."""
    separator: tuple[int, ...]
    """Between two texts: `[SEP]`, or `</s></s>`."""
    suffix: tuple[int, ...]
    """After a text, or after the second of two."""
    mask: int | None
    """It replaces a token that is to be predicted: `[MASK]`."""
    forbidden: tuple[int, ...]
    """Ids that a model never writes: special ones other than `eos`."""


class SpecialTokenTemplate(NamedTuple):
    """The special tokens that a post-processor puts around a text, and between two."""

    prefix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


class Tokenizer(Protocol):
    """Strings to ids and back. `encode` never returns a special id (`special_ids`), except the unknown one
    where the vocabulary cannot spell a character."""

    @property
    def special_ids(self) -> SpecialIds: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The UTF-8 of each id, or part of the UTF-8 of a character; empty for special ids."""
        ...

    @property
    def space_prefix(self) -> bytes:
        """What the tokens that begin a word start with: a space or nothing. `decode` drops it at the
        beginning of a text."""
        ...

    @property
    def space_suffix(self) -> bytes:
        """What the tokens that end a word end with: a space or nothing. `decode` drops it at the end of a
        text."""
        ...

    @property
    def text_separator(self) -> bytes:
        """What joins the tokens of a text: a space between whole words, otherwise nothing."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special ids add nothing to it."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form."""
        ...


class StoredTokenizer(Tokenizer, Protocol):
    """A tokenizer that is saved in a run folder: trained by seqloom, or part of a checkpoint."""

    @property
    def kind(self) -> str:
        """The algorithm: bpe, words, unigram, ..."""
        ...

    @property
    def has_unknown(self) -> bool:
        """Whether a text may have parts that become `special_ids.unk`."""
        ...

    @property
    def pretrained(self) -> bool:
        """Whether it comes with a checkpoint of the Hugging Face hub, and was not trained by seqloom."""
        ...

    @property
    def template(self) -> SpecialTokenTemplate:
        """What its post-processor adds to a text by itself."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of a folder that it is read from, by name."""
        ...

    @property
    def sentinels(self) -> Sequence[int]:
        """The ids that replace corrupted spans, number 0 first; none unless it is for denoising."""
        ...

    def with_special_ids(self, special_ids: SpecialIds) -> Self:
        """The same tokenizer for a model that uses special tokens in another way."""
        ...

    def with_added_tokens(self, tokens: Sequence[str]) -> StoredTokenizer:
        """The same tokenizer with further entries, which are never split."""
        ...

    @property
    def tokenizer_config(self) -> dict[str, object]:
        """The content of `tokenizer_config.json`."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        ...

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        ...

    def normalise(self, text: str) -> str:
        """The text with what the setting data.normalisation changes: no other form of it can be written."""
        ...

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The characters `text[begin:end]` of each token that `encode` returns."""
        ...

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, but the name of the mask token gives the mask id, where there is a mask token."""
        ...

    def stable_prefix(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still typed: the ids that stay whatever comes next, and the bytes of the rest."""
        ...


@dataclass(frozen=True)
class Shared(Generic[T]):
    """Part of a state that belongs to inputs and not to rows; `select_rows` leaves it alone."""

    value: T


def select_rows(state: State, rows: Tensor) -> State:
    """The state with the given rows `(n,)`, in the given order; rows may repeat or be dropped."""
    return _map_tensors(state, lambda tensor: tensor.index_select(0, rows))


@runtime_checkable
class ReorderableState(Protocol):
    """A part of a state that can select rows in place."""

    def reordered(self, rows: Tensor) -> State:
        """The state with the given rows `(n,)`; this one is not used again."""
        ...


def reorder_in_place(state: State, rows: Tensor) -> State:
    """`select_rows` for a state that is not used again: a `ReorderableState` copies only what changes."""
    if _meets(state.__class__, ReorderableState):
        return state.reordered(rows)
    match state:
        case Tensor():
            return state.index_select(0, rows)
        case tuple():
            return _same_tuple(state, [reorder_in_place(part, rows) for part in state])
    return state


@runtime_checkable
class ShareableState(Protocol):
    """A state that many rows can go on from without a copy for each."""

    def shared(self) -> State:
        """The same state, to select rows from; this one is only read from now on."""
        ...


def share(state: State) -> State:
    """The state that rows are to be selected from: of a `ShareableState` `select_rows` copies next to
    nothing. The given one may be kept, if only copies of it go on (`fork`)."""
    return state.shared() if _meets(state.__class__, ShareableState) else state


@runtime_checkable
class JoinableState(Protocol):
    """A part of a state whose rows need more than to be put one below the other."""

    def joined(self, others: Sequence[Any]) -> State:
        """The rows of this part, then those of others of the same model."""
        ...


def join_rows(states: Sequence[State]) -> State:
    """One state with the rows of all, in order. Each has read something already, of any length; they are not
    used again."""
    first = states[0]
    if len(states) == 1:
        return first
    if _meets(first.__class__, JoinableState):
        return first.joined(states[1:])
    match first:
        case Tensor():
            return torch.cat(list(states))
        case tuple():
            return _same_tuple(first, [join_rows(parts) for parts in zip(*states, strict=True)])
    return first


@lru_cache(maxsize=512)
def _meets(kind: type[object], protocol: type[object]) -> bool:
    """`issubclass` for protocols. Decoding asks at each step, and a protocol takes microseconds to answer."""
    return issubclass(kind, protocol)


def fork(state: State) -> State:
    """A copy of the state whose buffers are its own."""
    return _map_tensors(state, Tensor.clone)


def detach(state: State) -> State:
    """The state without its history, for truncated backpropagation."""
    return _map_tensors(state, Tensor.detach)


def tensors_of(state: State) -> list[Tensor]:
    """The tensors of a state, in order; what is shared is left out."""
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _map_tensors(state, keep)
    return tensors


def with_tensors(state: State, tensors: Sequence[Tensor]) -> State:
    """The same state with other tensors, in the order of `tensors_of`."""
    remaining = iter(tensors)
    return _map_tensors(state, lambda _: next(remaining))


def _map_tensors(state: State, change: Callable[[Tensor], Tensor]) -> State:
    """The same state with each of its tensors changed."""
    match state:
        case Tensor():
            return change(state)
        case tuple():
            return _same_tuple(state, [_map_tensors(part, change) for part in state])
    return state  # Shared, numbers and None belong to no row


def _same_tuple(state: tuple[State, ...], parts: list[State]) -> State:
    """A tuple of the same type with other parts: a NamedTuple stays what it is."""
    return getattr(type(state), "_make", tuple)(parts)


def device_of(model: Decodable) -> torch.device:
    """Where a model is: its first parameter or buffer; the CPU where it has none."""
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def modules_of(model: nn.Module, kind: type[M]) -> dict[str, M]:
    """The modules of this class in a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def context_of(model: object) -> int | None:
    """The most tokens that a model looks at; None if there is no limit."""
    return model.context if isinstance(model, LimitedContext) else None


def source_room(model: object, special_ids: SpecialIds, written: int) -> int | None:
    """The most ids of a source about which so many tokens are written; None if there is no limit. A language
    model has one row for both."""
    context = context_of(model)
    if context is None:
        return None
    room = context - len(special_ids.prefix) - len(special_ids.suffix)
    return room if isinstance(model, EncoderDecoder) else room - written


def last_hidden(model: Decodable, row: Tensor) -> Tensor | None:
    """row `(1, steps)` -> hidden `(width,)` after its last token; None for a model without hidden states."""
    return model.read(row, None)[0][0, -1] if _in_two_halves(model) else None


def next_logits(
    model: Decodable, tokens: Tensor, state: State, rows: Tensor | None = None
) -> tuple[Tensor, State]:
    """logits `(rows, vocabulary)` after the last step only: what decoding needs of a whole prompt. `rows`
    puts the logits into another order, and leaves the state in that of the tokens."""
    if _in_two_halves(model):
        hidden, state = model.read(tokens, state)
        return model.output.logits(hidden[:, -1] if rows is None else hidden[rows, -1]), state
    logits, state = model(tokens, state)
    return logits[:, -1] if rows is None else logits[rows, -1], state


def next_log_probs(
    model: Decodable,
    tokens: Tensor,
    state: State,
    rows: Tensor | None = None,
    wanted: WantedTokens | None = None,
) -> tuple[NextLogProbs, State]:
    """As `next_logits`. Where not all is wanted, the answer may have only that."""
    if wanted is None or not (
        _in_two_halves(model) and _meets(type(model.output), LikeliestOutput)
    ):
        logits, state = next_logits(model, tokens, state, rows)
        return NextLogProbs(logits.float().log_softmax(dim=-1)), state
    hidden, state = model.read(tokens, state)
    last = hidden[:, -1] if rows is None else hidden[rows, -1]
    found = cast("LikeliestOutput", model.output).likeliest(last, wanted)
    if found is None:
        found = NextLogProbs(model.output.logits(last).float().log_softmax(dim=-1))
    return found, state


def _in_two_halves(model: Decodable) -> TypeGuard[NeuralDecodable]:
    """Whether it is a `NeuralDecodable`: of a `Decodable` its type tells."""
    return _meets(type(model), HiddenReader)


def read_source(model: object, source: Tensor) -> State:
    """source `(inputs, steps)` with its special tokens, padded anywhere -> the state before the first token
    of an output, one row per input: that of an encoder, or that of a language model which has read it."""
    match model:
        case EncoderDecoder():
            return model.encode(source)
        case PrefixReader():
            return model.read_source(source)
        case HiddenReader():
            return model.read(source, None)[1]
    raise TypeError(f"a {type(model).__name__} reads no source")


def state_after(model: Decodable, tokens: Tensor, state: State) -> State:
    """The state after tokens `(rows, steps)`, of which nothing is predicted."""
    if _in_two_halves(model):
        return model.read(tokens, state)[1]
    return target_log_probs(model, tokens, torch.full_like(tokens, IGNORE), state)[1]


def target_log_probs(
    model: Decodable, tokens: Tensor, targets: Tensor, state: State
) -> tuple[Tensor, State]:
    """log p of each target after its token, `(rows, steps)` in nats, 0 at IGNORE; and the state after. Never
    holds all logits where the model knows a shorter way."""
    if isinstance(model, TargetScorer):
        return model.log_probs(tokens, targets, state)
    if _in_two_halves(model):
        hidden, state = model.read(tokens, state)
        return model.output.log_probs(hidden, targets), state
    logits, state = model(tokens, state)
    trained = targets != IGNORE
    chosen = logits.log_softmax(dim=-1).gather(-1, targets.where(trained, 0)[..., None])[..., 0]
    return chosen.where(trained, 0), state
