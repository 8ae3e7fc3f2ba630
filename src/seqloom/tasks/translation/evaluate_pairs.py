"""How good a model is on pairs of texts, for `evaluate` and for the validation during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from seqloom.config import DecodeConfig
from seqloom.evaluation.teacher_forcing import teacher_forcing_score
from seqloom.evaluation.text_metrics import bleu, chrf, exact_match, registered_metrics
from seqloom.protocols import Evaluation, Tokenizer, device_of
from seqloom.tasks.translation.translate import batches_of_pairs, decode_texts


def evaluate_pairs(
    model: nn.Module,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    decode: DecodeConfig | None,
) -> Evaluation:
    """Teacher-forced numbers, and where `decode` is given those of decoded text. The model must be in eval
    mode."""
    taught = teacher_forcing_score(model, batches_of_pairs(tokenizer, pairs, device_of(model)))
    metrics: dict[str, float] = {
        "loss": taught.loss,
        "perplexity": taught.perplexity,
        "token_accuracy": taught.token_accuracy,
        "pairs": len(pairs),
        "tokens": taught.count,
    }
    if decode is None:
        return Evaluation(metrics)
    best = [
        outputs[0]
        for outputs in decode_texts(
            model, tokenizer, [source for source, _ in pairs], replace(decode, n_best=1)
        )
    ]
    texts, references = [output.text for output in best], [target for _, target in pairs]
    corpus_bleu, corpus_chrf = bleu(texts, references), chrf(texts, references)
    metrics |= registered_metrics(texts, references) | {
        "bleu": corpus_bleu.value,
        "chrf": corpus_chrf.value,
        "exact_match": exact_match(texts, references),
        "unfinished": sum(not output.finished for output in best),
    }
    return Evaluation(
        metrics, {"bleu": corpus_bleu.signature, "chrf": corpus_chrf.signature}, texts
    )
