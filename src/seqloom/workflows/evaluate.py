"""How good a model is on pairs of texts; the same function serves the verb and the validation during
training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqloom.errors import UsageError, printable
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.runs.progress import read_pair_list
from seqloom.runs.run_folder import IMAGES, OF_IMAGES, load_run, task_of
from seqloom.runs.settings import as_trained
from seqloom.runs.verbs import refuse_other_task
from seqloom.tasks.encoders.fill_mask import evaluate_masked
from seqloom.tasks.encoders.sentence_vectors import evaluate_similarity
from seqloom.tasks.images.classify import evaluate_images, evaluate_patches
from seqloom.tasks.language_modeling.documents import convention, each_document, evaluate_documents, stride_of
from seqloom.tasks.results import Evaluation
from seqloom.tasks.text.predictor import TextPredictor
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs

logger = logging.getLogger(__name__)

ENCODED = ("fill-mask", "feature-extraction", "sentence-similarity")
"""Tasks of models that read texts and write none."""


def evaluate(
    folder: str | Path,
    paths: Sequence[str],
    given: Mapping[str, Any],
    decode: dict[str, Any],
    stride: int | None = None,
) -> Evaluation:
    """The verb: the model of a run folder on files of pairs, in the direction that it was trained for; a
    language model on texts; one of images on labelled images; a masked one on texts; one of sentence vectors
    on pairs with a score of how alike they are.

    `given` are settings of reading (`DataConfig`); those that are not given are as in the training. `stride`
    is how far the windows of a language model with limited context move on; by default half a window.
    """
    if (task := task_of(folder)) in OF_IMAGES:
        if decode or stride is not None or given:
            raise UsageError(
                f"--set and --stride belong to texts, but {printable(str(folder))} is a model of {task};"
                " leave them out"
            )
        if task != IMAGES:
            return Evaluation(evaluate_patches(folder, paths), {}, [])
        found = evaluate_images(folder, paths)
        return Evaluation(
            found.metrics, {}, found.predicted, {"labels": list(found.labels), "confusion": found.confusion}
        )
    bundle = load_run(folder)
    for note in bundle.notes:
        logger.info(note)
    reads = isinstance(bundle.model, EncoderWithHead)
    if (reads or bundle.task in ENCODED) and (decode or stride is not None):
        raise UsageError(
            f"--stride and decode.* belong to models that write text, but this is one of {bundle.task}; leave"
            " them out"
        )
    if reads:
        report, replies = TextPredictor(bundle, given).report(paths)
        return Evaluation(
            report.metrics, {}, [reply.text for reply in replies], report.details, report.by_example
        )
    data = as_trained(Path(folder), given)
    if bundle.task in ENCODED:
        if bundle.task == "fill-mask":
            return Evaluation(evaluate_masked(bundle, paths, data), {}, [])
        similarity = evaluate_similarity(bundle, paths, data)
        return Evaluation(similarity.metrics, {}, [f"{one:.6f}" for one in similarity.cosines])
    if bundle.task != "text-generation":
        refuse_other_task(bundle, "evaluate", "translation")
    settings = bundle.decode_with(decode)
    if bundle.task == "text-generation":
        if decode:
            raise UsageError(
                "--set can change data.* here, but not decode.*: a language model is evaluated without"
                " decoding"
            )
        logger.info(convention(bundle.model, stride, bundle.tokenizer))
        documents = each_document(paths, data, bundle.tokenizer)
        metrics = evaluate_documents(
            bundle.model, documents, stride_of(bundle.model, stride), bundle.tokenizer.special_ids
        )
        return Evaluation(metrics, {}, [])
    if stride is not None:
        raise UsageError(
            f"--stride belongs to language models, but {printable(str(folder))} is one of {bundle.task};"
            " leave it out"
        )
    pairs = read_pair_list(paths, data)
    return evaluate_pairs(bundle.model, bundle.tokenizer, pairs, settings)
