"""Checkpoints of `transformers`, random and in odd shapes: the same numbers here, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.interop.published import (
    CHECKPOINTS,
    TEXTS,
    Asked,
    ask_ours,
    ask_theirs,
    exact_sinusoids,
    hf,
    saved,
    scale_of,
    watched,
)
from torch import Tensor

from seqloom.interop.checkpoint import read_checkpoint
from seqloom.interop.export import target_of, write_checkpoint
from seqloom.interop.families import FAMILIES
from seqloom.interop.families.family import SUPPRESSED
from seqloom.interop.tensor_mapping import unique_tensors

pytestmark = pytest.mark.usefixtures("one_thread")
PADDINGS = ("none", "left", "right")


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return ours.shape == theirs.shape and float(
        (ours - theirs).abs().max()
    ) <= tolerance * scale_of(theirs)


def dead(name: str) -> set[str]:
    """Tensors of theirs that their own model does not look at."""
    if name == "bert-mlm-untied":
        return {"cls.predictions.bias"}
    if name in ("bart-untied", "marian-untied"):
        return {"model.shared.weight"}
    return set()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", TEXTS)
def test_logits_and_hidden_states_are_theirs(name: str, padding: str, tmp_path: Path) -> None:
    theirs, asked = saved(name, tmp_path), Asked.of(padding, name)
    for dtype, tolerance in (
        (torch.float32, 1e-5),
        (torch.float64, 1e-6 if name.startswith("t5") else 1e-10),
    ):
        model: Any = read_checkpoint(tmp_path, dtype).model
        theirs.to(dtype)
        if name.startswith("marian") and dtype is torch.float64:
            exact_sinusoids(theirs)
        both = hasattr(model, "encoder")
        read: list[Tensor] = []
        written: list[Tensor] = []
        hooks = watched(model.encoder if both else model.stack, read) + (
            watched(model.decoder, written) if both else []
        )
        with torch.no_grad():
            expected, reads, writes = ask_theirs(name, theirs, asked)
            found = ask_ours(name, model, asked)
        for hook in hooks:
            hook.remove()
        mask = asked.target_mask if both else asked.mask
        assert close(found[mask], expected[mask], tolerance)
        assert len(read) == len(reads) > 0
        assert len(written) == len(writes)
        for ours, hidden in zip(read, reads, strict=True):
            assert close(
                ours if ours.dim() == 2 else ours[asked.mask], hidden[asked.mask], tolerance
            )
        for ours, hidden in zip(written, writes, strict=True):
            assert close(ours[asked.target_mask], hidden[asked.target_mask], tolerance)


@pytest.mark.parametrize("name", TEXTS)
def test_gradients_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, asked = saved(name, tmp_path).double(), Asked.of("left", name)
    if name.startswith("marian"):
        exact_sinusoids(theirs)
    found = read_checkpoint(tmp_path, torch.float64)
    family = FAMILIES[str(found.content["model_type"])]
    expected, _, _ = ask_theirs(name, theirs, asked)
    ours = ask_ours(name, found.model, asked)
    mask = asked.target_mask if hasattr(found.model, "encoder") else asked.mask
    weights = torch.randn(expected[mask].shape, dtype=torch.float64)
    for result in (expected, ours):
        torch.autograd.backward((result[mask] * weights).sum())
    gradients = {
        key: parameter.grad
        for key, parameter in theirs.named_parameters()
        if parameter.grad is not None
    }
    prefix, compared = family.names.prefix, 0
    for key, parameter in unique_tensors(found.model).items():
        if parameter.grad is None:
            continue
        rule = family.names.rule_for(key, found.config)
        for part, gradient in zip(rule.theirs, rule.split(parameter.grad), strict=True):
            known = gradients.get(part, gradients.get(part.removeprefix(prefix)))
            if known is not None:
                assert close(gradient, known, 1e-6 if name.startswith("t5") else 1e-9), part
                compared += 1
    assert compared >= len(gradients) - 1  # all but a bias that stands twice


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name not in TEXTS])
def test_images_are_seen_as_theirs(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    images = torch.randn(2, theirs.config.num_channels, 8, 8, dtype=torch.float64)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        found = read_checkpoint(tmp_path, dtype)
        model: Any = found.model
        with torch.no_grad():
            out = theirs.to(dtype)(images.to(dtype))
            assert close(model(images.to(dtype)), out.logits, tolerance)
            assert found.config.labels == ("cat", "dog", "a b")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_out_and_back_every_tensor_is_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "theirs")
    found = read_checkpoint(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    target = target_of(found.model_type, found.config, found.task, found.content)
    assert target.architecture == type(theirs).__name__
    write_checkpoint(tmp_path / "ours", found.model, found.config, target, origin=found.content)
    before, after = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours")
    )
    assert before.keys() - dead(name) == after.keys() - dead(name)
    for key in before.keys() - dead(name):
        assert torch.equal(before[key], after[key]), key
    again, told = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not told["unexpected_keys"]
    assert told["missing_keys"] <= dead(name)
    if name in TEXTS:
        asked = Asked.of("right", name)
        with torch.no_grad():
            one, two = (ask_theirs(name, model.eval(), asked)[0] for model in (theirs, again))
        assert close(one, two, 1e-6)  # memory that lies otherwise may add up in another order
    else:
        with torch.no_grad():
            images = torch.randn(2, theirs.config.num_channels, 8, 8)
            assert close(theirs(images)[0], again.eval()(images)[0], 1e-6)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_without_its_origin_a_model_is_written_as_one_that_opens_alike(
    name: str, tmp_path: Path
) -> None:
    theirs = saved(name, tmp_path / "theirs")
    found = read_checkpoint(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    ids = {key: value for key, value in found.content.items() if key.endswith("_token_id")}
    target = target_of(found.model_type, found.config, found.task)
    write_checkpoint(tmp_path / "ours", found.model, found.config, target, ids=ids)
    again = read_checkpoint(tmp_path / "ours")
    one, two = found.model.state_dict(), again.model.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    if not name.endswith("bare"):
        kind = getattr(hf, target.architecture)
        assert not kind.from_pretrained(tmp_path / "ours", output_loading_info=True)[1][
            "unexpected_keys"
        ]
    assert theirs.config.model_type in (target.hub_type, "roberta", "electra", "bert")


@pytest.mark.parametrize("hub_type", FAMILIES)
def test_every_field_of_a_configuration_has_its_place(hub_type: str) -> None:
    """A field that is added to a model must be in the tables of its families, or an export would lose it."""
    from dataclasses import fields

    from seqloom.models import model_family

    family = FAMILIES[hub_type]
    config_class = model_family(family.model_type)[0]
    options = family.options
    placed = (
        {one.ours for one in options.table if one.ours}
        | options.fixed.keys()
        | options.defaults.keys()
    )
    # an export has the ids that are never a target under a key of their own
    named = {one.name for one in fields(config_class)} - {SUPPRESSED}
    assert placed == named
