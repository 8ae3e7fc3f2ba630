"""A training step of each recurrent layer: the driver beside the plain loop over steps and torch.nn, interleaved in one run.

    python benchmarks/recurrent.py [--rounds 5] [--threads 2]

Forward and backward of one layer over full sequences, input as wide as the state, gradient of the input included. The
loop is what a good user would write, the input's product taken out of it. Prints a table on standard error and one
JSON object: medians, ratios to the loop.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from seqloom.layers.cells import CELLS
from seqloom.layers.recurrent import Recurrent, to_torch
from seqloom.layers.unroll import packed_order

STEPS = 128
SIZES = ((8, 128), (8, 256), (8, 512), (32, 128), (32, 256), (32, 512))
"""(rows, width)"""


def ways(name: str, rows: int, width: int) -> dict[str, Callable[[], Tensor]]:
    """The same layer in each way there is."""
    layers = Recurrent(name, width, width)
    (layer,) = layers.stack
    inputs = torch.randn(rows, STEPS, width, requires_grad=True)
    start, order = layer.start(rows), packed_order(torch.ones(rows, STEPS, dtype=torch.bool), False)
    found: dict[str, Callable[[], Tensor]] = {
        "loop": lambda: layer.loop(inputs, None, start)[0],
        "driver": lambda: layer(inputs, order, start)[0],
    }
    if name != "gru":  # the published one, which torch does not have
        module = to_torch(layers)
        found["torch.nn"] = lambda: module(inputs)[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for name in CELLS:
        for rows, width in SIZES:
            seconds: dict[str, list[float]] = {}
            runs = ways(name, rows, width)
            for number in range(arguments.rounds + 1):
                for way, run in runs.items():
                    began = time.perf_counter()
                    torch.autograd.backward(run().sum())
                    if number:  # the first round warms up
                        seconds.setdefault(way, []).append(time.perf_counter() - began)
            medians = {way: statistics.median(times) for way, times in seconds.items()}
            ratios = {way: medians["loop"] / median for way, median in medians.items()}
            results.append(
                {"cell": name, "rows": rows, "width": width, "tokens_per_second": rows * STEPS / medians["driver"], "ratio": ratios}
            )
            shown = "  ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items())
            sys.stderr.write(f"{name:11} rows {rows:3} width {width:4}  {shown}\n")
    machine = {"cpu": platform.processor() or platform.machine(), "threads": arguments.threads, "torch": torch.__version__}
    print(json.dumps({"recurrent_step": results, "machine": machine}))


if __name__ == "__main__":
    main()
