"""How well an ELECTRA's generator fills masks and its discriminator finds what was replaced, under masks and
samples that are always the same."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn

from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.models.electra import Electra, discriminator_loss, generator_loss
from seqloom.packed_weights import packed_weights
from seqloom.protocols import MaskedBatch, device_of
from seqloom.shapes import IGNORE
from seqloom.tasks.denoising.noisy_windows import MEASURED
from seqloom.tasks.fill_mask.masked_rows import MaskedRows
from seqloom.tasks.fill_mask.masked_scores import measure_masked


def measure_rows(model: nn.Module, rows: MaskedRows, corpus: CorpusStore) -> dict[str, float]:
    """As `measure_replaced` where a generator replaces tokens, and else as `measure_masked`."""
    if rows.replaced:
        return measure_replaced(cast(Electra, model), rows, corpus)
    return measure_masked(model, rows, corpus)


@packed_weights()
@torch.inference_mode()
def measure_replaced(model: Electra, rows: MaskedRows, corpus: CorpusStore) -> dict[str, float]:
    """loss (as it is trained), masked_loss and masked_accuracy of the generator, sampled_accuracy (samples
    that are right); of the discriminator replaced_loss, replaced_accuracy, and what one has that knows only
    the share of replaced tokens: base_loss, the entropy of that share. Losses are in nats, shares in percent.
    The model must be in evaluation mode."""
    device, sums = device_of(model), torch.zeros(8, dtype=torch.float64)
    rows = rows.measured(corpus)
    for numbers in rows.epoch(corpus, MEASURED):
        batch = MaskedBatch(*(part.to(device) for part in rows.batch(corpus, numbers, numbers)))
        made = model(batch.tokens, batch.targets, batch.uniform, batch.segments)
        chosen, mask = batch.targets != IGNORE, batch.tokens >= 0
        wanted = batch.targets[chosen]
        numbers_of_batch = (
            *generator_loss(made, batch.targets),
            (made.logits.argmax(dim=-1) == wanted).sum(),
            (made.tokens[chosen] == wanted).sum(),
            *discriminator_loss(made, batch.tokens),
            ((made.scores > 0) == made.replaced)[mask].sum(),
            made.replaced.sum(),
        )
        sums += torch.stack([numbers.double().cpu() for numbers in numbers_of_batch])
    masked, chosen_tokens, filled, sampled, binary, tokens, right, replaced = sums.tolist()
    masked, binary = masked / max(chosen_tokens, 1), binary / max(tokens, 1)
    share = replaced / max(tokens, 1)
    return {
        "loss": masked + model.config.discriminator_weight * binary,
        "masked_loss": masked,
        "masked_accuracy": 100 * filled / max(chosen_tokens, 1),
        "sampled_accuracy": 100 * sampled / max(chosen_tokens, 1),
        "replaced_loss": binary,
        "base_loss": entropy(share),
        "replaced_accuracy": 100 * right / max(tokens, 1),
        "replaced_percent": 100 * share,
        "masked_tokens": int(chosen_tokens),
        "tokens": int(tokens),
    }


def entropy(share: float) -> float:
    """Of a share of [0, 1], in nats."""
    return -sum(part * math.log(part) for part in (share, 1 - share) if part > 0)
