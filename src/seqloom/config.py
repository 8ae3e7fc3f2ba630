"""One schema for flags and run files. Every field of a run stands here, but for those of a model, which stand
beside it.

A run is a YAML file (or what `--set key=value` says) with six parts:

    task: translation
    output_dir: runs/captions
    data:   {train: [train.en, train.de], validation: [val.en, val.de]}
    model:  {name: seq2seq, size: small, dropout: 0.3}
    head:   {pooling: mean}
    train:  {max_steps: 6000}
    decode: {beam: 5}

Reading and checking are in `run_file.py`. Imports no torch, so that `--help` is quick.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from seqloom.errors import UsageError
from seqloom.plugins import is_known, names

Positive = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _mark(written: str) -> str:
    if not written:
        raise ValueError("must not be empty")
    return written.replace("\\t", "\t")


def tokenizer_kind(name: object) -> object:
    """The name of a tokenizer kind; an old name is replaced, with a notice."""
    if name == "blanks":
        logging.getLogger("seqloom").warning("the tokenizer kind blanks is now called whitespace")
        return "whitespace"
    return name


BEST = (
    *("loss", "accuracy", "macro_f1", "f1", "matthews", "pearson", "spearman"),
    *("bleu", "chrf", "exact_match"),
)
"""What may choose the best checkpoint, beside the metrics of plugins."""


def _registered(kind: str, *built_in: str) -> BeforeValidator:
    """A name of this kind, which a plugin may have registered. A logits processor may have a setting:
    `NAME=SETTING`."""

    def check(value: object) -> object:
        name = value.partition("=")[0] if isinstance(value, str) and kind == "logits processor" else value
        if value is None or is_known(name, built_in) or is_known(name, names(kind)):
            return value
        known = [repr(one) for one in (*built_in, *names(kind))]
        if not known:
            raise ValueError("must be registered by a plugin (--plugin)")
        raise ValueError(f"must be {' or '.join(filter(None, [', '.join(known[:-1]), known[-1]]))}")

    return BeforeValidator(check)


Mark = Annotated[str, AfterValidator(_mark)]
"""What parts a text, where \\t is a tab."""
Pooling = Literal["auto", "first", "last", "mean", "max", "sum", "attention"]
APART = ("compared", "cosine")
"""Ways of head.pair that read each text by itself."""
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Nothing unknown, nothing infinite."""


@final
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read, and how text becomes ids."""

    __pydantic_config__ = STRICT
    train: tuple[str, ...] = ()
    """Training files. Pairs: two parallel ones, a prefix such as data/train, or one .tsv, .csv or .jsonl.
    Language models: any number of texts, tables, folders and patterns such as 'news/*.txt'. All also .gz."""
    validation: tuple[str, ...] = ()
    """Validation files, in the same form. Without them 2 % of the data (10 % of what has labels), at most
    1,000, is split off by seed."""
    format: Literal[
        "auto",
        "parallel",
        "text",
        "tsv",
        "csv",
        "jsonl",
        "parquet",
        "json",
        "folder",
        "fasttext",
        "label_first",
        "conll",
        "conllu",
        "tagged",
    ] = "auto"
    """Form of the files; auto goes by their names. fasttext: `__label__NAME text`; label_first: `LABEL text`;
    tagged: `word_TAG`."""
    source: str | None = None
    """Column (or language suffix) of the input; guessed with a notice. In a table without a header columns
    have numbers, from 1."""
    target: str | None = None
    """Column (or language suffix) of the output; guessed with a notice."""
    text: str | None = None
    """Column of the text; several, such as 2,3 or title,body, are joined; guessed with a notice."""
    score: str | None = None
    """Column of the score of a pair, for how alike two texts are, where it is not that of the label; guessed
    with a notice."""
    label: str | None = None
    """Column of the label; guessed with a notice."""
    second: str | None = None
    """Column of the second of two texts (the first is `text`); guessed with a notice."""
    options: tuple[Annotated[str, BeforeValidator(str)], ...] = ()
    """Columns of the options, where one of several is to be chosen; guessed with a notice."""
    answers_from: Literal[0, 1] | None = None
    """What answers count from that are numbers of options; by default as the training files show, with a
    notice."""
    group: str | None = None
    """Column whose equal values stay on one side when data are split."""
    split_seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] | None = None
    """Of the part that is split off for validation; by default train.seed."""
    label_separator: Mark | None = None
    """What stands between the labels of a text that may have several (or none)."""
    label_until: Mark | None = None
    """A label ends before this: ':' makes DESC of DESC:manner."""
    part: str | None = None
    """Of a JSON file with several parts, such as train and test: the one to read; several with commas
    between."""
    columns: tuple[Positive, Positive] | None = None
    """Columns of word and tag in files of a word a line, from 1; by default the first and the last."""
    tags: Literal["upos", "xpos", "deprel", "feats"] = "upos"
    """Which tags of a CoNLL-U file."""
    repair_tags: bool = False
    """Whether an I- tag that nothing begins becomes B-, counted; else it is an error."""
    unseen_labels: Literal["error", "ignore"] = "error"
    """What happens at labels that the training has not got: ignored ones are counted, and every answer to
    them is wrong."""
    stride: Positive | None = None
    """Tokens that two windows of a text share that is longer than the model reads; by default a quarter of a
    window."""
    document: Literal["line", "paragraph", "file"] = "line"
    """What a document of plain text is: a line, what stands between blank lines, or a file. Of a table it is
    a row."""
    encoding: str = "utf-8"
    """Encoding of the files."""
    on_bad_line: Literal["error", "skip", "replace"] = "error"
    """What happens at bytes that are not in the encoding and the like; skipped lines are counted."""
    delimiter: Mark | None = None
    """Between cells of tsv and csv; by default tab and comma."""
    header: bool | Literal["auto"] = "auto"
    """Whether the first row of tsv and csv names the columns."""
    quoting: bool | None = None
    """Whether quotes wrap cells; by default in csv, not in tsv."""
    max_line_bytes: Positive = 1_000_000
    """A longer line is an error."""
    tokenizer: Annotated[
        Literal["bpe", "bytes", "characters", "words", "whitespace", "wordpiece", "unigram"],
        BeforeValidator(tokenizer_kind),
    ] = "bpe"
    """How text is cut: byte-level BPE, bytes, characters, words, words between white space, WordPiece, or unigram
    (needs the extra `unigram`)."""
    vocabulary: Positive = 8000
    """Entries of the vocabulary, at most."""
    learn_from: Positive = 100_000_000
    """Of a corpus of documents the tokenizer is learned from so many characters, from the beginning; of
    `characters` from all."""
    normalisation: Literal["none", "nfc", "lower"] = "none"
    """Unicode normalisation, stored with the tokenizer; lower: composed and in small letters."""
    max_length: Positive | None = None
    """Longest text in ids; what is longer is cut, counted and said. None: nothing is cut."""


@final
@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What turns the states of a reader into an answer."""

    __pydantic_config__ = STRICT
    pooling: Pooling = "auto"
    """How the states of a text become one: the first ([CLS]), the last (of both directions their final
    states; GPT's extract), their mean, largest values, sum, or a mean with learned weights. auto: what the
    encoder's paper takes."""
    hidden_width: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Width of a hidden layer before the answer; 0: none. None: what the encoder's paper has."""
    activation: Literal["auto", "tanh", "relu", "gelu"] = "auto"
    """Of the hidden layer."""
    dropout: Share = 0.1
    """Share of what the last layer reads that is dropped in training."""
    pair: Literal["auto", "joined", "compared", "cosine", "both_orders"] = "auto"
    """Two texts as one row with a mark between them; each by itself, then [u; v; |u-v|; u*v], or for a number
    the cosine of u and v (Sentence-BERT); or joined in both orders, whose states are added (GPT-1's
    similarity). auto: joined for Transformers, else compared."""
    crf: bool = False
    """Whether tags are a linear-chain conditional random field."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: the loss of a label is weighted by examples / (labels x its examples)."""
    lm_weight: Annotated[float, Field(ge=0)] = 0.0
    """λ of an auxiliary language modelling loss of a causal encoder (GPT-1: 0.5)."""


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained."""

    __pydantic_config__ = STRICT
    max_steps: Positive | None = None
    """Optimizer steps; by default as many as `epochs` need."""
    epochs: Annotated[float, Field(gt=0)] = 20.0
    """Passes over the data, where max_steps is not given."""
    min_steps: Annotated[int, Field(ge=0, strict=True)] = 0
    """Steps at least, however few `epochs` need; readers that begin anew have 1,000 where neither is given,
    for small data."""
    batch_tokens: Positive = 4096
    """Budget of a batch: rows × (longest source + longest target), or rows × window."""
    batch_rows: Positive | None = None
    """A fixed number of rows instead of a budget."""
    window: Positive | None = None
    """Tokens of a row of a language model's batch: by default the model's context, or 64 where it carries its
    state on."""
    accumulate: Positive = 1
    """Micro-batches that a batch is split into to save memory; changes no result."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """The highest learning rate."""
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    """What the learning rate does after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Steps in which the learning rate climbs from 0; by default a tenth of all, at most 200."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Each layer learns at this times the rate of the layer above it; the head learns at the full rate."""
    head_learning_rate: Annotated[float, Field(gt=0)] | None = None
    """The highest learning rate of what is new on top of a model that was trained before; by default that of
    all."""
    freeze: tuple[str, ...] = ()
    """Beginnings of names of parameters that stay as they are, such as encoder.embedding."""
    word_vectors: str | None = None
    """File of word vectors (word2vec, GloVe, fastText; text or binary) that the embedding begins with."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the mean of squared gradients (AdamW)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decay of matrices (AdamW); biases and embeddings have none."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Longest gradient; longer ones are scaled down."""
    label_smoothing: Share = 0.0
    """Share of the target that goes to the whole vocabulary."""
    shift: Annotated[int, Field(ge=0, strict=True)] = 0
    """Of images: each is moved at random by up to so many pixels up or down and left or right, anew in each
    epoch."""
    evaluate_every: Positive | None = None
    """Steps between validations, each with a checkpoint; by default twenty in a run."""
    objective: Annotated[str | None, _registered("objective")] = None
    """An objective from a plugin (`seqloom.register_objective`); by default that of the task."""
    best: Annotated[str, _registered("metric", *BEST)] = "loss"
    """What chooses the best checkpoint: loss, or what the task is measured by (there by default); bleu, chrf
    and exact_match decode the validation data."""
    patience: Positive | None = None
    """Stop after so many validations without a better one."""
    log_every: Positive = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Also write the folder tensorboard/ (needs the extra `tensorboard`)."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16: products in bf16 (autocast), weights and sums in float32."""
    device: str = "auto"
    """auto, cpu or cuda."""
    threads: Positive | None = None
    """Threads of the CPU; another number changes the last bits."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Of everything that is random."""


@final
@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How text is made; stored in the run folder as the model's defaults."""

    __pydantic_config__ = STRICT
    strategy: Literal["beam", "sample"] = "beam"
    """beam: the most likely text that is found; sample: drawn from the model's distribution, as changed by
    the next four."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Logits are divided by it, first of all."""
    top_k: Positive | None = None
    """Then only the k most likely tokens are left."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Then only the smallest set of most likely tokens whose mass is at least p."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Then only tokens at least this share as likely as the likeliest."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Of sampling: the same seed and settings give the same text, whatever else is in the batch."""
    beam: Annotated[int, Field(ge=1, le=1000, strict=True)] = 5
    """Hypotheses kept; 1 is greedy."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """α of Σ log p / length^α, the end mark counted."""
    groups: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Groups that the beam is split into, each kept from what the groups before it chose: n_best that differ.
    """
    diversity: Annotated[float, Field(ge=0)] = 0.5
    """What a token costs a group, in nats, for each earlier group's hypothesis that chose it at this step."""
    refill: bool = False
    """Whether a hypothesis that ends gives up its place in the beam to the next best one (as transformers
    does), or keeps it."""
    repetition_penalty: Annotated[float, Field(ge=1)] = 1.0
    """θ: the probability of a token that stands in the text already becomes p^θ."""
    no_repeat_ngram: Positive | None = None
    """No run of so many tokens comes twice."""
    ban: tuple[str, ...] = ()
    """Strings that never come about in the text."""
    begin: str = ""
    """What the new text begins with."""
    stop: tuple[str, ...] = ()
    """Strings that end the text, which is cut before the first of them."""
    processors: tuple[Annotated[str, _registered("logits processor")], ...] = ()
    """Rules from plugins (`seqloom.register_logits_processor`), each NAME or NAME=SETTING."""
    min_length: Annotated[int, Field(ge=0, strict=True)] = 0
    """Shortest output in ids; before it no text ends by itself."""
    max_length: Positive | None = None
    """Longest output in ids; by default twice the source and 20 more, or 200 new ones after a prompt."""
    n_best: Positive = 1
    """Outputs for each input: hypotheses, best first, at most `beam`; or samples."""
    batch_rows: Positive = 64
    """Inputs that are decoded together; changes no result."""

    def __post_init__(self) -> None:
        if self.strategy == "beam" and self.n_best > self.beam:
            raise UsageError(
                f"decode.n_best must be at most decode.beam, but {self.n_best} is more than {self.beam}"
            )
        if self.beam % self.groups:
            raise UsageError(
                f"decode.groups must divide decode.beam, but {self.beam} is not a multiple of {self.groups}"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise UsageError(
                f"decode.min_length must be at most decode.max_length, but {self.min_length} is more than"
                f" {self.max_length}"
            )
        if not all(self.ban) or not all(self.stop):
            raise UsageError("the strings of decode.ban and decode.stop must not be empty")


@final
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All of a run."""

    __pydantic_config__ = STRICT
    task: str
    output_dir: str
    model: dict[str, Any] = field(default_factory=dict)
    """`name`, `size`, and fields of the model's own configuration."""
    data: DataConfig = field(default_factory=DataConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    plugins: tuple[str, ...] = ()
    """The plugins that these settings name; they are given with --plugin."""


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "head": HeadConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
}
