"""The models that every law is tried on. A new family adds its kinds to `SUBJECTS`.

All are tiny, in float64, in evaluation mode, with weights *and biases* drawn at random: a bias of 0 would
hide that it is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seqloom.layers.recurrent.cells import CELLS
from seqloom.models.ensemble import Ensemble, EnsembleConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.ngrams.ngram import Ngram, NgramConfig
from seqloom.models.prompt_tuning import prompt_tuned
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.models.seq2seq import SIZES, Seq2Seq, Seq2SeqConfig
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.protocols import EncoderDecoder
from seqloom.run_file import to_plain
from seqloom.testing.decodable import DecodableLaws
from seqloom.testing.tensors import draw_parameters
from seqloom.text.special_tokens import BOS, EOS, PAD

VOCABULARY = 7
WORDS: dict[str, Any] = {"vocabulary_size": VOCABULARY, "suppressed_ids": (PAD, BOS)}
"""`</s>`, and four words."""


Subject = DecodableLaws

TINY: dict[str, Any] = {
    "embedding_width": 4,
    "encoder_width": 3,
    "width": 6,
    "attention_width": 5,
    "readout_width": 4,
}
# widths differ, so the bridge is a map and not the identity
MAPPED: dict[str, Any] = TINY | {"width": 5}
PLAIN: dict[str, Any] = MAPPED | {"attention": "none", "bidirectional": False}


def shrunk(size: dict[str, Any]) -> dict[str, Any]:
    """A named size with all its widths divided alike, so that what agrees still agrees."""
    widths = {
        "embedding_width": 256,
        "encoder_width": 256,
        "width": 256,
        "attention_width": 256,
        "readout_width": 256,
    }
    widths = {name: size.get(name, width) for name, width in widths.items()}
    return size | {name: round(8 * width / max(widths.values())) for name, width in widths.items()}


SEQ2SEQ: dict[str, dict[str, Any]] = {
    **{f"{cell}, attention": MAPPED | {"cell": cell} for cell in CELLS},
    **{
        f"{cell}, 2 layers, one vector": PLAIN
        | {"cell": cell, "encoder_layers": 2, "decoder_layers": 2}
        for cell in CELLS
    },
    **{
        f"{attention} from {query}": (
            TINY
            | {"attention": attention, "attend_from": query, "decoder_layers": 2, "cell": "lstm"}
        )
        for attention in ("additive", "dot", "bilinear")
        for query in ("previous", "current")
    },
    **{
        f"context {context}": TINY | {"attention": "none", "context": context}
        for context in ("initial", "every_step", "both")
    },
    **{
        f"{name}, {attention}": options
        | {"attention": attention, "encoder_layers": 2, "decoder_layers": 3}
        for name, options in {
            "projected lstm": MAPPED | {"cell": "lstm", "projection": 4},
            "layer normalisation": (
                MAPPED | {"cell": "lstm", "normalisation": "layer", "connection": "residual"}
            ),
            "layer-normalised mut1, highways": (
                MAPPED | {"cell": "mut1", "normalisation": "layer", "connection": "highway"}
            ),
            "batch normalisation": (
                MAPPED
                | {"normalisation": "batch", "state_dropout": 0.2, "variational_dropout": True}
            ),
        }.items()
        for attention in ("additive", "none")
    },
    "2 layers to 1": MAPPED | {"encoder_layers": 2},
    "1 layer to 2, one direction": MAPPED | {"decoder_layers": 2, "bidirectional": False},
    "reversed source": MAPPED | {"reverse_source": True},
    "backward bridge": (
        MAPPED | {"bridge": "backward", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2}
    ),
    "linear readout": MAPPED | {"readout": "linear"},
    "no readout": TINY | {"readout": "none", "readout_width": 6},
    "tied output": MAPPED | {"tie_output": True},
    "two embeddings, tied output": MAPPED | {"share_embeddings": False, "tie_output": True},
    **{f"size {name}": shrunk(size) for name, size in SIZES.items()},
}


def seq2seq(options: dict[str, Any]) -> Subject:
    return with_encoder(Seq2Seq(Seq2SeqConfig(**WORDS, **options)))


def language_model(model: nn.Module) -> Subject:
    model = model.double().eval()
    draw_parameters(model)
    return Subject(model, lambda inputs: None)


def recurrent_lm(options: dict[str, Any]) -> Subject:
    return language_model(RecurrentLM(RecurrentLMConfig(**WORDS, **SMALL_LM | options)))


def gpt(options: dict[str, Any]) -> Subject:
    return language_model(GPT(GPTConfig(**WORDS, **SMALL_GPT | options)))


def transformer(options: dict[str, Any]) -> Subject:
    return with_encoder(Transformer(TransformerConfig(**WORDS, **SMALL_TRANSFORMER | options)))


def t5(options: dict[str, Any]) -> Subject:
    return with_encoder(T5(T5Config(**WORDS, **SMALL_TRANSFORMER | options)))


def with_encoder(model: Any) -> Subject:
    model = model.double().eval()
    draw_parameters(model)
    return Subject(model, model.encode)


def prompted(make: Callable[[dict[str, Any]], Subject], options: dict[str, Any]) -> Subject:
    """A frozen model with a prompt of three vectors."""
    base: Any = make(options).model
    model: Any = prompt_tuned(base, 3).double()
    draw_parameters(model.prompt, seed=1)
    return Subject(
        model, model.encode if isinstance(model, EncoderDecoder) else lambda inputs: None
    )


def ngram(order: int, prune: tuple[int, ...] = ()) -> Subject:
    """Counted in a random text in which some words often follow others."""
    chance = np.random.default_rng(0)
    ids = np.array([EOS, 3, 4, 5, 6])[
        np.minimum(chance.integers(0, 5, 400), chance.integers(0, 5, 400))
    ]
    config = NgramConfig(vocabulary_size=VOCABULARY, order=order, prune=prune, first_word_id=3)
    return Subject(
        Ngram.fit(config, np.append(ids, EOS)).double().eval(), lambda inputs: None, 1e-6
    )


def ensemble() -> Subject:
    members = [recurrent_lm({}).model, gpt({}).model, ngram(3).model]
    kinds = ("recurrent_lm", "gpt", "ngram")
    configs = tuple(
        {"model_type": kind, **to_plain(member.config)}
        for kind, member in zip(kinds, members, strict=True)
    )
    model = Ensemble(EnsembleConfig(vocabulary_size=VOCABULARY, members=configs)).double().eval()
    for mine, member in zip(model.members, members, strict=True):
        mine.load_state_dict(member.state_dict())
    model.weights.copy_(torch.tensor([0.2, 0.5, 0.3]))
    return Subject(model, lambda inputs: None, 1e-6)


SMALL_LM: dict[str, Any] = {"embedding_width": 4, "width": 5, "layers": 2, "tie_output": False}
SMALL_GPT: dict[str, Any] = {"context": 32, "width": 8, "layers": 2, "heads": 2}
SMALL_TRANSFORMER: dict[str, Any] = {
    "width": 8,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "heads": 2,
}
TRANSFORMERS: dict[str, Callable[[], Subject]] = {
    "transformer": partial(transformer, {}),
    "transformer, norm after": partial(
        transformer,
        {
            "norm": "after",
            "decoder_layers": 1,
            "share_embeddings": False,
            "tie_output": False,
            "output_bias": True,
        },
    ),
    "transformer, learned positions": partial(
        transformer,
        {
            "positions": "learned",
            "context": 32,
            "position_offset": 2,
            "embedding_norm": True,
            "activation": "swish",
        },
    ),
    "transformer, halves": partial(
        transformer, {"positions": "sinusoidal-halves", "decoder_heads": 4, "biases": False}
    ),
    "t5": partial(t5, {"buckets": 4, "furthest": 4}),
    "t5, v1.1": partial(
        t5,
        {
            "gated": True,
            "activation": "gelu-tanh",
            "tie_output": False,
            "scale_output": False,
            "head_width": 3,
        },
    ),
}
NEURAL_LMS: dict[str, Callable[[], Subject]] = {
    **{f"{cell} language model": partial(recurrent_lm, {"cell": cell}) for cell in CELLS},
    "one-hot language model": partial(recurrent_lm, {"embedding": "one-hot", "tie_output": False}),
    "projected, tied language model": partial(recurrent_lm, {"projection": 3, "tie_output": True}),
    "layer-normalised language model": partial(
        recurrent_lm, {"normalisation": "layer", "connection": "highway"}
    ),
    "awd language model": partial(
        recurrent_lm,
        {
            "layers": 3,
            "last_width": 4,
            "weight_dropout": 0.5,
            "embedding_dropout": 0.1,
            "tie_output": True,
        },
    ),
    **{
        f"{kind} language model": partial(recurrent_lm, {"output": kind})
        for kind in ("adaptive", "importance", "blackout")
    },
    "maxent language model": partial(recurrent_lm, {"maxent": 3, "maxent_size": 50}),
    "joined language model": partial(recurrent_lm, {"documents": "joined"}),
    **{
        f"gpt, {positions}": partial(gpt, {"positions": positions})
        for positions in ("learned", "sinusoidal", "rotary", "none")
    },
    "gpt, adaptive": partial(gpt, {"output": "adaptive", "tie_output": False}),
    "gpt, norm after": partial(gpt, {"norm": "after", "activation": "relu", "tie_output": False}),
    "gpt, joined": partial(gpt, {"documents": "joined", "biases": False}),
}
PROMPTED_LMS: dict[str, Callable[[], Subject]] = {
    "prompted gpt": partial(prompted, gpt, {}),
    "prompted gpt, joined": partial(prompted, gpt, {"positions": "rotary", "documents": "joined"}),
    "prompted language model": partial(prompted, recurrent_lm, {"cell": "lstm"}),
}
PROMPTED: dict[str, Callable[[], Subject]] = {
    "prompted t5": partial(prompted, t5, {}),
    "prompted transformer": partial(
        prompted,
        transformer,
        {"positions": "learned", "context": 32, "share_embeddings": False, "tie_output": False},
    ),
    "prompted, tied transformer": partial(prompted, transformer, {}),
    "prompted seq2seq": partial(prompted, seq2seq, MAPPED | {"reverse_source": True}),
}
LANGUAGE_MODELS: dict[str, Callable[[], Subject]] = NEURAL_LMS | {
    **PROMPTED_LMS,
    **{f"{order}-gram": partial(ngram, order) for order in (2, 4)},
    "pruned 3-gram": partial(ngram, 3, (0, 1, 2)),
    "ensemble": ensemble,
}
NEURAL: dict[str, Callable[[], Subject]] = (
    {name: partial(seq2seq, options) for name, options in SEQ2SEQ.items()}
    | TRANSFORMERS
    | PROMPTED
    | PROMPTED_LMS
    | NEURAL_LMS
)
SUBJECTS = NEURAL | LANGUAGE_MODELS


@cache
def made(name: str) -> Subject:
    return SUBJECTS[name]()


@pytest.fixture(scope="session", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Any model that predicts a next token."""
    return made(request.param)


@pytest.fixture(scope="session", params=NEURAL)
def neural(request: pytest.FixtureRequest) -> Subject:
    """A model in two halves, with gradients."""
    return made(request.param)


@pytest.fixture(scope="session", params=LANGUAGE_MODELS)
def lm(request: pytest.FixtureRequest) -> Subject:
    """A model without an encoder."""
    return made(request.param)
