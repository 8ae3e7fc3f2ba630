"""The names of settings, in the groups in which tasks read them, and the defaults of fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from seqloom.config import DecodeConfig, EvaluateConfig, HeadConfig
from seqloom.protocols import Settings


def data(*names: str) -> frozenset[str]:
    return frozenset(f"data.{name}" for name in names)


def train(*names: str) -> frozenset[str]:
    return frozenset(f"train.{name}" for name in names)


FILES = data("format", "encoding", "on_bad_line", "max_line_bytes")
"""How any file of text is read."""
TABLE = data("delimiter", "header", "quoting", "skip_initial_space", "part", "join")
"""How any table is read."""
DOCUMENTS = FILES | TABLE | data("text", "document")
"""How documents are read."""
TRAINED_ON = data("train", "validation")
TOKENIZER = data("tokenizer", "vocabulary", "normalisation", "add_tokens")
DECODE = frozenset(f"decode.{option.name}" for option in fields(DecodeConfig))
"""How any model writes."""
EVALUATE = frozenset(f"evaluate.{field.name}" for field in fields(EvaluateConfig))
HEAD = frozenset(f"head.{option.name}" for option in fields(HeadConfig))
LOOP = train("evaluate_every", "best", "patience", "log_every", "tensorboard", "trackers")
"""When a training measures and ends, and where it writes that."""
TRAIN = LOOP | train(
    *("max_steps", "epochs", "min_steps", "batch_tokens", "batch_rows", "accumulate"),
    *("objective", "learning_rate", "schedule", "warmup_steps", "layer_decay", "freeze"),
    *("relative_rate", "lora_rank", "lora_alpha", "lora_targets"),
    *("beta2", "weight_decay", "clip_norm", "label_smoothing"),
    *("dtype", "device", "threads", "worker_timeout", "seed"),
)
"""What the training loop reads, whatever the task."""
WORD_VECTORS = train("word_vectors")
PRETRAINING = DOCUMENTS | TRAINED_ON | TOKENIZER | data("learn_from") | TRAIN | WORD_VECTORS
"""What every training on documents reads."""
FITTED = train("seed", "threads")
"""Of these what is read where a model is estimated without gradients."""
FINE_TUNING: dict[str, object] = {
    "learning_rate": 5e-5,
    "epochs": 3.0,
    "schedule": "linear",
    "beta2": 0.999,
}
"""Defaults of training from pretrained weights (Devlin et al. 2019, appendix A.3)."""
LORA_RATE = 5e-4
"""Default learning rate of LoRA (Hu et al. 2021, table 9: RoBERTa base)."""
PROMPT = train("prompt_length", "prompt_text")
"""What prompt tuning reads."""
PROMPT_TUNING = FINE_TUNING | {"learning_rate": 0.1, "schedule": "constant"}
"""Defaults of prompt tuning, by trial (docs/results.md). Lester et al. 2021 have 0.3, of Adafactor."""


def fine_tuning_defaults(content: Settings) -> Mapping[str, Mapping[str, object]]:
    """Those of a run file with this content: none where the weights are random."""
    if not content.get("model", {}).get("from"):
        return {}
    train = content.get("train", {})
    if train.get("prompt_length") is not None:
        return {"train": PROMPT_TUNING}
    if train.get("lora_rank"):
        return {"train": {**FINE_TUNING, "learning_rate": LORA_RATE}}
    return {"train": FINE_TUNING}
