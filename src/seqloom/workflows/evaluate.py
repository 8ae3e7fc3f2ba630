"""How good a model is on pairs of texts; the same function serves the verb and the validation during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray
from torch import nn

from seqloom.runs.run_folder import IMAGES, OF_IMAGES, load_bundle, task_of
from seqloom.config import DecodeConfig
from seqloom.errors import UsageError, printable
from seqloom.evaluation.text_metrics import bleu, chrf, exact_match
from seqloom.evaluation.teacher_forcing import teacher_forced
from seqloom.models.encoder_with_head import Reader
from seqloom.protocols import Tokenizer, device_of
from seqloom.tasks.images.classify import evaluate_images, evaluate_patches
from seqloom.tasks.language_modeling.documents import convention, each_document, evaluate_documents, stride_of
from seqloom.tasks.encoders.fill_mask import evaluate_masked
from seqloom.tasks.text.predictor import TextReader
from seqloom.runs.progress import Say, read_pair_list
from seqloom.runs.settings import as_trained
from seqloom.tasks.translation.translate import batches_of_pairs, decode_texts
from seqloom.tasks.encoders.sentence_vectors import evaluate_similarity
from seqloom.runs.verbs import refuse_other_task

ENCODED = ("fill-mask", "feature-extraction", "sentence-similarity")
"""Tasks of models that read texts and write none."""


@final
@dataclass(frozen=True)
class Evaluation:
    """What came out."""

    metrics: dict[str, float]
    """loss (nats a token), perplexity, token_accuracy, pairs, tokens; where decoded also bleu, chrf, exact_match, unfinished."""
    signatures: dict[str, str]
    """How sacreBLEU computed its scores."""
    outputs: list[str]
    """The model's texts, in the order of the pairs, or labels; empty where nothing was decoded."""
    details: dict[str, Any] = field(default_factory=dict)
    """What is too long for a table: of labels the scores of each and the counts of each confusion."""
    by_example: NDArray[Any] | None = None
    """`(examples,)`: how right each answer of a reader is, the larger the better."""


def evaluate_pairs(model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], decode: DecodeConfig | None) -> Evaluation:
    """Teacher-forced numbers, and where `decode` is given those of decoded text. The model must be in eval mode."""
    taught = teacher_forced(model, batches_of_pairs(tokenizer, pairs, device_of(model)))
    metrics: dict[str, float] = {
        "loss": taught.loss,
        "perplexity": taught.perplexity,
        "token_accuracy": taught.token_accuracy,
        "pairs": len(pairs),
        "tokens": taught.count,
    }
    if decode is None:
        return Evaluation(metrics, {}, [])
    best = [outputs[0] for outputs in decode_texts(model, tokenizer, [source for source, _ in pairs], replace(decode, n_best=1))]
    texts, references = [output.text for output in best], [target for _, target in pairs]
    corpus_bleu, corpus_chrf = bleu(texts, references), chrf(texts, references)
    metrics |= {
        "bleu": corpus_bleu.value,
        "chrf": corpus_chrf.value,
        "exact_match": exact_match(texts, references),
        "unfinished": sum(not output.finished for output in best),
    }
    return Evaluation(metrics, {"bleu": corpus_bleu.signature, "chrf": corpus_chrf.signature}, texts)


def evaluate(
    folder: str | Path, paths: Sequence[str], given: Mapping[str, Any], decode: dict[str, Any], say: Say, stride: int | None = None
) -> Evaluation:
    """The verb: the model of a run folder on files of pairs, in the direction that it was trained for; a language model on texts; one of
    images on labelled images; a masked one on texts; one of sentence vectors on pairs with a score of how alike they are.

    `given` are settings of reading (`DataConfig`); those that are not given are as in the training.
    `stride` is how far the windows of a language model with limited context move on; by default half a window.
    """
    if (task := task_of(folder)) in OF_IMAGES:
        if decode or stride is not None or given:
            raise UsageError(f"--set and --stride belong to texts, but {printable(str(folder))} is a model of {task}; leave them out")
        if task != IMAGES:
            return Evaluation(evaluate_patches(folder, paths, say), {}, [])
        found = evaluate_images(folder, paths, say)
        return Evaluation(found.metrics, {}, found.predicted, {"labels": list(found.labels), "confusion": found.confusion})
    bundle = load_bundle(folder)
    for note in bundle.notes:
        say(note)
    reads = isinstance(bundle.model, Reader)
    if (reads or bundle.task in ENCODED) and (decode or stride is not None):
        raise UsageError(f"--stride and decode.* belong to models that write text, but this is one of {bundle.task}; leave them out")
    if reads:
        report, replies = TextReader(bundle, given, say).report(paths)
        return Evaluation(report.metrics, {}, [reply.text for reply in replies], report.details, report.by_example)
    data = as_trained(Path(folder), given)
    if bundle.task in ENCODED:
        if bundle.task == "fill-mask":
            return Evaluation(evaluate_masked(bundle, paths, data, say), {}, [])
        similarity = evaluate_similarity(bundle, paths, data, say)
        return Evaluation(similarity.metrics, {}, [f"{one:.6f}" for one in similarity.cosines])
    if bundle.task != "text-generation":
        refuse_other_task(bundle, "evaluate", "translation")
    settings = bundle.decode_with(decode)
    if bundle.task == "text-generation":
        if decode:
            raise UsageError("--set can change data.* here, but not decode.*: a language model is evaluated without decoding")
        say(convention(bundle.model, stride, bundle.tokenizer))
        documents = each_document(paths, data, bundle.tokenizer, say)
        metrics = evaluate_documents(bundle.model, documents, stride_of(bundle.model, stride), bundle.tokenizer.marks)
        return Evaluation(metrics, {}, [])
    if stride is not None:
        raise UsageError(f"--stride belongs to language models, but {printable(str(folder))} is one of {bundle.task}; leave it out")
    pairs = read_pair_list(paths, data, say)
    return evaluate_pairs(bundle.model, bundle.tokenizer, pairs, settings)
