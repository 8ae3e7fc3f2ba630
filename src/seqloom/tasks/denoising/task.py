"""The task denoising: texts with noise in, what was there out (pre-training as of T5 and BART, and of prefix
language models)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from seqloom.config import RunConfig
from seqloom.protocols import Settings, Task
from seqloom.tasks.denoising.check_denoising import check_denoising
from seqloom.tasks.denoising.denoiser import Denoiser
from seqloom.tasks.denoising.noisy_windows import LANGUAGE_MODEL_NOISE
from seqloom.tasks.denoising.training_data import prepare_noisy_corpus
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DOCUMENTS,
    PRETRAINING,
    fine_tuning_defaults,
    train,
)

NOISE = train("noise", "noise_density", "noise_span", "window")
SPANS = {"random-spans", "infilling"}
"""Kinds of noise whose spans have a mean length."""
WITHOUT_SHARE = {"deshuffling", "prefix-lm", "sentence-permutation", "document-rotation"}
"""Kinds that corrupt no share of the tokens."""


def defaults(content: Settings) -> Mapping[str, Mapping[str, object]]:
    """Those of fine-tuning; what a language model can do of the noise; and how T5 was trained."""
    train = {**fine_tuning_defaults(content).get("train", {})}
    model = content.get("model", {})
    name = model.get("name", "t5")
    if name == "gpt":
        train["noise"] = LANGUAGE_MODEL_NOISE
    if name == "t5" and not model.get("from"):
        train["relative_rate"] = True
        # so high a rate is for relative ones alone
        if content.get("train", {}).get("relative_rate", True):
            train["learning_rate"] = 0.01
    return {"train": train}


def unused(run: RunConfig) -> Mapping[str, str]:
    """The settings that change nothing in this run, and why."""
    names, reasons = set(run.train.noise), {}
    if not names & SPANS:
        reasons["train.noise_span"] = (
            f"train.noise_span is for {' and '.join(sorted(SPANS))}, but train.noise is"
            f" {', '.join(run.train.noise)}"
        )
    if names <= WITHOUT_SHARE:
        reasons["train.noise_density"] = (
            f"train.noise_density is a share of tokens, but {', '.join(run.train.noise)} changes none or all"
        )
    return reasons


DENOISING = Task(
    name="denoising",
    summary="a text with noise in; what was there out (pre-training)",
    models=("t5", "transformer", "gpt"),
    settings=PRETRAINING | NOISE,
    reading=DOCUMENTS,
    open=partial(open_text_model, Denoiser),
    training_data=prepare_noisy_corpus,
    check=check_denoising,
    defaults=defaults,
    unused=unused,
    pretrained=True,
    hub_task="translation",
    verb="evaluate",
    usage="seqloom train translation DATA --from {} --output-dir NEW",
)
