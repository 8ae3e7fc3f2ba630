"""Shows where a model looks in the source while it writes each piece of its output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.data.batching.pair_batches import decoder_ids, encoder_ids, source_batch
from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import save_chart
from seqloom.explaining.heat_maps import attention_heat_map, head_heat_maps
from seqloom.protocols import AttentiveEncoderDecoder, device_of
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.translation.translate import decode_texts, target_tokenizer

WHOLE_TOKENS = ("words", "whitespace", "characters", "bytes")
"""Kinds of tokenizers whose pieces are not parts of words."""


@final
@dataclass(frozen=True)
class AttentionMaps:
    """What the model looked at when it wrote each piece of its output."""

    source: list[str]
    """Pieces of the source, with `</s>`."""
    target: list[str]
    """Pieces of the output, with `</s>`."""
    weights: Tensor
    """`(target, source)`: each row sums to 1; of a Transformer `(layers, heads, target, source)`."""
    output: str


@final
@dataclass(frozen=True)
class Explanation:
    attention: AttentionMaps
    picture: Path

    def summary(self) -> dict[str, object]:
        attention = self.attention
        return {
            "output": attention.output,
            "picture": str(self.picture),
            "source": attention.source,
            "target": attention.target,
            "weights": attention.weights.tolist(),
        }

    def lines(self) -> list[str]:
        """For people."""
        return [self.attention.output, f"heat map: {self.picture}"]


def attention_of(
    bundle: LoadedRun, text: str, target: str | None = None, decode: DecodeConfig | None = None
) -> AttentionMaps:
    """The attention weights for a text and a target, by default the model's own output.

    Raises UsageError for an empty text, or a model without attention.
    """
    model, tokenizer = bundle.model, bundle.tokenizer
    if not isinstance(model, AttentiveEncoderDecoder):
        raise UsageError(
            "explain needs a model that looks at a source while it writes, but this one is of"
            f" {printable(bundle.task)}"
        )
    if not model.has_attention:
        raise UsageError(
            "a model must have attention to be looked at, but this one has one context vector"
            " (model.attention=none)"
        )
    if not text.strip():
        raise UsageError("the text must hold a word, but it is empty")
    if target is None:
        target = decode_texts(model, tokenizer, [text], decode or bundle.decode)[0][0].text
    special_ids, (source,) = tokenizer.special_ids, tokenizer.encode([text])
    (target_ids,) = target_tokenizer(tokenizer).encode([target])
    ids = decoder_ids(target_ids, special_ids)
    first = len(special_ids.bos)
    with torch.inference_mode():
        state = model.encode(source_batch([source], special_ids).to(device_of(model)))
        weights = model.attention_weights(torch.tensor([ids[:-1]], device=device_of(model)), state)[
            0
        ]
    # the decoder also reads all special tokens before the text; what they attend to predicts no output
    weights = weights[..., first - 1 :, :].float().cpu()
    source_pieces = tokenizer.pieces(encoder_ids(source, special_ids))
    # a prompt stands before the source
    vectors = weights.shape[-1] - len(source_pieces)
    source_pieces = [f"[{number}]" for number in range(1, vectors + 1)] + source_pieces
    return AttentionMaps(source_pieces, tokenizer.pieces(ids[first:]), weights, target)


def draw_attention(
    attention: AttentionMaps, path: Path, title: str = "", *, pieces: bool = True
) -> None:
    """The heat map as a picture, or one for each head. Raises MissingExtraError where the extra `plot` is not
    installed."""
    draw = attention_heat_map if attention.weights.dim() == 2 else head_heat_maps
    weights = attention.weights.numpy()
    save_chart(draw(weights, attention.source, attention.target, title=title, pieces=pieces), path)
