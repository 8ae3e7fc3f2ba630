"""T5 of the hub, v1.0 and v1.1."""

from __future__ import annotations

from collections.abc import Collection

from seqloom.errors import FolderError, UsageError, shown
from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, HubFamily
from seqloom.interop.tensor_names import Rule, TensorNames
from seqloom.json_values import JsonObject, as_text
from seqloom.models.t5 import T5Config

FEED_FORWARD = {
    "gated-gelu": ("gelu-tanh", True),
    **{name: (ours, False) for name, ours in ACTIVATIONS.items()},
    **{f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items() if name != "gelu"},
}
"""feed_forward_proj -> φ, and whether there is a gate. A gated gelu is the approximation."""
DEFAULT_LAYERS = 6


def _attention(ours: str, theirs: str) -> tuple[Rule, ...]:
    return (
        Rule(
            f"{ours}.query_key_value.weight",
            (f"{theirs}.q.weight", f"{theirs}.k.weight", f"{theirs}.v.weight"),
        ),
        Rule(f"{ours}.output.weight", (f"{theirs}.o.weight",)),
    )


def _stack(side: str, feed_forward: int) -> tuple[Rule, ...]:
    """The encoder or the decoder, whose layers have the feed-forward part at this place."""
    ours, theirs = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer"
    hidden = f"{theirs}.{feed_forward}.DenseReluDense"
    return (
        Rule(
            f"{side}_bias.table",
            (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
        ),
        Rule(f"{ours}.attention_norm.weight", (f"{theirs}.0.layer_norm.weight",)),
        *_attention(f"{ours}.attention", f"{theirs}.0.SelfAttention"),
        Rule(f"{ours}.feed_forward_norm.weight", (f"{theirs}.{feed_forward}.layer_norm.weight",)),
        Rule(f"{ours}.feed_forward.hidden.weight", (f"{hidden}.wi.weight",), when=("gated", False)),
        Rule(
            f"{ours}.feed_forward.hidden.weight",
            (f"{hidden}.wi_0.weight", f"{hidden}.wi_1.weight"),
            when=("gated", True),
        ),
        Rule(f"{ours}.feed_forward.output.weight", (f"{hidden}.wo.weight",)),
        Rule(f"{side}.norm.weight", (f"{side}.final_layer_norm.weight",)),
    )


CROSS, THEIRS = "decoder.blocks.{i}.cross_attention", "decoder.block.{i}.layer.1"


def _adjust(content: JsonObject, fields: Fields, names: Collection[str]) -> Fields:
    """v1.1 has `tie_word_embeddings` false; `transformers` derives from it whether states are scaled before
    the output."""
    named = content.get("feed_forward_proj", "relu")
    kind = as_text(named)
    derived = [(key, content.get(key)) for key in ("dense_act_fn", "is_gated_act")]
    if (
        kind is None
        or kind not in FEED_FORWARD
        or any(
            value not in (None, implied)
            for (_, value), implied in zip(derived, _implied(kind), strict=True)
        )
    ):
        given = ", ".join(f"{key}={shown(value)}" for key, value in derived)
        raise FolderError(
            f"t5's feed_forward_proj={shown(named)}, {given} is not known here, only feed_forward_proj of"
            f" {', '.join(FEED_FORWARD)} and what follows from it"
        )
    if fields["decoder_layers"] and content.get("is_encoder_decoder", True) is not True:
        given = shown(content["is_encoder_decoder"])
        raise FolderError(f"t5's is_encoder_decoder={given} is not known here, only True")
    activation, gated = FEED_FORWARD[kind]
    version_1_0 = content.get("tie_word_embeddings") is not False
    # num_hidden_layers, another name of num_layers, changes the encoder alone
    layers = content.get("num_decoder_layers")
    layers = content.get("num_layers", DEFAULT_LAYERS) if layers is None else layers
    return fields | {
        "activation": activation,
        "gated": gated,
        "scale_output": bool(content.get("scale_decoder_outputs", version_1_0)),
        "tie_output": version_1_0 or "lm_head.weight" not in names,
        "decoder_layers": fields["decoder_layers"] and layers,
        "attention_dropout": fields["dropout"],
    }


def _implied(kind: str) -> tuple[str, bool]:
    """dense_act_fn and is_gated_act."""
    return _dense(kind), FEED_FORWARD[kind][1]


def _dense(kind: str) -> str:
    return "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")


def _keys(config: T5Config) -> Fields:
    settings = (config.activation, config.gated)
    kind = next((kind for kind, ours in FEED_FORWARD.items() if ours == settings), None)
    if kind is None:
        gate = "with" if config.gated else "without"
        raise UsageError(
            f"a t5 cannot have model.activation={config.activation} {gate} a gate, as this model has"
        )
    return {
        "feed_forward_proj": kind,
        "dense_act_fn": _dense(kind),
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tie_output or config.scale_output,
        "scale_decoder_outputs": config.scale_output,
        "num_decoder_layers": config.decoder_layers,
    }


T5 = HubFamily(
    model_type="t5",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 32128),
            Option("d_model", "width", 512),
            Option("d_kv", "head_width", 64),
            Option("d_ff", "feed_forward_width", 2048),
            Option("num_layers", "encoder_layers", DEFAULT_LAYERS),
            Option("num_heads", "heads", 8),
            Option("relative_attention_num_buckets", "buckets", 32),
            Option("relative_attention_max_distance", "furthest", 128),
            Option("dropout_rate", "dropout", 0.1),
            Option("layer_norm_epsilon", "norm_epsilon", 1e-6),
        ),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        adjusted={
            "is_encoder_decoder": "decoder_layers",
            "num_decoder_layers": "decoder_layers",
            "dense_act_fn": "activation",
            "feed_forward_proj": "activation",
            "is_gated_act": "gated",
            "tie_word_embeddings": "tie_output",
            "scale_decoder_outputs": "scale_output",
        },
        # each stack is what it is whatever is_decoder says, and there is no head and no table of positions
        without_effect=("is_decoder", "add_cross_attention", "classifier_dropout", "n_positions"),
        defaults={
            "pad_id": -1,
            "attention_dropout": 0.1,
            "decoder_layers": 6,
            "activation": "relu",
            "gated": False,
            "tie_output": True,
            "scale_output": True,
        },
    ),
    names=TensorNames(
        rules=(
            Rule("embedding.weight", ("shared.weight",)),
            *_stack("encoder", 1),
            *_stack("decoder", 2),
            Rule(f"{CROSS}.query.weight", (f"{THEIRS}.EncDecAttention.q.weight",)),
            Rule(
                f"{CROSS}.key_value.weight",
                (f"{THEIRS}.EncDecAttention.k.weight", f"{THEIRS}.EncDecAttention.v.weight"),
            ),
            Rule(f"{CROSS}.output.weight", (f"{THEIRS}.EncDecAttention.o.weight",)),
            Rule(f"{CROSS}_norm.weight", (f"{THEIRS}.layer_norm.weight",)),
            Rule("output.weight", ("lm_head.weight",)),
        ),
        tied={
            "lm_head.weight": "shared.weight",
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        },
        unused={
            f"{THEIRS}.EncDecAttention.relative_attention_bias.weight": "a bias that no layer uses"
        },
    ),
    architectures={
        "T5ForConditionalGeneration": Architecture(task="translation"),
        "T5EncoderModel": Architecture(task="feature-extraction", fields={"decoder_layers": 0}),
    },
    adjust_fields=_adjust,
    extra_keys=_keys,
    encoder_fields={"decoder_layers": 0},
    dropped_by_encoder={"decoder.{rest}": "the decoder", "lm_head.weight": "the output"},
)
