"""The compiled step of a decoder with an encoder is its twin in torch: cross-attention, norms of both kinds,
gates, positions of every kind, whatever is done to the rows between two steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.interop.published import saved
from tests.models.test_native_gpt import (
    STORAGES,
    assert_close,
    drawn_tokens,
    inputs_stay,
    native_steps,
    threads,
    with_drawn_weights,
)
from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import logits_processors
from seqloom.decoding.strategies import BeamSearch, Strategy
from seqloom.interop.checkpoint import read_checkpoint
from seqloom.layers.attention import watched_attention
from seqloom.layers.linear import Linear
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.models.prompt_tuning import prompt_tuned
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.native.library import OFF, library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import (
    State,
    fork,
    join_rows,
    next_logits,
    reorder_in_place,
    select_rows,
)
from seqloom.runs.quantised_weights import why_not_compiled
from seqloom.stored_weight import QuantisedWeight
from seqloom.text.special_tokens import BOS, EOS, PAD

__all__ = ["inputs_stay", "native_steps", "threads"]

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)

Model = Transformer | T5
SMALL: dict[str, Any] = {
    "vocabulary_size": 50,
    "width": 40,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "heads": 2,
}
"""Neither a head nor a hidden state fills whole vectors."""
MODELS: dict[str, tuple[type[Model], dict[str, Any]]] = {
    "norm before": (Transformer, {}),
    "as Marian": (
        Transformer,
        {
            "norm": "after",
            "positions": "sinusoidal-halves",
            "activation": "swish",
            "output_bias": True,
        },
    ),
    "as BART": (
        Transformer,
        {
            "norm": "after",
            "positions": "learned",
            "context": 40,
            "position_offset": 2,
            "scale_embeddings": False,
            "embedding_norm": True,
            "activation": "gelu",
        },
    ),
    "untied, no biases": (
        Transformer,
        {
            "biases": False,
            "tie_output": False,
            "share_embeddings": False,
            "decoder_heads": 4,
            "decoder_feed_forward_width": 37,
            "activation": "gelu-tanh",
        },
    ),
    "whole vectors": (Transformer, {"width": 192, "decoder_layers": 1}),
    "t5": (T5, {}),
    "t5 v1.1": (
        T5,
        {
            "gated": True,
            "activation": "gelu-tanh",
            "tie_output": False,
            "scale_output": False,
            "head_width": 12,
            "feed_forward_width": 37,
        },
    ),
    "near distances": (T5, {"buckets": 4, "furthest": 5, "heads": 1}),
}
IMPORTED = ("t5", "t5-v1.1-untied", "t5-near", "bart-relu", "bart-untied", "marian", "marian-odd")


def drawn(kind: type[Model], **changes: Any) -> Model:
    configs: dict[type, Any] = {Transformer: TransformerConfig, T5: T5Config}
    return with_drawn_weights(kind(configs[kind](**SMALL | changes)))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    kind, changes = MODELS[request.param]
    return drawn(kind, **changes)


def sources(inputs: int) -> Tensor:
    """Of various lengths, padded on the right."""
    tokens = torch.cat([drawn_tokens(inputs, seed) for seed in range(9)], dim=1)
    for row in range(1, inputs):
        tokens[row, 3 * row % 8 + 1 :] = PAD
    return tokens


def logits_of_a_session(model: Any, inputs: int, vocabulary: int = 50) -> list[Tensor]:
    """After each of some steps, between which rows are selected, reordered and joined."""
    found: list[Tensor] = []

    def step(state: State, rows: int, waits: int | None = None) -> State:
        tokens = drawn_tokens(rows, len(found) + 10) % (vocabulary - 4) + 3
        if waits is not None:
            tokens[waits] = model.config.pad_id
        logits, state = next_logits(model, tokens, state)
        found.append(logits)
        return state

    read = sources(inputs)
    padded = (read % (vocabulary - 4) + 3).where(read != PAD, model.config.pad_id)
    state: State = model.encode(padded)
    for _ in range(3):
        state = step(state, inputs)
    kept = fork(state)
    beam = select_rows(state, torch.tensor([0, 0, inputs - 1, inputs - 1]))
    for order in ((0, 0, 1, 2), (3, 0, 1, 1), (2, 1)):
        beam = step(beam, 4)
        beam = reorder_in_place(beam, torch.tensor(order))
    state = step(join_rows([beam, kept]), 2 + inputs)
    # one row has a step that does not happen
    state = step(state, 2 + inputs, waits=-1)
    step(state, 2 + inputs)
    return found


def assert_same(model: Any, inputs: int, native_steps: list[int], vocabulary: int = 50) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(copy.deepcopy(model).double(), inputs, vocabulary)
        assert not native_steps
        with PackedWeights():
            found = logits_of_a_session(model, inputs, vocabulary)
    assert len(native_steps) == len(expected)
    for logits, exact in zip(found, expected, strict=True):
        assert_close(logits, exact)


@pytest.mark.parametrize("inputs", [1, 5])
def test_logits_are_those_of_float64(
    model: Model, kind: str, threads: int, inputs: int, native_steps: list[int]
) -> None:
    assert why_not_compiled(model) == ""
    assert_same(model, inputs, native_steps)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "tanh"])
def test_every_activation_has_a_gate(
    activation: str, threads: int, native_steps: list[int]
) -> None:
    model = drawn(T5, gated=True, activation=activation, decoder_layers=1)
    assert_same(model, 2, native_steps)


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_models(name: str, tmp_path: Path, native_steps: list[int]) -> None:
    saved(name, tmp_path)
    model = cast(Any, read_checkpoint(tmp_path, torch.float32).model).eval()
    assert_same(model, 2, native_steps, vocabulary=18)


STRATEGIES: dict[str, tuple[Strategy, DecodeConfig]] = {
    "greedy": (BeamSearch(width=1), DecodeConfig()),
    "beam": (BeamSearch(width=4, n_best=2), DecodeConfig()),
    "rules": (
        BeamSearch(width=3, refill_eos=EOS),
        DecodeConfig(no_repeat_ngram=2, min_length=5),
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_texts_are_the_same(
    model: Model, name: str, native_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, decode = STRATEGIES[name]
    processors = logits_processors(decode, [PAD, BOS], EOS)
    options = GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=processors)

    def texts() -> list[list[list[int]]]:
        with torch.inference_mode():
            state = model.encode(sources(3))
        found = generate(model, state, [[BOS]] * 3, [25, 30, 20], options)
        return [[one.tokens for one in hypotheses] for hypotheses in found]

    found, before = texts(), len(native_steps)
    # with the first token, and to the last one
    assert before >= max(len(text) for texts in found for text in texts)
    monkeypatch.setenv(OFF, "0")
    library.cache_clear()
    expected = texts()
    library.cache_clear()
    assert found == expected
    assert len(native_steps) == before


def rounded(model: Model, storage: Storage) -> Model:
    """The float64 model whose linear maps, output and embeddings have the weights that are stored."""
    twin = copy.deepcopy(model)
    kinds = (Linear, FullOutput, nn.Embedding)
    maps: list[Any] = [
        one
        for name, one in twin.named_modules()
        if isinstance(one, kinds) and "positions" not in name
    ]
    with torch.no_grad():
        for weight in {one.weight for one in maps}:
            weight.copy_(QuantisedWeight.of(weight, storage).restored())
    return twin.double()


@pytest.mark.usefixtures("inputs_stay")
@pytest.mark.parametrize("storage", STORAGES)
def test_weights_in_fewer_bits_are_the_model_with_rounded_weights(
    model: Model, storage: Storage, native_steps: list[int]
) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, storage), 3)
        with PackedWeights(storage):
            found = logits_of_a_session(model, 3)
    assert len(native_steps) == len(expected)
    for logits, exact in zip(found, expected, strict=True):
        assert_close(logits, exact)


def test_rounded_inputs_change_a_prediction_hardly_more_than_rounded_weights(
    model: Model, kind: str
) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, "int8"), 3)
        whole = logits_of_a_session(model, 3)
        with PackedWeights("int8"):
            found = logits_of_a_session(model, 3)
    for logits, exact, unrounded in zip(found, expected, whole, strict=True):
        assert (logits - exact).norm() <= 2 * (unrounded - exact).norm()


@pytest.mark.parametrize("kind", [Transformer, T5])
def test_what_it_cannot_do_is_left_to_the_blocks(
    kind: type[Model], native_steps: list[int]
) -> None:
    model, tokens = drawn(kind), drawn_tokens(2, 1)
    with torch.no_grad():
        state: State = model.read(tokens, model.encode(sources(2)))[1]

    def read(tokens: Tensor = tokens) -> None:
        model.read(tokens, fork(state))

    with torch.no_grad():
        read()  # nobody says that the weights stay as they are
    with PackedWeights():
        read()  # with gradients
        with torch.no_grad():
            with watched_attention(model) as seen:
                read()
            assert all(one for name, one in seen.items() if name.startswith("decoder"))
            read(torch.cat([tokens, tokens], dim=1))  # several tokens at once
            assert not native_steps
            read()
    assert native_steps == [2]


@pytest.mark.parametrize("kind", [Transformer, T5])
def test_a_trained_prompt_is_read_before_the_source(
    kind: type[Model], native_steps: list[int]
) -> None:
    assert_same(prompt_tuned(drawn(kind), 3).eval(), 2, native_steps)
