"""BERT, RoBERTa and ELECTRA of the hub: one encoder under three prefixes, with other heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from seqloom.errors import FolderError, UsageError, printable
from seqloom.interop.config_options import Option, Options
from seqloom.interop.families.family import ACTIVATIONS, Architecture, Family
from seqloom.interop.families.heads import TASKS, HeadForm
from seqloom.interop.tensor_names import Names, Rule, layer

BLOCK = "stack.blocks.{i}"
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
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
    prefix: str, hidden: str, norm: str, output: str, bias: str | None, *more: Rule, unused: Mapping[str, str]
) -> Names:
    """`bias`: the name of the output's bias beside the one that stands with its weight, which is a copy of it
    where it is tied."""
    own = f"{output}.bias"
    return Names(
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
        copies={f"{output}.weight": f"{prefix}embeddings.word_embeddings.weight"}
        | ({own: bias} if bias else {}),
        fallbacks={own: bias} if bias else {},
        constants=(f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"),
        unused={
            f"{prefix}pooler.dense.{{kind}}": "the pooler",
            **({bias: "a second bias of the output"} if bias else {}),
            **unused,
        },
        renamed=OLD,
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
)
BERT_SIZES = (
    Option("hidden_size", "width", 768),
    Option("num_attention_heads", "heads", 12),
    Option("intermediate_size", "feed_forward_width", 3072),
    *SIZES,
)
EITHER = {"pooler": False, "next_sentence": False, "head": "none", "head_activation": None}
BARE = Architecture(task="feature-extraction", fields={"head": "none"}, bare=True)
ENCODER = {"head": "none", "pooler": False, "next_sentence": False}
DROPOUT = ("classifier_dropout", "hidden_dropout_prob")


def _read(form: HeadForm, task: str | None = None) -> Architecture:
    return Architecture(task=task or TASKS[form.kind], head=form)


def _sequences(hidden: str, output: str, activation: Literal["tanh", "gelu"] = "tanh") -> Architecture:
    form = HeadForm(kind="sequence", hidden=hidden, output=output, activation=activation, dropout=DROPOUT)
    return _read(form, TASKS["classification"])


TAGS = _read(HeadForm(kind="tagging", output="classifier", dropout=DROPOUT))
SPANS = _read(HeadForm(kind="span", output="qa_outputs"))
SUMMARY = (
    Option("summary_type", None, "first"),
    Option("summary_use_proj", None, True),
    Option("summary_activation", None, "gelu"),
    Option("summary_proj_to_labels", None, False),
    Option("summary_first_dropout", None, 0.0),
)
"""Of the state that ELECTRA makes of an option."""


def _pooler(content: Mapping[str, Any], fields: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """An encoder without a head has a pooler where the file has one."""
    return fields | (
        {"pooler": any("pooler.dense" in name for name in names)} if fields["head"] == "none" else {}
    )


def _roberta(content: Mapping[str, Any], fields: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The rows of the table of positions up to that of padding stand for nothing."""
    pad, positions = content.get("pad_token_id", 1), fields["context"]
    for name, number in (("pad_token_id", 0 if pad is None else pad), ("max_position_embeddings", positions)):
        if type(number) is not int or number < 0:
            raise FolderError(
                f"roberta's {name} must be a number from 0 on, but is {printable(str(number))[:50]}"
            )
    offset = 1 + (pad or 0)
    return _pooler(content, fields, names) | {"position_offset": offset, "context": positions - offset}


def _back(config: Any) -> dict[str, Any]:
    if not config.segments:  # theirs looks up a segment of every token
        raise UsageError("an encoder of the hub has model.segments of at least 1, but this model has 0")
    return {}


def _electra_back(config: Any) -> dict[str, Any]:
    return _back(config) | {"embedding_size": config.embedding_width or config.width}


def _roberta_back(config: Any) -> dict[str, Any]:
    return _back(config) | {
        "pad_token_id": config.position_offset - 1,
        "max_position_embeddings": config.context + config.position_offset,
    }


BERT = Family(
    model_type="bert",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 30522),
            Option("max_position_embeddings", "context", 512),
            *BERT_SIZES,
        ),
        always={"norm": "after", "position_offset": 0, "embedding_width": None},
        either=EITHER,
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
        "BertModel": BARE,
        "BertForMaskedLM": Architecture(task="fill-mask", fields={"head": "masked-lm"}),
        "BertForPreTraining": Architecture(
            task="fill-mask", fields={"head": "masked-lm", "pooler": True, "next_sentence": True}
        ),
        "BertForSequenceClassification": _sequences("bert.pooler.dense", "classifier"),
        "BertForTokenClassification": TAGS,
        "BertForQuestionAnswering": SPANS,
        "BertForMultipleChoice": _read(
            HeadForm(kind="choice", hidden="bert.pooler.dense", output="classifier", dropout=DROPOUT)
        ),
    },
    refine=_pooler,
    back=_back,
    encoder=ENCODER,
)

ROBERTA = Family(
    model_type="bert",
    options=Options(
        table=(
            Option("vocab_size", "vocabulary_size", 50265),
            Option("max_position_embeddings", "context", 512),
            *BERT_SIZES,
        ),
        always={"norm": "after", "embedding_width": None},
        either={**EITHER, "position_offset": 2},
    ),
    names=_names(
        "roberta.",
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder",
        "lm_head.bias",
        unused={"lm_head.{rest}": "the head of masked tokens"},
    ),
    architectures={
        "RobertaModel": BARE,
        "RobertaForMaskedLM": Architecture(
            task="fill-mask", fields={"head": "masked-lm", "head_activation": "gelu"}
        ),
        "RobertaForSequenceClassification": _sequences("classifier.dense", "classifier.out_proj"),
        "RobertaForTokenClassification": TAGS,
        "RobertaForQuestionAnswering": SPANS,
        "RobertaForMultipleChoice": _read(
            HeadForm(
                kind="choice",
                hidden="roberta.pooler.dense",
                output="classifier",
                dropout=("hidden_dropout_prob",),
            )
        ),
    },
    refine=_roberta,
    encoder=ENCODER,
    back=_roberta_back,
)

ELECTRA = Family(
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
        always={"norm": "after", "position_offset": 0, "pooler": False, "next_sentence": False},
        either={"head": "none", "head_activation": None},
    ),
    names=_names(
        "electra.",
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        None,
        layer("head.hidden", "discriminator_predictions.dense")._replace(when=("head", "replaced-token")),
        layer("replaced", "discriminator_predictions.dense_prediction"),
        unused={
            "generator_{rest}": "the head of masked tokens",
            "discriminator_predictions.{rest}": "the head of replaced tokens",
        },
    ),
    architectures={
        "ElectraModel": BARE,
        "ElectraForMaskedLM": Architecture(
            task="fill-mask", fields={"head": "masked-lm", "head_activation": "gelu"}
        ),
        "ElectraForPreTraining": Architecture(task="replaced-token", fields={"head": "replaced-token"}),
        "ElectraForSequenceClassification": _sequences("classifier.dense", "classifier.out_proj", "gelu"),
        "ElectraForTokenClassification": TAGS,
        "ElectraForQuestionAnswering": SPANS,
        "ElectraForMultipleChoice": _read(
            HeadForm(
                kind="choice",
                hidden="sequence_summary.summary",
                output="classifier",
                activation="gelu",
                dropout=("summary_last_dropout",),
                fixed=SUMMARY,
            )
        ),
    },
    encoder=ENCODER,
    back=_electra_back,
)
