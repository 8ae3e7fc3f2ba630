"""The verb in a process of its own: from the line that says where it is to SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from seqloom.cli import main


def test_a_server_answers_until_it_is_told_to_stop(folders: dict[str, Path]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "seqloom", "serve", str(folders["labels"]), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    try:
        said = ""
        while "http://" not in said:
            said = process.stderr.readline()
            assert said, "it ended before it was there"
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None
        url = found.group()
        answer = httpx.post(url, json={"inputs": "a secret film"}, timeout=60)
        assert answer.status_code == 200
        assert httpx.post(url, json={"inputs": 5}).status_code == 400
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        # a shell shows 143
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.stderr.close()
        process.wait()
    assert "secret" not in said + rest
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "needs a folder"),
        (["{}", "--host", "0.0.0.0"], "needs a key"),
        (["{}", "--limit", "rows=0"], "rows"),
        (["{}", "--limit", "nothing=3"], "nothing"),
        (["{}", "--limit", "rows"], "NAME=NUMBER"),
        (["{}", "--port", "99999"], "cannot listen"),
        (["a=nowhere", "--port", "0"], "nowhere"),
        (["same={}", "same={}", "--port", "0"], "stands twice"),
        (["{}", "--key-file", "nowhere"], "nowhere"),
    ],
)
def test_a_server_that_cannot_be(
    arguments: list[str],
    problem: str,
    folders: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.replace("{}", str(folders["labels"])) for word in arguments]
    if "--port" not in words:
        words += ["--port", "0"]
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words])
    assert ended.value.code in (1, 2)
    error = capsys.readouterr().err
    assert problem in error
    assert len(error.strip().splitlines()) == 1
