"""Whether models gain by word vectors as their first layer: with and without, paired by seed.

    python -m benchmarks.first_layer VECTORS RESULTS --labelled DATA --pairs TRAIN.en TRAIN.de TEST.en TEST.de
        --text TRAIN.txt TEST.txt [--seeds 3] [--few 500] [--threads 1]

VECTORS is a run folder of word-vectors; DATA has the folders trec and ud_english_ewt
(`benchmarks/encoder_data.py`). A classifier and a tagger (`recurrent`) are trained on `--few` and on all
examples, a language model (`recurrent_lm`) on TRAIN.txt and an encoder-decoder (`seq2seq`) on the pairs. Both
sides have the same sizes, settings, steps and order of batches; the score is that of the test part.

RESULTS gets a line as each training ends, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import seqloom
from benchmarks.encoder_data import LabelledSet, prepared
from benchmarks.report import table
from benchmarks.trainings import train
from seqloom.evaluation.significance import mean_interval
from seqloom.protocols import Request
from seqloom.tasks.word_vectors.exchange import vectors_of_run

SIDES = ("without", "with")


class Cell(NamedTuple):
    """A task and its data, the same on both sides."""

    name: str
    task: str
    model: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    metric: str
    """Of the test part."""
    settings: tuple[str, ...]


def cells(options: argparse.Namespace, out: Path, width: int) -> Iterator[Cell]:
    wide = (
        f"model.embedding_width={width}",
        "data.tokenizer=words",
        f"train.threads={options.threads}",
    )
    if options.labelled:
        for one in prepared(("trec", "ud_english_ewt"), options.labelled, out, options.few):
            yield from _labelled(one, wide)
    if options.text:
        text, test = options.text
        settings = ("train.max_steps=600", "train.evaluate_every=150", "model.tie_output=false")
        yield Cell(
            "language model", "text-generation", "recurrent_lm:tiny", (text,), (), (test,),
            "perplexity", (*wide, *settings),
        )  # fmt: skip
    if options.pairs:
        source, target, *test = options.pairs
        settings = ("train.max_steps=500", "train.evaluate_every=250", "data.vocabulary=10000")
        yield Cell(
            "translation", "translation", "seq2seq:small", (source, target), (), tuple(test),
            "bleu", (*wide, *settings),
        )  # fmt: skip


def _labelled(one: LabelledSet, wide: Sequence[str]) -> Iterator[Cell]:
    for size, examples, steps in (("few", one.few, 400), ("all", one.all, 1200)):
        settings = (f"train.max_steps={steps}", f"train.evaluate_every={steps // 8}")
        yield Cell(
            f"{one.name}, {size}", one.task, "recurrent:small", (str(examples),),
            (str(one.validation),), (str(one.test),), "accuracy",
            (*wide, *settings, *one.settings, "train.batch_rows=32", "train.best=accuracy"),
        )  # fmt: skip


def score(cell: Cell, vectors: Path | None, seed: int) -> float:
    begin = [] if vectors is None else [f"train.word_vectors={vectors}"]
    with tempfile.TemporaryDirectory() as place:
        train(
            cell.task,
            cell.train,
            output_dir=Path(place) / "run",
            model=cell.model,
            validation=cell.validation,
            settings=[*cell.settings, *begin, f"train.seed={seed}"],
        )
        decode = {"beam": 5} if cell.metric == "bleu" else {}
        measured = seqloom.load(Path(place) / "run").evaluate(cell.test, Request(decode=decode))
    return float(measured.metrics[cell.metric])


Scores = dict[tuple[str, str, int], float]
"""(name of the cell, side, seed) -> the score."""


def known(path: Path) -> Scores:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {tuple(key): value for key, value in map(json.loads, lines)}


def report(found: Scores, chosen: Sequence[Cell], seeds: int) -> str:
    rows = []
    for cell in chosen:
        scale = 100 if cell.metric == "accuracy" else 1
        sides = [[scale * found[cell.name, side, seed] for seed in range(seeds)] for side in SIDES]
        differences = [after - before for before, after in zip(*sides, strict=True)]
        mean, low, high = mean_interval(differences)
        means = [f"{sum(side) / seeds:.2f}" for side in sides]
        rows.append([cell.name, cell.metric, *means, f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"])
    return table(("", "score", *SIDES, "difference, 95 %"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("vectors", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--labelled", type=Path)
    parser.add_argument("--pairs", nargs=4)
    parser.add_argument("--text", nargs=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    width = vectors_of_run(str(options.vectors)).vectors.shape[1]
    found = known(options.results)
    with tempfile.TemporaryDirectory() as place:
        chosen = list(cells(options, Path(place), width))
        for cell in chosen:
            for seed in range(options.seeds):
                for side, vectors in zip(SIDES, (None, options.vectors), strict=True):
                    key = (cell.name, side, seed)
                    if key not in found:
                        found[key] = score(cell, vectors, seed)
                        with options.results.open("a", encoding="utf-8") as file:
                            file.write(json.dumps([key, found[key]]) + "\n")
                        print(f"{cell.name}, {side}, seed {seed}: {found[key]:.2f}", flush=True)
    print(report(found, chosen, options.seeds))


if __name__ == "__main__":
    main()
