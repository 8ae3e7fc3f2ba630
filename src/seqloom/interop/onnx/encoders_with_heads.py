"""Encoders with a head as one ONNX graph, from the tokens of a text to its answer: a label, several labels,
or a number."""

from __future__ import annotations

import json
from typing import cast, final

import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.interop.onnx.graph import Graph, ModelGraphs, Size, Value
from seqloom.interop.onnx.recurrent import ScannedRecurrent
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.models.bag_of_words import BagOfWords
from seqloom.models.convolution import Convolution
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.models.recurrent import RecurrentEncoder
from seqloom.protocols import EncodedBatch

KINDS = ("classification", "multi-label", "regression")


@final
class TextToAnswer(nn.Module):
    """The probabilities of labels, or the number, of each row."""

    def __init__(self, model: EncoderWithHead) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        batch = EncodedBatch.of_tokens(tokens)
        return (self.model.head.probabilities(self.model(batch), batch),)


def require_one_row(model: EncoderWithHead) -> None:
    """Raises UsageError for a model that takes several rows, characters or places for an example."""
    config, known, reads_letters = model.config, True, False
    match model.encoder:
        case RecurrentEncoder(letters=letters):
            reads_letters = letters is not None
        case BagOfWords() | Convolution():
            pass
        case _:
            known = False
    apart = config.pairs and config.head.pair != "joined"
    if config.kind not in KINDS or not known or reads_letters or apart:
        raise UsageError(
            "ONNX holds encoders with a head that give one text labels or a number (bag_of_words, convolution"
            f" and recurrent without characters), but this is a {model.model_type} for {config.kind}"
            f"{' of pairs' if apart else ''}{' with characters' if reads_letters else ''}"
        )
    features = config.encoder.get("features")
    if features in ("binary", "tf-idf"):
        raise UsageError(
            "ONNX holds no bag of words whose weights go by how often a word occurred before in its text"
            f" (model.features={features}), only embeddings and counts"
        )


def answering_graphs(model: EncoderWithHead) -> ModelGraphs:
    """Raises UsageError as `require_one_row`."""
    require_one_row(model)
    config, encoder = model.config, model.encoder
    if isinstance(encoder, RecurrentEncoder):
        scanned = ScannedRecurrent(encoder.layers)
        encoder.layers = cast(RecurrentStack, scanned)
    outputs: tuple[Size, ...] = ("rows", len(config.labels)) if config.labels else ("rows",)
    return ModelGraphs(
        Graph(
            "model",
            TextToAnswer(model),
            (Value("tokens", ("rows", "steps"), torch.int64),),
            (Value("probabilities" if config.labels else "score", outputs),),
            {"labels": json.dumps(config.labels, ensure_ascii=False)},
        ),
        None,
    )
