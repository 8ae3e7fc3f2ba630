"""BERT, RoBERTa and ELECTRA of the hub: one encoder under three prefixes, with other heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from seqloom.errors import FolderError, UsageError, shown
from seqloom.interop.config_options import Fields, Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, HubFamily
from seqloom.interop.families.heads import TASKS, HubHead
from seqloom.interop.tensor_names import Rule, TensorNames, layer
from seqloom.json_values import JsonObject
from seqloom.models.bert import BertConfig

BLOCK = "stack.blocks.{i}"
TENSORFLOW = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names that files converted from TensorFlow have."""


def _body(prefix: str) -> tuple[Rule, ...]:
    """The rules of everything below the heads."""
    embeddings, theirs = f"{prefix}embeddings", f"{prefix}encoder.layer.{{i}}"
    return (
        Rule("embedding.weight", (f"{embeddings}.word_embeddings.weight",)),
        Rule("positions.embedding.weight", (f"{embeddings}.position_embeddings.weight",)),
        Rule("segments.weight", (f"{embeddings}.token_type_embeddings.weight",)),
        layer("embedding_norm", f"{embeddings}.LayerNorm"),
        layer("projection", f"{prefix}embeddings_project"),
        layer(
            f"{BLOCK}.attention.query_key_value",
            *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")),
        ),
        layer(f"{BLOCK}.attention.output", f"{theirs}.attention.output.dense"),
        layer(f"{BLOCK}.attention_norm", f"{theirs}.attention.output.LayerNorm"),
        layer(f"{BLOCK}.feed_forward.hidden", f"{theirs}.intermediate.dense"),
        layer(f"{BLOCK}.feed_forward.output", f"{theirs}.output.dense"),
        layer(f"{BLOCK}.feed_forward_norm", f"{theirs}.output.LayerNorm"),
        layer("pooler", f"{prefix}pooler.dense"),
    )


def _names(
    prefix: str,
    hidden: str,
    norm: str,
    output: str,
    bias: str | None,
    *more: Rule,
    unused: Mapping[str, str],
) -> TensorNames:
    """`bias`: a second name of the output's bias, beside that of its layer, which is a copy of it where it is
    tied."""
    own = f"{output}.bias"
    tied = {f"{output}.weight": f"{prefix}embeddings.word_embeddings.weight"}
    fallbacks = {}
    if bias:
        tied[own] = fallbacks[own] = bias
        unused = {bias: "a second bias of the output", **unused}
    return TensorNames(
        prefix=prefix,
        rules=(
            *_body(prefix),
            *more,
            layer("head.hidden", hidden),
            layer("head.norm", norm),
            Rule("output.weight", (f"{output}.weight",)),
            Rule("output.bias", (bias or own,), when=("tie_output", True)),
            Rule("output.bias", (own,), when=("tie_output", False)),
        ),
        output=f"{output}.weight",
        tied=tied,
        fallbacks=fallbacks,
        constants=(f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"),
        unused={f"{prefix}pooler.dense.{{kind}}": "the pooler", **unused},
        legacy_suffixes=TENSORFLOW,
    )


SIZES = (
    Option("num_hidden_layers", "layers", 12),
    Option("hidden_act", "activation", "gelu", ACTIVATIONS),
    Option("hidden_dropout_prob", "dropout", 0.1),
    Option("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Option("type_vocab_size", "segments", 2),
    Option("layer_norm_eps", "norm_epsilon", 1e-12),
    Option("tie_word_embeddings", "tie_output", True),
    Option("position_embedding_type", None, "absolute"),
    Option("is_decoder", None, False),
    Option("add_cross_attention", None, False),
    Option("is_encoder_decoder", None, False),
)
BERT_SIZES = (
    Option("hidden_size", "width", 768),
    Option("num_attention_heads", "heads", 12),
    Option("intermediate_size", "feed_forward_width", 3072),
    *SIZES,
)
DEFAULTS = {"pooler": False, "next_sentence": False, "head": "none", "head_activation": None}
ENCODER = {"head": "none", "pooler": False, "next_sentence": False}
DROPOUT = ("classifier_dropout", "hidden_dropout_prob")


def _architectures(
    name: str, masked_lm: Architecture, sequence: HubHead, choice: HubHead
) -> dict[str, Architecture]:
    """The architectures that all three have."""
    heads = {
        "SequenceClassification": sequence,
        "TokenClassification": HubHead(kind="tagging", output="classifier", dropout=DROPOUT),
        "QuestionAnswering": HubHead(kind="span", output="qa_outputs"),
        "MultipleChoice": choice,
    }
    return {
        f"{name}Model": Architecture(task="feature-extraction", fields={"head": "none"}, bare=True),
        f"{name}ForMaskedLM": masked_lm,
        **{
            f"{name}For{task}": Architecture(task=TASKS[head.kinds[0]], head=head)
            for task, head in heads.items()
        },
    }


def _sequence(hidden: str, output: str, activation: Literal["tanh", "gelu"] = "tanh") -> HubHead:
    return HubHead(
        kind="sequence", hidden=hidden, output=output, activation=activation, dropout=DROPOUT
    )


MASKED_LM = Architecture(task="fill-mask", fields={"head": "masked-lm", "head_activation": "gelu"})
SUMMARY = (
    Option("summary_type", None, "first"),
    Option("summary_use_proj", None, True),
    Option("summary_activation", None, "gelu"),
    Option("summary_proj_to_labels", None, False),
    Option("summary_first_dropout", None, 0.0),
)
"""How ELECTRA pools the state of an option."""


def _pooler(content: JsonObject, fields: Fields, names: Collection[str]) -> Fields:
    """An encoder without a head has a pooler where the file has one."""
    if fields["head"] != "none":
        return fields
    return fields | {"pooler": any("pooler.dense" in name for name in names)}


def _roberta(content: JsonObject, fields: Fields, names: Collection[str]) -> Fields:
    """The rows of the position table up to that of padding are not used."""
    pad = content.get("pad_token_id", 1)
    pad = 0 if pad is None else _natural("pad_token_id", pad)
    positions = _natural("max_position_embeddings", fields["context"])
    offset = 1 + pad
    return _pooler(content, fields, names) | {
        "position_offset": offset,
        "context": positions - offset,
    }


def _natural(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise FolderError(f"roberta's {name} must be a number from 0 on, but is {shown(value)}")
    return value


def _bert_keys(config: BertConfig) -> Fields:
    """None beside those of the table. Raises UsageError for what no encoder of the hub is."""
    return _checked(config, config.activation)


def _checked(config: BertConfig, head_activation: str) -> Fields:
    """`head_activation`: that of the head of masked tokens there."""
    if not config.segments:  # theirs embeds a segment id of every token
        raise UsageError(
            "an encoder of the hub has model.segments of at least 1, but this model has 0"
        )
    theirs = head_activation if config.head == "masked-lm" else config.activation
    own = config.head_activation or config.activation
    if config.head != "none" and own != theirs:
        raise UsageError(f"the head of {config.head} must have {theirs} there, but has {own}")
    return {}


def _electra_keys(config: BertConfig) -> Fields:
    return _checked(config, "gelu") | {"embedding_size": config.embedding_width or config.width}


def _roberta_keys(config: BertConfig) -> Fields:
    return _checked(config, "gelu") | {
        "pad_token_id": config.position_offset - 1,
        "max_position_embeddings": config.context + config.position_offset,
    }


BERT = HubFamily(
    model_type="bert",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 30522),
            Option("max_position_embeddings", "context", 512),
            *BERT_SIZES,
        ),
        fixed={"norm": "after", "position_offset": 0, "embedding_width": None},
        defaults=DEFAULTS,
    ),
    names=_names(
        "bert.",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
        layer("next_sentence", "cls.seq_relationship"),
        unused={
            "cls.predictions.{rest}": "the head of masked tokens",
            "cls.seq_relationship.{kind}": "the head of next sentences",
        },
    ),
    architectures={
        **_architectures(
            "Bert",
            Architecture(task="fill-mask", fields={"head": "masked-lm", "next_sentence": False}),
            _sequence("bert.pooler.dense", "classifier"),
            HubHead(
                kind="choice", hidden="bert.pooler.dense", output="classifier", dropout=DROPOUT
            ),
        ),
        "BertForPreTraining": Architecture(
            task="fill-mask", fields={"head": "masked-lm", "pooler": True, "next_sentence": True}
        ),
    },
    adjust_fields=_pooler,
    extra_keys=_bert_keys,
    encoder_fields=ENCODER,
)

ROBERTA = HubFamily(
    model_type="bert",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 50265),
            Option("max_position_embeddings", "context", 512),
            *BERT_SIZES,
        ),
        fixed={"norm": "after", "embedding_width": None},
        defaults={**DEFAULTS, "position_offset": 2},
        adjusted={"pad_token_id": "position_offset"},
    ),
    names=_names(
        "roberta.",
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder",
        "lm_head.bias",
        unused={"lm_head.{rest}": "the head of masked tokens"},
    ),
    architectures=_architectures(
        "Roberta",
        MASKED_LM,
        _sequence("classifier.dense", "classifier.out_proj"),
        HubHead(
            kind="choice",
            hidden="roberta.pooler.dense",
            output="classifier",
            dropout=("hidden_dropout_prob",),
        ),
    ),
    adjust_fields=_roberta,
    encoder_fields=ENCODER,
    extra_keys=_roberta_keys,
)

ELECTRA = HubFamily(
    model_type="bert",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 30522),
            Option("max_position_embeddings", "context", 512),
            Option("embedding_size", "embedding_width", 128),
            Option("hidden_size", "width", 256),
            Option("num_attention_heads", "heads", 4),
            Option("intermediate_size", "feed_forward_width", 1024),
            *SIZES,
        ),
        fixed={"norm": "after", "position_offset": 0, "pooler": False, "next_sentence": False},
        defaults={"head": "none", "head_activation": None},
    ),
    names=_names(
        "electra.",
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        None,
        layer("head.hidden", "discriminator_predictions.dense")._replace(
            when=("head", "replaced-token")
        ),
        layer("replaced", "discriminator_predictions.dense_prediction"),
        unused={
            "generator_{rest}": "the head of masked tokens",
            "discriminator_predictions.{rest}": "the head of replaced tokens",
        },
    ),
    architectures={
        **_architectures(
            "Electra",
            MASKED_LM,
            _sequence("classifier.dense", "classifier.out_proj", "gelu"),
            HubHead(
                kind="choice",
                hidden="sequence_summary.summary",
                output="classifier",
                activation="gelu",
                dropout=("summary_last_dropout",),
                fixed=SUMMARY,
            ),
        ),
        "ElectraForPreTraining": Architecture(
            task="replaced-token", fields={"head": "replaced-token"}
        ),
    },
    encoder_fields=ENCODER,
    extra_keys=_electra_keys,
)
