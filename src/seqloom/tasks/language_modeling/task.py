"""The task text-generation: language modelling, trained on documents."""

from __future__ import annotations

from functools import partial

from seqloom.data.readers.documents import forms_of_documents
from seqloom.protocols import Task
from seqloom.tasks.language_modeling.check_documents import check_documents
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.tasks.language_modeling.training_data import prepare_corpus
from seqloom.tasks.model import open_text_model
from seqloom.tasks.setting_names import (
    DECODE,
    DOCUMENTS,
    PRETRAINING,
    PROMPT,
    fine_tuning_defaults,
    train,
)

TEXT_GENERATION = Task(
    name="text-generation",
    summary="the beginning of a text in; its continuation out",
    models=("gpt", "recurrent_lm", "ngram"),
    settings=PRETRAINING | train("window") | PROMPT | DECODE,
    reading=DOCUMENTS,
    open=partial(open_text_model, LanguageModel),
    training_data=prepare_corpus,
    forms=forms_of_documents,
    check=check_documents,
    defaults=lambda content: {"decode": {"strategy": "sample"}, **fine_tuning_defaults(content)},
    pretrained=True,
    comparable=True,
    score="bits_per_byte",
    verb="generate",
    usage='seqloom generate {} --prompt "..."',
)
