"""What docs/extending.md shows is in the plugins of these tests, and its commands work."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.extension.conftest import FOLDER, TABLES, forget_plugins

ROOT = FOLDER.parent.parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^seqloom .*$", PAGE, re.MULTILINE)
SMALL = ["--set=train.max_steps=2", "--set=train.batch_rows=8", "--set=model.width=8"]


def test_every_block_is_tested() -> None:
    assert len(PYTHON) == PAGE.count("```python")
    assert len(COMMANDS) == 8


@pytest.mark.parametrize(
    ("path", "text"),
    [block for block in PYTHON if "/" in block[0]],
    ids=lambda value: value.split("\n")[0],
)
def test_what_is_quoted_stands_in_the_file(path: str, text: str) -> None:
    file = (ROOT / path).read_text("utf-8")
    for chunk in text.split("# ...\n"):
        assert chunk in file


def test_the_commands_and_scripts_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    for name, text in PYTHON:
        if "/" not in name:
            Path(name).write_text(text)
    Path("book.txt").write_text(
        "".join(f"the {a} sees the {b}\n" for a in "abcdefghijklm" for b in "nopqrstuvwxyz")
    )
    Path("pairs.tsv").write_text(
        "source\ttarget\n" + "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "stuvwxyz")
    )
    nothing_loaded = [dict(table) for table in TABLES]
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        ran = command(*words, *(SMALL if words[0] == "train" else []))
        assert ran.code == 0, f"{line}\n{ran.err}"
        forget_plugins(nothing_loaded)
    exec(compile(Path("test_mine.py").read_text(), "test_mine.py", "exec"), {})
