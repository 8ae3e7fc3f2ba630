"""Whether pre-training pays: fine-tuning from a pre-trained model beside the same model with random weights.

    python -m benchmarks.pretraining PRETRAINED NAME=FOLDER/PREFIX:METRIC ... [--rates 0.0003 0.001 0.003]
        [--epochs 10] [--seeds 3] [--threads 1] [--set train.relative_rate=true]

PRETRAINED is a run folder, such as one of `seqloom train denoising`. Each data set is three files of pairs,
PREFIX.train.tsv, PREFIX.val.tsv and PREFIX.test.tsv, and the measure to report: exact_match (for labels as
text), bleu, rouge1, ... Both sides have the same tokenizer, sizes, recipe and order of batches. Each takes
the learning rate, of those given, with the best loss on the validation pairs with the first seed; the
difference on the test pairs is paired by seed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import seqloom
from benchmarks import report
from benchmarks.trainings import train
from seqloom.evaluation.significance import mean_interval
from seqloom.models import model_family
from seqloom.runs.run_folder import load_run
from seqloom.runs.settings import read_resumed
from seqloom.runs.write_run import write_finished_run

SIDES = ("from scratch", "pre-trained")


class DataSet(NamedTuple):
    name: str
    prefix: str
    metric: str

    @classmethod
    def parse(cls, text: str) -> DataSet:
        name, _, rest = text.partition("=")
        prefix, _, metric = rest.rpartition(":")
        return cls(name, prefix, metric)

    def file(self, part: str) -> str:
        return f"{self.prefix}.{part}.tsv"


class Recipe(NamedTuple):
    epochs: float
    threads: int
    dtype: str
    settings: Sequence[str]
    """Others, as `--set` has them."""


def with_random_weights(pretrained: Path, folder: Path, seed: int) -> None:
    """A run folder as the pre-trained one, with the weights of a new model."""
    run = load_run(pretrained)
    torch.manual_seed(seed)
    new = model_family(run.model_type)[1](run.model.config)
    folder.mkdir()
    write_finished_run(folder, read_resumed(pretrained), new, run.tokenizer, [], None)


def fine_tuned(
    start: Path, data: DataSet, rate: float, seed: int, recipe: Recipe, folder: Path
) -> float:
    """Trains from a folder into a new one; the loss on the validation pairs."""
    result = train(
        "text2text-generation",
        [data.file("train")],
        output_dir=folder,
        validation=[data.file("val")],
        start=start,
        settings=[
            *(f"train.learning_rate={rate}", f"train.epochs={recipe.epochs}", f"train.seed={seed}"),
            *(f"train.threads={recipe.threads}", f"train.dtype={recipe.dtype}", "train.device=cpu"),
            *("train.batch_tokens=2048", "evaluate.bleu_tokenizer=13a", *recipe.settings),
        ],
    )
    return result.metrics["loss"]


def scores(
    starts: dict[str, Path], data: DataSet, rates: Sequence[float], seeds: int, recipe: Recipe
) -> dict[str, list[float]]:
    """Of both sides the measure on the test pairs, seed by seed."""
    found: dict[str, list[float]] = {}
    for side, start in starts.items():
        with tempfile.TemporaryDirectory() as place:
            losses = {}
            for rate in rates:
                losses[rate] = fine_tuned(start, data, rate, 0, recipe, Path(place) / str(rate))
            best = min(losses, key=losses.__getitem__)
            tried = ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in losses.items())
            print(f"{data.name}, {side}: validation loss by rate {tried}", flush=True)
            found[side] = []
            for seed in range(seeds):
                folder = Path(place) / (str(best) if seed == 0 else f"seed-{seed}")
                if seed:
                    fine_tuned(start, data, best, seed, recipe, folder)
                metrics = seqloom.load(folder).evaluate([data.file("test")]).metrics
                found[side].append(float(metrics[data.metric]))
                print(f"{data.name}, {side}, seed {seed}: {found[side][-1]:.2f}", flush=True)
    return found


def row(data: DataSet, found: dict[str, list[float]]) -> list[str]:
    """A line of the table: both sides, and the difference."""
    scratch, pretrained = (found[side] for side in SIDES)
    gains = [after - before for before, after in zip(scratch, pretrained, strict=True)]
    cells = [
        f"{one.mean:.1f} ({one.low:.1f} to {one.high:.1f})"
        for one in map(mean_interval, (scratch, pretrained, gains))
    ]
    return [data.name, data.metric, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pretrained", type=Path)
    parser.add_argument("data", nargs="+", type=DataSet.parse, metavar="NAME=PREFIX:METRIC")
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    recipe = Recipe(given.epochs, given.threads, given.dtype, given.set)
    with tempfile.TemporaryDirectory() as place:
        random = Path(place) / "random"
        with_random_weights(given.pretrained, random, seed=0)
        starts = dict(zip(SIDES, (random, given.pretrained), strict=True))
        rows = [
            row(data, scores(starts, data, given.rates, given.seeds, recipe)) for data in given.data
        ]
    header = ["data", "measure", *SIDES, "difference (95 % over seeds)"]
    print(report.table(header, rows))


if __name__ == "__main__":
    main()
