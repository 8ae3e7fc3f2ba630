"""log p of each token of a prompt, and the most likely tokens in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch

from seqloom.data.batching.pair_batches import pad
from seqloom.protocols import State, device_of
from seqloom.runs.run_folder import LoadedRun
from seqloom.serving.writing import NewToken, bounded_log_prob, top_of

MOST_LOGITS = 2**22
"""Logits in memory at a time."""


class ScoredPrompt(NamedTuple):
    """What is read, and how many alternatives are wanted."""

    ids: Sequence[int]
    top: int


def score_prompts(run: LoadedRun, prompts: Sequence[ScoredPrompt]) -> list[list[NewToken]]:
    """The tokens of each prompt but its first, which nothing predicts."""
    model, special_ids = cast(Any, run.model), run.tokenizer.special_ids
    tokens = pad([prompt.ids for prompt in prompts], special_ids.pad).to(device_of(model))
    steps = max(1, MOST_LOGITS // (len(prompts) * run.tokenizer.vocabulary_size))
    found: list[list[NewToken]] = [[] for _ in prompts]
    state: State = None
    for start in range(0, tokens.shape[1] - 1, steps):
        piece = tokens[:, start : start + steps]
        logits, state = model(piece, state)
        log_probs = logits.float().log_softmax(dim=-1)
        for row, prompt in enumerate(prompts):
            following = list(prompt.ids[start + 1 : start + 1 + piece.shape[1]])
            if not following:
                continue
            own = log_probs[row, : len(following)]
            chosen = own.gather(1, torch.tensor(following, device=own.device)[:, None])[:, 0]
            tops = top_of(own, prompt.top)
            for id, log_prob, top in zip(following, chosen.tolist(), tops, strict=True):
                found[row].append(NewToken(0, id, bounded_log_prob(log_prob), top))
    return found
