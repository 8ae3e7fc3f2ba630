"""Studies of single heads of attention: how much an answer needs each, and whether it finds repetitions.

knock-out   F - F with what one head mixes set to 0
induction   on random tokens r r, the mean weight of each token of the second r on the token after its
            first occurrence (Olsson et al. 2022); a head that looks everywhere alike has the mean of
            1/position
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seqloom.explaining.studies.attention_maps import attention_maps, part_of
from seqloom.layers.attention import watched_attention
from seqloom.long_work import LongWork


@torch.inference_mode()
def knock_out(model: nn.Module, score: Callable[[], float]) -> dict[str, Tensor]:
    """Part -> how much the score falls without each head: `(layers, heads)`."""
    with watched_attention(model) as seen:
        whole = score()
    falls: dict[str, list[Tensor]] = {}
    work = LongWork("heads left out")
    for name, calls in seen.items():
        if not calls or calls[0].dim() != 4:
            continue
        heads = calls[0].shape[1]
        of_heads = torch.zeros(heads, dtype=torch.float64)
        for head in range(heads):

            def without(at: str, weights: Tensor, name: str = name, head: int = head) -> Tensor:
                if at != name:
                    return weights
                kept = torch.ones(weights.shape[1], dtype=weights.dtype, device=weights.device)
                kept[head] = 0
                return weights * kept[:, None, None]

            with watched_attention(model, without):
                of_heads[head] = whole - score()
            work.add()
        falls.setdefault(part_of(name, model.get_submodule(name)), []).append(of_heads)
    return {part: torch.stack(layers) for part, layers in falls.items()}


def induction_scores(
    model: nn.Module, read: Callable[[Tensor], object], ids: Tensor, start: list[int]
) -> tuple[Tensor, float]:
    """ids `(rows, length)`, drawn at random, which are read twice after `start` -> the score of each head
    `(layers, heads)`, and that of a head that looks everywhere alike."""
    rows, length = ids.shape
    first = torch.tensor([start] * rows, dtype=ids.dtype, device=ids.device).view(rows, len(start))
    tokens = torch.cat([first, ids, ids], dim=1)
    weights = attention_maps(model, lambda: read(tokens))["self"]
    queries = torch.arange(length) + len(start) + length
    keys = torch.arange(length) + len(start) + 1
    scores = weights[..., queries, keys].double().mean(dim=(0, 3))
    return scores, float((1 / (queries + 1).double()).mean())
