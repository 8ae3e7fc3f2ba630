"""Adapters of LoRA: written for PEFT, and read from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop import headed, published
from tests.interop.published import Asked, scale_of
from torch import Tensor, nn

from seqloom.errors import FolderError, SeqloomError
from seqloom.interop.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from seqloom.interop.adapter_tensors import write_adapter
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.export import target_of
from seqloom.layers.low_rank import adapt, low_rank_layers, low_rank_tensors, merged
from seqloom.registry import hub_task
from seqloom.runs.run_folder import open_model

pytestmark = [
    # of PEFT and transformers between themselves
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
TARGETS = ("query", "key", "value", "attention-output", "feed-forward")
BODIES = (
    *("gpt2", "gpt2-bare", "gpt1", "bert", "bert-mlm", "roberta-mlm", "electra-generator"),
    *("t5", "t5-v1.1", "bart", "marian", "vit"),
)
HEADS = (
    *("bert-labels", "bert-tags", "bert-span", "bert-choice", "roberta-labels", "roberta-choice"),
    *("electra-labels", "electra-choice", "gpt2-labels", "gpt1-number"),
)


def answer(name: str, model: Any, *, theirs: bool) -> Tensor:
    """What a model of ours, or of transformers, makes of a batch."""
    result: Any
    if name in HEADS:
        batch = headed.asked(name)
        result = headed.ask_theirs(name, model, batch) if theirs else model(batch)
        if headed.kind_of(name) in ("tagging", "span"):
            result = result[batch.tokens >= 0]
    elif name == "vit":
        torch.manual_seed(5)
        pictures = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        result = model(pictures).logits if theirs else model(pictures)
    else:
        ask = published.ask_theirs if theirs else published.ask_ours
        result = ask(name, model, Asked.of("none", name))
    tensor: Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def base(name: str, folder: Path) -> Any:
    """A random model of transformers, saved in float64."""
    model = (headed if name in HEADS else published).saved(name, folder)
    model.double().save_pretrained(folder)
    if name == "marian":
        published.exact_sinusoids(model)
    return model


def trained(name: str, folder: Path, targets: tuple[str, ...]) -> nn.Module:
    """The same model of ours with random updates."""
    model = read_checkpoint(folder).model
    adapt(model, targets, rank=2, alpha=5.0, seed=3, trained=("head.",) if name in HEADS else ())
    torch.manual_seed(11)
    for layer in low_rank_layers(model).values():
        for matrix in layer.lora_b.values():
            nn.init.normal_(matrix, std=0.3)
    for part, parameter in model.named_parameters():
        # a head of a GPT of the hub has no bias
        if part.startswith("head.") and parameter.requires_grad and "gpt" not in name:
            nn.init.normal_(parameter)
    return model


def written(name: str, folder: Path, model: nn.Module) -> Path:
    """The adapter of this model."""
    checkpoint = read_checkpoint(folder)
    config: Any = checkpoint.config
    target = target_of(
        checkpoint.model_type, config, hub_task(checkpoint.task), dict(checkpoint.content)
    )
    low_rank, place = low_rank_tensors(model), folder / "adapter"
    whole = ("head.",) if name in HEADS or name == "vit" else ()
    with merged(model):
        write_adapter(place, str(folder), model, target, low_rank, 5 / 2, whole)
    return place


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max()) / scale_of(other)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        *((name, TARGETS) for name in (*BODIES, *HEADS)),
        *((name, (one,)) for name in ("gpt2", "bert", "t5-v1.1", "bart", "vit") for one in TARGETS),
    ],
)
def test_peft_gives_the_same_with_the_base_and_the_adapter(
    name: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    theirs = base(name, tmp_path)
    model = trained(name, tmp_path, targets)
    place = written(name, tmp_path, model)
    before, adapted = answer(name, theirs, theirs=True), answer(name, model, theirs=False)
    with merged(model):
        plain = answer(name, model, theirs=False)
    adapter = peft.PeftModel.from_pretrained(theirs, place)
    result = answer(name, adapter.base_model.model, theirs=True)
    opened = answer(name, open_model(place, "cpu").model, theirs=False)
    assert difference(before, adapted) > 1e-5
    assert difference(plain, adapted) < 1e-12
    assert difference(result, adapted) < 1e-6
    assert difference(opened, adapted) < 1e-12


def changed(folder: Path, **keys: object) -> None:
    """Changes keys of adapter_config.json."""
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base("gpt2", tmp_path)
    return written("gpt2", tmp_path, trained("gpt2", tmp_path, ("query", "attention-output")))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA, but is"),
        ({"use_dora": True}, "use_dora=True is not known here"),
        ({"lora_bias": True}, "lora_bias=True is not known here"),
        ({"layer_replication": [[0, 2]]}, "layer_replication="),
        ({"trainable_token_indices": [3]}, "trainable_token_indices="),
        ({"target_parameters": ["w"]}, "target_parameters="),
        ({"something_new": 1}, "something_new=1 is not known here"),
        ({"init_lora_weights": "pissa"}, "changes the base too"),
        ({"bias": "some"}, "bias must be none, all or lora_only"),
        ({"r": 4}, "must have shapes (r, in) and (out, r), r=4"),
        ({"rank_pattern": {"c_attn": 7}}, "r=7"),
        ({"lora_alpha": "much"}, "lora_alpha must be a number above 0"),
        ({"target_modules": ["c_attn"]}, "do not name transformer.h.0.attn.c_proj"),
        ({"exclude_modules": ["h.1.attn.c_attn"]}, "do not name transformer.h.1.attn.c_attn"),
        ({"layers_to_transform": [0, 1]}, "do not name transformer.h.2.attn.c_attn"),
        ({"target_modules": ["c_attn", "c_proj"]}, "lacks those of transformer.h.0.mlp.c_proj"),
        ({"target_modules": "("}, "names must be simple patterns, but"),
        ({"target_modules": r"([a-z.]+)+!"}, "repeats a group"),
        ({"rank_pattern": {".*.*.*.*.*!": 3}}, "is long or repeats much"),
        ({"base_model_name_or_path": None}, "must name the model that the adapter changes"),
        ({"base_model_name_or_path": "google/none"}, "write hf://google/none there"),
        ({"base_model_name_or_path": "../adapter"}, "its base must be a model, but"),
    ],
)
def test_what_a_configuration_asks_for_is_obeyed_or_refused(
    keys: dict[str, object], said: str, adapter: Path
) -> None:
    changed(adapter, **keys)
    with pytest.raises(SeqloomError) as caught:
        open_model(adapter, "cpu")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True, "r": 3, "lora_alpha": 5},
        {"rank_pattern": {"c_fc": 4, r"h\.1\.attn\.c_attn": 1}, "alpha_pattern": {"c_attn": 3}},
        {"layers_to_transform": [0, 2], "bias": "lora_only"},
        {"layers_to_transform": 1, "layers_pattern": "h", "bias": "all"},
        {"exclude_modules": ["mlp.c_fc"], "modules_to_save": ["ln_f"], "fan_in_fan_out": True},
        {"target_modules": r".*h\.[01]\.attn\.c_(attn|proj)"},
        {"target_modules": "all-linear", "init_lora_weights": "gaussian", "r": 3},
    ],
)
def test_an_adapter_that_peft_made_gives_what_peft_gives(
    options: dict[str, Any], tmp_path: Path
) -> None:
    theirs = base("gpt2", tmp_path)
    config = peft.LoraConfig(**{"target_modules": ["c_attn", "c_fc"], **options})
    model = peft.get_peft_model(theirs, config)
    torch.manual_seed(4)
    for part, parameter in model.named_parameters():
        if parameter.requires_grad or ".lora_B." in part:
            nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(str(tmp_path / "made"))
    changed(tmp_path / "made", base_model_name_or_path="..")
    ours = answer("gpt2", open_model(tmp_path / "made", "cpu").model, theirs=False)
    assert difference(ours, answer("gpt2", model.base_model.model, theirs=True)) < 1e-6


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("transformer.h.9.attn.c_attn.lora_A.weight", None, "must have lora_A and lora_B"),
        ("transformer.wte.lora_embedding_A", (4, 19), "is not known here"),
        ("transformer.h.0.attn.c_attn.lora_magnitude_vector", (36,), "is not known here"),
        ("score.weight", (3, 12), "score.weight has none there"),
        ("transformer.wte.weight", (25, 12), "has shape (19, 12) there and (25, 12) here"),
        ("transformer.h.0.attn.c_attn.lora_A.weight", (4, 5), "must have shapes"),
    ],
)
def test_tensors_without_a_place_are_refused(
    name: str, shape: tuple[int, ...] | None, said: str, adapter: Path
) -> None:
    path = adapter / ADAPTER_WEIGHTS
    tensors = load_file(path)
    tensors[f"base_model.model.{name}"] = torch.ones(shape or (2, 12), dtype=torch.float64)
    save_file(tensors, path)
    with pytest.raises(FolderError) as caught:
        open_model(adapter, "cpu")
    assert said in str(caught.value)
