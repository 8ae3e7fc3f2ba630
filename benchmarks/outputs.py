"""The output layers beside torch's: a training step of the layer alone, its speed and its memory.

    python -m benchmarks.outputs [--vocabularies 33000 100000] [--dtypes float32 bfloat16] [--rounds 3]
    [--write]

Forward and backward over 1,024 positions of width 256, targets drawn by Zipf's law; the gradients of the
states and of all weights are formed, the optimizer is not run. Memory is the growth of the process beyond
weights and inputs, at its peak (Linux only). Prints a table; with --write puts it into docs/benchmarks.md,
and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import report
from benchmarks.measuring import interleaved
from benchmarks.recurrent_memory import kibibytes
from seqloom.layers.outputs.adaptive_softmax import default_cutoffs
from seqloom.layers.outputs.kinds import OutputKind, OutputOptions, make_output
from seqloom.layers.outputs.softmax import FullOutput

POSITIONS, WIDTH, REPEATS = 1024, 256, 3
PEER = "torch: cross_entropy(linear(h))"
CHUNKED = "torch: linear_cross_entropy, chunked"
ADAPTIVE = "torch: AdaptiveLogSoftmaxWithLoss"
OURS: dict[str, OutputKind] = {f"seqloom: {kind}": kind for kind in get_args(OutputKind)}
WAYS = (PEER, CHUNKED, ADAPTIVE, *OURS)
TEXT = f"""\
Training step of the output layer alone, {POSITIONS:,} positions, width {WIDTH}, 4,096 draws where it
samples: milliseconds, times the speed of torch's plain cross-entropy ± half the range of the rounds,
and MiB of memory beyond weights and inputs."""


def zipf(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Counts of all ids by Zipf's law, the most frequent first, and targets drawn from it."""
    counts = 1e7 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return counts, torch.multinomial(counts, POSITIONS, replacement=True)


def way_of(name: str, vocabulary: int, dtype: str) -> Callable[[], None]:
    """A training step: the states and all weights get a gradient."""
    torch.manual_seed(0)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    counts, targets = zipf(vocabulary)
    layer, loss = layer_of(name, vocabulary, counts)
    learned = [hidden, *layer.parameters()]

    def run() -> None:
        for one in learned:
            one.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            total = loss(hidden, targets)
        torch.autograd.backward(total)

    return run


def layer_of(
    name: str, vocabulary: int, counts: Tensor
) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    if name in OURS:
        ours = make_output(OutputOptions(OURS[name]), WIDTH, vocabulary)
        if not isinstance(ours, FullOutput):
            ours.set_counts(counts)
        return ours, lambda hidden, targets: ours.loss(hidden, targets).total
    if name == ADAPTIVE:
        adaptive = nn.AdaptiveLogSoftmaxWithLoss(
            WIDTH, vocabulary, list(default_cutoffs(vocabulary))
        )
        return adaptive, lambda hidden, targets: -adaptive(hidden, targets).output.sum()
    linear = nn.Linear(WIDTH, vocabulary)
    if name == PEER:
        return linear, lambda hidden, targets: F.cross_entropy(
            linear(hidden), targets, reduction="sum"
        )
    options = torch.nn.LinearCrossEntropyOptions()

    def chunked(hidden: Tensor, targets: Tensor) -> Tensor:
        total: Tensor = F.linear_cross_entropy(
            hidden,
            linear.weight,
            targets,
            linear_bias=linear.bias,
            reduction="sum",
            options=options,
        )
        return total

    return linear, chunked


def peak_memory(name: str, vocabulary: int, dtype: str) -> float:
    """MiB, measured in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.outputs",
        "--memory-of",
        name,
        str(vocabulary),
        dtype,
        str(torch.get_num_threads()),
    ]
    # glibc gives back at once what is freed: the same figure every time
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], env=environment
    )
    return int(done.stdout) / 1024


def print_memory(name: str, vocabulary: str, dtype: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    way_of(name, 64, dtype)()  # what it takes to be ready at all is not counted
    run = way_of(name, int(vocabulary), dtype)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("VmRSS")
    for _ in range(REPEATS):
        run()
    print(kibibytes("VmHWM") - before)


def measure(vocabulary: int, dtype: str, rounds: int) -> dict[str, dict[str, Any]]:
    """The figures of all ways that there are in that precision."""
    # torch's raises RuntimeError under autocast
    names = [name for name in WAYS if name != ADAPTIVE or dtype == "float32"]
    timing = interleaved({name: way_of(name, vocabulary, dtype) for name in names}, rounds=rounds)
    found = {}
    for name in names:
        memory, speed, ms = (
            peak_memory(name, vocabulary, dtype),
            timing.ratio(name, PEER),
            1e3 * timing.median(name),
        )
        found[name] = {
            "way": name,
            "vocabulary": vocabulary,
            "dtype": dtype,
            "ms": ms,
            "ratio": speed._asdict(),
            "mebibytes": memory,
        }
        sys.stderr.write(
            f"{vocabulary:7} {dtype:8} {name:37} {ms:8.1f} ms {speed.median:6.2f} {memory:8.1f} MiB\n"
        )
    sys.stderr.write(f"waited {timing.waited:.0%}\n")
    return {name: {**figure, "waited": timing.waited} for name, figure in found.items()}


def shown(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "fails"
    ratio = figure["ratio"]
    return (
        f"{figure['ms']:.0f} ms, {ratio['median']:.2f} ± {(ratio['high'] - ratio['low']) / 2:.2f},"
        f" {figure['mebibytes']:.0f} MiB"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[33_000, 100_000])
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    parser.add_argument("--memory-of", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write and any(
        getattr(arguments, name) != parser.get_default(name) for name in ("vocabularies", "dtypes")
    ):
        parser.error("--write publishes complete runs only: leave out --vocabularies and --dtypes")
    return arguments


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed()
    if arguments.memory_of:
        print_memory(*arguments.memory_of)
        return
    torch.set_num_threads(arguments.threads)
    began = time.monotonic()
    columns = [
        (vocabulary, dtype) for vocabulary in arguments.vocabularies for dtype in arguments.dtypes
    ]
    figures = {column: measure(*column, arguments.rounds) for column in columns}
    body = [[name, *(shown(figures[column].get(name)) for column in columns)] for name in WAYS]
    waited = max(one["waited"] for found in figures.values() for one in found.values())
    took = (
        f"`python -m benchmarks.outputs`, {arguments.rounds} rounds, {time.monotonic() - began:.0f} s. The"
        " most that a size waited"
    )
    took += f" for a core that others had: {waited:.0%} of its time."
    table = report.table(
        ["layer", *(f"{vocabulary:,} words, {dtype}" for vocabulary, dtype in columns)], body
    )
    whole = f"{TEXT}\n\n{table}\n\n{took}"
    print(whole)
    if arguments.write:
        report.publish(
            "outputs",
            {"steps": [one for found in figures.values() for one in found.values()]},
            f"## Output layers\n\n{whole}",
        )


if __name__ == "__main__":
    main()
