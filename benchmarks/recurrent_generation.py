"""Decoding with a recurrent language model: its layers in torch, and the compiled step with weights in
float32, bfloat16 and int8.

    python -m benchmarks.recurrent_generation [--cells lstm gru] [--ways greedy beam4] [--batches 1 8]
    [--rounds 5]

Default sizes (embedding and width 256, 2 layers, tied output), vocabulary 8,000; prompts of 16 tokens, 128
new ones for each, all with the same weights, by turns, one thread. No peer has such models. Prints tokens a
second of processor time, the best of all rounds.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from unittest.mock import patch

import torch

from benchmarks.generation import NEW, Run, our_run, prompts
from benchmarks.gpt import VOCABULARY
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.runs.quantised_weights import QuantisedModel

TWIN = "layers in torch"


def our_model(cell: str) -> RecurrentLM:
    torch.manual_seed(0)
    config = RecurrentLMConfig(vocabulary_size=VOCABULARY, cell=cell, documents="joined")
    model = RecurrentLM(config).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(8)  # type: ignore[operator]
    return model


def seconds(run: Run, compiled: bool) -> float:
    """Of the processor."""
    without = patch("seqloom.models.recurrent_lm.read_token", lambda *_: None)
    with nullcontext() if compiled else without:
        started = time.process_time()
        run()
        return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"])
    parser.add_argument("--ways", nargs="+", default=["greedy", "beam4"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| | {TWIN} | float32 | bfloat16 | int8 | int8 / torch |\n| --- |{' --: |' * 5}")
    for cell in given.cells:
        model = our_model(cell)
        models = {
            TWIN: model,
            "float32": model,
            "bfloat16": QuantisedModel(model, "bfloat16"),
            "int8": QuantisedModel(model, "int8"),
        }
        for way in given.ways:
            for batch in given.batches:
                read = prompts(batch)
                runs = {name: our_run(one, way, read) for name, one in models.items()}
                best = dict.fromkeys(runs, float("inf"))
                for number in range(given.rounds + 1):
                    for name, run in runs.items():
                        took = seconds(run, name != TWIN)
                        if number:  # the first packs weights
                            best[name] = min(best[name], took)
                speeds = [f"{NEW * batch / took:,.0f}" for took in best.values()]
                ratio = best[TWIN] / best["int8"]
                print(
                    f"| {cell}, {way}, {batch} | {' | '.join(speeds)} | {ratio:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
