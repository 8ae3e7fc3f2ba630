"""What of each family of models becomes ONNX graphs, and the names of what goes in and out.

    an encoder             `model`: inputs and mask (images) -> hidden states, and what the heads make of them
    a language model       `step`: tokens and state -> logits after the last token, and the state
    an encoder-decoder     `encoder`: source -> what the decoder starts from, and what it looks at; `step` as above

A state is tensors by name. `step` returns each as `next_NAME`; what it only looks at it does not return. What
the encoder does not give starts as zeros, with no past. The modules call the model's own layers; time is a
`scan` where the model has a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from seqloom.errors import UsageError
from seqloom.interop.onnx import recurrent, transformers
from seqloom.interop.onnx.graph import Exportable
from seqloom.models.bert import Bert
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.t5 import T5
from seqloom.models.transformer import Transformer
from seqloom.models.vit import ViT

FAMILIES: dict[type[nn.Module], Callable[[Any], Exportable]] = {
    RecurrentLM: recurrent.of_recurrent_lm,
    Seq2Seq: recurrent.of_seq2seq,
    Bert: transformers.of_bert,
    GPT: transformers.of_gpt,
    Transformer: transformers.of_transformer,
    T5: transformers.of_t5,
    ViT: transformers.of_vit,
}
"""Of which class of models which graphs."""


def exportable(model: nn.Module) -> Exportable:
    """The graphs of a model, which is for nothing else from then on. Raises UsageError for a model that ONNX
    does not hold."""
    for family, graphs_of in FAMILIES.items():
        if isinstance(model, family):
            return graphs_of(model)
    raise UsageError(
        f"ONNX holds {', '.join(family.__name__ for family in FAMILIES)}, but this is a"
        f" {type(model).__name__}"
    )
