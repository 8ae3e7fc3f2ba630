"""`export --weights`: a folder with weights in fewer bits is the model that writes with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqloom.errors import FolderError, SeqloomError, UsageError
from seqloom.manifest import MANIFEST
from seqloom.native.library import library
from seqloom.packed_weights import Storage
from seqloom.runs.run_folder import CONFIG, load_run
from seqloom.stored_weight import SCALES, QuantisedWeight, StoredWeight
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.training.checkpoints import WEIGHTS
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.exchange import export_model
from seqloom.workflows.models import model_of_run
from seqloom.workflows.stored_weights import export_stored
from seqloom.workflows.train import train

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)
STORAGES: tuple[Storage, ...] = ("bfloat16", "int8")
TYPE_OF = {"bfloat16": torch.bfloat16, "int8": torch.int8}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small GPT, of the same in fewer bits, and a text."""
    place = tmp_path_factory.mktemp("stored")
    (place / "text.txt").write_text("".join(f"{n * n * n} words of {n}\n" for n in range(99)))
    train(
        "text-generation",
        [str(place / "text.txt")],
        output_dir=place / "run",
        model="gpt:tiny",
        settings=[
            "data.tokenizer=bytes",
            "train.max_steps=4",
            f"model.tie_output={str(request.param).lower()}",
        ],
    )
    for storage in STORAGES:
        export_stored(str(place / "run"), str(place / storage), storage)
    return place


DECODING: list[dict[str, Any]] = [
    {"strategy": "greedy"},
    {"strategy": "beam", "beam": 3},
    {"temperature": 1.5, "top_k": 20},
]


@pytest.mark.parametrize("storage", STORAGES)
def test_it_writes_what_the_float_folder_writes_with_these_weights(
    place: Path, storage: Storage
) -> None:
    whole, stored = (LanguageModel(load_run(place / name)) for name in ("run", storage))
    prompts = ["4096 wo", "", "ords of"]
    for decode in DECODING:
        expected = whole.generate(prompts, weights=storage, max_length=40, **decode)
        assert stored.generate(prompts, max_length=40, **decode) == expected
    text, asked = [str(place / "text.txt")], {"weights": storage}
    measured = evaluate(place / "run", text, {}, asked).metrics
    assert evaluate(place / storage, text, {}, {}).metrics == measured
    said = model_of_run(str(place / storage))
    assert said["weights in the folder"] == said["weights in decoding"] == storage
    assert said["step of decoding"].startswith("compiled")


@pytest.mark.parametrize("storage", STORAGES)
def test_all_else_computes_with_the_restored_weights(place: Path, storage: Storage) -> None:
    whole, stored = load_run(place / "run"), load_run(place / storage)
    weights = {id(w): w for w in stored.model.parameters() if isinstance(w, StoredWeight)}
    with torch.no_grad():
        for (name, own), (_, weight) in zip(
            whole.model.named_parameters(), stored.model.named_parameters(), strict=True
        ):
            if isinstance(weight, StoredWeight):
                own.copy_(QuantisedWeight.of(own, storage).restored())
            assert torch.equal(own, weight + 0), name
    config: Any = whole.model.config
    assert len(weights) == 4 * config.layers + 2 - config.tie_output
    texts = ["512 words", "a"]
    expected = list(LanguageModel(whole).score(texts))
    for score, exact in zip(LanguageModel(stored).score(texts), expected, strict=True):
        assert score.log_probability == pytest.approx(exact.log_probability, rel=1e-6)
    # the step of decoding too, where it is asked for in float32
    model = LanguageModel(stored)
    greedy: dict[str, Any] = {"strategy": "greedy", "max_length": 30, "weights": "float32"}
    assert model.generate(["1 w"], **greedy) == LanguageModel(whole).generate(["1 w"], **greedy)


@pytest.mark.parametrize("storage", STORAGES)
def test_its_file_holds_nothing_twice(place: Path, storage: Storage) -> None:
    whole, stored = (load_file(place / name / WEIGHTS) for name in ("run", storage))
    added = {name for name in stored if name.endswith(SCALES)}
    assert stored.keys() - added == whole.keys()
    small = [name for name in whole if stored[name].dtype == TYPE_OF[storage]]
    assert len(added) == (len(small) if storage == "int8" else 0)
    matrices = [name for name in whole if whole[name].dim() == 2 and "positions" not in name]
    assert sorted(small) == sorted(matrices)


def changed(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy whose tensors are changed, with nothing that vouches for them."""
    shutil.copytree(folder, copy := folder.with_name(f"{folder.name}-damaged"))
    tensors = {name: tensor.clone() for name, tensor in load_file(copy / WEIGHTS).items()}
    change(tensors)
    save_file(tensors, copy / WEIGHTS)
    return copy


HIDDEN = "stack.blocks.0.feed_forward.hidden.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda all_: None, "listed"),
        (lambda all_: all_.pop(HIDDEN + SCALES), f"{HIDDEN}_scales is missing"),
        (lambda all_: all_.update({HIDDEN: all_[HIDDEN].long()}), f"{HIDDEN} must be int8"),
        (lambda all_: all_.update({HIDDEN: all_[HIDDEN].float()}), "must hold integers"),
        (lambda all_: all_[HIDDEN + SCALES].neg_(), f"{HIDDEN} must be int8 with scales above 0"),
        (lambda all_: all_[HIDDEN + SCALES].mul_(torch.inf), "has NaN or infinity"),
        (lambda all_: all_.update({HIDDEN: all_[HIDDEN][1:].clone()}), "must have shape"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    place: Path, change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    copy = changed(place / "int8", change)
    try:
        if reason == "listed":  # a bit, which the list of the folder knows
            content = bytearray((copy / WEIGHTS).read_bytes())
            content[-1] ^= 1
            (copy / WEIGHTS).write_bytes(content)
            reason = "restore it from a copy"
        else:
            vouch_for(copy, WEIGHTS)
        with pytest.raises(FolderError, match=reason) as error:
            load_run(copy)
        assert "\n" not in str(error.value)
    finally:
        shutil.rmtree(copy)


def vouch_for(folder: Path, name: str) -> None:
    from seqloom import manifest

    content = manifest.read_list(folder / MANIFEST)
    listed = content.pop("files") | {name: manifest.entry(folder / name)}
    manifest.write_list(folder / MANIFEST, listed, **content)


def test_a_type_that_is_not_known_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "int8", copy := tmp_path / "int4")
    content = json.loads((copy / CONFIG).read_text()) | {"storage": "int4"}
    (copy / CONFIG).write_text(json.dumps(content))
    vouch_for(copy, CONFIG)
    with pytest.raises(
        FolderError, match=r"storage must be bfloat16 or int8, of gpt, .* but is int4 of gpt"
    ):
        load_run(copy)


def test_what_needs_float32_says_so(place: Path, tmp_path: Path) -> None:
    stored, out = str(place / "int8"), str(tmp_path / "out")
    text = [str(place / "text.txt")]
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: export_model(stored, out),
            "an export holds a whole model, but its weights are in int8",
        ),
        (lambda: export_model(stored, out, "onnx"), "its weights are in int8"),
        (
            lambda: export_stored(stored, out, "bfloat16"),
            "rounded once, but its weights are in int8",
        ),
        (
            lambda: train("text-generation", text, output_dir=tmp_path / "new", start=stored),
            "a training starts from a whole model, but its weights are in int8",
        ),
        (
            lambda: LanguageModel(load_run(stored)).generate(["a"], weights="bfloat16"),
            "the folder has its weights in int8",
        ),
        (
            lambda: export_stored(str(place / "run"), out, "int4"),
            "--weights must be int8 or bfloat16",
        ),
        (lambda: export_stored(str(place / "run"), stored, "int8"), "must be new or empty"),
    ]
    for use, reason in refused:
        with pytest.raises((UsageError, SeqloomError), match=reason):
            use()
