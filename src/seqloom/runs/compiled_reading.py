"""Which models read in one compiled call (`native/encoder.h`), and why others do not."""

from __future__ import annotations

from torch import nn

from seqloom.layers.transformer.blocks import Stack
from seqloom.layers.transformer.native_stack import why_not
from seqloom.models.bert import Bert
from seqloom.models.electra import Electra
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT
from seqloom.native.library import why_missing

READERS = (Bert, Electra, EncoderWithHead, ViT)
"""Models that write nothing: `decode.weights` is how they read."""


def why_not_read(model: nn.Module) -> str:
    """Why a model does not read in one compiled call, as a clause; empty if it does."""
    stack = _stack_of(model)
    if stack is None:
        return "only Transformer encoders (bert, vit, t5) have a compiled call"
    if problem := why_missing("call"):
        return problem
    reason = why_not(stack)
    return f"this model has no compiled call: {reason}" if reason else ""


def _stack_of(model: nn.Module) -> Stack | None:
    """The blocks that read the inputs of a model, where each token sees all others."""
    match model:
        case Bert() | ViT():
            return model.stack
        case Electra():
            return model.discriminator.stack
        case T5() | Transformer():
            return model.encoder
        case EncoderWithHead():
            return _stack_of(model.encoder)
    return None
