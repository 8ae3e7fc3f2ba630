"""Transformers as ONNX graphs: the state of a decoder is the keys and values of each layer, and where its
rows stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from seqloom.interop.onnx.graph import SOURCE, Exportable, Graph, Value, general, step_graph
from seqloom.layers.transformer.blocks import AttentionInputs, Stack, padding_mask
from seqloom.layers.transformer.cross_attention import DecoderState, KeyValueMemory
from seqloom.layers.transformer.key_value_cache import KeysValues, KeyValueCache, RaggedCache
from seqloom.models.bert import Bert
from seqloom.models.gpt import GPT
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT
from seqloom.protocols import Shared


def _cache(layers: int, heads: int, head_width: int) -> tuple[Value, ...]:
    """The parts of a `KeyValueCache`."""
    shape = ("rows", heads, "past", head_width)
    parts = (Value(f"{part}_{layer}", shape) for layer in range(layers) for part in ("keys", "values"))
    return Value("visible", ("rows", "past"), torch.bool), Value("position", ("rows",), torch.int64), *parts


def _read_cache(
    tokens: Tensor, pad_id: int, visible: Tensor, position: Tensor, keys_values: Sequence[Tensor]
) -> KeyValueCache:
    """What stood before `tokens`. Of the ids that were read no model asks more than whether they are padding."""
    known = torch.where(visible, pad_id + 1, pad_id)
    room = torch.zeros_like(tokens)  # a buffer without room would be made larger, in steps
    return KeyValueCache(
        _pairs(keys_values), torch.cat([known, room], dim=1), visible.shape[1], RaggedCache(visible, position)
    )


def _cache_parts(cache: KeyValueCache) -> tuple[Tensor, ...]:
    assert cache.ragged is not None
    return cache.ragged.visible, cache.ragged.position, *(part for layer in cache.layers for part in layer)


def _pairs(parts: Sequence[Tensor]) -> tuple[KeysValues, ...]:
    return tuple(KeysValues(keys, values) for keys, values in zip(parts[::2], parts[1::2], strict=True))


def _see_padding(stack: Stack) -> None:
    """Has an encoder compute padding too: a graph can do without, but only by tensors whose size depends on
    what another holds."""

    def encode(x: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        hidden: Tensor = stack(x, AttentionInputs(padding_mask(mask, bias)))[0]
        return hidden

    stack.encode = encode  # type: ignore[method-assign, assignment]


@final
class CausalStep(nn.Module):
    """Some tokens of a decoder without an encoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = (
            model.requires_grad_()
        )  # with gradients on, keys are put behind the past ones and not into them

    def forward(
        self, tokens: Tensor, visible: Tensor, position: Tensor, *keys_values: Tensor
    ) -> tuple[Tensor, ...]:
        with general():
            hidden, cache = self.model.read(
                tokens, _read_cache(tokens, self.model.config.pad_id, visible, position, keys_values)
            )
            return self.model.output.logits(hidden[:, -1]), *_cache_parts(cache)


@final
class SourceEncoder(nn.Module):
    """The encoder of an encoder-decoder: its mask, and the keys and values of each layer of the decoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model.requires_grad_()
        _see_padding(model.encoder)  # type: ignore[arg-type]

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        with general():
            memory = self.model.encode(source).memory.value
            return memory.mask, *(part for layer in memory.layers for part in layer)


@final
class LookingStep(nn.Module):
    """Some tokens of a decoder that looks at an encoder's output."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model: Any = model.requires_grad_()
        self.parts = 2 * layers

    def forward(
        self, tokens: Tensor, visible: Tensor, position: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        past, mask, memory = others[: self.parts], others[self.parts], others[self.parts + 1 :]
        inputs = torch.arange(tokens.shape[0], device=tokens.device)
        looked_at = KeyValueMemory(_pairs(memory), mask, inputs)
        before = DecoderState(
            _read_cache(tokens, self.model.config.pad_id, visible, position, past),
            inputs,
            Shared(looked_at),
            Shared(None),
        )
        with general():
            hidden, after = self.model.read(tokens, before)
            return self.model.output.logits(hidden[:, -1]), *_cache_parts(after.past)


def of_gpt(model: GPT) -> Exportable:
    c = model.config
    state = _cache(c.layers, c.heads, c.width // c.heads)
    return Exportable(None, step_graph(CausalStep(model), c.vocabulary_size, state))


def _of_encoder_decoder(
    model: nn.Module, layers: int, heads: int, head_width: int, vocabulary: int
) -> Exportable:
    shape = ("rows", heads, "source", head_width)
    looked_at = (
        Value("memory_mask", ("rows", "source"), torch.bool),
        *(Value(f"memory_{part}_{layer}", shape) for layer in range(layers) for part in ("keys", "values")),
    )
    encoder = Graph("encoder", SourceEncoder(model), (SOURCE,), looked_at)
    step = step_graph(LookingStep(model, layers), vocabulary, _cache(layers, heads, head_width), looked_at)
    return Exportable(encoder, step)


def of_transformer(model: Transformer) -> Exportable:
    c = model.config
    heads = c.decoder_heads or c.heads
    return _of_encoder_decoder(model, c.decoder_layers, heads, c.width // heads, c.vocabulary_size)


def of_t5(model: T5) -> Exportable:
    c = model.config
    found = _of_encoder_decoder(
        model, c.decoder_layers, c.heads, c.head_width or c.width // c.heads, c.vocabulary_size
    )
    for bias in (model.encoder_bias, model.decoder_bias):
        bias.requires_grad_(
            False
        )  # with the gradient of a mask, torch traces another kernel than it decomposes
    return found


@final
class TokenEncoder(nn.Module):
    """An encoder and its heads."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model
        _see_padding(model.stack)

    def forward(self, inputs: Tensor, mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        with general():
            return encoded(self.model, inputs, mask, segments)


def encoded(model: Bert, inputs: Tensor, mask: Tensor, segments: Tensor | None) -> tuple[Tensor, ...]:
    """Hidden states `(rows, steps, width)`; with a pooler what it makes of them; with a head the logits of
    each token."""
    hidden = model(inputs, mask, segments)
    pooled = () if model.pooler is None else (model.pooled(hidden),)
    return hidden, *pooled, *(() if model.head is None else (model.logits(hidden),))


def of_bert(model: Bert) -> Exportable:
    c = model.config
    by_step = ("rows", "steps")
    inputs = [Value("inputs", by_step, torch.int64), Value("mask", by_step, torch.bool)]
    if c.segments > 1:
        inputs.append(Value("segments", by_step, torch.int64))
    outputs = [Value("hidden", (*by_step, c.width))]
    if c.pooler:
        outputs.append(Value("pooled", ("rows", c.width)))
    if c.head != "none":
        outputs.append(
            Value("logits", by_step if c.head == "replaced-token" else (*by_step, c.vocabulary_size))
        )
    return Exportable(Graph("model", TokenEncoder(model), tuple(inputs), tuple(outputs)), None)


@final
class ImageEncoder(nn.Module):
    """A model of images, all of the size that it was trained on."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.model(images),)


def of_vit(model: ViT) -> Exportable:
    c = model.config
    images = Value("images", ("rows", c.channels, c.image_size, c.image_size))
    output = Value("logits", ("rows", len(c.labels))) if c.labels else Value("hidden", ("rows", c.width))
    return Exportable(Graph("model", ImageEncoder(model), (images,), (output,)), None)
