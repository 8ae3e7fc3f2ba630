"""Decoding with a recurrent model: all of it in torch (`SEQLOOM_NATIVE=0`), and the compiled step with
weights in float32, bfloat16 and int8.

    python -m benchmarks.recurrent_generation [--cells lstm gru] [--ways greedy beam4] [--batches 1 8]
    [--rounds 5]
    python -m benchmarks.recurrent_generation --run RUN TEXTS [--lines 1000] [--batches 1 64] [--rounds 5]

Language models of default sizes (embedding and width 256, 2 layers, tied output), vocabulary 8,000; prompts
of 16 tokens, 128 new ones for each, all with the same weights; tokens a second. With --run: what `predict` of
this folder of text pairs needs for the first lines of a file, as it decodes them by itself; texts a second.
By turns, one thread, processor time, the best of all rounds. No peer has such models.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

import torch

import seqloom
from benchmarks.generation import NEW, our_run, prompts
from benchmarks.gpt import VOCABULARY
from seqloom import files
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.native.library import OFF, library
from seqloom.packed_weights import Storage
from seqloom.runs.quantised_weights import QuantisedModel

TORCH = "torch"
Run = Callable[[], object]


def our_model(cell: str) -> RecurrentLM:
    torch.manual_seed(0)
    config = RecurrentLMConfig(vocabulary_size=VOCABULARY, cell=cell, documents="joined")
    model = RecurrentLM(config).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(8)  # type: ignore[operator]
    return model


def seconds(run: Run, compiled: bool) -> float:
    """Of the processor."""
    os.environ[OFF] = "1" if compiled else "0"
    library.cache_clear()
    library()
    started = time.process_time()
    run()
    return time.process_time() - started


def measured(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """The least seconds of each, by turns."""
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds + 1):
        for name, run in runs.items():
            took = seconds(run, name != TORCH)
            if number:  # the first packs weights
                best[name] = min(best[name], took)
    return best


def language_models(given: argparse.Namespace) -> Iterator[tuple[str, int, Mapping[str, Run]]]:
    """What is measured, how many tokens that are, and how each makes them."""
    for cell in given.cells:
        model: Any = our_model(cell)
        models: dict[str, Any] = {TORCH: model, "float32": model}
        for storage in get_args(Storage)[1:]:
            models[storage] = QuantisedModel(model, storage)
        for way, batch in itertools.product(given.ways, given.batches):
            runs = {name: our_run(one, way, prompts(batch)) for name, one in models.items()}
            yield f"{cell}, {way}, {batch}", NEW * batch, runs


def translations(given: argparse.Namespace) -> Iterator[tuple[str, int, Mapping[str, Run]]]:
    """The same of texts."""
    folder, path = given.run
    model: Any = seqloom.load(folder)
    with files.open_binary(path) as file:
        texts = [line.decode().rstrip("\n") for line in itertools.islice(file, given.lines)]
    for batch in given.batches:
        predict = partial(model.predict, texts, batch_rows=batch)
        runs = {TORCH: partial(predict, weights="float32")}
        runs |= {storage: partial(predict, weights=storage) for storage in get_args(Storage)}
        yield f"beam {model.run.decode.width}, {batch}", len(texts), runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"])
    parser.add_argument("--ways", nargs="+", default=["greedy", "beam4"])
    parser.add_argument("--run", nargs=2, metavar=("RUN", "TEXTS"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = (TORCH, *get_args(Storage))
    print(f"| | {' | '.join(names)} | float32 / torch | int8 / torch |\n| --- |{' --: |' * 6}")
    for what, count, runs in translations(given) if given.run else language_models(given):
        best = measured(runs, given.rounds)
        cells = [f"{count / best[name]:,.0f}" for name in names]
        cells += [f"{best[TORCH] / best[name]:.2f}" for name in ("float32", "int8")]
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
