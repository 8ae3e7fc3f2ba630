"""The families of models that ONNX holds, and how each is compared with its graphs.

    an encoder           `model`: inputs and mask (images) -> hidden states, and what the heads make of them
    one with a head      `model`: tokens of texts -> the probabilities of their labels, or a number
    a language model     `step`: tokens and state -> logits after the last token, and the state
    an encoder-decoder   `encoder`: source -> the first state of the decoder, and the memory; `step` as above

A state is tensors by name. `step` returns each as `next_NAME`; the memory it only reads. What the encoder
does not return starts as zeros, with no past. The modules call the model's own layers; time is a `scan` where
the model has a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from seqloom.errors import UsageError
from seqloom.interop.onnx import recurrent, transformers
from seqloom.interop.onnx.check import (
    SHAPES,
    Case,
    answer_case,
    decoder_case,
    encoder_case,
    image_case,
)
from seqloom.interop.onnx.encoders_with_heads import answering_graphs
from seqloom.interop.onnx.graph import ModelGraphs
from seqloom.models.bert import Bert
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT


class OnnxFamily(NamedTuple):
    """How a class of models is exported."""

    graphs: Callable[[Any], ModelGraphs]
    case: Callable[..., Case]
    """(model, shape, generator) -> what the model does, to compare with."""


FAMILIES: dict[type[nn.Module], OnnxFamily] = {
    RecurrentLM: OnnxFamily(recurrent.recurrent_lm_graphs, decoder_case),
    Seq2Seq: OnnxFamily(recurrent.seq2seq_graphs, decoder_case),
    Bert: OnnxFamily(transformers.bert_graphs, encoder_case),
    GPT: OnnxFamily(transformers.gpt_graphs, decoder_case),
    Transformer: OnnxFamily(transformers.transformer_graphs, decoder_case),
    T5: OnnxFamily(transformers.t5_graphs, decoder_case),
    ViT: OnnxFamily(transformers.vit_graphs, image_case),
    EncoderWithHead: OnnxFamily(answering_graphs, answer_case),
}


def exportable(model: nn.Module) -> ModelGraphs:
    """The graphs of a model, which is useless for anything else from then on. Raises UsageError for a model
    that ONNX does not hold."""
    return _family(model).graphs(model)


@torch.no_grad()
def cases(model: nn.Module) -> list[Case]:
    """What a model in evaluation mode, on a CPU, does at some shapes. Raises as `exportable`."""
    generator, family = torch.Generator().manual_seed(0), _family(model)
    return [family.case(model, shape, generator) for shape in SHAPES]


def _family(model: nn.Module) -> OnnxFamily:
    if (family := FAMILIES.get(type(model))) is not None:
        return family
    raise UsageError(
        f"ONNX holds {', '.join(model_class.__name__ for model_class in FAMILIES)}, but this is a"
        f" {type(model).__name__}"
    )
