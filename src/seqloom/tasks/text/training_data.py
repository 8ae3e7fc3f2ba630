"""From labelled files to the training of an encoder with a head: examples, validation examples, a tokenizer,
rows, a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, cast, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import APART, HeadConfig, RunConfig
from seqloom.data.batching.pair_batches import BatchPlan
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS, EncodedDataset, row_template
from seqloom.data.readers.examples import TaggedWords
from seqloom.data.readers.records import refuse_pipe
from seqloom.errors import UsageError, counted, printable
from seqloom.evaluation.predictions import predict_dataset
from seqloom.interop.hub_origin import HubOrigin
from seqloom.interop.pretrained import (
    Pretrained,
    load_pretrained,
    with_added_rows,
    with_special_tokens,
)
from seqloom.interop.sentence_transformers import MODULES
from seqloom.long_work import log_progress
from seqloom.models import model_family
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig, resolved_head
from seqloom.protocols import (
    EncodedBatch,
    EncoderTraits,
    ModelConfig,
    NewModel,
    Rows,
    StoredTokenizer,
)
from seqloom.run_file import parse, to_plain
from seqloom.runs import run_folder
from seqloom.runs.new_model import model_config
from seqloom.runs.progress import log_notes, logged_report, split_note
from seqloom.runs.settings import model_fields
from seqloom.tasks.text.head_task import E, HeadTask, encoding_options
from seqloom.tasks.text.initialise import initialise_from_data
from seqloom.tasks.text.text_tasks import TextTaskSpec
from seqloom.tasks.training_data import (
    StepTrainingData,
    batch_plan,
    check_same_data,
    impossible_targets,
    learned_tokenizer,
    record_data,
)
from seqloom.text.added_tokens import with_added
from seqloom.text.word_characters import alphabet_of
from seqloom.training.objectives import HeadObjective

logger = logging.getLogger(__name__)

ENCODER_ONLY: dict[str, dict[str, object]] = {
    "bert": {"head": "none", "pooler": False, "next_sentence": False},
    "t5": {"decoder_layers": 0},
    "elmo": {"output": "none"},
}
"""Family -> fields that leave out what a task head takes the place of."""


class ModelStart(NamedTuple, Generic[E]):
    """What a training starts from."""

    head_task: HeadTask[E]
    tokenizer: StoredTokenizer
    config: EncoderWithHeadConfig
    pretrained: Pretrained | None = None
    """The weights of the encoder; None if they are random, or the run's own."""
    origin: HubOrigin | None = None
    """The checkpoint of the hub that the tokenizer comes from."""


@final
@dataclass(frozen=True, kw_only=True)
class EncodedExamples(StepTrainingData, Generic[E]):
    """Examples as the training loop reads them."""

    kind: ClassVar = "labelled texts"
    run: RunConfig
    start: ModelStart[E]
    fresh: bool
    """Whether the run has no weights of its own yet."""
    dataset: EncodedDataset
    examples: Sequence[E]
    validation: Sequence[E]
    held_out: EncodedDataset
    """The rows of `validation`."""
    options: EncodingOptions

    @property
    def head_task(self) -> HeadTask[E]:
        return self.start.head_task

    @property
    def tokenizer(self) -> StoredTokenizer:
        return self.start.tokenizer

    @property
    def plan(self) -> BatchPlan:
        return batch_plan(self.run.train, None)

    def about(self) -> str:
        names = self.head_task.labels
        labels = f" of {counted(len(names), 'label')}" if names else ""
        return f"{counted(len(self.examples), 'example')}{labels} ({len(self.validation):,} for validation)"

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(self.dataset, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.dataset)

    def load(self, rows: Rows, whole: Rows) -> EncodedBatch:
        return self.dataset.load(rows, whole)

    def describe(self, rows: Rows) -> str:
        return self.dataset.describe(rows)

    def objective(self) -> HeadObjective:
        return HeadObjective(self.run.train.label_smoothing)

    def build(self) -> NewModel:
        """A new model, with the weights that it starts from."""
        model = EncoderWithHead(self.start.config)
        if self.start.pretrained is not None:
            log_notes(load_pretrained(model, self.start.pretrained))
        return NewModel(model, self.start.config, "encoder_with_head", self.start.origin)

    def initialise(self, model: nn.Module) -> None:
        initialise_from_data(cast(EncoderWithHead, model), self.run, self.dataset, self.fresh)

    def validate(self, model: nn.Module) -> dict[str, float]:
        outputs = predict_dataset(cast(EncoderWithHead, model), self.held_out)
        return self.head_task.evaluate(self.validation, self.held_out, outputs, 0).metrics


def prepare_examples(
    spec: TextTaskSpec[E], run_config: RunConfig, folder: Path, first: bool
) -> EncodedExamples[E]:
    """Reads the examples, holds some out for validation, trains the tokenizer or takes that of the
    checkpoint, encodes all as rows."""
    data = run_config.data
    fingerprints = [fingerprint(path) for path in expand_folders([*data.train, *data.validation])]
    check_same_data(folder, fingerprints)
    head_task, examples, validation = read_examples(spec, run_config)
    fresh = not run_folder.has_weights(folder)
    checkpoint = run_config.model.get("from")
    if (folder / run_folder.CONFIG).exists() and (checkpoint is None or not fresh):
        content, config = run_folder.config_in(folder)  # the run was stopped before
        head_task = head_task.with_label_order(config.labels)
        start = ModelStart(head_task, run_folder.tokenizer_of(folder, content), config)
    elif checkpoint is not None:
        start = start_from_checkpoint(run_config, head_task, examples)
    else:
        texts = head_task.texts(log_progress(examples, "examples read for the tokenizer"))
        tokenizer = learned_tokenizer(folder, data, lambda: texts, first)
        config = configure(run_config, head_task, tokenizer, examples, None)
        start = ModelStart(head_task, tokenizer, config)
    options = encoding_options(start.config, start.tokenizer, data)
    examples, dataset = start.head_task.encode_checked(examples, options, data)
    validation, held_out = start.head_task.encode_checked(validation, options, data)
    log_notes(options.truncation.notices())
    if first:
        counts = {"examples": len(examples), "validation_examples": len(validation)}
        record_data(folder, fingerprints, **counts, labels=len(start.head_task.labels))
    return EncodedExamples(
        run=run_config,
        start=start,
        fresh=fresh,
        dataset=dataset,
        examples=examples,
        validation=validation,
        held_out=held_out,
        options=options,
    )


def read_examples(
    spec: TextTaskSpec[E], run_config: RunConfig
) -> tuple[HeadTask[E], Sequence[E], Sequence[E]]:
    """(the task, training examples, validation examples)"""
    data = run_config.data
    with logged_report() as report:
        examples = list(log_progress(spec.read(data.train, data, report), "examples read"))
    head_task = spec.from_examples(examples, data)
    if data.validation:
        with logged_report() as report:
            return head_task, examples, list(head_task.read(data.validation, data, report))
    seed = run_config.train.seed if data.split_seed is None else data.split_seed
    held_out = spec.split(examples, seed).tolist()
    logger.info(split_note(len(held_out), "example", seed))
    trained = sorted(set(range(len(examples))).difference(held_out))
    return (
        head_task,
        [examples[index] for index in trained],
        [examples[index] for index in held_out],
    )


def start_from_checkpoint(
    run_config: RunConfig, head_task: HeadTask[E], examples: Sequence[E]
) -> ModelStart[E]:
    """The encoder and the tokenizer of `model.from`; also its head, where it is for the same labels."""
    checkpoint = run_config.model["from"]
    pretrained = _with_added_tokens(
        run_folder.pretrained_from(checkpoint), run_config.data.add_tokens
    )
    tokenizer = pretrained.tokenizer
    assert tokenizer is not None
    if pretrained.kind == head_task.kind:
        head_task = head_task.with_label_order(pretrained.labels)
    log_notes(pretrained.notes)
    may_compare = head_task.kind == "regression" and run_config.head.pair == "auto"
    if may_compare and (run_folder.resolve_folder(checkpoint) / MODULES).is_file():
        logger.info(
            f"the vectors of {printable(checkpoint)} were made to be compared: --set head.pair=cosine begins"
            " as good as they are"
        )
    fields = pretrained.encoder_fields
    lacks_marks = fields["vocabulary_size"] == pretrained.vocabulary_size
    if pretrained.encoder_type == "gpt" and tokenizer.pretrained and lacks_marks:
        # GPT-1 has special tokens beyond its tokenizer's vocabulary, which a checkpoint without a head lacks
        generator = torch.Generator().manual_seed(run_config.train.seed)
        tensors, fields = with_special_tokens(
            pretrained.encoder_tensors, fields, len(CAUSAL_MARKS), generator
        )
        pretrained = replace(pretrained, encoder_tensors=tensors, encoder_fields=fields)
    config = configure(run_config, head_task, tokenizer, examples, pretrained)
    return ModelStart(head_task, tokenizer, config, pretrained, pretrained.origin)


def _with_added_tokens(pretrained: Pretrained, tokens: Sequence[str]) -> Pretrained:
    """The same with further entries of its tokenizer, and rows for them. Raises UsageError if the rows
    after those of the tokenizer are for special tokens."""
    assert pretrained.tokenizer is not None
    if not tokens:
        return pretrained
    if pretrained.encoder_fields["vocabulary_size"] != pretrained.vocabulary_size:
        raise UsageError(
            "data.add_tokens is not for a model that has special tokens after those of its tokenizer; start"
            " from the model that it started from"
        )
    tokenizer, added = with_added(pretrained.tokenizer, tokens)
    size = tokenizer.vocabulary_size
    return replace(
        pretrained,
        tokenizer=tokenizer,
        vocabulary_size=size,
        encoder_fields={**pretrained.encoder_fields, "vocabulary_size": size},
        encoder_tensors=with_added_rows(pretrained.encoder_tensors, added, size),
    )


def _check_stride(run_config: RunConfig, encoder: ModelConfig) -> None:
    """Raises UsageError if no text is cut into windows, so that they share nothing."""
    data, name = run_config.data, run_config.model["name"]
    if data.stride is not None and vars(encoder).get("context") is None and not data.max_length:
        raise UsageError(
            f"data.stride changes nothing here: {name} reads texts of any length whole; leave it out, or add"
            " data.max_length"
        )


def configure(
    run_config: RunConfig,
    head_task: HeadTask[E],
    tokenizer: StoredTokenizer,
    examples: Sequence[E],
    pretrained: Pretrained | None,
) -> EncoderWithHeadConfig:
    """The configuration of a new model. Raises UsageError that names all that is wrong."""
    head, kind = run_config.head, head_task.kind
    _check_pair(run_config, head_task.pairs)
    name = run_config.model["name"]
    fields = model_fields(run_config.model)
    suppressed = _suppressed_ids(run_config, tokenizer)
    if pretrained is not None:
        fields = {**pretrained.encoder_fields, **fields, **ENCODER_ONLY.get(name, {})}
        if not tokenizer.pretrained and "suppressed_ids" in fields:
            fields["suppressed_ids"] = suppressed
        encoder = parse(model_family(name)[0], fields, "model.")
        if head.pair not in APART:  # heads of the hub read two texts as one row
            settings, hub_head = vars(head), pretrained.heads.get(kind, {})
            head = replace(
                head, **{key: hub_head[key] for key in hub_head if settings[key] in ("auto", None)}
            )
    else:
        if name == "bag_of_words" and fields.get("features", "embeddings") != "embeddings":
            # so that it is linear in the counts
            fields = {"width": max(len(head_task.labels), 1), **fields}
            head = replace(head, pooling="sum") if head.pooling == "auto" else head
        if name == "convolution" and kind in ("tagging", "span"):
            fields = {"centred": True, **fields}  # each word has an output, the last ones too
        fields = {**fields, **ENCODER_ONLY.get(name, {})}
        encoder = model_config(
            name,
            run_config.model["size"],
            tokenizer.vocabulary_size,
            fields,
            suppressed_ids=suppressed,
        )
        if vars(encoder).get("characters", "none") != "none":
            if head_task.kind != "tagging":
                raise UsageError(
                    "model.characters is for token-classification, where the words are known; leave it out"
                )
            words = (
                word for example in cast(Sequence[TaggedWords], examples) for word in example.words
            )
            encoder = replace(encoder, alphabet=alphabet_of(words))
    _check_stride(run_config, encoder)
    resolved = resolved_head(head, kind, encoder.traits)
    _check_head(run_config, resolved, encoder.traits)
    return EncoderWithHeadConfig(
        kind=kind,
        encoder={"model_type": name, **to_plain(encoder)},
        head=resolved,
        pairs=head_task.pairs,
        labels=head_task.labels,
        vocabulary_size=tokenizer.vocabulary_size,
        **head_task.config_fields(),
    )


def _check_head(run_config: RunConfig, resolved: HeadConfig, traits: EncoderTraits) -> None:
    """Raises UsageError for settings of the head that change nothing."""
    if run_config.head.pooling != "auto" and traits.one_state:
        raise UsageError(
            "head.pooling makes one state of those of a text, but"
            f" {run_config.model['name']} has only one; leave it out"
        )
    if run_config.head.activation != "auto" and not resolved.hidden_width:
        raise UsageError(
            "head.activation is that of a hidden layer, but there is none; add head.hidden_width=N, or leave"
            " it out"
        )


def _check_pair(run_config: RunConfig, pairs: bool) -> None:
    """Raises UsageError if a setting is for two texts, but each example has one."""
    may_have_pairs = run_config.task in ("text-classification", "sentence-similarity")
    if run_config.head.pair != "auto" and not pairs and may_have_pairs:
        raise UsageError(
            "head.pair is for two texts, but each example has one; leave it out, or name the other: --set"
            " data.second=NAME"
        )


def _suppressed_ids(run_config: RunConfig, tokenizer: StoredTokenizer) -> tuple[int, ...]:
    """What is never a target of the language modelling loss beside that of the head: special tokens but for
    those of a row after its first one."""
    if not run_config.head.lm_weight:
        return ()
    row = row_template(
        tokenizer.special_ids, run_config.model["name"], True, tokenizer.vocabulary_size
    )
    return impossible_targets(tokenizer, (*row.separator, *row.suffix))


def expand_folders(paths: Sequence[str]) -> list[str]:
    """The named files; of a folder, all files in it and below it."""
    expanded: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            refuse_pipe(path)
            files.open_binary(path).close()
            expanded.append(path)
            continue
        in_folder: list[str] = []
        for folder, _, names in os.walk(path):
            in_folder += [os.path.join(folder, name) for name in names if not name.startswith(".")]
        expanded += sorted(in_folder)
    return [path for path in expanded if ".seqloom-cache" not in path]
