"""Every answer of real files as a text, through a tokenizer, and back: what is lost.

    python -m tests.campaigns.text_forms DATA [--vocabulary 4000]

DATA has the folders trec, stsb, ud_english_ewt, wnut17 and squadshifts as their sources ship them.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seqloom.config import DataConfig, EvaluateConfig, MixedTaskConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.run_file import parse
from seqloom.tasks.text_to_text.mixed_task import LABELLED, mixed_task
from seqloom.tasks.text_to_text.scores import HowToScore, score_texts
from seqloom.text.tokenizers import train_tokenizer


class FilesOfTask(NamedTuple):
    task: str
    file: str
    reading: dict[str, Any]


COLUMNS = {
    "format": "tsv",
    "header": False,
    "quoting": False,
    "score": "5",
    "text": "6",
    "second": "7",
}
FILES = (
    FilesOfTask(
        "text-classification", "trec/train.txt", {"format": "label_first", "encoding": "latin-1"}
    ),
    FilesOfTask("sentence-similarity", "stsb/sts-train.csv", COLUMNS),
    FilesOfTask("token-classification", "ud_english_ewt/*train*.conllu*", {}),
    FilesOfTask("token-classification", "wnut17/*train*", {"format": "conll"}),
    FilesOfTask("question-answering", "squadshifts/*.json*", {}),
)


class Outcome(NamedTuple):
    examples: int
    answers: int
    """Labels, numbers and answers, or tags."""
    unreadable: int
    score: float
    """accuracy or exact match in percent, or the mean squared error, which is that of rounding."""


def outcome(one: FilesOfTask, path: Path, vocabulary: int) -> Outcome:
    data = parse(DataConfig, one.reading)
    spec = LABELLED[one.task]
    examples = list(spec.read([str(path)], data, ReadReport()))
    config = MixedTaskConfig(task=one.task, data=data)
    form: Any = mixed_task("name", config, spec.from_examples(examples, data)).form
    targets = [form.target(example) for example in examples]
    tokenizer = train_tokenizer(targets, "bpe", vocabulary)
    how = HowToScore(tokenizer, EvaluateConfig(), resamples=0)
    metrics = score_texts(form, None, examples, how.written(targets), how).metrics
    if "mean_squared_error" in metrics:
        score = metrics["mean_squared_error"]
    else:
        score = 100 * metrics["accuracy"] if "accuracy" in metrics else metrics["exact_match"]
    answers = int(metrics.get("words", len(examples)))
    return Outcome(len(examples), answers, int(metrics.get("unreadable", 0)), score)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--vocabulary", type=int, default=4000)
    arguments = parser.parse_args(words)
    logging.disable(logging.INFO)
    for one in FILES:
        for path in sorted(arguments.data.glob(one.file)):
            print(path.name, one.task, *outcome(one, path, arguments.vocabulary))


if __name__ == "__main__":
    main()
