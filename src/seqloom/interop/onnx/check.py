"""Whether ONNX graphs do what the model does: the same inputs through both, at shapes other than those of the
tracing.

A decoder is called several times in a row, each engine with its own state. Rows are padded on the left, a
source on both sides; the outputs at padding mean nothing and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from seqloom.errors import SeqloomError
from seqloom.interop.onnx.encoders_with_heads import require_one_row
from seqloom.interop.onnx.graph import Graph, ModelGraphs
from seqloom.interop.onnx.transformers import encoder_outputs
from seqloom.models.bert import Bert
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT
from seqloom.protocols import EncodedBatch, EncoderDecoder, context_of, next_logits

TOLERANCE = 1e-4
"""Of the largest value that the model gives."""

LATER_STEPS = (1, 2)
"""Steps of the calls of a decoder after the first."""

Tensors = dict[str, Tensor]
Decoder = RecurrentLM | Seq2Seq | GPT | Transformer | T5


class Shape(NamedTuple):
    """Of the inputs of a case."""

    rows: int
    steps: int
    source: int


SHAPES = (Shape(1, 1, 1), Shape(3, 7, 4), Shape(2, 4, 9))


class Call(NamedTuple):
    """One call, and what the model returned."""

    inputs: Tensors
    outputs: Tensors
    compared: Tensors
    """For each of the outputs `(rows,)` or `(rows, steps)`: where it means something."""


Case = list[Call]
"""Calls in a row, the first that of the encoder where there is one; each reads the state of those before."""


def image_case(model: ViT, shape: Shape, generator: Generator) -> Case:
    c = model.config
    images = torch.randn(shape.rows, c.channels, c.image_size, c.image_size, generator=generator)
    name = "logits" if c.labels else "hidden"
    return [Call({"images": images}, {name: model(images)}, {name: _all_rows(shape)})]


def encoder_case(model: Bert, shape: Shape, generator: Generator) -> Case:
    c, size = model.config, (shape.rows, min(shape.steps, model.context))
    mask = _pad_both_sides(torch.ones(size, dtype=torch.bool), False)
    inputs = {"inputs": torch.randint(c.vocabulary_size, size, generator=generator), "mask": mask}
    if c.segments > 1:
        inputs["segments"] = torch.randint(c.segments, size, generator=generator)
    outputs = encoder_outputs(model, **inputs)
    return [
        Call(inputs, outputs, {name: mask[:, 0] if name == "pooled" else mask for name in outputs})
    ]


def answer_case(model: EncoderWithHead, shape: Shape, generator: Generator) -> Case:
    require_one_row(model)
    tokens = torch.randint(
        model.config.vocabulary_size, (shape.rows, shape.steps), generator=generator
    )
    if shape.rows > 1 and shape.steps > 2:
        tokens[1, -2:] = -1
    batch = EncodedBatch.of_tokens(tokens)
    answers = model.head.probabilities(model(batch), batch)
    name = "probabilities" if model.config.labels else "score"
    return [Call({"tokens": tokens}, {name: answers}, {name: _all_rows(shape)})]


def decoder_case(model: Decoder, shape: Shape, generator: Generator) -> Case:
    config = model.config
    longest = context_of(model) or sum((shape.steps, shape.source, *LATER_STEPS))

    def ids(steps: int) -> Tensor:
        drawn = torch.randint(config.vocabulary_size, (shape.rows, steps), generator=generator)
        return drawn.masked_fill(
            drawn == config.pad_id, (config.pad_id + 1) % config.vocabulary_size
        )

    case, state, total = [], None, 0
    if isinstance(model, EncoderDecoder):
        source = _pad_both_sides(ids(min(shape.source, longest)), config.pad_id)
        state = model.encode(source)
        case.append(Call({"source": source}, {}, {}))
    for steps in (min(shape.steps, longest), *LATER_STEPS):
        total += steps
        if total > longest:
            break
        tokens = ids(steps)
        tokens[:1, : steps // 3] = config.pad_id  # on the left
        logits, state = next_logits(model, tokens, state)
        case.append(Call({"tokens": tokens}, {"logits": logits}, {"logits": _all_rows(shape)}))
    return case


def _all_rows(shape: Shape) -> Tensor:
    return torch.ones(shape.rows, dtype=torch.bool)


def _pad_both_sides(values: Tensor, pad: int | bool) -> Tensor:
    """values `(rows, steps)` padded on the left in the first row, on the right in the second, where there are
    two."""
    if len(values) > 1 and values.shape[1] > 2:
        values[0, :2] = pad
        values[1, -2:] = pad
    return values


def check(written: ModelGraphs, cases: list[Case], folder: Path) -> float:
    """The largest difference, as a share of the largest value, between the written graphs and `cases`.

    Raises SeqloomError if it is above TOLERANCE.
    """
    graphs = written.graphs
    runs = [open_graph(graph, folder) for graph in graphs]
    worst = 0.0
    for shape, case in zip(SHAPES, cases, strict=True):
        sizes = {"rows": shape.rows, "past": 0, "source": 0}
        known = {value.name: value.zeros(sizes) for value in written.state}
        for number, call in enumerate(case):
            which = 0 if number == 0 else -1
            results = runs[which](known | call.inputs)
            for name, expected in call.outputs.items():
                difference = _difference(results[name], expected, call.compared[name])
                if not difference <= TOLERANCE:
                    raise SeqloomError(
                        f"{graphs[which].file}: must do what the model does to {TOLERANCE:.0e} of its largest"
                        f" value, but {name} differs by {difference:.1e} at call {number + 1} of shape"
                        f" {tuple(shape)}; nothing was written, please report this"
                    )
                worst = max(worst, difference)
            known |= {name.removeprefix("next_"): value for name, value in results.items()}
    return worst


def _difference(result: Tensor, expected: Tensor, compared: Tensor) -> float:
    result, expected = result[compared], expected[compared]
    if result.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    smallest = torch.finfo(expected.dtype).tiny
    return float((result - expected).abs().max() / expected.abs().max().clamp(min=smallest))


def open_graph(graph: Graph, folder: Path) -> Callable[[Mapping[str, Tensor]], Tensors]:
    """The written file, run by onnxruntime on the CPU: inputs by name (others are ignored) -> outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    path, names = str(folder / graph.file), [value.name for value in graph.outputs]
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Tensor]) -> Tensors:
        arrays = session.run(
            names, {value.name: inputs[value.name].numpy() for value in graph.inputs}
        )
        return dict(zip(names, map(torch.from_numpy, arrays), strict=True))

    return run
