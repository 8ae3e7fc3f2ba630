"""One graph in the ONNX format: a module with tensors in and out, traced by torch's exporter with rows and
steps of any number.

Whether all of a tensor is true (is there no padding?), or any of it, has no answer in a graph. Inside of
`general` it is not all, but any, and a model takes the way that is right in every case.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
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

Size = int | str
"""Of a dimension: a number, or the name of one that differs from call to call."""

EXAMPLE = {"rows": 3, "steps": 5, "source": 6, "past": 4}
"""Sizes for tracing, all unlike each other and above 1: the tracer takes equal ones for one, and 0 and 1 for
constants."""


class Value(NamedTuple):
    """An input or output of a graph."""

    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype = torch.float32

    def zeros(self, sizes: Mapping[str, int]) -> Tensor:
        """Of zeros (False), with these sizes of the named dimensions."""
        return torch.zeros(
            [sizes[size] if isinstance(size, str) else size for size in self.shape], dtype=self.dtype
        )

    def described(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"name": self.name, "type": str(self.dtype).removeprefix("torch."), "shape": list(self.shape)}


class Graph(NamedTuple):
    """What becomes one file."""

    name: str
    module: nn.Module
    """Takes the inputs in order, and returns the outputs in order."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def file(self) -> str:
        return f"{self.name}.onnx"

    def described(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "file": self.file,
            "inputs": [value.described() for value in self.inputs],
            "outputs": [value.described() for value in self.outputs],
        }


class Exportable(NamedTuple):
    """The graphs of a model."""

    encoder: Graph | None
    step: Graph | None

    @property
    def graphs(self) -> list[Graph]:
        return [graph for graph in self if graph is not None]

    @property
    def state(self) -> tuple[Value, ...]:
        """What `step` takes and gives back."""
        return () if self.step is None else self.step.inputs[1 : len(self.step.outputs)]


TOKENS = Value("tokens", ("rows", "steps"), torch.int64)
SOURCE = Value("source", ("rows", "source"), torch.int64)


def step_graph(
    module: nn.Module, vocabulary: int, state: Sequence[Value], looked_at: Sequence[Value] = ()
) -> Graph:
    """Tokens, state, and what is looked at -> the logits after the last token, and the state."""
    after = (
        Value(f"next_{name}", tuple(LONGER.get(size, size) for size in shape), dtype)
        for name, shape, dtype in state
    )
    return Graph(
        "step", module, (TOKENS, *state, *looked_at), (Value("logits", ("rows", vocabulary)), *after)
    )


LONGER: Mapping[Size, Size] = {"past": "past + steps"}
"""What a step changes in the shape of a state."""


@final
class general(TorchFunctionMode):  # read as a statement: with general():
    """Where it is on, no question to all of a tensor is answered by yes, and every question to any of it is.

    A number that is added to the scores of attention is not below the smallest one: a query that has -inf
    everywhere, at padding, is NaN in ONNX, and what looks at padding later gets that times 0.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if len(args) == 1 and not given and func in (torch.Tensor.all, torch.Tensor.any):
            return func is torch.Tensor.any
        if (
            func is F.scaled_dot_product_attention
            and (mask := given["attn_mask"]) is not None
            and mask.is_floating_point()
        ):
            given["attn_mask"] = mask.clamp(min=torch.finfo(mask.dtype).min)
        return func(*args, **given)


def require_onnx() -> None:
    """Raises MissingExtraError where the extra is not installed."""
    if any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")):
        raise MissingExtraError("an export to ONNX", "onnx")


def write_graph(graph: Graph, folder: Path) -> None:
    """Writes `graph.file`, and beside it `.data` with the weights where they have more than 2 GB.

    Raises SeqloomError where torch cannot export the module.
    """
    with _quiet():
        try:
            program = _exported(graph)
        except Exception as error:  # whatever it met, the user can only be told which model it was
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SeqloomError(
                f"{graph.file}: torch cannot export this model to ONNX ({printable(reason)})"
            ) from error
        program.save(folder / graph.file)


def _exported(graph: Graph) -> Any:
    from onnxscript import ir

    # values other than zeros, for a shape must not depend on them
    examples = tuple(value.zeros(EXAMPLE) + (value.dtype != torch.bool) for value in graph.inputs)
    free = tuple(
        {at: Dim.DYNAMIC for at, size in enumerate(value.shape) if isinstance(size, str)}
        for value in graph.inputs
    )
    with torch.enable_grad():
        traced = torch.export.export(
            _Positional(graph.module),
            (examples,),
            dynamic_shapes=(free,),
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
    for value, named in zip(
        (*program.model.graph.inputs, *program.model.graph.outputs),
        (*graph.inputs, *graph.outputs),
        strict=True,
    ):
        value.shape = ir.Shape(named.shape)
    return program


@final
class _Positional(nn.Module):
    """All inputs as one tuple: dynamic shapes are then one tuple, however many there are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.module(*inputs)
        return outputs


def _cummax(values: Any, dim: int) -> tuple[Any, Any]:
    """`torch.cummax` of `(rows, steps)` along the steps, which torch's exporter lacks; its indices are not
    formed."""
    from onnxscript import opset18

    assert dim == 1
    op: Any = opset18
    steps = op.Squeeze(op.Shape(values, start=1, end=2))
    at = op.Range(op.Constant(value_int=0), steps, op.Constant(value_int=1))
    seen = op.LessOrEqual(
        op.Unsqueeze(at, op.Constant(value_ints=[0])), op.Unsqueeze(at, op.Constant(value_ints=[1]))
    )
    lowest = op.Constant(value_int=torch.iinfo(torch.int64).min)
    each = op.Where(seen, op.Unsqueeze(values, op.Constant(value_ints=[1])), lowest)
    largest = op.ReduceMax(each, op.Constant(value_ints=[2]), keepdims=0)
    return largest, largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`isinstance\\(treespec, LeafSpec\\)` is deprecated", FutureWarning
            )
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
