"""Records what seqloom does for its users, so that two versions can be compared.

    python tests/recorded/record.py OUT_DIR [--python PYTHON] [--jobs 2] [--only CHAIN] [--processes]
    python tests/recorded/compare.py BEFORE AFTER

It makes its own data (`toy_data.py`), runs every verb on every task and family of models with tiny sizes
(`commands.py`), and then many wrong inputs (`bad_inputs.py`). It knows the command line only, so that
the same files record an old and a new version: PYTHON is an interpreter that finds the seqloom to be recorded
(PYTHONPATH is handed on). Commands are forks of a process that has loaded the libraries (`fork_server.py`),
which takes half the time; --processes starts Python for each.

    OUT_DIR/work/CHAIN/         where the commands of a chain ran, one after the other
    OUT_DIR/results/NNN-NAME/   command.txt, stdin.txt, exit-code.txt, stdout.txt, stderr.txt of one command
    OUT_DIR/files.json          each file that was made -> the SHA-256 of its normalised content
    OUT_DIR/texts/              the normalised content itself, for compare.py to show what differs

Normalised: what differs between two runs of one version is taken out, that is times, versions, memory, the
path of OUT_DIR, and hashes of files that hold such things. Weights are written as a list of tensors with a
hash each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.recorded.bad_inputs import BAD, SETUP
from tests.recorded.commands import CHAINS, Command
from tests.recorded.toy_data import write_data

TIMED = re.compile(
    r"second|minute|memory|version|kernels|threads|hostname|latency|^pace$|^time$|_mib$"
)
"""Keys of JSON whose values differ from run to run, or from machine to machine."""
TIMED_ROW = re.compile(r"^( *(?:seconds|minutes|memory)\b[^│]*│).*$")
"""A row of a table for people with such a value."""
PROGRESS = re.compile(r"^[\d,]+ \w+ (tokenised|read)$")
"""A notice that comes where something takes long."""
CHARTS_OF_TIMES = ("leaderboard.png", "leaderboard.svg", "leaderboard.html")
"""Pictures in which measured times are drawn: that they are there is recorded, not what they show."""
LEFT_OUT = (".seqloom-cache", "data", "__pycache__")
"""Folders whose files are not compared."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "400",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "default",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
}
TEXTS = (
    ".json",
    ".jsonl",
    ".yaml",
    ".md",
    ".txt",
    ".tsv",
    ".csv",
    ".arpa",
    ".svg",
    ".html",
    ".model",
)


@dataclass(frozen=True)
class Task:
    """One command with the place that it takes in the recording."""

    number: int
    chain: str
    command: Command


class Recorder:
    """Runs commands with one version of seqloom and keeps what they say and make."""

    def __init__(self, out: Path, python: str, forks: bool) -> None:
        self.out, self.python, self.forks = out, python, forks
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("SEQLOOM")
        }
        self.environment |= ENVIRONMENT
        if "PYTHONPATH" in os.environ:
            self.environment["PYTHONPATH"] = os.path.abspath(os.environ["PYTHONPATH"])

    def run_chain(self, tasks: Sequence[Task]) -> None:
        """The commands of a chain, in their own folder with their own data."""
        work = self.out / "work" / tasks[0].chain
        work.mkdir(parents=True)
        write_data(work / "data")
        server = None
        if self.forks:
            script = str(Path(__file__).resolve().with_name("fork_server.py"))
            server = subprocess.Popen(
                [self.python, script],
                env=self.environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        for task in tasks:
            self.run(task, work, server)
        if server is not None:
            server.communicate()

    def run(self, task: Task, work: Path, server: subprocess.Popen[str] | None) -> None:
        """One command, and what it said."""
        command = task.command
        if command.prepare is not None:
            command.prepare(work)
        place = self.out / "results" / f"{task.number:03d}-{command.name}"
        place.mkdir(parents=True)
        (place / "command.txt").write_text("seqloom " + shlex.join(command.words) + "\n", "utf-8")
        said = {name: place / f"{name}.txt" for name in ("stdin", "stdout", "stderr")}
        said["stdin"].write_bytes(command.stdin)
        words = [self.python, "-m", "seqloom", *command.words]
        began = time.monotonic()
        if command.interrupt is not None:
            code = self._interrupted(words, work, command.interrupt)
        elif server is not None and server.stdin is not None and server.stdout is not None:
            names = {name: str(path) for name, path in said.items()}
            server.stdin.write(
                json.dumps({"words": command.words, "cwd": str(work), **names}) + "\n"
            )
            server.stdin.flush()
            code = int(server.stdout.readline())
        else:
            with (
                said["stdin"].open("rb") as read,
                said["stdout"].open("wb") as out,
                said["stderr"].open("wb") as err,
            ):
                code = subprocess.run(
                    words,
                    cwd=work,
                    env=self.environment,
                    stdin=read,
                    stdout=out,
                    stderr=err,
                    timeout=300,
                    check=False,
                ).returncode
        taken = time.monotonic() - began
        (place / "exit-code.txt").write_text(f"{code}\n", "utf-8")
        for name in ("stdout", "stderr"):
            content = said[name].read_bytes() if said[name].exists() else b""
            said[name].write_text(self.normalised(content), "utf-8")
        wrong = "" if bool(code) == command.fails else "   <- not expected"
        print(f"{task.number:03d} {command.name}: exit {code}, {taken:.1f} s{wrong}", flush=True)

    def _interrupted(self, words: list[str], work: Path, pattern: str) -> int:
        """The exit code of a command that gets Ctrl-C as soon as a file of this pattern is there."""
        process = subprocess.Popen(
            words,
            cwd=work,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until and not list(work.glob(pattern)):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    def normalised(self, content: bytes) -> str:
        """Output of a command without times and without the path of OUT_DIR."""
        text = self._placed(content.decode("utf-8", "backslashreplace"))
        table = "┃" in text
        lines = []
        for line in text.split("\n"):
            if table:  # as wide as the paths in it
                line = re.sub(r"━+", "━", re.sub(r" +", " ", line)).rstrip()
            if line.startswith(("{", "[")):
                try:
                    lines.append(json.dumps(_untimed(json.loads(line)), ensure_ascii=False))
                    continue
                except ValueError:
                    pass
            if PROGRESS.match(line):
                continue
            line = TIMED_ROW.sub(r"\1 <LEFT OUT>", line)
            lines.append(
                re.sub(r"\b[\d,.]+ (s|ms|seconds|minutes|tokens/s|MiB)\b", r"<N> \1", line)
            )
        return "\n".join(lines)

    def _placed(self, text: str) -> str:
        return text.replace(str(self.out), "<OUT>").replace(str(self.out.resolve()), "<OUT>")

    def write_files(self) -> None:
        """files.json and texts/: what all commands together have made."""
        listed = {}
        for path in _made(self.out / "work"):
            name = path.relative_to(self.out / "work").as_posix()
            text = self.file_text(path)
            content = path.read_bytes() if text is None else text.encode()
            listed[name] = hashlib.sha256(content).hexdigest()
            if text is not None:
                place = self.out / "texts" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        (self.out / "files.json").write_text(json.dumps(listed, indent=1) + "\n", "utf-8")

    def file_text(self, path: Path) -> str | None:
        """A file as text that is the same in two runs of one version; None for a file of bytes."""
        if path.name in CHARTS_OF_TIMES:
            return "<LEFT OUT>\n"
        if path.suffix == ".safetensors":
            return _tensors(path.read_bytes())
        if path.suffix not in TEXTS and "." in path.name:
            return None
        try:
            text = self._placed(path.read_text("utf-8"))
        except UnicodeDecodeError:
            return None
        if path.name == "leaderboard.csv":
            return _untimed_table(text)
        if path.name == "manifest.json":
            return json.dumps(_unhashed(json.loads(text)), indent=1)
        if path.suffix == ".json":
            return json.dumps(_untimed(json.loads(text)), indent=1, ensure_ascii=False)
        if path.suffix == ".jsonl":
            return "".join(
                json.dumps(_untimed(json.loads(line)), ensure_ascii=False) + "\n"
                for line in text.splitlines()
            )
        return re.sub(r"(with seqloom) [\d.]+", r"\1 <VERSION>", text)


def _made(work: Path) -> Iterator[Path]:
    """The files that the commands made; those of wrong inputs aside."""
    for path in sorted(work.rglob("*")):
        parts = path.relative_to(work).parts
        if (
            path.is_file()
            and path.name != ".lock"
            and not set(parts) & set(LEFT_OUT)
            and parts[0] != "bad"
        ):
            yield path


def _untimed(content: Any) -> Any:
    """JSON without what differs from run to run."""
    if isinstance(content, dict):
        return {
            key: "<LEFT OUT>" if TIMED.search(key) else _untimed(value)
            for key, value in content.items()
        }
    return [_untimed(item) for item in content] if isinstance(content, list) else content


def _untimed_table(text: str) -> str:
    """A table in CSV without the columns that differ from run to run."""
    rows = [line.split(",") for line in text.splitlines()]
    kept = [at for at, name in enumerate(rows[0]) if not TIMED.search(name)]
    return "".join(",".join(row[at] for at in kept if at < len(row)) + "\n" for row in rows)


def _unhashed(content: Any) -> Any:
    """A manifest without the sizes and hashes: the files themselves are compared."""
    if isinstance(content, dict):
        return {
            key: _unhashed(value)
            for key, value in content.items()
            if key not in ("bytes", "sha256", "check")
        }
    return [_unhashed(item) for item in content] if isinstance(content, list) else content


def _tensors(content: bytes) -> str:
    """A line for each tensor of a safetensors file: name, type, shape, hash."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    body = content[8 + length :]
    lines = [f"metadata {json.dumps(header.pop('__metadata__', None), sort_keys=True)}"]
    for name, one in sorted(header.items()):
        begin, end = one["data_offsets"]
        lines.append(
            f"{name} {one['dtype']} {one['shape']} {hashlib.sha256(body[begin:end]).hexdigest()[:16]}"
        )
    return "\n".join(lines) + "\n"


def tasks_of(only: str | None) -> list[list[Task]]:
    """All commands, numbered, in chains that depend on nothing but themselves."""
    chains: dict[str, list[Command]] = {**CHAINS, "bad": [*SETUP, *BAD]}
    numbered: list[list[Task]] = []
    number = 0
    for chain, commands in chains.items():
        tasks = [Task(number + at, chain, command) for at, command in enumerate(commands, start=1)]
        number += len(commands)
        if only is None or only == chain:
            numbered.append(tasks)
    return numbered


def main() -> None:
    parser = argparse.ArgumentParser(description="Records what seqloom does for its users.")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that finds the seqloom to record"
    )
    parser.add_argument("--jobs", type=int, default=1, help="chains of commands that run at a time")
    parser.add_argument("--only", help="one chain only")
    parser.add_argument(
        "--processes", action="store_true", help="start Python anew for each command"
    )
    given = parser.parse_args()
    out = given.out.absolute()
    if out.exists():
        sys.exit(f"{out} is there already; name a new folder")
    python = shutil.which(given.python)
    if python is None:
        sys.exit(f"there is no {given.python}")
    began = time.monotonic()
    recorder = Recorder(out, os.path.abspath(python), not given.processes)
    chains = tasks_of(given.only)
    run: Callable[[list[Task]], None] = recorder.run_chain
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run, sorted(chains, key=len, reverse=True)))
    recorder.write_files()
    count = sum(len(tasks) for tasks in chains)
    print(f"{count} commands in {time.monotonic() - began:.0f} s; the recording is in {out}")


if __name__ == "__main__":
    main()
