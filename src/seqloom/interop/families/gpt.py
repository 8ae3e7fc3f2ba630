"""GPT and GPT-2 of the hub. Their Conv1D has its weight transposed."""

from __future__ import annotations

from seqloom.errors import UsageError
from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, HubFamily
from seqloom.interop.families.heads import TASKS, HubHead
from seqloom.interop.tensor_names import Rule, TensorNames, layer
from seqloom.models.gpt import GPTConfig


def _names(embedding: str, positions: str) -> TensorNames:
    block, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return TensorNames(
        prefix="transformer.",
        rules=(
            Rule("embedding.weight", (f"transformer.{embedding}.weight",)),
            Rule("positions.embedding.weight", (f"transformer.{positions}.weight",)),
            layer(f"{block}.attention_norm", f"{theirs}.ln_1"),
            layer(f"{block}.attention.query_key_value", f"{theirs}.attn.c_attn", transposed=True),
            layer(f"{block}.attention.output", f"{theirs}.attn.c_proj", transposed=True),
            layer(f"{block}.feed_forward_norm", f"{theirs}.ln_2"),
            layer(f"{block}.feed_forward.hidden", f"{theirs}.mlp.c_fc", transposed=True),
            layer(f"{block}.feed_forward.output", f"{theirs}.mlp.c_proj", transposed=True),
            layer("stack.norm", "transformer.ln_f"),
            Rule("output.weight", ("lm_head.weight",)),
        ),
        tied={"lm_head.weight": f"transformer.{embedding}.weight"},
        constants=(f"{theirs}.attn.bias", f"{theirs}.attn.masked_bias", "transformer.position_ids"),
    )


SIZES = (
    Option("n_embd", "width", 768),
    Option("n_layer", "layers", 12),
    Option("n_head", "heads", 12),
    Option("resid_pdrop", "dropout", 0.1),
    Option("embd_pdrop", "embedding_dropout", 0.1),
    Option("attn_pdrop", "attention_dropout", 0.1),
    Option("layer_norm_epsilon", "norm_epsilon", 1e-5),
    Option("tie_word_embeddings", "tie_output", True),
)
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
DOUBLE_HEADS = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
"""Of the architecture with two heads, which does not open here."""
FIXED = {
    "positions": "learned",
    "biases": True,
    "output": "full",
    "bidirectional_source": False,
}
DEFAULTS = {
    "documents": "joined",
    "pad_id": -1,
    "bos_id": 0,
    "output_samples": 4096,
    "output_alpha": None,
    "output_cutoffs": (),
}


SEQUENCES = Architecture(
    task=TASKS["classification"],
    fields={"tie_output": True},  # it has no output
    head=HubHead(kind="sequence", output="score", bias=False, pooling="last"),
)


def _check_width(config: GPTConfig) -> Fields:
    if config.feed_forward_width not in (None, 4 * config.width):
        raise UsageError(
            "an openai-gpt has model.feed_forward_width four times the width, but this model has"
            f" {config.feed_forward_width}"
        )
    return {}


GPT2 = HubFamily(
    model_type="gpt",
    options=Options(
        table=(
            *SIZES,
            Option("vocab_size", "vocabulary_size", 50257),
            Option("n_positions", "context", 1024),
            Option("n_inner", "feed_forward_width", None),
            Option("activation_function", "activation", "gelu_new", ACTIVATIONS),
            Option("scale_attn_weights", None, True),
            Option("scale_attn_by_inverse_layer_idx", None, False),
            Option("add_cross_attention", None, False),
            Option("is_encoder_decoder", None, False),
        ),
        fixed={**FIXED, "norm": "before"},
        defaults=DEFAULTS,
        aliases=ALIASES,
        without_effect=DOUBLE_HEADS,
    ),
    names=_names("wte", "wpe"),
    architectures={
        "GPT2LMHeadModel": Architecture(task="text-generation"),
        "GPT2Model": Architecture(task="text-generation", bare=True),
        "GPT2ForSequenceClassification": SEQUENCES,
    },
)

GPT1 = HubFamily(
    model_type="gpt",
    options=Options(
        table=(
            *SIZES,
            Option("vocab_size", "vocabulary_size", 40478),
            Option("n_positions", "context", 512),
            Option(
                "afn",
                "activation",
                "gelu",
                {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
            ),
            Option("is_encoder_decoder", None, False),
        ),
        fixed={**FIXED, "norm": "after"},
        defaults={**DEFAULTS, "feed_forward_width": None},
        aliases=ALIASES,
        without_effect=DOUBLE_HEADS,
    ),
    names=_names("tokens_embed", "positions_embed"),
    architectures={
        "OpenAIGPTLMHeadModel": Architecture(task="text-generation"),
        "OpenAIGPTModel": Architecture(task="text-generation", bare=True),
        "OpenAIGPTForSequenceClassification": SEQUENCES,
    },
    extra_keys=_check_width,
)
