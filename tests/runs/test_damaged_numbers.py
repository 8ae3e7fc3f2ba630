"""Numbers that no training gives are refused whichever way a model is opened, with the file and the tensor:
NaN and infinity, integers in place of weights, a norm with a negative epsilon."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop import published
from torch import Tensor

import seqloom
from seqloom import manifest
from seqloom.errors import FolderError, UsageError
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.runs import run_folder
from seqloom.runs.new_model import build_model
from seqloom.training import checkpoints
from seqloom.workflows.exchange import import_model

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
FINISHED = sorted(path.stem for path in RUNS.glob("*.json") if path.stem != "unfinished")
NOT_FINITE = (math.nan, math.inf, -math.inf)
WEIGHTS = "model.safetensors"
EPSILONS = {"bert": "layer_norm_eps", "t5": "layer_norm_epsilon", "gpt2": "layer_norm_epsilon"}
"""Architecture -> the key of its epsilon."""


def damaged(path: Path, name: str, damage: Callable[[Tensor], Tensor]) -> None:
    """Changes one tensor of a file; a manifest beside it vouches for the change."""
    tensors = load_file(path)
    tensors[name] = damage(tensors[name])
    save_file(tensors, path)
    if (path.parent / manifest.MANIFEST).exists():
        (path.parent / manifest.MANIFEST).unlink()
        manifest.write_manifest(path.parent)


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    """The last number of a tensor becomes this one."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return change


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(FolderError) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def floats(path: Path, seed: int, count: int) -> list[str]:
    """Some of the tensors of a file that hold no integers."""
    names = sorted(name for name, one in load_file(path).items() if one.is_floating_point())
    chosen = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    return [names[number] for number in chosen[:count].tolist()]


@pytest.mark.parametrize("number", range(len(FINISHED)))
def test_a_run_folder_is_refused(number: int, tmp_path: Path) -> None:
    source = RUNS / FINISHED[number]
    for turn, name in enumerate(floats(source / WEIGHTS, number, 2)):
        run = Path(shutil.copytree(source, tmp_path / f"run{turn}"))
        damaged(run / WEIGHTS, name, with_value(NOT_FINITE[(number + turn) % 3]))
        said = refusal(lambda folder=run: seqloom.load(folder))  # type: ignore[misc]
        assert f"{run / WEIGHTS}: numbers must be finite, but {name} has NaN or infinity" in said
        damaged(run / WEIGHTS, name, lambda tensor: torch.ones_like(tensor, dtype=torch.int32))
        said = refusal(lambda folder=run: seqloom.load(folder))  # type: ignore[misc]
        assert f"{name} must hold floating-point numbers, but holds I32" in said


def test_integers_stay_integers(tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUNS / "text-ngram", tmp_path / "run"))
    integers = {
        name: one for name, one in load_file(run / WEIGHTS).items() if not one.is_floating_point()
    }
    name = next(iter(integers))
    damaged(run / WEIGHTS, name, lambda tensor: tensor.float())
    assert f"{name} must hold integers, but holds F32" in refusal(lambda: seqloom.load(run))


@pytest.mark.parametrize("name", published.CHECKPOINTS)
def test_a_checkpoint_of_the_hub_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    model = published.saved(name, folder)
    used = {
        read
        for read in load_file(folder / WEIGHTS)
        if "embed_positions" not in read and read in model.state_dict()
    }
    for turn, tensor in enumerate(floats(folder / WEIGHTS, len(name), 3)):
        if tensor not in used:
            continue
        shutil.copy(folder / WEIGHTS, tmp_path / "kept")
        damaged(folder / WEIGHTS, tensor, with_value(NOT_FINITE[turn]))
        said = refusal(lambda: read_checkpoint(folder))
        assert f"{folder / WEIGHTS}: numbers must be finite, but {tensor} has NaN" in said
        damaged(folder / WEIGHTS, tensor, lambda one: torch.ones_like(one, dtype=torch.int32))
        said = refusal(lambda: read_checkpoint(folder))
        assert f"{tensor} must hold floating-point numbers, but holds int32" in said
        shutil.move(tmp_path / "kept", folder / WEIGHTS)


@pytest.mark.parametrize("form", ["half", "shards", "too large for the type asked for"])
def test_other_forms_of_a_checkpoint_are_refused_too(form: str, tmp_path: Path) -> None:
    folder, name = tmp_path / "hub", "transformer.h.1.mlp.c_fc.weight"
    published.saved("gpt2", folder, **({"max_shard_size": "3KB"} if form == "shards" else {}))
    dtype = None
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if form == "half":
            tensors = {key: one.to(torch.float16) for key, one in tensors.items()}
        if name in tensors:
            tensors[name][0, 0] = math.inf
        if form.startswith("too large") and name in tensors:
            tensors[name] = tensors[name].double()
            tensors[name][0, 0] = 1e300
            dtype = torch.float32
        save_file(tensors, path)
    said = refusal(lambda: read_checkpoint(folder, dtype))
    assert f"numbers must be finite, but {name} has NaN or infinity" in said


def imported(folder: Path) -> object:
    return import_model(str(folder), str(folder.parent / "imported"))


@pytest.mark.parametrize("ask", [run_folder.pretrained_from, imported])
def test_verbs_that_read_a_checkpoint_refuse_it_and_leave_nothing(
    ask: Callable[[Path], object], tmp_path: Path
) -> None:
    published.saved("bert", tmp_path / "hub")
    damaged(tmp_path / "hub" / WEIGHTS, "pooler.dense.bias", with_value(math.nan))
    assert "pooler.dense.bias has NaN or infinity" in refusal(lambda: ask(tmp_path / "hub"))
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


def test_a_run_folder_to_start_from_is_refused(tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUNS / "labels-bert", tmp_path / "run"))
    damaged(run / WEIGHTS, "encoder.embedding.weight", with_value(math.nan))
    said = refusal(lambda: run_folder.pretrained_from(run))
    assert "encoder.embedding.weight has NaN or infinity" in said


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER])
def test_a_checkpoint_to_resume_from_is_refused(name: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUNS / "unfinished", tmp_path / "run"))
    file = run / "checkpoint-17" / name
    (tensor,) = floats(file, 1, 1)
    damaged(file, tensor, with_value(math.nan))
    said = refusal(lambda: checkpoints.read_tensors(file))
    assert said.startswith(f"{file}: numbers must be finite, but {tensor} has NaN or infinity")


@pytest.mark.parametrize("name", EPSILONS)
def test_a_negative_epsilon_of_a_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    published.saved(name, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {EPSILONS[name]: -1e-5}))
    said = refusal(lambda: read_checkpoint(tmp_path))
    assert str(tmp_path / "config.json") in said
    assert f"{EPSILONS[name]} must be at least 0, but is -1e-05" in said


@pytest.mark.parametrize("model", ["bert", "gpt", "t5", "transformer", "vit"])
def test_a_negative_epsilon_cannot_be_trained_with(model: str) -> None:
    with pytest.raises(UsageError, match=r"model\.norm_epsilon must be at least 0, but is -0\.5"):
        build_model(model, "tiny", 20, {"norm_epsilon": -0.5})


@pytest.mark.parametrize("value", [*NOT_FINITE, 3e38, -3e38, 0.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tensor_is_finite_where_all_of_its_numbers_are(value: float, dtype: torch.dtype) -> None:
    tensor = torch.linspace(-1, 1, 3001).to(dtype)
    tensor[1234] = value
    assert checkpoints.is_finite(tensor) == bool(torch.isfinite(tensor).all())
    strided = tensor[:3000].view(30, 100).T[::3]
    assert checkpoints.is_finite(strided) == bool(torch.isfinite(strided).all())
    assert checkpoints.is_finite(tensor[:0])
