"""How good a model is on pairs of texts, for `evaluate` and for the validation during training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from seqloom.config import DecodeConfig, EvaluateConfig
from seqloom.errors import printable
from seqloom.evaluation.teacher_forcing import teacher_forcing_score
from seqloom.evaluation.text_metrics import bleu, registered_metrics
from seqloom.evaluation.writing_systems import bleu_tokenizer_of, require_bleu_tokenizer
from seqloom.long_work import LongWork
from seqloom.protocols import Evaluation, StoredTokenizer, device_of
from seqloom.tasks.translation.measures import TRANSLATION, Measure, References
from seqloom.tasks.translation.translate import batches_of_pairs, decode_texts, target_tokenizer

logger = logging.getLogger(__name__)


def prepare_references(
    tokenizer: StoredTokenizer,
    targets: Sequence[str],
    config: EvaluateConfig,
    measure: Measure = TRANSLATION,
) -> References:
    """References in the form in which the model writes. Logs what was changed, and what it can never write.
    Raises UsageError if sacreBLEU cannot use the tokenizer that is asked for."""
    require_bleu_tokenizer(config.bleu_tokenizer)
    texts = [tokenizer.normalise(text) for text in targets]
    changed = sum(text != target for text, target in zip(texts, targets, strict=True))
    if changed:
        logger.info(
            f"{changed:,} of {len(texts):,} references are normalised as data.normalisation says, as outputs"
            " are: scores compare the normalised texts"
        )
    _log_unwritable(tokenizer, texts)
    if not measure.has_bleu:
        return References(texts, "none", changed)
    chosen: str = config.bleu_tokenizer
    if chosen == "auto" and (chosen := bleu_tokenizer_of(texts)) != "13a":
        logger.info(
            f"BLEU cuts words with sacreBLEU's tokenizer {chosen}, by the script of the references;"
            " evaluate.bleu_tokenizer names another"
        )
    _log_too_short(texts, chosen)
    return References(texts, chosen, changed)


def _log_unwritable(tokenizer: StoredTokenizer, texts: Sequence[str]) -> None:
    """Logs how many references no output can equal: words are unknown, or spaces are lost."""
    target = target_tokenizer(tokenizer)
    pairs = zip(texts, map(target.decode, target.encode(texts)), strict=True)
    lost = [pair for pair in pairs if pair[0] != pair[1]]
    if lost:
        text, written = lost[0]
        logger.info(
            f"the tokenizer cannot write {len(lost):,} of {len(texts):,} references as they are:"
            f" {_excerpt(text)} becomes {_excerpt(written)} at best, so scores of text are below 100"
        )


def _log_too_short(texts: Sequence[str], bleu_tokenizer: str) -> None:
    """Logs that BLEU is 0 where no reference has the four words of its longest n-grams."""
    longest = sorted(texts, key=len)[-100:]
    if longest and bleu(longest, longest, bleu_tokenizer).value == 0:
        logger.info(
            f"no reference has four words as the tokenizer {bleu_tokenizer} of BLEU cuts them, so BLEU is 0"
            " whatever the outputs are; chrF and exact match are not concerned"
        )


def _excerpt(text: str) -> str:
    return printable(repr(text if len(text) <= 60 else text[:57] + "..."))


def evaluate_pairs(
    model: nn.Module,
    tokenizer: StoredTokenizer,
    pairs: Sequence[tuple[str, str]],
    decode: DecodeConfig | None,
    references: References | None = None,
    measure: Measure = TRANSLATION,
    *,
    baselines: bool = False,
) -> Evaluation:
    """Teacher-forced numbers, and where `decode` is given those of decoded text against `references` (by
    default the targets), and of `baselines`, if the task has some. The model must be in eval mode."""
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
    if references is None:
        references = prepare_references(
            tokenizer, [target for _, target in pairs], EvaluateConfig(), measure
        )
    sources = [source for source, _ in pairs]
    work = LongWork("texts decoded", len(pairs))
    decoded = decode_texts(model, tokenizer, sources, replace(decode, n_best=1), work=work)
    best = [outputs[0] for outputs in decoded]
    texts = [output.text for output in best]
    scores = measure.scores(texts, references, sources if baselines else [])
    metrics |= registered_metrics(texts, references.texts) | scores.metrics
    metrics["unfinished"] = sum(not output.finished for output in best)
    details = {"normalised_references": references.changed} if references.changed else {}
    return Evaluation(metrics, scores.signatures, texts, details, statistics=scores.statistics)
