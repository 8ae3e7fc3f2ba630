"""Models in and out of the field's formats: Hugging Face directories, ARPA files, ONNX."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.data.encoding.encode_words import space_begins_words
from seqloom.data.encoding.encoded_dataset import CAUSAL_MARKS, row_template
from seqloom.errors import UsageError, printable
from seqloom.interop.checkpoint import CONFIG, GENERATION, is_hub_folder, read_checkpoint
from seqloom.interop.export import Target, target_of, their_tensors, write_checkpoint
from seqloom.interop.generation_config import generation_content
from seqloom.interop.hub import foreign_kind, is_hub_name
from seqloom.interop.hub_origin import TOKENIZER_CONFIG, HubOrigin, hub_tokenizer
from seqloom.interop.post_processor import with_prefix_space, with_special_entries, with_template
from seqloom.interop.sentence_transformers import write_pooling
from seqloom.models import family_name
from seqloom.models.bert import Bert
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.ngram import Ngram
from seqloom.protocols import SpecialTokenTemplate, StoredTokenizer
from seqloom.registry import hub_task
from seqloom.runs import run_folder
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.images.classify import read_preprocessing
from seqloom.tasks.language_modeling.arpa import SUFFIXES, export_arpa, import_arpa
from seqloom.text.special_tokens import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

FORMATS = ("huggingface", "arpa", "onnx")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What weights may be converted to."""
ENCODER_DECODERS = ("transformer", "t5")


def import_model(place: str, output_dir: str, dtype: str | None = None) -> dict[str, object]:
    """Makes a run folder of a Hugging Face directory, of `hf://NAME@REVISION` or of an ARPA file; returns
    what it holds.

    Raises UsageError where the folder is there already or the place is neither; DataError and FolderError
    where it is damaged.
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
    if is_hub_name(place):
        logger.info(f"{printable(place)} is commit {printable(source.name)}")
    if not is_hub_folder(source):
        there = (source / CONFIG).is_file()
        hint = "is a run folder of seqloom already" if there else foreign_kind(source)
        raise UsageError(
            f"{printable(place)}: must be a Hugging Face directory (config.json, model.safetensors) or an"
            f" ARPA file, but {hint or 'is neither'}"
        )
    checkpoint = read_checkpoint(source, dtype)
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


def _copy_preprocessor(source: Path, folder: Path) -> None:
    content = files.read_bytes(source / run_folder.PREPROCESSOR)
    files.write_atomic(folder / run_folder.PREPROCESSOR, content)


def _sizes(model: nn.Module, model_type: str, task: str) -> dict[str, object]:
    return {
        "model": model_type,
        "task": task,
        "parameters": sum(one.numel() for one in model.parameters()),
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

    `form` is one of FORMATS, by default arpa for an n-gram model and huggingface for others. Raises
    UsageError where the format cannot hold the model (the option is named), or where the output is there
    already.
    """
    if form is not None and form not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, but is {printable(form)}")
    if shard_mib is not None and shard_mib < 1:
        raise UsageError(f"--shard-size must be at least 1 (MiB), but is {shard_mib}")
    if form == "arpa" or (form is None and Path(out).suffix.lower() in SUFFIXES):
        return {"output": out, "ngrams": export_arpa(folder, out)}
    if form == "onnx":
        from seqloom.workflows.onnx import export_onnx

        return export_onnx(folder, out)
    source = _open(folder)
    if form is None and isinstance(source.model, Ngram):
        return {"output": out, "ngrams": export_arpa(folder, out)}
    shard_bytes = None if shard_mib is None else shard_mib * 2**20
    return _export_folder(source, Path(out), shard_bytes)


def _open(folder: str) -> _Source:
    place = run_folder.resolve_folder(folder)
    if run_folder.task_of(place) == run_folder.IMAGES:
        opened = run_folder.open_model(place)
        model_type = family_name(str(opened.content["model_type"]))
        return _Source(
            opened.model, run_folder.IMAGES, model_type, None, place, run_folder.origin_of(place)
        )
    run = run_folder.load_run(place)
    return _Source(run.model, run.task, run.model_type, run, place, run_folder.origin_of(place))


def _export_folder(source: _Source, out: Path, shard_bytes: int | None) -> dict[str, object]:
    model, origin = source.model, source.origin
    config: Any = model.config
    origin_content = None if origin is None else origin.content
    target = target_of(source.model_type, config, hub_task(source.task), origin_content)
    their_tensors(model, target)  # errors come before anything is written
    with files.atomic_folder(out, "an exported model") as temporary:
        written = _write_export(source, target, temporary, shard_bytes)
    return {
        "output": str(out),
        **_sizes(model, target.hub_type, source.task),
        "architecture": target.architecture,
        "files": [name for name in written if name.endswith(".safetensors")],
    }


def _write_export(source: _Source, target: Target, out: Path, shard_bytes: int | None) -> list[str]:
    model, origin, run = source.model, source.origin, source.run
    config: Any = model.config
    origin_content = None if origin is None else origin.content
    ids: dict[str, object] = {}
    if run is not None:
        _write_tokenizer(source, run, out)
        ids = _special_id_keys(run) if origin is None else {}
    elif files.is_there(source.folder / run_folder.PREPROCESSOR):
        _copy_preprocessor(source.folder, out)
    if origin is not None and origin.pooling is not None and not isinstance(model, EncoderWithHead):
        write_pooling(out, origin.pooling, config.width)
    written = write_checkpoint(
        out, model, config, target, origin=origin_content, ids=ids, shard_bytes=shard_bytes
    )
    files.write_atomic(out / "README.md", _card(source, target))
    return written


def _write_tokenizer(source: _Source, run: run_folder.LoadedRun, out: Path) -> None:
    run_folder.write_tokenizer(out, run.tokenizer)
    encoder = source.model
    if isinstance(source.model, EncoderWithHead):
        _write_row_template(source.model, run.tokenizer, out, source.origin)
        encoder = source.model.encoder
    if isinstance(encoder, Bert):
        # the tokenizer classes of BERT say so themselves, PreTrainedTokenizerFast does not
        segments = ("token_type_ids",) if encoder.config.segments > 1 else ()
        names = ["input_ids", *segments, "attention_mask"]
        content = files.read_json_object(out / TOKENIZER_CONFIG)
        files.write_json(out / TOKENIZER_CONFIG, {"model_input_names": names, **content})
    if hub_task(source.task) in ("translation", "text-generation"):
        bos = len(run.tokenizer.special_ids.bos) if source.model_type in ENCODER_DECODERS else None
        ids = _special_id_keys(run).items()
        content = {key: value for key, value in ids if key.endswith("_id") and value is not None}
        content |= generation_content(run.decode, writes_after=bos)
        kept = None if source.origin is None else source.origin.generation
        files.write_json(out / GENERATION, kept or content)


def _write_row_template(
    model: EncoderWithHead, tokenizer: StoredTokenizer, out: Path, origin: HubOrigin | None
) -> None:
    """Makes the tokenizer do what the rows of the training had: special tokens, the space before words with
    tags, the maximum length. One that came with the same head does so already."""
    content, changes = tokenizer.to_json(), {}
    encoder_size = model.config.encoder["vocabulary_size"]
    if not tokenizer.pretrained:
        template = row_template(
            tokenizer.special_ids, model.model_type, True, tokenizer.vocabulary_size
        )
        segments = model.config.encoder.get("segments", 1) > 1
        names = dict(enumerate(SPECIAL_TOKENS))
        content = with_template(content, SpecialTokenTemplate(*template), names, segments=segments)
        if model.context is not None:
            changes["model_max_length"] = model.context
    elif encoder_size > tokenizer.vocabulary_size:
        content, names = with_special_entries(content, tokenizer.vocabulary_size, CAUSAL_MARKS)
        beyond = ((i,) for i in range(tokenizer.vocabulary_size, encoder_size))
        content = with_template(content, SpecialTokenTemplate(*beyond), names, segments=False)
    architectures = [] if origin is None else origin.architectures()
    came_with_head = any("TokenClassification" in name for name in architectures)
    if model.config.kind == "tagging" and space_begins_words(tokenizer) and not came_with_head:
        content = with_prefix_space(content)
        changes["add_prefix_space"] = True
    files.write_json(
        out / TOKENIZER_CONFIG, files.read_json_object(out / TOKENIZER_CONFIG) | changes
    )
    files.write_atomic(out / run_folder.TOKENIZER, content.encode())


def _special_id_keys(run: run_folder.LoadedRun) -> dict[str, object]:
    """The special ids of a tokenizer of ours as keys of config.json."""
    special_ids = run.tokenizer.special_ids
    bos, forced, *_ = (*special_ids.bos, None, None)
    keys: dict[str, object] = {
        "bos_token_id": bos,
        "eos_token_id": special_ids.eos,
        "pad_token_id": special_ids.pad if special_ids.pad >= 0 else None,
    }
    if run.model_type in ENCODER_DECODERS:
        keys |= {
            "is_encoder_decoder": True,
            "decoder_start_token_id": bos,
            "forced_bos_token_id": forced,
        }
    return keys


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
