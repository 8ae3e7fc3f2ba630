"""The adapter of a run that was trained with LoRA, beside its merged weights."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from seqloom import manifest
from seqloom.config import RunConfig
from seqloom.errors import UsageError, printable
from seqloom.interop.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from seqloom.interop.adapter_tensors import write_adapter
from seqloom.interop.export import target_of, their_tensors
from seqloom.interop.pretrained import VOCABULARY_TENSORS
from seqloom.models import family_name, model_family
from seqloom.models.encoder_with_head import EncoderWithHeadConfig
from seqloom.protocols import ModelConfig
from seqloom.registry import hub_task
from seqloom.runs import run_folder
from seqloom.training.checkpoints import LOW_RANK, WEIGHTS, load_model_tensors, read_tensors

logger = logging.getLogger(__name__)


def whole_parts(run: RunConfig, config: ModelConfig) -> tuple[str, ...]:
    """Beginnings of the names of the parameters of a model that are trained whole beside LoRA: those of a new
    head, and those with a row for each id where some ids are new, be it special tokens that the tokenizer has
    not got (`interop/pretrained.py`)."""
    grown = bool(run.data.add_tokens)
    vocabulary = tuple(sorted(VOCABULARY_TENSORS))
    if isinstance(config, EncoderWithHeadConfig):
        grown = grown or config.encoder.get("vocabulary_size", 0) > config.vocabulary_size
        vocabulary = ("encoder.embedding.",)
    return ("head.", *vocabulary) if grown else ("head.",)


def write_run_adapter(folder: Path, run: RunConfig, best: Path) -> None:
    """Writes `adapter/` of a run from its best checkpoint, before the folder is sealed."""
    assert run.train.lora_rank is not None
    content, config = run_folder.config_in(folder)
    model_type = family_name(str(content["model_type"]))
    model: nn.Module = model_family(model_type)[1](config)
    load_model_tensors(model, best / WEIGHTS)
    origin = run_folder.origin_of(folder)
    target = None
    # a language model of text pairs is a language model to PEFT
    decoder = run_folder.is_decoder_of_pairs(run.task, model)
    task = "text-generation" if decoder else hub_task(run.task)
    try:
        found = target_of(model_type, config, task, None if origin is None else origin.content)
        their_tensors(model, found)  # raises where one has no place there
        target = found
    except UsageError as error:
        logger.info(
            f"{manifest.ADAPTER}/ has the names of seqloom's own tensors, as transformers has no such model"
            f" ({printable(str(error))}): PEFT cannot use it, seqloom can"
        )
    write_adapter(
        folder / manifest.ADAPTER,
        str(run.model["from"]),
        model,
        target,
        read_tensors(best / LOW_RANK),
        run.train.lora_alpha / run.train.lora_rank,
        whole_parts(run, config),
    )
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    manifest.add(folder, *(f"{manifest.ADAPTER}/{name}" for name in names))
