"""Models in and out of the field's formats: Hugging Face directories, published ELMos, ARPA files, ONNX."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import UsageError, printable
from seqloom.interop.adapter import base_folder, is_adapter
from seqloom.interop.checkpoint import CONFIG, GENERATION, is_hub_folder, read_checkpoint
from seqloom.interop.electra_pair import GENERATOR, has_generator, joined
from seqloom.interop.elmo_files import ElmoFiles, elmo_files, read_elmo, write_elmo
from seqloom.interop.export import Target, target_of, their_tensors, write_checkpoint
from seqloom.interop.hub import foreign_kind, is_hub_name
from seqloom.interop.hub_origin import HubOrigin, hub_tokenizer
from seqloom.interop.sentence_transformers import write_pooling
from seqloom.json_values import JsonObject, as_whole_number
from seqloom.models import family_name
from seqloom.models.electra import Electra
from seqloom.models.elmo import Elmo
from seqloom.protocols import ModelConfig
from seqloom.registry import hub_task
from seqloom.run_file import read_run_file
from seqloom.runs import run_folder
from seqloom.runs.settings import saved_data_settings
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.images.classify import read_preprocessing
from seqloom.tasks.language_modeling.arpa import SUFFIXES, export_arpa, import_arpa
from seqloom.tasks.word_vectors.exchange import export_vectors
from seqloom.workflows.exported_decoding import exported_decoding
from seqloom.workflows.exported_tokenizer import write_tokenizer

logger = logging.getLogger(__name__)

FORMATS = ("huggingface", "elmo", "arpa", "onnx", "word-vectors")
OWN_FORMATS = {
    "elmo": "elmo",
    "ngram": "arpa",
    "word2vec": "word-vectors",
    "glove": "word-vectors",
}
"""Family -> the format of its models, where that is not huggingface."""
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What weights may be converted to."""


def import_model(place: str, output_dir: str, dtype: str | None = None) -> dict[str, object]:
    """Makes a run folder of a Hugging Face directory, of `hf://NAME@REVISION` or of an ARPA file; returns
    what it holds.

    Raises UsageError if the folder is there already or the place is neither; DataError and FolderError
    if it is damaged.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--dtype must be one of {', '.join(DTYPES)}, but is {printable(dtype)}")
    if is_hub_name(place) or Path(place).is_dir():
        return _import_folder(place, Path(output_dir), DTYPES.get(dtype or ""))
    if dtype is not None:
        raise UsageError(
            f"--dtype belongs to Hugging Face directories, but {printable(place)} is none; leave it out"
        )
    return {"output": output_dir, "ngrams": import_arpa(place, output_dir)}


def _import_folder(place: str, folder: Path, dtype: torch.dtype | None) -> dict[str, object]:
    source = run_folder.resolve_folder(place)
    if is_adapter(source):
        return _import_adapter(place, source, folder, dtype)
    if is_hub_name(place):
        logger.info(f"{printable(place)} is commit {printable(source.name)}")
    if not is_hub_folder(source) and (elmo := elmo_files(source)) is not None:
        return _import_elmo(elmo, folder, dtype)
    if not is_hub_folder(source):
        there = (source / CONFIG).is_file()
        hint = "is a run folder of seqloom already" if there else foreign_kind(source)
        raise UsageError(
            f"{printable(place)}: must be a Hugging Face directory (config.json, model.safetensors), one of a"
            f" published ELMo (options.json, weights.hdf5) or an ARPA file, but {hint or 'is none'}"
        )
    checkpoint = read_checkpoint(source, dtype)
    if checkpoint.task == "replaced-token" and has_generator(source):
        checkpoint = joined(checkpoint, source)
    model, task = checkpoint.model, checkpoint.task
    origin = HubOrigin.of(source)
    decode, notes = DecodeConfig(), list(checkpoint.notes)
    tokenizer = None
    if task != run_folder.IMAGES:
        tokenizer = hub_tokenizer(source, origin.content, checkpoint.config.vocabulary_size)
        decode, more = origin.decoding(task, run_folder.decode_defaults(task), tokenizer)
        notes += more
    for note in notes:
        logger.info(note)
    # errors come before anything is written
    if task == run_folder.IMAGES:
        read_preprocessing(source, checkpoint.config)
    run = RunConfig(
        task=task,
        output_dir=str(folder),
        model={"name": checkpoint.model_type, "size": "small"},
        data=DataConfig(train=(place if is_hub_name(place) else str(source.resolve()),)),
        decode=decode,
    )
    used = [fingerprint(str(path)) for path in sorted(source.glob("*.safetensors"))]
    with files.atomic_folder(folder, "an imported model", "name another --output-dir") as temporary:
        if task == run_folder.IMAGES:
            _copy_preprocessor(source, temporary)
        write_finished_run(temporary, run, model, tokenizer, used, None, origin)
    return {"output": str(folder), **_sizes(model, checkpoint.model_type, task), "notes": notes}


def _import_elmo(found: ElmoFiles, folder: Path, dtype: torch.dtype | None) -> dict[str, object]:
    """A published ELMo as a run folder."""
    if dtype is not None:
        raise UsageError(
            "--dtype belongs to Hugging Face directories, but this is an ELMo; leave it out"
        )
    model, tokenizer = read_elmo(found)
    task, name = "feature-extraction", "elmo"
    run = RunConfig(
        task=task,
        output_dir=str(folder),
        model={"name": name, "size": "small"},
        data=DataConfig(train=(str(found.weights.resolve()),)),
    )
    used = [fingerprint(str(path)) for path in found if path is not None]
    with files.atomic_folder(folder, "an imported model", "name another --output-dir") as temporary:
        write_finished_run(temporary, run, model, tokenizer, used, None)
    return {"output": str(folder), **_sizes(model, name, task), "words": len(tokenizer.token_bytes)}


def _import_adapter(
    place: str, source: Path, folder: Path, dtype: torch.dtype | None
) -> dict[str, object]:
    """The base of an adapter, with the adapter merged into it, as a run folder."""
    loaded = run_folder.load_run(source, "cpu")
    for note in loaded.notes:
        logger.info(note)
    run = RunConfig(
        task=loaded.task,
        output_dir=str(folder),
        model={"name": loaded.model_type, "size": "small"},
        data=DataConfig(train=(place if is_hub_name(place) else str(source.resolve()),)),
        decode=loaded.decode,
    )
    used = [fingerprint(str(loaded.weights))]
    with files.atomic_folder(folder, "an imported model", "name another --output-dir") as temporary:
        write_finished_run(
            temporary,
            run,
            loaded.model.to(dtype),
            loaded.tokenizer,
            used,
            None,
            run_folder.origin_of(source),
        )
    return {
        "output": str(folder),
        **_sizes(loaded.model, loaded.model_type, loaded.task),
        "notes": list(loaded.notes),
    }


def _copy_preprocessor(source: Path, folder: Path) -> None:
    content = files.read_bytes(source / run_folder.PREPROCESSOR)
    files.write_atomic(folder / run_folder.PREPROCESSOR, content)


def _sizes(model: nn.Module, model_type: str, task: str) -> dict[str, object]:
    return {
        "model": model_type,
        "task": task,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


@final
class _Source(NamedTuple):
    """What is exported."""

    model: nn.Module
    task: str
    model_type: str
    run: run_folder.LoadedRun | None
    """None for a model of images."""
    folder: Path
    origin: HubOrigin | None


def export_model(
    folder: str, out: str, form: str | None = None, shard_mib: int | None = None
) -> dict[str, object]:
    """Writes the model of a run folder in a format of the field; returns what was written.

    `form` is one of FORMATS, by default arpa for an n-gram model, elmo for an ELMo, word-vectors for those,
    huggingface for others. Raises UsageError if the format cannot hold the model (the option is named), or
    where the output is there already.
    """
    if form is not None and form not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, but is {printable(form)}")
    if shard_mib is not None and shard_mib < 1:
        raise UsageError(f"--shard-size must be at least 1 (MiB), but is {shard_mib}")
    run_folder.require_whole_model(folder, "an export holds a whole model")
    if form == "arpa" or (form is None and Path(out).suffix.lower() in SUFFIXES):
        return {"output": out, "ngrams": export_arpa(folder, out)}
    if form == "onnx":
        from seqloom.workflows.onnx import export_onnx

        return export_onnx(folder, out)
    if form == "word-vectors":
        return export_vectors(folder, out)
    source = _open(folder)
    match form or OWN_FORMATS.get(source.model_type):
        case "word-vectors":
            return export_vectors(folder, out)
        case "arpa":
            return {"output": out, "ngrams": export_arpa(folder, out)}
        case "elmo":
            return _export_elmo(source, Path(out), shard_mib)
    shard_bytes = None if shard_mib is None else shard_mib * 2**20
    return _export_folder(source, Path(out), shard_bytes)


def _open(folder: str) -> _Source:
    place = run_folder.resolve_folder(folder)
    base, origin = base_folder(place), run_folder.origin_of(place)
    task = run_folder.task_of(place)
    if task in (run_folder.IMAGES, run_folder.PATCHES):
        opened = run_folder.open_model(place)
        model_type = family_name(str(opened.content["model_type"]))
        return _Source(opened.model, task, model_type, None, base, origin)
    run = run_folder.load_run(place)
    return _Source(run.model, run.task, run.model_type, run, base, origin)


def _export_elmo(source: _Source, out: Path, shard_mib: int | None) -> dict[str, object]:
    model, run = cast(Elmo, source.model), source.run
    if source.model_type != "elmo" or run is None:
        raise UsageError(
            f"--format elmo is for an elmo, but this is {source.model_type}; leave it out"
        )
    if shard_mib is not None:
        raise UsageError("--shard-size is for huggingface, but this is an elmo; leave it out")
    with files.atomic_folder(out, "an exported model") as temporary:
        written = write_elmo(temporary, model, run.tokenizer)
    notes = (
        []
        if model.output is None
        else ["the softmax is left out: these files have no place for it"]
    )
    for note in notes:
        logger.info(note)
    sizes = _sizes(model, "elmo", source.task)
    return {"output": str(out), **sizes, "files": written, "notes": notes}


def _export_folder(source: _Source, out: Path, shard_bytes: int | None) -> dict[str, object]:
    generator = None
    if source.model_type == "electra":
        source, generator = _halves(source, cast(Electra, source.model))
    target = _target(source)
    beside = None if generator is None else _target(generator)
    with files.atomic_folder(out, "an exported model") as temporary:
        written, notes = _write_model(source, target, temporary, shard_bytes)
        if generator is not None and beside is not None:
            place = temporary / GENERATOR
            place.mkdir()
            more, _ = _write_model(generator, beside, place, shard_bytes)
            written += [f"{GENERATOR}/{name}" for name in more]
    for note in notes:
        logger.info(note)
    return {
        "output": str(out),
        **_sizes(source.model, target.hub_type, source.task),
        "architecture": target.architecture,
        "files": [name for name in written if name.endswith(".safetensors")],
        "notes": notes,
    }


def _halves(source: _Source, model: Electra) -> tuple[_Source, _Source]:
    """The discriminator of an ELECTRA, which is what the hub calls one, and its generator."""

    def half(model: nn.Module, task: str) -> _Source:
        assert source.run is not None
        run = replace(source.run, model=model, model_type="bert", task=task)
        return source._replace(model=model, model_type="bert", task=task, run=run)

    return half(model.discriminator, "replaced-token"), half(model.generator, "fill-mask")


def _target(source: _Source) -> Target:
    config: Any = source.model.config
    origin = None if source.origin is None else source.origin.content
    target = target_of(source.model_type, config, hub_task(source.task), origin)
    # errors come before anything is written
    _check_padding(source, target)
    their_tensors(source.model, target)
    return target


def _write_model(
    source: _Source, target: Target, out: Path, shard_bytes: int | None
) -> tuple[list[str], list[str]]:
    """Writes all files of a model; returns their names, and notices."""
    ids, notes = _write_text_files(source, target, out)
    if source.run is None and files.is_there(source.folder / run_folder.PREPROCESSOR):
        _copy_preprocessor(source.folder, out)
    origin = None if source.origin is None else source.origin.content
    written = write_checkpoint(
        out,
        source.model,
        source.model.config,
        target,
        origin=origin,
        ids=ids,
        shard_bytes=shard_bytes,
    )
    files.write_atomic(out / "README.md", _card(source, target))
    return written, notes


def _check_padding(source: _Source, target: Target) -> None:
    """Raises UsageError if transformers would take another token for padding, from which RoBERTa counts
    positions."""
    named = as_whole_number(target.content.get("pad_token_id"))
    if source.run is None or source.run.tokenizer.pretrained:
        return
    pad = source.run.tokenizer.special_ids.pad
    if named not in (None, pad):
        raise UsageError(
            f"a {target.hub_type} of the hub counts positions from its padding on, so with this tokenizer"
            f" model.position_offset must be {pad + 1}, but is {named + 1}; train with that"
        )


def _write_text_files(source: _Source, target: Target, out: Path) -> tuple[JsonObject, list[str]]:
    """Writes the files of a model of texts beside its weights. Returns the special ids for config.json, and
    notices about what transformers does otherwise."""
    run, origin = source.run, source.origin
    if run is None:
        return {}, _colour_notices(source.model.config)
    trained = _is_trained(source)
    write_tokenizer(out, run, origin, trained=trained)
    ids, content, notices = exported_decoding(run, origin, target, trained=trained)
    if content is not None:
        files.write_json(out / GENERATION, content)
    config: Any = source.model.config
    if origin is not None and origin.pooling is not None and run.with_head is None:
        write_pooling(out, origin.pooling, config.width)
    return ids, [*notices, *([] if run.with_head is None else _reading_notices(source))]


def _colour_notices(config: ModelConfig) -> list[str]:
    if config.channels != 1:
        return []
    notice = (
        "the model reads grey images: give transformers images in mode L, as its pipeline makes three colours"
        " of each"
    )
    return [notice]


def _reading_notices(source: _Source) -> list[str]:
    """About settings of a training that say what a row is, for which the files of the hub have no place."""
    saved = saved_data_settings(source.folder) or {}
    given = {name: saved.get(name) for name in ("max_length", "stride")}
    return [
        f"data.{name}={value} of the training is not kept: give it again where the export is opened (--set"
        f" data.{name}={value}), and to the tokenizer in transformers"
        for name, value in given.items()
        if value is not None
    ]


def _is_trained(source: _Source) -> bool:
    """Whether the model went on from a checkpoint in a training."""
    path = source.folder / run_folder.RUN
    return path.is_file() and "from" in read_run_file(str(path))["model"]


def _card(source: _Source, target: Target) -> str:
    command = (
        "predict FOLDER -" if source.task != "text-generation" else 'generate FOLDER --prompt "..."'
    )
    return f"""---
library_name: transformers
pipeline_tag: {source.task}
---

# {printable(source.folder.resolve().name)}

A `{target.architecture}`, written by seqloom. It opens with

    transformers.{target.architecture}.from_pretrained(FOLDER)

and with seqloom as it is:

    seqloom {command}
"""
