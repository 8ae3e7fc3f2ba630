"""The server beside `transformers serve`, on one checkpoint: tokens a second and time to the first token.

    python -m benchmarks.serving [--sizes small gpt2] [--clients 1 8 32] [--requests 4] [--tokens 64]
    [--peers seqloom transformers batched plain] [--rounds 3] [--threads 2] [--write]

Each client sends its requests one after the other, as streams: prompts of ten words, 64 new tokens, sampled
from the model. `small` is a GPT of width 256 with 4 layers and a vocabulary of 8,000, `gpt2` has the sizes of
GPT-2 (124 M); both have random weights and are opened by both servers from one directory of Hugging Face.
`transformers` is its default, one request at a time; `batched` the same with --continuous-batching (skipped
where it cannot run on this machine); `plain` a loop over the same prompts in this process, one by one.
The servers are processes of their own with `--threads` threads, all there at the same time, and are asked by
turns: each number is the median of `--rounds` rounds. Prints a table, with the tokens a second of seqloom in
each round as a multiple of those of each peer; with --write puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import httpx
import torch

import seqloom
from benchmarks import report
from benchmarks.measuring import Spread
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.runs.write_run import write_finished_run
from seqloom.text.special_tokens import SPECIAL_IDS
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.exchange import export_model

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"width": 32, "layers": 1, "heads": 2, "context": 256, "vocabulary": 300},
    "small": {"width": 256, "layers": 4, "heads": 4, "context": 512, "vocabulary": 8000},
    "gpt2": {"width": 768, "layers": 12, "heads": 12, "context": 1024, "vocabulary": 50257},
}


class Load(NamedTuple):
    """What the clients ask for."""

    clients: int
    requests: int
    tokens: int


class Measured(NamedTuple):
    tokens_a_second: float
    first_token: float
    """Median seconds from a request to its first piece."""


def words(seed: int, count: int) -> list[str]:
    """Random ones, so that a tokenizer can learn a vocabulary of any size."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(count)]


def write_checkpoint(place: Path, size: str) -> Path:
    """A directory of Hugging Face with random weights."""
    sizes = SIZES[size]
    text = [" ".join(words(line, 20)) for line in range(sizes["vocabulary"] // 5)]
    tokenizer = train_tokenizer(text, "bpe", sizes["vocabulary"], "none")
    config = GPTConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        width=sizes["width"],
        layers=sizes["layers"],
        heads=sizes["heads"],
        context=sizes["context"],
        activation="gelu-tanh",
        suppressed_ids=tuple(SPECIAL_IDS.forbidden),
    )
    torch.manual_seed(0)
    run = RunConfig(
        task="text-generation",
        output_dir=str(place / "run"),
        model={"name": "gpt", "size": size},
        data=DataConfig(train=("data.txt",)),
        decode=DecodeConfig(strategy="sample"),
    )
    (place / "run").mkdir()
    write_finished_run(place / "run", run, GPT(config).eval(), tokenizer, [], None)
    export_model(str(place / "run"), str(place / "checkpoint"))
    return place / "checkpoint"


def prompt(number: int) -> str:
    return " ".join(words(10_000 + number, 10))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int, threads: int) -> Iterator[str]:
    """A server in a process of its own, once it answers."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            for _ in range(1200):
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(log.read()[-2000:].decode(errors="replace"))
                try:
                    httpx.get(f"{url}/v1/models", timeout=5)
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(url: str, model: str, number: int, tokens: int) -> tuple[float, int]:
    """Seconds to the first piece of one stream, and how many pieces came."""
    content = {
        "model": model,
        "prompt": prompt(number),
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
    }
    started, first, pieces = time.perf_counter(), 0.0, 0
    with httpx.stream("POST", f"{url}/v1/completions", json=content, timeout=600) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"error"' not in line:
                first = first or time.perf_counter() - started
                pieces += 1
            elif '"error"' in line:
                raise RuntimeError(line[:300])
    return first, pieces


def measure(url: str, model: str, load: Load) -> Measured:
    """All clients at once. Every text has all its tokens but for an early end, so the tokens are counted as
    asked for."""

    def client(number: int) -> list[float]:
        firsts = []
        for request in range(load.requests):
            first, pieces = ask(url, model, number * 1000 + request, load.tokens)
            if not pieces:
                raise RuntimeError("a stream was empty")
            firsts.append(first)
        return firsts

    # the model is loaded and warm
    ask(url, model, 0, 4)
    started = time.perf_counter()
    with ThreadPoolExecutor(load.clients) as threads:
        firsts = [first for some in threads.map(client, range(load.clients)) for first in some]
    seconds = time.perf_counter() - started
    tokens = load.clients * load.requests * load.tokens
    return Measured(tokens / seconds, statistics.median(firsts))


def plain_loop(checkpoint: Path, load: Load) -> Measured:
    """seqloom from Python, one prompt after the other: what a server without batching could do at most."""
    model = seqloom.load(checkpoint, "cpu")
    count = load.clients * load.requests
    started = time.perf_counter()
    for number in range(count):
        model.generate([prompt(number)], strategy="sample", seed=number, max_length=load.tokens)
    seconds = time.perf_counter() - started
    return Measured(count * load.tokens / seconds, math.nan)


def serve_command(folder: Path, port: int) -> list[str]:
    program = [sys.executable, "-m", "seqloom", "serve", f"model={folder}", "--port", str(port)]
    return [*program, "--limit", "rows=32", "--limit", "queue=128"]


def commands(peer: str, checkpoint: Path, port: int) -> tuple[list[str], str]:
    """How a server is started, and what it calls the model."""
    if peer == "seqloom":
        return serve_command(checkpoint, port), "model"
    started = "from transformers.cli.transformers import main; main()"
    program = [sys.executable, "-c", started, "serve", "--port", str(port)]
    if peer == "batched":
        program.append("--continuous-batching")
    return program, str(checkpoint)


Ask = Callable[[Load], Measured]


def asker(url: str, model: str) -> Ask:
    return lambda load: measure(url, model, load)


@contextmanager
def peers(names: list[str], checkpoint: Path, threads: int) -> Iterator[dict[str, Ask]]:
    """All of them, ready to be asked."""
    torch.set_num_threads(threads)
    with ExitStack() as servers:
        found: dict[str, Ask] = {}
        for name in names:
            if name == "plain":
                found[name] = partial(plain_loop, checkpoint)
                continue
            port = free_port()
            command, model = commands(name, checkpoint, port)
            found[name] = asker(servers.enter_context(running(command, port, threads)), model)
        yield found


def measured(asks: dict[str, Ask], load: Load, rounds: int) -> dict[str, list[Measured]]:
    """What each peer did in each round; those that cannot run are left out."""
    found: dict[str, list[Measured]] = {name: [] for name in asks}
    for number in range(rounds):
        for name in list(asks)[:: -1 if number % 2 else 1]:
            try:
                found[name].append(asks[name](load))
            except (RuntimeError, httpx.HTTPError) as error:
                print(f"{name}, {load.clients} clients: {error}", file=sys.stderr)
    return {name: rows for name, rows in found.items() if len(rows) == rounds}


def table_rows(
    size: str, load: Load, found: dict[str, list[Measured]]
) -> tuple[list[list[str]], dict[str, Any]]:
    """Rows of the table, and the figures behind them."""
    rows, figures = [], dict[str, Any]()
    ours = found.get("seqloom", [])
    for peer, rounds in found.items():
        speed = Spread.of(one.tokens_a_second for one in rounds)
        first = Spread.of(one.first_token for one in rounds)
        shown = [f"{speed.median:,.0f}", "-" if math.isnan(first.median) else f"{first.median:.3f}"]
        ratio = ""
        if ours and peer != "seqloom":
            times = Spread.of(
                a.tokens_a_second / b.tokens_a_second for a, b in zip(ours, rounds, strict=True)
            )
            ratio = f"{times.median:.2f} ({times.low:.2f} to {times.high:.2f})"
        figures[f"{size} {peer} {load.clients}"] = [one._asdict() for one in rounds]
        rows.append([size, peer, str(load.clients), *shown, ratio])
    return rows, figures


def load_parser(description: str | None, requests: int) -> argparse.ArgumentParser:
    """The options of how much is asked for, and how often."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    return parser


def main() -> None:
    parser = load_parser(__doc__, requests=4)
    parser.add_argument("--sizes", nargs="+", default=["small", "gpt2"], choices=SIZES)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--peers", nargs="+", default=["seqloom", "transformers", "plain"])
    options = parser.parse_args()
    loads = [Load(clients, options.requests, options.tokens) for clients in options.clients]
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as place:
            checkpoint = write_checkpoint(Path(place), size)
            with peers(options.peers, checkpoint, options.threads) as asks:
                for load in loads:
                    new, known = table_rows(size, load, measured(asks, load, options.rounds))
                    rows, figures = rows + new, figures | known
    header = ["size", "server", "clients", "tokens/s", "first token, s", "seqloom is faster by"]
    text = report.table(header, rows)
    print(text)
    if options.write:
        report.publish("serving", figures, text)


if __name__ == "__main__":
    main()
