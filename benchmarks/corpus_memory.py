"""Does memory grow with a corpus, and how fast is it read? Peak RssAnon of making its store and batches of
it, at two sizes.

    python -m benchmarks.corpus_memory TEXT [--megabytes 20 200] [--tokenizer bpe] [--document line] [--plain]
    [--model gpt:tiny]

With --model it is that of `seqloom train`, which also learns a tokenizer, trains 50 steps and validates.

The text is repeated up to each size; each line ends in a number of its own, so that there always are new
words, unless it is `--plain`. A process of its own makes the store, and batches of windows and of streams.
Prints one JSON object. RssAnon is read from /proc/PID/status (Linux).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from benchmarks.memory import peak_anonymous
from seqloom.config import DataConfig
from seqloom.data.batching.corpus_store import build_corpus
from seqloom.data.batching.corpus_windows import StreamPlan, WindowPlan, load_windows
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.readers.documents import read_documents
from seqloom.run_file import parse
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

BATCHES, WINDOW, ROWS = 500, 256, 32
LEARNED_FROM = 5_000_000
"""Characters that the tokenizer is learned from; that is not what is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--document", default="line")
    parser.add_argument("--plain", action="store_true", help="lines as they are")
    parser.add_argument("--model", help="measure a training of this model")
    parser.add_argument("--measured", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measured:
        measured(Path(arguments.measured), parse(DataConfig, {"document": arguments.document}))
        return
    opened = gzip.open if arguments.text.endswith(".gz") else open
    with opened(arguments.text, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    result: dict[str, dict[str, float]] = {}
    for size in arguments.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder, "text.txt"), lines, size * 10**6, plain=arguments.plain)
            tokenizer = train_tokenizer(
                read_start(Path(folder, "text.txt")), arguments.tokenizer, 8000
            )
            Path(folder, "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
            if arguments.model:
                write_text(Path(folder, "validation.txt"), lines, 200_000)
                began = time.perf_counter()
                peak = peak_anonymous(training(Path(folder), arguments)) / 1024
                result[f"{size} MB"] = {
                    "peak_MiB": round(peak, 1),
                    "seconds": round(time.perf_counter() - began),
                }
                continue
            child = [
                sys.executable,
                "-m",
                "benchmarks.corpus_memory",
                arguments.text,
                "--document",
                arguments.document,
            ]
            peak = peak_anonymous([*child, "--measured", folder]) / 1024
            result[f"{size} MB"] = {
                "peak_MiB": round(peak, 1),
                **json.loads(Path(folder, "result.json").read_text(encoding="utf-8")),
            }
    print(
        json.dumps(
            {"tokenizer": arguments.tokenizer, "document": arguments.document, **result}, indent=2
        )
    )


def training(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """The command that trains on `text.txt`."""
    where = [
        "--output-dir",
        str(folder / "run"),
        "--validation",
        str(folder / "validation.txt"),
        "--model",
        arguments.model,
    ]
    data = (f"data.tokenizer={arguments.tokenizer}", f"data.document={arguments.document}")
    settings = (*data, "train.max_steps=50", "train.evaluate_every=50", "train.batch_tokens=1024")
    sets = [word for setting in settings for word in ("--set", setting)]
    return [
        sys.executable,
        "-m",
        "seqloom",
        "train",
        "text-generation",
        str(folder / "text.txt"),
        *where,
        *sets,
    ]


def write_text(path: Path, lines: list[str], size: int, *, plain: bool = False) -> None:
    written = number = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                number += 1
                numbered = line.strip() and not plain
                written += file.write(f"{line} {number}\n" if numbered else f"{line}\n")


def read_start(path: Path) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read(LEARNED_FROM).split("\n")


def measured(folder: Path, data: DataConfig) -> None:
    """Runs in a process of its own: the store of `text.txt`, and batches of it; how fast that went is written
    to `result.json`."""
    text = str(folder / "text.txt")
    tokenizer = TextTokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
    began, worked = time.perf_counter(), time.process_time()
    corpus = build_corpus(
        lambda: read_documents([text], data, ReadReport()), tokenizer, {}, folder / "store"
    )
    size, wall, cpu = (
        corpus.totals.bytes / 1e6,
        time.perf_counter() - began,
        time.process_time() - worked,
    )
    speed = {
        "ids": corpus.totals.ids,
        "MB_per_second": round(size / wall, 2),
        "CPU_ms_per_MB": round(1000 * cpu / size),
    }
    for plan in (
        WindowPlan(seed=0, window=WINDOW, rows=ROWS),
        StreamPlan(seed=0, window=WINDOW, rows=ROWS),
    ):
        began, ids = time.perf_counter(), 0
        for rows in islice(plan.epoch(corpus, 0), BATCHES):
            ids += load_windows(corpus, plan, rows, rows).targets.numel()
        speed[f"{type(plan).__name__}_ids_per_second"] = round(ids / (time.perf_counter() - began))
    (folder / "result.json").write_text(json.dumps(speed), encoding="utf-8")


if __name__ == "__main__":
    main()
