"""Models in and out of the field's formats: Hugging Face directories, ARPA files, ONNX."""

from __future__ import annotations

import logging
import shutil
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
from seqloom.interop.hub import is_hub_name
from seqloom.interop.hub_origin import TOKENIZER_CONFIG, HubOrigin, hub_tokenizer
from seqloom.interop.post_processor import framed, with_entries, with_first_blank
from seqloom.interop.sentence_transformers import write_pooling
from seqloom.interop.tensor_mapping import check_finite, first_names
from seqloom.models import family_name
from seqloom.models.bert import Bert
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.ngram import Ngram
from seqloom.protocols import StoredTokenizer
from seqloom.runs import run_folder
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.images.classify import read_preprocessing
from seqloom.tasks.language_modeling.arpa import SUFFIXES, export_arpa, import_arpa
from seqloom.tasks.registry import TASKS
from seqloom.text.special_tokens import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

FORMATS = ("huggingface", "arpa", "onnx")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What weights may be made on the way."""
ENCODER_DECODERS = ("transformer", "t5")


def import_model(place: str, output_dir: str, dtype: str | None = None) -> dict[str, Any]:
    """Makes a run folder of a Hugging Face directory, of `hf://NAME@REVISION` or of an ARPA file; returns
    what it holds.

    Raises UsageError where the folder is there already or the place is neither; DataError and FolderError
    where it is damaged.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--dtype must be one of {', '.join(DTYPES)}, but is {printable(dtype)}")
    if is_hub_name(place) or Path(place).is_dir():
        return _import_folder(place, Path(output_dir), None if dtype is None else DTYPES[dtype])
    if dtype is not None:
        raise UsageError(
            f"--dtype belongs to Hugging Face directories, but {printable(place)} is none; leave it out"
        )
    return {"output": output_dir, "ngrams": import_arpa(place, output_dir)}


def _import_folder(place: str, folder: Path, dtype: torch.dtype | None) -> dict[str, Any]:
    source = run_folder.located(place)
    if is_hub_name(place):
        logger.info(f"{printable(place)} is commit {printable(source.name)}")
    if not is_hub_folder(source):
        raise UsageError(
            f"{printable(place)}: must be a Hugging Face directory (config.json, model.safetensors) or an"
            " ARPA file, but is neither"
            + ("; it is a run folder of seqloom already" if (source / CONFIG).is_file() else "")
        )
    found = read_checkpoint(source, dtype)
    origin = HubOrigin.of(source)
    decode, notes = DecodeConfig(), list(found.notes)
    tokenizer = None
    if found.task != run_folder.IMAGES:
        tokenizer = hub_tokenizer(source, origin.content, found.config.vocabulary_size)
        decode, said = origin.decoding(TASKS[found.task].decode if found.task in TASKS else {}, tokenizer)
        notes += said
    for note in notes:
        logger.info(note)
    if found.task == run_folder.IMAGES:
        read_preprocessing(source, found.config)  # said before anything is written
    check_finite(first_names(found.model), source)
    files.new_folder(folder, "an imported model", "name another --output-dir")
    run = RunConfig(
        task=found.task,
        output_dir=str(folder),
        model={"name": found.model_type, "size": "small"},
        data=DataConfig(train=(place if is_hub_name(place) else str(source.resolve()),)),
        decode=decode,
    )
    if found.task == run_folder.IMAGES:
        files.write_atomic(folder / run_folder.PREPROCESSOR, (source / run_folder.PREPROCESSOR).read_bytes())
    used = [fingerprint(str(path)) for path in sorted(source.glob("*.safetensors"))]
    write_finished_run(folder, run, found.model, tokenizer, used, None, origin)
    return {"output": str(folder), **_sizes(found.model, found.model_type, found.task), "notes": notes}


def _sizes(model: nn.Module, model_type: str, task: str) -> dict[str, Any]:
    return {"model": model_type, "task": task, "parameters": sum(one.numel() for one in model.parameters())}


@final
class _Source(NamedTuple):
    """What is exported."""

    model: nn.Module
    task: str
    model_type: str
    bundle: run_folder.LoadedRun | None
    """None of a model of images."""
    folder: Path
    origin: HubOrigin | None


def export_model(
    folder: str, out: str, form: str | None = None, shard_mib: int | None = None
) -> dict[str, Any]:
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
    source = _opened(folder)
    if form is None and isinstance(source.model, Ngram):
        return {"output": out, "ngrams": export_arpa(folder, out)}
    return _export_folder(source, Path(out), None if shard_mib is None else shard_mib * 2**20)


def _opened(folder: str) -> _Source:
    place = run_folder.located(folder)
    if run_folder.task_of(place) == run_folder.IMAGES:
        opened = run_folder.open_model(place)
        model, model_type, task, bundle = (
            opened.model,
            family_name(str(opened.content["model_type"])),
            run_folder.IMAGES,
            None,
        )
    else:
        bundle = run_folder.load_run(place)
        model, model_type, task = bundle.model, bundle.model_type, bundle.task
    content = files.read_json(place / CONFIG)
    if is_hub_folder(place):
        origin: HubOrigin | None = HubOrigin.of(place)
    elif "hub" in content:
        origin = HubOrigin.of(place)._replace(
            content=content["hub"]["config"], generation=content["hub"]["generation"]
        )
    else:
        origin = None
    return _Source(model, task, model_type, bundle, place, origin)


def _export_folder(source: _Source, out: Path, shard_bytes: int | None) -> dict[str, Any]:
    config: Any = source.model.config
    origin = None if source.origin is None else source.origin.content
    target = target_of(source.model_type, config, source.task, origin)
    their_tensors(source.model, config, target)  # said before anything is written
    files.new_folder(out, "an exported model")
    if source.bundle is not None:
        _write_tokenizer(source, source.bundle, out)
    elif (source.folder / run_folder.PREPROCESSOR).is_file():
        shutil.copyfile(source.folder / run_folder.PREPROCESSOR, out / run_folder.PREPROCESSOR)
    if (
        source.origin is not None
        and source.origin.pooling is not None
        and not isinstance(source.model, EncoderWithHead)
    ):
        write_pooling(out, source.origin.pooling, config.width)
    ids = {} if source.bundle is None or source.origin is not None else _ids(source.bundle)
    written = write_checkpoint(
        out, source.model, config, target, origin=origin, ids=ids, shard_bytes=shard_bytes
    )
    files.write_atomic(out / "README.md", _card(source, target))
    weights = [name for name in written if name.endswith(".safetensors")]
    return {
        "output": str(out),
        **_sizes(source.model, target.hub_type, source.task),
        "architecture": target.architecture,
        "files": weights,
    }


def _write_tokenizer(source: _Source, bundle: run_folder.LoadedRun, out: Path) -> None:
    run_folder.write_tokenizer(out, bundle.tokenizer)
    if isinstance(source.model, EncoderWithHead):
        _write_layout(source.model, bundle.tokenizer, out, source.origin)
    encoder = source.model.encoder if isinstance(source.model, EncoderWithHead) else source.model
    if isinstance(encoder, Bert):  # of whose class theirs would know it
        segments = ("token_type_ids",) if encoder.config.segments > 1 else ()
        _change_tokenizer_config(
            out, {"model_input_names": ["input_ids", *segments, "attention_mask"]}, over=False
        )
    if source.task == "translation" or source.task == "text-generation":
        begins = len(bundle.tokenizer.special_ids.bos) if source.model_type in ENCODER_DECODERS else None
        own = {key: value for key, value in _ids(bundle).items() if key.endswith("_id") and value is not None}
        own |= generation_content(bundle.decode, writes_after=begins)
        files.write_json(out / GENERATION, own if source.origin is None else source.origin.generation or own)


def _write_layout(
    reader: EncoderWithHead, tokenizer: StoredTokenizer, out: Path, origin: HubOrigin | None
) -> None:
    """Has the tokenizer of a reader do what the rows that it was trained on say: marks, the blank before
    words with tags, the most that it reads. One that came with the same head does so already."""
    content = tokenizer.to_json()
    if not tokenizer.pretrained:
        template = row_template(tokenizer.special_ids, reader.model_type, True, tokenizer.vocabulary_size)
        encoder: Any = reader.encoder
        segments = getattr(encoder.config, "segments", 1) > 1
        content = framed(
            content, template.prefix, template.separator, template.suffix, SPECIAL_TOKENS, segments=segments
        )
        if reader.context is not None:
            _change_tokenizer_config(out, {"model_max_length": reader.context})
    elif (size := reader.config.encoder["vocabulary_size"]) > tokenizer.vocabulary_size:
        content, names = with_entries(content, tokenizer.vocabulary_size, CAUSAL_MARKS)
        before, between, after = ((one,) for one in range(tokenizer.vocabulary_size, size))
        content = framed(content, before, between, after, names, segments=False)
    came = [] if origin is None else origin.content.get("architectures") or []
    if (
        reader.config.kind == "tagging"
        and space_begins_words(tokenizer)
        and not any("TokenClassification" in str(one) for one in came)
    ):
        content = with_first_blank(content)
        _change_tokenizer_config(out, {"add_prefix_space": True})
    files.write_atomic(out / run_folder.TOKENIZER, content.encode())


def _change_tokenizer_config(out: Path, changes: dict[str, Any], *, over: bool = True) -> None:
    """Without `over`, what stands there stays."""
    content = files.read_json(out / TOKENIZER_CONFIG)
    files.write_json(out / TOKENIZER_CONFIG, content | changes if over else changes | content)


def _ids(bundle: run_folder.LoadedRun) -> dict[str, Any]:
    """The marks of a tokenizer of ours as keys of config.json."""
    special_ids = bundle.tokenizer.special_ids
    begin = special_ids.bos[0] if special_ids.bos else None
    ids: dict[str, Any] = {
        "bos_token_id": begin,
        "eos_token_id": special_ids.eos,
        "pad_token_id": special_ids.pad if special_ids.pad >= 0 else None,
    }
    if bundle.model_type in ENCODER_DECODERS:
        forced = special_ids.bos[1] if len(special_ids.bos) > 1 else None
        ids |= {"is_encoder_decoder": True, "decoder_start_token_id": begin, "forced_bos_token_id": forced}
    return ids


def _card(source: _Source, target: Target) -> str:
    return f"""---
library_name: transformers
pipeline_tag: {source.task}
---

# {printable(source.folder.resolve().name)}

A `{target.architecture}`, written by seqloom. It opens with

    transformers.{target.architecture}.from_pretrained(FOLDER)

and with seqloom as it is:

    seqloom {"predict FOLDER -" if source.task != "text-generation" else 'generate FOLDER --prompt "..."'}
"""
