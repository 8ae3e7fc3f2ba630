"""Run folders that an older version made open, answer as they did then, and can be trained on.

How they were made: `tests/fixtures/make_runs.py`.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.recorded.toy_data import write_data

from seqloom.cli import main

RUNS = Path(__file__).parent / "fixtures" / "runs"
NAMES = sorted(path.stem for path in RUNS.glob("*.json"))
MADE_AT = "/tmp/seqloom-fixtures"
"""Where their data stood, as run.yaml says."""
NEAR, NEAR_AFTER_TRAINING = 1e-4, 1e-3
"""Processors differ in the last bits of a number, and training on makes more of that."""


def test_there_are_runs() -> None:
    assert len(NAMES) > 20
    assert all((RUNS / name / "config.json").is_file() for name in NAMES)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_answers_as_it_did(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / name, run)
    write_data(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    near = NEAR
    for asked in json.loads((RUNS / f"{name}.json").read_text("utf-8")):
        if "--resume" in asked["args"]:
            settings = (run / "run.yaml").read_text("utf-8")
            (run / "run.yaml").write_text(settings.replace(MADE_AT, str(tmp_path)), "utf-8")
            near = NEAR_AFTER_TRAINING
        monkeypatch.setattr(
            "sys.stdin", io.TextIOWrapper(io.BytesIO(asked["stdin"].encode()), "utf-8")
        )
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(asked["args"])
        said = capfd.readouterr()
        assert ended.value.code == 0, said.err
        assert_alike(said.out, asked["stdout"], near)


def assert_alike(now: str, then: str, near: float) -> None:
    """Lines of JSON by their content, with numbers that are near; other lines to the letter."""
    lines, before = now.splitlines(), then.splitlines()
    assert len(lines) == len(before), now
    for line, one in zip(lines, before, strict=True):
        if one.startswith(("{", "[")):
            assert parted(json.loads(line), json.loads(one), near) == []
        else:
            assert line == one


def parted(now: Any, then: Any, near: float, where: str = "") -> list[str]:
    """Where two JSON values part; the order of keys does not count."""
    # a blank input had the score 0, as if its output were certain
    if where.endswith(".score") and (now, then) == (None, 0.0):
        return []
    if isinstance(now, dict) and isinstance(then, dict):
        # a later version may say more, never less
        missing = [f"{where}.{key} is missing" for key in sorted(then.keys() - now.keys())]
        shared = sorted(now.keys() & then.keys())
        return missing + [
            one for key in shared for one in parted(now[key], then[key], near, f"{where}.{key}")
        ]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        pairs = enumerate(zip(now, then, strict=True))
        return [one for at, (new, old) in pairs for one in parted(new, old, near, f"{where}[{at}]")]
    numbers = isinstance(now, float) or isinstance(then, float)
    same = (
        now == pytest.approx(then, rel=near, abs=1e-6)
        if numbers and then is not None
        else now == then
    )
    return [] if same else [f"{where} was {then!r} and is {now!r}"]
