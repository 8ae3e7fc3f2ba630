"""One text-to-text model for four tasks beside one for each, with the same number of steps in all.

    python -m benchmarks.task_mixture DATA OUT [--model t5:small] [--from RUN] [--steps 1600] [--set KEY=X]

DATA has the folders trec, stsb, e2e_nlg and multi30k as their sources ship them. The mixture is trained for
`--steps`, a model of one task for a quarter of them, with the same settings: examples in proportion of
min(examples, 6,000)^(1/2), the checkpoint with the best score on held-out data, greedy decoding. All are
measured on the test files. OUT keeps the run folders and `table.md`; what is there already is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.trainings import train
from seqloom.tasks.model import load

MAIN = {"trec": "accuracy", "stsb": "spearman", "e2e": "bleu", "multi30k": "bleu"}
STSB = {
    "format": "tsv",
    "header": False,
    "quoting": False,
    "score": "5",
    "text": "6",
    "second": "7",
}
TREC = {"format": "label_first", "label_until": ":", "encoding": "latin-1"}


def tasks_of(data: Path) -> dict[str, dict[str, Any]]:
    pairs, e2e = data / "multi30k", data / "e2e_nlg"
    stsb = [str(data / "stsb" / f"sts-{part}.csv") for part in ("train", "dev")]
    captions = {
        part: [str(pairs / f"{name}.{language}.gz") for language in ("en", "de")]
        for part, name in (("train", "train"), ("validation", "val"))
    }
    return {
        "trec": {
            "task": "text-classification",
            "prefix": "trec question: ",
            "data": {"train": [str(data / "trec" / "train.txt")], **TREC},
        },
        "stsb": {
            "task": "sentence-similarity",
            "data": {"train": stsb[:1], "validation": stsb[1:], **STSB},
        },
        "e2e": {"task": "text2text-generation", "data": {"train": [str(e2e / "devset.csv.gz")]}},
        "multi30k": {
            "task": "translation",
            "prefix": "translate English to German: ",
            "data": captions,
        },
    }


def tests_of(data: Path) -> dict[str, list[str]]:
    captions = [str(data / "multi30k" / f"test_2016_flickr.{one}.gz") for one in ("en", "de")]
    return {
        "trec": [str(data / "trec" / "test.txt")],
        "stsb": [str(data / "stsb" / "sts-test.csv")],
        "e2e": [str(data / "e2e_nlg" / "testset_w_refs.csv.gz")],
        "multi30k": captions,
    }


def trained(
    names: Sequence[str], folder: Path, steps: int, arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Task -> its metrics on the test files, of a model of these tasks."""
    tasks = tasks_of(arguments.data)
    content: dict[str, Any] = {
        "task": "text2text-generation",
        "data": {"mixing_cap": 6000, "mixing_temperature": 2},
        "train": {
            "max_steps": steps,
            "evaluate_every": steps // 2,
            "best": "score",
            "batch_tokens": 2048,
            "schedule": "cosine",
            "learning_rate": 2e-3,
        },
        "decode": {"strategy": "greedy", "max_length": 60},
        "tasks": {name: tasks[name] for name in names},
    }
    metrics = folder / "test.json"
    if metrics.exists():
        return dict(json.loads(metrics.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    model = None if arguments.start else arguments.model
    train(
        config=str(folder / "run.yaml"),
        output_dir=folder / "run",
        model=model,
        start=arguments.start,
        settings=arguments.settings,
    )
    opened = load(folder / "run", "cpu")
    found: dict[str, dict[str, float]] = {}
    for name in names:
        files = [f"{name}={path}" for path in tests_of(arguments.data)[name]]
        found[name] = opened.evaluate(files).metrics
    metrics.write_text(json.dumps(found, indent=2))
    return found


def table(together: dict[str, dict[str, float]], apart: dict[str, dict[str, float]]) -> str:
    """A line for each task, with the interval where there is one."""
    lines = [
        "| task | metric | one model for all | one for it alone |",
        "| --- | --- | --- | --- |",
    ]
    for name, metric in MAIN.items():
        cells = []
        for metrics in (together[name], apart[name]):
            share = 100 if metric == "accuracy" else 1
            cell = f"{share * metrics[metric]:.1f}"
            if f"{metric}_low" in metrics:
                low, high = (share * metrics[f"{metric}_{end}"] for end in ("low", "high"))
                cell += f" ({low:.1f} to {high:.1f})"
            cells.append(cell)
        lines.append(f"| {name} | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="t5:small")
    parser.add_argument("--from", dest="start", default=None)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args(words)
    together = trained(list(MAIN), arguments.out / "all", arguments.steps, arguments)
    apart: dict[str, dict[str, float]] = {}
    for name in MAIN:
        apart |= trained([name], arguments.out / name, arguments.steps // len(MAIN), arguments)
    result = table(together, apart)
    (arguments.out / "table.md").write_text(result)
    print(result)


if __name__ == "__main__":
    main()
