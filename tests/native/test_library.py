"""How the compiled loops are made, and when they are left alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seqloom.native import build as building
from seqloom.native.build import SOURCES, build, built_from, kinds_here, library_path
from seqloom.native.library import OFF, library, load, missing
from seqloom.workflows.train import train

compiler = pytest.mark.skipif(
    library() is None, reason="the compiled loops need a C++ compiler when the project is installed"
)


@pytest.fixture
def fresh() -> Iterator[None]:
    """`library` asks anew, before and after."""
    library.cache_clear()
    yield
    library.cache_clear()


def copied(folder: Path) -> Path:
    for path in [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]:
        shutil.copy(path, folder)
    return folder


@compiler
def test_what_was_built_from_other_sources_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = library_path(SOURCES, torch.backends.cpu.get_cpu_capability())
    assert load(made) is not None
    monkeypatch.setattr("seqloom.native.library.SOURCES", copied(tmp_path))
    assert load(made) is not None
    (tmp_path / "cells.h").write_text((tmp_path / "cells.h").read_text() + "// changed\n")
    assert load(made) is None


def test_what_is_no_library_is_left_alone(tmp_path: Path) -> None:
    assert load(tmp_path / "missing.so") is None
    (tmp_path / "text.so").write_text("no library")
    assert load(tmp_path / "text.so") is None


@compiler
def test_another_library_is_left_alone() -> None:
    found = next(iter(sorted(Path(torch.__file__).parent.glob("lib/libtorch_global_deps.so"))))
    assert load(found) is None


@pytest.mark.usefixtures("fresh")
def test_a_variable_switches_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFF, "0")
    assert library() is None
    assert not missing()


@pytest.mark.usefixtures("fresh")
def test_who_trains_without_them_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    """And only who would have something of them."""
    monkeypatch.delenv(OFF, raising=False)
    monkeypatch.setattr("seqloom.native.library.load", lambda path: None)
    for name in ("recurrent_lm", "gpt"):
        notices.clear()
        (tmp_path / "text.txt").write_text("a few words of text\n" * 40)
        settings = ["data.tokenizer=bytes", "train.max_steps=1"]
        text, folder = str(tmp_path / "text.txt"), tmp_path / name
        train(
            "text-generation",
            [text],
            output_dir=folder,
            model=f"{name}:tiny",
            settings=settings,
        )
        assert any("python -m seqloom.native" in line for line in notices) == (
            name == "recurrent_lm"
        )


def test_each_processor_has_its_library() -> None:
    names = {
        capability: library_path(SOURCES, capability).name
        for capability in ("AVX512", "AVX2", "DEFAULT", "NO AVX")
    }
    assert names == {
        "AVX512": "recurrent-avx512.so",
        "AVX2": "recurrent-avx2.so",
        "DEFAULT": "recurrent-plain.so",
        "NO AVX": "recurrent-plain.so",
    }


def test_another_kind_of_processor_gets_no_flags_of_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert kinds_here() == ["plain"]
    assert building.KINDS["plain"] == ()


@compiler
@pytest.mark.slow
def test_a_build_makes_what_loads_without_any_special_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "kinds_here", lambda: ["plain"])
    (made,) = build(copied(tmp_path))
    assert made == tmp_path / "recurrent-plain.so"
    assert load(made) is not None
    # nothing else is left
    assert {path.suffix for path in tmp_path.iterdir()} == {
        ".h",
        ".cpp",
        ".so",
    }


def test_without_a_compiler_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        OSError, match=r"there must be a C\+\+ compiler, but neither c\+\+ nor g\+\+ was found"
    ):
        build(tmp_path)


@compiler
@pytest.mark.slow
def test_another_compiler_may_be_named_with_its_options_and_gxx_steps_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "kinds_here", lambda: ["plain"])
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nprintf '\\377 %s' \"$1\" >&2\nexit 1\n")
    broken.chmod(0o755)
    for named in ("env g++ -O1", f"{broken} --option"):
        monkeypatch.setenv("CXX", named)
        (made,) = build(copied(tmp_path))
        assert load(made) is not None
        made.unlink()
    monkeypatch.setattr(building, "FLAGS", ("--no-such-option",))
    with pytest.raises(OSError, match=r"g\+\+ must compile recurrent\.cpp"):
        build(tmp_path)


@compiler
def test_what_does_not_compile_leaves_no_library(tmp_path: Path) -> None:
    (tmp_path / "recurrent.cpp").write_text("no C++")
    with pytest.raises(OSError, match=r"must compile recurrent\.cpp, but said: .*error"):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["recurrent.cpp"]


def test_the_build_needs_nothing_installed() -> None:
    """It runs when pip has the build system alone."""
    code = f"import runpy; print(len(runpy.run_path({str(SOURCES / 'build.py')!r})['KINDS']))"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "3"


def test_a_hash_knows_every_source(tmp_path: Path) -> None:
    whole = built_from(copied(tmp_path))
    assert whole == built_from(SOURCES)
    for path in sorted(tmp_path.iterdir()):
        text = path.read_text()
        path.write_text(text + "\n")
        assert built_from(tmp_path) != whole
        path.write_text(text)
