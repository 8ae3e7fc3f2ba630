"""What the training of a model that writes text starts from: random weights, or those of a trained model."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import RunConfig
from seqloom.errors import UsageError, listed, printable
from seqloom.interop.hub_origin import HubOrigin
from seqloom.interop.pretrained import with_added_rows
from seqloom.interop.tensor_mapping import unique_tensors
from seqloom.models import model_family
from seqloom.models.config_checks import fields_of_tasks, unused_fields
from seqloom.models.prompt_tuning import prompt_tuned
from seqloom.models.transformer import TransformerConfig
from seqloom.protocols import EncoderDecoder, ModelConfig, NewModel, StoredTokenizer, context_of
from seqloom.registry import hub_task
from seqloom.run_file import parse, to_plain
from seqloom.runs import run_folder
from seqloom.runs.frozen_base import PROMPT, FrozenBase
from seqloom.runs.new_model import model_config, refuse_given_fields
from seqloom.runs.progress import log_notes
from seqloom.runs.settings import model_fields
from seqloom.tasks.training_data import impossible_targets, learned_tokenizer
from seqloom.text.added_tokens import with_added
from seqloom.text.special_tokens import BOS, for_text_pairs
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import special_targets

logger = logging.getLogger(__name__)


@final
class StartingPoint(NamedTuple):
    """The tokenizer and the configuration of a new model, and the weights that it begins with."""

    family: str
    tokenizer: StoredTokenizer
    config: ModelConfig
    pretrained: nn.Module | None = None
    """The model that `--from` names; None if weights are random, or the run's own."""
    origin: HubOrigin | None = None
    """The checkpoint of the hub that the tokenizer comes from."""
    added: range = range(0)
    """Ids that the pretrained model has not got."""
    prompted: FrozenBase | None = None
    """Of prompt tuning, for which the pretrained model is frozen."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens whose embeddings a prompt begins as."""
    other_parts: tuple[str, ...] = ()
    """Beginnings of names of tensors that only one of both models may have: those of its heads."""

    @property
    def longest_source(self) -> int | None:
        """Of an encoder-decoder with positions that are learned: the most tokens of a text."""
        # what others call a context is no number of tokens
        return self.config.longest_text if isinstance(self.config, TransformerConfig) else None

    @property
    def longest_text(self) -> int | None:
        """The most tokens of a text, special ones included, in training; None if there is no limit."""
        if issubclass(model_family(self.family)[1], EncoderDecoder):
            return self.longest_source
        return context_of(self.config)

    def for_text_pairs(self) -> StartingPoint:
        """The same with the special tokens with which the model reads a source and writes a target. Raises
        UsageError for a language model where nothing could stand between them."""
        if issubclass(model_family(self.family)[1], EncoderDecoder):
            return self
        special_ids = for_text_pairs(self.tokenizer.special_ids)
        if not special_ids.bos or special_ids.eos is None:
            raise UsageError(
                "a language model needs a token between source and target and one that ends a text, but the"
                " tokenizer of --from has none"
            )
        return self._replace(tokenizer=self.tokenizer.with_special_ids(special_ids))

    def build(self) -> NewModel:
        """Raises UsageError if the pretrained weights do not fit the configuration."""
        model: nn.Module = model_family(self.family)[1](self.config)
        if self.pretrained is not None:
            copy_weights(self.pretrained, model, self.added, self.other_parts)
        if self.prompted is not None:
            prompted = prompt_tuned(model, self.prompted.length)
            model = prompted.begin_with(self.prompt_ids) if self.prompt_ids else prompted
        return NewModel(model, self.config, self.family, self.origin, self.prompted)


@dataclass(frozen=True, kw_only=True)
class StartedTrainingData:
    """Training data of a model that writes text."""

    run: RunConfig
    start: StartingPoint

    @property
    def tokenizer(self) -> StoredTokenizer:
        return self.start.tokenizer

    def build(self) -> NewModel:
        return self.start.build()


def starting_point(
    run: RunConfig,
    folder: Path,
    texts: Callable[[], Iterator[str]],
    first: bool,
    extend: Callable[[TextTokenizer], TextTokenizer] = lambda learned: learned,
) -> StartingPoint:
    """Trains a tokenizer on these texts and takes the sizes of the run; or takes the tokenizer, the sizes and
    the weights of the model that `--from` names. A resumed run has its own. `extend`: what a new
    tokenizer gets beside what it learns."""
    name, fields = str(run.model["name"]), model_fields(run.model)
    if run.model.get("from") is None:
        learned = learned_tokenizer(folder, run.data, texts, first, extend)
        config = model_config(
            name,
            run.model["size"],
            learned.vocabulary_size,
            fields,
            suppressed_ids=_suppressed_ids(run, folder, learned),
        )
        return StartingPoint(name, learned, config)
    if run_folder.has_weights(folder):
        content, config = run_folder.config_in(folder)
        start = StartingPoint(
            family=name,
            tokenizer=run_folder.tokenizer_of(folder, content),
            config=config,
            origin=HubOrigin.of_run(folder, content),
        )
        if PROMPT not in content:
            return start
        base, prompted = run_folder.base_of(folder, content), FrozenBase.said_by(content, folder)
        return start._replace(pretrained=base, prompted=prompted)
    place = run_folder.resolve_folder(run.model["from"])
    loaded = run_folder.load_run(place, "cpu")
    if loaded.model_type != name:
        raise UsageError(
            f"{printable(str(place))}: {run.task} starts from a model that writes text, but this one is for"
            f" {printable(loaded.task)}"
        )
    log_notes(loaded.notes)
    tokenizer, added = with_added(loaded.tokenizer, run.data.add_tokens)
    fields = unread_fields_reset(loaded, run.task) | fields
    config = changed_config(loaded, fields, tokenizer, _suppressed_ids(run, folder, tokenizer))
    start = StartingPoint(name, tokenizer, config, loaded.model, run_folder.origin_of(place), added)
    length = run.train.prompt_length
    if length is None:
        return start
    if start.longest_text is not None and length >= start.longest_text:
        raise UsageError(
            f"train.prompt_length must leave room for a text in model.context={start.longest_text}, but is"
            f" {length:,}"
        )
    prompted = FrozenBase.of(str(run.model["from"]), loaded.weights, length, folder.absolute())
    ids = first_prompt(loaded.tokenizer, length, run.train.prompt_text, run.train.seed)
    return start._replace(prompted=prompted, prompt_ids=ids)


ALSO_PREDICTED = {"elmo": (BOS,)}
"""Family -> the special ids that it predicts beside `</s>`: one that reads backwards predicts how a text
begins."""
COMMON = 5000
"""The first words of a vocabulary, that a prompt is drawn from (Lester et al. 2021, section 3.2)."""


def first_prompt(
    tokenizer: StoredTokenizer, length: int, text: str | None, seed: int
) -> tuple[int, ...]:
    """The tokens whose embeddings a prompt begins as: those of the text, repeated or cut to the length, or
    drawn from the most common ones. Raises UsageError if the text has none."""
    if text is None:
        special_ids = tokenizer.special_ids
        words = sorted(
            set(range(tokenizer.vocabulary_size)) - {*special_ids.forbidden, special_ids.eos}
        )
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(min(len(words), COMMON), (length,), generator=generator)
        return tuple(words[index] for index in drawn.tolist())
    (ids,) = tokenizer.encode([text])
    if not text.strip() or not ids:
        raise UsageError("train.prompt_text must hold a word, but is blank")
    return tuple(itertools.islice(itertools.cycle(ids), length))


def _suppressed_ids(run: RunConfig, folder: Path, tokenizer: StoredTokenizer) -> tuple[int, ...]:
    """Ids that are never a target. A run that is continued keeps what its config.json says, which is nothing
    in those of earlier versions."""
    if (folder / run_folder.CONFIG).exists():
        return tuple(files.read_json(folder / run_folder.CONFIG).get("suppressed_ids", ()))
    predicted = ALSO_PREDICTED.get(str(run.model["name"]), ())
    return impossible_targets(tokenizer, (*predicted, *special_targets(run.train.objective)))


def unread_fields_reset(loaded: run_folder.LoadedRun, task: str) -> dict[str, object]:
    """Fields of a pretrained model that another task than its own does not read -> their defaults."""
    kind = model_family(loaded.model_type)[0]
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    found = {}
    for name, tasks in fields_of_tasks(kind).items():
        value = vars(loaded.model.config)[name]
        if hub_task(task) not in tasks and value != defaults[name]:
            logger.info(
                f"model.{name}={value} changes nothing for {task}, so it does not come along"
            )
            found[name] = defaults[name]
    return found


def changed_config(
    loaded: run_folder.LoadedRun,
    fields: Mapping[str, object],
    tokenizer: StoredTokenizer,
    suppressed: tuple[int, ...],
) -> ModelConfig:
    """The configuration of a pretrained model with changes. Raises UsageError for one that cannot be, or that
    would change nothing."""
    refuse_given_fields(fields)
    pretrained = to_plain(loaded.model.config) | {"vocabulary_size": tokenizer.vocabulary_size}
    if "suppressed_ids" in pretrained:
        pretrained["suppressed_ids"] = suppressed
    config = parse(model_family(loaded.model_type)[0], {**pretrained, **fields}, "model.")
    for name, needed in unused_fields(config).items():
        if name in fields:
            raise UsageError(f"model.{name} changes nothing here: it needs {needed}; leave it out")
    return config


@torch.no_grad()
def copy_weights(
    pretrained: nn.Module,
    model: nn.Module,
    added: range = range(0),
    other_parts: tuple[str, ...] = (),
) -> None:
    """Makes the weights of a new model, which may have `added` ids, those of a pretrained one, whose own may
    be views of its file. Only one of both may have tensors of `other_parts`, and new ones stay random. Raises
    UsageError if not all others have a place."""
    given, wanted = unique_tensors(pretrained), unique_tensors(model)
    config: Any = model.config
    by_name = with_added_rows(pretrained.state_dict(), added, config.vocabulary_size)
    wrong = {name for name in given if name not in wanted and not name.startswith(other_parts)}
    for name, tensor in wanted.items():
        if name not in given and name.startswith(other_parts):
            continue
        if name not in by_name or by_name[name].shape != tensor.shape:
            wrong.add(name)
    if wrong:
        raise UsageError(
            "a model keeps the sizes that it had in the folder of --from, but these settings of model.*"
            f" change {listed(sorted(wrong))}; leave them out"
        )
    known = model.state_dict().keys() & by_name.keys()
    model.load_state_dict({name: by_name[name] for name in known}, strict=False)
