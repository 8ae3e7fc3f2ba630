"""ELMo against its equations, one text, one word and one step at a time, in float64."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.recurrent.highway import HighwayLayer
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.word_characters import AFTER_WORD, TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END
from seqloom.models.elmo import Elmo, ElmoConfig, ElmoState
from seqloom.protocols import EncodedBatch
from seqloom.testing.tensors import assert_close, draw_parameters

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY, BOS, EOS = 12, 1, 2
TEXTS = [[5, 3, 9, 5, 7, 4], [6], [3, 11, 8]]
SPELLED = {3: b"", 4: b"a", 5: b"words", 6: b"longer-than-it-reads", 7: b"No", 8: b"e"}
SMALL: dict[str, Any] = {
    "vocabulary_size": VOCABULARY,
    "character_width": 3,
    "filters": ((1, 2), (2, 3), (4, 2)),
    "highways": 2,
    "longest_word": 9,
    "width": 5,
    "projection": 4,
    "cell_clip": 0.5,
    "projection_clip": 0.4,
    "dropout": 0.0,
    "output": "none",
    "embedding_width": 3,
}
KINDS: dict[str, dict[str, Any]] = {
    "embedding": {},
    "characters": {"tokens": "characters"},
    "tanh": {"tokens": "characters", "activation": "tanh", "highways": 0},
    "one layer": {"layers": 1, "mix": "free"},
    "no limits": {"cell_clip": None, "projection_clip": None},
    "not residual": {"residual": False, "layers": 3},
}


def drawn(**options: Any) -> Elmo:
    model = Elmo(ElmoConfig(**SMALL | options)).double().eval()
    draw_parameters(model)
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Elmo:
    return drawn(**KINDS[request.param])


def letters_of(token: int) -> list[int]:
    return list(SPELLED.get(token, b"any"))


def batch_of(texts: list[list[int]], more: int = 2) -> EncodedBatch:
    steps = max(map(len, texts)) + more
    tokens = torch.full((len(texts), steps), -1)
    characters = torch.full((len(texts), steps, 24), -1)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        for step, token in enumerate(text):
            letters = letters_of(token)
            characters[row, step, : len(letters)] = torch.tensor(letters)
    nothing = torch.zeros(len(texts), 0)
    return EncodedBatch(tokens, tokens, characters, torch.arange(len(texts)), nothing, nothing)


# The equations


def word_vector(model: Elmo, token: int) -> Tensor:
    """h_0 of a token, or of the marks."""
    if model.bilm.embedding is not None:
        return model.bilm.embedding.weight[token]
    letters, c = model.bilm.letters, model.config
    assert letters is not None
    marks = {BOS: [TEXT_BEGIN], EOS: [TEXT_END]}
    word = (marks.get(token) or letters_of(token))[: c.longest_word - 2]
    ids = [WORD_BEGIN, *word, WORD_END]
    ids += [AFTER_WORD] * (c.longest_word - len(ids))
    x = letters.embedding.weight[ids]
    maps = []
    for convolution in cast(list[nn.Conv1d], letters.filters):
        window = convolution.kernel_size[0]
        for number in range(convolution.out_channels):
            weight, bias = convolution.weight[number].T, cast(Tensor, convolution.bias)[number]
            values = [
                (weight * x[begin : begin + window]).sum() + bias
                for begin in range(len(ids) - window + 1)
            ]
            largest = torch.stack(values).max()
            maps.append(largest.clamp(min=0) if c.activation == "relu" else torch.tanh(largest))
    y = torch.stack(maps)
    for highway in cast(list[HighwayLayer], letters.highways):
        gate = torch.sigmoid(highway.gate.linear.weight @ y + highway.gate.linear.bias)
        y = gate * (highway.linear.weight @ y + highway.linear.bias).clamp(min=0) + (1 - gate) * y
    return letters.projection.weight @ y + letters.projection.bias


def clipped(value: Tensor, limit: float | None) -> Tensor:
    return value if limit is None else value.clamp(-limit, limit)


def lstm(model: Elmo, layer: RecurrentLayer, inputs: list[Tensor], state: Any) -> tuple[Any, Any]:
    h, c = (layer.bias.new_zeros(4), layer.bias.new_zeros(5)) if state is None else state
    outputs = []
    for x in inputs:
        sums = layer.weight_x @ x + layer.weight_h @ h + layer.bias
        i, f, g, o = sums.chunk(4)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        c = clipped(c, model.config.cell_clip)
        h = cast(Tensor, layer.weight_p) @ (torch.sigmoid(o) * torch.tanh(c))
        h = clipped(h, model.config.projection_clip)
        outputs.append(h)
    return outputs, (h, c)


def direction(model: Elmo, text: list[int], backward: bool, state: Any = None) -> tuple[Any, Any]:
    """h_0 .. h_K of a text with its marks, in the order of reading, and the states after it."""
    stacks = model.bilm.backward_layers if backward else model.bilm.forward_layers
    layers, after = [[word_vector(model, token) for token in text]], []
    for k, stack in enumerate(stacks):
        layer = cast(Any, stack).stack[0]
        outputs, last = lstm(model, layer, layers[-1], None if state is None else state[k])
        if k and model.config.residual:
            outputs = [h + below for h, below in zip(outputs, layers[-1], strict=True)]
        layers.append(outputs)
        after.append(last)
    return layers, after


def sides(model: Elmo, text: list[int]) -> list[Tensor]:
    """`[→h_k; ←h_k]` of each token of a text, layer by layer."""
    marked = [BOS, *text, EOS]
    forward, _ = direction(model, marked, False)
    backward, _ = direction(model, marked[::-1], True)
    return [
        torch.stack([torch.cat(both) for both in zip(ahead, back[::-1], strict=True)])[1:-1]
        for ahead, back in zip(forward, backward, strict=True)
    ]


# The tests


def test_every_layer_is_that_of_the_equations(model: Elmo) -> None:
    batch = batch_of(TEXTS)
    layers, _ = model.layers_of_texts(batch.tokens, batch.characters)
    assert len(layers) == 1 + model.config.layers
    for row, text in enumerate(TEXTS):
        for layer, expected in zip(layers, sides(model, text), strict=True):
            assert_close(layer[row, : len(text)], expected)


def test_a_task_reads_its_own_embedding_and_the_mixture(model: Elmo) -> None:
    batch = batch_of(TEXTS)
    vectors = model.encode_batch(batch)
    assert model.mix is not None
    assert model.embedding is not None
    w = model.mix.weight
    s = w if model.config.mix == "free" else torch.exp(w) / torch.exp(w).sum()
    scale = 1 if model.mix.scale is None else model.mix.scale
    for row, text in enumerate(TEXTS):
        layers = torch.stack(sides(model, text))
        mixed = (s[:, None, None] * layers).sum(dim=0)
        expected = torch.cat([model.embedding.weight[text], scale * mixed], dim=-1)
        assert_close(vectors[row, : len(text)], expected)
        assert not vectors[row, len(text) :].any()


def test_the_losses_are_those_of_both_directions(model: Elmo) -> None:
    del model
    lm = drawn(output="full", tie_output=False)
    output = cast(FullOutput, lm.output)
    for text in TEXTS:
        marked = [BOS, *text, EOS]
        for backward, read in ((False, marked), (True, marked[::-1])):
            layers, _ = direction(lm, read[:-1], backward)
            logits = torch.stack(layers[-1]) @ output.weight.T + cast(Tensor, output.bias)
            expected = -logits.log_softmax(-1)[range(len(read) - 1), read[1:]].sum()
            hidden, _ = lm.read_direction(torch.tensor([read[:-1]]), None, None, backward=backward)
            loss = output.loss(hidden, torch.tensor([read[1:]]))
            assert_close(loss.total, expected)
            assert int(loss.count) == len(text) + 1


@pytest.mark.parametrize("carried", [False, True])
def test_a_row_of_several_texts(carried: bool) -> None:
    """Each is read from the empty state, or the states go on."""
    lm = drawn(output="full", carry_states=carried)
    for backward in (False, True):
        texts = [[BOS, *text, EOS] for text in TEXTS]
        read = [text[::-1][:-1] if backward else text[:-1] for text in texts]
        joined = torch.tensor([[0, *(token for text in read for token in text), 0]])
        hidden, _ = lm.read_direction(joined, None, None, backward=backward)
        expected, state = [], None
        for text in read:
            layers, state = direction(lm, text, backward, state if carried else None)
            expected += layers[-1]
        assert_close(hidden[0, 1:-1], torch.stack(expected))


def test_states_that_are_carried_on_change_vectors(model: Elmo) -> None:
    """As AllenNLP carries them: forward from the end of a text, backward from its beginning."""
    first, second = batch_of(TEXTS), batch_of([TEXTS[2], TEXTS[0], TEXTS[1]])
    alone, state = model.layers_of_texts(first.tokens, first.characters)
    carried, _ = model.layers_of_texts(second.tokens, second.characters, state)
    marked = [BOS, *TEXTS[0], EOS]
    _, ahead = direction(model, marked, False)
    _, back = direction(model, marked[::-1], True)
    after = [BOS, *TEXTS[2], EOS]
    forward, _ = direction(model, after, False, ahead)
    backward, _ = direction(model, after[::-1], True, back)
    expected = torch.cat([torch.stack(forward[-1]), torch.stack(backward[-1][::-1])], dim=-1)
    assert_close(carried[-1][0, : len(TEXTS[2])], expected[1:-1])
    fresh, _ = model.layers_of_texts(second.tokens, second.characters)
    assert not torch.allclose(carried[-1][0, 0], fresh[-1][0, 0])
    assert isinstance(state, ElmoState)
    assert len(alone) == 1 + model.config.layers


def test_without_limits_it_is_torchs_lstm_with_projection() -> None:
    model = drawn(cell_clip=None, projection_clip=None, residual=False)
    theirs = nn.LSTM(4, 5, num_layers=2, proj_size=4, batch_first=True).double()
    with torch.no_grad():
        for k, stack in enumerate(model.bilm.forward_layers):
            ours = cast(Any, stack).stack[0]
            for name, value in (
                ("weight_ih", ours.weight_x),
                ("weight_hh", ours.weight_h),
                ("weight_hr", ours.weight_p),
                ("bias_ih", ours.weights.b),
                ("bias_hh", torch.zeros_like(ours.bias)),
            ):
                getattr(theirs, f"{name}_l{k}").copy_(value)
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    layers, _ = model.bilm.read(x, torch.ones(3, 7, dtype=torch.bool), None, backward=False)
    assert_close(layers[-1], theirs(x)[0])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"filters": ()}, "model.filters"),
        ({"filters": ((0, 4),)}, "model.filters"),
        ({"filters": ((10, 4),)}, "model.longest_word"),
        ({"cell_clip": 0.0}, "model.cell_clip must be above 0"),
        ({"output": "adaptive"}, "model.tie_output must be false"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ElmoConfig(**SMALL | options)


def test_padding_after_short_words_takes_part_in_the_maximum() -> None:
    """As it does in the published models, which pad each word to the longest that is read."""
    model = drawn(tokens="characters", longest_word=20)
    batch = batch_of([[4, 8]])
    for seed in range(10):
        draw_parameters(model, seed)
        layers, _ = model.layers_of_texts(batch.tokens, batch.characters)
        assert_close(layers[0][0, :2], sides(model, [4, 8])[0])
