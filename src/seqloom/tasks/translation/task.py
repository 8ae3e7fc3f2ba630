"""The tasks of text pairs: a text in, a text out; trained on pairs of source and target."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from seqloom.config import RunConfig
from seqloom.data.readers.records import forms_of_pairs
from seqloom.models import model_family
from seqloom.protocols import EncoderDecoder, Task
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DECODE,
    EVALUATE,
    FILES,
    PROMPT,
    TABLE,
    TOKENIZER,
    TRAIN,
    TRAINED_ON,
    WORD_VECTORS,
    data,
    fine_tuning_defaults,
)
from seqloom.tasks.translation import measures
from seqloom.tasks.translation.check_pairs import check_pairs
from seqloom.tasks.translation.measures import Measure
from seqloom.tasks.translation.training_data import prepare_pairs
from seqloom.tasks.translation.translator import Translator

READING = FILES | TABLE | data("source", "target")


def unused(run: RunConfig) -> Mapping[str, str]:
    """The settings that change nothing in this run, and why."""
    reason = "train.source_loss counts the source as text that the model writes, but"
    family = model_family(run.model["name"])[1]
    if issubclass(family, EncoderDecoder):
        return {"train.source_loss": f"{reason} an encoder only reads it"}
    if run.model.get("bidirectional_source"):
        why = "with model.bidirectional_source each of its tokens sees the next ones"
        return {"train.source_loss": f"{reason} {why}"}
    return {}


def pair_task(name: str, summary: str, measure: Measure) -> Task:
    """`measure`: how its outputs are compared with references."""
    settings = READING | TRAINED_ON | TOKENIZER | data("max_length") | TRAIN | DECODE
    settings |= {"train.source_loss"} | PROMPT | WORD_VECTORS
    return Task(
        name=name,
        summary=summary,
        models=("seq2seq", "transformer", "t5", "gpt", "recurrent_lm"),
        settings=settings | EVALUATE if measure.has_bleu else settings,
        reading=READING,
        open=partial(open_text_model, partial(Translator, measure=measure)),
        training_data=partial(prepare_pairs, measure),
        forms=forms_of_pairs,
        check=check_pairs,
        best=("loss", *measure.names),
        text_metrics=True,
        defaults=fine_tuning_defaults,
        pretrained=True,
        hub_task="translation",
        comparable=True,
        score=measure.names[0],
        unused=unused,
    )


TRANSLATION = pair_task(
    "translation", "a text in; the same in another language out", measures.TRANSLATION
)
SUMMARIZATION = pair_task("summarization", "a text in; a shorter one out", measures.SUMMARIZATION)
