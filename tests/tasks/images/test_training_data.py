"""Images from files to a run folder and back: it learns, resumes to the bit, is measured and asked through
the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.campaigns.damage import unvouched

from seqloom import manifest
from seqloom.cli import main
from seqloom.errors import DataError, FolderError, SeqloomError, UsageError
from seqloom.runs import run_folder
from seqloom.runs.progress import collect_logs
from seqloom.tasks.images.classify import ImageClassifier
from seqloom.training import metrics_log
from seqloom.training.loop import Progress
from seqloom.workflows.train import TrainResult, train

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = [
    "train.max_steps=40",
    "train.evaluate_every=10",
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
NAMES = np.array(["lower left", "lower right", "upper left", "upper right"])


def squares(seed: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noise, and a brighter square in the quarter that the label names."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % 4)
    images = random.integers(0, 120, (count, 8, 8))
    for image, label in zip(images, labels, strict=True):
        down, right = (
            4 * (label < 2) + random.integers(0, 2),
            4 * (label % 2) + random.integers(0, 2),
        )
        image[down : down + 3, right : right + 3] += 110
    return images.astype(np.uint8), labels


def write(path: Path, seed: int, count: int) -> str:
    images, labels = squares(seed, count)
    np.savez(path, images=images, labels=NAMES[labels])
    return str(path)


def go_on(folder: Path, stop: Callable[[int], None] = lambda step: None) -> TrainResult:
    """Starts the run in `folder` or goes on with it; `stop` is called after each step."""

    def progress(now: Progress) -> None:
        stop(now.step)

    if (folder / run_folder.RUN).exists():
        return train(resume=folder, progress=progress)
    data = write(folder.parent / "train.npz", 1, 200)
    return train(
        "image-classification",
        [data],
        output_dir=folder,
        model="vit:tiny",
        settings=SETTINGS,
        progress=progress,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("images") / "run"
    with collect_logs() as notices:
        assert go_on(folder).stopped == "max_steps"
    assert (
        notices[0]
        == "no validation data given: 20 images split off by seed 0, of each label its share"
    )
    assert notices[1].startswith("training vit:tiny (")
    assert notices[1].endswith(
        " parameters) on 180 images of 4 labels (20 for validation) for 40 steps"
    )
    return folder


@pytest.fixture(scope="module")
def test_data(trained: Path) -> str:
    return write(trained.parent / "test.npz", 2, 100)


# Training


def test_it_learns(trained: Path, test_data: str) -> None:
    losses = [record["loss"] for record in metrics_log.read(trained) if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    found = ImageClassifier.load(trained).evaluate([test_data])
    assert found.metrics["accuracy"] > 0.9
    assert found.metrics["accuracy_low"] > 0.8


def test_a_run_folder_holds_all_that_is_needed(trained: Path) -> None:
    names = {path.name for path in trained.iterdir() if path.is_file()}
    assert names == {
        *("config.json", "preprocessor_config.json", "run.yaml", "data.json", "metrics.jsonl"),
        *("model.safetensors", "manifest.json", "README.md", ".lock"),
    }
    config = json.loads((trained / "config.json").read_text())
    assert config["labels"] == NAMES.tolist()
    assert config["task"] == "image-classification"
    assert not [key for key in config if "token" in key or "vocabulary" in key]
    assert {"config.json", "preprocessor_config.json", "model.safetensors"} <= json.loads(
        (trained / "manifest.json").read_text()
    )["files"].keys()
    card = (trained / "README.md").read_text()
    assert f"seqloom predict {trained} image.png" in card
    assert " images); its weights" in card
    assert "accuracy" in card


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for how long it took and where it stood."""
    metrics = [
        json.loads(line) for line in (folder / metrics_log.METRICS).read_bytes().splitlines()
    ]
    kept: dict[str, Any] = {
        "metrics": [
            {key: v for key, v in line.items() if key != "tokens_per_second"} for line in metrics
        ]
    }
    placed = {run_folder.RUN, metrics_log.METRICS, run_folder.DATA, manifest.MANIFEST, "README.md"}
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in placed
    ):
        kept[str(path.relative_to(folder))] = path.read_bytes()
    return kept


def test_resumed_equals_uninterrupted_to_the_bit(trained: Path, tmp_path: Path) -> None:
    """Stopped inside an epoch and at its end, with shifts, dropout and micro-batches."""
    folder = tmp_path / "run"
    for step in (3, 15, 22):

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
    assert go_on(folder).stopped == "finished"


def test_other_data_of_the_same_name_cannot_be_gone_on_with(tmp_path: Path) -> None:
    def stop(now: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    go_on(tmp_path / "run", stop)
    write(tmp_path / "train.npz", 3, 200)
    with pytest.raises(FolderError, match="must go on with the data it began with"):
        train(resume=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        (["train.shift=8"], [0, 1], "train.shift must be below model.image_size=8, but is 8"),
        (
            ["train.best=bleu"],
            [0, 1],
            "train.best must be loss or accuracy for image-classification, but is 'bleu'",
        ),
        (["model.labels=[a]"], [0, 1], "model.labels comes from the data and cannot be set"),
        (["model.patch_size=3"], [0, 1], "model.patch_size must divide model.image_size"),
        ([], [1, 1], "images must have at least two labels, but all have '1'"),
        ([], [0, 1], "none may be parted from the others"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(
    settings: list[str], labels: list[int], message: str, tmp_path: Path
) -> None:
    images, _ = squares(0, 2)
    np.savez(tmp_path / "t.npz", images=images, labels=labels)
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        train(
            "image-classification",
            [str(tmp_path / "t.npz")],
            output_dir=tmp_path / "run",
            model="vit:tiny",
            settings=settings,
        )
    left = (
        [path.name for path in (tmp_path / "run").iterdir()] if (tmp_path / "run").exists() else []
    )
    assert left in ([], [".lock"])


def test_validation_data_have_the_labels_of_the_training(
    tmp_path: Path, notices: list[str]
) -> None:
    images, labels = squares(0, 40)
    np.savez(tmp_path / "t.npz", images=images, labels=labels)
    np.savez(
        tmp_path / "v.npz",
        images=np.stack([images[:3]] * 3, axis=-1).repeat(2, 1).repeat(2, 2),
        labels=[3, 9, 3],
    )

    def trained_on(validation: str, out: str) -> TrainResult:
        return train(
            "image-classification",
            [str(tmp_path / "t.npz")],
            output_dir=tmp_path / out,
            model="vit:tiny",
            validation=[validation],
            settings=[*SETTINGS, "train.max_steps=1"],
        )

    with pytest.raises(
        DataError,
        match=r"v.npz:2: the label must be one of those of the training \('0', '1', '2', '3'\), but is '9'",
    ):
        trained_on(str(tmp_path / "v.npz"), "one")
    assert "validation: 3 of 3 images are resized to 8 x 8 (model.image_size)" in notices
    assert "validation: 3 of 3 images change colours (model.channels)" in notices
    assert trained_on(str(tmp_path / "t.npz"), "two").metrics["images"] == 40


# Asked


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capfd.readouterr()


def test_evaluate(
    trained: Path, test_data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(
        capfd, "evaluate", trained, test_data, "--json", "--outputs", tmp_path / "labels.txt"
    )
    assert code == 0
    told = json.loads(out)
    confusion = np.array(told["confusion"])
    assert told["labels"] == NAMES.tolist()
    assert confusion.sum(1).tolist() == [25] * 4
    assert told["accuracy"] == confusion.trace() / 100
    assert told["images"] == 100
    assert told["accuracy_low"] < told["accuracy"] <= told["accuracy_high"]
    labels = (tmp_path / "labels.txt").read_text().splitlines()
    _, true = squares(2, 100)
    assert np.mean(np.array(labels) == NAMES[true]) == told["accuracy"]
    code, out, _ = run(capfd, "evaluate", trained, test_data)
    assert code == 0
    assert "macro_f1" in out
    assert "confusion" not in out


def test_predict(
    trained: Path, test_data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    images, _ = squares(2, 100)
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, images, strict=False):
        pillow.fromarray(image).save(path)
    code, out, _ = run(capfd, "predict", trained, *paths, "--json")
    assert code == 0
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["image"] for one in told] == [str(path) for path in paths]
    for one in told:
        assert sum(one["probabilities"].values()) == pytest.approx(1)
        assert (
            one["probability"]
            == max(one["probabilities"].values())
            == one["probabilities"][one["label"]]
        )
    code, out, _ = run(capfd, "predict", trained, *paths)
    assert out.splitlines() == [
        f"{one['label']}\t{one['probability']:.4f}\t{one['image']}" for one in told
    ]
    together = ImageClassifier.load(trained).predict([test_data])
    assert len(together) == 100
    assert together[0].image == f"{test_data}:1"
    for one, other in zip(told, together, strict=False):
        assert other.probabilities == pytest.approx(one["probabilities"], abs=1e-5)
    several = [
        one.probability for one in ImageClassifier.load(trained).stream([test_data], chunk=7)
    ]
    assert several == pytest.approx([one.probability for one in together], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "RUN"], "images must be given"),
        (
            ["predict", "RUN", "DATA", "--set", "decode.beam=1"],
            "decode.beam changes nothing in predict of",
        ),
        (
            ["evaluate", "RUN", "DATA", "--set", "decode.beam=1"],
            "decode.beam changes nothing in evaluate of",
        ),
        (["evaluate", "RUN", "DATA", "--stride", "3"], "--stride changes nothing in evaluate of"),
        (["evaluate", "RUN"], "images must be given"),
        (
            ["explain", "RUN", "DATA", "--gradient-flow"],
            "is a model of image-classification, which reads no text",
        ),
        (
            ["generate", "RUN", "--prompt", "a"],
            "is a model of image-classification, which reads no text",
        ),
        (["score", "RUN", "DATA"], "is a model of image-classification, which reads no text"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, trained: Path, test_data: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(
        capfd, *({"RUN": str(trained), "DATA": test_data}.get(word, word) for word in words)
    )
    assert (code, out) == (2, "")
    assert err.startswith("seqloom: ")
    assert message in err
    assert err.count("\n") == 1


def test_labels_that_a_model_does_not_know_are_named(trained: Path, tmp_path: Path) -> None:
    images, _ = squares(0, 2)
    np.savez(tmp_path / "t.npz", images=images, labels=["upper left", "middle"])
    with pytest.raises(
        DataError,
        match=r"t.npz:2: the label must be one of those of the training .* but is 'middle'",
    ):
        ImageClassifier.load(trained).evaluate([str(tmp_path / "t.npz")])


def test_a_damaged_folder_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(FolderError, match=r"preprocessor_config.json must have"):
        ImageClassifier.load(folder)
    unvouched(folder)
    for content, message in (
        ('{"resample": 0}', "resample must be 2"),
        ("[]", "must be a JSON object"),
        ("{", "is not JSON"),
    ):
        (folder / "preprocessor_config.json").write_text(content)
        with pytest.raises(FolderError, match=f"preprocessor_config.json: {message}"):
            ImageClassifier.load(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(SeqloomError, match=r"preprocessor_config.json: cannot be read"):
        ImageClassifier.load(folder)


# Explained


def test_explain_draws_where_it_looks(
    trained: Path, test_data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair")
    code, out, _ = run(
        capfd, "explain", trained, test_data, "--output", tmp_path / "a.svg", "--json"
    )
    assert code == 0
    told = json.loads(out)
    assert told["image"] == f"{test_data}:1"
    assert told["picture"] == str(tmp_path / "a.svg")
    assert np.shape(told["rollout"]) == (4, 4)
    assert np.shape(told["heads"]) == (4, 4, 4)
    assert np.sum(told["rollout"]) < 1
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg")
    assert all(f"head {at}" in drawn for at in range(1, 5))
    code, out, _ = run(capfd, "explain", trained, test_data, "--output", tmp_path / "a.png")
    assert out.splitlines()[0].startswith(f"{told['label']}\t")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for words in (
        (test_data, "--output", tmp_path / "a.png"),
        (test_data, "--target", "x"),
        (test_data, test_data),
        (),
    ):
        code, _, err = run(capfd, "explain", trained, *words)
        assert code == 2
        assert err.count("\n") == 1


def test_a_label_that_is_renamed_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    from PIL import Image

    images, _ = squares(0, 20)
    for number, image in enumerate(images):
        place = tmp_path / "all" / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    settings = [
        "train.max_steps=2",
        "train.batch_rows=8",
        "model.image_size=8",
        "model.patch_size=4",
    ]

    def labels(name: str) -> list[str]:
        train(
            "image-classification",
            [str(tmp_path / "all")],
            output_dir=tmp_path / name,
            model="vit:tiny",
            settings=settings,
        )
        found: list[str] = json.loads((tmp_path / name / "config.json").read_text())["labels"]
        return found

    assert labels("first") == ["cat", "dog"]
    (tmp_path / "all" / "cat").rename(tmp_path / "all" / "bat")
    assert labels("second") == ["bat", "dog"]
