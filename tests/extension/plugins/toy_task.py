"""A task from outside: a text is written backwards. Its data are lines, and each is its own answer,
reversed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from torch import nn

import seqloom
from seqloom import files
from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.order import order
from seqloom.data.batching.pair_batches import TranslationBatch, pair_batch
from seqloom.data.batching.splits import held_out
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import UsageError
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, NewModel, Request, Rows, Task
from seqloom.runs import run_folder
from seqloom.runs.progress import each_text
from seqloom.tasks.data_report import DataReport
from seqloom.tasks.model import TrainedModel
from seqloom.tasks.setting_names import DECODE, FILES, TOKENIZER, TRAIN, TRAINED_ON
from seqloom.tasks.training_data import check_same_data, learned_tokenizer, new_model
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs
from seqloom.tasks.translation.translate import decode_texts
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import Translation


def lines_of(paths: Sequence[str], run: RunConfig) -> list[str]:
    return [line for path in paths for line in each_text(path, run.data) if line.strip()]


def pairs_of(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(line, line[::-1]) for line in lines]


@final
@dataclass(frozen=True, kw_only=True)
class ReversedLines:
    """The `TrainingData` of the task."""

    run: RunConfig
    tokenizer: TextTokenizer
    sources: list[list[int]]
    targets: list[list[int]]
    validation: list[tuple[str, str]]

    def about(self) -> str:
        return f"{len(self.sources):,} lines ({len(self.validation):,} for validation)"

    def build(self) -> NewModel:
        return new_model(self.run, self.tokenizer.vocabulary_size)

    def _rows(self) -> int:
        return self.run.train.batch_rows or 16

    def batches_an_epoch(self) -> int:
        return -(-len(self.sources) // self._rows())

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        count, rows = len(self.sources), self._rows()
        for first in range(start * rows, count, rows):
            yield order(self.run.train.seed, epoch, first, min(first + rows, count), count)

    def load(self, rows: Rows, whole: Rows) -> TranslationBatch:
        return pair_batch([self.sources[row] for row in rows], [self.targets[row] for row in rows])

    def describe(self, rows: Rows) -> str:
        return f"the lines {', '.join(str(row) for row in rows[:8])}"

    def objective(self) -> Translation:
        return Translation(self.run.train.label_smoothing)

    def initialise(self, model: nn.Module) -> None:
        pass

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        raise UsageError(f"a {model_class.__name__} cannot be fitted to lines")

    def validate(self, model: nn.Module) -> dict[str, float]:
        decode = None if self.run.train.best == "loss" else self.run.decode
        return evaluate_pairs(model, self.tokenizer, self.validation, decode).metrics


def prepare(run: RunConfig, folder: Path, first: bool) -> ReversedLines:
    prints = [fingerprint(path) for path in (*run.data.train, *run.data.validation)]
    check_same_data(folder, prints)
    lines, validation = lines_of(run.data.train, run), lines_of(run.data.validation, run)
    if not validation:
        held = held_out(len(lines), run.train.seed)
        validation = [lines[at] for at in sorted(held)]
        lines = [line for at, line in enumerate(lines) if at not in held]
    tokenizer = learned_tokenizer(folder, run.data, lambda: iter(lines), first)
    if first and not (folder / run_folder.DATA).exists():
        files.write_json(folder / run_folder.DATA, {"files": prints, "lines": len(lines)})
    return ReversedLines(
        run=run,
        tokenizer=tokenizer,
        sources=tokenizer.encode(lines),
        targets=tokenizer.encode([line[::-1] for line in lines]),
        validation=pairs_of(validation),
    )


@final
class Reverser(TrainedModel):
    """A trained model of the task."""

    reads: ClassVar = {"evaluate": frozenset({"decode"}), "predict": frozenset({"decode"})}

    def __init__(self, run: run_folder.LoadedRun) -> None:
        super().__init__(run.folder, run.task, run.model, run.model_type)
        self.bundle = run

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        self.check("predict", request)
        run, decode = self.bundle, self.bundle.decode_settings(dict(request.decode))
        texts = list(each_text(paths[0] if paths else "-", DataConfig()))
        for outputs in decode_texts(run.model, run.tokenizer, texts, decode):
            yield Answer(outputs[0].text, {"backwards": outputs[0].text})

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        self.check("evaluate", request)
        run, decode = self.bundle, self.bundle.decode_settings(dict(request.decode))
        lines = [line for path in paths for line in each_text(path, DataConfig()) if line.strip()]
        return evaluate_pairs(run.model, run.tokenizer, pairs_of(lines), decode)


def check(run: RunConfig, test: Sequence[str], folder: Path) -> DataReport:
    lines = lines_of(run.data.train, run)
    palindromes = sum(line == line[::-1] for line in lines)
    return DataReport(
        splits={"train": {"lines": len(lines), "palindromes": palindromes}},
        lengths={"train": {"max": max(map(len, lines))}},
        tokenizer={},
        training={},
        first_batch=[],
        errors=[],
        tables=[
            ("Lines", ("", "lines", "palindromes"), [("train", str(len(lines)), str(palindromes))])
        ],
    )


seqloom.register_task(
    Task(
        name="text-reversal",
        summary="a text in; the same text backwards out",
        models=("seq2seq", "transformer"),
        settings=FILES | TRAINED_ON | TOKENIZER | TRAIN | DECODE,
        reading=FILES,
        open=lambda folder, device: Reverser(run_folder.load_run(folder, device)),
        training_data=prepare,
        check=check,
        best=("loss", "bleu", "chrf", "exact_match"),
        text_metrics=True,
        defaults=lambda content: {"data": {"tokenizer": "characters"}},
    )
)
