"""Whether ONNX graphs do what the model does: the same inputs through both, at shapes that the tracing did
not see.

A decoder is called several times in a row, each engine with its own state. Rows are padded on the left, a
source on both sides; what stands at padding means nothing and is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.errors import SeqloomError
from seqloom.interop.onnx.graph import Exportable, Graph
from seqloom.interop.onnx.transformers import encoded
from seqloom.models.bert import Bert
from seqloom.models.vit import ViT
from seqloom.protocols import EncoderDecoder, context_of, next_logits

TOLERANCE = 1e-4
"""Of the largest value that the model gives."""

SHAPES = ((1, 1, 1), (3, 7, 4), (2, 4, 9))
"""Rows, steps, source."""

AFTERWARDS = (1, 2)
"""Steps of the calls after the first."""


class Call(NamedTuple):
    """One call, and what the model made of it."""

    given: dict[str, Tensor]
    expected: dict[str, Tensor]
    compared: dict[str, Tensor]
    """For each of those `(rows,)` or `(rows, steps)`: where it means something."""


Case = list[Call]
"""Calls in a row, the first that of the encoder where there is one; each reads what the ones before left."""


def cases(model: Any) -> list[Case]:
    """What a model in evaluation mode, on a CPU, does at some shapes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if isinstance(model, ViT):
            return [_of_images(model, rows, generator) for rows, _, _ in SHAPES]
        if isinstance(model, Bert):
            return [
                _of_encoder(model, rows, min(steps, model.context), generator) for rows, steps, _ in SHAPES
            ]
        return [_of_decoder(model, *shape, generator) for shape in SHAPES]


def _of_images(model: ViT, rows: int, generator: torch.Generator) -> Case:
    c = model.config
    images = torch.randn(rows, c.channels, c.image_size, c.image_size, generator=generator)
    name = "logits" if c.labels else "hidden"
    return [Call({"images": images}, {name: model(images)}, {name: torch.ones(rows, dtype=torch.bool)})]


def _of_encoder(model: Bert, rows: int, steps: int, generator: torch.Generator) -> Case:
    c = model.config
    inputs = torch.randint(c.vocabulary_size, (rows, steps), generator=generator)
    mask = _on_both_sides(torch.ones(rows, steps, dtype=torch.bool), False)
    segments = torch.randint(c.segments, (rows, steps), generator=generator) if c.segments > 1 else None
    names = ["hidden", *(["pooled"] if c.pooler else []), *(["logits"] if c.head != "none" else [])]
    expected = dict(zip(names, encoded(model, inputs, mask, segments), strict=True))
    given = {"inputs": inputs, "mask": mask} | ({} if segments is None else {"segments": segments})
    return [Call(given, expected, {name: mask[:, 0] if name == "pooled" else mask for name in names})]


def _of_decoder(model: Any, rows: int, steps: int, source: int, generator: torch.Generator) -> Case:
    pad, vocabulary = model.config.pad_id, model.config.vocabulary_size
    longest = context_of(model) or sum((steps, source, *AFTERWARDS))

    def ids(steps: int) -> Tensor:
        drawn = torch.randint(vocabulary, (rows, steps), generator=generator)
        return drawn.masked_fill(drawn == pad, (pad + 1) % vocabulary)

    calls, state, read = [], None, 0
    if isinstance(model, EncoderDecoder):
        sources = _on_both_sides(ids(min(source, longest)), pad)
        state = model.encode(sources)
        calls.append(Call({"source": sources}, {}, {}))
    for more in (min(steps, longest), *AFTERWARDS):
        if (read := read + more) > longest:
            break
        tokens = ids(more)
        tokens[:1, : more // 3] = pad  # on the left
        logits, state = next_logits(model, tokens, state)
        calls.append(
            Call({"tokens": tokens}, {"logits": logits}, {"logits": torch.ones(rows, dtype=torch.bool)})
        )
    return calls


def _on_both_sides(values: Tensor, pad: int | bool) -> Tensor:
    """values `(rows, steps)` padded on the left in the first row, on the right in the second, where there are
    two."""
    if len(values) > 1 and values.shape[1] > 2:
        values[0, :2] = pad
        values[1, -2:] = pad
    return values


def check(found: Exportable, cases: list[Case], folder: Path) -> float:
    """The largest difference, as a share of the largest value, between the written graphs and `cases`.

    Raises SeqloomError where it is above TOLERANCE.
    """
    runs = [(graph, open_graph(graph, folder)) for graph in found.graphs]
    worst = 0.0
    for number, case in enumerate(cases):
        known = {
            value.name: value.zeros({"rows": SHAPES[number][0], "past": 0, "source": 0})
            for value in found.state
        }
        for at, call in enumerate(case):
            graph, run = runs[0 if at == 0 else -1]
            outputs = run(known | call.given)
            for name, expected in call.expected.items():
                difference = _difference(outputs[name], expected, call.compared[name])
                if not difference <= TOLERANCE:
                    raise SeqloomError(
                        f"{graph.file}: must do what the model does to {TOLERANCE:.0e} of its largest value,"
                        f" but {name} differs by {difference:.1e} at call {at + 1} of shape {SHAPES[number]};"
                        " nothing was written, please report this"
                    )
                worst = max(worst, difference)
            known |= {name.removeprefix("next_"): value for name, value in outputs.items()}
    return worst


def _difference(found: Tensor, expected: Tensor, compared: Tensor) -> float:
    found, expected = found[compared], expected[compared]
    if found.shape != expected.shape or not expected.numel():
        return 0.0 if found.shape == expected.shape else float("inf")
    return float(
        (found - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)
    )


Run = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Inputs by name, others among them -> outputs by name."""


def open_graph(graph: Graph, folder: Path) -> Run:
    """The written file, run by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        str(folder / graph.file), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in graph.outputs]

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = {value.name: inputs[value.name].numpy() for value in graph.inputs}
        return dict(zip(names, map(torch.from_numpy, session.run(names, given)), strict=True))

    return run
