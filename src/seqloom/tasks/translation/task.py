"""The tasks of text pairs: a text in, a text out; trained on pairs of source and target."""

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
from seqloom.tasks.translation import measures
from seqloom.tasks.translation.check_pairs import check_pairs
from seqloom.tasks.translation.measures import Measure
from seqloom.tasks.translation.training_data import prepare_pairs
from seqloom.tasks.translation.translator import Translator

READING = FILES | TABLE | data("source", "target", "text")


def pair_task(name: str, summary: str, measure: Measure) -> Task:
    """`measure`: how its outputs are compared with references."""
    settings = READING | TRAINED_ON | TOKENIZER | data("max_length") | TRAIN | DECODE
    return Task(
        name=name,
        summary=summary,
        models=("seq2seq", "transformer", "t5"),
        settings=settings | EVALUATE if measure.has_bleu else settings,
        reading=READING,
        open=partial(open_text_model, partial(Translator, measure=measure)),
        training_data=partial(prepare_pairs, measure),
        check=check_pairs,
        best=("loss", *measure.names),
        text_metrics=True,
        defaults=fine_tuning_defaults,
        pretrained=True,
        hub_task="translation",
    )


TRANSLATION = pair_task(
    "translation", "a text in; the same in another language out", measures.TRANSLATION
)
SUMMARIZATION = pair_task("summarization", "a text in; a shorter one out", measures.SUMMARIZATION)
TEXT_TO_TEXT = pair_task(
    "text2text-generation", "a text in; another text out", measures.TRANSLATION
)
