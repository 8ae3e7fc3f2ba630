"""The task fill-mask: masked language models, from plain text or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from seqloom.config import RunConfig
from seqloom.data.readers.documents import forms_of_documents
from seqloom.models import model_family
from seqloom.protocols import Settings, Task
from seqloom.runs.run_folder import family_of_start
from seqloom.tasks.fill_mask.check_fill_mask import check_fill_mask
from seqloom.tasks.fill_mask.mask_filler import MaskFiller
from seqloom.tasks.fill_mask.training_data import prepare_masked_corpus
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DOCUMENTS,
    PRETRAINING,
    fine_tuning_defaults,
    train,
)
from seqloom.text.special_tokens import PAD

MASKS = train(
    *("noise_density", "noise_span", "mask_units", "static_masks"),
    *("sentence_pairs", "window"),
)
CONTEXT = 128
"""Of a new model of the size small: most of BERT's steps have rows of so many tokens."""


def defaults(content: Settings) -> Mapping[str, Mapping[str, object]]:
    """Those of fine-tuning; or for a new model the tokenizer and the rows of its paper: BERT's, or RoBERTa's
    where positions have an offset."""
    model, train = content.get("model", {}), content.get("train", {})
    start, size = model.get("from"), model.get("size", "small")
    name = family_of_start(start) if start else str(model.get("name", "bert"))
    chosen_by = {"best": "masked_accuracy"} if name == "electra" else {}
    if start:
        of_start = fine_tuning_defaults(content)
        return {**of_start, "train": {**of_start.get("train", {}), **chosen_by}}
    if name == "electra":
        context = {"context": train.get("window") or CONTEXT} if size == "small" else {}
        return {"data": {"tokenizer": "wordpiece"}, "train": chosen_by, "model": context}
    sizes = model_family("bert")[2]
    fields = {**sizes.get(size, {}), **model}
    pairs = train.get("sentence_pairs") or ("next" if fields.get("next_sentence") else "none")
    of_model: dict[str, object] = {}
    if pairs != "none":
        of_model |= {"pooler": True, "next_sentence": True}
    elif "sentence_pairs" in train:
        of_model |= {"pooler": False, "next_sentence": False}
    if fields.get("position_offset"):
        # the positions of the field's RoBERTa begin after the id of padding
        return {
            "train": {"sentence_pairs": pairs},
            "model": {"position_offset": PAD + 1, **of_model},
        }
    if size == "small":
        of_model["context"] = train.get("window") or CONTEXT
    return {
        "data": {"tokenizer": "wordpiece"},
        "train": {"sentence_pairs": pairs},
        "model": of_model,
    }


def unused(run: RunConfig) -> Mapping[str, str]:
    """The settings that change nothing in this run, and why."""
    train, reasons = run.train, {}
    if train.mask_units != "spans":
        reasons["train.noise_span"] = (
            f"train.noise_span is for train.mask_units=spans, but that is {train.mask_units}"
        )
    if run.model["name"] == "electra":
        reasons["train.sentence_pairs"] = (
            "train.sentence_pairs is for bert, but an electra learns nothing of pairs"
        )
    elif train.sentence_pairs == "none":
        for name in filter(run.model.get, ("pooler", "next_sentence")):
            reasons[f"model.{name}"] = (
                f"model.{name} is trained by pairs of sentences, but train.sentence_pairs is none"
            )
    return reasons


FILL_MASK = Task(
    name="fill-mask",
    summary="a text with masks in; the tokens at its masks out",
    models=("bert", "electra"),
    settings=PRETRAINING | MASKS,
    reading=DOCUMENTS,
    open=partial(open_text_model, MaskFiller),
    training_data=prepare_masked_corpus,
    check=check_fill_mask,
    forms=forms_of_documents,
    # the loss of an ELECTRA is lowest early, while the samples of its generator are easy to find
    best=("loss", "masked_accuracy"),
    defaults=defaults,
    unused=unused,
    fixed_fields={"bert": {"head": "masked-lm"}},
    pretrained=True,
)
