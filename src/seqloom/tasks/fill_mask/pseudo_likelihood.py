"""Each token of a text when it alone is masked.

pseudo-perplexity   exp(-Σ_i log p(u_i | all others) / N)                Salazar et al.: ACL 2020
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from seqloom.arrays import Floats
from seqloom.data.batching.pair_batches import encoder_ids
from seqloom.evaluation.perplexity import CorpusLikelihood, TextScore
from seqloom.long_work import every_few_seconds
from seqloom.models.bert import Bert
from seqloom.packed_weights import packed_weights
from seqloom.protocols import SpecialIds, device_of
from seqloom.tasks.encoders.sentence_vectors import batches, encoded
from seqloom.tasks.language_modeling.documents import Document, document_batches

logger = logging.getLogger(__name__)


def measure_alone(
    model: Bert, documents: Iterable[Document], special_ids: SpecialIds, mask: int
) -> dict[str, float]:
    """Pseudo-perplexity and its kin over documents: pseudo_loss (nats a token), pseudo_perplexity, ... with
    their intervals.

    A document longer than the model can read is read in parts, each by itself.
    """
    room = model.context - len(special_ids.prefix) - len(special_ids.suffix)
    corpus = CorpusLikelihood.empty(special_ids._replace(eos=None))
    for batch in document_batches(iter(documents)):
        parts: list[list[int]] = []
        owners: list[int] = []
        for index, document in enumerate(batch):
            for first in range(0, len(document.ids), room):
                parts.append(document.ids[first : first + room].tolist())
                owners.append(index)
        scores: list[list[Floats]] = [[np.zeros(0)] for _ in batch]
        for index, log_probs in zip(
            owners, pseudo_log_probs(model, parts, special_ids, mask), strict=True
        ):
            scores[index].append(log_probs)
        for document, log_probs_of_parts in zip(batch, scores, strict=True):
            score = TextScore(np.concatenate(log_probs_of_parts), None, False)
            corpus.add(score, document.ids, words=document.words, size=document.bytes)
    counts = ("documents", "tokens", "words", "bytes", "unknown_percent")
    return {
        name if name in counts else f"pseudo_{name}": value
        for name, value in corpus.metrics().items()
    }


@packed_weights()
@torch.inference_mode()
def pseudo_log_probs(
    model: Bert, texts: Sequence[Sequence[int]], special_ids: SpecialIds, mask: int
) -> list[Floats]:
    """For each text of ids (without special tokens) log p of every token when it alone is masked: `(tokens,)`
    in nats. Progress is logged every few seconds."""
    log_probs = [np.zeros(len(text)) for text in texts]
    prefix, frame = len(special_ids.prefix), len(special_ids.prefix) + len(special_ids.suffix)
    # (text, position) of every token: each is a row of its own
    masked: list[tuple[int, int]] = []
    for index, text in enumerate(texts):
        masked += [(index, position) for position in range(len(text))]
    done, is_due = 0, every_few_seconds()
    for batch in batches([len(texts[index]) + frame for index, _ in masked], device_of(model)):
        tokens = [masked[row] for row in batch]
        rows = []
        for index, position in tokens:
            rows.append(encoder_ids(texts[index], special_ids))
            rows[-1][prefix + position] = mask
        hidden, inputs = encoded(model, rows)
        device = inputs.device
        columns = torch.tensor([prefix + position for _, position in tokens], device=device)
        true = torch.tensor([texts[index][position] for index, position in tokens], device=device)
        logits = model.logits(hidden[torch.arange(len(batch), device=device), columns])
        scores = logits.double().log_softmax(dim=-1).gather(-1, true[:, None])[:, 0].tolist()
        for (index, position), score in zip(tokens, scores, strict=True):
            log_probs[index][position] = score
        done += len(batch)
        if is_due():
            logger.info(f"{done:,} of {len(masked):,} tokens scored")
    return log_probs
