"""What a trained model cannot do is refused in one line, whoever asks: a verb or `seqloom.load`."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command

import seqloom
from seqloom.errors import FolderError, SeqloomError, UsageError


def of_task(folder: Path, copy: Path, task: str) -> Path:
    """A copy of a run folder whose model is of another task; the manifest agrees with it."""
    shutil.copytree(folder, copy)
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(content | {"task": task}))
    manifest = json.loads((copy / "manifest.json").read_text())
    written = (copy / "config.json").read_bytes()
    manifest["files"]["config.json"] = {
        "bytes": len(written),
        "sha256": hashlib.sha256(written).hexdigest(),
    }
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize("verb", ["predict", "evaluate", "explain"])
def test_a_task_that_is_not_known_is_refused(
    verb: str, command: Command, trained: Path, tmp_path: Path
) -> None:
    folder = of_task(trained, tmp_path / "copy", "dancing")
    with pytest.raises(
        FolderError, match=r"its task must be one of translation, .*, but is 'dancing'"
    ) as error:
        seqloom.load(folder)
    ran = command(verb, folder, "a b", *["--output", tmp_path / "a.svg"][: 2 * (verb == "explain")])
    assert ran.code == 1
    assert ran.err == f"seqloom: {error.value}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "RUN", "a.txt", "b.txt"], "takes FOLDER and one FILE, but 2 files are given"),
        (["predict", "RUN", "-", "--set", "decode.baem=3"], "did you mean decode.beam?"),
        (["predict", "RUN", "-", "--set", "decode=3"], "there is no setting decode"),
        (["predict", "RUN", "-", "--set", "beam"], "--set must be key=value"),
        (
            ["predict", "RUN", "-", "--set", "decode.beam=0"],
            "decode.beam must be greater than or equal to 1",
        ),
        (
            ["predict", "RUN", "-", "--set", "data.label=x"],
            "data.label changes nothing here, where each line of a file is a text",
        ),
        (
            ["evaluate", "RUN", "x.tsv", "--stride", "3"],
            "--stride changes nothing in evaluate of RUN",
        ),
        (
            ["evaluate", "RUN", "x.tsv", "--set", "train.seed=3"],
            "but not train.*: the model is trained",
        ),
        (["score", "RUN", "-", "--set", "decode.beam=3"], "not decode.*: nothing is decoded"),
        (["rescore", "RUN", "x.tsv", "--set", "decode.beam=3"], "not decode.*"),
        (
            ["degeneration", "RUN", "x.txt", "--set", "decode.beam=3"],
            "not decode.*: each strategy says",
        ),
        (
            ["generate", "RUN", "--prompt", "a", "--set", "data.encoding=utf-8"],
            "not data.*: no file is read",
        ),
        (["ensemble", "RUN", "RUN", "--output-dir", "x", "--set", "decode.beam=3"], "not decode.*"),
    ],
)
def test_what_would_change_nothing_is_refused_in_one_line(
    words: list[str], message: str, command: Command, trained: Path
) -> None:
    ran = command(*[str(trained) if word == "RUN" else word for word in words])
    (line,) = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert line.startswith("seqloom: ")
    assert message.replace("RUN", str(trained)) in line


@pytest.mark.parametrize("verb", ["complete", "models", "demo", "probe", "export", "import"])
def test_a_verb_without_settings_has_no_set(verb: str, command: Command) -> None:
    assert "--set" not in command(verb, "--help").out
    ran = command(
        verb, *("a", "b")[: 1 if verb in ("models", "probe") else 2], "--set", "train.seed=1"
    )
    (line,) = ran.err.splitlines()
    assert ran.code == 2
    assert "--set" in line


def test_the_library_refuses_in_the_same_words(command: Command, trained: Path) -> None:
    model: Any = seqloom.load(trained)
    for verb in ("generate", "score", "complete"):
        with pytest.raises(
            UsageError, match=f"a model of translation cannot {verb}; use: seqloom predict"
        ):
            getattr(model, verb)
    with pytest.raises(SeqloomError, match=r"did you mean decode\.beam"):
        model.predict(["a b"], baem=3)
    ran = command("generate", trained, "--prompt", "a")
    assert (
        ran.err
        == f"seqloom: {trained}: a model of translation cannot generate; use: seqloom predict {trained}\n"
    )
