"""An objective, a decoding rule and a metric from outside, from the command line and a run file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import Command
from tests.extension.conftest import TABLES, forget_plugins, plugin

PLUGIN = f"--plugin={plugin('rules')}"
WIDTHS = ("embedding_width", "encoder_width", "width", "attention_width", "readout_width")
SMALL = [
    *("--set=train.max_steps=4", "--set=train.evaluate_every=2", "--set=train.batch_rows=8"),
    *(f"--set=model.{name}=8" for name in WIDTHS),
    "--set=data.tokenizer=characters",
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    rows = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "stuvwxyz")
    path.write_text("source\ttarget\n" + rows)
    return path


def test_an_objective_a_rule_and_a_metric_are_used_and_needed(
    command: Command, pairs: Path, tmp_path: Path
) -> None:
    nothing_loaded = [dict(table) for table in TABLES]
    plain, folder = tmp_path / "plain", tmp_path / "run"
    words = ["train", "translation", pairs, *SMALL, "--output-dir"]
    assert command(*words, plain).code == 0
    own = ["--set=train.objective=confidence_penalty", "--set=train.best=length_ratio"]
    own += ["--set=decode.processors=[avoid=a]"]
    ran = command(*words, folder, *own, PLUGIN)
    assert ran.code == 0, ran.err
    saved = yaml.safe_load((folder / "run.yaml").read_text())
    assert saved["plugins"] == ["rules"]
    assert saved["decode"]["processors"] == ["avoid=a"]
    weights = [(one / "model.safetensors").read_bytes() for one in (plain, folder)]
    assert weights[0] != weights[1]
    measured = command("evaluate", folder, pairs, "--json", PLUGIN).json
    assert 0 <= measured["length_ratio"] <= 100
    assert "a" not in command("predict", folder, pairs, PLUGIN).out
    assert "length_ratio" in command("evaluate", plain, pairs, "--json", PLUGIN).json
    changed = command("predict", plain, pairs, "--set=decode.processors=[avoid=a, avoid=b]", PLUGIN)
    assert (changed.code, "a" in changed.out, "b" in changed.out) == (0, False, False)

    trace = tmp_path / "trace.txt"
    rules = "--set=decode.processors=[louder=2]"
    assert command("predict", folder, pairs, rules, "--trace", trace, PLUGIN).code == 0
    assert "ruled to" in trace.read_text()

    again = command(
        "train", "--config", folder / "run.yaml", "--output-dir", tmp_path / "again", PLUGIN
    )
    assert again.code == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == weights[1]
    forget_plugins(nothing_loaded)
    for words in (["predict", folder, pairs], ["train", "--config", folder / "run.yaml"]):
        refused = command(*words)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert "needs the plugin rules; give it with --plugin" in refused.err


def test_labels_are_measured_too(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text(
        "text\tlabel\n" + "".join(f"{a} {b}\t{a}\n" for a in ("cat", "horse") for b in "abcdefghij")
    )
    words = [
        "train",
        "text-classification",
        path,
        "--output-dir",
        tmp_path / "run",
        "--model=bag_of_words",
    ]
    sets = ["--set=train.max_steps=2", "--set=model.width=8", "--set=train.best=length_ratio"]
    assert command(*words, *sets, PLUGIN).code == 0
    assert (
        50
        < command("evaluate", tmp_path / "run", path, "--json", PLUGIN).json["length_ratio"]
        <= 100
    )


DESCENT = '''
import torch
import seqloom
from seqloom.protocols import Loss


class Descent:
    """Updates the model itself, by plain gradient descent."""

    def __init__(self, default):
        self.default = default

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters())

    def update(self, model, batch, optimizer, rate):
        loss = self.default(model, batch)
        (loss.total / loss.count).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
        return Loss(loss.total.detach(), loss.count)


seqloom.register_objective("descent", Descent)
'''


def test_an_objective_of_a_plugin_may_update_the_model_itself(
    command: Command, pairs: Path, tmp_path: Path
) -> None:
    plugin, folder, plain = tmp_path / "descent.py", tmp_path / "run", tmp_path / "plain"
    plugin.write_text(DESCENT)
    words = ["train", "translation", pairs, *SMALL, "--output-dir"]
    assert command(*words, plain).code == 0
    ran = command(*words, folder, "--set=train.objective=descent", f"--plugin={plugin}")
    assert ran.code == 0, ran.err
    weights = [(one / "model.safetensors").read_bytes() for one in (plain, folder)]
    assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("train.objective=x", "train.objective must be 'confidence_penalty', but is 'x'"),
        (
            "decode.processors=[x=1]",
            "decode.processors.0 must be 'avoid' or 'louder', but is 'x=1'",
        ),
        ("train.best=x", "'score', 'masked_accuracy' or 'length_ratio', but is 'x'"),
        ("train.best=5", "'score', 'masked_accuracy' or 'length_ratio', but is '5'"),
        (
            "train.best=f1",
            "train.best must be loss or bleu or chrf or exact_match or length_ratio for",
        ),
    ],
)
def test_an_unknown_name_is_refused(
    command: Command, pairs: Path, tmp_path: Path, setting: str, line: str
) -> None:
    words = ["train", "translation", pairs, "--output-dir", tmp_path / "run", "--set", setting]
    refused = command(*words, PLUGIN)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert line in refused.err


def test_without_plugins_there_is_neither_an_objective_nor_a_rule(
    command: Command, pairs: Path, tmp_path: Path
) -> None:
    words = ["train", "translation", pairs, "--output-dir", tmp_path / "run", "--set"]
    refused = command(*words, "train.objective=x")
    assert "train.objective must be registered by a plugin (--plugin)" in refused.err
    refused = command(*words, "decode.processors=[x]")
    assert "decode.processors.0 must be registered by a plugin (--plugin)" in refused.err
    assert "must be 'loss', 'accuracy'," in command(*words, "train.best=x").err
