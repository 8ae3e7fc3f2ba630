"""A family of models from outside, from the command line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.extension.conftest import TABLES, forget_plugins, plugin

import seqloom
from seqloom.files import sha256
from seqloom.testing import check_encoder

PLUGIN = f"--plugin={plugin('conv_lm')}"
SMALL = ["train.max_steps=6", "train.log_every=3", "train.batch_rows=8", "model.width=8"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(
        "".join(f"the {a} sees the {b}\n" for a in "abcdefghijklm" for b in "nopqrstuvwxyz")
    )
    return path


def test_a_family_from_a_plugin_is_listed_with_its_settings(command: Command) -> None:
    assert "conv_lm:small" in command("models", PLUGIN).out
    listed = {one["key"]: one for one in command("models", "conv_lm", "--json", PLUGIN).json}
    assert listed["model.window"] == {
        "key": "model.window",
        "default": "4",
        "meaning": "Tokens that a prediction looks at.",
    }
    assert command("models", "conv_lm").code == 0  # loaded before in this process


def test_a_family_from_a_plugin_is_trained_resumed_and_reopened(
    command: Command, texts: Path, tmp_path: Path
) -> None:
    folder, nothing_loaded = tmp_path / "run", [dict(table) for table in TABLES]
    sets = [f"--set={setting}" for setting in SMALL]
    words = ["train", "text-generation", texts, "--model=conv_lm", *sets]
    assert command(*words, "--output-dir", tmp_path / "whole", PLUGIN).code == 0
    stop = lambda progress: os.kill(os.getpid(), signal.SIGTERM) if progress.step == 3 else None  # noqa: E731
    stopped = seqloom.train(
        "text-generation",
        [str(texts)],
        output_dir=folder,
        model="conv_lm",
        settings=SMALL,
        progress=stop,
    )
    assert (stopped.stopped, stopped.step) == ("SIGTERM", 3)
    forget_plugins(nothing_loaded)
    refused = command("generate", folder, "--prompt", "the")
    assert f"{folder} needs the plugin conv_lm; give it with --plugin" in refused.err
    assert command("train", "--resume", folder, PLUGIN).code == 0
    assert sha256(folder / "model.safetensors") == sha256(tmp_path / "whole/model.safetensors")
    assert command("evaluate", folder, texts, "--json", PLUGIN).json["perplexity"] > 1
    assert command("generate", folder, "--prompt", "the", PLUGIN).code == 0
    assert command("score", folder, texts, PLUGIN).code == 0
    refused = command(
        "train", "translation", texts, "--model=conv_lm", "--output-dir", tmp_path / "x", PLUGIN
    )
    assert (
        "the model of translation must be one of seq2seq, transformer, t5, gpt, recurrent_lm, but is"
        " 'conv_lm'" in refused.err
    )


def test_an_encoder_from_a_plugin_reads_for_a_head(command: Command, tmp_path: Path) -> None:
    data, folder, own = (
        tmp_path / "labels.tsv",
        tmp_path / "run",
        f"--plugin={plugin('word_encoder')}",
    )
    nothing_loaded = [dict(table) for table in TABLES]
    rows = "".join(f"{a} {b}\t{a}\n" for a in ("cat", "dog") for b in "abcdefghij")
    data.write_text(f"text\tlabel\n{rows}")
    words = ["train", "text-classification", data, "--output-dir", folder, "--model=word_encoder"]
    ran = command(*words, "--set=train.max_steps=30", "--set=train.learning_rate=0.05", own)
    assert ran.code == 0, ran.err
    assert command("evaluate", folder, data, "--json", own).json["accuracy"] == 1
    module = sys.modules["word_encoder"]
    check_encoder(module.WordEncoder(module.WordEncoderConfig(vocabulary_size=20)))
    forget_plugins(nothing_loaded)
    refused = command("predict", folder, data)
    assert (refused.code, "needs the plugin word_encoder" in refused.err) == (2, True)
    assert command("predict", folder, data, own).code == 0
