"""Vectors of sentences with MiniLM beside onnxruntime's, from text to vector, in float32 and int8.

    python -m venv /tmp/ort && /tmp/ort/bin/pip install onnxruntime onnx tokenizers numpy sympy
    python -m benchmarks.sentence_vectors MINILM TEXTS --peer /tmp/ort/bin/python [--rounds 5] [--threads 2]
        [--lines 2000] [--write]

MINILM is a Hugging Face directory (all-MiniLM-L6-v2), TEXTS a file of sentences, one a line. Both sides sort
texts by length, batch, encode, average and normalise; the peer, in a process of its own, takes the fastest of
its graphs and sizes of batches (`onnxruntime_vectors.py`). Runs take turns; ratios are paired by round. The
least cosine of any text is that with the peer's vectors in float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import seqloom
from benchmarks import report
from benchmarks.measuring import interleaved
from seqloom.packed_weights import Storage

REQUIRED: dict[Storage, float] = {"float32": 1.3, "int8": 1.0}
LEAST_COSINE: dict[Storage, float] = {"float32": 0.9999, "int8": 0.98}
"""Of our vector of a text and the peer's in float32."""


def export(folder: str, out: Path) -> None:
    """The encoder as ONNX, from transformers."""
    from transformers import BertModel

    model: Any = BertModel.from_pretrained(folder, attn_implementation="eager")
    model.eval()
    ids = torch.randint(1000, 2000, (2, 9))
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class States(torch.nn.Module):
        """With the one output that is asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> Any:
            return self.model(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(),
            (ids, mask, torch.zeros_like(ids)),
            str(out / "model.onnx"),
            input_names=names,
            output_names=["states"],
            dynamic_axes={name: {0: "rows", 1: "steps"} for name in [*names, "states"]},
            opset_version=14,
            dynamo=False,
        )
    (out / "tokenizer.json").write_bytes(Path(folder, "tokenizer.json").read_bytes())


class Peer:
    """onnxruntime in a process of its own."""

    def __init__(self, python: str, graph: Path, kind: str, threads: int, texts: list[str]) -> None:
        script = Path(__file__).with_name("onnxruntime_vectors.py")
        out = graph / f"{kind}.npy"
        self._process = subprocess.Popen(
            [python, str(script), str(graph), kind, str(threads), str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self.way = self._ask(json.dumps(texts))
        self.vectors = np.load(out)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, (
            "onnxruntime must answer; run onnxruntime_vectors.py by itself to see why not"
        )
        return answer

    def run(self) -> None:
        self._ask("again")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def least_cosine(exact: NDArray[np.float32], vectors: NDArray[np.float32]) -> float:
    """Of any text's two vectors, which have length 1."""
    return float((exact * vectors).sum(axis=1).min())


def main() -> None:
    """Measures both and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with open(arguments.texts, encoding="utf-8") as file:
        texts = [line.strip() for line in itertools.islice(file, arguments.lines)]
    encoder: Any = seqloom.load(arguments.model, "cpu")
    rows, figures = [], dict[str, Any]()
    exact = np.empty(0, np.float32)  # the peer's vectors in float32
    with tempfile.TemporaryDirectory() as made:
        export(arguments.model, Path(made))
        for kind in REQUIRED:
            ours = encoder.with_weights(kind)
            peer = Peer(arguments.peer, Path(made), kind, arguments.threads, texts)
            if kind == "float32":
                exact = peer.vectors
            least, peers = (least_cosine(exact, one) for one in (ours.vectors(texts), peer.vectors))
            assert least > LEAST_COSINE[kind], f"the vectors must agree, but one has {least}"
            runs: dict[str, Callable[[], object]] = {
                "ours": lambda read=ours: read.vectors(texts),  # type: ignore[misc]
                "peer": peer.run,
            }
            timing = interleaved(runs, rounds=arguments.rounds)
            peer.stop()
            ratio = timing.ratio("ours", "peer")
            speeds = {name: len(texts) / timing.median(name) for name in runs}
            figures[kind] = {"ratio": ratio._asdict(), "texts_per_second": speeds, "way": peer.way}
            figures[kind] |= {"least_cosine": least, "peers_least_cosine": peers}
            rows.append(
                [
                    kind,
                    *(f"{speed:,.0f}" for speed in speeds.values()),
                    f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                    f"{REQUIRED[kind]}",
                    "yes" if ratio.median >= REQUIRED[kind] else "no",
                    f"{least:.4f}; {peers:.4f}",
                    peer.way,
                ]
            )
    header = ["type", "texts/s", "onnxruntime's", "ratio", "required", "passes"]
    header += ["least cosine; its", "its way"]
    text = (
        f"Vectors of {len(texts):,} sentences with MiniLM (6 layers, width 384), from text to vector, beside"
        f" onnxruntime.\n\n{report.table(header, rows)}\n\n`python -m benchmarks.sentence_vectors MINILM"
        f" TEXTS`, {arguments.rounds} rounds."
    )
    print(text)
    if arguments.write:
        report.publish("sentence-vectors", figures, f"## Sentence vectors\n\n{text}")


if __name__ == "__main__":
    main()
