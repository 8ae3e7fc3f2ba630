"""Every family of models: `model_type` -> where its configuration and its class are.

A family is imported when it is needed, so `import seqloom.models` needs no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.familiar_names import MODEL_NAMES, near_names
from seqloom.models.sizes import Fields
from seqloom.plugins import is_known, register

if TYPE_CHECKING:
    from torch import nn

    from seqloom.protocols import Task

MODELS: dict[str, tuple[str, str, str]] = {
    "ngram": ("seqloom.models.ngrams.ngram", "NgramConfig", "Ngram"),
    "recurrent_lm": ("seqloom.models.recurrent_lm", "RecurrentLMConfig", "RecurrentLM"),
    "seq2seq": ("seqloom.models.seq2seq", "Seq2SeqConfig", "Seq2Seq"),
    "transformer": ("seqloom.models.transformer", "TransformerConfig", "Transformer"),
    "t5": ("seqloom.models.t5", "T5Config", "T5"),
    "bert": ("seqloom.models.bert", "BertConfig", "Bert"),
    "electra": ("seqloom.models.electra", "ElectraConfig", "Electra"),
    "gpt": ("seqloom.models.gpt", "GPTConfig", "GPT"),
    "vit": ("seqloom.models.vit", "ViTConfig", "ViT"),
    "bag_of_words": ("seqloom.models.bag_of_words", "BagOfWordsConfig", "BagOfWords"),
    "mlp": ("seqloom.models.mlp", "MLPConfig", "MLP"),
    "convolution": ("seqloom.models.convolution", "ConvolutionConfig", "Convolution"),
    "recurrent": ("seqloom.models.recurrent", "RecurrentConfig", "RecurrentEncoder"),
    "elmo": ("seqloom.models.elmo", "ElmoConfig", "Elmo"),
    "encoder_with_head": (
        "seqloom.models.encoder_with_head",
        "EncoderWithHeadConfig",
        "EncoderWithHead",
    ),
    "word2vec": ("seqloom.models.word_vectors.word2vec", "Word2VecConfig", "Word2Vec"),
    "glove": ("seqloom.models.word_vectors.glove", "GloveConfig", "Glove"),
    "ensemble": ("seqloom.models.ensemble", "EnsembleConfig", "Ensemble"),
}
"""model_type -> (module, configuration, class)."""

READS_FOR_HEADS = {"electra": "bert"}
"""A family -> that of the part of it which a task head takes."""
FORMER_NAMES = {"reader": "encoder_with_head"}
"""Names in folders of earlier versions."""


class Family(NamedTuple):
    """A family of models from a plugin."""

    config: type
    model: type[nn.Module]
    sizes: dict[str, Fields]
    about: dict[str, str]
    tasks: tuple[str, ...]


_registered: dict[str, Family] = {}


def register_model(
    name: str,
    config_class: type,
    model_class: type[nn.Module],
    sizes: Mapping[str, Mapping[str, object]],
    about: Mapping[str, str] | None = None,
    *,
    tasks: Sequence[str] = ("text-generation",),
) -> None:
    """Makes a family of models of one's own known to these tasks. `sizes` are fields of the configuration by
    name of a size; there must be one called small. Raises UsageError if the name is taken."""
    fields = {size: dict(values) for size, values in sizes.items()}
    texts = dict.fromkeys(sizes, "") | dict(about or {})
    register(
        "model",
        name,
        Family(config_class, model_class, fields, texts, tuple(tasks)),
        _registered,
        MODELS,
    )


def all_families() -> list[str]:
    return [*MODELS, *_registered]


def families_for(task: Task) -> tuple[str, ...]:
    """The families that can do a task, the default first: its own, and those from plugins."""
    return (
        *task.models,
        *(name for name, family in _registered.items() if task.name in family.tasks),
    )


def family_name(model_type: str) -> str:
    """The name of a family today; an unknown one stays as it is."""
    return FORMER_NAMES.get(model_type, model_type)


def model_family(model_type: str) -> tuple[Any, Any, dict[str, Fields]]:
    """(configuration class, model class, named sizes) of a family. Raises UsageError for an unknown one."""
    name = family_name(model_type)
    if name not in MODELS and is_known(name, _registered):
        return _registered[name][:3]
    if name not in MODELS:
        raise UsageError(
            f"model must be one of {', '.join(all_families())}, but is"
            f" {printable(repr(model_type))}{near_names(name, all_families())}"
        )
    module_name, config, model = MODELS[name]
    module = importlib.import_module(module_name)
    return vars(module)[config], vars(module)[model], module.SIZES


def near_models(name: str, families: Collection[str]) -> str:
    """`; did you mean lstm?`, or nothing if `name` is a family, or no name of one is near."""
    return "" if name in all_families() else near_names(name, (*families, *MODEL_NAMES))


def encoder_families() -> list[str]:
    """The families that can have a head: those that meet `Encoder`."""
    from seqloom.protocols import Encoder

    return [name for name in all_families() if issubclass(model_family(name)[1], Encoder)]


def about_sizes(model_type: str) -> dict[str, str]:
    """size -> what it is for, or its paper. Raises UsageError for an unknown family."""
    config, _, _ = model_family(model_type)
    if model_type in _registered:
        return _registered[model_type].about
    about: dict[str, str] = importlib.import_module(config.__module__).ABOUT
    return about
