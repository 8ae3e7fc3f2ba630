"""The weights of a stack of Transformer blocks as its compiled calls read them: packed, by address."""

from __future__ import annotations

import ctypes
from typing import cast, final

import torch
from torch import Tensor, nn

from seqloom.layers.attention import WatchedAttention
from seqloom.layers.linear import Linear
from seqloom.layers.packed_linear import LinearArguments, is_readable, packed_linear
from seqloom.layers.transformer.blocks import Block, Stack
from seqloom.layers.transformer.feed_forward import ACTIVATIONS, Swish
from seqloom.layers.transformer.step_arguments import BlockArguments, NormArguments, StackArguments
from seqloom.native.library import decoding_functions, in_memory
from seqloom.packed_weights import PackedWeights, current


def packed_stack(stack: Stack, x: Tensor, dtype: torch.dtype) -> PackedStack | None:
    """The packed weights of a stack, where its compiled calls serve for x here and now."""
    weights = current()
    if (
        weights is None
        or not in_memory(x, dtype)
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or stack.training
    ):
        return None
    packed = weights.get(stack, lambda blocks: packed_now(blocks, weights))
    return None if packed is None or packed.watched() else packed


def packed_now(stack: Stack, weights: PackedWeights) -> PackedStack | None:
    """None where a stack has no compiled call."""
    return None if decoding_functions() is None or why_not(stack) else PackedStack(stack, weights)


def why_not(stack: Stack) -> str:
    """Why a stack has no compiled call, as a clause; empty if it has one."""
    for block in _blocks(stack):
        if not all(isinstance(linear, Linear) for linear in _linear_maps(block).values()):
            return "its linear maps have adapters (LoRA)"
    if not all(is_readable(parameter) for parameter in stack.parameters()):
        return "its weights are not in float32 on a CPU"
    return ""


def _blocks(stack: Stack) -> list[Block]:
    return cast("list[Block]", list(stack.blocks))


def _linear_maps(block: Block) -> dict[str, Linear]:
    """By their names in `BlockArguments`."""
    attention, feed_forward = block.attention, block.feed_forward
    maps = {
        "query_key_value": attention.query_key_value,
        "attention_output": attention.output,
        "hidden": feed_forward.hidden,
        "output": feed_forward.output,
    }
    if block.reads_encoder:
        maps["query"] = block.cross_attention.query
        maps["memory_output"] = block.cross_attention.output
    return maps


@final
class PackedStack:
    """Keeps every tensor alive whose address it has given away."""

    def __init__(self, stack: Stack, weights: PackedWeights) -> None:
        self.weights = weights
        self._alive: list[object] = []
        own = _blocks(stack)
        blocks = (BlockArguments * len(own))(*map(self._block, own))
        self._alive.append(blocks)
        self._attentions = [one for one in stack.modules() if isinstance(one, WatchedAttention)]
        attention, query_key_value = own[0].attention, own[0].attention.query_key_value
        self.heads: int = attention.heads
        self.head_width: int = query_key_value.out_features // 3 // attention.heads
        self.width: int = query_key_value.in_features
        self.numbers = sum(parameter.numel() for parameter in stack.parameters())
        self.arguments = StackArguments(
            blocks=ctypes.addressof(blocks),
            layers=len(own),
            norm_before=own[0].norm_first,
            activation=[*ACTIVATIONS].index(own[0].feed_forward.activation_name),
            scale=attention.scale,
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
        )
        if own[0].norm_first:
            self.arguments.norm = self.norm(stack.norm)

    def watched(self) -> bool:
        """Whether somebody looks at the weights of attention, which this never shows."""
        return any(attention.watcher is not None for attention in self._attentions)

    def norm(self, norm: nn.Module) -> NormArguments:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        gain, bias = norm.weight.detach(), None
        if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
            bias = norm.bias.detach()
        self._alive += gain, bias
        return NormArguments(
            gain.data_ptr(),
            None if bias is None else bias.data_ptr(),
            isinstance(norm, nn.LayerNorm),
            norm.eps or 0.0,
        )

    def _block(self, block: Block) -> BlockArguments:
        activation = block.feed_forward.activation
        norms = {
            "attention_norm": block.attention_norm,
            "feed_forward_norm": block.feed_forward_norm,
        }
        if block.reads_encoder:
            norms["memory_norm"] = block.cross_attention_norm
        return BlockArguments(
            **{name: self.norm(norm) for name, norm in norms.items()},
            **{name: self._linear(linear) for name, linear in _linear_maps(block).items()},
            beta=float(activation.beta) if isinstance(activation, Swish) else 1.0,
        )

    def _linear(self, linear: Linear) -> LinearArguments:
        packed = packed_linear(self.weights, linear.weight)
        bias = None if linear.bias is None else linear.bias.detach()
        self._alive += packed, bias
        return packed.arguments(bias)
