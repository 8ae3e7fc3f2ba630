"""A training that is called from Python shows a bar in a notebook, and lines on standard error elsewhere."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from seqloom.training.loop import Progress
from seqloom.workflows.notebook import is_notebook, lines_on_standard_error, notebook_bar

PROGRAM = """
import sys
import seqloom
settings = ["train.max_steps=4", "train.log_every=2", "data.tokenizer=characters", "model.width=8"]
seqloom.train(
    "text-generation", [sys.argv[1]], output_dir=sys.argv[2], model="recurrent_lm:tiny", settings=settings
)
"""


def trained_from_python(folder: Path, set_up: str = "") -> str:
    text = folder / "text.txt"
    text.write_text("".join(f"line number {number}\n" for number in range(40)))
    command = [sys.executable, "-c", set_up + PROGRAM, str(text), str(folder / "run")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_a_program_that_set_up_no_logging_sees_the_lines_of_a_training(tmp_path: Path) -> None:
    lines = trained_from_python(tmp_path).splitlines()
    assert any(line.startswith("step 2 of 4: loss") for line in lines)
    assert any(line.startswith("step 4 of 4: validation loss") for line in lines)


def test_what_a_program_set_up_itself_is_left_alone(tmp_path: Path) -> None:
    set_up = "import logging\nlogging.getLogger('seqloom').addHandler(logging.NullHandler())\n"
    assert "step" not in trained_from_python(tmp_path, set_up)


def test_afterwards_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    package = logging.getLogger("seqloom")
    monkeypatch.setattr(package, "propagate", False)
    with lines_on_standard_error():
        assert len(package.handlers) == 1
    assert package.handlers == []


class Notebook:
    """A stand-in for IPython: what `display` was given, and what it was changed to."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, content: str, display_id: bool) -> Notebook:
        assert display_id
        self.shown.append(content)
        return self

    def update(self, content: str) -> None:
        self.shown[-1] = content


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    vars(ipython)["get_ipython"] = lambda: shell
    vars(display).update(display=found.display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_a_notebook_has_one_bar_that_moves(notebook: Notebook) -> None:
    assert is_notebook()
    show = notebook_bar()
    show(Progress(1, 2000, 3.25, 1234.5))
    assert len(notebook.shown) == 1
    assert '<progress value="1" max="2000"' in notebook.shown[0]
    assert "step 1 of 2,000: loss 3.25, 1,234 tokens/s" in notebook.shown[0]
    # too soon for a change, but the last step is always shown
    show(Progress(2, 2000, 3.0, 1234.5))
    assert "step 1 of" in notebook.shown[0]
    show(Progress(2000, 2000, 1.5, 1234.5))
    assert len(notebook.shown) == 1
    assert "step 2,000 of 2,000: loss 1.5" in notebook.shown[0]


def test_a_program_is_no_notebook() -> None:
    assert "IPython" in sys.modules or not is_notebook()


@pytest.mark.parametrize(("rank", "level"), [("0", logging.INFO), ("1", logging.WARNING)])
def test_of_several_workers_only_the_first_writes_notices(
    rank: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logging.getLogger("seqloom")
    monkeypatch.setattr(package, "propagate", False)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with lines_on_standard_error():
        assert package.level == level
