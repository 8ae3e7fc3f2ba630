"""How well a masked language model predicts what is at chosen places, and whether texts follow each other,
under masks that are always the same."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.arrays import Floats
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.evaluation.intervals import ratio_interval
from seqloom.evaluation.perplexity import perplexity_of
from seqloom.models.bert import Bert
from seqloom.packed_weights import packed_weights
from seqloom.protocols import MaskedBatch, device_of
from seqloom.shapes import IGNORE
from seqloom.tasks.denoising.noisy_windows import MEASURED
from seqloom.tasks.fill_mask.masked_rows import MaskedRows


@packed_weights()
@torch.inference_mode()
def measure_masked(model: nn.Module, rows: MaskedRows, corpus: CorpusStore) -> dict[str, float]:
    """loss (of masks and labels, as it is trained), masked_loss and masked_perplexity in nats a chosen token,
    masked_accuracy; of labels pair_loss and pair_accuracy. All but the first have the ends of their 95 %
    intervals over rows as `_low` and `_high`. The model must be in evaluation mode."""
    bert, device = cast(Bert, model), device_of(model)
    of_tokens, of_labels = [], []
    rows = rows.measured(corpus)
    for numbers in rows.epoch(corpus, MEASURED):
        batch = MaskedBatch(*(part.to(device) for part in rows.batch(corpus, numbers, numbers)))
        hidden, is_chosen = bert.encode_batch(batch), batch.targets != IGNORE
        of_tokens.append(
            _row_sums(bert.logits(hidden[is_chosen]), batch.targets[is_chosen], is_chosen)
        )
        labelled = batch.labels != IGNORE
        if bool(labelled.any()):
            logits = bert.follows(hidden)[labelled]
            of_labels.append(_row_sums(logits, batch.labels[labelled], labelled[:, None]))
    tokens = _ratios("masked", torch.cat(of_tokens).numpy())
    metrics = {"loss": tokens["masked_loss"], **tokens}
    for end in ("", "_low", "_high"):
        metrics[f"masked_perplexity{end}"] = perplexity_of(tokens[f"masked_loss{end}"])
    metrics["masked_tokens"] = int(torch.cat(of_tokens)[:, 2].sum())
    if of_labels:
        labels = _ratios("pair", torch.cat(of_labels).numpy())
        metrics |= labels
        metrics["loss"] += labels["pair_loss"]
        metrics["pairs"] = int(torch.cat(of_labels)[:, 2].sum())
    return metrics


def _row_sums(logits: Tensor, targets: Tensor, asked: Tensor) -> Tensor:
    """logits `(n, classes)`, targets `(n,)` of the places that are asked for `(rows, places)` -> `(rows, 3)`:
    Σ -log p, right answers, answers."""
    nats = F.cross_entropy(logits.float(), targets, reduction="none")
    right = logits.argmax(dim=-1) == targets
    values = torch.stack([nats.double(), right.double(), torch.ones_like(nats).double()], dim=1)
    sums = values.new_zeros(len(asked), 3).index_add_(0, asked.nonzero()[:, 0], values)
    return sums.cpu()


def _ratios(name: str, sums: Floats) -> dict[str, float]:
    """sums `(rows, 3)` -> loss and accuracy in percent, with their intervals."""
    metrics = {}
    counts = sums[:, 2]
    for what, totals in (("loss", sums[:, 0]), ("accuracy", 100 * sums[:, 1])):
        low, high = ratio_interval(totals, counts)
        metrics[f"{name}_{what}"] = float(totals.sum() / counts.sum())
        metrics |= {f"{name}_{what}_low": low, f"{name}_{what}_high": high}
    return metrics
