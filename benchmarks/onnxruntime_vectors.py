"""The other side of `benchmarks.sentence_vectors`, run by a Python that has onnxruntime, onnx and tokenizers.

    PYTHON benchmarks/onnxruntime_vectors.py FOLDER float32|int8 THREADS OUT.npy

FOLDER holds model.onnx and tokenizer.json. Texts come as one line of JSON. Of each graph (as it was exported,
and after onnxruntime's optimiser for BERT; in int8 their linear maps quantised dynamically) and each size of
batches the fastest is taken. Vectors go to OUT; then each further line asks for one more run, whose end is
answered by a line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

BUDGETS = (512, 1024, 2048, 4096)
"""Tokens of a batch, padding included."""
LONGEST = 256


def graphs(folder: Path, kind: str) -> Iterator[Path]:
    """The model as files that onnxruntime runs."""
    from onnxruntime.transformers import optimizer

    plain, optimised = folder / "model.onnx", folder / "optimised.onnx"
    made = optimizer.optimize_model(
        str(plain), model_type="bert", num_heads=12, hidden_size=384, opt_level=0
    )
    made.save_model_to_file(str(optimised))
    if kind == "float32":
        yield from (plain, optimised)
        return
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for path in (plain, optimised):
        quantised = path.with_suffix(".int8.onnx")
        options = {"DefaultTensorType": TensorProto.FLOAT}
        quantize_dynamic(path, quantised, weight_type=QuantType.QInt8, extra_options=options)
        yield quantised


def batches(rows: list[list[int]], budget: int) -> Iterator[list[int]]:
    """Indices of rows of similar length."""
    batch: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: len(rows[index])):
        if batch and (len(batch) + 1) * len(rows[index]) > budget:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def reader(path: Path, tokenizer: Any, threads: int, budget: int) -> Callable[[list[str]], Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def vectors(texts: list[str]) -> Any:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        found = np.zeros((len(rows), 384), np.float32)
        for batch in batches(rows, budget):
            ids = np.zeros((len(batch), max(len(rows[index]) for index in batch)), np.int64)
            mask = np.zeros_like(ids)
            for place, index in enumerate(batch):
                ids[place, : len(rows[index])] = rows[index]
                mask[place, : len(rows[index])] = 1
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * 0}
            (hidden,) = session.run(None, given)
            mean = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            found[batch] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return found

    return vectors


def seconds(run: Callable[[], object]) -> float:
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    folder, kind, threads, out = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    texts: list[str] = json.loads(sys.stdin.readline())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    found: dict[str, tuple[float, Callable[[list[str]], Any]]] = {}
    for path in graphs(folder, kind):
        for budget in BUDGETS:
            vectors = reader(path, tokenizer, threads, budget)
            some = texts[:: max(1, len(texts) // 200)]
            found[f"{path.name}, batches of {budget}"] = (
                seconds(lambda read=vectors, some=some: read(some)),  # type: ignore[misc]
                vectors,
            )
    fastest = min(found, key=lambda name: found[name][0])
    vectors = found[fastest][1]
    np.save(out, vectors(texts))
    print(fastest, flush=True)
    for _ in sys.stdin:
        vectors(texts)
        print("done", flush=True)


if __name__ == "__main__":
    main()
