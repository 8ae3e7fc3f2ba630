"""Runs `python -m seqloom` many times and loads torch once: a process that loads the libraries and forks.

A request is a line of JSON on standard input: words, cwd, and the files of stdin, stdout and stderr. The
answer is a line with the exit code. Nothing of seqloom is loaded before a fork, so each command begins as
at a shell.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any

LIBRARIES = (
    *("numpy", "torch", "torch._dynamo", "safetensors.torch", "tokenizers", "pydantic", "cyclopts"),
    *("rich.console", "rich.table", "yaml", "sacrebleu", "huggingface_hub"),
)


def main() -> None:
    del sys.path[0]  # the folder of this file
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> None:
    """The command, in this process, which ends with it."""
    os.chdir(request["cwd"])
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (name, how) in enumerate(
        (("stdin", os.O_RDONLY), ("stdout", writing), ("stderr", writing))
    ):
        os.dup2(os.open(request[name], how, 0o644), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    sys.argv = ["seqloom", *request["words"]]
    sys.path.insert(0, request["cwd"])
    code: object = 0
    try:
        runpy.run_module("seqloom", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
    except BaseException:  # noqa: BLE001 - what Python itself would do
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
