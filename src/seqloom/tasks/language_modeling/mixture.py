"""Language models to one run folder that mixes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seqloom import files
from seqloom.config import DataConfig, RunConfig
from seqloom.errors import UsageError, printable
from seqloom.evaluation.perplexity import score_texts
from seqloom.models.ensemble import Ensemble, EnsembleConfig, mixture_weights
from seqloom.run_file import to_plain
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.language_modeling.documents import (
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
    files.new_folder(folder, "a new run", "name another --output-dir")
    if len(folders) < 2:
        raise UsageError(f"a mixture needs at least 2 run folders, but has {len(folders)}")
    if len(set(folders)) < len(folders):
        raise UsageError("each member of a mixture must be given once, but one is given twice")
    if weights is not None and tune:
        raise UsageError("the weights are given or tuned, not both: leave out --weights or --tune")
    given = parsed_weights(weights, len(folders))
    members = [language_model(one) for one in folders]
    first = members[0]
    special_ids = first.tokenizer.special_ids
    for one in members[1:]:
        if one.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise UsageError(
                f"{printable(str(one.folder))}: all members must have the same tokenizer, but this has"
                f" another than {printable(str(first.folder))}; train both on the same text with the same"
                " data.tokenizer and data.vocabulary"
            )
    if (tokenizer := first.tokenizer).pretrained:
        raise UsageError(
            f"an ensemble is of models that seqloom trained, but {printable(str(first.folder))} is imported;"
            " score with each by itself"
        )
    config = EnsembleConfig(
        vocabulary_size=first.tokenizer.vocabulary_size,
        members=tuple({"model_type": one.model_type, **to_plain(one.model.config)} for one in members),
    )
    model = Ensemble(config)
    for mine, one in zip(model.members, members, strict=True):
        mine.load_state_dict(one.model.state_dict())
    model.eval()
    metrics: dict[str, float] = {}
    if tune:
        logger.info(f"tuning the weights of {len(folders)} models")
        documents = list(each_document(tune, data, first.tokenizer))
        parts = []
        for one in members:
            scores = score_texts(
                one.model,
                [document.ids for document in documents],
                special_ids,
                stride=stride_of(one.model, None),
            )
            parts.append(torch.cat([torch.from_numpy(score.log_probs) for score in scores]))
        given = mixture_weights(torch.stack(parts, dim=1))
    model.weights.copy_(given)
    if tune:
        metrics = evaluate_documents(model, iter(documents), stride_of(model, None), special_ids)
    named = {str(path): float(weight) for path, weight in zip(folders, given.tolist(), strict=True)}
    run = RunConfig(
        task=first.task,
        output_dir=str(folder),
        model={"name": "ensemble", "size": f"{len(members)} members", "weights": named},
        decode=first.decode,
    )
    write_finished_run(folder, run, model, tokenizer, fingerprints(tune, data), metrics)
    return {"output_dir": str(folder), "weights": named, **metrics}


def parsed_weights(weights: str | None, count: int) -> torch.Tensor:
    """`(count,)`, summing to 1; all alike where none are given."""
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64)
    try:
        numbers = [float(word) for word in weights.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(0 <= number < float("inf") for number in numbers) or not sum(numbers):
        raise UsageError(
            f"--weights must be {count} numbers of at least 0 such as {','.join(['1'] * count)}, but is"
            f" {printable(repr(weights))}"
        )
    return torch.tensor(numbers, dtype=torch.float64) / sum(numbers)
