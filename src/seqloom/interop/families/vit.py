"""ViT of the hub."""

from __future__ import annotations

from collections.abc import Collection

from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, HubFamily
from seqloom.interop.families.heads import label_keys, labels_of
from seqloom.interop.tensor_names import Rule, TensorNames, layer
from seqloom.json_values import JsonObject
from seqloom.models.vit import ViTConfig

BLOCK, THEIRS = "stack.blocks.{i}", "vit.encoder.layer.{i}"
MODULE = "vit.layers.{i}"
"""What transformers 5 calls `THEIRS` in memory."""


def _adjust(content: JsonObject, fields: Fields, names: Collection[str]) -> Fields:
    """The names of the classes, by number; a square may be given by both of its sides."""
    squares = {name: _side(fields[name]) for name in ("image_size", "patch_size")}
    return fields | squares | {"labels": labels_of(content, "vit")}


def _side(size: object) -> object:
    match size:
        case [int(height), int(width)] if height == width:
            return height
    return size


def _label_keys(config: ViTConfig) -> Fields:
    return label_keys(config.labels) if config.labels else {}


VIT = HubFamily(
    model_type="vit",
    options=Options(
        table=(
            Option("hidden_size", "width", 768),
            Option("num_hidden_layers", "layers", 12),
            Option("num_attention_heads", "heads", 12),
            Option("intermediate_size", "feed_forward_width", 3072),
            Option("hidden_act", "activation", "gelu", ACTIVATIONS),
            Option("hidden_dropout_prob", "dropout", 0.0),
            Option("attention_probs_dropout_prob", "attention_dropout", 0.0),
            Option("layer_norm_eps", "norm_epsilon", 1e-12),
            Option("image_size", "image_size", 224),
            Option("patch_size", "patch_size", 16),
            Option("num_channels", "channels", 3),
            Option("qkv_bias", "query_key_value_biases", True),
            Option("is_encoder_decoder", None, False),
        ),
        # of the heads on masked patches and of the pooler, neither of which opens here
        without_effect=("encoder_stride", "pooler_act", "pooler_output_size"),
        fixed={"head": "labels"},
        defaults={"labels": ()},
    ),
    names=TensorNames(
        prefix="vit.",
        rules=(
            Rule("cls", ("vit.embeddings.cls_token",)),
            Rule("positions", ("vit.embeddings.position_embeddings",)),
            layer("patches", "vit.embeddings.patch_embeddings.projection"),
            layer(f"{BLOCK}.attention_norm", f"{THEIRS}.layernorm_before"),
            layer(
                f"{BLOCK}.attention.query_key_value",
                *(f"{THEIRS}.attention.attention.{part}" for part in ("query", "key", "value")),
            ),
            layer(f"{BLOCK}.attention.output", f"{THEIRS}.attention.output.dense"),
            layer(f"{BLOCK}.feed_forward_norm", f"{THEIRS}.layernorm_after"),
            layer(f"{BLOCK}.feed_forward.hidden", f"{THEIRS}.intermediate.dense"),
            layer(f"{BLOCK}.feed_forward.output", f"{THEIRS}.output.dense"),
            layer("stack.norm", "vit.layernorm"),
            layer("head", "classifier"),
        ),
        renamed={
            **{
                f"{THEIRS}.attention.attention.{part}.{{kind}}": f"{MODULE}.attention.{part[0]}_proj.{{kind}}"
                for part in ("query", "key", "value")
            },
            f"{THEIRS}.attention.output.dense.{{kind}}": f"{MODULE}.attention.o_proj.{{kind}}",
            f"{THEIRS}.intermediate.dense.{{kind}}": f"{MODULE}.mlp.fc1.{{kind}}",
            f"{THEIRS}.output.dense.{{kind}}": f"{MODULE}.mlp.fc2.{{kind}}",
        },
        unused={
            "vit.pooler.dense.{kind}": "the pooler",
            "vit.embeddings.mask_token": "the token of masked patches",
        },
    ),
    architectures={
        "ViTForImageClassification": Architecture(task="image-classification"),
    },
    adjust_fields=_adjust,
    extra_keys=_label_keys,
)
