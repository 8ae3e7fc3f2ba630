"""`seqloom serve` in a process of its own, and the command line of a campaign."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class ServerProcess(NamedTuple):
    """A server that answers."""

    process: subprocess.Popen[str]
    url: str

    @property
    def memory(self) -> int:
        """Bytes that it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0


@contextmanager
def server_process(*words: str) -> Iterator[ServerProcess]:
    """`words` are folders and options. What it says goes to our stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "seqloom", "serve", "--port", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    try:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            said = process.stderr.readline()
            if not said:
                raise RuntimeError("the server ended before it was there")
        yield ServerProcess(process, found[0])
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def numbers_parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """The options of a campaign, each a number with this default."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser


def exit_status(reports: Sequence[Mapping[str, object]], right: bool) -> int:
    """Prints each report as a line of JSON; the status is 1 where one was not as it must be."""
    for report in reports:
        print(json.dumps(report))
    return int(not right)
