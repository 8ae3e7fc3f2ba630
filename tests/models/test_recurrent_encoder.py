"""The recurrent encoder: every cell, both directions, and letters beside the words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.layers.recurrent.cells import CELLS
from seqloom.models.recurrent import RecurrentConfig, RecurrentEncoder

pytestmark = pytest.mark.usefixtures("one_thread")

ALPHABET = ("a", "b", "c")
ROWS = [[5, 3, 5, 5, 7], [6], [3, 3, 8, 4, 6, 9, 7, 4]]
LETTERS = [
    [[1, 2], [3], [1, 2], [0, 0, 1, 2], []],
    [[2, 2, 2, 2, 2, 1]],
    [[1], [2], [3], [], [1, 3], [3, 1], [2, 1, 2], [1, 2]],
]
KINDS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "one direction": {"bidirectional": False},
    "stacked": {"cell": "gru", "layers": 3, "connection": "residual"},
    "highways": {"layers": 2, "connection": "highway", "normalisation": "layer"},
    "letters, convolution": {"characters": "convolution"},
    "letters, recurrent": {"characters": "recurrent", "cell": "mut1", "bidirectional": False},
}


def drawn(**options: Any) -> RecurrentEncoder:
    """With weights and biases drawn at random."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocabulary_size": 10,
        "embedding_width": 5,
        "width": 6,
        "alphabet": ALPHABET,
        "character_width": 4,
    }
    model = (
        RecurrentEncoder(RecurrentConfig(**sizes | {"character_maps": 3} | options)).double().eval()
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> RecurrentEncoder:
    return drawn(**KINDS[request.param])


def padded(pad: int = 0, extra: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """inputs, mask and characters of ROWS."""
    steps = max(map(len, ROWS)) + extra
    inputs, mask = (
        torch.full((len(ROWS), steps), pad),
        torch.zeros(len(ROWS), steps, dtype=torch.bool),
    )
    characters = torch.full((len(ROWS), steps, 6 + extra), -1)
    for row, (tokens, words) in enumerate(zip(ROWS, LETTERS, strict=True)):
        inputs[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), True
        for step, word in enumerate(words):
            characters[row, step, : len(word)] = torch.tensor(word)
    return inputs, mask, characters


def alone(model: RecurrentEncoder, row: int) -> Tensor:
    words = LETTERS[row]
    most = max(map(len, words))
    characters = torch.tensor([word + [-1] * (most - len(word)) for word in words])
    states: Tensor = model(
        torch.tensor([ROWS[row]]), torch.ones(1, len(ROWS[row]), dtype=torch.bool), characters[None]
    )
    return states[0]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


def test_batched_and_padded_is_alone(model: RecurrentEncoder) -> None:
    inputs, mask, characters = padded()
    states = model(inputs, mask, characters)
    assert states.shape == (*mask.shape, model.config.traits.width)
    for row in range(len(ROWS)):
        close(states[row][mask[row]], alone(model, row))
    assert not states[~mask].any()


def test_what_stands_at_padding_is_not_read(model: RecurrentEncoder) -> None:
    inputs, mask, characters = padded()
    other, _, _ = padded(pad=7)
    close(
        model(inputs, mask, characters),
        model(other, mask, characters.masked_fill(~mask[..., None], 2)),
    )


def test_rows_without_tokens_say_nothing(model: RecurrentEncoder) -> None:
    assert not model(torch.full((2, 3), 4), torch.zeros(2, 3, dtype=torch.bool)).any()
    assert model(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool)
    ).shape == (
        2,
        0,
        model.config.traits.width,
    )


def test_each_direction_reads_from_its_end() -> None:
    """A last word changes all that reads backward; a first one all that reads forward."""
    model = drawn()
    before = alone(model, 2)
    for place, half in ((-1, slice(0, 6)), (0, slice(6, 12))):
        row = list(ROWS[2])
        row[place] = 1
        states = model(
            torch.tensor([row]), torch.ones(1, 8, dtype=torch.bool), padded(extra=0)[2][2:]
        )[0]
        changed = (states - before).abs().amax(dim=1) > 1e-9
        assert bool(changed.all())
        same = (states[:, half] - before[:, half]).abs().amax(dim=1) < 1e-12
        assert same.sum() == 7
        assert not same[place]


def test_one_direction_reads_no_future() -> None:
    model = drawn(bidirectional=False)
    assert not model.config.bidirectional
    whole = alone(model, 2)
    close(model(torch.tensor([ROWS[2][:3]]), torch.ones(1, 3, dtype=torch.bool))[0], whole[:3])


# Letters


def read_letters(model: RecurrentEncoder) -> Tensor:
    assert model.letters is not None
    _inputs, mask, characters = padded()
    read: Tensor = model.letters(characters, mask)
    assert not read[~mask].any()
    return read


def test_letters_by_convolution_are_torchs() -> None:
    model = drawn(characters="convolution")
    assert model.letters is not None
    assert model.letters.convolution is not None
    read, convolution = read_letters(model), model.letters.convolution.filters
    for row, words in enumerate(LETTERS):
        for step, word in enumerate(words):
            if not word:
                assert not read[row, step].any()
                continue
            embedded = model.letters.embedding.weight[torch.tensor(word)].T
            close(
                read[row, step],
                F.conv1d(embedded, convolution.weight, convolution.bias, padding=1)
                .relu()
                .amax(dim=1),
            )


def test_letters_by_recurrence_are_both_final_states() -> None:
    model = drawn(characters="recurrent")
    assert model.letters is not None
    assert model.letters.layers is not None
    read = read_letters(model)
    for row, words in enumerate(LETTERS):
        for step, word in enumerate(words):
            if not word:
                assert not read[row, step].any()
                continue
            outputs, _ = model.letters.layers(
                model.letters.embedding.weight[torch.tensor(word)][None]
            )
            close(read[row, step], torch.cat([outputs[0, -1, :3], outputs[0, 0, 3:]]))


@pytest.mark.parametrize("characters", ["convolution", "recurrent"])
def test_letters_are_learned_and_words_without_any_are_read(characters: str) -> None:
    model = drawn(characters=characters)
    inputs, mask, letters = padded()
    model(inputs, mask, letters).square().sum().backward()
    grad = model.letters.embedding.weight.grad  # type: ignore[union-attr]
    assert grad is not None
    assert bool((grad.abs().sum(dim=1) > 0).all())
    close(model(inputs, mask), model(inputs, mask, torch.full_like(letters, -1)))
    assert model(inputs, mask, letters[..., :0]).shape == (*mask.shape, 12)
    assert not model(inputs, torch.zeros_like(mask), letters).any()


def test_letters_tell_unknown_words_apart() -> None:
    model = drawn(characters="convolution")
    words = torch.tensor([[[1, 2, 3]], [[3, 2, 1]]])
    states = model(torch.full((2, 1), 3), torch.ones(2, 1, dtype=torch.bool), words)
    assert not torch.allclose(states[0], states[1])


# Dropout


def test_words_become_unknown_in_training_alone() -> None:
    model = drawn(word_dropout=0.3, dropout=0.0)
    seen: list[Tensor] = []
    model.embedding.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    tokens, mask = torch.full((40, 50), 7), torch.ones(40, 50, dtype=torch.bool)
    model(tokens, mask)
    assert torch.equal(seen[0], tokens)
    model.train()(tokens, mask)
    assert set(seen[1].flatten().tolist()) == {3, 7}
    assert 0.25 < (seen[1] == 3).double().mean() < 0.35


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "tiny"}, "model.cell must be one of"),
        ({"unknown_id": 10}, "model.unknown_id must be an id of 10, but is 10"),
        ({"layers": 0}, "model.layers must be at least 1"),
        ({"word_dropout": 1.0}, "model.word_dropout must be in"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RecurrentConfig(**{"vocabulary_size": 10} | options)
