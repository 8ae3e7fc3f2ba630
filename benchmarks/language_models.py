"""Language models beside each other on one text: equal sizes, equal training time, one table.

    python -m benchmarks.language_models characters TRAIN VALIDATION --minutes 4 \\
        --output docs/results/characters.json
    python -m benchmarks.language_models words TRAIN VALIDATION TEST --minutes 8 \\
        --output docs/results/words.json

Each model is trained by `seqloom train` as a user would, on one thread; a network gets so many steps as fill
the minutes of CPU time, found by short trials.
A run that is there already is not trained again, so the command can be given again after it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

TRIALS = (20, 80)
"""Steps of the two trials that tell how long a step takes."""


class Case(NamedTuple):
    """A row of the table."""

    name: str
    model: str
    settings: tuple[str, ...] = ()
    steps: int | None = None
    """Where it is not by the clock; then the cases after it have as much time."""


COMMON = ("train.threads=1", "train.log_every=100")
CHARACTERS = ("data.tokenizer=characters", "data.document=file")
WORDS = ("data.tokenizer=words", "data.vocabulary=32000", "data.document=line")

SUITES: dict[str, tuple[tuple[str, ...], list[Case]]] = {
    # about 0.8 M weights each
    "characters": (
        (*CHARACTERS, "train.weight_decay=0.1", "train.warmup_steps=100"),
        [
            Case("Kneser-Ney 3-gram", "ngram:trigram"),
            Case("Kneser-Ney 5-gram", "ngram:5gram"),
            Case("Kneser-Ney 8-gram", "ngram:5gram", ("model.order=8",)),
            Case(
                "GPT, 4 layers of 128",
                "gpt:shakespeare-char",
                ("train.batch_rows=12", "train.learning_rate=4e-3"),
                2000,
            ),
            Case(
                "LSTM, 1 layer of 384",
                "recurrent_lm:small",
                (
                    "model.embedding_width=128",
                    "model.width=384",
                    "model.layers=1",
                    "model.tie_output=false",
                    "model.dropout=0.1",
                    "train.batch_rows=16",
                    "train.window=64",
                    "train.learning_rate=3e-3",
                ),
            ),
        ],
    ),
    # about 5 M weights each, most of them the embedding, which is the output's matrix too
    "words": (
        (*WORDS, "train.weight_decay=0.05", "train.learning_rate=2e-3"),
        [
            Case("Kneser-Ney 5-gram", "ngram:5gram"),
            *(
                Case(
                    f"{label}, {width}",
                    "recurrent_lm:small",
                    (
                        f"model.cell={cell}",
                        "model.embedding_width=128",
                        f"model.width={width}",
                        "model.layers=1",
                        "model.dropout=0.3",
                        "train.window=32",
                        "train.batch_rows=32",
                    ),
                )
                for label, cell, width in (
                    ("Elman", "elman", 640),
                    ("LSTM", "lstm", 320),
                    ("MUT1", "mut1", 420),
                )
            ),
            Case(
                "GPT, 3 layers of 128",
                "gpt:small",
                (
                    "model.width=128",
                    "model.layers=3",
                    "model.heads=4",
                    "model.context=64",
                    "model.dropout=0.3",
                    "model.embedding_dropout=0.3",
                    "train.window=64",
                    "train.batch_rows=16",
                ),
            ),
        ],
    ),
    # the same LSTM with another output layer
    "outputs": (
        (
            *WORDS,
            "train.weight_decay=0.05",
            "train.learning_rate=2e-3",
            "model.embedding_width=128",
            "model.width=320",
            "model.layers=1",
            "model.dropout=0.3",
            "train.window=32",
            "train.batch_rows=32",
            "model.tie_output=false",
        ),
        [
            Case("full softmax", "recurrent_lm:small"),
            Case("adaptive softmax", "recurrent_lm:small", ("model.output=adaptive",)),
            Case(
                "sampled softmax (importance)", "recurrent_lm:small", ("model.output=importance",)
            ),
            Case("sampled softmax (BlackOut)", "recurrent_lm:small", ("model.output=blackout",)),
        ],
    ),
}


def seqloom(*words: str) -> dict[str, Any]:
    """The last line of a command's JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "seqloom", *words, "--json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def train(
    case: Case, common: tuple[str, ...], files: list[str], folder: Path, steps: int | None
) -> tuple[float, int]:
    """Trains a case into a new folder: (CPU seconds, peak memory in MiB)."""
    training, validation = files[0], files[1]
    words = [
        "train",
        "text-generation",
        training,
        "--validation",
        validation,
        "--model",
        case.model,
        "--output-dir",
        str(folder),
    ]
    settings = [*common, *case.settings, *([f"train.max_steps={steps}"] if steps else [])]
    if case.model.startswith("ngram"):  # what is read only by training with gradients is refused
        settings = [one for one in settings if re.match(r"data|model|train\.threads", one)]
    for setting in settings:
        words += ["--set", setting]
    process = subprocess.Popen(
        [sys.executable, "-m", "seqloom", *words, "--json"], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"seqloom {' '.join(words)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def seconds_a_step(case: Case, common: tuple[str, ...], files: list[str], folder: Path) -> float:
    """CPU seconds: by two trials, whose start and end cost the same."""
    seconds = []
    for steps in TRIALS:
        shutil.rmtree(folder, ignore_errors=True)
        seconds.append(train(case, (*common, "train.evaluate_every=1000"), files, folder, steps)[0])
    shutil.rmtree(folder)
    return (seconds[1] - seconds[0]) / (TRIALS[1] - TRIALS[0])


def measure(
    case: Case, common: tuple[str, ...], files: list[str], place: Path, minutes: float
) -> dict[str, Any]:
    folder = place / case.name.replace(" ", "-").replace(",", "").lower()
    kept = folder.with_suffix(".json")
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    steps, pace, settings = None, 0.0, common
    if not case.model.startswith("ngram"):
        pace = seconds_a_step(case, common, files, folder.with_suffix(".trial"))
        steps = case.steps or max(round(60 * minutes / pace), TRIALS[1])
        settings = (*common, f"train.evaluate_every={max(steps // 6, 1)}")
    seconds, memory = train(case, settings, files, folder, steps)
    weights = 0
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for side in tensor["shape"]:
                size *= side
            weights += size
    metrics = seqloom("evaluate", str(folder), files[-1])
    row = {
        "name": case.name,
        "steps": steps,
        "pace": pace,
        "seconds": seconds,
        "peak_mib": memory,
        "weights": weights,
        **metrics,
    }
    kept.write_text(json.dumps(row))
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | numbers | steps | CPU s | peak MiB | loss (nats) | perplexity | bits a byte |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [
            row["name"],
            f"{row['weights']:,}",
            f"{row['steps'] or 1:,}",
            f"{row['seconds']:.0f}",
            f"{row['peak_mib']:,}",
        ]
        for name, form in (("loss", ".3f"), ("perplexity", ".4g"), ("bits_per_byte", ".3f")):
            cells.append(
                f"{row[name]:{form}} ({row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}})"
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "files", nargs="+", help="training, validation and (by default the validation) test text"
    )
    parser.add_argument("--minutes", type=float, default=4, help="of training for each network")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/language-models"), help="where the runs go"
    )
    parser.add_argument("--output", type=Path, help="figures as JSON")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    common, cases = SUITES[given.suite]
    common = (*COMMON, *common)
    place = given.folder / given.suite
    place.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    minutes: float = given.minutes
    for case in cases:
        if given.only in case.name:
            rows.append(measure(case, common, given.files, place, minutes))
            minutes = case.steps * rows[-1]["pace"] / 60 if case.steps else minutes
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    if given.output:
        machine = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        }
        given.output.write_text(
            json.dumps(
                {
                    "command": " ".join(sys.argv),
                    "machine": machine,
                    "minutes": given.minutes,
                    "rows": rows,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
