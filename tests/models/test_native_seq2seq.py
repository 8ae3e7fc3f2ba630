"""The compiled step of recurrent decoders is their twin in torch: every cell, attention and readout, and
whatever is done to the rows between two steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.models.test_native_gpt import STORAGES, assert_close, inputs_stay, threads
from tests.models.test_native_recurrent_lm import native_steps, rounded
from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import logits_processors
from seqloom.decoding.strategies import BeamSearch
from seqloom.layers.attention import watched_attention
from seqloom.layers.recurrent.cells import CELLS
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig, Seq2SeqState
from seqloom.native.library import OFF, library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import (
    EncoderDecoder,
    State,
    join_rows,
    next_logits,
    reorder_in_place,
    select_rows,
    target_log_probs,
)
from seqloom.runs.quantised_weights import (
    QuantisedEncoderDecoder,
    why_not_compiled,
)
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, EOS, PAD

__all__ = ["inputs_stay", "native_steps", "threads"]

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)
SMALL: dict[str, Any] = {
    "vocabulary_size": 50,
    "embedding_width": 24,
    "encoder_width": 20,
    "width": 40,
    "attention_width": 37,
    "readout_width": 22,
}
"""No width fills whole vectors."""
ATTENTIONS = ("additive", "dot", "bilinear", "none")
CELLS_AND_ATTENTIONS: dict[str, dict[str, Any]] = {
    f"{cell}, {attention}": {"cell": cell, "attention": attention}
    for cell in CELLS
    for attention in ATTENTIONS
}
SETTINGS: dict[str, dict[str, Any]] = {
    **{
        f"{attention} from the new state": {"attention": attention, "attend_from": "current"}
        for attention in ATTENTIONS[:3]
    },
    **{
        f"a context {context}": {"attention": "none", "context": context}
        for context in ("initial", "every_step")
    },
    "raw input": {"cell": "mut1", "width": 64, "attention": "bilinear"},
    "raw input without a context": {
        "cell": "mut2",
        "width": 24,
        "attend_from": "current",
        "readout": "linear",
    },
    "a linear readout": {"readout": "linear", "bridge": "backward"},
    "a tied one": {"readout": "linear", "readout_width": 24, "tie_output": True},
    "no readout": {"readout": "none", "readout_width": 40, "cell": "lstm"},
    "residual": {"decoder_layers": 3, "connection": "residual", "share_embeddings": False},
    "highway": {
        "decoder_layers": 2,
        "connection": "highway",
        "attend_from": "current",
        "bidirectional": False,
    },
    "projection": {
        "cell": "lstm",
        "projection": 20,
        "decoder_layers": 2,
        "connection": "highway",
        "reverse_source": True,
    },
}
MODELS = CELLS_AND_ATTENTIONS | SETTINGS
SOURCES = [[7, 9, 12, 30, 9, EOS], [5, EOS], [PAD, 8, 41, 22, EOS], [6, PAD, 13]]
"""Of various lengths, padded anywhere."""


def drawn(**changes: Any) -> Seq2Seq:
    model = Seq2Seq(Seq2SeqConfig(**SMALL | changes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


def padded(*rows: list[int]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def logits_of_a_session(model: EncoderDecoder, all_steps: bool = True) -> list[Tensor]:
    """After each of some steps, between which rows are selected, reordered and join; with `all_steps` also
    one that does not happen in a row."""
    found: list[Tensor] = []

    def step(state: State, tokens: list[int]) -> State:
        logits, state = next_logits(model, torch.tensor(tokens)[:, None], state)
        found.append(logits)
        return state

    def reordered(state: State, *order: int) -> State:
        return reorder_in_place(state, torch.tensor(order))

    state = step(model.encode(padded(*SOURCES)), [BOS] * 4)
    beam = step(select_rows(state, torch.tensor([0, 0, 1, 2, 3, 3])), [4, 9, 8, 30, 49, 7])
    for order in ((0, 0, 1, 2, 3, 4), (1, 0, 1, 1, 3, 5)):
        beam = step(reordered(beam, *order), [11, 5, 23, 6, 4, 40])
    beam = step(reordered(beam, 3, 5), [10, 41])
    other = step(model.encode(padded([5, 6, 7, 8, 9, 10, 11, EOS], [EOS])), [BOS, BOS])
    state = step(join_rows([beam, other]), [9, 17, 4, 26])
    if all_steps:
        state = step(state, [9, PAD, 4, 26])
    step(state, [33, 12, 8, 9])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_float64(
    name: str, kind: str, threads: int, native_steps: list[int]
) -> None:
    model = drawn(**MODELS[name])
    assert why_not_compiled(model) == ""
    with torch.inference_mode():
        expected = logits_of_a_session(copy.deepcopy(model).double())
        assert not native_steps
        with PackedWeights():
            found = logits_of_a_session(model)
    assert len(native_steps) == len(expected) - 1
    for number, (logits, exact) in enumerate(zip(found, expected, strict=True)):
        # what a step gives that does not happen, nobody reads
        rows = [0, 2, 3] if number == len(expected) - 2 else slice(None)
        assert_close(logits[rows], exact[rows])


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_the_same(
    name: str, native_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn(**MODELS[name])

    def texts(width: int) -> list[list[list[int]]]:
        forbidden = [PAD, BOS, EOS] if width == 1 else [PAD, BOS]
        processors = logits_processors(DecodeConfig(), forbidden, EOS)
        search = BeamSearch(width=width, n_best=width // 2 or 1)
        options = GenerationOptions(strategy=search, eos=EOS, pad=PAD, processors=processors)
        with torch.inference_mode():
            state = model.encode(padded(*SOURCES[:3]))
        found = generate(model, state, [[BOS]] * 3, [12, 14, 9], options)
        return [[one.tokens for one in hypotheses] for hypotheses in found]

    found, compiled_steps = [texts(1), texts(4)], len(native_steps)
    assert compiled_steps >= 20
    monkeypatch.setenv(OFF, "0")
    library.cache_clear()
    expected = [texts(1), texts(4)]
    library.cache_clear()
    assert found == expected
    assert len(native_steps) == compiled_steps


@pytest.mark.usefixtures("inputs_stay")
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", ["lstm, additive", *SETTINGS])
def test_stored_weights_are_the_model_with_rounded_weights(
    name: str, storage: Storage, native_steps: list[int]
) -> None:
    model = drawn(**MODELS[name])
    tokens = padded([BOS, 5, 7, 9, 41], [BOS, 6], [PAD, BOS, 30, 8])
    targets = torch.where(tokens.roll(-1, 1) > EOS, tokens.roll(-1, 1), IGNORE)
    targets = targets.where(tokens != PAD, IGNORE)
    with torch.inference_mode():
        exact, stored = rounded(model, storage), QuantisedEncoderDecoder(model, storage)
        expected, found = logits_of_a_session(exact, False), logits_of_a_session(stored, False)
        assert len(native_steps) == len(expected)
        source = padded(*SOURCES[:3])
        scores, _ = target_log_probs(exact, tokens, targets, exact.encode(source))
        own, _ = target_log_probs(stored, tokens, targets, stored.encode(source))
    # a text is read from the stored weights too
    assert len(native_steps) == len(expected) + tokens.shape[1]
    for logits, right in zip(found, expected, strict=True):
        assert_close(logits, right)
    torch.testing.assert_close(own.double(), scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rounded_inputs_hardly_change_a_prediction(attention: str, kind: str) -> None:
    model = drawn(attention=attention)
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, "int8"), False)
        found = logits_of_a_session(QuantisedEncoderDecoder(model, "int8"), False)
    for logits, exact in zip(found, expected, strict=True):
        assert (logits - exact).norm() <= 0.1 * exact.norm()


def test_what_it_cannot_do_is_left_to_the_layers(native_steps: list[int]) -> None:
    model, token = drawn(), torch.full((3, 1), EOS + 1)
    source = padded(*SOURCES[:3])
    with torch.no_grad():
        state = model.encode(source)
        model.read(token, state)  # nobody says that the weights stay as they are
        with PackedWeights():
            with watched_attention(model) as seen:
                model.read(token, state)
            assert seen["attention"]
            model.read(torch.full((3, 1), PAD), state)
            model.read(token.expand(-1, 2), state)  # several tokens at once
            with torch.autocast("cpu", torch.bfloat16):
                model.read(token, state)
            assert not native_steps
            model.read(token, state)
    with PackedWeights():
        model.read(token, state)  # with gradients
    assert native_steps == [3]


def test_a_memory_that_does_not_fit_is_refused() -> None:
    model, token = drawn(), torch.full((3, 1), EOS + 1)
    with torch.no_grad(), PackedWeights():
        state = model.encode(padded(*SOURCES[:3]))
        memory = state.memory.value
        wrong: list[Seq2SeqState] = [state._replace(source=state.source[:2])]
        for name in ("values", "keys"):
            part: Tensor = memory._asdict()[name]
            for other in (part.double(), part[:, :-1], part[..., :-1], part[0]):
                changed = memory._replace(**{name: other})
                wrong.append(state._replace(memory=type(state.memory)(changed)))
        for one in wrong:
            with pytest.raises(ValueError, match="a memory on a CPU must have"):
                model.read(token, one)
        # an input that is not there is left to torch, which refuses it
        with pytest.raises(IndexError):
            model.read(token, state._replace(source=torch.tensor([0, 3, -1])))


@pytest.mark.parametrize(
    ("changes", "reason"), [({"normalisation": "layer"}, "its layers are normalised")]
)
def test_why_it_cannot_be_is_said(changes: dict[str, Any], reason: str) -> None:
    model: nn.Module = drawn(**changes)
    assert reason in why_not_compiled(model)
