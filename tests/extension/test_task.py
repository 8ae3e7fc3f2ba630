"""A task that lives outside of the package goes through every verb."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.extension.conftest import TABLES, forget_plugins, plugin

PLUGIN = f"--plugin={plugin('toy_task')}"
WIDTHS = ("embedding_width", "encoder_width", "width", "attention_width", "readout_width")
SMALL = ["train.max_steps=4", "train.batch_rows=8", *(f"model.{name}=8" for name in WIDTHS)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{a}{b}{c}\n" for a in "abcd" for b in "efgh" for c in "ijkl"))
    return path


def test_a_task_from_a_plugin_goes_through_every_verb(
    command: Command, lines: Path, tmp_path: Path
) -> None:
    folder, nothing_loaded = tmp_path / "run", [dict(table) for table in TABLES]
    checked = command("check", "text-reversal", lines, "--json", PLUGIN)
    assert checked.json["splits"]["train"] == {"lines": 64, "palindromes": 0}
    sets = [f"--set={setting}" for setting in [*SMALL, "train.best=exact_match"]]
    trained = command("train", "text-reversal", lines, "--output-dir", folder, *sets, PLUGIN)
    assert trained.code == 0, trained.err
    forget_plugins(nothing_loaded)
    assert command("train", "--resume", folder, PLUGIN).code == 0
    assert command("evaluate", folder, lines, "--json", PLUGIN).json["pairs"] == 64
    answers = command("predict", folder, lines, "--json", PLUGIN).out.splitlines()
    assert len(answers) == 64
    assert answers[0].startswith('{"backwards": ')
    refused = command("generate", folder, "--prompt", "a", PLUGIN)
    assert "a model of text-reversal cannot generate; use: seqloom predict" in refused.err
    forget_plugins(nothing_loaded)
    for words in (
        ("predict", folder, lines),
        ("evaluate", folder, lines),
        ("train", "--resume", folder),
    ):
        refused = command(*words)
        assert refused.code == 2
        assert "needs the plugin toy_task; give it with --plugin" in refused.err
    refused = command("train", "text-reversal", lines, "--output-dir", tmp_path / "other")
    assert (refused.code, refused.err.startswith("seqloom: TASK must be one of translation, ")) == (
        2,
        True,
    )
