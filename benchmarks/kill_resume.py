"""Kills a real training with SIGKILL at random moments, resumes it every time, and compares it with one left
alone.

    python benchmarks/kill_resume.py [--kills 20] [--steps 800] [--seed 0] [--model seq2seq:tiny]

The model is an encoder-decoder, or one of word vectors (`word2vec`, `word2vec:cbow`, `glove`), which reads
one side of the same pairs.

Half of the kills come at any time after the start of the process, start-up included; the other half wait for
a checkpoint that is being written and come within the next milliseconds. Prints one JSON line; exit code 1
where the two runs differ in a single bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seqloom.data.synthetic.pairs import reverse_task
from seqloom.manifest import MANIFEST
from seqloom.training.checkpoints import checkpoints
from seqloom.version import VERSION

SETTINGS = {
    "translation": (
        "data.tokenizer=characters",
        "train.batch_rows=16",
        "train.log_every=7",
        "train.threads=1",
        "model.dropout=0.2",
    ),
    "word-vectors": (
        "data.tokenizer=whitespace",
        "train.batch_tokens=300",
        "train.log_every=7",
        "train.threads=1",
    ),
}
SAVE_EVERY = 10


class Training(NamedTuple):
    """What is trained, and for how long."""

    model: str
    steps: int

    @property
    def task(self) -> str:
        return "word-vectors" if self.model.startswith(("word2vec", "glove")) else "translation"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="seq2seq:tiny")
    arguments = parser.parse_args()
    training = Training(arguments.model, arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), training, arguments.kills, random.Random(arguments.seed))
    print(json.dumps(report))
    return 0 if report["same_bits"] else 1


def measure(place: Path, training: Training, kills: int, rng: random.Random) -> dict[str, Any]:
    """Two runs, one left alone and one killed, as a report."""
    for name, seed, count in (("train", 1, 3000), ("validation", 2, 100)):
        for side, texts in zip("ab", zip(*reverse_task(seed, count), strict=True), strict=True):
            # a letter is a word of word vectors
            spaced = texts if training.task == "translation" else map(" ".join, texts)
            (place / f"{name}.{side}").write_text("".join(f"{text}\n" for text in spaced))
    alone, killed = place / "alone", place / "killed"
    began = time.monotonic()
    process = start(alone, training)
    while process.poll() is None and not (alone / "checkpoint-10").exists():
        time.sleep(0.01)
    first_save = time.monotonic() - began
    if process.wait() != 0:
        raise SystemExit("the training that was left alone has failed")
    seconds_alone, began = time.monotonic() - began, time.monotonic()
    left = [
        kill(start(killed, training), killed, inside=at % 2 == 1, within=1.5 * first_save, rng=rng)
        for at in range(kills)
    ]
    if start(killed, training).wait() != 0:
        raise SystemExit("the training that was killed cannot be resumed")
    return {
        "kills": sum(one != "finished before it" for one in left),
        "inside_a_save": left.count("inside a save"),
        "between_saves": left.count("between saves"),
        "before_the_first_step": left.count("before the first step"),
        "model": training.model,
        "steps": training.steps,
        "saves": training.steps // SAVE_EVERY,
        "same_bits": outcome(alone) == outcome(killed),
        "compared": sorted(outcome(alone)),
        "seconds_alone": round(seconds_alone, 1),
        "seconds_killed": round(time.monotonic() - began, 1),
        "seconds_to_the_first_save": round(first_save, 1),
        "seqloom": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def start(folder: Path, training: Training) -> subprocess.Popen[bytes]:
    """A process that begins the run of this folder, or goes on with it."""
    if (folder / "run.yaml").exists():
        words = ["--resume", str(folder)]
    else:
        sides = "ab" if training.task == "translation" else "a"
        data, validation = (
            [str(folder.parent / f"{name}.{side}") for side in sides]
            for name in ("train", "validation")
        )
        settings = [
            *SETTINGS[training.task],
            f"train.max_steps={training.steps}",
            f"train.evaluate_every={SAVE_EVERY}",
        ]
        if training.model.startswith("word2vec"):
            # each of eight words is frequent
            settings.append("model.subsample=0")
        words = [training.task, *data, "--output-dir", str(folder), "--model", training.model]
        words += [f"--set={one}" for one in settings]
        # the loss of GloVe is that of all its text
        if training.model != "glove":
            words += ["--validation", *validation]
    return subprocess.Popen(
        [sys.executable, "-m", "seqloom", "train", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(
    process: subprocess.Popen[bytes],
    folder: Path,
    *,
    inside: bool,
    within: float,
    rng: random.Random,
) -> str:
    """Kills a process, in a save or at any time; says when that was."""
    began = time.time()
    if inside:
        while process.poll() is None and not half_saved(folder, began):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.02))
    else:
        time.sleep(rng.uniform(0, within))
    process.kill()
    if process.wait() == 0:
        return "finished before it"
    if half_saved(folder, began):
        return "inside a save"
    return "between saves" if checkpoints(folder) else "before the first step"


def half_saved(folder: Path, since: float) -> bool:
    """Whether there is half a checkpoint that was written after `since`, and not one that an earlier kill
    left."""
    for path in folder.glob("checkpoint-*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since:
                return True
    return False


def outcome(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights, of all that the last checkpoint holds, and of the metrics without times. The
    manifest is left out: it has the checksums of files that name the folder or have times."""
    last = checkpoints(folder)[0]
    held = [path for path in last.iterdir() if path.name != MANIFEST]
    paths = [folder / "model.safetensors", *held]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    untimed = json.dumps(
        [
            {key: value for key, value in line.items() if not key.endswith("_per_second")}
            for line in metrics
        ]
    )
    digests = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
    return digests | {"metrics.jsonl": hashlib.sha256(untimed.encode()).hexdigest()}


if __name__ == "__main__":
    sys.exit(main())
