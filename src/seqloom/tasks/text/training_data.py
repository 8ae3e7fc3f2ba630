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
from seqloom.runs.progress import counted, split_note, tallied
from seqloom.runs.settings import model_fields
from seqloom.tasks.text.head_task import HeadTask, encode_examples, encoding_options
from seqloom.tasks.text.initialise import initialise_from_data
from seqloom.tasks.text.text_tasks import TextTask
from seqloom.tasks.training_data import check_same_data, learned_tokenizer
from seqloom.text.word_characters import alphabet_of
from seqloom.training.objectives import HeadObjective

logger = logging.getLogger(__name__)

ANEW: dict[str, dict[str, Any]] = {
    "bert": {"head": "none", "pooler": False, "next_sentence": False},
    "t5": {"decoder_layers": 0},
}
"""What an encoder leaves to the head of its reader."""


@final
@dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples turned into what the loop reads."""

    run: RunConfig
    work: HeadTask
    tokenizer: StoredTokenizer
    configured: EncoderWithHeadConfig
    started: Pretrained | None
    """What it begins with."""
    origin: HubOrigin | None
    """The files of others that its tokenizer comes with."""
    fresh: bool
    """Whether there are no weights of its own yet."""
    items: EncodedDataset
    examples: Sequence[Any]
    validation: Sequence[Any]
    held_out: EncodedDataset
    how: EncodingOptions

    @property
    def labels(self) -> tuple[str, ...]:
        return self.work.labels

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
        return self.plan.epoch(self.items, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.items)

    def load(self, rows: Rows, whole: Rows) -> EncodedBatch:
        return self.items.load(rows, whole)

    def describe(self, rows: Rows) -> str:
        return self.items.describe(rows)

    def objective(self) -> HeadObjective:
        return HeadObjective(self.run.train.label_smoothing)

    def build(self) -> NewModel:
        """A new model, with the weights that it begins with."""
        model = EncoderWithHead(self.configured)
        if self.started is not None:
            for note in load_pretrained(model, self.started):
                logger.info(note)
        return NewModel(model, self.configured, "encoder_with_head", self.origin)

    def initialise(self, model: nn.Module) -> None:
        initialise_from_data(model, self.run, self.tokenizer, self.items, self.fresh)

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be made of labelled texts")

    def validate(self, model: nn.Module) -> dict[str, float]:
        outputs = predict_dataset(cast(EncoderWithHead, model), self.held_out)
        return self.work.evaluate(self.validation, self.held_out, outputs, 0).metrics


def prepare_examples(
    text_task: TextTask, run_config: RunConfig, folder: Path, first: bool
) -> EncodedExamples:
    """Reads the examples, holds a part out, learns the tokenizer or takes that of the start, lays all out as
    rows."""
    data, train = run_config.data, run_config.train
    prints = [fingerprint(path) for path in files_behind([*data.train, *data.validation])]
    check_same_data(folder, prints)
    work, examples, validation = read_examples(text_task, run_config)
    started, start = None, run_config.model.get("from")
    if (folder / run_folder.CONFIG).exists() and (
        start is None or run_folder.has_weights(folder)
    ):  # killed before: begins again
        content, configured = run_folder.config_in(folder)
        tokenizer = run_folder.tokenizer_of(folder, content)
        origin, work = None, in_order(work, configured.labels)
    elif start is not None:
        started = run_folder.pretrained_from(start)
        assert started.tokenizer is not None
        tokenizer, origin = started.tokenizer, started.origin
        if started.kind == work.kind:
            work = in_order(work, started.labels)  # so that its head comes along
        for note in started.notes:
            logger.info(note)
        if (
            work.kind == "regression"
            and run_config.head.pair == "auto"
            and (run_folder.located(start) / MODULES).is_file()
        ):
            logger.info(
                f"the vectors of {printable(start)} were made to be compared: --set head.pair=cosine begins"
                " as good as they are"
            )
        if (
            marked_by(started.encoder_type, tokenizer)
            and started.encoder_fields["vocabulary_size"] == started.vocabulary_size
        ):
            tensors, fields = with_special_tokens(
                started.encoder_tensors,
                started.encoder_fields,
                len(CAUSAL_MARKS),
                torch.Generator().manual_seed(train.seed),
            )
            started = replace(started, encoder_tensors=tensors, encoder_fields=fields)
        configured = configure(run_config, work, tokenizer, examples, started)
    else:
        texts = work.texts(counted(examples, "examples read for the tokenizer"))
        tokenizer, origin = learned_tokenizer(folder, data, lambda: texts, first), None
        configured = configure(run_config, work, tokenizer, examples, None)
    how = encoding_options(configured, tokenizer, data)
    items = encode_examples(work, examples, how, data)
    held_out = encode_examples(work, validation, how, data)
    for note in how.truncation.notices():
        logger.info(note)
    if first and not (folder / run_folder.DATA).exists():
        counts = {
            "examples": len(examples),
            "validation_examples": len(validation),
            "labels": len(work.labels),
        }
        files.write_json(folder / run_folder.DATA, {"files": prints, **counts})
    return EncodedExamples(
        run=run_config,
        work=work,
        tokenizer=tokenizer,
        configured=configured,
        started=started,
        origin=origin,
        fresh=not run_folder.has_weights(folder),
        items=items,
        examples=examples,
        validation=validation,
        held_out=held_out,
        how=how,
    )


def in_order(work: HeadTask, labels: tuple[str, ...]) -> HeadTask:
    """The task with its labels in this order, where they are the same."""
    return work.with_labels(labels) if set(labels) == set(work.labels) else work


def read_examples(
    text_task: TextTask, run_config: RunConfig
) -> tuple[HeadTask, Sequence[Any], Sequence[Any]]:
    """(the task, training examples, validation examples)"""
    data = run_config.data
    with tallied() as tally:
        examples = list(counted(text_task.read(data.train, data, tally), "examples read"))
    work = text_task.from_examples(examples, data)
    if data.validation:
        with tallied() as tally:
            return work, examples, list(work.read(data.validation, data, tally))
    seed = run_config.train.seed if data.split_seed is None else data.split_seed
    held = text_task.split(examples, seed)
    chosen = set(held.tolist())
    logger.info(split_note(len(held), "example", seed))
    return work, [one for at, one in enumerate(examples) if at not in chosen], [examples[at] for at in held]


def configure(
    run_config: RunConfig,
    work: HeadTask,
    tokenizer: StoredTokenizer,
    examples: Sequence[Any],
    started: Pretrained | None,
) -> EncoderWithHeadConfig:
    """The configuration of a new reader. Raises UsageError that names all that is wrong."""
    if (
        run_config.head.pair != "auto"
        and not work.pairs
        and run_config.task in ("text-classification", "sentence-similarity")
    ):
        raise UsageError(
            "head.pair is for two texts, but each example has one; leave it out, or name the other: --set"
            " data.second=NAME"
        )
    name, size = run_config.model["name"], run_config.model["size"]
    fields = model_fields(run_config.model)
    head, more = run_config.head, ANEW.get(name, {})
    if started is not None:
        found = parse(model_family(name)[0], {**started.encoder_fields, **fields, **more}, "model.")
        usual = (
            {} if head.pair in APART else started.heads.get(work.kind, {})
        )  # theirs read two texts as one row
        head = replace(
            head, **{key: value for key, value in usual.items() if getattr(head, key) in ("auto", None)}
        )
    else:
        if name == "bag_of_words" and fields.get("features", "embeddings") != "embeddings":
            fields = {"width": max(len(work.labels), 1), **fields}  # so that it is linear in the counts
            head = replace(head, pooling="sum") if head.pooling == "auto" else head
        if name == "convolution" and work.kind in ("tagging", "span"):
            fields = {"centred": True, **fields}  # each word is asked for, the last ones too
        found = run_folder.model_config(name, size, tokenizer.vocabulary_size, {**fields, **more})
        if getattr(found, "characters", "none") != "none":
            if work.kind != "tagging":
                raise UsageError(
                    "model.characters is for token-classification, where the words are known; leave it out"
                )
            found = replace(found, alphabet=alphabet_of(word for one in examples for word in one.words))
    settled = resolved_head(head, work.kind, found.traits)
    if run_config.head.activation != "auto" and not settled.hidden_width:
        raise UsageError(
            "head.activation is that of a hidden layer, but there is none; add head.hidden_width=N, or leave"
            " it out"
        )
    return EncoderWithHeadConfig(
        kind=work.kind,
        encoder={"model_type": name, **to_plain(found)},
        head=settled,
        pairs=work.pairs,
        labels=work.labels,
        vocabulary_size=tokenizer.vocabulary_size,
        **work.config_fields(),
    )


def marked_by(encoder: str, tokenizer: StoredTokenizer) -> bool:
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
