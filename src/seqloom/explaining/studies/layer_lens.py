"""What a decoder would predict if it ended after each of its layers: the logit lens.

    lens_l = output(norm(h_l)),  h_0 the embedded tokens, h_L those of the last layer: the model itself

nostalgebraist 2020; Belrose et al. 2023 (arXiv:2303.08112). It needs a decoder whose layers add to one stream
that is normalised at its end (norms before: GPT-2); where norms come after, no state but the last is what the
output was trained to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.layers.transformer.blocks import Block, Stack
from seqloom.protocols import modules_of


def decoder_stack(model: nn.Module) -> Stack:
    """The stack of blocks that predicts tokens. Raises UsageError if there is none, or its norms come
    after."""
    stacks = {name.split(".")[-1]: stack for name, stack in modules_of(model, Stack).items()}
    stack = stacks.get("decoder", stacks.get("stack"))
    if stack is None or len(stacks) > 2:
        raise UsageError(
            "the lens needs a Transformer that predicts tokens, but this model is none"
        )
    first = stack.blocks[0]
    assert isinstance(first, Block)
    if not first.norm_first:
        raise UsageError(
            "the lens needs a decoder with norms before each sub-block, whose layers add to one stream; this"
            " one has norms after them, so that its output cannot read the states of lower layers"
        )
    return stack


@torch.no_grad()
def lens(model: nn.Module, log_probs: Callable[[], Tensor]) -> Tensor:
    """`(1 + layers, steps, vocabulary)`: what `log_probs` returns if the model ended after each layer."""
    blocks = decoder_stack(model).blocks
    states: list[Tensor] = []
    handles = [blocks[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    handles += [
        block.register_forward_hook(lambda _, given, output: states.append(output[0]))
        for block in blocks
    ]
    try:
        log_probs()
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for state in states:

        def ended(_: nn.Module, given: object, output: Any, state: Tensor = state) -> object:
            return state, output[1]

        handle = blocks[-1].register_forward_hook(ended)
        try:
            found.append(log_probs())
        finally:
            handle.remove()
    return torch.stack(found)
