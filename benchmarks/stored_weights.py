"""How much of a disk and of memory a GPT of 124 million weights takes with its weights in fewer bits, and how
soon it writes.

    python -m benchmarks.stored_weights [FOLDER]

The model is GPT-2's size with random weights. Each line is a process of its own that opens a folder and
writes 64 tokens: its private memory (RssAnon) grows by so much from before the folder is opened. FOLDER keeps
the run folders; without it they are temporary.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.runs.write_run import write_finished_run
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.stored_weights import export_stored

VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT, NEW = 50_257, 768, 12, 12, 1024, 64
CASES = (("float32", "float32"), ("float32", "int8"), ("bfloat16", "bfloat16"), ("int8", "int8"))
"""The weights in the folder, and those in decoding."""


def write_folders(place: Path) -> None:
    words = " ".join(f"w{number}" for number in range(2 * VOCABULARY))
    tokenizer = train_tokenizer([words], "words", VOCABULARY)
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            context=CONTEXT,
            width=WIDTH,
            layers=LAYERS,
            heads=HEADS,
        )
    ).eval()
    config = RunConfig(
        task="text-generation",
        output_dir=str(place / "float32"),
        model={"name": "gpt", "size": "small"},
        data=DataConfig(train=("none",)),
        decode=DecodeConfig(strategy="greedy"),
    )
    (place / "float32").mkdir()
    write_finished_run(place / "float32", config, model, tokenizer, [], None)
    for storage in ("bfloat16", "int8"):
        export_stored(str(place / "float32"), str(place / storage), storage)


def measure(folder: str, weights: str) -> None:
    """One line of JSON."""
    from seqloom.runs.run_folder import load_run
    from seqloom.tasks.language_modeling.language_model import LanguageModel

    torch.ones(10).sum()
    before, started = private_mib("RssAnon"), time.perf_counter()
    model = LanguageModel(load_run(folder))
    list(model.stream("w1 w2", max_length=1, weights=weights))
    first = time.perf_counter() - started
    texts = model.generate(["w1 w2"], max_length=NEW, min_length=NEW, weights=weights)
    found = {
        "grows by": private_mib("RssAnon") - before,
        "peak": private_mib("VmHWM"),
        "first token": first,
        "text": texts[0][0].text,
    }
    print(json.dumps(found))


def private_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"{name} must be in /proc/self/status")


def main(place: Path) -> None:
    if not (place / "int8").exists():
        write_folders(place)
    whole = (place / "float32" / "model.safetensors").stat().st_size / 2**20
    columns = ("weights, MiB", "of float32", "memory, MiB", "of float32", "peak, MiB", "first, s")
    print(f"| folder | decoding | {' | '.join(columns)} |")
    print(f"| --- | --- |{' --: |' * len(columns)}")
    for folder, weights in CASES:
        command = [
            sys.executable,
            "-m",
            "benchmarks.stored_weights",
            "--one",
            str(place / folder),
            weights,
        ]
        found = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )
        size = (place / folder / "model.safetensors").stat().st_size / 2**20
        grown = found["grows by"]
        numbers = f"{size:,.0f} | {size / whole:.2f} | {grown:,.0f} | {grown / whole:.2f}"
        ends = f"{found['peak']:,.0f} | {found['first token']:.2f}"
        print(f"| {folder} | {weights} | {numbers} | {ends} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(*sys.argv[2:])
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
