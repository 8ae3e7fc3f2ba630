"""Fine-tuning a BERT as a classifier beside transformers' Trainer: score over seeds, wall time.

    python -m benchmarks.fine_tuning TRAIN.tsv DEV.tsv --from CHECKPOINT [--seeds 3] [--threads 2] [--write]

The files have two columns without a header, text and label; CHECKPOINT is a folder in Hugging Face's format,
a BERT with a pooler. Both sides begin with its encoder and its pooler ([CLS], dense, tanh) and a new linear
layer. The recipe is that of Devlin et al. 2019, appendix A.3: 2 epochs, 32 texts a batch, cut to 128 tokens,
AdamW (0.9, 0.999), weight decay 0.01 but for biases and norms, gradients clipped to norm 1, learning rate
5e-5 with a tenth of the steps as warm-up and then linearly to 0, dropout 0.1, float32. Nothing is chosen: the
score is that of the last step on DEV.

Both put texts of like length together (Trainer: group_by_length), so that neither reads more padding than the
other by its defaults. The seconds are those of a user: from the files to a saved model with a score, tokens
and all, without imports. Of each seed both run one after the other, every other seed the peer first.

What still differs: Trainer's pools for sorting are 50 batches, ours 8,192 texts; Trainer decays embeddings,
ours have no decay; our head has dropout before the pooler too; Trainer's first step has rate 0, and so all
are one step behind.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import report
from benchmarks.measuring import Spread
from seqloom.errors import UsageError
from seqloom.evaluation.significance import mean_interval

OURS, PEER = "seqloom", "Trainer"
EPOCHS, ROWS, RATE, LONGEST, WARMUP = 2, 32, 5e-5, 128, 0.1
NEEDED = ("transformers", "accelerate")


class Files(NamedTuple):
    """What both sides are given."""

    train: str
    dev: str
    checkpoint: str


class Outcome(NamedTuple):
    accuracy: float
    """On DEV, in percent."""
    seconds: float


def texts_and_labels(path: str) -> tuple[list[str], list[str]]:
    """The two columns of a file. Raises UsageError for a line that has not two."""
    rows = [line.split("\t") for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise UsageError(
                f"{path}:{number}: must have a text and a label with a tab between them, but has {len(row)}"
                " columns"
            )
    return [text for text, _ in rows], [label for _, label in rows]


def steps_of(examples: int, epochs: int = EPOCHS) -> tuple[int, int]:
    """All steps of a training, and those of the warm-up."""
    total = epochs * math.ceil(examples / ROWS)
    return total, round(WARMUP * total)


def with_trainer(given: Files, seed: int, folder: Path) -> float:
    """A script as users of transformers write it; the share of DEV that is right, in percent."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint)
    names = sorted(set(texts_and_labels(given.train)[1]))

    def encoded(path: str) -> list[dict[str, Any]]:
        texts, labels = texts_and_labels(path)
        tokens = tokenizer(texts, truncation=True, max_length=LONGEST)
        return [
            {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": segments,
                "labels": names.index(label),
            }
            for ids, mask, segments, label in zip(
                tokens["input_ids"],
                tokens["attention_mask"],
                tokens["token_type_ids"],
                labels,
                strict=True,
            )
        ]

    train, dev = encoded(given.train), encoded(given.dev)
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(
            given.checkpoint, num_labels=len(names)
        ),
        args=TrainingArguments(**trainer_settings(len(train), seed, folder)),
        train_dataset=train,
        eval_dataset=dev,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {
            "accuracy": (np.argmax(found.predictions, axis=-1) == found.label_ids).mean()
        },
    )
    trainer.train()
    trainer.save_model(str(folder))
    return 100 * float(trainer.evaluate()["eval_accuracy"])


def trainer_settings(examples: int, seed: int, folder: Path) -> dict[str, Any]:
    """The recipe as transformers' TrainingArguments."""
    return {
        "output_dir": str(folder),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": ROWS,
        "per_device_eval_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "learning_rate": RATE,
        "lr_scheduler_type": "linear",
        "warmup_steps": steps_of(examples)[1],
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "seed": seed,
        "use_cpu": True,
        "eval_strategy": "no",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def with_seqloom(given: Files, seed: int, folder: Path) -> float:
    """The share of DEV that is right, in percent."""
    from benchmarks.trainings import train

    settings = seqloom_settings(len(texts_and_labels(given.train)[0]), seed)
    found = train(
        "text-classification",
        [given.train],
        output_dir=folder,
        validation=[given.dev],
        settings=settings,
        start=given.checkpoint,
    )
    return 100 * found.metrics["accuracy"]


def seqloom_settings(examples: int, seed: int) -> list[str]:
    """The recipe as `--set` has it. It is validated once, at the end."""
    total, warmup = steps_of(examples)
    return [
        *("data.text=1", "data.label=2", f"data.max_length={LONGEST - 2}"),  # [CLS] and [SEP] aside
        *("head.pooling=first", "head.activation=tanh", "head.dropout=0.1"),
        *(f"train.max_steps={total}", f"train.evaluate_every={total}", f"train.batch_rows={ROWS}"),
        *(f"train.learning_rate={RATE}", "train.schedule=linear", f"train.warmup_steps={warmup}"),
        *(
            "train.beta2=0.999",
            "train.weight_decay=0.01",
            "train.clip_norm=1.0",
            f"train.seed={seed}",
        ),
        *("train.device=cpu", "train.dtype=float32", f"train.threads={torch.get_num_threads()}"),
    ]


def outcomes(
    given: Files,
    seeds: int,
    sides: dict[str, Callable[[Files, int, Path], float]],
    say: Callable[[str], None] = print,
) -> dict[str, list[Outcome]]:
    """Both sides, seed by seed, each in a folder that is thrown away."""
    found: dict[str, list[Outcome]] = {name: [] for name in sides}
    for seed in range(seeds):
        for name in list(sides) if seed % 2 == 0 else reversed(list(sides)):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                accuracy = sides[name](given, seed, Path(folder) / "run")
                found[name].append(Outcome(accuracy, time.perf_counter() - began))
            say(f"seed {seed}, {name}: {accuracy:.2f} % in {found[name][-1].seconds:.0f} s")
    return found


class Verdict(NamedTuple):
    score: bool
    """Whether our mean is not below the peer's 95 % interval over seeds."""
    time: bool
    """Whether our seconds are no more, by the median of the paired ratios."""


def verdict(found: dict[str, list[Outcome]]) -> Verdict:
    ours, theirs = ([one.accuracy for one in found[name]] for name in (OURS, PEER))
    return Verdict(statistics.fmean(ours) >= mean_interval(theirs).low, ratio_of(found).median >= 1)


def ratio_of(found: dict[str, list[Outcome]]) -> Spread:
    """How many times as fast as the peer are we, seed by seed."""
    return Spread.of(
        theirs.seconds / ours.seconds for ours, theirs in zip(found[OURS], found[PEER], strict=True)
    )


def described(found: dict[str, list[Outcome]], given: Files, script: str) -> str:
    """The page's section; `script` made it."""
    rows = []
    for name, runs in found.items():
        mean = mean_interval([one.accuracy for one in runs])
        scores = ", ".join(f"{one.accuracy:.2f}" for one in runs)
        seconds = Spread.of(one.seconds for one in runs)
        rows.append(
            [
                name,
                scores,
                f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f})",
                f"{seconds.median:.0f}",
            ]
        )
    within, faster = verdict(found)
    ratio = ratio_of(found)
    table = report.table(["side", "seed by seed", "mean (95 % interval)", "seconds"], rows)
    return (
        f"{Path(given.checkpoint).name} on {Path(given.train).name}, accuracy on {Path(given.dev).name} in"
        f" percent.\n\n{table}\n\nTimes"
        f" the speed of Trainer, paired by seed: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}),"
        f" {'no more time' if faster else 'more time'}. Our mean is {'not ' if within else ''}below the"
        f" interval of Trainer's seeds.\n\n`python -m benchmarks.{script} TRAIN.tsv DEV.tsv --from"
        " CHECKPOINT`"
    )


def missing(names: Sequence[str] = NEEDED) -> str | None:
    """What to install before this can run; None where all is there."""
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    return (
        f"transformers' Trainer needs {' and '.join(lacking)}: pip install {' '.join(lacking)}"
        if lacking
        else None
    )


Side = Callable[[Files, int, Path], float]
"""(files, seed, a new folder) -> the share of DEV that is right, in percent."""


def compare(script: str, title: str, about: str | None, ours: Side, theirs: Side) -> None:
    """Runs both sides as the command line says, prints a table, and publishes it under a title where that is
    asked for."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--from", dest="checkpoint", required=True, metavar="CHECKPOINT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    if (lacking := missing()) is not None:
        parser.exit(2, f"{lacking}\n")
    torch.set_num_threads(arguments.threads)
    given = Files(arguments.train, arguments.dev, arguments.checkpoint)
    found = outcomes(given, arguments.seeds, {OURS: ours, PEER: theirs})
    text = described(found, given, script)
    print(text)
    if arguments.write:
        figures = {name: [one._asdict() for one in runs] for name, runs in found.items()}
        report.publish(
            script, {**figures, "ratio": ratio_of(found)._asdict()}, f"## {title}\n\n{text}"
        )


def main() -> None:
    compare("fine_tuning", "Fine-tuning", __doc__, with_seqloom, with_trainer)


if __name__ == "__main__":
    main()
