"""Makes one run folder of several language models: their mixture."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom import files
from seqloom.config import DataConfig, RunConfig
from seqloom.errors import UsageError, counted, printable
from seqloom.evaluation.perplexity import score_texts
from seqloom.models.ensemble import Ensemble, EnsembleConfig, mixture_weights
from seqloom.run_file import to_plain
from seqloom.runs.run_folder import LoadedRun, require_whole_model
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.language_modeling.documents import (
    Document,
    each_document,
    evaluate_documents,
    fingerprints,
    stride_of,
)
from seqloom.tasks.language_modeling.score import language_model

logger = logging.getLogger(__name__)


def mix(
    folders: Sequence[str],
    output_dir: str,
    weights: str | None,
    tune: Sequence[str],
    data: DataConfig,
) -> dict[str, Any]:
    """Writes the run folder; returns what it holds. Raises UsageError for members that do not fit together,
    or bad weights."""
    folder = Path(output_dir)
    files.check_new(folder, "a new run", "name another --output-dir")
    if len(folders) < 2:
        raise UsageError(f"a mixture needs at least 2 run folders, but has {len(folders)}")
    if len(set(folders)) < len(folders):
        raise UsageError("each member of a mixture must be given once, but one is given twice")
    if weights is not None and tune:
        raise UsageError("the weights are given or tuned, not both: leave out --weights or --tune")
    numbers = parsed_weights(weights, len(folders))
    for path in folders:
        require_whole_model(path, "an ensemble is of whole models")
    members = [language_model(path) for path in folders]
    first = members[0]
    model = ensemble_of(members)
    metrics: dict[str, float] = {}
    if tune:
        logger.info(f"tuning the weights of {counted(len(folders), 'model')}")
        documents = list(each_document(tune, data, first.tokenizer))
        numbers = tuned_weights(members, documents)
    model.weights.copy_(numbers)
    if tune:
        stride = stride_of(model, None)
        metrics = evaluate_documents(model, iter(documents), stride, first.tokenizer.special_ids)
    named = {
        str(path): float(weight) for path, weight in zip(folders, numbers.tolist(), strict=True)
    }
    run = RunConfig(
        task=first.task,
        output_dir=str(folder),
        model={"name": "ensemble", "size": f"{len(members)} members", "weights": named},
        decode=first.decode,
    )
    used = fingerprints(tune, data)
    with files.atomic_folder(folder, "a new run", "name another --output-dir") as temporary:
        write_finished_run(temporary, run, model, first.tokenizer, used, metrics)
    return {"output_dir": str(folder), "weights": named, **metrics}


def ensemble_of(members: Sequence[LoadedRun]) -> Ensemble:
    """The members in one model. Raises UsageError if their tokenizers differ, or are not seqloom's."""
    first, *others = members
    for member in others:
        if member.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise UsageError(
                f"{printable(str(member.folder))}: all members must have the same tokenizer, but this has"
                f" another than {printable(str(first.folder))}; train both on the same text with the same"
                " data.tokenizer and data.vocabulary"
            )
    if first.tokenizer.pretrained:
        raise UsageError(
            f"an ensemble is of models that seqloom trained, but {printable(str(first.folder))} is imported;"
            " score with each by itself"
        )
    configs = [
        {"model_type": member.model_type, **to_plain(member.model.config)} for member in members
    ]
    vocabulary_size = first.tokenizer.vocabulary_size
    model = Ensemble(EnsembleConfig(vocabulary_size=vocabulary_size, members=tuple(configs)))
    for copy, member in zip(model.members, members, strict=True):
        copy.load_state_dict(member.model.state_dict())
    return model.eval()


def tuned_weights(members: Sequence[LoadedRun], documents: Sequence[Document]) -> Tensor:
    """The weights under which the mixture finds these documents most likely."""
    texts, special_ids = [document.ids for document in documents], members[0].tokenizer.special_ids
    columns = []
    for member in members:
        scores = score_texts(member.model, texts, special_ids, stride=stride_of(member.model, None))
        columns.append(torch.cat([torch.from_numpy(score.log_probs) for score in scores]))
    return mixture_weights(torch.stack(columns, dim=1))


def parsed_weights(weights: str | None, count: int) -> torch.Tensor:
    """`(count,)`, summing to 1; equal where none are given."""
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64)
    try:
        numbers = [float(word) for word in weights.split(",")]
    except ValueError:
        numbers = []
    if (
        len(numbers) != count
        or not all(0 <= number < float("inf") for number in numbers)
        or not sum(numbers)
    ):
        raise UsageError(
            f"--weights must be {count} numbers of at least 0 such as {','.join(['1'] * count)}, but is"
            f" {printable(repr(weights))}"
        )
    return torch.tensor(numbers, dtype=torch.float64) / sum(numbers)
