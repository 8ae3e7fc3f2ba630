"""A training step of GPT beside transformers' GPT-2: forward, loss, backward, AdamW.

    python -m benchmarks.gpt [--dtypes float32 bfloat16] [--rounds 3] [--threads 2] [--write]

Width 256, 4 layers, 4 heads, context 256, vocabulary 8,000, 8 rows, no dropout. The peer is GPT2LMHeadModel
with `scaled_dot_product_attention` and fused AdamW, in the same type: float32, or under bfloat16 autocast.
Memory is that of a process which takes a few steps, beyond what it had before the first. Prints tables; with
--write puts them into docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.measuring import interleaved, sgemm_peak
from benchmarks.recurrent_memory import kibibytes
from seqloom.config import TrainConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.training.optimisation import make_optimizer

OURS, PEER = "seqloom", "transformers"
ROWS, CONTEXT, VOCABULARY, WIDTH, LAYERS, HEADS = 8, 256, 8000, 256, 4, 4
REQUIRED = {"float32": 1.35, "bfloat16": 1.4}
Step = Callable[[Tensor, Tensor], Tensor]
"""(inputs, targets) -> the loss."""
STEPS_FOR_MEMORY = 3


def batch(rows: int = ROWS, steps: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Inputs that begin with <s>, and targets."""
    ids = torch.randint(
        16, VOCABULARY, (rows, steps + 1), generator=torch.Generator().manual_seed(0)
    )
    ids[:, 0] = 1
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def seqloom_step(dtype: str) -> Step:
    config = GPTConfig(
        vocabulary_size=VOCABULARY,
        context=CONTEXT,
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        activation="gelu-tanh",  # the peer's function
        dropout=0.0,
        embedding_dropout=0.0,
    )
    model = GPT(config).train()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        total, count = model.output.loss(model.read(inputs, None)[0], targets)
        return total / count

    return training_step(loss, make_optimizer(model, TrainConfig()), dtype)


def transformers_model(**options: Any) -> Any:
    """The peer, of the same sizes; `options` of its configuration."""
    transformers: Any = importlib.import_module(PEER)
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": CONTEXT,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
    }
    config = transformers.GPT2Config(
        **sizes, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa", **options
    )
    return transformers.GPT2LMHeadModel(config)


def transformers_step(dtype: str) -> Step:
    model = transformers_model(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    ).train()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = model(
            input_ids=inputs, labels=inputs
        ).loss  # it shifts the labels itself, so the work is the same
        return found

    return training_step(loss, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), dtype)


def training_step(loss: Step, optimizer: torch.optim.Optimizer, dtype: str) -> Step:
    """One update; returns the loss before it."""

    def run(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            value = loss(inputs, targets)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return run


WAYS = {OURS: seqloom_step, PEER: transformers_step}


def peak_memory(way: str, dtype: str, threads: int) -> float:
    """MiB that a training step takes, the optimizer's state included, measured in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpt",
        "--memory-of",
        way,
        "--dtypes",
        dtype,
        "--threads",
        str(threads),
    ]
    # glibc gives back at once what is freed: the same figure every time
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], env=environment
    )
    return int(done.stdout.split()[-1]) / 1024


def measure_memory(way: str, dtype: str) -> int:
    """KiB beyond weights and inputs, in this process."""
    step = WAYS[way](dtype)
    inputs, targets = batch()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("VmRSS")
    for _ in range(STEPS_FOR_MEMORY):
        step(inputs, targets)
    return kibibytes("VmHWM") - before


def flops() -> float:
    """Of one step: six for each weight of a matrix and token, the output's too, and attention below the
    diagonal."""
    weights = LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    return float(ROWS * CONTEXT * (6 * weights + 6 * LAYERS * WIDTH * CONTEXT))


def measure(dtype: str, rounds: int, threads: int) -> dict[str, Any]:
    """Speed and memory of both in one type."""
    inputs, targets = batch()
    steps = {way: make(dtype) for way, make in WAYS.items()}
    timing = interleaved(
        {way: partial(step, inputs, targets) for way, step in steps.items()},
        rounds=rounds,
    )
    return {
        "dtype": dtype,
        "ratio": timing.ratio(OURS, PEER)._asdict(),
        "tokens_per_second": {way: ROWS * CONTEXT / timing.median(way) for way in WAYS},
        "of_sgemm_peak": flops() / timing.median(OURS) / sgemm_peak(),
        "waited": timing.waited,
        "mebibytes": {way: peak_memory(way, dtype, threads) for way in WAYS},
    }


def shown(point: dict[str, Any]) -> list[str]:
    ratio, speed, memory = point["ratio"], point["tokens_per_second"], point["mebibytes"]
    passes = ratio["median"] >= REQUIRED[point["dtype"]] and memory[OURS] <= memory[PEER]
    return [
        point["dtype"],
        f"{speed[OURS]:,.0f}",
        f"{speed[PEER]:,.0f}",
        f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
        f"{REQUIRED[point['dtype']]}",
        f"{point['of_sgemm_peak']:.0%}",
        f"{memory[OURS]:.0f}",
        f"{memory[PEER]:.0f}",
        "yes" if passes else "no",
    ]


HEADER = [
    "type",
    "tokens/s",
    "peer's",
    "ratio",
    "required",
    "of the sgemm peak",
    "MiB",
    "peer's",
    "passes",
]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(measure_memory(arguments.memory_of, *arguments.dtypes))
        return
    points = [measure(dtype, arguments.rounds, arguments.threads) for dtype in arguments.dtypes]
    title = (
        f"A training step of GPT (width {WIDTH}, {LAYERS} layers, context {CONTEXT}, vocabulary"
        f" {VOCABULARY:,}, {ROWS} rows)"
    )
    text = f"{title} beside transformers' GPT2LMHeadModel (sdpa, fused AdamW) in the same type.\n\n"
    text += report.table(HEADER, [shown(point) for point in points])
    waited = max(point["waited"] for point in points)
    text += (
        f"\n\n`python -m benchmarks.gpt`, {arguments.rounds} rounds. It waited for a core that others had for"
        f" {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("gpt", {"training": points}, f"## GPT\n\n{text}")


if __name__ == "__main__":
    main()
