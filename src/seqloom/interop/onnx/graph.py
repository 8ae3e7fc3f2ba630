"""One graph in the ONNX format: a module with tensors in and out, traced by torch's exporter with any number
of rows and steps.

A graph cannot branch on whether all of a tensor is true (is there no padding?), or any of it. Under `general`
the answer is always "not all, but some", so a model computes the way that is right in every case.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from seqloom.errors import MissingExtraError, SeqloomError, printable
from seqloom.interop.checkpoint import dtype_name

Size = int | str
"""Of a dimension: a number, or the name of one that differs from call to call."""

EXAMPLE_SIZES = {"rows": 3, "steps": 5, "source": 6, "past": 4}
"""For tracing; all different and above 1: the tracer takes equal sizes for one, and 0 and 1 for constants."""


class Value(NamedTuple):
    """An input or output of a graph."""

    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype = torch.float32

    def zeros(self, sizes: Mapping[str, int]) -> Tensor:
        """Of zeros (False), with these sizes of the named dimensions."""
        shape = [int(sizes.get(str(size), size)) for size in self.shape]
        return torch.zeros(shape, dtype=self.dtype)

    def described(self) -> dict[str, object]:
        """For a JSON file."""
        return {"name": self.name, "type": dtype_name(self.dtype), "shape": list(self.shape)}


class Graph(NamedTuple):
    """What becomes one file."""

    name: str
    module: nn.Module
    """Takes the inputs in order, and returns the outputs in order."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    metadata: Mapping[str, str] = {}
    """What the file says beside the graph, such as the labels of its outputs."""

    @property
    def file(self) -> str:
        return f"{self.name}.onnx"

    def described(self) -> dict[str, object]:
        """For a JSON file."""
        return {
            "file": self.file,
            "inputs": [value.described() for value in self.inputs],
            "outputs": [value.described() for value in self.outputs],
        }


class ModelGraphs(NamedTuple):
    """The graphs of a model."""

    encoder: Graph | None
    step: Graph | None

    @property
    def graphs(self) -> list[Graph]:
        return [graph for graph in self if graph is not None]

    @property
    def state(self) -> tuple[Value, ...]:
        """What `step` takes and returns."""
        return () if self.step is None else self.step.inputs[1 : len(self.step.outputs)]


TOKENS = Value("tokens", ("rows", "steps"), torch.int64)
SOURCE = Value("source", ("rows", "source"), torch.int64)


def step_graph(
    module: nn.Module, vocabulary: int, state: Sequence[Value], memory: Sequence[Value] = ()
) -> Graph:
    """Tokens, state, and what is only read -> the logits after the last token, and the state."""
    outputs = [Value("logits", ("rows", vocabulary))]
    for name, shape, dtype in state:
        longer = tuple("past + steps" if size == "past" else size for size in shape)
        outputs.append(Value(f"next_{name}", longer, dtype))
    return Graph("step", module, (TOKENS, *state, *memory), tuple(outputs))


@final
class general(TorchFunctionMode):  # reads as a statement: with general():
    """Under it, `all` of any tensor is False and `any` is True.

    Masks that are added to the scores of attention are clamped to the smallest number: a query with -inf
    everywhere, at padding, is NaN in ONNX, and what attends to padding later gets that times 0.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        given = dict(kwargs or {})
        if len(args) == 1 and not given and func in (torch.Tensor.all, torch.Tensor.any):
            return func is torch.Tensor.any
        if func is F.scaled_dot_product_attention:
            mask = given["attn_mask"]
            if mask is not None and mask.is_floating_point():
                given["attn_mask"] = mask.clamp(min=torch.finfo(mask.dtype).min)
        return func(*args, **given)


def require_onnx() -> None:
    """Raises MissingExtraError if the extra is not installed."""
    if any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")):
        raise MissingExtraError("an export to ONNX", "onnx")


def write_graph(graph: Graph, folder: Path) -> None:
    """Writes `graph.file`, and beside it `.data` with the weights where they have more than 2 GB.

    Raises SeqloomError if torch cannot export the module.
    """
    with _quiet():
        try:
            program = _exported(graph)
        except Exception as error:  # torch raises whatever it met; the user can only learn why
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SeqloomError(
                f"{graph.file}: torch cannot export this model to ONNX ({printable(reason)})"
            ) from error
        program.save(folder / graph.file)


def _exported(graph: Graph) -> torch.onnx.ONNXProgram:
    from onnxscript import ir

    # values other than zeros, for a shape must not depend on them
    examples = tuple(
        value.zeros(EXAMPLE_SIZES) + (value.dtype != torch.bool) for value in graph.inputs
    )
    dynamic = []
    for value in graph.inputs:
        dynamic.append(
            {axis: Dim.DYNAMIC for axis, size in enumerate(value.shape) if isinstance(size, str)}
        )
    with torch.enable_grad():
        traced = torch.export.export(
            _OneInput(graph.module),
            (examples,),
            dynamic_shapes=(tuple(dynamic),),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    program = torch.onnx.export(
        traced,
        dynamo=True,
        verbose=False,
        input_names=[value.name for value in graph.inputs],
        output_names=[value.name for value in graph.outputs],
        custom_translation_table={torch.ops.aten.cummax.default: _cummax},
    )
    assert program is not None
    program.model.metadata_props.update(graph.metadata)
    written = (*program.model.graph.inputs, *program.model.graph.outputs)
    for onnx_value, named in zip(written, (*graph.inputs, *graph.outputs), strict=True):
        onnx_value.shape = ir.Shape(named.shape)
    for part in program.model.graphs():
        for node in part:
            node.metadata_props.clear()  # stack traces with paths of this machine
            for output in node.outputs:
                output.metadata_props.clear()
    return program


@final
class _OneInput(nn.Module):
    """All inputs as one tuple: dynamic shapes are then one tuple, however many there are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Callable[..., tuple[Tensor, ...]] = module

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.module(*inputs)


def _cummax(values: object, dim: int) -> tuple[object, object]:
    """`torch.cummax` of `(rows, steps)` along the steps, which torch's exporter lacks: the largest of all
    values up to a step. Its indices are not computed."""
    from onnxscript import opset18

    assert dim == 1
    op: Any = opset18
    axes = [op.Constant(value_ints=[axis]) for axis in range(3)]
    steps = op.Squeeze(op.Shape(values, start=1, end=2))
    at = op.Range(op.Constant(value_int=0), steps, op.Constant(value_int=1))
    seen = op.LessOrEqual(op.Unsqueeze(at, axes[0]), op.Unsqueeze(at, axes[1]))
    lowest = op.Constant(value_int=torch.iinfo(torch.int64).min)
    largest = op.ReduceMax(
        op.Where(seen, op.Unsqueeze(values, axes[1]), lowest), axes[2], keepdims=0
    )
    return largest, largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter logs about itself."""
    levels = {
        name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")
    }
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            message = "`isinstance\\(treespec, LeafSpec\\)` is deprecated"
            warnings.filterwarnings("ignore", message, FutureWarning)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
