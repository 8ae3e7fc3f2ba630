"""Vectors of texts from the server, which reads texts of many requests together, beside a plain loop.

    python -m benchmarks.serving_embeddings [--clients 1 8 32] [--requests 16] [--rounds 3]
    [--threads 2] [--write]

A BERT of the sizes of MiniLM (width 384, 6 layers) with random weights. Each client posts one text of ten to
forty words after the other to /v1/embeddings, with `http.client`, as the clients share the server's cores.
The loops read the same texts one by one in this process: ours, and one with a BertModel of transformers of
the same sizes on the same ids.
Prints a table; with --write puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import torch
import transformers

import seqloom
from benchmarks import report
from benchmarks.measuring import Spread
from benchmarks.serving import free_port, load_parser, running, serve_command, words
from seqloom.config import DataConfig, RunConfig
from seqloom.models.bert import Bert, BertConfig
from seqloom.runs.write_run import write_finished_run
from seqloom.text.tokenizers import train_tokenizer

JSON = {"Content-Type": "application/json"}


def write_encoder(folder: Path) -> Path:
    tokenizer = train_tokenizer(texts_of(2000), "bpe", 8000, "none")
    torch.manual_seed(0)
    model = Bert(
        BertConfig(vocabulary_size=tokenizer.vocabulary_size, width=384, layers=6, heads=12)
    )
    run = RunConfig(
        task="feature-extraction",
        output_dir=str(folder),
        model={"name": "bert", "size": "small"},
        data=DataConfig(train=("data.txt",)),
    )
    folder.mkdir()
    write_finished_run(folder, run, model.eval(), tokenizer, [], None)
    return folder


def texts_of(count: int) -> list[str]:
    """Of a language of 2,000 words, most of which are one piece of the tokenizer."""
    chance, known = random.Random(0), words(0, 2000)
    return [" ".join(chance.choices(known, k=chance.randint(10, 40))) for _ in range(count)]


def of_server(port: int, texts: list[str], clients: int) -> float:
    """Texts a second."""

    def ask(number: int) -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
            for text in texts[number::clients]:
                content = json.dumps({"input": text, "encoding_format": "base64"})
                connection.request("POST", "/v1/embeddings", content, JSON)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, answer.status

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(ask, range(clients)))
    return len(texts) / (time.perf_counter() - began)


def of_loop(model: Any, texts: list[str]) -> float:
    began = time.perf_counter()
    for text in texts:
        model.vectors([text])
    return len(texts) / (time.perf_counter() - began)


def transformers_loop(model: Any) -> Callable[[list[str]], float]:
    """Texts a second of a model of transformers with the sizes and the ids of ours."""
    config = transformers.BertConfig(
        vocab_size=model.run.tokenizer.vocabulary_size,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    peer = transformers.BertModel(config).eval()  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def run(texts: list[str]) -> float:
        began = time.perf_counter()
        for text in texts:
            (ids,) = model.run.tokenizer.encode([text])
            peer(torch.tensor([ids])).last_hidden_state.mean(dim=1)
        return len(texts) / (time.perf_counter() - began)

    return run


def times(served: list[float], loop: list[float]) -> str:
    ratio = Spread.of(a / b for a, b in zip(served, loop, strict=True))
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def main() -> None:
    options = load_parser(__doc__, requests=16).parse_args()
    torch.set_num_threads(options.threads)
    rows, figures, port = [], {}, free_port()
    with tempfile.TemporaryDirectory() as place:
        folder = write_encoder(Path(place) / "encoder")
        model = seqloom.load(folder, "cpu")
        of_peer = transformers_loop(model)
        with running(serve_command(folder, port), port, options.threads) as _:
            for clients in options.clients:
                texts = texts_of(clients * options.requests)
                served, plain, peer = [], [], []
                for _ in range(options.rounds):
                    served.append(of_server(port, texts, clients))
                    plain.append(of_loop(model, texts))
                    peer.append(of_peer(texts))
                figures[str(clients)] = {"served": served, "loop": plain, "transformers": peer}
                shown = [f"{Spread.of(one).median:,.0f}" for one in (served, plain, peer)]
                rows.append([str(clients), *shown, times(served, plain), times(served, peer)])
    header = ["clients", "texts/s, server", "our loop", "transformers' loop"]
    header += ["server / our loop", "server / transformers' loop"]
    text = report.table(header, rows)
    print(text)
    if options.write:
        report.publish("serving-embeddings", figures, text)


if __name__ == "__main__":
    main()
