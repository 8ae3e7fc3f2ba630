"""BART and Marian of the hub: the Transformer with norms after, which differ in positions and in the norm and
the scale of the embedding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from seqloom.errors import FolderError, shown
from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, HubFamily
from seqloom.interop.tensor_names import Rule, TensorNames, layer
from seqloom.json_values import JsonObject
from seqloom.models.transformer import TransformerConfig


def _block(side: str) -> tuple[Rule, ...]:
    """The rules of a block of the encoder or the decoder."""
    ours, theirs = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    attention = [f"{theirs}.self_attn.{part}_proj" for part in ("q", "k", "v")]
    cross = f"{theirs}.encoder_attn"
    return (
        layer(f"{ours}.attention.query_key_value", *attention),
        layer(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        layer(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        layer(f"{ours}.cross_attention.query", f"{cross}.q_proj"),
        layer(f"{ours}.cross_attention.key_value", f"{cross}.k_proj", f"{cross}.v_proj"),
        layer(f"{ours}.cross_attention.output", f"{cross}.out_proj"),
        layer(f"{ours}.cross_attention_norm", f"{cross}_layer_norm"),
        layer(f"{ours}.feed_forward.hidden", f"{theirs}.fc1"),
        layer(f"{ours}.feed_forward.output", f"{theirs}.fc2"),
        layer(f"{ours}.feed_forward_norm", f"{theirs}.final_layer_norm"),
    )


ENCODER_EMBEDDING = "model.encoder.embed_tokens.weight"
DECODER_EMBEDDING = "model.decoder.embed_tokens.weight"
OUTPUT_BIAS = "final_logits_bias"

NAMES = TensorNames(
    prefix="model.",
    rules=(
        Rule("embedding.weight", ("model.shared.weight",), when=("share_embeddings", True)),
        Rule("embedding.weight", (DECODER_EMBEDDING,), when=("share_embeddings", False)),
        Rule("source_embedding.weight", (ENCODER_EMBEDDING,)),
        Rule("source_positions.embedding.weight", ("model.encoder.embed_positions.weight",)),
        Rule("positions.embedding.weight", ("model.decoder.embed_positions.weight",)),
        layer("source_norm", "model.encoder.layernorm_embedding"),
        layer("norm", "model.decoder.layernorm_embedding"),
        *_block("encoder"),
        *_block("decoder"),
        Rule("output.weight", ("lm_head.weight",)),
        Rule("output.bias", (OUTPUT_BIAS,), leading_ones=1),
    ),
    output_bias=OUTPUT_BIAS,
    tied={
        "lm_head.weight": DECODER_EMBEDDING,
        DECODER_EMBEDDING: "model.shared.weight",
        ENCODER_EMBEDDING: "model.shared.weight",
    },
    unused={"model.shared.weight": "an embedding beside those of encoder and decoder"},
    constants=("model.encoder.version", "model.decoder.version"),
)
MARIAN_NAMES = replace(
    NAMES,
    constants=(),
    sinusoids=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
)

SIZES = (
    Option("d_model", "width", 1024),
    Option("encoder_layers", "encoder_layers", 12),
    Option("decoder_layers", "decoder_layers", 12),
    Option("encoder_attention_heads", "heads", 16),
    Option("decoder_attention_heads", "decoder_heads", 16),
    Option("encoder_ffn_dim", "feed_forward_width", 4096),
    Option("decoder_ffn_dim", "decoder_feed_forward_width", 4096),
    Option("max_position_embeddings", "context", 1024),
    Option("activation_function", "activation", "gelu", ACTIVATIONS),
    Option("scale_embedding", "scale_embeddings", False),
    Option("dropout", "dropout", 0.1),
    Option("attention_dropout", "attention_dropout", 0.0),
    Option("activation_dropout", "hidden_dropout", 0.0),
    Option("tie_word_embeddings", "tie_output", True),
)
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
LAYERDROP = (Option("encoder_layerdrop", None, 0.0), Option("decoder_layerdrop", None, 0.0))
FIXED = {"norm": "after", "biases": True, "norm_epsilon": 1e-5}


def _adjust(content: JsonObject, fields: Fields, names: Collection[str]) -> Fields:
    """Embeddings are shared unless nothing is tied and there are two; an output bias that is missing is 0."""
    vocabulary = content.get("decoder_vocab_size") or fields["vocabulary_size"]
    if vocabulary != fields["vocabulary_size"]:
        raise FolderError(
            "source and target must have one vocabulary here, but vocab_size is"
            f" {shown(fields['vocabulary_size'])} and decoder_vocab_size {shown(vocabulary)}"
        )
    two_embeddings = all(
        name in names or name.removeprefix("model.") in names
        for name in (ENCODER_EMBEDDING, DECODER_EMBEDDING)
    )
    untied = two_embeddings and not fields["tie_output"]
    shared = bool(content.get("share_encoder_decoder_embeddings", True)) and not untied
    return fields | {"share_embeddings": shared, "output_bias": OUTPUT_BIAS in names}


def _marian_keys(config: TransformerConfig) -> Fields:
    return {
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "decoder_vocab_size": config.vocabulary_size,
    }


def _options(vocabulary: int, **fixed: object) -> Options:
    """Of a family whose files leave out the size of this vocabulary."""
    return Options(
        table=(
            Option("vocab_size", "vocabulary_size", vocabulary),
            *SIZES,
            Option("is_encoder_decoder", None, True),
        ),
        training_only=LAYERDROP,
        fixed={**FIXED, **fixed},
        aliases=ALIASES,
        adjusted={
            "decoder_vocab_size": "vocabulary_size",
            "share_encoder_decoder_embeddings": "share_embeddings",
        },
        # the decoder is one whatever they say, and there is no head
        without_effect=("is_decoder", "add_cross_attention", "classifier_dropout"),
        defaults={"pad_id": -1, "output_bias": True, "share_embeddings": True},
    )


TRANSLATOR = Architecture(task="translation")
BODY = Architecture(task="translation", bare=True)
BART = HubFamily(
    model_type="transformer",
    options=_options(50265, positions="learned", position_offset=2, embedding_norm=True),
    names=NAMES,
    architectures={"BartForConditionalGeneration": TRANSLATOR, "BartModel": BODY},
    adjust_fields=_adjust,
)
MARIAN = HubFamily(
    model_type="transformer",
    options=_options(58101, positions="sinusoidal-halves", position_offset=0, embedding_norm=False),
    names=MARIAN_NAMES,
    architectures={"MarianMTModel": TRANSLATOR, "MarianModel": BODY},
    adjust_fields=_adjust,
    extra_keys=_marian_keys,
)
