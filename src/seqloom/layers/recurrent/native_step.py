"""A step of decoding through recurrent layers in one compiled call, with the embedding of its tokens, the
attention of a decoder and the map before the output layer: `native/recurrent_step.h`.

It serves while a `PackedWeights` is open, for one token of each row after others, in float32 on a CPU. From
weights in fewer bits prompts are read by it too, one step at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn

from seqloom.layers.attention import AttentionScores
from seqloom.layers.packed_linear import (
    LinearArguments,
    is_readable,
    packed_linear,
    threads_for,
)
from seqloom.layers.recurrent.cells import BUILT_IN, CELLS, CellState
from seqloom.layers.recurrent.highway import HighwayGate
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.native_attention import (
    AttentionArguments,
    ContextParts,
    NativeAttention,
    ReadMemory,
)
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.native.library import DecodingFunctions, decoding_functions, in_memory
from seqloom.packed_weights import PackedWeights, current

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p
CONNECTIONS = ("none", "residual", "highway")
"""In the order of `Connection` in `recurrent_step.h`."""
WITH_C = CELLS["lstm"]
PRODUCTS = 3
"""The most products with the state that a cell has."""


class RecurrentLayerArguments(ctypes.Structure):
    """`RecurrentLayerStep` in `recurrent_step.h`."""

    _fields_ = [
        *((name, _LONG) for name in ("cell", "connection", "width")),
        ("input", LinearArguments),
        ("hidden", LinearArguments * PRODUCTS),
        ("projection", LinearArguments),
        ("highway", LinearArguments),
        *((name, _POINTER) for name in ("bias", "candidate_bias")),
        *((name, _POINTER) for name in ("h", "c", "new_h", "new_c")),
        *((name, _LONG) for name in ("h_stride", "c_stride")),
    ]


class RecurrentStepArguments(ctypes.Structure):
    """`RecurrentStep` in `recurrent_step.h`."""

    _fields_ = [
        ("layers", _POINTER),
        *((name, _LONG) for name in ("count", "rows", "widest")),
        *((name, _POINTER) for name in ("ids", "embedding")),
        ("stored", LinearArguments),
        *((name, _LONG) for name in ("vocabulary", "width", "pad", "start")),
        ("attention", AttentionArguments),
        ("to_output", LinearArguments),
        ("maxout", _LONG),
        ("y", _POINTER),
    ]


class RecurrentParts(NamedTuple):
    """What of a recurrent model comes before its output layer."""

    embedding: nn.Module
    stacks: Sequence[RecurrentStack]
    to_output: nn.Module | None
    pad: int
    start: int
    """The id that begins a document; where none does, that of `<pad>`."""
    context: ContextParts | None = None
    """What a decoder reads of its input; `to_output` reads the state, the token and that."""
    maxout: bool = False
    """Whether the larger of each pair of numbers from `to_output` is taken."""

    def layers(self) -> list[RecurrentLayer]:
        return [layer for stack in self.stacks for layer in stack.stack]

    def linear_maps(self) -> list[nn.Module]:
        """Those of a step."""
        gates = [cast("HighwayGate", gate) for stack in self.stacks for gate in stack.highways]
        maps: list[nn.Module] = [gate.linear for gate in gates]
        maps += [] if self.to_output is None else [self.to_output]
        return maps + ([] if self.scores is None else self.scores.query_maps())

    @property
    def scores(self) -> AttentionScores | None:
        """Of a decoder with attention."""
        return None if self.context is None else self.context.scores

    def modules(self) -> list[nn.Module]:
        """All that has weights."""
        optional = (self.to_output, self.scores)
        return [*self.stacks, self.embedding, *(one for one in optional if one is not None)]

    def weights(self) -> list[Tensor]:
        """Those that a step multiplies by, the embedding left out."""
        weights = [cast("nn.Linear", each).weight for each in self.linear_maps()]
        for layer in self.layers():
            weights += [layer.weight_x, layer.weight_h]
            weights += [] if layer.weight_p is None else [layer.weight_p]
        return list[Tensor](weights)


def read_token(
    model: nn.Module,
    parts: Callable[[], RecurrentParts],
    tokens: Tensor,
    state: CellState,
    memory: ReadMemory | None = None,
) -> tuple[Tensor, CellState] | None:
    """tokens `(rows, 1)` -> hidden `(rows, 1, width)` and the state after them; None where that cannot be in
    one call, or a token is padding or begins a document."""
    step = (
        _step_of(model, parts) if tokens.shape[1] == 1 and in_memory(tokens, torch.long) else None
    )
    return None if step is None else step(tokens, state, memory)


def read_steps(
    model: nn.Module,
    parts: Callable[[], RecurrentParts],
    tokens: Tensor,
    state: CellState,
    memory: ReadMemory | None = None,
) -> tuple[Tensor, CellState] | None:
    """tokens `(rows, steps)` of one document each, padded anywhere -> hidden `(rows, steps, width)`, 0 at
    padding, and the state after them, from weights in fewer bits; None where all are in float32."""
    weights = current()
    if weights is None or weights.storage == "float32":
        return None
    step = _step_of(model, parts)
    assert step is not None
    mask = tokens != parts().pad
    hidden: list[Tensor] = []
    for at in range(tokens.shape[1]):
        ids, real = tokens[:, at : at + 1].clamp(min=0), mask[:, at : at + 1]
        found = step(ids, state, memory, anywhere=True)
        if found is None:
            raise IndexError(f"ids must be below {step.vocabulary}")
        state = tuple(
            torch.where(real[..., None], new, old) for new, old in zip(found[1], state, strict=True)
        )
        hidden.append(found[0] * real[..., None])
    return torch.cat(hidden, dim=1), state


def prepare_step(model: nn.Module, parts: Callable[[], RecurrentParts]) -> None:
    """Packs the weights of a model while a `PackedWeights` is open."""
    if _step_of(model, parts) is None:
        raise ValueError(f"there must be a compiled step, but {why_not(parts())}")


def _step_of(model: nn.Module, parts: Callable[[], RecurrentParts]) -> NativeRecurrentStep | None:
    """The compiled step, where it serves here and now."""
    weights = current()
    if (
        weights is None
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or model.training
        or decoding_functions() is None
    ):
        return None
    step = weights.get(model, lambda _: _native_step(parts(), weights))
    return None if step is None or step.watched() else step


def _native_step(parts: RecurrentParts, weights: PackedWeights) -> NativeRecurrentStep | None:
    return None if why_not(parts) else NativeRecurrentStep(parts, weights)


def why_not(parts: RecurrentParts) -> str:
    """Why there is no compiled step, as a clause; empty if there is one."""
    if type(parts.embedding) is not nn.Embedding:
        return "its tokens are one-hot vectors"
    if not all(type(one) is nn.Linear for one in parts.linear_maps()):
        return "its linear maps have adapters (LoRA)"
    for layer in parts.layers():
        if layer.cell not in BUILT_IN:
            return "its cell is not one of seqloom's own"
        if layer.normalisation != "none":
            return "its layers are normalised"
    if not all(is_readable(weight) for one in parts.modules() for weight in one.parameters()):
        return "its weights are not in float32 on a CPU"
    return ""


@final
class NativeRecurrentStep:
    """The weights of recurrent layers, packed, and all else that their step needs. Keeps every tensor alive
    whose address it has given away."""

    def __init__(self, parts: RecurrentParts, weights: PackedWeights) -> None:
        self._functions = cast("DecodingFunctions", decoding_functions())
        self._weights, self._alive = weights, list[object]()
        self._layers = parts.layers()
        own = [self._layer(stack, k) for stack in parts.stacks for k in range(len(stack.stack))]
        self._of_layers = (RecurrentLayerArguments * len(own))(*own)
        # for each layer its stack's tensors in the state, and its place in them
        self._places, self._shapes = list[tuple[int, int]](), list[tuple[int, int]]()
        for stack in parts.stacks:
            layers, first = len(stack.stack), stack.stack[0]
            self._places += [(len(self._shapes), k) for k in range(layers)]
            widths = (first.output_width, first.width)[: first.cell.state_count]
            self._shapes += [(layers, width) for width in widths]
        embedding = cast("nn.Embedding", parts.embedding).weight
        self.vocabulary, width = embedding.shape
        self._width = self._layers[-1].output_width
        self._arguments = RecurrentStepArguments(
            count=len(own),
            widest=max(one.outputs for layer in own for one in (layer.input, *layer.hidden)),
            vocabulary=self.vocabulary,
            width=width,
            pad=parts.pad,
            start=parts.start,
        )
        if weights.storage == "float32" and in_memory(embedding, torch.float32):
            self._alive.append(embedding)
            self._arguments.embedding = embedding.data_ptr()
        else:
            self._arguments.stored = self._linear(embedding)
        self._arguments.maxout = parts.maxout
        if parts.to_output is not None:
            to_output = cast("nn.Linear", parts.to_output)
            self._arguments.to_output = self._linear(to_output.weight, to_output.bias)
            self._width = to_output.out_features // (2 if parts.maxout else 1)
        self._attention: NativeAttention | None = None
        if parts.context is not None:
            state_width = self._layers[-1].output_width
            self._attention = NativeAttention(parts.context, state_width, weights)
        of_steps = (one for one in parts.modules() if one is not parts.embedding)
        self._numbers = sum(weight.numel() for one in of_steps for weight in one.parameters())

    def watched(self) -> bool:
        """Whether somebody looks at the layers or at weights of attention, or the layers' weights are not
        their own."""
        if self._attention is not None and self._attention.watched():
            return True
        return any(
            layer.watch is not None or layer.dropped_weight_h is not None for layer in self._layers
        )

    def __call__(
        self,
        tokens: Tensor,
        state: CellState,
        memory: ReadMemory | None = None,
        *,
        anywhere: bool = False,
    ) -> tuple[Tensor, CellState] | None:
        """As `read_token`; `anywhere`: whatever the tokens are."""
        rows, tokens = tokens.shape[0], tokens.contiguous()
        shapes = [(rows, *shape) for shape in self._shapes]
        if [tuple(part.shape) for part in state] != shapes or not all(
            in_memory(part, torch.float32) for part in state
        ):
            raise ValueError(f"a state must be float32 of shapes {shapes} on a CPU")
        old = [part.contiguous() for part in state]
        new = [torch.empty_like(part) for part in old]
        layers = (RecurrentLayerArguments * len(self._layers)).from_buffer_copy(self._of_layers)
        for layer, (first, k) in zip(layers, self._places, strict=True):
            layer.h_stride = old[first][0].numel() if rows else 0
            at = 4 * k * old[first].shape[2]
            layer.h, layer.new_h = old[first].data_ptr() + at, new[first].data_ptr() + at
            if BUILT_IN[layer.cell] == WITH_C:
                layer.c_stride = old[first + 1].shape[1] * layer.width
                at = 4 * k * layer.width
                layer.c, layer.new_c = (
                    old[first + 1].data_ptr() + at,
                    new[first + 1].data_ptr() + at,
                )
        hidden = torch.empty(rows, 1, self._width, device="cpu")
        arguments = RecurrentStepArguments.from_buffer_copy(self._arguments)
        arguments.layers, arguments.rows = ctypes.addressof(layers), rows
        arguments.ids, arguments.y = tokens.data_ptr(), hidden.data_ptr()
        if self._attention is not None:
            assert memory is not None
            attended = self._attention.of(memory, rows)
            arguments.attention = attended.arguments
        if anywhere:
            arguments.pad = arguments.start = -1
        made = self._functions.recurrent_step(
            ctypes.byref(arguments), threads_for(2 * rows * self._numbers)
        )
        return (hidden, tuple(new)) if made else None

    def _layer(self, stack: RecurrentStack, k: int) -> RecurrentLayerArguments:
        layer = stack.stack[k]
        cell, weights = layer.cell, layer.weights
        arguments = RecurrentLayerArguments(
            cell=BUILT_IN.index(cell), width=layer.width, input=self._linear(weights.w_x)
        )
        groups = zip(cell.gate_groups, cell.reads_hidden, strict=True)
        sizes = [len(group) * layer.width for group, reads in groups if reads]
        for number, part in enumerate(layer.weight_h.detach().split_with_sizes(sizes)):
            arguments.hidden[number] = self._linear(part)
        if weights.w_p is not None:
            arguments.projection = self._linear(weights.w_p)
        if k:
            arguments.connection = CONNECTIONS.index(stack.config.connection)
            if stack.config.connection == "highway":
                gate = cast("HighwayGate", stack.highways[k - 1]).linear
                arguments.highway = self._linear(gate.weight, gate.bias)
        for name, bias in (
            ("bias", weights.input_bias()),
            ("candidate_bias", weights.candidate_bias()),
        ):
            if bias is not None:
                bias = bias.detach().contiguous()
                self._alive.append(bias)
                setattr(arguments, name, bias.data_ptr())
        return arguments

    def _linear(self, weight: Tensor, bias: Tensor | None = None) -> LinearArguments:
        packed = packed_linear(self._weights, weight)
        bias = None if bias is None else bias.detach()
        self._alive += packed, bias
        return packed.arguments(bias)
