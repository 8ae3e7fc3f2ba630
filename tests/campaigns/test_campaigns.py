"""The campaigns in a small form; they can be run at any size by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.campaigns import attributions

ROOT = Path(__file__).parents[2]


def campaign(name: str, *words: str) -> list[dict[str, Any]]:
    """The lines of JSON that a campaign prints. In a process of its own, since it forks."""
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.campaigns.{name}", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_commands_that_are_killed_can_be_given_again() -> None:
    reports = campaign("kills", "import", "import-arpa", "export", "ensemble", "fit", "--every=29")
    assert [report["verb"] for report in reports] == [
        *("import", "import-arpa", "export", "ensemble", "fit"),
    ]
    for report in reports:
        assert report["recovered"] == report["kills"] >= 2


def test_damaged_files_are_found_or_do_no_harm() -> None:
    (report,) = campaign("damaged_files", "gpt", "ngram", "--trials=24")
    assert report["right"] == report["trials"] == 24
    assert report["refused"] > 6


def test_attributions_are_measured(tmp_path: Path) -> None:
    """In this process, on a stored classifier that has hardly been trained: it runs, and says all numbers."""
    texts = ["a good film , warm and bright .", "a bad film , dull and cold ."]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(f'"{text}"' for text in texts))
    run = ROOT / "tests" / "fixtures" / "runs" / "labels-convolution"
    found = attributions.main([str(run), str(tmp_path / "texts.csv")])
    assert found["texts"] == 2
    for method in ("random", "leave-one-out", "integrated-gradients"):
        assert -1 < found[f"comprehensiveness {method}"] < 1
