"""The compiled step of recurrent language models is their twin in torch: every cell, connection and width."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import pytest
import torch
from tests.models.test_native_gpt import (
    STORAGES,
    assert_close,
    inputs_stay,
    logits_of_a_session,
    prompts,
    threads,
)
from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import logits_processors
from seqloom.decoding.strategies import BeamSearch
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.native_step import NativeRecurrentStep
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.models.seq2seq import Seq2Seq
from seqloom.native.library import OFF, library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import next_logits, select_rows, target_log_probs
from seqloom.runs.quantised_weights import QuantisedModel, stored_weights, why_not_compiled
from seqloom.shapes import IGNORE
from seqloom.stored_weight import QuantisedWeight
from seqloom.text.special_tokens import BOS, EOS, PAD

__all__ = ["inputs_stay", "threads"]

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)
SMALL: dict[str, Any] = {"vocabulary_size": 50, "embedding_width": 24, "width": 40, "layers": 2}
"""No width fills whole vectors; the output is tied through a linear map."""
MODELS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    **{f"{cell}, raw input": {"cell": cell, "embedding_width": 40} for cell in ("mut1", "mut2")},
    "residual": {"cell": "gru", "connection": "residual", "layers": 3},
    "highway": {"connection": "highway", "layers": 3, "tie_output": False},
    "projection": {"projection": 20, "connection": "highway", "tie_output": False},
    "last width, joined": {"last_width": 56, "layers": 3, "documents": "joined"},
}


def drawn(**changes: Any) -> RecurrentLM:
    model = RecurrentLM(RecurrentLMConfig(**SMALL | changes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> RecurrentLM:
    return drawn(**MODELS[request.param])


@pytest.fixture
def native_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each compiled step."""
    rows: list[int] = []
    original = NativeRecurrentStep.__call__

    def counted(
        self: NativeRecurrentStep, tokens: Tensor, *inputs: Any, anywhere: bool = False
    ) -> tuple[Tensor, CellState] | None:
        found = original(self, tokens, *inputs, anywhere=anywhere)
        rows.extend([len(tokens)] * (found is not None))
        return found

    monkeypatch.setattr(NativeRecurrentStep, "__call__", counted)
    return rows


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_logits_are_those_of_float64(
    model: RecurrentLM, kind: str, threads: int, rows: int, native_steps: list[int]
) -> None:
    assert why_not_compiled(model) == ""
    with torch.inference_mode():
        expected = logits_of_a_session(copy.deepcopy(model).double(), rows)
        assert not native_steps
        with PackedWeights():
            found = logits_of_a_session(model, rows)
    # all but the prompts, and the step in which a document begins and a row waits
    assert len(native_steps) >= len(expected)
    for logits, exact in zip(found, expected, strict=True):
        assert_close(logits, exact)


@pytest.mark.parametrize("width", [1, 4])
def test_texts_are_the_same(
    model: RecurrentLM, width: int, native_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = [PAD, BOS, EOS] if width == 1 else [PAD, BOS]  # one that ends at once shows nothing
    processors = logits_processors(DecodeConfig(), forbidden, EOS)
    search = BeamSearch(width=width, n_best=width // 2 or 1)
    options = GenerationOptions(strategy=search, eos=EOS, pad=PAD, processors=processors)
    read = [[BOS, 7, 9], [BOS], [BOS, 4, 4, 12, 30, 9]]

    def texts() -> list[list[list[int]]]:
        found = generate(model, None, read, [25, 30, 20], options)
        return [[one.tokens for one in hypotheses] for hypotheses in found]

    found, compiled_steps = texts(), len(native_steps)
    assert compiled_steps
    monkeypatch.setenv(OFF, "0")
    library.cache_clear()
    expected = texts()
    library.cache_clear()
    assert found == expected
    assert len(native_steps) == compiled_steps


M = TypeVar("M", RecurrentLM, Seq2Seq)


def rounded(model: M, storage: Storage) -> M:
    """The float64 model that has the weights that are stored."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in stored_weights(twin):
            weight.copy_(QuantisedWeight.of(weight, storage).restored())
    return twin.double()


@pytest.mark.usefixtures("inputs_stay")
@pytest.mark.parametrize("storage", STORAGES)
def test_stored_weights_are_the_model_with_rounded_weights(
    model: RecurrentLM, storage: Storage, native_steps: list[int]
) -> None:
    tokens = prompts(4)
    targets = torch.where(tokens.roll(-1, 1) > EOS, tokens.roll(-1, 1), IGNORE)
    with torch.inference_mode():
        exact, stored = rounded(model, storage), QuantisedModel(model, storage)
        expected = logits_of_a_session(exact, 3)
        found = logits_of_a_session(stored, 3)
        scores, _ = target_log_probs(exact, tokens, targets, None)
        own, _ = target_log_probs(stored, tokens, targets, None)
    # prompts too are read from the stored weights
    assert len(native_steps) > len(expected) + prompts(3).shape[1]
    for logits, right in zip(found, expected, strict=True):
        assert_close(logits, right)
    torch.testing.assert_close(own.double(), scores, rtol=1e-4, atol=1e-4)


def test_every_weight_of_two_dimensions_is_stored(model: RecurrentLM) -> None:
    stored = {id(weight) for weight in stored_weights(model)}
    wide = {name for name, one in model.named_parameters() if one.dim() == 2}
    assert {name for name, one in model.named_parameters() if id(one) in stored} == wide


def test_rounded_inputs_hardly_change_a_prediction(model: RecurrentLM, kind: str) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, "int8"), 3)
        found = logits_of_a_session(QuantisedModel(model, "int8"), 3)
    for logits, exact in zip(found, expected, strict=True):
        assert (logits - exact).norm() <= 0.1 * exact.norm()


def test_what_it_cannot_do_is_left_to_the_layers(native_steps: list[int]) -> None:
    model = drawn()
    state = next_logits(model, prompts(2), None)[1]
    token = torch.full((2, 1), EOS + 1)
    with torch.no_grad():
        model.read(token, state)  # nobody says that the weights stay as they are
    with PackedWeights():
        model.read(token, state)  # with gradients
        with torch.no_grad():
            model.stacks[0].stack[0].watch = []
            model.read(token, state)
            model.stacks[0].stack[0].watch = None
            model.train()
            model.read(token, state)
            model.eval()
            model.read(torch.full((2, 1), BOS), state)
            model.read(torch.full((2, 1), PAD), state)
            assert not native_steps
            model.read(token, state)
    assert native_steps == [2]


def test_a_state_of_other_rows_is_refused() -> None:
    model = drawn()
    state = next_logits(model, prompts(2), None)[1]
    for wrong in (select_rows(state, torch.tensor([0])), model.double().start(2)):
        with torch.no_grad(), PackedWeights(), pytest.raises(ValueError, match="a state must be"):
            model.float().read(torch.full((2, 1), EOS + 1), wrong)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalisation": "layer"}, "its layers are normalised"),
        ({"embedding": "one-hot", "tie_output": False}, "its tokens are one-hot vectors"),
        ({"maxent": 3, "maxent_size": 64}, "its output reads the last tokens"),
    ],
)
def test_why_it_cannot_be_is_said(changes: dict[str, Any], reason: str) -> None:
    model: nn.Module = drawn(**changes)
    assert reason in why_not_compiled(model)
