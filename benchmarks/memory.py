"""Does memory grow with the text? Peak RssAnon of tokenising and training on a text and on one ten times as
long.

    python benchmarks/memory.py SOURCE TARGET

The long text is the given one, the short one its first tenth; both are trained with the same settings for a
few steps. Prints one JSON object. RssAnon is read from /proc/PID/status (Linux).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def peak_anonymous(command: list[str]) -> int:
    """The most anonymous memory, in KiB, that a process had while it ran."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                found = re.search(
                    r"RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()
                )
            except (FileNotFoundError, ProcessLookupError):
                break
            peak = max(peak, int(found.group(1)) if found else 0)
            time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--times", type=int, default=1, help="repeat the text so often first, to make it longer"
    )
    arguments = parser.parse_args()
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in ("source", "target"):
            path = getattr(arguments, side)
            with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
                lines = file.read().splitlines(keepends=True) * arguments.times
            Path(folder, f"long.{side}").write_bytes(b"".join(lines))
            Path(folder, f"short.{side}").write_bytes(b"".join(lines[: len(lines) // 10]))
        for size in ("short", "long"):
            files = [f"{folder}/{size}.source", f"{folder}/{size}.target"]
            where = [
                "--output-dir",
                f"{folder}/run-{size}",
                "--validation",
                f"{folder}/short.source",
                f"{folder}/short.target",
            ]
            settings = [
                f"train.max_steps={arguments.steps}",
                f"train.evaluate_every={arguments.steps}",
                "data.vocabulary=4000",
            ]
            command = [
                sys.executable,
                "-m",
                "seqloom",
                "train",
                "translation",
                *files,
                "--model",
                "seq2seq:tiny",
                *where,
            ]
            result[size] = (
                peak_anonymous(
                    command + [word for setting in settings for word in ("--set", setting)]
                )
                / 1024
            )
            result[f"{size}_pairs"] = len(Path(files[0]).read_bytes().split(b"\n")) - 1
    print(json.dumps({**result, "ratio": result["long"] / result["short"], "unit": "MiB"}))


if __name__ == "__main__":
    main()
