"""The models that every law is tried on. A new family adds its kinds to `SUBJECTS`.

All are tiny, in float64, in evaluation mode, with weights *and biases* drawn at random: a bias of 0 would hide that it
is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from seqloom.layers.cells import CELLS
from seqloom.models.seq2seq import SIZES, Seq2Seq, Seq2SeqConfig
from seqloom.protocols import State

VOCABULARY = 7


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A model under law."""

    model: Any
    """An `nn.Module` that is a `NeuralDecodable`."""
    start: Callable[[Tensor], State]
    """inputs `(rows, source)`, padded anywhere -> the state before the first token. A model without an encoder looks at
    the number of rows only."""


TINY: dict[str, Any] = {"embedding_width": 4, "encoder_width": 3, "width": 6, "attention_width": 5, "readout_width": 4}
MAPPED: dict[str, Any] = TINY | {"width": 5}  # widths differ, so the bridge is a map and not the identity
PLAIN: dict[str, Any] = MAPPED | {"attention": "none", "bidirectional": False}


def shrunk(size: dict[str, Any]) -> dict[str, Any]:
    """A named size with all its widths divided alike, so that what agrees still agrees."""
    widths = {"embedding_width": 256, "encoder_width": 256, "width": 256, "attention_width": 256, "readout_width": 256}
    widths = {name: size.get(name, width) for name, width in widths.items()}
    return size | {name: round(8 * width / max(widths.values())) for name, width in widths.items()}


SEQ2SEQ: dict[str, dict[str, Any]] = {
    **{f"{cell}, attention": MAPPED | {"cell": cell} for cell in CELLS},
    **{f"{cell}, 2 layers, one vector": PLAIN | {"cell": cell, "encoder_layers": 2, "decoder_layers": 2} for cell in CELLS},
    **{
        f"{attention} from {query}": TINY | {"attention": attention, "attend_from": query, "decoder_layers": 2, "cell": "lstm"}
        for attention in ("additive", "dot", "bilinear")
        for query in ("previous", "current")
    },
    **{f"context {context}": TINY | {"attention": "none", "context": context} for context in ("initial", "every_step", "both")},
    **{
        f"{name}, {attention}": options | {"attention": attention, "encoder_layers": 2, "decoder_layers": 3}
        for name, options in {
            "projected lstm": MAPPED | {"cell": "lstm", "projection": 4},
            "layer normalisation": MAPPED | {"cell": "lstm", "normalisation": "layer", "connection": "residual"},
            "layer-normalised mut1, highways": MAPPED | {"cell": "mut1", "normalisation": "layer", "connection": "highway"},
            "batch normalisation": MAPPED | {"normalisation": "batch", "state_dropout": 0.2, "variational_dropout": True},
        }.items()
        for attention in ("additive", "none")
    },
    "2 layers to 1": MAPPED | {"encoder_layers": 2},
    "1 layer to 2, one direction": MAPPED | {"decoder_layers": 2, "bidirectional": False},
    "reversed source": MAPPED | {"reverse_source": True},
    "backward bridge": MAPPED | {"bridge": "backward", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2},
    "linear readout": MAPPED | {"readout": "linear"},
    "no readout": TINY | {"readout": "none", "readout_width": 6},
    "tied output": MAPPED | {"tie_output": True},
    "two embeddings, tied output": MAPPED | {"share_embeddings": False, "tie_output": True},
    **{f"size {name}": shrunk(size) for name, size in SIZES.items()},
}


def seq2seq(options: dict[str, Any]) -> Subject:
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, **options)).double().eval()
    draw_parameters(model)
    return Subject(model, model.encode)


def draw_parameters(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7, generator=generator)


SUBJECTS: dict[str, Callable[[], Subject]] = {name: partial(seq2seq, options) for name, options in SEQ2SEQ.items()}


@pytest.fixture(scope="session", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()
