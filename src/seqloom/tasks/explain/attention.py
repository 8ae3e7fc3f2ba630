"""Where a model looks while it reads an input, and while it writes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from seqloom.errors import UsageError
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.studies.attention_maps import (
    ChosenMaps,
    attention_maps,
    choose_maps,
    draw_maps,
)
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput


def maps_of(given: ModelInput) -> dict[str, Tensor]:
    """Part -> weights `(layers, heads, queries, keys)`. Raises UsageError if the model has no
    attention."""
    seen = attention_maps(given.model, given.read)
    maps = {part: weights[given.row] for part, weights in seen.items()}
    if "cross" in maps:
        # the decoder also reads all special tokens before the text; what they look at predicts no output
        maps["cross"] = maps["cross"][..., -len(given.sides["written"]) :, :]
    if not maps:
        raise UsageError(
            "a model must have attention to show where it looks, but this one has none; see --show"
        )
    return maps


def explain_attention(given: ModelInput, look: Look) -> Explanation:
    """Raises UsageError if the model has no attention, or no such part, layer or head."""
    maps = maps_of(given)
    chosen = choose_maps(maps, look.part, look.layer, look.head)
    looking, looked_at = sides_of(given, chosen)
    weights = chosen.weights
    if weights.shape[:2] == (1, 1):
        weights = weights[0, 0]
    numbers = {
        **given.numbers,
        "part": chosen.part,
        "parts": list(maps),
        "layer": chosen.layer,
        "head": chosen.head,
        "source": list(looked_at),
        "target": list(looking),
        "weights": weights.tolist(),
    }
    return Explanation(
        show="attention",
        numbers=numbers,
        text=[given.answer] if given.answer else [],
        draw=lambda: draw_maps(chosen, looked_at, looking, pieces=given.has_pieces),
    )


def sides_of(given: ModelInput, maps: ChosenMaps) -> tuple[Sequence[str], Sequence[str]]:
    """(what looks, what is looked at). Vectors of a trained prompt, which are no tokens, are [1], [2], ..."""
    part = maps.part.split(" ")[-1]
    looking, looked_at = {
        "cross": ("written", "encoder"),
        "pooling": ("pooled", "self"),
    }.get(part, (part, part))
    queries, keys = maps.weights.shape[-2:]
    return _labels(given.sides[looking], queries), _labels(given.sides[looked_at], keys)


def _labels(pieces: Sequence[str], count: int) -> list[str]:
    prompt = [f"[{number}]" for number in range(1, count - len(pieces) + 1)]
    return [*prompt, *pieces]
