"""A trained model of every family that can be looked at, with an input of it: the stored run folders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import seqloom
from seqloom.tasks.explain.explained_model import ExplainedModel

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
SENTENCE = "the red dog sees the old cat"
PAIR = ("the red dog sees a cat", "a green bird likes the park")

LABELS = ("labels-bag", "labels-bert", "labels-convolution", "labels-recurrent")
INPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LABELS, ("a good film, warm and bright .",)),
    "labels-gpt": PAIR,
    "labels-bag-several": (SENTENCE,),
    "similar-recurrent": PAIR,
    "similar-bert-tuned": PAIR,
    "tags-recurrent": (SENTENCE,),
    "tags-convolution-crf": (SENTENCE,),
    "questions-bert": ("who sees the cat ?", SENTENCE),
    "questions-t5": ("who sees the cat ?", SENTENCE),
    "choices-gpt": ("the red dog", "sees the cat", "likes the park"),
    "masks-bert": ("the red [MASK] sees the old cat",),
    "text-gpt": (SENTENCE,),
    "text-gpt-bpe": ("the red",),
    "text-gpt-rotary": (SENTENCE,),
    "text-recurrent-lm": (SENTENCE,),
    "text-recurrent-lm-adaptive": (SENTENCE,),
    "text-ngram": (SENTENCE,),
    "text-mixture": (SENTENCE,),
    "translation-seq2seq": ("the red dog",),
    "translation-seq2seq-lstm": ("the red dog",),
    "translation-transformer": ("the red dog",),
    "translation-t5": ("the red dog",),
    "vectors-bert": (SENTENCE,),
}
"""Run -> the texts that it is asked of."""


@cache
def opened(name: str) -> ExplainedModel:
    """Its model in float64, where a derivative has twelve digits."""
    model: Any = seqloom.load(RUNS / name, "cpu")
    model.model.double()
    assert isinstance(model, ExplainedModel)
    return model
