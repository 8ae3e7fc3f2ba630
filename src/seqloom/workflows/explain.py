"""Where a model looked: the attention of a text, as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from seqloom.bundles import Bundle, load_bundle
from seqloom.config import DecodeConfig
from seqloom.data.batches import source_batch
from seqloom.errors import UsageError
from seqloom.explaining.charts import attention_heat_map, save_chart
from seqloom.text.special import BOS, EOS
from seqloom.workflows.predict import new_file
from seqloom.workflows.translate import decode_texts, device_of


@final
@dataclass(frozen=True)
class Attention:
    """What the model looked at when it wrote each piece of its output."""

    source: list[str]
    """Pieces of the source, with `</s>`."""
    target: list[str]
    """Pieces of the output, with `</s>`."""
    weights: Tensor
    """`(target, source)`: each row sums to 1."""
    output: str


@final
@dataclass(frozen=True)
class Explanation:
    attention: Attention
    picture: Path

    def summary(self) -> dict[str, Any]:
        look = self.attention
        return {
            "output": look.output,
            "picture": str(self.picture),
            "source": look.source,
            "target": look.target,
            "weights": look.weights.tolist(),
        }


def attention_of(bundle: Bundle, text: str, target: str | None = None, decode: DecodeConfig | None = None) -> Attention:
    """The attention weights for a text and a target, by default the model's own output.

    Raises UsageError for an empty text, or a model without attention.
    """
    model: Any = bundle.model
    if getattr(model, "attention", None) is None:
        raise UsageError("a model must have attention to be looked at, but this one has one context vector (model.attention=none)")
    if not text.strip():
        raise UsageError("the text must hold a word, but it is empty")
    if target is None:
        target = decode_texts(model, bundle.tokenizer, [text], decode or bundle.decode)[0][0].text
    source, written = bundle.tokenizer.encode([text, target])
    with torch.inference_mode():
        state = model.encode(source_batch([source]).to(device_of(model)))
        weights = model.attended(torch.tensor([[BOS, *written]], device=device_of(model)), state)[0]
    pieces = bundle.tokenizer.pieces
    return Attention(pieces([*source, EOS]), pieces([*written, EOS]), weights.float().cpu(), target)


def draw_attention(attention: Attention, path: Path, title: str = "", *, pieces: bool = True) -> None:
    """The heat map as a picture. Raises MissingExtraError where the extra `plot` is not installed."""
    chart = attention_heat_map(attention.weights.numpy(), attention.source, attention.target, title=title, pieces=pieces)
    save_chart(chart, path)


def explain(folder: str | Path, text: str, target: str | None, output: str, decode: dict[str, Any]) -> Explanation:
    """The verb. Raises UsageError where the picture is there already."""
    place = new_file(output, (".png", ".svg", ".html", ".json"))
    bundle = load_bundle(folder)
    attention = attention_of(bundle, text, target, bundle.decode_with(decode))
    draw_attention(attention, place, pieces=spells_words(bundle))
    return Explanation(attention, place)


def spells_words(bundle: Bundle) -> bool:
    """Whether pieces are parts of words, so that a picture should show where a word goes on."""
    return bundle.tokenizer.kind == "bpe"
