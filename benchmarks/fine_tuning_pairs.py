"""Fine-tuning a T5 on pairs of texts beside transformers' Seq2SeqTrainer: score over seeds, wall time.

    python -m benchmarks.fine_tuning_pairs TRAIN.tsv DEV.tsv --from CHECKPOINT [--seeds 3] [--threads 2]
        [--write]

The files have the columns source and target, labels as text; CHECKPOINT is a folder in Hugging Face's
format, such as `seqloom export` writes of a model of `seqloom train denoising`. The recipe of both: 5
epochs, 32 pairs a batch, AdamW (0.9, 0.999), weight decay 0.01, gradients clipped to norm 1, learning rate
1e-3 with a tenth of the steps as warm-up and then linearly to 0, float32. The score is the share of the
greedy outputs that are the target, after the last step. Pairs of like length are put together by both. The
seconds are those of a user, from the files to a saved model with a score. Of each seed both run one after
the other, every other seed the peer first.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import seqloom
from benchmarks.fine_tuning import ROWS, Files, compare, steps_of, trainer_settings
from seqloom.protocols import Request

EPOCHS, RATE, LONGEST = 5, 1e-3, 16


def pairs_of(path: str) -> list[tuple[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["source"], row["target"]) for row in rows]


def with_trainer(given: Files, seed: int, folder: Path) -> float:
    """A script as users of transformers write it; the share of DEV that is right, in percent."""
    from transformers import (
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        set_seed,
    )

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint)
    model = AutoModelForSeq2SeqLM.from_pretrained(given.checkpoint)
    model.generation_config.max_new_tokens = LONGEST

    def encoded(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        sources, targets = zip(*pairs, strict=True)
        found = tokenizer(list(sources), text_target=list(targets))
        names = ("input_ids", "attention_mask", "labels")
        return [
            dict(zip(names, row, strict=True))
            for row in zip(*(found[name] for name in names), strict=True)
        ]

    train, dev = pairs_of(given.train), pairs_of(given.dev)
    held_out: Any = encoded(dev)
    total, warmup = steps_of(len(train), EPOCHS)
    settings = trainer_settings(len(train), seed, folder) | {
        "num_train_epochs": EPOCHS,
        "learning_rate": RATE,
        "warmup_steps": warmup,
        "predict_with_generate": True,
        "generation_num_beams": 1,
    }

    def right(found: Any) -> dict[str, float]:
        ids = [[one for one in row if one >= 0] for row in found.predictions]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return {"right": sum(a == b for a, (_, b) in zip(texts, dev, strict=True)) / len(dev)}

    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**settings),
        train_dataset=encoded(train),
        eval_dataset=held_out,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=right,
    )
    trainer.train()
    assert trainer.state.global_step == total
    trainer.save_model(str(folder))
    return 100 * float(trainer.evaluate()["eval_right"])


def with_seqloom(given: Files, seed: int, folder: Path) -> float:
    """The share of DEV that is right, in percent."""
    from benchmarks.trainings import train

    train(
        "text2text-generation",
        [given.train],
        output_dir=folder,
        validation=[given.dev],
        settings=seqloom_settings(len(pairs_of(given.train)), seed),
        start=given.checkpoint,
    )
    settings = {"strategy": "greedy", "max_length": LONGEST}
    metrics = seqloom.load(folder).evaluate([given.dev], Request(decode=settings)).metrics
    return float(metrics["exact_match"])


def seqloom_settings(examples: int, seed: int) -> list[str]:
    """The recipe as `--set` has it. It is validated once, at the end."""
    total, warmup = steps_of(examples, EPOCHS)
    return [
        *(f"train.max_steps={total}", f"train.evaluate_every={total}", f"train.batch_rows={ROWS}"),
        *(f"train.learning_rate={RATE}", "train.schedule=linear", f"train.warmup_steps={warmup}"),
        *("train.beta2=0.999", "train.weight_decay=0.01", "train.clip_norm=1.0"),
        *(f"train.seed={seed}", "train.device=cpu", f"train.threads={torch.get_num_threads()}"),
    ]


if __name__ == "__main__":
    compare("fine_tuning_pairs", "Fine-tuning on pairs", __doc__, with_seqloom, with_trainer)
