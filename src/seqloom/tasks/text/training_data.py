"""From labelled files to what a training of a reader reads: examples, a part held out, a tokenizer, rows, a
model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import APART, RunConfig
from seqloom.data.batching.pair_batches import BatchPlan
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.encoding.encode_texts import EncodingOptions
from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS, EncodedDataset
from seqloom.data.readers.records import refuse_pipe
from seqloom.errors import UsageError, printable
from seqloom.evaluation.predictions import predict_dataset
from seqloom.interop.hub_origin import HubOrigin
from seqloom.interop.pretrained import Pretrained, load_pretrained, with_special_tokens
from seqloom.interop.sentence_transformers import MODULES
from seqloom.models import model_family
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig, resolved_head
from seqloom.protocols import EncodedBatch, NewModel, Rows, StoredTokenizer
from seqloom.run_file import parse, to_plain
from seqloom.runs import run_folder
from seqloom.runs.progress import log_progress, logged_report, split_note
from seqloom.runs.settings import model_fields
from seqloom.tasks.text.head_task import HeadTask, encode_examples, encoding_options
from seqloom.tasks.text.initialise import initialise_from_data
from seqloom.tasks.text.text_tasks import TextTaskSpec
from seqloom.tasks.training_data import check_same_data, learned_tokenizer
from seqloom.text.word_characters import alphabet_of
from seqloom.training.objectives import HeadObjective

logger = logging.getLogger(__name__)

ENCODER_ONLY: dict[str, dict[str, Any]] = {
    "bert": {"head": "none", "pooler": False, "next_sentence": False},
    "t5": {"decoder_layers": 0},
}
"""What an encoder leaves to the head of its reader."""


@final
@dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples turned into what the loop reads."""

    run: RunConfig
    head_task: HeadTask
    tokenizer: StoredTokenizer
    configured: EncoderWithHeadConfig
    pretrained: Pretrained | None
    """What it begins with."""
    origin: HubOrigin | None
    """The files of others that its tokenizer comes with."""
    fresh: bool
    """Whether there are no weights of its own yet."""
    dataset: EncodedDataset
    examples: Sequence[Any]
    validation: Sequence[Any]
    held_out: EncodedDataset
    options: EncodingOptions

    @property
    def labels(self) -> tuple[str, ...]:
        return self.head_task.labels

    @property
    def plan(self) -> BatchPlan:
        train = self.run.train
        return BatchPlan(
            seed=train.seed, batch_tokens=train.batch_tokens, batch_rows=train.batch_rows, special_ids=None
        )

    def about(self) -> str:
        labels = f" of {len(self.labels):,} labels" if self.labels else ""
        return f"{len(self.examples):,} examples{labels} ({len(self.validation):,} for validation)"

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
        """A new model, with the weights that it begins with."""
        model = EncoderWithHead(self.configured)
        if self.pretrained is not None:
            for note in load_pretrained(model, self.pretrained):
                logger.info(note)
        return NewModel(model, self.configured, "encoder_with_head", self.origin)

    def initialise(self, model: nn.Module) -> None:
        initialise_from_data(model, self.run, self.tokenizer, self.dataset, self.fresh)

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of labelled texts")

    def validate(self, model: nn.Module) -> dict[str, float]:
        outputs = predict_dataset(cast(EncoderWithHead, model), self.held_out)
        return self.head_task.evaluate(self.validation, self.held_out, outputs, 0).metrics


def prepare_examples(
    text_task: TextTaskSpec, run_config: RunConfig, folder: Path, first: bool
) -> EncodedExamples:
    """Reads the examples, holds a part out, learns the tokenizer or takes that of the start, lays all out as
    rows."""
    data, train = run_config.data, run_config.train
    prints = [fingerprint(path) for path in files_behind([*data.train, *data.validation])]
    check_same_data(folder, prints)
    head_task, examples, validation = read_examples(text_task, run_config)
    pretrained, start = None, run_config.model.get("from")
    if (folder / run_folder.CONFIG).exists() and (
        start is None or run_folder.has_weights(folder)
    ):  # killed before: begins again
        content, configured = run_folder.config_in(folder)
        tokenizer = run_folder.tokenizer_of(folder, content)
        origin, head_task = None, with_label_order(head_task, configured.labels)
    elif start is not None:
        pretrained = run_folder.pretrained_from(start)
        assert pretrained.tokenizer is not None
        tokenizer, origin = pretrained.tokenizer, pretrained.origin
        if pretrained.kind == head_task.kind:
            head_task = with_label_order(head_task, pretrained.labels)  # so that its head comes along
        for note in pretrained.notes:
            logger.info(note)
        if (
            head_task.kind == "regression"
            and run_config.head.pair == "auto"
            and (run_folder.resolve_folder(start) / MODULES).is_file()
        ):
            logger.info(
                f"the vectors of {printable(start)} were made to be compared: --set head.pair=cosine begins"
                " as good as they are"
            )
        if (
            has_delimiter_marks(pretrained.encoder_type, tokenizer)
            and pretrained.encoder_fields["vocabulary_size"] == pretrained.vocabulary_size
        ):
            tensors, fields = with_special_tokens(
                pretrained.encoder_tensors,
                pretrained.encoder_fields,
                len(CAUSAL_MARKS),
                torch.Generator().manual_seed(train.seed),
            )
            pretrained = replace(pretrained, encoder_tensors=tensors, encoder_fields=fields)
        configured = configure(run_config, head_task, tokenizer, examples, pretrained)
    else:
        texts = head_task.texts(log_progress(examples, "examples read for the tokenizer"))
        tokenizer, origin = learned_tokenizer(folder, data, lambda: texts, first), None
        configured = configure(run_config, head_task, tokenizer, examples, None)
    options = encoding_options(configured, tokenizer, data)
    dataset = encode_examples(head_task, examples, options, data)
    held_out = encode_examples(head_task, validation, options, data)
    for note in options.truncation.notices():
        logger.info(note)
    if first and not (folder / run_folder.DATA).exists():
        counts = {
            "examples": len(examples),
            "validation_examples": len(validation),
            "labels": len(head_task.labels),
        }
        files.write_json(folder / run_folder.DATA, {"files": prints, **counts})
    return EncodedExamples(
        run=run_config,
        head_task=head_task,
        tokenizer=tokenizer,
        configured=configured,
        pretrained=pretrained,
        origin=origin,
        fresh=not run_folder.has_weights(folder),
        dataset=dataset,
        examples=examples,
        validation=validation,
        held_out=held_out,
        options=options,
    )


def with_label_order(head_task: HeadTask, labels: tuple[str, ...]) -> HeadTask:
    """The task with its labels in this order, where they are the same."""
    return head_task.with_labels(labels) if set(labels) == set(head_task.labels) else head_task


def read_examples(
    text_task: TextTaskSpec, run_config: RunConfig
) -> tuple[HeadTask, Sequence[Any], Sequence[Any]]:
    """(the task, training examples, validation examples)"""
    data = run_config.data
    with logged_report() as report:
        examples = list(log_progress(text_task.read(data.train, data, report), "examples read"))
    head_task = text_task.from_examples(examples, data)
    if data.validation:
        with logged_report() as report:
            return head_task, examples, list(head_task.read(data.validation, data, report))
    seed = run_config.train.seed if data.split_seed is None else data.split_seed
    held = text_task.split(examples, seed)
    chosen = set(held.tolist())
    logger.info(split_note(len(held), "example", seed))
    return (
        head_task,
        [one for at, one in enumerate(examples) if at not in chosen],
        [examples[at] for at in held],
    )


def configure(
    run_config: RunConfig,
    head_task: HeadTask,
    tokenizer: StoredTokenizer,
    examples: Sequence[Any],
    pretrained: Pretrained | None,
) -> EncoderWithHeadConfig:
    """The configuration of a new reader. Raises UsageError that names all that is wrong."""
    if (
        run_config.head.pair != "auto"
        and not head_task.pairs
        and run_config.task in ("text-classification", "sentence-similarity")
    ):
        raise UsageError(
            "head.pair is for two texts, but each example has one; leave it out, or name the other: --set"
            " data.second=NAME"
        )
    name, size = run_config.model["name"], run_config.model["size"]
    fields = model_fields(run_config.model)
    head, more = run_config.head, ENCODER_ONLY.get(name, {})
    if pretrained is not None:
        found = parse(model_family(name)[0], {**pretrained.encoder_fields, **fields, **more}, "model.")
        usual = (
            {} if head.pair in APART else pretrained.heads.get(head_task.kind, {})
        )  # theirs read two texts as one row
        head = replace(
            head, **{key: value for key, value in usual.items() if getattr(head, key) in ("auto", None)}
        )
    else:
        if name == "bag_of_words" and fields.get("features", "embeddings") != "embeddings":
            fields = {"width": max(len(head_task.labels), 1), **fields}  # so that it is linear in the counts
            head = replace(head, pooling="sum") if head.pooling == "auto" else head
        if name == "convolution" and head_task.kind in ("tagging", "span"):
            fields = {"centred": True, **fields}  # each word is asked for, the last ones too
        found = run_folder.model_config(name, size, tokenizer.vocabulary_size, {**fields, **more})
        if getattr(found, "characters", "none") != "none":
            if head_task.kind != "tagging":
                raise UsageError(
                    "model.characters is for token-classification, where the words are known; leave it out"
                )
            found = replace(found, alphabet=alphabet_of(word for one in examples for word in one.words))
    settled = resolved_head(head, head_task.kind, found.traits)
    if run_config.head.activation != "auto" and not settled.hidden_width:
        raise UsageError(
            "head.activation is that of a hidden layer, but there is none; add head.hidden_width=N, or leave"
            " it out"
        )
    return EncoderWithHeadConfig(
        kind=head_task.kind,
        encoder={"model_type": name, **to_plain(found)},
        head=settled,
        pairs=head_task.pairs,
        labels=head_task.labels,
        vocabulary_size=tokenizer.vocabulary_size,
        **head_task.config_fields(),
    )


def has_delimiter_marks(encoder: str, tokenizer: StoredTokenizer) -> bool:
    """Whether an encoder has marks beyond the vocabulary of its tokenizer."""
    return encoder == "gpt" and tokenizer.pretrained


def files_behind(paths: Sequence[str]) -> list[str]:
    """The files of what was named: of a folder all that lie in it."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += sorted(
                os.path.join(folder, name)
                for folder, _, names in os.walk(path)
                for name in names
                if not name.startswith(".")
            )
        else:
            refuse_pipe(path)
            files.open_binary(path).close()
            found.append(path)
    return [path for path in found if ".seqloom-cache" not in path]
