"""Models of our own, with what their configurations leave open, in transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers as hf

from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.export import target_of, write_checkpoint
from seqloom.models import model_family
from seqloom.models.bert import BertConfig
from seqloom.models.gpt import GPT, GPTConfig

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"vocabulary_size": 20, "width": 8, "heads": 2}
LAYERS: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2}
MARIAN: dict[str, Any] = {
    "norm": "after",
    "positions": "sinusoidal-halves",
    "output_bias": True,
    "context": 32,
}
BART: dict[str, Any] = {
    "norm": "after",
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "context": 32,
    "output_bias": True,
}
SPECIAL_IDS = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "gpt",
        "text-generation",
        {"layers": 2, "context": 32, "activation": "gelu-tanh", "documents": "joined"},
    ),
    "marian": ("transformer", "translation", LAYERS | MARIAN),
    "bart": ("transformer", "translation", LAYERS | BART),
    "t5": ("t5", "translation", LAYERS),
    "t5, v1.1": (
        "t5",
        "translation",
        LAYERS
        | {"gated": True, "activation": "gelu-tanh", "tie_output": False, "scale_output": False},
    ),
    "bert": ("bert", "fill-mask", {"layers": 2, "context": 32}),
    "electra": ("bert", "replaced-token", {"layers": 2, "context": 32, "head": "replaced-token"}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_what_is_left_open_is_written_as_a_number(case: str, tmp_path: Path) -> None:
    model_type, task, options = CASES[case]
    config_class, model_class, _ = model_family(model_type)
    torch.manual_seed(0)
    config = config_class(**SMALL | options)
    model = model_class(config).eval()
    target = target_of(model_type, config, task)
    write_checkpoint(tmp_path, model, config, target, ids=SPECIAL_IDS)
    theirs = getattr(hf, target.architecture).from_pretrained(tmp_path).eval()
    tokens, written = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 5))
    if hasattr(model, "encode"):
        found, _ = model(written, model.encode(tokens))
        expected = theirs(input_ids=tokens, decoder_input_ids=written).logits
    elif model_type == "bert":
        found = model.logits(model(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        expected = theirs(tokens).logits
    else:
        found, _ = model(tokens, None)
        expected = theirs(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


WRITERS = {
    **{name: CASES[name] for name in ("gpt2", "marian", "bart", "t5", "t5, v1.1")},
    "bart, without a bias": ("transformer", "translation", LAYERS | BART | {"output_bias": False}),
}
SUPPRESSED = (0, 1, 4, 5)


@torch.no_grad()
@pytest.mark.parametrize("case", WRITERS)
def test_what_can_never_be_a_target_has_no_probability_in_an_export(
    case: str, tmp_path: Path
) -> None:
    """It opens here with the same numbers. In transformers the bias of the output leaves out such ids, where
    there is one; elsewhere only a softmax over the others is that of our model."""
    model_type, task, options = WRITERS[case]
    config_class, model_class, _ = model_family(model_type)
    torch.manual_seed(0)
    config = config_class(**SMALL | options, suppressed_ids=SUPPRESSED)
    model = model_class(config).eval()
    target = target_of(model_type, config, task)
    write_checkpoint(tmp_path, model, config, target, ids=SPECIAL_IDS)
    again: Any = read_checkpoint(tmp_path)
    assert again.config.suppressed_ids == SUPPRESSED
    theirs = getattr(hf, target.architecture).from_pretrained(tmp_path).eval()
    tokens, written = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 5))
    if task == "translation":
        found, _ = model(written, model.encode(tokens))
        found_again, _ = again.model(written, again.model.encode(tokens))
        expected = theirs(input_ids=tokens, decoder_input_ids=written).logits
    else:
        found, _ = model(tokens, None)
        found_again, _ = again.model(tokens, None)
        expected = theirs(tokens).logits
    torch.testing.assert_close(found_again, found, rtol=1e-6, atol=1e-6)
    if model_type != "transformer":
        expected[..., SUPPRESSED] = -torch.inf
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=1e-5, atol=1e-7)
    assert found.softmax(-1)[..., SUPPRESSED].eq(0).all()


def test_suppressed_ids_of_a_directory_are_ids(tmp_path: Path) -> None:
    config = GPTConfig(**SMALL, **CASES["gpt2"][2])
    model = GPT(config)
    write_checkpoint(tmp_path, model, config, target_of("gpt", config, "text-generation"))
    content = json.loads((tmp_path / "config.json").read_text())
    assert "suppressed_ids" not in content
    for ids in ([20], [-1], "all", list(range(20)), None):
        (tmp_path / "config.json").write_text(json.dumps({**content, "suppressed_ids": ids}))
        with pytest.raises(FolderError, match="suppressed"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"position_offset": 2, "segments": 1, "activation": "relu"}, "must have gelu there"),
        ({"embedding_width": 4, "activation": "relu"}, "must have gelu there, but has relu"),
        ({"head_activation": "silu"}, "the head of masked-lm must have gelu there, but has silu"),
        (
            {"embedding_width": 4, "head": "replaced-token", "head_activation": "relu"},
            "the head of replaced-token must have gelu there, but has relu",
        ),
    ],
)
def test_a_head_with_another_activation_than_theirs_is_refused(
    fields: dict[str, Any], said: str
) -> None:
    config = BertConfig(vocabulary_size=9, width=8, heads=2, **fields)
    task = "replaced-token" if config.head == "replaced-token" else "fill-mask"
    with pytest.raises(UsageError) as refusal:
        target_of("bert", config, task)
    assert said in str(refusal.value)
