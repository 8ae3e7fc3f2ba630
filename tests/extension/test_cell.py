"""A recurrent cell from outside of the package, from the command line: trained, resumed, reopened,
refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import Command
from tests.extension.conftest import TABLES, forget_plugins, plugin

import seqloom
from seqloom.files import sha256

MODELS = {"text-generation": "recurrent_lm", "translation": "seq2seq"}
SMALL = ["train.max_steps=6", "train.evaluate_every=6", "train.log_every=3", "train.batch_rows=8"]
WIDTHS = ["embedding_width", "width"]
PLUGIN = f"--plugin={plugin('mgu')}"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(
        "".join(f"the {a} sees the {b}\n" for a in "abcdefghijklm" for b in "nopqrstuvwxyz")
    )
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "source\ttarget\n" + "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "stuvwxyz")
    )
    return path


def settings_of(task: str) -> list[str]:
    widths = (
        [*WIDTHS, "encoder_width", "attention_width", "readout_width"]
        if task == "translation"
        else WIDTHS
    )
    return ["model.cell=mgu", *SMALL, *(f"model.{name}=8" for name in widths)]


def trained(command: Command, task: str, data: Path, folder: Path) -> None:
    settings = [f"--set={setting}" for setting in settings_of(task)]
    ran = command(
        "train", task, data, "--output-dir", folder, "--model", MODELS[task], *settings, PLUGIN
    )
    assert ran.code == 0, ran.err


def stopped_at_step_3(task: str, data: Path, folder: Path) -> None:
    """The same training, which a signal asks to stop."""
    stop = lambda progress: os.kill(os.getpid(), signal.SIGTERM) if progress.step == 3 else None  # noqa: E731
    result = seqloom.train(
        task,
        [str(data)],
        output_dir=folder,
        model=MODELS[task],
        settings=settings_of(task),
        progress=stop,
    )
    assert (result.stopped, result.step) == ("SIGTERM", 3)


@pytest.mark.parametrize("task", ["text-generation", "translation"])
def test_a_cell_from_a_plugin_is_trained_resumed_and_reopened(
    command: Command, task: str, texts: Path, pairs: Path, tmp_path: Path
) -> None:
    data, folder = (pairs if task == "translation" else texts), tmp_path / "run"
    nothing_loaded = [dict(table) for table in TABLES]
    trained(command, task, data, tmp_path / "whole")
    stopped_at_step_3(task, data, folder)
    assert json.loads((folder / "config.json").read_text())["plugins"] == ["mgu"]
    assert yaml.safe_load((folder / "run.yaml").read_text())["plugins"] == ["mgu"]

    forget_plugins(nothing_loaded)  # as a new process
    refused = command("train", "--resume", folder)
    assert refused.code == 2
    assert refused.err.startswith(
        f"seqloom: {folder}/run.yaml needs the plugin mgu; give it with --plugin"
    )
    assert command("train", "--resume", folder, PLUGIN).code == 0
    assert sha256(folder / "model.safetensors") == sha256(tmp_path / "whole/model.safetensors")

    evaluated = command("evaluate", folder, data, "--json", PLUGIN)
    assert evaluated.json["perplexity"] > 1
    verb = (
        ["predict", folder, data]
        if task == "translation"
        else ["generate", folder, "--prompt", "the"]
    )
    assert command(*verb, PLUGIN).code == 0
    forget_plugins(nothing_loaded)
    for words in (verb, ["evaluate", folder, data]):
        refused = command(*words)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert (
            f"{folder} needs the plugin mgu; give it with --plugin and the path of mgu.py"
            in refused.err
        )


def test_a_run_without_plugins_names_none(command: Command, texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [
        "--set=model.width=8",
        "--set=model.embedding_width=8",
        *(f"--set={one}" for one in SMALL),
    ]
    words = [
        "train",
        "text-generation",
        texts,
        "--output-dir",
        folder,
        "--model=recurrent_lm",
        *settings,
    ]
    assert command(*words, PLUGIN).code == 0
    assert "plugins" not in json.loads((folder / "config.json").read_text())
    assert "plugins" not in yaml.safe_load((folder / "run.yaml").read_text())
