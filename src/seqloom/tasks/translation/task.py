"""The task translation: a text in, a text out; trained on pairs of source and target."""

from __future__ import annotations

from functools import partial

from seqloom.protocols import Task
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DECODE,
    EVALUATE,
    FILES,
    TABLE,
    TOKENIZER,
    TRAIN,
    TRAINED_ON,
    data,
    fine_tuning_defaults,
)
from seqloom.tasks.translation.check_pairs import check_pairs
from seqloom.tasks.translation.training_data import prepare_pairs
from seqloom.tasks.translation.translator import Translator

READING = FILES | TABLE | data("source", "target", "text")

TRANSLATION = Task(
    name="translation",
    summary="a text in; a text out",
    models=("seq2seq", "transformer", "t5"),
    settings=READING | TRAINED_ON | TOKENIZER | data("max_length") | TRAIN | DECODE | EVALUATE,
    reading=READING,
    open=partial(open_text_model, Translator),
    training_data=prepare_pairs,
    check=check_pairs,
    best=("loss", "bleu", "chrf", "exact_match"),
    text_metrics=True,
    defaults=fine_tuning_defaults,
    pretrained=True,
)
