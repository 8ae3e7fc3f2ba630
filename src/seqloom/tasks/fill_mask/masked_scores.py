"""How well a masked language model predicts what is at chosen places, and whether texts follow each other,
under masks that are always the same."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.evaluation.perplexity import perplexity_of
from seqloom.models.bert import Bert
from seqloom.protocols import MaskedBatch, device_of
from seqloom.shapes import IGNORE
from seqloom.tasks.denoising.noisy_windows import MEASURED
from seqloom.tasks.fill_mask.masked_rows import MaskedRows


@torch.inference_mode()
def measure_masked(model: nn.Module, rows: MaskedRows, corpus: CorpusStore) -> dict[str, float]:
    """loss (of masks and labels, as it is trained), masked_loss and masked_perplexity in nats a chosen token,
    masked_accuracy; of labels pair_loss and pair_accuracy. The model must be in evaluation mode."""
    bert, device = cast(Bert, model), device_of(model)
    # sums of the loss, of right answers and of the number: of tokens, and of labels
    tokens, labels = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    rows = rows.measured(corpus)
    for numbers in rows.epoch(corpus, MEASURED):
        batch = MaskedBatch(*(one.to(device) for one in rows.batch(corpus, numbers, numbers)))
        hidden, is_chosen = bert.encode_batch(batch), batch.targets != IGNORE
        tokens += _sums(bert.logits(hidden[is_chosen]), batch.targets[is_chosen])
        labelled = batch.labels != IGNORE
        if bool(labelled.any()):
            labels += _sums(bert.follows(hidden)[labelled], batch.labels[labelled])
    total, right, count = tokens.tolist()
    masked = total / count
    metrics = {
        "loss": masked,
        "masked_loss": masked,
        "masked_perplexity": perplexity_of(masked),
        "masked_accuracy": 100 * right / count,
        "masked_tokens": int(count),
    }
    total, right, count = labels.tolist()
    if count:
        metrics |= {
            "loss": masked + total / count,
            "pair_loss": total / count,
            "pair_accuracy": 100 * right / count,
            "pairs": int(count),
        }
    return metrics


def _sums(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`(3,)`: Σ -log p, right answers, answers."""
    total = F.cross_entropy(logits.float(), targets, reduction="sum")
    right = (logits.argmax(dim=-1) == targets).sum()
    return torch.stack(
        [total.double().cpu(), right.double().cpu(), torch.tensor(float(len(targets)))]
    )
