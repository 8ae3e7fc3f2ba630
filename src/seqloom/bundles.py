"""The run folder: a model that anyone can open.

    config.json             model_type, the model's sizes, special ids, task
    tokenizer.json          the tokenizer, and nothing else of the text's treatment anywhere else
    tokenizer_config.json   what Hugging Face's readers ask for
    generation_config.json  how it decodes unless told otherwise
    run.yaml                the resolved configuration of the training
    data.json               fingerprints of what it was trained on
    metrics.jsonl           one line a report; whole lines only
    checkpoint-STEP/        while it trains, and to go on
    model.safetensors       the best checkpoint's weights, once training is over
    manifest.json           sizes and SHA-256 of these files: the folder is finished and whole
    README.md               the model card

Loading runs no code from a file: JSON, YAML (safe) and safetensors only.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from seqloom import files
from seqloom.config import DecodeConfig, parse, to_plain
from seqloom.errors import FolderError, UsageError, printable
from seqloom.models import model_family
from seqloom.text.special import BOS, EOS, PAD
from seqloom.text.tokenizers import TextTokenizer, tokenizer_config
from seqloom.training.checkpoints import (
    WEIGHTS,
    check_weights,
    checkpoint_path,
    load_model_tensors,
    newest_checkpoint,
    read_state,
    shapes_in,
)
from seqloom.version import VERSION

IDLE = {
    "beam": ("temperature", "top_k", "top_p", "min_p", "seed"),
    "sample": ("beam", "length_penalty", "groups", "diversity"),
}
"""Settings of decoding that change nothing, for each strategy."""
CONFIG, TOKENIZER, GENERATION = "config.json", "tokenizer.json", "generation_config.json"
RUN, DATA, METRICS = "run.yaml", "data.json", "metrics.jsonl"
FROM_TOKENIZER = {"vocabulary_size", "pad_id", "bos_id", "eos_id", "unk_id"}
"""Fields of a model's configuration that nobody sets."""
SEALED = (CONFIG, TOKENIZER, "tokenizer_config.json", GENERATION, RUN, DATA, WEIGHTS)
"""What the manifest of a finished folder vouches for."""


@final
@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A model with all that it needs."""

    folder: Path
    task: str
    model_type: str
    model: nn.Module
    tokenizer: TextTokenizer
    decode: DecodeConfig
    weights: Path
    """The file its weights came from."""

    def decode_with(self, changes: dict[str, Any]) -> DecodeConfig:
        """The folder's decode settings with changes. Raises UsageError for one that cannot be, or that would change nothing."""
        settings = parse(DecodeConfig, to_plain(self.decode) | changes, "decode.")
        if idle := [name for name in IDLE[settings.strategy] if name in changes]:
            (other,) = IDLE.keys() - {settings.strategy}
            raise UsageError(
                f"decode.{idle[0]} changes nothing with decode.strategy={settings.strategy}; leave it out, or add decode.strategy={other}"
            )
        return settings


def write_model_files(folder: Path, task: str, model_type: str, configured: Any, tokenizer: TextTokenizer, decode: DecodeConfig) -> None:
    """All that inference needs, but for the weights."""
    config = {
        "model_type": model_type,
        "architectures": [type(configured).__name__.removesuffix("Config")],
        "task": task,
        "seqloom_version": VERSION,
        "torch_version": str(torch.__version__),
        **to_plain(configured),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    files.write_json(folder / CONFIG, config)
    files.write_atomic(folder / TOKENIZER, tokenizer.to_json())
    files.write_json(folder / "tokenizer_config.json", tokenizer_config(tokenizer))
    files.write_json(folder / GENERATION, {**to_plain(decode), "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD})


def build_model(model_type: str, size: str, vocabulary_size: int, fields: dict[str, Any]) -> tuple[nn.Module, Any]:
    """A new model and its configuration. Raises UsageError for an unknown family, size or field."""
    config = model_config(model_type, size, vocabulary_size, fields)
    model: nn.Module = model_family(model_type)[1](config)
    return model, config


def model_config(model_type: str, size: str, vocabulary_size: int, fields: dict[str, Any]) -> Any:
    """The configuration of a named size, changed by `fields`. Raises UsageError that names all that is wrong."""
    config_class, _, sizes = model_family(model_type)
    if size not in sizes:
        raise UsageError(f"the size of {model_type} must be one of {', '.join(sizes)}, but is {size!r}")
    given = sorted(fields.keys() & FROM_TOKENIZER)
    if given:
        raise UsageError(f"model.{given[0]} comes from the tokenizer and cannot be set; leave it out")
    return parse(config_class, {"vocabulary_size": vocabulary_size, **sizes[size], **fields}, prefix="model.")


def load_bundle(folder: str | Path, device: str = "auto") -> Bundle:
    """Opens a run folder: its final weights, or while it still trains, its best checkpoint so far.

    Raises FolderError where the folder is not a run folder, or a file in it is missing or damaged.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise FolderError(f"{printable(str(folder))}: must be a run folder, but holds no {CONFIG}; make one with: seqloom train")
    if (folder / files.MANIFEST).exists() and (problem := files.manifest_problem(folder)):
        raise FolderError(f"{printable(str(folder))}: {problem}")
    content = dict(files.read_json(folder / CONFIG))
    if missing := [key for key in ("model_type", "task", "vocabulary_size") if key not in content]:
        raise FolderError(f"{printable(str(folder / CONFIG))}: must say {', '.join(missing)}, but does not")
    tokenizer = read_tokenizer(folder / TOKENIZER)
    weights = _weights_of(folder)
    model = _model_of(content, folder, weights)
    load_model_tensors(model, weights)
    if tokenizer.vocabulary_size != content["vocabulary_size"]:
        raise FolderError(
            f"{printable(str(folder))}: tokenizer and weights must belong together, but the vocabulary has "
            f"{tokenizer.vocabulary_size} entries and the model {content['vocabulary_size']}"
        )
    generation = files.read_json(folder / GENERATION)
    try:
        decode = parse(DecodeConfig, {k: v for k, v in generation.items() if not k.endswith("_token_id")}, "decode.")
    except UsageError as error:
        raise FolderError(f"{printable(str(folder / GENERATION))}: {error}") from None
    model.to(choose_device(device)).eval()
    return Bundle(
        folder=folder,
        task=str(content["task"]),
        model_type=str(content["model_type"]),
        model=model,
        tokenizer=tokenizer,
        decode=decode,
        weights=weights,
    )


def _model_of(content: dict[str, Any], folder: Path, weights: Path) -> nn.Module:
    ours = ("architectures", "task", "seqloom_version", "torch_version", "bos_token_id", "eos_token_id", "pad_token_id")
    fields = {key: value for key, value in content.items() if key not in (*ours, "model_type")}
    try:
        config_class, model_class, _ = model_family(str(content.get("model_type")))
        config = parse(config_class, fields, prefix="model.")
        with torch.device("meta"):  # nothing is allocated before the sizes are known to fit the weights
            check_weights(model_class(config), shapes_in(weights), weights)
        model: nn.Module = model_class(config)
    except UsageError as error:
        raise FolderError(f"{printable(str(folder / CONFIG))}: {error}") from None
    return model


def _weights_of(folder: Path) -> Path:
    if (folder / files.MANIFEST).exists():
        return folder / WEIGHTS
    newest, _ = newest_checkpoint(folder)
    if newest is None:
        raise FolderError(
            f"{printable(str(folder))}: holds no weights yet; train it on with: seqloom train --resume {printable(str(folder))}"
        )
    best = read_state(newest).best_step
    if best is None or (chosen := checkpoint_path(folder, best)) == newest or not chosen.is_dir():
        return newest / WEIGHTS
    if problem := files.manifest_problem(chosen):
        raise FolderError(f"{printable(str(chosen))}: {problem}")
    return chosen / WEIGHTS


def seal(folder: Path, best: Path) -> None:
    """Makes a checkpoint's weights the folder's, and vouches for all with a manifest, the last file written."""
    (folder / files.MANIFEST).unlink(missing_ok=True)
    files.link_atomic(best / WEIGHTS, folder / WEIGHTS)
    listed = {name: {"bytes": (folder / name).stat().st_size, "sha256": files.sha256(folder / name)} for name in SEALED}
    files.write_json(folder / files.MANIFEST, {"files": listed, "best": best.name})


def read_tokenizer(path: Path) -> TextTokenizer:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"{printable(str(path))}: cannot be read ({error})") from None
    try:
        return TextTokenizer.from_json(text)
    except FolderError as error:
        raise FolderError(f"{printable(str(path))}: {error}") from None


def choose_device(name: str) -> torch.device:
    """Raises UsageError where there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise UsageError(f"the device must be auto, cpu or cuda (where there is one), but is {name!r}")
    return torch.device(name)


def append_metrics(folder: Path, record: dict[str, Any]) -> None:
    """One whole line more in metrics.jsonl, or none where the disk is full (FolderError); null stands for what is not finite."""
    line = (files.json_line(record) + "\n").encode()
    with files.writing(folder / METRICS):
        handle = os.open(folder / METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        before = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
            if written < len(line):  # the next write says why
                os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, before)
            raise
        finally:
            os.close(handle)


def cut_metrics(folder: Path, step: int) -> None:
    """Drops what was logged after a step (by a run that was killed), and half a line."""
    path = folder / METRICS
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            continue
    files.write_atomic(path, b"".join(kept))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    path = folder / METRICS
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def validation_metrics(folder: Path, step: int) -> dict[str, float]:
    """What the validation at a step gave."""
    prefix = "validation_"
    for record in reversed(read_metrics(folder)):
        if record["step"] == step and f"{prefix}loss" in record:
            return {name.removeprefix(prefix): value for name, value in record.items() if name.startswith(prefix) and value is not None}
    return {}
