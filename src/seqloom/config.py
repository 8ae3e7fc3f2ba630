"""One schema for options and run files. It has every field of a run; those of a model are beside the model.

A run is a YAML file (or what `--set key=value` says) with these parts:

    task: translation
    output_dir: runs/captions
    data:   {train: [train.en, train.de], validation: [val.en, val.de]}
    model:  {name: seq2seq, size: small, dropout: 0.3}
    head:   {pooling: mean}
    train:  {max_steps: 6000}
    decode: {beam: 5}
    evaluate: {bleu_tokenizer: zh}
    tasks:  {trec: {task: text-classification, data: {train: [trec.tsv]}}}

`run_file.py` reads and checks it. Imports no torch, so that what only reads settings is quick.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from seqloom.errors import UsageError
from seqloom.json_values import as_text
from seqloom.packed_weights import Storage
from seqloom.plugins import is_known, names

MOST = 2**53
"""The largest number that a setting may be: every whole number up to it is a float too."""
Positive = Annotated[int, Field(ge=1, le=MOST, strict=True)]
NotNegative = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _separator(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text.replace("\\t", "\t")


def _task_name(name: str) -> str:
    """It is part of the names of metrics, and stands before the = of TASK=FILE."""
    if not name.replace("-", "_").isidentifier():
        raise ValueError("the name of a task must be a letter, then letters, digits, _ and -")
    return name


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("must name something")
    return values


def tokenizer_kind(name: object) -> object:
    """The name of a tokenizer kind. An old name is replaced, with a notice."""
    if name == "blanks":
        logging.getLogger("seqloom").warning("the tokenizer kind blanks is now called whitespace")
        return "whitespace"
    return name


BEST = (
    *("loss", "accuracy", "macro_f1", "f1", "matthews", "pearson", "spearman"),
    *("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL", "score", "masked_accuracy"),
)
"""What may choose the best checkpoint, beside the metrics of plugins."""


def _registered(kind: str, *built_in: str) -> BeforeValidator:
    """A name of this kind, which a plugin may have registered. A logits processor may have a setting:
    `NAME=SETTING`."""

    def check(value: object) -> object:
        name = str(value).partition("=")[0] if kind == "logits processor" else value
        if value is None or is_known(name, built_in) or is_known(name, names(kind)):
            return value
        known = [repr(name) for name in (*built_in, *names(kind))]
        if not known:
            raise ValueError("must be registered by a plugin (--plugin)")
        raise ValueError(f"must be {' or '.join(filter(None, [', '.join(known[:-1]), known[-1]]))}")

    return BeforeValidator(check)


def _column(value: object) -> object:
    """Columns without names have numbers."""
    return str(value) if type(value) is int and 0 < value < 10_000 else value


def _comma_separated(value: object) -> object:
    """A text with commas between, as a list."""
    text = as_text(value)
    return value if text is None else tuple(text.split(","))


TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
_names = BeforeValidator(_comma_separated)
Column = Annotated[str, BeforeValidator(_column)]
Separator = Annotated[str, AfterValidator(_separator)]
"""A separator of texts, where \\t is a tab."""
Pooling = Literal["auto", "first", "last", "mean", "max", "sum", "attention"]
LoraTarget = Literal["query", "key", "value", "attention-output", "feed-forward"]
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
    """Training files. Pairs: two parallel files, a prefix such as data/train, or one .tsv, .csv or .jsonl
    file. Language models: any number of texts, tables, folders and patterns such as 'news/*.txt'. Every file
    may be .gz."""
    validation: tuple[str, ...] = ()
    """Validation files, in the same form. By default 2 % of the data (10 % of labelled data), at most 1,000
    examples, is split off by seed."""
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
        "moses",
    ] = "auto"
    """Form of the files; auto goes by their names. fasttext: `__label__NAME text`; label_first: `LABEL text`;
    tagged: `word_TAG`; moses: n-best lists, `id ||| text ||| features ||| score`."""
    source: Column | None = None
    """Column (or language suffix) of the input. By default guessed, with a notice. In a table without a
    header columns have numbers, from 1."""
    target: Column | None = None
    """Column (or language suffix) of the output. By default guessed, with a notice."""
    text: Column | None = None
    """Column of the text; several, such as 2,3 or title,body, are joined. By default guessed, with a
    notice."""
    join: str | None = None
    """What stands between the parts of a text that is a list, or in several columns. By default a list is an
    error, and columns are joined with a blank."""
    score: Column | None = None
    """Column of the similarity score of a pair, where it is not that of the label. By default guessed, with a
    notice."""
    label: Column | None = None
    """Column of the label. By default guessed, with a notice."""
    second: Column | None = None
    """Column of the second of two texts; the first is `text`. By default guessed, with a notice."""
    options: tuple[Column, ...] = ()
    """Columns of the options in multiple choice. By default guessed, with a notice."""
    answers_from: Literal[0, 1] | None = None
    """The number of the first option, where answers are numbers. By default taken from the training files,
    with a notice."""
    group: Column | None = None
    """Column whose equal values stay together when data are split."""
    split_seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] | None = None
    """Seed of the split into training and validation data. By default train.seed."""
    label_separator: Separator | None = None
    """Separator of labels, where a text may have several labels or none."""
    label_until: Separator | None = None
    """A label ends before this text: ':' makes DESC of DESC:manner."""
    no_label: str | None = None
    """A label that means that there is none, such as - in SNLI; several with commas between. Their rows are
    left out, and counted."""
    part: str | None = None
    """The part of a JSON file with several parts, such as train and test, that is read; several with commas
    between."""
    columns: tuple[Positive, Positive] | None = None
    """Columns of word and tag in files with one word a line, from 1. By default the first and the last."""
    tags: Literal["upos", "xpos", "deprel", "feats"] = "upos"
    """The column of tags in a CoNLL-U file."""
    repair_tags: bool = False
    """Whether an I- tag that follows no tag of its entity becomes B-, and is counted. By default it is an
    error."""
    unseen_labels: Literal["error", "ignore"] = "error"
    """What happens to labels that the training data do not have. ignore: they are counted, and every answer
    to them is wrong."""
    stride: Positive | None = None
    """Tokens shared by two windows of a text that is longer than the model reads. By default a quarter of a
    window."""
    document: Literal["line", "paragraph", "file"] = "line"
    """What a document of plain text is: a line, a paragraph between blank lines, or a file. In a table it is
    a row."""
    encoding: str = "utf-8"
    """Encoding of the files."""
    on_bad_line: Literal["error", "skip", "replace"] = "error"
    """What happens to a line that is not in the encoding or otherwise damaged. Skipped lines are counted."""
    delimiter: Separator | None = None
    """Delimiter of cells in tsv and csv. By default tab and comma."""
    header: bool | Literal["auto"] = "auto"
    """Whether the first row of tsv and csv has the names of the columns."""
    quoting: bool | None = None
    """Whether cells may be in quotes. By default in csv, not in tsv."""
    skip_initial_space: bool | None = None
    """Whether blanks after a delimiter are left out. By default where the first line of a csv file has one
    after each delimiter, with a notice."""
    max_line_bytes: Positive = 1_000_000
    """A longer line is an error."""
    tokenizer: Annotated[
        Literal["bpe", "bytes", "characters", "words", "whitespace", "wordpiece", "unigram"],
        BeforeValidator(tokenizer_kind),
    ] = "bpe"
    """How text is split into tokens: byte-level BPE, bytes, characters, words and signs, words between
    spaces, WordPiece, or unigram (needs the extra `unigram`)."""
    vocabulary: Positive = 8000
    """The most entries of the vocabulary."""
    minimum_count: Positive = 1
    """Words that occur less often are no entries of the vocabulary (word2vec: 5)."""
    learn_from: Positive = 100_000_000
    """Of a corpus of documents: the tokenizer is trained on this many characters from the beginning;
    `characters` is trained on all."""
    add_tokens: tuple[str, ...] = ()
    """Texts that become entries of the tokenizer, such as <user>: they are never split. With --from their
    embeddings begin as the mean of the others."""
    normalisation: Literal["none", "nfc", "lower"] = "none"
    """Unicode normalisation, stored with the tokenizer. lower: NFC and lower case."""
    phrases: Annotated[float, Field(gt=0, le=MOST)] | None = None
    """Two words with a higher score become one, new_york, where they are side by side: a score is how much
    more often they are so than by chance (word2phrase: 100). None: no words are joined."""
    max_length: Positive | None = None
    """Longest text in ids. Longer texts are cut, and counted in a notice. None: nothing is cut."""
    mixing_cap: Positive | None = None
    """Of several tasks: one with more examples than this is drawn from as if it had so many."""
    mixing_temperature: Annotated[float, Field(ge=1, le=MOST)] | Literal["equal"] = 1.0
    """T of several tasks, which are drawn from in the proportion of min(examples, mixing_cap)^(1/T). 1: by
    their examples; equal: all alike."""


@final
@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What turns the states of an encoder into an answer."""

    __pydantic_config__ = STRICT
    pooling: Pooling = "auto"
    """How the states of a text become one vector: the first ([CLS]); the last (with two directions their
    final states; as in GPT); their mean, maximum or sum; or a mean with learned weights (attention). auto:
    that of the encoder's paper."""
    hidden_width: NotNegative | None = None
    """Width of a hidden layer before the output; 0: none. None: that of the encoder's paper."""
    activation: Literal["auto", "tanh", "relu", "gelu"] = "auto"
    """Activation of the hidden layer."""
    dropout: Share = 0.1
    """Dropout before the last layer, in training."""
    pair: Literal["auto", "joined", "compared", "cosine", "both_orders"] = "auto"
    """How two texts are read. joined: as one row with a separator. compared: each by itself, then [u; v;
    |u-v|; u*v]. cosine: each by itself, then the cosine of u and v, for a number (Sentence-BERT).
    both_orders: joined in both orders, and the states are added (GPT-1's similarity). auto: joined for
    Transformers, else compared."""
    crf: bool = False
    """Whether tags are predicted by a linear-chain conditional random field."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: the loss of a label is weighted by examples / (labels x its examples)."""
    lm_weight: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    """λ, the weight of an auxiliary language modelling loss of a causal encoder (GPT-1: 0.5)."""


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained."""

    __pydantic_config__ = STRICT
    max_steps: Positive | None = None
    """Optimizer steps. By default as many as `epochs` need."""
    epochs: Annotated[float, Field(gt=0, le=MOST)] = 20.0
    """Passes over the data, where max_steps is not given."""
    min_steps: NotNegative = 0
    """The fewest steps, however few `epochs` need. Encoders with a task head that are trained from scratch
    have 1,000 where neither is given, for small data."""
    batch_tokens: Positive = 4096
    """Size of a batch: rows × (longest source + longest target), or rows × window."""
    batch_rows: Positive | None = None
    """A fixed number of rows in a batch, instead of batch_tokens."""
    window: Positive | None = None
    """Tokens in a row of a language model's batch. By default the model's context, or 64 where the state is
    carried on."""
    accumulate: Positive = 1
    """Micro-batches that a batch is split into to save memory. It changes no result."""
    learning_rate: Annotated[float, Field(gt=0, le=MOST)] = 1e-3
    """The highest learning rate."""
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    """What the learning rate does after the warm-up."""
    warmup_steps: NotNegative | None = None
    """Steps in which the learning rate rises from 0. By default a tenth of all, at most 200."""
    relative_rate: bool = False
    """Whether the learning rate of each parameter is multiplied by the root mean square of its values, as T5
    was trained: its embeddings begin 16 times as large as its matrices."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The learning rate of each layer is that of the layer above it times this; the head has the full
    rate."""
    head_learning_rate: Annotated[float, Field(gt=0, le=MOST)] | None = None
    """The highest learning rate of new layers on top of a pretrained model. By default that of all."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained: the beginnings of their names, such as encoder.embedding."""
    lora_rank: Positive | None = None
    """Rank of LoRA: with it only low-rank updates of the linear maps in lora_targets are trained, and a new
    head. Needs --from."""
    lora_alpha: Annotated[float, Field(gt=0, le=MOST)] = 8.0
    """α of LoRA, whose updates are scaled by α / lora_rank."""
    lora_targets: Annotated[tuple[LoraTarget, ...], AfterValidator(_some)] = ("query", "value")
    """The maps that LoRA updates: query, key, value, attention-output, feed-forward."""
    word_vectors: str | None = None
    """Word vectors that initialise the embedding: a file (word2vec, GloVe, fastText; text or binary), or a
    run folder of word-vectors."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the mean of squared gradients (AdamW)."""
    weight_decay: Annotated[float, Field(ge=0, le=MOST)] = 0.01
    """Weight decay of matrices (AdamW). Biases and embeddings have none."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    """The largest norm of the gradient. A larger one is scaled down; inf: none is."""
    label_smoothing: Share = 0.0
    """Share of the target probability that is spread over the whole vocabulary."""
    noise: tuple[str, ...] = ("random-spans",)
    """What the task denoising does to a text: random-spans, iid-spans, iid-drop, bert, mass, deshuffling or
    prefix-lm (T5); or one or more of infilling, sentence-permutation, document-rotation, deletion, masking
    (BART)."""
    noise_density: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the tokens that are corrupted, or masked. By default 0.15, and 0.3 for the kinds of BART."""
    noise_span: Annotated[float, Field(ge=1, le=MOST)] = 3.0
    """Mean length of a corrupted span of random-spans and infilling; of masked spans in words."""
    mask_units: Literal["tokens", "words", "spans"] = "tokens"
    """What fill-mask chooses to predict: tokens, whole words, or spans of words (SpanBERT)."""
    static_masks: bool = False
    """Whether each epoch has the rows and masks of the first. By default others are drawn (RoBERTa)."""
    sentence_pairs: Literal["none", "next", "order"] = "none"
    """What fill-mask learns of two texts beside the masks: next, whether the second follows the first or is
    from another document (BERT); order, whether they are swapped (ALBERT). By default next where the model
    has model.next_sentence."""
    source_loss: bool = False
    """For text pairs with a language model, which reads `<s> source <delim> target </s>`: whether the loss
    counts the tokens of the source too."""
    prompt_length: Positive | None = None
    """How many vectors are trained before the input of the model of --from, which is frozen (prompt tuning:
    Lester et al. 2021)."""
    prompt_text: str | None = None
    """Words whose embeddings these vectors begin as, repeated or cut to their number. By default the
    embeddings of tokens that are drawn by train.seed."""
    shift: NotNegative = 0
    """For images: each is moved at random by at most this many pixels up or down and left or right,
    differently in each epoch."""
    evaluate_every: Positive | None = None
    """Steps between validations, each with a checkpoint. By default there are twenty in a run."""
    objective: Annotated[str | None, _registered("objective")] = None
    """An objective from a plugin (`seqloom.register_objective`); by default that of the task."""
    best: Annotated[str, _registered("metric", *BEST)] = "loss"
    """What chooses the best checkpoint: loss, or the metric of the task (its default there). bleu, chrf,
    exact_match, rouge and score (of several tasks: the mean of their main metrics) decode the validation
    data."""
    patience: Positive | None = None
    """Stop after this many validations without a better one."""
    log_every: Positive = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Also write the folder tensorboard/ (needs the extra `tensorboard`)."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...], _names
    ] = ()
    """Programs that are told the metrics too, such as wandb,mlflow; each needs the extra of its name."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16: products in bf16 (autocast), weights and sums in float32."""
    device: str = "auto"
    """auto, cpu or cuda."""
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    """Threads of the CPU. Another number changes the last bits."""
    ordered_updates: bool = False
    """Whether several threads add up what they change in a fixed order, so that the same training ends in the
    same bits (word vectors by word2vec)."""
    worker_timeout: Positive = 600
    """Seconds without a sign of another worker, after which all end."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Seed of everything that is random."""


@final
@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How text is generated. Stored in the run folder as the model's defaults."""

    __pydantic_config__ = STRICT
    strategy: Literal["beam", "greedy", "sample"] = "beam"
    """beam: the most likely text that is found. greedy: the most likely token at each step, as a beam of 1.
    sample: drawn from the model's distribution, changed by
    temperature, top_k, top_p and min_p."""
    temperature: Annotated[float, Field(ge=0, le=MOST)] = 1.0
    """Logits are divided by it, before all other rules. 0 is the limit: the most likely token."""
    top_k: Positive | None = None
    """Then only the k most likely tokens are kept."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Then only the smallest set of most likely tokens whose probability is at least p is kept."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Then only tokens at least this share as likely as the most likely one are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Seed of sampling. The same seed and settings give the same text, whatever else is in the batch."""
    beam: Annotated[int, Field(ge=1, le=1000, strict=True)] = 5
    """Hypotheses kept; 1 is greedy."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """α of the score, Σ log p / length^α, the end mark counted."""
    groups: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Groups of the beam, for n_best outputs that differ: each group avoids what the groups before it
    chose."""
    diversity: Annotated[float, Field(ge=0, le=MOST)] = 0.5
    """What a token costs a group, in nats, for each earlier group's hypothesis that chose it at this step."""
    refill: bool = False
    """Whether the place of a hypothesis that ends is given to the next best one (as transformers does)."""
    early_stopping: Literal["never", "likely", "full"] = "never"
    """When a beam that is refilled stops before nothing better can come. likely: once as many hypotheses have
    ended as there are places, and the best that lives is no better than the worst of them (the default of
    transformers). full: once as many have ended."""
    repetition_penalty: Annotated[float, Field(ge=1, le=MOST)] = 1.0
    """θ: the probability p of a token that is already in the text becomes p^θ."""
    no_repeat_ngram: Positive | None = None
    """No n-gram of this length occurs twice."""
    ban: tuple[str, ...] = ()
    """Strings that never occur in the text."""
    begin: str = ""
    """How the new text begins."""
    stop: tuple[str, ...] = ()
    """Strings that end the text, which is cut before the first of them."""
    processors: tuple[Annotated[str, _registered("logits processor")], ...] = ()
    """Rules from plugins (`seqloom.register_logits_processor`), each NAME or NAME=SETTING."""
    min_length: NotNegative = 0
    """Shortest output in ids. No text ends by itself before it."""
    max_length: Positive | None = None
    """Longest output in ids. By default twice the source and 20 more, or 200 new ones after a prompt."""
    forced_end: bool = False
    """Whether the last id of an output of max_length is the end mark (as with forced_eos_token_id of
    transformers)."""
    n_best: Positive = 1
    """Outputs for each input: hypotheses, best first, at most `beam`; or samples."""
    batch_rows: Positive = 64
    """Inputs that are decoded together. It changes no result."""
    engine: Literal["auto", "compiled", "torch"] = "auto"
    """What makes a step: the compiled call of a family that has one, or torch. auto: compiled where it can
    be."""
    weights: Storage = "float32"
    """How the weights of a gpt, recurrent_lm, seq2seq, transformer or t5 are stored while it writes, and
    those of a bert or t5 while it reads: bfloat16 and int8 (a scale for each row) read less memory and change
    results a little."""

    def __post_init__(self) -> None:
        if self.strategy != "sample" and self.n_best > self.width:
            raise UsageError(
                f"decode.n_best must be at most decode.beam, but {self.n_best} is more than {self.width}"
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
        if self.early_stopping != "never" and not self.refill:
            raise UsageError(
                f"decode.early_stopping={self.early_stopping} changes nothing without decode.refill=true;"
                " leave it out or add that"
            )
        if self.forced_end and self.max_length is None:
            raise UsageError("decode.forced_end needs decode.max_length; give it, or leave it out")
        if not all(self.ban) or not all(self.stop):
            raise UsageError("the strings of decode.ban and decode.stop must not be empty")

    @property
    def width(self) -> int:
        """Of the beam, where the strategy is a search."""
        return 1 if self.strategy == "greedy" else self.beam


@final
@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """How answers are measured. Stored in the run folder as the model's defaults."""

    __pydantic_config__ = STRICT
    bleu_tokenizer: Literal[
        "auto",
        "13a",
        "intl",
        "zh",
        "ja-mecab",
        "ko-mecab",
        "char",
        "none",
        "flores101",
        "flores200",
        "spBLEU-1K",
    ] = "auto"
    """How sacreBLEU cuts words for BLEU. auto: 13a; by the script of the references zh for Chinese; for
    Japanese ja-mecab, or char where MeCab is not installed; char for Thai, Lao, Khmer, Burmese and
    Tibetan."""


@final
@dataclass(frozen=True, kw_only=True)
class MixedTaskConfig:
    """One of several tasks that a text-to-text model learns at once."""

    __pydantic_config__ = STRICT
    task: str
    """What its files are for, such as text-classification."""
    data: DataConfig = field(default_factory=DataConfig)
    """Its files, and how they are read."""
    prefix: str | None = None
    """What a source begins with. By default the name of the task and, where a text is all there is, what it
    is: `cola sentence: `."""
    number_step: Annotated[float, Field(gt=0, le=MOST)] = 0.2
    """Of sentence-similarity: scores are rounded to a multiple of it."""


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
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    tasks: dict[Annotated[str, AfterValidator(_task_name)], MixedTaskConfig] = field(
        default_factory=dict
    )
    """Name -> a task of text2text-generation, where it learns several at once."""
    plugins: tuple[str, ...] = ()
    """The plugins that these settings name; they are given with --plugin."""


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "head": HeadConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
    "evaluate": EvaluateConfig,
}
