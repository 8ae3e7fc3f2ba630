"""The run folder: a model that anyone can open.

    config.json             model_type, the model's sizes, special ids, task; "hub": the config.json of an
                            imported model; "storage": the type of weights in fewer bits
    tokenizer.json          the tokenizer, which is all that is done to a text; an imported Marian model has
                            source.spm, target.spm and vocab.json instead, as each language has its own pieces
    tokenizer_config.json   for the tokenizer classes of Hugging Face
    generation_config.json  the default settings of decoding
    preprocessor_config.json  for a model of images, instead of the last three: how an image is resized and
                            normalised
    run.yaml                the resolved configuration of the training
    data.json               fingerprints of what it was trained on
    metrics.jsonl           one line a report; whole lines only
    checkpoint-STEP/        while it trains, and to go on
    model.safetensors       the best checkpoint's weights, once training is over
    adapter/                with LoRA, its updates alone, in the files of PEFT
    unfinished.json         while it trains, from the first file on: sizes and SHA-256 of these files
    manifest.json           the same at the end: the folder is finished and whole
    README.md               the model card

Loading runs no code from a file: JSON, YAML (safe) and safetensors only.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import nn

from seqloom import files, manifest
from seqloom.config import DecodeConfig
from seqloom.errors import FolderError, SeqloomError, UsageError, printable
from seqloom.interop.adapter import (
    ADAPTER_WEIGHTS,
    OWN_NAMES,
    base_folder,
    is_adapter,
    read_adapter,
)
from seqloom.interop.adapter_tensors import merge_adapter
from seqloom.interop.checkpoint import (
    ENCODER_WITH_HEAD,
    assign,
    empty_model,
    endless_layers,
    is_hub_folder,
    read_checkpoint,
    read_family,
)
from seqloom.interop.export import target_of
from seqloom.interop.families import FAMILIES
from seqloom.interop.hub import fetched, foreign_kind, is_hub_name
from seqloom.interop.hub_origin import TOKENIZER_CONFIG, HubOrigin, hub_tokenizer
from seqloom.interop.pretrained import (
    Pretrained,
    pretrained_encoder,
    pretrained_of_model,
    pretrained_of_run,
)
from seqloom.interop.weights import INDEX
from seqloom.json_values import JsonObject, as_object, as_text, field_of
from seqloom.models import family_name, model_family
from seqloom.models.compiled import CompiledModel
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.prompt_tuning import prompt_tuned
from seqloom.packed_weights import KeptWeights, Storage
from seqloom.plugins import plugins_used, require_plugins
from seqloom.protocols import EncoderDecoder, ModelConfig, StoredTokenizer
from seqloom.registry import find_task, hub_task
from seqloom.run_file import parse, to_plain
from seqloom.runs.compiled_reading import READERS, why_not_read
from seqloom.runs.decoding_options import idle_decoding
from seqloom.runs.frozen_base import PROMPT, FrozenBase
from seqloom.runs.quantised_weights import (
    COMPILED,
    QuantisedModel,
    keep_in_file,
    model_by_torch,
    quantised_model,
    read_stored,
    why_not_compiled,
    why_not_quantised,
)
from seqloom.stored_weight import DTYPES
from seqloom.text.hub.special_ids import NEVER
from seqloom.text.hub.tokenizer_files import MAX_BYTES, tokenizer_file_names
from seqloom.text.special_tokens import BOS, EOS, PAD, for_text_pairs
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.checkpoints import (
    WEIGHTS,
    check_weights,
    checkpoint_path,
    load_model_tensors,
    newest_checkpoint,
    read_state,
    read_tensors,
    run_files,
    tensors_in,
)
from seqloom.training.metrics_log import METRICS
from seqloom.version import VERSION

logger = logging.getLogger(__name__)

CONFIG, TOKENIZER, GENERATION = "config.json", "tokenizer.json", "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
RUN, DATA = "run.yaml", "data.json"
STORAGE = "storage"
"""Key of config.json: the type of the weights, where they are in fewer bits than float32."""
IMAGES, PATCHES = "image-classification", "masked-image-modeling"
STANDARD_INPUT = "standard-input"
"""The file that keeps what was piped in."""


@final
@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A model with all that it needs."""

    folder: Path
    task: str
    model_type: str
    model: nn.Module
    tokenizer: StoredTokenizer
    decode: DecodeConfig
    weights: Path
    """The file its weights came from."""
    notes: tuple[str, ...] = ()
    """What was left of a checkpoint of others, and what was changed, in words."""
    storage: Storage = "float32"
    """Of the weights in the folder."""
    quantised: dict[Storage, QuantisedModel] = field(default_factory=dict, repr=False)
    """The model with weights in fewer bits, once it was asked for."""

    @cached_property
    def kept_weights(self) -> KeptWeights:
        """What its model reads faster."""
        return KeptWeights(self.model)

    @property
    def with_head(self) -> EncoderWithHead | None:
        """The model, where it is an encoder with a head."""
        return self.model if isinstance(self.model, EncoderWithHead) else None

    @property
    def only_reads(self) -> bool:
        """Whether its model writes nothing, so that `decode.weights` is how it reads."""
        return isinstance(self.model, READERS)

    def decode_settings(self, changes: Mapping[str, object]) -> DecodeConfig:
        """The folder's decode settings with changes. Raises UsageError for one that cannot be, or that would
        change nothing."""
        settings = parse(DecodeConfig, {**to_plain(self.decode), **changes}, "decode.")
        for name, reason in idle_decoding(settings).items():
            if name.removeprefix("decode.") in changes:
                raise UsageError(f"{reason}; leave it out")
        if problem := self._why_not_engine(settings):
            raise UsageError(f"decode.engine cannot be {settings.engine} here: {problem}")
        if settings.weights != "float32" and (problem := self._why_not_quantised(settings.weights)):
            raise UsageError(
                f"decode.weights must be float32 here, but is {settings.weights}: {problem}"
            )
        return settings

    def decoder(self, settings: DecodeConfig) -> nn.Module:
        """The model with its weights as `decode_settings` allowed them."""
        storage = settings.weights
        if settings.engine == "torch":
            return model_by_torch(self.model)
        if storage == "float32":
            return self.model
        if storage not in self.quantised:
            self.quantised[storage] = quantised_model(self.model, storage)
            if self.storage == "float32":
                keep_in_file(self.model, self.weights)
        return self.quantised[storage]

    def _why_not_engine(self, settings: DecodeConfig) -> str:
        if settings.engine == "compiled":
            return why_not_compiled(self.model)
        if settings.engine == "auto":
            return ""
        if not isinstance(self.model, CompiledModel):
            return f"only {', '.join(COMPILED)} have a compiled step"
        if settings.weights != "float32":
            return f"decode.weights={settings.weights} needs the compiled step"
        return ""

    def _why_not_quantised(self, storage: Storage) -> str:
        if self.storage not in ("float32", storage):
            return f"the folder has its weights in {self.storage}, which may be named too"
        return (why_not_read if self.only_reads else why_not_quantised)(self.model)


@final
class OpenedModel(NamedTuple):
    """A model of a run folder without what turns its inputs into tensors."""

    content: dict[str, Any]
    """config.json."""
    model: nn.Module
    """On its device, in evaluation mode."""
    weights: Path
    """The file its weights came from."""
    notes: tuple[str, ...] = ()
    """What was left of a checkpoint of others, and what was changed, in words."""


def write_model_files(
    folder: Path,
    task: str,
    model_type: str,
    configured: ModelConfig,
    tokenizer: StoredTokenizer | None,
    decode: DecodeConfig,
    hub: HubOrigin | None = None,
    prompted: FrozenBase | None = None,
) -> None:
    """All that inference needs, but for the weights; config.json, with which a folder is a model's, last.
    `hub`: where an imported model comes from. `prompted`: the frozen model of a prompt, to which all but the
    weights belongs."""
    config = {
        "model_type": model_type,
        "architectures": [type(configured).__name__.removesuffix("Config")],
        "task": task,
        "seqloom_version": VERSION,
        "torch_version": str(torch.__version__),
        **to_plain(configured),
    }
    if plugins := plugins_used({**config, "decode": to_plain(decode)}):
        config["plugins"] = plugins
    special_ids = (
        {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
        if hub is None
        else hub.ids()
    )
    if hub is not None:
        config["hub"] = {
            "config": hub.content,
            "generation": hub.generation,
            "pooling": to_plain(hub.pooling),
        }
    if prompted is not None:
        config[PROMPT] = to_plain(prompted)
    if tokenizer is not None:
        config |= special_ids if hub is None else {}
        write_tokenizer(folder, tokenizer)
        files.write_json(folder / GENERATION, {**to_plain(decode), **special_ids})
        manifest.add(folder, *tokenizer.files, TOKENIZER_CONFIG, GENERATION)
    files.write_json(folder / CONFIG, config)
    manifest.add(folder, CONFIG)


def names_of_files(folder: Path) -> list[str]:
    """The files of a run beside its weights, its checkpoints and its log; that which makes it a run is the
    last."""
    names = dict.fromkeys((*tokenizer_file_names(folder), TOKENIZER))
    return [
        *names,
        TOKENIZER_CONFIG,
        GENERATION,
        CONFIG,
        PREPROCESSOR,
        DATA,
        STANDARD_INPUT,
        RUN,
    ]


RESTORE = "restore it from a copy, or train a new run"


def check_files(folder: Path, *names: str) -> None:
    """Raises FolderError if one of these files of a run (any, without names) is not as it was written."""
    listed = run_files(folder)
    if listed is not None and (problem := manifest.problem(folder, listed, names or None)):
        raise FolderError(f"{problem}; {RESTORE}", folder)


def write_tokenizer(folder: Path, tokenizer: StoredTokenizer) -> None:
    """The files of a tokenizer, which seqloom and Hugging Face read."""
    for name, content in tokenizer.files.items():
        files.write_atomic(folder / name, content)
    files.write_json(folder / TOKENIZER_CONFIG, tokenizer.tokenizer_config)


def resolve_folder(place: str | Path) -> Path:
    """The folder that a user means: a path, or `hf://NAME@REVISION`, which is fetched into the hub's cache
    where it is not there yet."""
    return fetched(str(place)) if is_hub_name(place) else Path(place)


def load_run(folder: str | Path, device: str = "auto") -> LoadedRun:
    """Opens the run folder of a model of texts: its final weights, or while it still trains, its best
    checkpoint so far; or a Hugging Face directory as it is; or an adapter, merged into its base.

    Raises FolderError if the folder is not a run folder, or a file in it is missing or damaged; UsageError
    if its model reads no text.
    """
    folder = resolve_folder(folder)
    name = task_of(folder)
    task = None if name is None else find_task(name)
    if task is not None and not task_reads_text(name):
        raise UsageError(
            f"{printable(str(folder))} is a model of {task.name}, which reads no text; use: seqloom"
            f" {task.verb} {printable(str(folder))}"
        )
    content, model, weights, notes = open_model(folder, device)
    folder = base_folder(folder)
    if "vocabulary_size" not in content:
        raise UsageError(f"{printable(str(folder))}: its model reads no text")
    if is_hub_folder(folder):
        origin = HubOrigin.of(folder)
        imported = hub_tokenizer(folder, origin.content, content["vocabulary_size"])
        tokenizer: StoredTokenizer = imported
        name = str(content["task"])
        decode, said = origin.decoding(name, decode_defaults(name), imported)
        notes += tuple(said)
    else:
        tokenizer = tokenizer_of(folder, content)
        decode = _decoding(folder / GENERATION)
    if is_decoder_of_pairs(str(content["task"]), model):
        tokenizer = tokenizer.with_special_ids(for_text_pairs(tokenizer.special_ids))
    if tokenizer.vocabulary_size != content["vocabulary_size"]:
        raise FolderError(
            f"{printable(str(folder))}: tokenizer and weights must belong together, but the vocabulary has "
            f"{tokenizer.vocabulary_size} entries and the model {content['vocabulary_size']}"
        )
    return LoadedRun(
        folder=folder,
        task=str(content["task"]),
        model_type=family_name(str(content["model_type"])),
        model=model,
        tokenizer=tokenizer,
        decode=decode,
        weights=weights,
        notes=notes,
        storage=content.get(STORAGE, "float32"),
    )


def is_decoder_of_pairs(task: str, model: nn.Module) -> bool:
    """Whether it is a language model of text pairs: it reads `<s> source <delim>` and writes a target."""
    return hub_task(task) == "translation" and not isinstance(model, EncoderDecoder)


def task_reads_text(task: object) -> bool:
    """Whether the models of a task have a tokenizer; True where the task is not known."""
    found = find_task(as_text(task) or "")
    return found is None or "data.encoding" in found.reading


def decode_defaults(task: str) -> dict[str, object]:
    """Settings of decoding where this task has other defaults."""
    found = find_task(task)
    return {} if found is None else dict(found.defaults({}).get("decode", {}))


def pretrained_from(place: str | Path) -> Pretrained:
    """The pretrained model of a folder, or of a name on the hub, that an encoder with a head starts from.
    Raises FolderError if it is damaged or no model's, UsageError if its model does not read for a head."""
    folder = _pretrained_folder(place)
    if is_adapter(folder):
        run = load_run(folder, "cpu")
        content = {"model_type": run.model_type, **to_plain(run.model.config)}
        found = pretrained_of_model(content, run.model.state_dict(), folder)
        return dataclasses.replace(
            found,
            tokenizer=run.tokenizer,
            origin=origin_of(folder),
            notes=(*run.notes, *found.notes),
        )
    if is_hub_folder(folder):
        return pretrained_encoder(folder)
    check_files(folder)
    content = _read_config(folder)
    tokenizer, origin = tokenizer_of(folder, content), HubOrigin.of_run(folder, content)
    return dataclasses.replace(
        pretrained_of_run(content, _weights_of(folder)), tokenizer=tokenizer, origin=origin
    )


def _pretrained_folder(place: str | Path) -> Path:
    folder = resolve_folder(place)
    of_the_hub = "; the name of a model of the hub begins with hf://"
    _require_model(base_folder(folder), "a model to begin with", missing_hint=of_the_hub)
    return folder


def _require_model(folder: Path, what: str, hint: str = "", missing_hint: str = "") -> None:
    """Raises FolderError if a folder holds no config.json; what it holds instead is named."""
    if (foreign := foreign_kind(folder)) is not None:
        raise FolderError(f"must be {what}, but {foreign}", folder)
    files.require_folder(folder, what, CONFIG, hint, missing_hint)


def origin_of(folder: Path) -> HubOrigin | None:
    """The checkpoint of the hub that a folder is, or that its model comes from; None if seqloom trained it
    from scratch."""
    folder = base_folder(folder)
    if is_hub_folder(folder):
        return HubOrigin.of(folder)
    return HubOrigin.of_run(folder, _read_config(folder))


def tokenizer_of(folder: Path, content: dict[str, Any]) -> StoredTokenizer:
    """That of a run folder with this config.json. Raises FolderError if it is missing or damaged."""
    check_files(folder, TOKENIZER_CONFIG, *tokenizer_file_names(folder))
    origin = HubOrigin.of_run(folder, content)
    if origin is None:
        return read_tokenizer(folder / TOKENIZER)
    return hub_tokenizer(folder, origin.content, content["vocabulary_size"])


def _decoding(path: Path) -> DecodeConfig:
    generation = files.read_json_object(path)
    try:
        return parse(
            DecodeConfig,
            {k: v for k, v in generation.items() if not k.endswith("_token_id") and k not in NEVER},
            "decode.",
        )
    except UsageError as error:
        raise FolderError(f"{printable(str(path))}: {error}") from None


def _read_config(folder: Path) -> dict[str, Any]:
    """config.json of a run folder. Raises FolderError if it is damaged, UsageError if it needs a plugin
    that was not loaded."""
    check_files(folder, CONFIG)
    content = files.read_json_object(folder / CONFIG)
    require_plugins(content.get("plugins"), str(folder))
    return content


def encoder_of(folder: str | Path) -> str:
    """The family of the encoder of a folder's model. Raises FolderError if the folder is no model's."""
    folder = base_folder(_pretrained_folder(folder))
    if is_hub_folder(folder):
        return read_family(folder)[1].model_type
    require_whole_model(folder, "a training starts from a whole model")
    content = _read_config(folder)
    model_type = family_name(str(content.get("model_type")))
    encoder = as_object(content.get("encoder"))
    if model_type == ENCODER_WITH_HEAD and encoder is not None:
        return str(encoder.get("model_type"))
    return model_type


def family_of_start(folder: str | Path) -> str:
    """The same where it only decides defaults: empty for what is no model's, which is said where it is
    opened."""
    try:
        return encoder_of(folder)
    except SeqloomError:
        return ""


def task_of(folder: str | Path) -> str | None:
    """What the model of a folder was trained for; None if that is not known before it is opened."""
    try:
        folder = base_folder(resolve_folder(folder))
        if is_hub_folder(folder):
            return read_family(folder)[2].task
        content = files.read_json(folder / CONFIG)
    except FolderError:
        return None
    return as_text(field_of(content, "task"))


def open_model(folder: str | Path, device: str = "auto") -> OpenedModel:
    """The model of a run folder, or of a Hugging Face directory. Raises FolderError if the folder is
    neither, or a file in it is missing or damaged."""
    folder = resolve_folder(folder)
    if is_adapter(folder):
        return _open_adapter(folder, device)
    _require_model(folder, "a run folder", "; make one with: seqloom train")
    if is_hub_folder(folder):
        found = read_checkpoint(folder)
        content = {"model_type": found.model_type, "task": found.task, **to_plain(found.config)}
        weights = folder / (WEIGHTS if files.is_there(folder / WEIGHTS) else INDEX)
        return OpenedModel(
            content, found.model.to(choose_device(device)), weights, tuple(found.notes)
        )
    check_files(folder)
    if run_files(folder) is None:
        logger.info(
            f"{printable(str(folder))}: nothing vouches for its files, which are taken as they are: an older"
            f" version left it unfinished, or {manifest.MANIFEST} is gone"
        )
    content = _read_config(folder)
    needed = ["model_type", "task"]
    if task_reads_text(content.get("task")):
        needed.append("vocabulary_size")
    if missing := [key for key in needed if key not in content]:
        raise FolderError(
            f"{printable(str(folder / CONFIG))}: must say {', '.join(missing)}, but does not"
        )
    weights = _weights_of(folder)
    if PROMPT in content:
        model: nn.Module = prompt_tuned(
            base_of(folder, content), FrozenBase.said_by(content, folder).length
        )
        load_model_tensors(model, weights)
    else:
        model = _model_of(content, folder, weights)
    if STORAGE in content:
        if device == "cuda":
            raise UsageError(
                f"weights in {content[STORAGE]} are for a CPU, but the device is cuda; open the folder that"
                " they were exported from"
            )
        return OpenedModel(content, model.eval(), weights)
    return OpenedModel(content, model.to(choose_device(device)).eval(), weights)


def base_of(folder: Path, content: JsonObject) -> nn.Module:
    """The frozen model of the prompt in a folder with this config.json. Raises FolderError if it is
    missing, or another one."""

    def open_at(place: Path) -> tuple[nn.Module, Path]:
        if PROMPT in files.read_json_object(place / CONFIG):
            raise FolderError("must be a whole model, but is a prompt", place)
        opened = open_model(place, "cpu")
        return opened.model, opened.weights

    found = FrozenBase.said_by(content, folder).find(folder, open_at)
    config = config_in(folder)[1]
    # for its task it may be forbidden to write ids that it wrote before
    sizes, needed = (
        to_plain(one_config) | {"suppressed_ids": ()} for one_config in (config, found.config)
    )
    if sizes != needed:
        raise FolderError("sizes must be those of the frozen model, but are not", folder / CONFIG)
    model: nn.Module = model_family(str(content["model_type"]))[1](config)
    model.load_state_dict(found.state_dict())
    return model


def require_whole_model(place: str | Path, needed: str) -> None:
    """Raises UsageError if a folder is a prompt, or has its weights in fewer bits, and a whole model in
    float32 is needed, as these words say."""
    folder = resolve_folder(place)
    if not files.is_there(folder / CONFIG):
        return
    content = files.read_json_object(folder / CONFIG)
    if STORAGE in content and not is_hub_folder(folder):
        raise UsageError(
            f"{printable(str(folder))}: {needed}, but its weights are in {printable(str(content[STORAGE]))};"
            " name the folder that they were exported from"
        )
    if PROMPT in content:
        base = printable(FrozenBase.said_by(content, folder).base)
        raise UsageError(
            f"{printable(str(folder))}: {needed}, but this is a prompt for {base}; name that model"
        )


def _open_adapter(folder: Path, device: str) -> OpenedModel:
    """The base of an adapter of PEFT, with the adapter merged into it."""
    adapter, base = read_adapter(folder), base_folder(folder)
    opened = open_model(base, "cpu")
    target = None
    if not adapter.config.get(OWN_NAMES):
        model_type, origin = family_name(str(opened.content["model_type"])), origin_of(base)
        hub_content = None if origin is None else origin.content
        task = hub_task(str(opened.content["task"]))
        target = target_of(model_type, opened.model.config, task, hub_content)
    merge_adapter(adapter, opened.model, target)
    note = f"merged {printable(str(folder))}, an adapter, into its base {printable(str(base))}"
    return opened._replace(
        model=opened.model.to(choose_device(device)),
        weights=folder / ADAPTER_WEIGHTS,
        notes=(*opened.notes, note),
    )


def _model_of(content: JsonObject, folder: Path, weights: Path) -> nn.Module:
    """The model with its weights."""
    model_type = str(content.get("model_type"))
    try:
        model_class = model_family(model_type)[1]
        config, stored = _config_of(content), tensors_in(weights)
        for name, said in endless_layers(
            {**content, **vars(config).get("encoder", {})}, len(stored)
        ).items():
            raise UsageError(f"{name} {said}")
        # nothing is allocated before the sizes are known to fit the weights
        empty = empty_model(model_class, config)
        if (storage := content.get(STORAGE)) is not None:
            if storage not in DTYPES or not isinstance(empty, CompiledModel):
                raise UsageError(
                    f"{STORAGE} must be bfloat16 or int8, of {', '.join(COMPILED)}, but is"
                    f" {printable(str(storage))} of {model_type}"
                )
            read_stored(empty, storage, weights)
            return empty
        check_weights(empty, stored, weights)
        # of parameters alone: no time goes into a random start
        if model_type in {family.model_type for family in FAMILIES.values()}:
            assign(empty, read_tensors(weights))
            return empty
        model: nn.Module = model_class(config)
    except UsageError as error:
        raise FolderError(f"{printable(str(folder / CONFIG))}: {error}") from None
    except (
        RuntimeError,
        TypeError,
        OverflowError,
        ValueError,
    ) as error:  # sizes beyond what torch counts to
        reason = printable(str(error).partition("\n")[0])[:200]
        raise FolderError(
            f"{printable(str(folder / CONFIG))}: sizes must be those of a model, but are not ({reason})"
        ) from None
    load_model_tensors(model, weights)
    return model


NOT_OF_THE_MODEL = {
    "model_type",
    "architectures",
    "task",
    "seqloom_version",
    "torch_version",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "hub",
    "plugins",
    PROMPT,
    STORAGE,
}
"""Keys of config.json beside the fields of the model's configuration."""


def _config_of(content: JsonObject) -> ModelConfig:
    fields = {key: value for key, value in content.items() if key not in NOT_OF_THE_MODEL}
    return parse(model_family(str(content.get("model_type")))[0], fields, prefix="model.")


def config_in(folder: Path) -> tuple[dict[str, Any], ModelConfig]:
    """config.json of a run folder, and the configuration of its model. Raises FolderError if it is
    damaged."""
    content = _read_config(folder)
    try:
        return content, _config_of(content)
    except UsageError as error:
        raise FolderError(f"{printable(str(folder / CONFIG))}: {error}") from None


def _weights_of(folder: Path) -> Path:
    if files.is_there(folder / manifest.MANIFEST):
        return folder / WEIGHTS
    newest, damaged = newest_checkpoint(folder)
    if newest is None:
        raise FolderError(
            f"{printable(str(folder))}: holds no weights yet; train it on with: seqloom train --resume"
            f" {printable(str(folder))}"
        )
    best = read_state(newest).best_step
    answering = newest if best is None else checkpoint_path(folder, best)
    if not answering.is_dir():
        damaged.append(f"{answering.name}, the best so far, is missing")
        answering = newest
    elif answering != newest and (problem := manifest.manifest_problem(answering)):
        raise FolderError(problem, answering)
    if damaged:
        logger.info(f"{printable(str(folder))}: {answering.name} answers, for {'; '.join(damaged)}")
    return answering / WEIGHTS


def has_weights(folder: Path) -> bool:
    """Whether a run has weights of its own already: a checkpoint, or those of its end."""
    return files.is_there(folder / manifest.MANIFEST) or newest_checkpoint(folder)[0] is not None


def seal(folder: Path, best: Path) -> None:
    """Makes a checkpoint's weights those of the folder, and its list the manifest, last of all. Nothing is
    sealed that is not as it was written: raises FolderError then."""
    files.link_atomic(best / WEIGHTS, folder / WEIGHTS)
    weights = manifest.read_list(best / manifest.MANIFEST)["files"][WEIGHTS]
    unfinished = folder / manifest.UNFINISHED
    content = manifest.read_list(unfinished)
    listed = {**content.pop("files"), WEIGHTS: weights}
    if problem := manifest.problem(folder, listed):
        raise FolderError(problem, folder)
    log = folder / METRICS
    # its settings stay, by which the same command knows it again until the last moment
    content |= {"best": best.name, "log": manifest.entry(log) if files.is_there(log) else None}
    manifest.write_list(unfinished, listed, **content)
    for path in files.leftovers(folder):
        path.unlink(missing_ok=True)
    os.replace(unfinished, folder / manifest.MANIFEST)
    files.flush_folder(folder)


def read_tokenizer(path: Path) -> TextTokenizer:
    """One that seqloom learned. Raises FolderError if it is missing or damaged."""
    content = files.read_text(path, MAX_BYTES)
    try:
        return TextTokenizer.from_json(content)
    except FolderError as error:
        raise FolderError(str(error), path) from None


def choose_device(name: str) -> torch.device:
    """Raises UsageError if there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise UsageError(
            f"the device must be auto, cpu or cuda (where there is one), but is {name!r}"
        )
    return torch.device(name)
