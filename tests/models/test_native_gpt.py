"""The compiled step of decoding is the model: the logits of a float64 forward, the same texts, whatever is
done to the rows between two steps."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import logits_processors
from seqloom.decoding.strategies import BeamSearch, Sampling, Strategy
from seqloom.layers import packed_linear
from seqloom.layers.attention import watched_attention
from seqloom.layers.linear import Linear
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.layers.transformer.native_step import NativeStep
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.native.library import OFF, DecodingFunctions, decoding_functions, library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import (
    Decodable,
    State,
    fork,
    join_rows,
    next_logits,
    reorder_in_place,
    select_rows,
    share,
    target_log_probs,
    tensors_of,
)
from seqloom.runs.quantised_weights import QuantisedModel
from seqloom.shapes import IGNORE
from seqloom.stored_weight import QuantisedWeight
from seqloom.text.special_tokens import BOS, EOS, PAD

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)

SMALL = GPTConfig(vocabulary_size=50, context=64, width=40, layers=2, heads=2)
"""Neither a head nor a hidden state fills whole vectors."""
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "norm after": {"norm": "after", "activation": "relu"},
    "rotary, untied": {"positions": "rotary", "tie_output": False, "activation": "silu"},
    "sinusoidal, no biases": {
        "positions": "sinusoidal",
        "biases": False,
        "activation": "gelu-tanh",
        "feed_forward_width": 37,
    },
    "whole vectors, joined": {
        "positions": "none",
        "width": 192,
        "layers": 1,
        "activation": "swish",
        "documents": "joined",
    },
}
TOLERANCE = 2e-5
"""Of the largest logit."""


M = TypeVar("M", bound=nn.Module)


def with_drawn_weights(model: M) -> M:
    """In evaluation mode, its norms' gains near 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm.weight" in name else 0.0
            parameter.normal_(centre, 0.2, generator=generator)
    return model.eval()


def drawn(**changes: Any) -> GPT:
    return with_drawn_weights(GPT(replace(SMALL, **changes)))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> GPT:
    return drawn(**MODELS[request.param])


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Each step is worth so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(packed_linear, "GRAIN", 1)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def native_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each compiled step."""
    rows: list[int] = []
    original = NativeStep._run

    def counted(self: NativeStep, arguments: Any, hidden: Tensor) -> bool:
        made = original(self, arguments, hidden)
        rows.extend([len(hidden)] * made)
        return made

    monkeypatch.setattr(NativeStep, "_run", counted)
    return rows


def drawn_tokens(rows: int, seed: int) -> Tensor:
    return torch.randint(
        EOS + 1, SMALL.vocabulary_size, (rows, 1), generator=torch.Generator().manual_seed(seed)
    )


def prompts(rows: int) -> Tensor:
    """Of various lengths, padded on the left."""
    tokens = torch.cat([drawn_tokens(rows, seed) for seed in range(7)], dim=1)
    for row in range(rows):
        begin = row % 4
        tokens[row, :begin], tokens[row, begin] = PAD, BOS
    return tokens


def logits_of_a_session(model: Decodable, rows: int) -> list[Tensor]:
    """After each of some steps, between which rows are selected, reordered, join and begin a document."""
    found: list[Tensor] = []

    def step(state: State, count: int, tokens: Tensor | None = None) -> State:
        tokens = drawn_tokens(count, len(found) + 10) if tokens is None else tokens
        logits, state = next_logits(model, tokens, state)
        found.append(logits)
        return state

    def reordered(state: State, *order: int) -> State:
        return reorder_in_place(state, torch.tensor(order))

    state = next_logits(model, prompts(rows), None)[1]
    for _ in range(3):
        state = step(state, rows)
    kept = fork(state)
    beam = select_rows(state, torch.zeros(4, dtype=torch.long))
    for order in ((0, 0, 1, 2), (3, 0, 1, 1), (2, 1)):
        beam = step(beam, 4)
        beam = reordered(beam, *order)
    state = step(join_rows([beam, kept]), 2 + rows)
    # one row begins a document, and one has a step that does not happen
    tokens = drawn_tokens(2 + rows, 99)
    tokens[0], tokens[-1] = BOS, PAD
    state = next_logits(model, tokens, state)[1]
    step(state, 2 + rows)
    return found


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_logits_are_those_of_float64(
    model: GPT, kind: str, threads: int, rows: int, native_steps: list[int]
) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(copy.deepcopy(model).double(), rows)
        assert not native_steps
        with PackedWeights():
            found = logits_of_a_session(model, rows)
    assert len(native_steps) == len(expected) + 1
    for logits, exact in zip(found, expected, strict=True):
        assert_close(logits, exact)


def logits_of_hypotheses(model: Decodable, rows: int, *, shares: bool) -> list[Tensor]:
    """After each of some steps of rows that go on from one text, some of which have more in common."""
    found: list[Tensor] = []
    text = torch.cat([torch.tensor([[BOS]]), *(drawn_tokens(1, seed) for seed in range(16))], dim=1)
    context = next_logits(model, text, None)[1]
    state = None
    for seed in (100, 200):  # the second time from the same state
        state = share(context) if shares else fork(context)
        state = select_rows(state, torch.zeros(rows, dtype=torch.long))
        for step in range(12):
            # tokens that are alike in some rows, and never in all
            tokens = drawn_tokens(2, seed + step)[torch.arange(rows) * (step + 1) // rows % 2]
            logits, state = next_logits(model, tokens, state)
            found.append(logits)
            order = torch.randint(rows, (rows,), generator=torch.Generator().manual_seed(step))
            state = reorder_in_place(state, order)
        rows -= 1
    tokens = drawn_tokens(rows + 1, 99)
    tokens[0] = BOS  # one row begins a document
    return [*found, next_logits(model, tokens, state)[0]]


@pytest.mark.parametrize("shares", [False, True], ids=["copied", "shared"])
@pytest.mark.parametrize("rows", [2, 5, 9])
def test_rows_with_a_text_in_common(
    model: GPT, kind: str, threads: int, rows: int, shares: bool, native_steps: list[int]
) -> None:
    with torch.inference_mode():
        expected = logits_of_hypotheses(copy.deepcopy(model).double(), rows, shares=False)
        with PackedWeights():
            found = logits_of_hypotheses(model, rows, shares=shares)
            alone = logits_of_hypotheses(model, rows, shares=not shares)
    assert len(native_steps) >= 2 * len(expected) - 2
    for logits, same, exact in zip(found, alone, expected, strict=True):
        assert_close(logits, exact)
        torch.testing.assert_close(logits, same, rtol=0, atol=1e-5 * float(exact.abs().max()))


def test_sources_that_differ_at_their_end_have_nothing_in_common(native_steps: list[int]) -> None:
    model = drawn(bidirectional_source=True)
    source = torch.cat([drawn_tokens(1, seed) for seed in range(12)], dim=1).repeat(2, 1)
    source[1, -1] += 1

    def logits(reader: GPT) -> list[Tensor]:
        state, found = reader.read_source(source), []
        for order in ([0, 0, 1, 1], [2, 0, 3, 0], [3, 1, 0, 2]):
            state = reorder_in_place(state, torch.tensor(order))
            logits, state = next_logits(reader, torch.full((4, 1), 9), state)
            found.append(logits)
        return found

    with torch.inference_mode():
        expected = logits(copy.deepcopy(model).double())
        with PackedWeights():
            found = logits(model)
    assert native_steps == [4, 4, 4]
    for one, exact in zip(found, expected, strict=True):
        assert_close(one, exact)
    assert not torch.equal(found[0][0], found[0][3])


def test_a_shared_context_is_never_copied_nor_changed(native_steps: list[int]) -> None:
    model = drawn()
    with torch.inference_mode(), PackedWeights():
        context = model.read(drawn_tokens(1, 0).repeat(1, 19), None)[1]
        context = model.read(drawn_tokens(1, 1), context)[1]
        assert context is not None
        before = fork(context)
        state = select_rows(share(context), torch.zeros(6, dtype=torch.long))
        for step in range(10):
            state = model.read(drawn_tokens(6, step), state)[1]
        assert state is not None
        assert state.context.value is context
        assert state.length == 10
        assert state.position == 30
        for mine, kept in zip(tensors_of(context), tensors_of(before), strict=True):
            slots = mine.dim() - 2 if mine.dim() > 2 else 1
            assert torch.equal(mine.narrow(slots, 0, 20), kept.narrow(slots, 0, 20))
        whole = state.whole()
        assert whole.length == 30
        assert torch.equal(whole.tokens[:, :20], context.tokens[:, :20].repeat(6, 1))
    assert native_steps == [1] + [6] * 10


def assert_close(logits: Tensor, exact: Tensor) -> None:
    bound = TOLERANCE * float(exact.abs().max())
    torch.testing.assert_close(logits.double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "tanh"])
def test_every_activation(activation: str, kind: str, native_steps: list[int]) -> None:
    model = drawn(activation=activation, layers=1)
    with torch.no_grad():
        # far into both tails
        for block in model.stack.blocks:
            block.feed_forward.hidden.weight.mul_(8)  # type: ignore[operator, union-attr]
    exact = copy.deepcopy(model).double()
    with torch.inference_mode(), PackedWeights():
        found = logits_of_a_session(model, 3)[-1]
        expected = logits_of_a_session(exact, 3)[-1]
    assert native_steps
    assert_close(found, expected)


STRATEGIES: dict[str, Strategy] = {
    "greedy": BeamSearch(width=1),
    "beam": BeamSearch(width=4, n_best=2),
    "sampling": Sampling(seed=3, samples=2),
}


RULES: dict[str, DecodeConfig] = {
    "likeliest": DecodeConfig(strategy="sample", temperature=0.7, top_k=5, top_p=0.9),
    "all": DecodeConfig(no_repeat_ngram=3, min_length=5, temperature=0.7),
}
"""What is decoded from: some of the likeliest next tokens, or all."""


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_texts_are_the_same(
    model: GPT,
    threads: int,
    name: str,
    rules: str,
    native_steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampled = name == "sampling" or rules == "all"
    decode = RULES[rules] if sampled else DecodeConfig()
    processors = logits_processors(decode, [PAD, BOS], EOS)
    options = GenerationOptions(strategy=STRATEGIES[name], eos=EOS, pad=PAD, processors=processors)
    read = [[BOS, 7, 9], [BOS], [BOS, 4, 4, 12, 30, 9]]

    def texts() -> list[list[list[int]]]:
        found = generate(model, None, read, [25, 30, 20], options)
        return [[one.tokens for one in hypotheses] for hypotheses in found]

    found = texts()
    assert native_steps
    monkeypatch.setenv(OFF, "0")
    library.cache_clear()
    before = len(native_steps)
    expected = texts()
    library.cache_clear()
    assert found == expected
    assert len(native_steps) == before


def test_what_it_cannot_do_is_left_to_the_blocks(native_steps: list[int]) -> None:
    model = drawn()
    state = model.read(prompts(2), None)[1]

    def read() -> None:
        model.read(drawn_tokens(2, 1), fork(state))

    with torch.no_grad():
        read()  # nobody says that the weights stay as they are
    with PackedWeights():
        read()  # with gradients
        with torch.no_grad():
            with watched_attention(model) as seen:
                read()
            assert all(seen.values())
            with torch.autocast("cpu", torch.bfloat16):
                read()
            model.train()
            read()
            model.eval()
            model.read(prompts(2), fork(state))  # several tokens at once
            assert not native_steps
            read()
    assert native_steps == [2]


def rounded(model: GPT, storage: Storage) -> GPT:
    """The float64 model whose linear maps, output and embedding have the weights that are stored."""
    copy = GPT(model.config).eval()
    copy.load_state_dict(model.state_dict())
    maps = [one for one in copy.modules() if isinstance(one, Linear | FullOutput)]
    with torch.no_grad():
        for weight in {one.weight for one in maps} | {copy.embedding.weight}:
            weight.copy_(QuantisedWeight.of(weight, storage).restored())
    return copy.double()


STORAGES: tuple[Storage, ...] = ("bfloat16", "int8")


@pytest.fixture
def inputs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without instructions for int8: the inputs of a product are not rounded."""

    def without() -> DecodingFunctions | None:
        functions = decoding_functions()
        return functions and functions._replace(multiplies_integers=False)

    monkeypatch.setattr(packed_linear, "decoding_functions", without)


@pytest.mark.usefixtures("inputs_stay")
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_quantised_weights_are_the_model_with_rounded_weights(
    model: GPT, kind: str, threads: int, rows: int, storage: Storage, native_steps: list[int]
) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, storage), rows)
        found = logits_of_a_session(QuantisedModel(model, storage), rows)
    assert len(native_steps) == len(expected) + 1
    for logits, exact in zip(found, expected, strict=True):
        assert_close(logits, exact)


@pytest.mark.usefixtures("inputs_stay")
@pytest.mark.parametrize("storage", STORAGES)
def test_quantised_weights_score_as_the_model_with_rounded_weights(
    model: GPT, storage: Storage
) -> None:
    tokens = prompts(4)
    targets = torch.where(tokens.roll(-1, 1) > EOS, tokens.roll(-1, 1), IGNORE)
    with torch.inference_mode():
        expected, _ = target_log_probs(rounded(model, storage), tokens, targets, None)
        found, _ = target_log_probs(QuantisedModel(model, storage), tokens, targets, None)
        whole, _ = QuantisedModel(model, storage)(tokens, None)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    chosen = whole.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(found, chosen.where(targets != IGNORE, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 8])
def test_rounded_inputs_hardly_change_a_prediction(model: GPT, kind: str, rows: int) -> None:
    with torch.inference_mode():
        expected = logits_of_a_session(rounded(model, "int8"), rows)
        found = logits_of_a_session(QuantisedModel(model, "int8"), rows)
        again = logits_of_a_session(QuantisedModel(model, "int8"), rows)
    for logits, exact, same in zip(found, expected, again, strict=True):
        assert torch.equal(logits, same)
        assert (logits - exact).norm() <= 0.05 * exact.norm()


def test_int8_is_within_half_a_step_of_each_row() -> None:
    weight = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    restored = QuantisedWeight.of(weight, "int8").restored()
    half_a_step = weight.abs().amax(dim=1, keepdim=True) / 254
    assert ((restored - weight).abs() <= half_a_step * 1.0001).all()
    assert restored[3].eq(0).all()
    assert QuantisedWeight.of(weight, "int8").values.abs().amax(dim=1).tolist() == [127] * 3 + [
        0,
        127,
    ]
