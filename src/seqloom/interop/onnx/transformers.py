"""Transformers as ONNX graphs: the state of a decoder is its key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from seqloom.interop.onnx.graph import SOURCE, Graph, ModelGraphs, Value, general, step_graph
from seqloom.layers.transformer.blocks import AttentionInputs, Stack, padding_mask
from seqloom.layers.transformer.cross_attention import DecoderState, KeyValueMemory
from seqloom.layers.transformer.key_value_cache import KeysValues, KeyValueCache, RaggedCache
from seqloom.models.bert import Bert
from seqloom.models.gpt import GPT
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT
from seqloom.protocols import Shared


def _keys_values(
    layers: int, heads: int, head_width: int, *, prefix: str, length: str
) -> list[Value]:
    """The keys and values of each layer."""
    shape = ("rows", heads, length, head_width)
    return [
        Value(f"{prefix}{part}_{n}", shape) for n in range(layers) for part in ("keys", "values")
    ]


def _cache(layers: int, heads: int, head_width: int) -> tuple[Value, ...]:
    """The parts of a `KeyValueCache`."""
    visible = Value("visible", ("rows", "past"), torch.bool)
    position = Value("position", ("rows",), torch.int64)
    return visible, position, *_keys_values(layers, heads, head_width, prefix="", length="past")


def _read_cache(
    tokens: Tensor, pad_id: int, visible: Tensor, position: Tensor, keys_values: Sequence[Tensor]
) -> KeyValueCache:
    """The cache before `tokens`. Of the ids of the past, models only ask whether they are padding."""
    past = torch.where(visible, pad_id + 1, pad_id)
    room = torch.zeros_like(tokens)  # a buffer without room would grow, in steps
    ids = torch.cat([past, room], dim=1)
    return KeyValueCache(_pairs(keys_values), ids, visible.shape[1], RaggedCache(visible, position))


def _cache_parts(cache: KeyValueCache | None) -> tuple[Tensor, ...]:
    assert cache is not None
    assert cache.ragged is not None
    return (
        cache.ragged.visible,
        cache.ragged.position,
        *(part for layer in cache.layers for part in layer),
    )


def _pairs(parts: Sequence[Tensor]) -> tuple[KeysValues, ...]:
    return tuple(map(KeysValues, parts[::2], parts[1::2]))


def _compute_padding(stack: Stack) -> None:
    """Makes an encoder compute padding too. A graph could skip it only by tensors whose size depends on the
    content of another."""

    def encode(x: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        hidden: Tensor = stack(x, AttentionInputs(padding_mask(mask, bias)))[0]
        return hidden

    stack.encode = encode  # type: ignore[method-assign, assignment]


@final
class DecoderStep(nn.Module):
    """Some tokens of a decoder without an encoder."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        # with gradients on, keys are concatenated to the past ones and not written into a buffer
        self.model = model.requires_grad_()

    def forward(
        self, tokens: Tensor, visible: Tensor, position: Tensor, *keys_values: Tensor
    ) -> tuple[Tensor, ...]:
        cache = _read_cache(tokens, self.model.config.pad_id, visible, position, keys_values)
        with general():
            hidden, after = self.model.read(tokens, cache)
            return self.model.output.logits(hidden[:, -1]), *_cache_parts(after)


@final
class SourceEncoder(nn.Module):
    """The encoder of an encoder-decoder: its mask, and the keys and values of each layer of the decoder."""

    def __init__(self, model: Transformer | T5) -> None:
        super().__init__()
        self.model = model.requires_grad_()
        _compute_padding(model.encoder)

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        with general():
            memory = self.model.encode(source).memory.value
            assert memory.mask is not None
            return memory.mask, *(part for layer in memory.layers for part in layer)


@final
class CrossAttentionStep(nn.Module):
    """Some tokens of a decoder that attends to an encoder's output."""

    def __init__(self, model: Transformer | T5, layers: int) -> None:
        super().__init__()
        self.model = model.requires_grad_()
        self.parts = 2 * layers

    def forward(
        self, tokens: Tensor, visible: Tensor, position: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        past, mask, memory = others[: self.parts], others[self.parts], others[self.parts + 1 :]
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        cache = _read_cache(tokens, self.model.config.pad_id, visible, position, past)
        before = DecoderState(
            cache, rows, Shared(KeyValueMemory(_pairs(memory), mask, rows)), Shared(None)
        )
        with general():
            hidden, after = self.model.read(tokens, before)
            return self.model.output.logits(hidden[:, -1]), *_cache_parts(after.past)


def gpt_graphs(model: GPT) -> ModelGraphs:
    c = model.config
    state = _cache(c.layers, c.heads, c.width // c.heads)
    return ModelGraphs(None, step_graph(DecoderStep(model), c.vocabulary_size, state))


def transformer_graphs(model: Transformer) -> ModelGraphs:
    heads = model.config.decoder_heads or model.config.heads
    return _encoder_decoder_graphs(model, heads, model.config.width // heads)


def t5_graphs(model: T5) -> ModelGraphs:
    c = model.config
    graphs = _encoder_decoder_graphs(model, c.heads, c.head_width or c.width // c.heads)
    for bias in (model.encoder_bias, model.decoder_bias):
        # with the gradient of a mask, torch traces another kernel than the one that it decomposes
        bias.requires_grad_(False)
    return graphs


def _encoder_decoder_graphs(model: Transformer | T5, heads: int, head_width: int) -> ModelGraphs:
    layers, vocabulary = model.config.decoder_layers, model.config.vocabulary_size
    memory = (
        Value("memory_mask", ("rows", "source"), torch.bool),
        *_keys_values(layers, heads, head_width, prefix="memory_", length="source"),
    )
    encoder = Graph("encoder", SourceEncoder(model), (SOURCE,), memory)
    cache = _cache(layers, heads, head_width)
    return ModelGraphs(
        encoder, step_graph(CrossAttentionStep(model, layers), vocabulary, cache, memory)
    )


@final
class TokenEncoder(nn.Module):
    """An encoder and its heads."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model
        _compute_padding(model.stack)

    def forward(
        self, inputs: Tensor, mask: Tensor, segments: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        with general():
            return tuple(encoder_outputs(self.model, inputs, mask, segments).values())


def encoder_outputs(
    model: Bert, inputs: Tensor, mask: Tensor, segments: Tensor | None = None
) -> dict[str, Tensor]:
    """Hidden states `(rows, steps, width)`; with a pooler what it makes of them; with a head the logits of
    each token."""
    outputs = {"hidden": model(inputs, mask, segments)}
    if model.pooler is not None:
        outputs["pooled"] = model.pooled(outputs["hidden"])
    if model.head is not None:
        outputs["logits"] = model.logits(outputs["hidden"])
    return outputs


def bert_graphs(model: Bert) -> ModelGraphs:
    c, steps = model.config, ("rows", "steps")
    inputs = [Value("inputs", steps, torch.int64), Value("mask", steps, torch.bool)]
    if c.segments > 1:
        inputs.append(Value("segments", steps, torch.int64))
    outputs = [Value("hidden", (*steps, c.width))]
    if c.pooler:
        outputs.append(Value("pooled", ("rows", c.width)))
    if c.head == "replaced-token":
        outputs.append(Value("logits", steps))
    elif c.head != "none":
        outputs.append(Value("logits", (*steps, c.vocabulary_size)))
    return ModelGraphs(Graph("model", TokenEncoder(model), tuple(inputs), tuple(outputs)), None)


@final
class ImageEncoder(nn.Module):
    """A model of images, all of the size that it was trained on."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.model(images),)


def vit_graphs(model: ViT) -> ModelGraphs:
    c = model.config
    images = Value("images", ("rows", c.channels, c.image_size, c.image_size))
    output = (
        Value("logits", ("rows", len(c.labels))) if c.labels else Value("hidden", ("rows", c.width))
    )
    return ModelGraphs(Graph("model", ImageEncoder(model), (images,), (output,)), None)
