"""Does the memory of a training in bfloat16 grow with its steps, where each batch has a length of its own?

    python -m benchmarks.bfloat16_memory [--steps 2000] [--dtype bfloat16] [--torch]

A small GPT; each batch has 1 to 24 rows of 5 to 120 tokens, drawn anew. oneDNN compiles kernels for every
new shape of a product and keeps them. Prints the private memory of the process (RssAnon) after parts of the
steps, and how many times that of the first quarter it is at the end. --torch uses nothing of ours that is
compiled.
"""

from __future__ import annotations

import argparse
import os

import torch

from benchmarks.recurrent_memory import kibibytes
from seqloom.config import TrainConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.native.library import OFF
from seqloom.training.optimisation import make_optimizer

PARTS = 8
VOCABULARY = 500


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--torch", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints a line for each part."""
    arguments = parsed()
    if arguments.torch:
        os.environ[OFF] = "0"
    torch.set_num_threads(1)
    model = GPT(
        GPTConfig(vocabulary_size=VOCABULARY, context=128, width=64, layers=2, heads=2)
    ).train()
    optimizer = make_optimizer(model, TrainConfig())
    generator = torch.Generator().manual_seed(0)
    sizes, memory = set(), []
    for step in range(1, arguments.steps + 1):
        rows = int(torch.randint(1, 25, (), generator=generator))
        length = int(torch.randint(5, 121, (), generator=generator))
        sizes.add((rows, length))
        ids = torch.randint(16, VOCABULARY, (rows, length + 1), generator=generator)
        ids[:, 0] = 1
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bfloat16"):
            total, count = model.output.loss(model.read(ids[:, :-1], None)[0], ids[:, 1:])
        (total / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % (arguments.steps // PARTS) == 0:
            memory.append(kibibytes("RssAnon") / 1024)
            print(
                f"{step:,} steps, {len(sizes):,} shapes of batches: {memory[-1]:.0f} MiB",
                flush=True,
            )
    quarter = memory[PARTS // 4 - 1]
    print(f"{memory[-1] / quarter:.3f} times the memory after a quarter of the steps")


if __name__ == "__main__":
    main()
