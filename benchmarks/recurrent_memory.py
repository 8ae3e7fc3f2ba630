"""The memory of one training step, in a process of its own: how far it grows beyond weights and inputs, in
KiB.

    python -m benchmarks.recurrent_memory CASE WAY ROWSxWIDTHxLAYERS THREADS

What it takes to be ready at all is not counted: a step over one row of two tokens goes before. Linux only
(/proc).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.recurrent_cases import (
    CASES,
    Batch,
    Case,
    Size,
    batches_of,
    layers_of,
    training_step,
    ways_of,
)

REPEATS = 3
"""Steps of which the most counts: the second can need more than the first, with what the first has left."""


def peak_memory(case: Case, way: str, size: Size) -> float:
    """MiB, measured in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.recurrent_memory",
        case.name,
        way,
        str(size),
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


def main() -> None:
    name, way, dimensions, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    (case,) = (case for case in CASES if case.name == name)
    size = Size(*map(int, dimensions.split("x")))
    layers = layers_of(case, size)
    batches, model = batches_of(case, size, layers), ways_of(case, layers)[way]
    training_step(
        model,
        [
            Batch(
                torch.randn(1, 2, size.width, requires_grad=True),
                torch.randn(1, 2, layers.output_width),
                None,
            )
        ],
    )()
    for parameter in model.parameters():
        parameter.grad = None
    step = training_step(model, batches)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("VmRSS")
    for _ in range(REPEATS):
        step()
    print(kibibytes("VmHWM") - before)


def kibibytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


if __name__ == "__main__":
    main()
