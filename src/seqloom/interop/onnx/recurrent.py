"""Recurrent models as ONNX graphs: the state is h (and c), and time is a scan over the model's own steps.

A step of padding keeps the state, so a scan reads rows with padding anywhere; the backward direction reads
the whole row from its end.
"""

from __future__ import annotations

from typing import cast, final

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from seqloom.errors import UsageError
from seqloom.interop.onnx.graph import SOURCE, Graph, ModelGraphs, Size, Value, step_graph
from seqloom.layers.attention import AttentionMemory
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, layer_state, stack_states
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqState


@final
class ScannedRecurrent(nn.Module):
    """`RecurrentStack` with one scan for each layer and direction. A scan skips padding anywhere, so nothing
    is packed."""

    def __init__(self, recurrent: RecurrentStack) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """inputs `(rows, steps, width)`, mask `(rows, steps)` -> as `RecurrentStack`."""
        recurrent, after = self.recurrent, list[CellState]()
        before = recurrent.start(inputs.shape[0])
        outputs = inputs
        for k, layer in enumerate(recurrent.stack):
            hidden, end = _scan_layer(layer, outputs, mask, layer_state(before, len(after)))
            after.append(end)
            if recurrent.config.bidirectional:
                backward = cast(RecurrentLayer, recurrent.backward_layers[k])
                start = layer_state(before, len(after))
                reverse, end = _scan_layer(backward, outputs.flip(1), mask.flip(1), start)
                hidden = torch.cat([hidden, reverse.flip(1)], dim=-1)
                after.append(end)
            outputs = recurrent.connect(k, outputs, hidden)
        return outputs, stack_states(after)


def _scan_layer(
    layer: RecurrentLayer, inputs: Tensor, mask: Tensor, state: CellState
) -> tuple[Tensor, CellState]:
    """One layer in one direction: outputs `(rows, steps, width of h)`, and the state after the last step that
    is no padding."""

    def step(old: CellState, now: tuple[Tensor, Tensor]) -> tuple[CellState, Tensor]:
        product, real = now
        new = _where(real, layer.step(product, old), old)
        return new, new[0].clone()

    products = layer.input_gates(layer.input_product(inputs)).transpose(0, 1).contiguous()
    after, outputs = scan(
        step, tuple(part.contiguous() for part in state), (products, mask.T.contiguous())
    )
    return outputs.transpose(0, 1), after


def _where(condition: Tensor, new: CellState, old: CellState) -> CellState:
    """The new state in the rows where `condition` `(rows,)` is true, else the old one."""
    parts = []
    for n, o in zip(new, old, strict=True):
        parts.append(torch.where(condition.view(-1, *[1] * (n.dim() - 1)), n, o))
    return tuple(parts)


@final
class RecurrentStep(nn.Module):
    """Some tokens of a recurrent language model, one after another."""

    def __init__(self, model: RecurrentLM) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)  # a scan has no gradients here

    def forward(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        after, hidden = scan(self._step, state, tokens.T.contiguous())
        return self.model.output.logits(hidden[-1]), *after

    def _step(self, old: CellState, token: Tensor) -> tuple[CellState, Tensor]:
        c = self.model.config
        if c.documents == "separate":
            old = _where(token != c.bos_id, old, tuple(map(torch.zeros_like, old)))
        x, parts = self.model.embedding(token), iter(old)
        new: list[Tensor] = []
        for stack in self.model.stacks:
            outputs, end = stack.one_step(
                x, tuple(next(parts) for _ in range(stack.stack[0].cell.state_count))
            )
            x = outputs[:, 0]
            new += end
        return _where(token != c.pad_id, tuple(new), old), self.model.to_output(x).clone()


def recurrent_lm_graphs(model: RecurrentLM) -> ModelGraphs:
    c = model.config
    if c.maxent:
        raise UsageError("ONNX holds a RecurrentLM without model.maxent, but this has one")
    hidden = enumerate(model.start(1).hidden)
    state = [Value(f"hidden_{k}", ("rows", *part.shape[1:])) for k, part in hidden]
    return ModelGraphs(None, step_graph(RecurrentStep(model), c.vocabulary_size, state))


@final
class RecurrentSourceEncoder(nn.Module):
    """The encoder of a recurrent encoder-decoder: the decoder's first state, and its memory."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        model.encoder = ScannedRecurrent(model.encoder)  # type: ignore[assignment]

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        state: Seq2SeqState = self.model.encode(source)
        values, keys, mask, _ = state.memory.value
        return *state.hidden, mask, values.clone(), keys.clone()


@final
class AttentionStep(nn.Module):
    """Some tokens of a recurrent decoder, one after another."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        attends_first = model.attention is not None and model.reads_context
        self.step = model.attend_then_step if attends_first else model.step_then_attend

    def forward(self, tokens: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        state, (mask, values, keys) = others[:-3], others[-3:]
        # the last says which inputs there are, which a step does not use
        memory = AttentionMemory(values, keys, mask, mask)

        def step(old: CellState, token: Tensor) -> tuple[CellState, Tensor]:
            embedded = self.model.target_embedding(token)[:, None]
            # there is no dropout mask
            decoded, new, contexts = self.step(embedded, None, old, memory)  # type: ignore[arg-type]
            hidden = self.model.readout(decoded, embedded, contexts)[:, 0]
            return _where(token != self.model.config.pad_id, new, old), hidden.clone()

        after, hidden = scan(step, state, tokens.T.contiguous())
        return self.model.output.logits(hidden[-1]), *after


def seq2seq_graphs(model: Seq2Seq) -> ModelGraphs:
    c = model.config
    if c.normalisation == "batch":
        raise UsageError(
            "ONNX holds a Seq2Seq without model.normalisation=batch, whose steps differ, but this has it"
        )
    source: Size = 1 if c.attention == "none" else "source"
    keys_width = {"none": c.memory_width, "additive": c.attention_width}.get(
        c.attention, c.output_width
    )
    widths = (c.output_width, c.width)[: CELLS[c.cell].state_count]
    state = tuple(
        Value(f"hidden_{k}", ("rows", c.decoder_layers, width)) for k, width in enumerate(widths)
    )
    memory = (
        Value("memory_mask", ("rows", source), torch.bool),
        Value("memory_values", ("rows", source, c.memory_width)),
        Value("memory_keys", ("rows", source, keys_width)),
    )
    encoder = Graph("encoder", RecurrentSourceEncoder(model), (SOURCE,), (*state, *memory))
    return ModelGraphs(encoder, step_graph(AttentionStep(model), c.vocabulary_size, state, memory))
