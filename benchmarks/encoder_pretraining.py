"""Whether pre-training an encoder pays: pre-trained runs, fine-tuned beside models with random weights.

    python -m benchmarks.encoder_pretraining DATA RESULTS NAME=RUN ... [--sets trec rte] [--sizes few all]
        [--few 500] [--rates 0.0002 0.001] [--seeds 3] [--steps 400 1200] [--threads 1] [--set head.dropout=0]
        [--chart pretraining.svg]

DATA has the folders trec, mr_polarity, rte and ud_english_ewt (`benchmarks/encoder_data.py`). Of each RUN,
set and size both sides have the same tokenizer, sizes, recipe and order of batches, and each takes the
learning rate with the best accuracy on the held-out part with the first seed. The score is the accuracy on
the test part, the difference is paired by seed.

RESULTS is a file to which each training adds a line as it ends, so that the same command goes on where it was
stopped; with another recipe name another file. The table and the chart are of all that is there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import seqloom
from benchmarks import report
from benchmarks.encoder_data import SETS, LabelledSet, prepared
from benchmarks.pretraining import SIDES, with_random_weights
from benchmarks.trainings import train
from seqloom.evaluation.significance import mean_interval
from seqloom.explaining.charts import save_chart
from seqloom.explaining.leaderboard import RankedModel, leaderboard_chart
from seqloom.protocols import context_of
from seqloom.runs.run_folder import load_run

SIZES = ("few", "all")
LONGEST = 128


class Cell(NamedTuple):
    """What is measured over several seeds."""

    set: str
    size: str
    model: str
    side: str


class Trained(NamedTuple):
    """One training: a line of RESULTS."""

    cell: Cell
    seed: int
    rate: float
    examples: int
    validation: float
    test: float
    """Accuracy in percent, as that of the validation."""
    seconds: float


class Recipe(NamedTuple):
    rates: Sequence[float]
    seeds: int
    steps: dict[str, int]
    """Of each size."""
    threads: int
    settings: Sequence[str]
    """Others, as `--set` has them."""


class Results:
    """The file of what was trained."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[tuple[Cell, int, float], Trained]()
        lines = path.read_text("utf-8").split("\n") if path.exists() else []
        # what was being written when the run was killed has no end of line
        for line in lines[:-1]:
            content = json.loads(line)
            self._keep(Trained(Cell(*content.pop("cell")), **content))
        if lines and lines[-1]:
            path.write_text("".join(f"{line}\n" for line in lines[:-1]), "utf-8")

    def _keep(self, one: Trained) -> None:
        self.known[one.cell, one.seed, one.rate] = one

    def add(self, one: Trained) -> None:
        self._keep(one)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one._asdict()) + "\n")

    def chosen(self, cell: Cell) -> list[Trained]:
        """With the rate that was best with the first seed, seed by seed."""
        first = [one for one in self.known.values() if one.cell == cell and one.seed == 0]
        if not first:
            return []
        rate = max(first, key=lambda one: one.validation).rate
        found = [one for one in self.known.values() if one.cell == cell and one.rate == rate]
        return sorted(found, key=lambda one: one.seed)


def fine_tuned(
    start: Path, data: LabelledSet, cell: Cell, seed: int, rate: float, recipe: Recipe
) -> Trained:
    examples = {"few": data.few, "all": data.all}[cell.size]
    steps = recipe.steps[cell.size]
    # tags are read in windows, of a longer text the beginning
    cut = (f"data.max_length={longest(start)}",) if data.task == "text-classification" else ()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        result = train(
            data.task,
            [str(examples)],
            output_dir=Path(place) / "run",
            validation=[str(data.validation)],
            start=start,
            settings=[
                *(f"train.learning_rate={rate}", f"train.seed={seed}", f"train.max_steps={steps}"),
                *("train.best=accuracy", f"train.evaluate_every={max(steps // 8, 1)}"),
                *("train.batch_rows=32", "train.device=cpu", f"train.threads={recipe.threads}"),
                *(*data.settings, *cut, *recipe.settings),
            ],
        )
        seconds = time.perf_counter() - began
        measured = seqloom.load(Path(place) / "run").evaluate([str(data.test)]).metrics
    content = examples.read_text("utf-8")
    count = content.count("\n\n") if examples.suffix == ".conllu" else content.count("\n") - 1
    accuracies = (_percent(result.metrics["accuracy"]), _percent(measured["accuracy"]))
    return Trained(cell, seed, rate, count, *accuracies, seconds)


def longest(start: Path) -> int:
    """Tokens of a text at most: as many as its model reads, or LONGEST."""
    return min(context_of(load_run(start, "cpu").model) or LONGEST, LONGEST)


def _percent(share: float) -> float:
    """Texts are measured in shares, tags in percent."""
    return 100 * share if share <= 1 else share


def measure(
    models: dict[str, Path], sets: Sequence[LabelledSet], sizes: Sequence[str], recipe: Recipe,
    results: Results,
) -> None:  # fmt: skip
    """Trains what is not in the results yet."""
    with tempfile.TemporaryDirectory() as place:
        for data in sets:
            for size in sizes:
                for name, pretrained in models.items():
                    random = Path(place) / name
                    if not random.exists():
                        with_random_weights(pretrained, random, seed=0)
                    for side, start in zip(SIDES, (random, pretrained), strict=True):
                        _measure_cell(
                            Cell(data.name, size, name, side), start, data, recipe, results
                        )


def _measure_cell(
    cell: Cell, start: Path, data: LabelledSet, recipe: Recipe, results: Results
) -> None:
    def ensure(seed: int, rate: float) -> None:
        if (cell, seed, rate) not in results.known:
            one = fine_tuned(start, data, cell, seed, rate, recipe)
            results.add(one)
            print(f"{', '.join(cell)}, seed {seed}, rate {rate:g}: {one.test:.1f}", flush=True)

    for rate in recipe.rates:
        ensure(0, rate)
    best = results.chosen(cell)[0].rate
    for seed in range(1, recipe.seeds):
        ensure(seed, best)


class Gain(NamedTuple):
    """A model on one set and size: both sides with the seeds that both have."""

    set: str
    examples: int
    model: str
    scratch: list[float]
    pretrained: list[float]
    seconds: float
    """Of a fine-tuning."""

    @property
    def differences(self) -> list[float]:
        pairs = zip(self.scratch, self.pretrained, strict=True)
        return [after - before for before, after in pairs]


def gains(results: Results) -> list[Gain]:
    """In the order of the file."""
    found = []
    for cell in dict.fromkeys(one.cell for one in results.known.values()):
        if cell.side != SIDES[1]:
            continue
        scratch, pretrained = (results.chosen(cell._replace(side=side)) for side in SIDES)
        both = min(len(scratch), len(pretrained))
        if both:
            found.append(
                Gain(
                    cell.set,
                    pretrained[0].examples,
                    cell.model,
                    [one.test for one in scratch[:both]],
                    [one.test for one in pretrained[:both]],
                    sum(one.seconds for one in pretrained) / len(pretrained),
                )
            )
    return found


def table(found: Sequence[Gain]) -> str:
    rows = []
    for one in found:
        cells = [_interval(values) for values in (one.scratch, one.pretrained, one.differences)]
        rows.append([one.set, f"{one.examples:,}", one.model, *cells])
    header = ["data", "examples", "model", *SIDES, "difference (95 % over seeds)"]
    return report.table(header, rows)


def _interval(values: Sequence[float]) -> str:
    """One seed has no interval."""
    one = mean_interval(values)
    return f"{one.mean:.1f}" + (f" ({one.low:.1f} to {one.high:.1f})" if len(values) > 1 else "")


def draw(found: Sequence[Gain], path: Path) -> None:
    """What pre-training adds, in points of accuracy, as `compare` draws models."""
    models = []
    for one in found:
        mean, several = mean_interval(one.differences), len(one.differences) > 1
        low, high = (mean.low, mean.high) if several else (mean.mean, mean.mean)
        name = f"{one.set}, {one.examples:,}: {one.model}"
        models.append(RankedModel(name, mean.mean, low, high, one.seconds))
    seeds = min(len(one.scratch) for one in found)
    chart = leaderboard_chart(
        models,
        score="points of accuracy that pre-training adds",
        title="Fine-tuned from pre-trained and from random weights",
        subtitle=f"test part, {seeds} seeds; bars: 95 % intervals of the paired difference",
    )
    save_chart(chart, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("runs", nargs="*", metavar="NAME=RUN")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-4, 1e-3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", nargs=2, type=int, default=[400, 1200], metavar=("FEW", "ALL"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--chart", type=Path)
    given = parser.parse_args(arguments)
    steps = dict(zip(SIZES, given.steps, strict=True))
    recipe = Recipe(given.rates, given.seeds, steps, given.threads, given.set)
    results = Results(given.results)
    models = {name: Path(run) for name, _, run in (one.partition("=") for one in given.runs)}
    with tempfile.TemporaryDirectory() as place:
        sets = prepared(given.sets, given.data, Path(place), given.few)
        measure(models, sets, given.sizes, recipe, results)
    found = gains(results)
    print(table(found))
    if given.chart is not None and found:
        draw(found, given.chart)


if __name__ == "__main__":
    main()
