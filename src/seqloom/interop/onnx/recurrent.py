"""RecurrentStack models as ONNX graphs: the state is h (and c), and time is a scan over the model's own steps.

A step of padding keeps the state, so a scan reads rows with padding anywhere: backwards it reads the whole
row from its end.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from seqloom.errors import UsageError
from seqloom.interop.onnx.graph import SOURCE, Exportable, Graph, Size, Value, step_graph
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, layer_state, stack_states
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import AttentionMemory, Seq2Seq, Seq2SeqState


@final
class Scanned(nn.Module):
    """`RecurrentStack` as two scans a layer, one in each direction; both pass padding by, wherever it lies, so
    nothing is packed."""

    def __init__(self, recurrent: RecurrentStack) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, width)`, mask `(rows, steps)` -> as `RecurrentStack`."""
        both, after = self.recurrent, list[CellState]()
        before = both.start(inputs.shape[0])
        outputs = inputs
        for k, layer in enumerate(both.stack):
            above, end = _scanned(layer, outputs, mask, layer_state(before, len(after)))
            after.append(end)
            if both.config.bidirectional:
                backward: Any = both.backward_layers[k]
                reverse, end = _scanned(
                    backward, outputs.flip(1), mask.flip(1), layer_state(before, len(after))
                )
                above = torch.cat([above, reverse.flip(1)], dim=-1)
                after.append(end)
            outputs = both.connect(k, outputs, above)
        return outputs, stack_states(after)


def _scanned(
    layer: RecurrentLayer, inputs: Tensor, mask: Tensor, state: CellState
) -> tuple[Tensor, CellState]:
    """One layer in one direction: outputs `(rows, steps, width of h)`, and the state after the last true
    step."""

    def step(old: CellState, now: tuple[Tensor, Tensor]) -> tuple[CellState, Tensor]:
        product, true = now
        new = _kept(true, layer.step(product, old), old)
        return new, new[0].clone()

    products = layer.input_gates(layer.input_product(inputs)).transpose(0, 1).contiguous()
    after, outputs = scan(step, tuple(part.contiguous() for part in state), (products, mask.T.contiguous()))
    return outputs.transpose(0, 1), after


def _kept(true: Tensor, new: CellState, old: CellState) -> CellState:
    """The new state where `true` `(rows,)`, else the old one."""
    return tuple(
        torch.where(true.view(-1, *[1] * (n.dim() - 1)), n, o) for n, o in zip(new, old, strict=True)
    )


@final
class RecurrentStep(nn.Module):
    """Some tokens of a recurrent language model, one after another."""

    def __init__(self, model: RecurrentLM) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)  # a scan has no gradients here

    def forward(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        after, hidden = scan(self._step, state, tokens.T.contiguous())
        return self.model.output.logits(hidden[-1]), *after

    def _step(self, carried: CellState, token: Tensor) -> tuple[CellState, Tensor]:
        c = self.model.config
        old = (
            _kept(token != c.bos_id, carried, tuple(map(torch.zeros_like, carried)))
            if c.documents == "separate"
            else carried
        )
        x, parts = self.model.embedding(token), iter(old)
        new: list[Tensor] = []
        for stack in self.model.stacks:
            outputs, end = stack.one_step(
                x, tuple(next(parts) for _ in range(stack.stack[0].cell.state_count))
            )
            x = outputs[:, 0]
            new += end
        return _kept(token != c.pad_id, tuple(new), old), self.model.to_output(x).clone()


def of_recurrent_lm(model: RecurrentLM) -> Exportable:
    c = model.config
    if c.maxent:
        raise UsageError("ONNX holds a RecurrentLM without model.maxent, but this has one")
    state = tuple(
        Value(f"hidden_{k}", ("rows", *part.shape[1:])) for k, part in enumerate(model.start(1).hidden)
    )
    return Exportable(None, step_graph(RecurrentStep(model), c.vocabulary_size, state))


@final
class RecurrentSourceEncoder(nn.Module):
    """The encoder of a recurrent encoder-decoder: the decoder's first state, and what it looks at."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        model.encoder = Scanned(model.encoder)  # type: ignore[assignment]

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        state: Seq2SeqState = self.model.encode(source)
        values, keys, mask, _ = state.memory.value
        return *state.hidden, mask, values.clone(), keys.clone()


@final
class LookingRecurrentStep(nn.Module):
    """Some tokens of a recurrent decoder, one after another."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.step = (
            model._look_then_step
            if model.attention is not None and model.reads_context
            else model._step_then_look
        )

    def forward(self, tokens: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        state, (mask, values, keys) = others[:-3], others[-3:]
        memory = AttentionMemory(
            values, keys, mask, mask
        )  # the last says which inputs there are, and a step does not ask

        def step(old: CellState, token: Tensor) -> tuple[CellState, Tensor]:
            embedded = self.model.target_embedding(token)[:, None]
            decoded, new, contexts, _ = self.step(embedded, None, old, memory)  # type: ignore[arg-type]  # no mask
            hidden = self.model.readout(decoded, embedded, contexts)[:, 0]
            return _kept(token != self.model.config.pad_id, new, old), hidden.clone()

        after, hidden = scan(step, state, tokens.T.contiguous())
        return self.model.output.logits(hidden[-1]), *after


def of_seq2seq(model: Seq2Seq) -> Exportable:
    c = model.config
    if c.normalisation == "batch":
        raise UsageError(
            "ONNX holds a Seq2Seq without model.normalisation=batch, whose steps differ, but this has it"
        )
    source: Size = 1 if c.attention == "none" else "source"
    keys_width = {"none": c.memory_width, "additive": c.attention_width}.get(c.attention, c.output_width)
    widths = (c.output_width, c.width)[: CELLS[c.cell].state_count]
    state = tuple(Value(f"hidden_{k}", ("rows", c.decoder_layers, width)) for k, width in enumerate(widths))
    looked_at = (
        Value("memory_mask", ("rows", source), torch.bool),
        Value("memory_values", ("rows", source, c.memory_width)),
        Value("memory_keys", ("rows", source, keys_width)),
    )
    encoder = Graph("encoder", RecurrentSourceEncoder(model), (SOURCE,), (*state, *looked_at))
    return Exportable(encoder, step_graph(LookingRecurrentStep(model), c.vocabulary_size, state, looked_at))
