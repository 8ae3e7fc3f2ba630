"""Random checkpoints of `transformers`, in every family and in odd shapes, and how they are asked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor, nn

hf: Any = transformers  # much of it has no types
hf.utils.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()

GPT: dict[str, Any] = {"n_embd": 12, "n_layer": 3, "n_head": 3, "vocab_size": 19, "n_positions": 11}
SIZES: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 7,
}
BERT: dict[str, Any] = {
    **SIZES,
    "vocab_size": 19,
    "max_position_embeddings": 13,
    "layer_norm_eps": 1e-5,
}
T5: dict[str, Any] = {
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 9,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "vocab_size": 19,
}
V11: dict[str, Any] = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
LAYERS: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
}
BART: dict[str, Any] = {
    **LAYERS,
    "d_model": 12,
    "encoder_ffn_dim": 9,
    "decoder_ffn_dim": 10,
    "vocab_size": 19,
    "max_position_embeddings": 12,
}
MARIAN: dict[str, Any] = {
    **BART,
    "pad_token_id": 18,
    "eos_token_id": 0,
    "decoder_start_token_id": 18,
}
VIT: dict[str, Any] = {
    **SIZES,
    "image_size": 8,
    "patch_size": 2,
    "id2label": {0: "cat", 1: "dog", 2: "a b"},
}

CHECKPOINTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, GPT),
    "gpt2-bare": (hf.GPT2Model, hf.GPT2Config, GPT),
    "gpt2-untied": (
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        {**GPT, "tie_word_embeddings": False, "n_inner": 5, "activation_function": "relu"},
    ),
    "gpt2-long": (
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        {**GPT, "n_positions": 300, "n_head": 1, "layer_norm_epsilon": 0.01},
    ),
    "gpt1": (hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTConfig, GPT),
    "gpt1-untied": (
        hf.OpenAIGPTLMHeadModel,
        hf.OpenAIGPTConfig,
        {**GPT, "tie_word_embeddings": False, "n_head": 4},
    ),
    "gpt1-silu": (
        hf.OpenAIGPTLMHeadModel,
        hf.OpenAIGPTConfig,
        {**GPT, "afn": "silu", "n_positions": 37, "n_embd": 15},
    ),
    "bert": (hf.BertModel, hf.BertConfig, BERT),
    "bert-mlm": (hf.BertForMaskedLM, hf.BertConfig, {**BERT, "hidden_act": "relu"}),
    "bert-mlm-untied": (
        hf.BertForMaskedLM,
        hf.BertConfig,
        {**BERT, "tie_word_embeddings": False, "num_attention_heads": 1},
    ),
    "bert-pre": (
        hf.BertForPreTraining,
        hf.BertConfig,
        {**BERT, "type_vocab_size": 3, "max_position_embeddings": 60},
    ),
    "roberta": (hf.RobertaModel, hf.RobertaConfig, {**BERT, "type_vocab_size": 1}),
    "roberta-mlm": (hf.RobertaForMaskedLM, hf.RobertaConfig, {**BERT, "type_vocab_size": 1}),
    "roberta-far": (
        hf.RobertaForMaskedLM,
        hf.RobertaConfig,
        {**BERT, "pad_token_id": 4, "hidden_act": "relu", "num_attention_heads": 4},
    ),
    "electra": (hf.ElectraModel, hf.ElectraConfig, {**BERT, "embedding_size": 5}),
    "electra-generator": (
        hf.ElectraForMaskedLM,
        hf.ElectraConfig,
        {**BERT, "embedding_size": 5, "hidden_act": "relu"},
    ),
    "electra-wide": (
        hf.ElectraForMaskedLM,
        hf.ElectraConfig,
        {**BERT, "embedding_size": 12, "tie_word_embeddings": False},
    ),
    "electra-discriminator": (
        hf.ElectraForPreTraining,
        hf.ElectraConfig,
        {**BERT, "embedding_size": 5, "hidden_act": "silu"},
    ),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config, T5),
    "t5-v1.1": (hf.T5ForConditionalGeneration, hf.T5Config, V11),
    "t5-v1.1-untied": (hf.T5ForConditionalGeneration, hf.T5Config, {**V11, "untied": True}),
    "t5-near": (
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        {
            **T5,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 6,
            "num_heads": 5,
        },
    ),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig, BART),
    "bart-untied": (
        hf.BartForConditionalGeneration,
        hf.BartConfig,
        {**BART, "tie_word_embeddings": False, "scale_embedding": True},
    ),
    "bart-relu": (
        hf.BartForConditionalGeneration,
        hf.BartConfig,
        {**BART, "activation_function": "relu", "max_position_embeddings": 50},
    ),
    "marian": (
        hf.MarianMTModel,
        hf.MarianConfig,
        {**MARIAN, "activation_function": "swish", "scale_embedding": True},
    ),
    "marian-odd": (hf.MarianMTModel, hf.MarianConfig, {**MARIAN, "d_model": 6}),
    "marian-two": (
        hf.MarianMTModel,
        hf.MarianConfig,
        {**MARIAN, "share_encoder_decoder_embeddings": False},
    ),
    "marian-untied": (hf.MarianMTModel, hf.MarianConfig, {**MARIAN, "tie_word_embeddings": False}),
    "vit": (hf.ViTForImageClassification, hf.ViTConfig, VIT),
    "vit-unbiased": (
        hf.ViTForImageClassification,
        hf.ViTConfig,
        {**VIT, "qkv_bias": False, "num_channels": 1},
    ),
    "vit-grey": (
        hf.ViTForImageClassification,
        hf.ViTConfig,
        {**VIT, "num_channels": 1, "patch_size": 4, "hidden_act": "gelu_new"},
    ),
}
"""name -> class, configuration, its fields."""
TEXTS = [name for name in CHECKPOINTS if not name.startswith("vit")]


def random_model(name: str) -> Any:
    """A model of `transformers` whose every number is far from that of a fresh one."""
    kind, config, fields = CHECKPOINTS[name]
    untied = fields.get("untied", False)
    torch.manual_seed(len(name))
    model = kind(config(**{key: value for key, value in fields.items() if key != "untied"}))
    if untied:
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.shared.weight))
    for part, parameter in model.named_parameters():
        if not (part.endswith("embed_positions.weight") and name.startswith("marian")):
            nn.init.normal_(parameter, std=0.4)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model.eval()


def saved(name: str, folder: Path, **options: Any) -> Any:
    """The same, saved as `transformers` does."""
    model = random_model(name)
    model.save_pretrained(folder, **options)
    return model


@dataclass(frozen=True)
class Asked:
    """One batch of a kind of padding."""

    ids: Tensor
    """`(rows, steps)`, with 2 at padding."""
    mask: Tensor
    target: Tensor
    target_mask: Tensor

    @classmethod
    def of(cls, padding: str, name: str) -> Asked:
        """`none`, `left` or `right`, for ids that no family has as its <pad>."""
        torch.manual_seed(7)
        pad = CHECKPOINTS[name][2].get(
            "pad_token_id", {"bert": 0, "electra": 0, "t5": 0}.get(name.partition("-")[0], 1)
        )
        masks = []
        for steps, lengths in ((7, (7, 3, 5)), (6, (6, 4, 1))):
            place = torch.arange(steps)
            reach = torch.tensor(lengths)[:, None]
            full = torch.ones(3, steps, dtype=torch.bool)
            masks.append(
                {"none": full, "right": place < reach, "left": place >= steps - reach}[padding]
            )
        ids = [torch.randint(5, 18, mask.shape).where(mask, pad) for mask in masks]
        return cls(ids[0], masks[0], ids[1], masks[1])


def places(mask: Tensor) -> Tensor:
    """The position_ids that follow from the mask."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _stand(module: Any, positions: Tensor) -> None:
    """Makes a table of positions give those of the mask, whatever it is asked."""
    offset = getattr(module, "offset", 0)
    module.forward = lambda *_, **__: nn.functional.embedding(positions + offset, module.weight)


def ask_theirs(name: str, model: Any, asked: Asked) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Result `(rows, steps, ...)`; hidden states after each layer but the last, of the (first) stack and of a
    decoder."""
    keep = {"output_hidden_states": True}
    if name.startswith("gpt"):
        out = model(
            input_ids=asked.ids,
            attention_mask=asked.mask.long(),
            position_ids=places(asked.mask),
            **keep,
        )
    elif name.startswith(("bert", "roberta", "electra")):
        at = places(asked.mask)
        if name.startswith("roberta"):
            at = torch.where(
                asked.mask, at + 1 + model.config.pad_token_id, model.config.pad_token_id
            )
        more = (
            {} if name.startswith("roberta") else {"token_type_ids": (asked.ids % 2) * asked.mask}
        )
        out = model(
            input_ids=asked.ids, attention_mask=asked.mask.long(), position_ids=at, **more, **keep
        )
    else:
        if not name.startswith("t5"):
            _stand(model.model.encoder.embed_positions, places(asked.mask))
            _stand(model.model.decoder.embed_positions, places(asked.target_mask))
        out = model(
            input_ids=asked.ids,
            attention_mask=asked.mask.long(),
            decoder_input_ids=asked.target,
            decoder_attention_mask=asked.target_mask.long(),
            **keep,
        )
        return (
            out.logits,
            list(out.encoder_hidden_states[1:-1]),
            list(out.decoder_hidden_states[1:-1]),
        )
    result = out.get("logits", out.get("prediction_logits", out.get("last_hidden_state")))
    return result, list(out.hidden_states[1:-1]), []


def ask_ours(name: str, model: Any, asked: Asked) -> Tensor:
    """The same result of our model."""
    result: Tensor
    if name.startswith("gpt"):
        tokens = asked.ids.where(asked.mask, -1)
        result = model.read(tokens)[0] if name.endswith("bare") else model(tokens)[0]
    elif name.startswith(("bert", "roberta", "electra")):
        segments = None if name.startswith("roberta") else (asked.ids % 2) * asked.mask
        hidden = model(asked.ids, asked.mask, segments)
        result = hidden if model.head is None else model.logits(hidden)
    else:
        state = model.encode(asked.ids.where(asked.mask, -1))
        result = model(asked.target.where(asked.target_mask, -1), state)[0]
    return result


def exact_sinusoids(model: Any) -> None:
    """Marian's table in float64, as it is in float32 there."""
    for stack in (model.model.encoder, model.model.decoder):
        count, width = stack.embed_positions.weight.shape
        angles = torch.arange(count, dtype=torch.float64)[:, None] * 10000.0 ** (
            -torch.arange(0, width, 2, dtype=torch.float64) / width
        )
        stack.embed_positions.weight.data = torch.cat(
            [angles.sin(), angles.cos()[:, : width // 2]], dim=1
        )


def watched(stack: nn.Module, seen: list[Tensor]) -> list[Any]:
    """Hooks that keep what each block but the last gives."""
    blocks: Any = stack.blocks
    keep: Callable[..., None] = lambda *call: seen.append(call[2][0])  # noqa: E731
    return [block.register_forward_hook(keep) for block in list(blocks)[:-1]]


def scale_of(tensor: Tensor) -> float:
    return max(1.0, float(tensor.abs().max())) if tensor.numel() else math.nan
