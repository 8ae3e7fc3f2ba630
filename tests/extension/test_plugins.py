"""How plugins are named, loaded and refused, and what a run folder says about them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.extension.conftest import plugin

import seqloom
from seqloom import plugins
from seqloom.decoding.logits_processors import forbid
from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS, GRU


def test_a_registered_name_is_that_of_its_plugin() -> None:
    seqloom.load_plugin(plugin("mgu"))
    seqloom.load_plugin(plugin("mgu"))  # the second time does nothing
    seqloom.register_cell("mine", GRU)
    assert plugins.registered["cell", "mgu"] == "mgu"
    assert plugins.registered["cell", "mine"] == __name__
    assert plugins.names("cell") == ["mgu", "mine"]
    assert plugins.plugins_used({"model": {"cell": "mgu"}, "data": {"text": "mine"}}) == ["mgu"]


def test_a_plugin_that_was_imported_is_not_imported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(plugin("mgu")).parent))
    importlib.import_module("mgu")
    seqloom.load_plugin(plugin("mgu"))
    seqloom.load_plugin(plugin("mgu"))
    plugins.require_plugins(["mgu", "somewhere.mgu"], "a folder")
    with pytest.raises(
        UsageError, match=r"^a folder needs the plugin other; give it with --plugin"
    ):
        plugins.require_plugins(["mgu", "other"], "a folder")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gru", "the name of the cell must be new, but another cell is called 'gru'"),
        ("my cell", "the name of the cell must be of letters, digits, _ . and -, but is 'my cell'"),
    ],
)
def test_a_name_that_is_taken_or_no_name_is_refused(name: str, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        seqloom.register_cell(name, GRU)
    assert str(refused.value) == line
    assert name != "gru" or CELLS["gru"] == GRU()


def test_every_kind_refuses_a_name_that_is_taken() -> None:
    from torch import nn

    from seqloom.registry import find_task

    translation = find_task("translation")
    assert translation is not None
    with pytest.raises(UsageError, match="the name of the task must be new"):
        seqloom.register_task(translation)
    with pytest.raises(UsageError, match="the name of the model must be new"):
        seqloom.register_model("gpt", object, nn.Module, {"small": {}})
    with pytest.raises(UsageError, match="the name of the metric must be new"):
        seqloom.register_metric("bleu", lambda answers, references: 0.0)
    seqloom.register_objective("mine", lambda default: default)
    with pytest.raises(UsageError, match="another objective is called 'mine'"):
        seqloom.register_objective("mine", lambda default: default)
    seqloom.register_logits_processor("mine", lambda setting, tokenizer: forbid([]))
    with pytest.raises(UsageError, match="another logits processor is called 'mine'"):
        seqloom.register_logits_processor("mine", lambda setting, tokenizer: forbid([]))


def test_a_plugin_that_cannot_be_loaded_is_refused_in_one_line(
    command: Command, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    for name, reason in (
        (str(broken), "ZeroDivisionError: division by zero"),
        ("absent.module", "ModuleNotFoundError: No module named 'absent'"),
        ("", "ValueError: Empty module name"),
    ):
        ran = command("models", "--plugin", name)
        assert ran.code == 2
        assert ran.err.startswith(f"seqloom: the plugin {name} cannot be loaded ({reason}")
        assert len(ran.err.splitlines()) == 1
    ran = command("models", "--plugin", tmp_path / "absent.py")
    assert (ran.code, "absent.py: cannot be read (there is no such file" in ran.err) == (2, True)
    (tmp_path / "mgu.py").write_text("")
    ran = command("models", f"--plugin={plugin('mgu')}", "--plugin", tmp_path / "mgu.py")
    assert (ran.code, "two plugins must have two names" in ran.err) == (2, True)


def test_an_unknown_name_lists_those_of_plugins(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c\n" * 40)
    words = ["train", "text-generation", tmp_path / "t.txt", "--output-dir", tmp_path / "run"]
    words += ["--model=recurrent_lm", "--set=model.cell=gur"]
    ran = command(*words, f"--plugin={plugin('mgu')}")
    assert ran.code == 2
    assert "model.cell must be one of elman, " in ran.err
    assert "mut3, mgu, but is 'gur'" in ran.err
    assert "mgu" not in command("models", "recurrent_lm").out


def test_an_installed_plugin_is_loaded_when_a_name_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(plugin("mgu")).parent))
    entry = EntryPoint("any", "mgu", plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    plugins.load_installed.cache_clear()
    assert plugins.is_known("gru", CELLS)
    assert "mgu" not in CELLS
    assert plugins.is_known("mgu", CELLS)
    assert plugins.registered["cell", "mgu"] == "mgu"
    plugins.load_installed.cache_clear()


def test_help_imports_no_torch() -> None:
    script = (
        "import sys; from seqloom.cli import main\n"
        "try: main(['train', '--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_an_objective_is_refused_for_a_model_without_gradients(tmp_path: Path) -> None:
    seqloom.register_objective("unused", lambda default: default)
    settings = ["train.objective=unused"]
    with pytest.raises(UsageError, match=r"train\.objective changes nothing for ngram"):
        seqloom.train(
            "text-generation",
            [__file__],
            output_dir=tmp_path / "run",
            model="ngram",
            settings=settings,
        )


def test_train_refuses_keywords_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'beam'"):
        seqloom.train(resume=tmp_path, beam=4)  # type: ignore[call-arg]
