"""No setting of a model is taken and ignored: each field changes the model, or is refused where it would
not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from seqloom.config import TrainConfig
from seqloom.errors import UsageError
from seqloom.models import families_for, model_family
from seqloom.models.config_checks import unused_fields
from seqloom.protocols import FrequencyOutput, read_source
from seqloom.registry import TASKS, all_tasks
from seqloom.tasks.settings import resolve
from seqloom.workflows.models import settings_of

FROM_ELSEWHERE = {"vocabulary_size", "labels", "alphabet", "sizes", "first_word"}
"""Fields that come from the tokenizer or the data, beside the ids of special tokens."""
SMALL: dict[str, dict[str, Any]] = {
    "gpt": {"vocabulary_size": 30, "context": 16, "width": 16, "heads": 2, "layers": 2},
    "recurrent_lm": {"vocabulary_size": 30, "embedding_width": 16, "width": 16, "layers": 3},
    "bert": {"vocabulary_size": 30, "context": 16, "width": 16, "heads": 2, "layers": 2},
    "convolution": {"vocabulary_size": 30, "embedding_width": 8, "windows": (2, 3), "maps": 4},
    "mlp": {"vocabulary_size": 30, "context": 16, "embedding_width": 8, "width": 8},
    "recurrent": {"vocabulary_size": 30, "embedding_width": 8, "width": 8, "layers": 3},
    "bag_of_words": {"vocabulary_size": 30, "width": 8},
    "seq2seq": {
        "vocabulary_size": 30,
        "embedding_width": 16,
        "encoder_width": 8,
        "width": 16,
        "readout_width": 16,
    }
    | {"attention_width": 8, "encoder_layers": 2, "decoder_layers": 2},
    "transformer": {
        "vocabulary_size": 30,
        "width": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
    "t5": {
        "vocabulary_size": 30,
        "width": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
    "elmo": {"vocabulary_size": 30, "width": 8, "projection": 6, "layers": 2},
    "vit": {
        "image_size": 4,
        "patch_size": 2,
        "channels": 1,
        "width": 16,
        "heads": 2,
        "layers": 1,
        "labels": ("a", "b"),
    },
}
OTHER_VALUES: dict[str, Any] = {
    "cell": "gru-torch",
    "projection": 8,
    "last_width": 8,
    "maxent": 3,
    "windows": (2,),
    "filters": ((1, 4), (2, 4)),
    "projection_clip": 0.01,
    "output_cutoffs": (5, 9),
    "bridge": "backward",
    "head_width": 4,
    "image_size": 8,
    "activation": "silu",
    "head_activation": "silu",
    "characters": "convolution",
    "furthest": 20,
    "head": "none",
    "heads": 4,
    "decoder_heads": 4,
    "channels": 2,
    "norm_epsilon": 0.5,
    "maxent_size": 64,
    "buckets": 16,
    "output_samples": 3,
    "documents": "joined",
}
NEEDED: dict[str, dict[str, Any]] = {
    "projection": {"cell": "lstm"},
    "next_sentence": {"pooler": True},
    "connection": {},
    "attention_width": {"attention": "additive"},
    "context": {"attention": "none"},
    "output_cutoffs": {"output": "adaptive", "tie_output": False},
    "furthest": {"buckets": 8},
    "output_samples": {"output": "importance"},
    "output_alpha": {"output": "importance"},
    "maxent_size": {"maxent": 2},
    "buckets": {"ngrams": 2},
    "character_width": {"characters": "convolution"},
    "character_maps": {"characters": "convolution"},
    "variational_dropout": {"dropout": 0.5},
    "position_offset": {"positions": "learned", "context": 16},
    "tie_output": {},
}
"""What else must be set for a field to be read."""
NOT_SEEN = {
    ("bert", "pooler"): "the pooler is read by heads",
    ("recurrent_lm", "forget_bias"): "weights are drawn here, and it is what one starts from",
    ("recurrent", "forget_bias"): "likewise",
    ("recurrent_lm", "chrono_steps"): "likewise",
    ("recurrent", "chrono_steps"): "likewise",
    ("bert", "next_sentence"): "likewise",
    ("bert", "head"): "the head is read by the objective",
    ("bert", "head_activation"): "likewise",
    ("bert", "tie_output"): "likewise",
}
"""Fields of parts that one forward pass of the encoder does not go through; they change the parameters or a
head."""


def with_documents(tokens: Tensor) -> Tensor:
    tokens = tokens.clone()
    tokens[:, 4] = 1  # <s> in the middle of a row
    return tokens


def outputs(model: nn.Module, family: str) -> list[Tensor]:
    """What a model computes in training, as a function of its seed."""
    torch.manual_seed(1)
    for parameter in model.parameters():  # a head that begins at 0 would hide all that is before it
        nn.init.uniform_(parameter, -0.3, 0.3)
    ids = torch.randint(5, 29, (3, 9))
    model.train()
    torch.manual_seed(2)
    net: Any = model
    if family in ("gpt", "recurrent_lm"):
        if isinstance(net.output, FrequencyOutput):
            net.output.set_counts(torch.arange(1, 31))
        hidden, _ = net.read(with_documents(ids), None)
        after_source, _ = net.read(ids[:, :3], read_source(net, ids.flip(1)[:, :5]))
        return [hidden, net.output.loss(hidden, ids).total, after_source]
    if family in ("seq2seq", "transformer", "t5"):
        hidden, _ = net.read(ids, net.encode(ids.flip(1)))
        return [hidden, net.output.logits(hidden)]
    if family == "elmo":
        if isinstance(net.output, FrequencyOutput):
            net.output.set_counts(torch.arange(1, 31))
        hidden, _ = net.read_direction(with_documents(ids), None, None, backward=False)
        return [hidden, net.output.loss(hidden, ids).total]
    if family == "vit":
        config = net.config
        return [net(torch.rand(2, config.channels, config.image_size, config.image_size))]
    return [net(ids, torch.ones_like(ids, dtype=torch.bool))]


def built(family: str, fields: dict[str, Any]) -> nn.Module:
    config_class, model_class, _ = model_family(family)
    torch.manual_seed(0)
    model: nn.Module = model_class(config_class(**fields))
    return model


def other_value(config: Any, name: str) -> Any:
    """Another value of a field than the one it has."""
    value = getattr(config, name)
    hints = get_type_hints(type(config))[name]
    if isinstance(value, bool):
        return not value
    if name in OTHER_VALUES and OTHER_VALUES[name] != value:
        return OTHER_VALUES[name]
    if isinstance(value, str):
        return next(one for one in get_args(hints) if one != value)
    if isinstance(value, float) or (value is None and float in get_args(hints)):
        return 0.5 if value is None or value < 0.4 else 0.1
    return 2 * value if isinstance(value, int) and value else 32


def cases() -> list[tuple[str, str]]:
    return [
        (family, one.name)
        for family in SMALL
        for one in dataclasses.fields(model_family(family)[0])
        if one.name not in FROM_ELSEWHERE and not one.name.endswith(("_id", "_ids"))
    ]


@pytest.mark.parametrize(("family", "name"), cases())
def test_every_field_changes_the_model_or_is_said_to_change_nothing(family: str, name: str) -> None:
    config_class, _, _ = model_family(family)
    known = {one.name for one in dataclasses.fields(config_class)}
    base = SMALL[family] | {
        key: value for key, value in NEEDED.get(name, {}).items() if key in known
    }
    changed = base | {name: other_value(config_class(**base), name)}
    try:
        before, after = config_class(**base), config_class(**changed)
    except UsageError:
        pytest.skip("this value needs others: the configuration says which")
    if name in unused_fields(before):
        return
    assert name not in unused_fields(after)
    one, two = built(family, base), built(family, changed)
    shapes = [
        {key: tensor.shape for key, tensor in model.state_dict().items()} for model in (one, two)
    ]
    if shapes[0] != shapes[1]:
        return
    pairs = list(zip(outputs(one, family), outputs(two, family), strict=True))
    differs = any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs)
    assert differs or (family, name) in NOT_SEEN


@pytest.mark.parametrize("family", ["recurrent", "recurrent_lm", "seq2seq"])
def test_a_forget_bias_changes_nothing_beside_chrono_steps(family: str, tmp_path: Path) -> None:
    config = model_family(family)[0](**(SMALL[family] | {"cell": "lstm", "chrono_steps": 9}))
    assert unused_fields(config)["forget_bias"] == "model.chrono_steps to be 0"
    task = {"recurrent": "text-classification", "recurrent_lm": "text-generation"}
    (tmp_path / "a.tsv").write_text("text\tlabel\na\tb\n")
    settings = ["model.cell=lstm", "model.chrono_steps=9", "model.forget_bias=2"]
    with pytest.raises(
        UsageError, match=r"forget_bias changes nothing here: .*chrono_steps to be 0"
    ):
        resolve(
            task.get(family, "translation"),
            [str(tmp_path / "a.tsv")],
            tmp_path / "run",
            f"{family}:tiny",
            (),
            settings,
            None,
        )


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (
            "text-generation",
            ["data.tags=xpos"],
            r"data\.tags changes nothing for text-generation \(it is for token-",
        ),
        (
            "text-generation",
            ["train.word_vectors=v.txt"],
            r"train\.word_vectors has vectors of words, which data\.tokenizer=bpe does not cut",
        ),
        (
            "text-generation",
            ["model.output_cutoffs=[5]"],
            r"model\.output_cutoffs changes nothing here: it needs model\.output to be",
        ),
        (
            "text-generation",
            ["data.max_length=5"],
            r"data\.max_length changes nothing for text-generation",
        ),
        (
            "text-classification",
            ["decode.beam=5"],
            r"decode\.beam changes nothing for text-classification",
        ),
        (
            "text-classification",
            ["train.batch_rows=8", "train.batch_tokens=100"],
            r"train\.batch_tokens changes nothing where train\.batch_rows",
        ),
        (
            "translation",
            ["model.context=initial"],
            r"model\.context changes nothing here: it needs model\.attention to be none",
        ),
        ("translation", ["head.pooling=mean"], r"head\.pooling changes nothing for translation"),
        (
            "translation",
            ["train.shift=2"],
            r"train\.shift changes nothing for translation \(it is for image-",
        ),
        (
            "image-classification",
            ["data.delimiter=;"],
            r"data\.delimiter changes nothing for image-classification",
        ),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(
    task: str, settings: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{message}.*leave"):
        resolve(task, ["data"], "run", None, (), settings, None)


FITTED = {"seed": 5, "threads": 1}
"""What the training of a fitted model reads."""


def other_training(name: str) -> str:
    """Another value of a setting of training."""
    value = getattr(TrainConfig(), name)
    if name in FITTED:
        return str(FITTED[name])
    others = {
        "schedule": "linear",
        "dtype": "bfloat16",
        "device": "cpu",
        "objective": "null",
        "best": "accuracy",
        "freeze": "[embedding]",
        "lora_targets": "[key]",
        "word_vectors": "v.txt",
        "noise": "[mask]",
        "noise_density": "0.5",
        "noise_span": "5",
        "mask_units": "words",
        "sentence_pairs": "order",
        "trackers": "[wandb]",
    }
    if isinstance(value, bool):
        return str(not value).lower()
    return others.get(name) or ("0.5" if isinstance(value, float) else "7")


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(TrainConfig)])
def test_an_ngram_model_refuses_what_only_gradients_read(name: str) -> None:
    setting = f"train.{name}={other_training(name)}"
    if name in FITTED or setting == "train.objective=null":
        resolve("text-generation", ["data"], "run", "ngram", (), [setting], None)
        return
    with pytest.raises(UsageError, match=rf"^train\.{name} changes nothing for (ngram|text-gen)"):
        resolve("text-generation", ["data"], "run", "ngram", (), [setting], None)


def test_only_what_matters_is_listed_for_an_ngram_model() -> None:
    listed = {one["key"] for one in settings_of("ngram") if one["key"].startswith("train.")}
    assert listed == {f"train.{name}" for name in FITTED}


@pytest.mark.parametrize(
    ("task", "family"),
    [
        (task.name, family)
        for task in all_tasks()
        if task.training_data is not None and task.name in TASKS
        for family in families_for(task)
    ],
)
def test_the_defaults_that_are_listed_are_those_of_a_run(task: str, family: str) -> None:
    run = resolve(task, ["data"], "run", family, (), (), None)
    for one in settings_of(family, task):
        section, _, name = one["key"].partition(".")
        if section != "model" and one["key"] != "data.train":
            value = vars(vars(run)[section])[name]
            assert one["default"] == ("none" if value in (None, ()) else str(value)), one["key"]
