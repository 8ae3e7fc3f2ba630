"""Masked patch prediction from files to a run folder and on: it learns, resumes to the bit, is measured; a
classifier begins with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data.images.test_image_files import idx
from tests.tasks.images.test_training_data import outcome, run, squares

from seqloom.errors import DataError, FolderError, UsageError
from seqloom.models.vit import ViT, ViTConfig
from seqloom.runs import run_folder
from seqloom.runs.progress import collect_logs
from seqloom.tasks.images.training_data import PreparedPatches, prepare_patches, pretrained_vit
from seqloom.tasks.settings import resolve
from seqloom.training.loop import Progress
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.train import TrainResult, train

pytestmark = pytest.mark.usefixtures("one_thread")

TASK = "masked-image-modeling"
SETTINGS = [
    "train.max_steps=100",
    "train.evaluate_every=25",
    "train.log_every=10",
    "train.batch_rows=40",
    "train.threads=1",
    "train.accumulate=2",
    "train.learning_rate=0.003",
    "train.shift=1",
    "model.width=32",
    "model.layers=2",
]
"""200 images, 20 of them held out: an epoch has 5 steps."""


def shades(seed: int, count: int) -> NDArray[np.uint8]:
    """Noise around one shade an image: what is seen tells what is not."""
    random = np.random.default_rng(seed)
    levels = random.permutation(np.arange(count) % 8)
    noise = random.integers(0, 32, (count, 8, 8))
    return np.asarray(31 * levels[:, None, None] + noise).astype(np.uint8)


def write(path: Path, seed: int, count: int) -> str:
    np.savez(path, images=shades(seed, count))
    return str(path)


def go_on(folder: Path, stop: Callable[[int], None] = lambda step: None) -> TrainResult:
    """Starts the run in `folder` or goes on with it; `stop` is called after each step."""

    def progress(now: Progress) -> None:
        stop(now.step)

    if (folder / run_folder.RUN).exists():
        return train(resume=folder, progress=progress)
    data = write(folder.parent / "train.npz", 1, 200)
    return train(
        TASK, [data], output_dir=folder, model="vit:tiny", settings=SETTINGS, progress=progress
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("patches") / "run"
    with collect_logs() as notices:
        assert go_on(folder).stopped == "max_steps"
    assert notices[0] == "no validation data given: 20 images split off by seed 0"
    assert notices[1].endswith(
        " parameters) on 180 images of 16 patches (20 for validation) for 100 steps"
    )
    return folder


# Training


def test_it_learns(trained: Path) -> None:
    """Far above the commonest of eight colours."""
    data = write(trained.parent / "test.npz", 2, 100)
    found = evaluate(trained, [data], {}, {}).metrics
    assert found.keys() == {"loss", "accuracy", "baseline_accuracy", "patches"}
    assert found["patches"] == 100 * 8
    assert found["accuracy"] > 0.6
    assert found["baseline_accuracy"] < 0.25
    assert evaluate(trained, [data], {}, {}).metrics == found


def test_a_run_folder_holds_a_head_and_a_mask(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    assert (config["task"], config["head"], config["labels"]) == (TASK, "patches", [])
    assert not [key for key in config if "token" in key or "vocabulary" in key]
    opened = run_folder.open_model(trained)
    assert isinstance(opened.model, ViT)
    assert opened.model.mask is not None
    assert opened.model.head is not None
    assert opened.model.head.weight.shape == (8, 32)
    card = (trained / "README.md").read_text()
    assert f"seqloom train image-classification DATA --from {trained}" in card
    assert " patches); its weights" in card


def test_resumed_equals_uninterrupted_to_the_bit(trained: Path, tmp_path: Path) -> None:
    """Stopped inside an epoch and at its end, with shifts, dropout, corruption and micro-batches."""
    folder = tmp_path / "run"
    for step in (3, 25, 62):

        def stop(now: int, step: int = step) -> None:
            if now == step:
                os.kill(os.getpid(), signal.SIGTERM)

        result = go_on(folder, stop)
        assert (result.stopped, result.step) == ("SIGTERM", step)
    assert go_on(folder).stopped == "max_steps"
    one, other = outcome(folder), outcome(trained)
    assert list(one) == list(other)
    for name in other:
        assert one[name] == other[name], name


def prepared(
    tmp_path: Path, data: list[str], *settings: str, validation: tuple[str, ...] = ()
) -> PreparedPatches:
    given = ["model.image_size=8", "model.patch_size=2", "train.batch_rows=8", *settings]
    run_config = resolve(TASK, data, tmp_path / "run", "vit:tiny", validation, given, None)
    (tmp_path / "run").mkdir(parents=True, exist_ok=True)
    return prepare_patches(run_config, tmp_path / "run", True)


def test_a_batch_is_a_function_of_its_rows(tmp_path: Path) -> None:
    """So micro-batches and workers see what one batch sees, and their losses add up."""
    material = prepared(tmp_path, [write(tmp_path / "t.npz", 1, 50)], "train.shift=1")
    rows = next(material.batches(1, 2))
    whole = material.load(rows, rows)
    parts = [material.load(rows[at : at + 3], rows) for at in range(0, len(rows), 3)]
    for name, tensors in zip(whole._fields, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(tensors), getattr(whole, name)), name
    model = ViT(
        ViTConfig(
            head="patches", image_size=8, patch_size=2, channels=1, width=16, layers=1, heads=2
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    objective = material.objective()
    with torch.no_grad():
        total, count = objective(model, whole)
        sums = [objective(model, part) for part in parts]
        nothing = objective(model, material.load(rows[:0], rows))
    assert int(count) == 8 * 8 == sum(int(part.count) for part in sums)
    assert float(sum(part.total for part in sums)) == pytest.approx(float(total), rel=1e-5)
    assert (float(nothing.total), int(nothing.count)) == (0.0, 0)


# Data


def test_labels_are_not_needed(tmp_path: Path) -> None:
    """An .npz, IDX images with and without labels, a folder of image files: the same pixels, the same
    batches."""
    pillow: Any = pytest.importorskip("PIL.Image")
    images = shades(3, 30)
    np.savez(tmp_path / "t.npz", images=images)
    (tmp_path / "images").write_bytes(idx(images))
    (tmp_path / "labels").write_bytes(idx(bytes(30)))
    for number, image in enumerate(images):
        place = tmp_path / "all" / ("a" if number < 10 else "b" if number < 20 else "c/deep")
        place.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image).save(place / f"{number:02}.png")
    given = [["t.npz"], ["images"], ["images", "labels"], ["all"]]
    batches = []
    for number, names in enumerate(given):
        material = prepared(tmp_path / str(number), [str(tmp_path / name) for name in names])
        assert material.labels == ()
        assert (len(material.plan.trained), len(material.held_out)) == (27, 3)
        rows = next(material.batches(0, 0))
        batches.append(material.load(rows, rows))
    for other in batches[1:]:
        assert all(torch.equal(a, b) for a, b in zip(batches[0], other, strict=True))


def test_validation_is_always_on_the_same_corruption(tmp_path: Path, trained: Path) -> None:
    """Whatever the seed of the run; and the verb measures what the training measured."""
    data, held = write(tmp_path / "t.npz", 1, 50), write(tmp_path / "v.npz", 5, 300)
    model = run_folder.open_model(trained).model
    found = [
        prepared(tmp_path / str(seed), [data], f"train.seed={seed}", validation=(held,)).validate(
            model
        )
        for seed in (0, 1)
    ]
    assert found[0] == found[1] == evaluate(trained, [held], {}, {}).metrics


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        (["train.shift=8"], 9, "train.shift must be below model.image_size=8, but is 8"),
        (
            ["train.best=bleu"],
            9,
            "train.best must be loss or accuracy for masked-image-modeling, but is 'bleu'",
        ),
        (
            ["model.head=labels"],
            9,
            "model.head must be patches for masked-image-modeling, but is labels; leave it out",
        ),
        (
            ["model.patch_size=8"],
            9,
            "model.patch_size must be below model.image_size=8 with model.head=patches",
        ),
        ([], 1, "validation needs images of its own, but there is only one"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(
    settings: list[str], count: int, message: str, tmp_path: Path
) -> None:
    data = write(tmp_path / "t.npz", 0, count)
    with pytest.raises(UsageError, match=message):
        train(TASK, [data], output_dir=tmp_path / "run", model="vit:tiny", settings=settings)
    left = (
        [path.name for path in (tmp_path / "run").iterdir()] if (tmp_path / "run").exists() else []
    )
    assert left in ([], [".lock"])


def test_a_classifier_has_no_head_on_patches(tmp_path: Path) -> None:
    images, labels = squares(0, 20)
    np.savez(tmp_path / "t.npz", images=images, labels=labels)
    with pytest.raises(
        UsageError, match=r"model.head must be labels for image-classification, but is patches"
    ):
        train(
            "image-classification",
            [str(tmp_path / "t.npz")],
            output_dir=tmp_path / "run",
            settings=["model.head=patches"],
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["predict", "RUN", "DATA"],
            "a model of masked-image-modeling cannot predict; use: seqloom evaluate",
        ),
        (
            ["explain", "RUN", "DATA"],
            "a model of masked-image-modeling cannot explain; use: seqloom evaluate",
        ),
        (["evaluate", "RUN", "DATA", "--stride", "3"], "--stride changes nothing in evaluate of"),
        (["evaluate", "RUN"], "images must be given"),
        (
            ["export", "RUN", "OUT", "--format", "huggingface"],
            "the hub has no vit for masked-image-modeling, only for image-classification, so this model",
        ),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": trained, "DATA": trained.parent / "train.npz", "OUT": tmp_path / "out"}
    code, out, err = run(capfd, *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


# What begins with it


def test_a_start_is_the_encoder(trained: Path) -> None:
    start = pretrained_vit(trained)
    model: Any = run_folder.open_model(trained).model
    assert start.new == ("head.weight", "head.bias")
    begun = ViT(ViTConfig(**start.fields, labels=("a", "b")))
    assert set(begun.load_state_dict(start.tensors, strict=False).missing_keys) == set(start.new)
    images = torch.randn(3, 1, 8, 8)
    begun.eval()
    assert torch.equal(begun.read(images), model.read(images))
    assert not begun(images).any()


def test_what_may_change_at_a_start(trained: Path, tmp_path: Path) -> None:
    """The size of images: positions are interpolated as the model does it by itself."""
    model: Any = run_folder.open_model(trained).model
    start = pretrained_vit(trained, {"image_size": 16, "dropout": 0.3})
    assert (start.fields["image_size"], start.fields["dropout"]) == (16, 0.3)
    begun = ViT(ViTConfig(**start.fields, labels=("a", "b"))).eval()
    begun.load_state_dict(start.tensors, strict=False)
    images = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(begun.read(images), model.read(images))
    with pytest.raises(
        UsageError,
        match=r"model.width=64 cannot be set: the weights of .*run have 32; leave it out",
    ):
        pretrained_vit(trained, {"width": 64})
    other = tmp_path / "lm"
    (tmp_path / "t.txt").write_text("a b\n" * 20)
    train(
        "text-generation",
        [str(tmp_path / "t.txt")],
        output_dir=other,
        model="ngram",
        settings=["data.tokenizer=bytes"],
    )
    with pytest.raises(FolderError, match="must hold a vit to begin with, but holds a ngram"):
        pretrained_vit(other)


def test_a_classifier_begins_with_it(trained: Path, tmp_path: Path) -> None:
    """Stopped and gone on with: to the bit, though what it began with is gone."""
    images, labels = squares(1, 60)
    np.savez(tmp_path / "t.npz", images=images, labels=labels)
    # what is kept of images without labels is not taken for labelled ones
    prepared(tmp_path / "without", [str(tmp_path / "t.npz")])
    begin = tmp_path / "begin"
    begin.mkdir()
    for name in (
        "config.json",
        "preprocessor_config.json",
        "model.safetensors",
        "manifest.json",
        "run.yaml",
        "data.json",
    ):
        (begin / name).write_bytes((trained / name).read_bytes())

    def classifier(out: str, stop: bool) -> TrainResult:
        def progress(now: Progress) -> None:
            if stop and now.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        settings = [
            "train.max_steps=4",
            "train.evaluate_every=2",
            "train.batch_rows=16",
            "train.threads=1",
        ]
        data, folder = [str(tmp_path / "t.npz")], tmp_path / out
        return train(
            "image-classification",
            data,
            output_dir=folder,
            settings=settings,
            start=begin,
            progress=progress,
        )

    assert classifier("whole", stop=False).stopped == "max_steps"
    assert classifier("parts", stop=True).stopped == "SIGTERM"
    for path in begin.iterdir():
        path.unlink()
    assert train(resume=tmp_path / "parts").stopped == "max_steps"
    one, other = outcome(tmp_path / "parts"), outcome(tmp_path / "whole")
    assert all(one[name] == other[name] for name in other)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert (config["width"], config["head"], config["labels"]) == (
        32,
        "labels",
        ["0", "1", "2", "3"],
    )


def test_an_empty_folder_of_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold image files"):
        train(TASK, [str(tmp_path)], output_dir=tmp_path / "run")
