"""Random encoders of `transformers` with a head on them, how they are asked, and readers of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.interop.published import BERT, GPT, hf, scale_of
from torch import Tensor, nn

from seqloom.config import HeadConfig
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig
from seqloom.protocols import EncodedBatch
from seqloom.shapes import IGNORE

NAMED: dict[str, Any] = {
    "id2label": {0: "z", 1: "a", 2: "m m"},
    "label2id": {"z": 0, "a": 1, "m m": 2},
}
SEVERAL: dict[str, Any] = {**NAMED, "problem_type": "multi_label_classification"}
NUMBER: dict[str, Any] = {"num_labels": 1}
ROBERTA: dict[str, Any] = {**BERT, "type_vocab_size": 1}
ELECTRA: dict[str, Any] = {**BERT, "embedding_size": 5, "hidden_act": "relu"}
PADDED: dict[str, Any] = {**GPT, "pad_token_id": 1}

CHECKPOINTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert-labels": (
        hf.BertForSequenceClassification,
        hf.BertConfig,
        {**BERT, **NAMED, "classifier_dropout": 0.3},
    ),
    "bert-several": (hf.BertForSequenceClassification, hf.BertConfig, {**BERT, **SEVERAL}),
    "bert-number": (hf.BertForSequenceClassification, hf.BertConfig, {**BERT, **NUMBER}),
    "bert-untied": (
        hf.BertForSequenceClassification,
        hf.BertConfig,
        {**BERT, **NAMED, "tie_word_embeddings": False},
    ),
    "bert-tags": (hf.BertForTokenClassification, hf.BertConfig, {**BERT, **NAMED}),
    "bert-span": (hf.BertForQuestionAnswering, hf.BertConfig, BERT),
    "bert-choice": (hf.BertForMultipleChoice, hf.BertConfig, BERT),
    "roberta-labels": (hf.RobertaForSequenceClassification, hf.RobertaConfig, {**ROBERTA, **NAMED}),
    "roberta-number": (
        hf.RobertaForSequenceClassification,
        hf.RobertaConfig,
        {**ROBERTA, **NUMBER, "pad_token_id": 4},
    ),
    "roberta-tags": (hf.RobertaForTokenClassification, hf.RobertaConfig, {**ROBERTA, **NAMED}),
    "roberta-span": (hf.RobertaForQuestionAnswering, hf.RobertaConfig, ROBERTA),
    "roberta-choice": (hf.RobertaForMultipleChoice, hf.RobertaConfig, ROBERTA),
    "electra-labels": (hf.ElectraForSequenceClassification, hf.ElectraConfig, {**ELECTRA, **NAMED}),
    "electra-tags": (hf.ElectraForTokenClassification, hf.ElectraConfig, {**ELECTRA, **NAMED}),
    "electra-span": (
        hf.ElectraForQuestionAnswering,
        hf.ElectraConfig,
        {**ELECTRA, "embedding_size": 12},
    ),
    "electra-choice": (hf.ElectraForMultipleChoice, hf.ElectraConfig, ELECTRA),
    "gpt2-labels": (hf.GPT2ForSequenceClassification, hf.GPT2Config, {**PADDED, **NAMED}),
    "gpt2-several": (
        hf.GPT2ForSequenceClassification,
        hf.GPT2Config,
        {**PADDED, **SEVERAL, "tie_word_embeddings": False},
    ),
    "gpt1-labels": (hf.OpenAIGPTForSequenceClassification, hf.OpenAIGPTConfig, {**PADDED, **NAMED}),
    "gpt1-number": (
        hf.OpenAIGPTForSequenceClassification,
        hf.OpenAIGPTConfig,
        {**PADDED, **NUMBER},
    ),
}
"""name -> class, configuration, its fields."""
KINDS = {
    "several": "multi-label",
    "number": "regression",
    "tags": "tagging",
    "span": "span",
    "choice": "choice",
}
TASKS = {
    "multi-label": "text-classification",
    "classification": "text-classification",
    "regression": "sentence-similarity",
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}


def kind_of(name: str) -> str:
    return KINDS.get(name.rpartition("-")[2], "classification")


def saved(name: str, folder: Path, **changes: Any) -> Any:
    """A model of `transformers` whose every number is far from that of a fresh one, saved."""
    kind, config, fields = CHECKPOINTS[name]
    torch.manual_seed(len(name))
    model = kind(config(**{**fields, **changes})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    return model


def asked(name: str) -> EncodedBatch:
    """Four rows of different lengths, of two segments where the model knows any; every step is asked for
    where places are."""
    torch.manual_seed(7)
    steps, lengths = 7, torch.tensor([[7], [3], [5], [1]])
    place = torch.arange(steps).expand(4, steps)
    mask = place < lengths
    tokens = torch.randint(5, 18, mask.shape).where(mask, -1)
    segments = (
        (tokens % 2) * mask if name.startswith(("bert", "electra")) else torch.zeros_like(tokens)
    )
    kind = kind_of(name)
    places = place.where(mask, -1) if kind in ("tagging", "span") else tokens.new_zeros(4, 0)
    owner = torch.tensor([0, 0, 1, 1]) if kind == "choice" else torch.arange(4)
    targets = torch.full((int(owner[-1]) + 1,), IGNORE)
    return EncodedBatch(
        tokens, segments, tokens.new_zeros(*tokens.shape, 0), owner, places, targets
    )


def ask_theirs(name: str, model: Any, batch: EncodedBatch) -> Tensor:
    """The same scores as `EncoderWithHead` gives, of theirs."""
    mask = batch.tokens >= 0
    pad = 1 if (pad := model.config.pad_token_id) is None else pad
    given = {"input_ids": batch.tokens.where(mask, pad), "attention_mask": mask.long()}
    if name.startswith(("bert", "electra")):
        given["token_type_ids"] = batch.segments
    if kind_of(name) == "choice":
        given = {key: value.view(2, 2, -1) for key, value in given.items()}
    out = model(**given)
    if kind_of(name) == "span":
        return torch.stack([out.start_logits, out.end_logits], dim=-1)
    logits: Tensor = out.logits
    return logits[:, 0] if kind_of(name) == "regression" else logits


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return ours.shape == theirs.shape and float(
        (ours - theirs).abs().max()
    ) <= tolerance * scale_of(theirs)


def reader(
    kind: str = "classification", encoder: dict[str, Any] | None = None, size: int = 20, **head: Any
) -> EncoderWithHead:
    """One of our own."""
    fields = encoder or {"model_type": "bert", "layers": 1, "context": 16, "head": "none"}
    width = {} if fields["model_type"] in ("bag_of_words", "convolution") else {"width": 8}
    heads = {"heads": 2} if fields["model_type"] in ("bert", "gpt", "t5") else {}
    labels = ("z", "a", "b") if kind in ("classification", "multi-label", "tagging") else ()
    torch.manual_seed(0)
    whole = {"vocabulary_size": size, **width, **heads, **fields}
    return EncoderWithHead(
        EncoderWithHeadConfig(
            kind=kind,  # type: ignore[arg-type]
            encoder=whole,
            head=HeadConfig(**head),
            labels=labels,
            vocabulary_size=20,
        )
    ).eval()
