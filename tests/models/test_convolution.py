"""The convolutional encoder: torch's convolutions on rows without padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.models.convolution import Convolution, ConvolutionConfig

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = [[5, 3, 5, 5, 7, 4, 1, 2], [6], [3, 3, 8, 4], [9, 8], [1, 2, 3]]
KINDS: dict[str, dict[str, Any]] = {
    "begin": {},
    "centred": {"centred": True},
    "two channels": {"channels": 2},
    "other windows": {"windows": (1, 2, 7), "centred": True},
}


def drawn(**options: Any) -> Convolution:
    """With weights and biases drawn at random."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary_size": 10, "embedding_width": 5, "maps": 6}
    model = Convolution(ConvolutionConfig(**sizes | options)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    if model.static is not None:
        torch.nn.init.normal_(model.static)
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Convolution:
    return drawn(**KINDS[request.param])


def padded(rows: list[list[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    steps = max(map(len, rows)) + 2
    tokens = [row + [pad] * (steps - len(row)) for row in rows]
    return torch.tensor(tokens), torch.arange(steps) < torch.tensor([len(row) for row in rows])[
        :, None
    ]


def alone(model: Convolution, row: list[int]) -> Tensor:
    states: Tensor = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))
    return states[0]


def embedded(model: Convolution, row: list[int]) -> Tensor:
    """`(channels, width, steps)` of a row."""
    tables = (
        [model.embedding.weight] if model.static is None else [model.embedding.weight, model.static]
    )
    return torch.cat([table[torch.tensor(row)] for table in tables], dim=1).T[None]


def filters(model: Convolution) -> list[tuple[int, Tensor, Tensor]]:
    state = dict(model.named_parameters())
    names = [f"convolutions.{number}.filters" for number in range(len(model.config.windows))]
    return [
        (w, state[f"{name}.weight"], state[f"{name}.bias"])
        for w, name in zip(model.config.windows, names, strict=True)
    ]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pad", [0, 7])
def test_batched_and_padded_is_alone(model: Convolution, pad: int) -> None:
    inputs, mask = padded(ROWS, pad)
    states = model(inputs, mask)
    for row, tokens in enumerate(ROWS):
        close(states[row][mask[row]], alone(model, tokens))
    assert not states[~mask].any()


@pytest.mark.parametrize("channels", [1, 2])
def test_the_maximum_over_time_is_kims(channels: int) -> None:
    model = drawn(channels=channels)
    inputs, mask = padded(ROWS)
    pooled = model(inputs, mask).amax(dim=1)
    for row, tokens in enumerate(ROWS):
        x = embedded(model, tokens)
        answers = [
            F.conv1d(F.pad(x, (0, max(0, w - len(tokens)))), weight, bias).relu()
            for w, weight, bias in filters(model)
        ]
        close(pooled[row], torch.cat([answer[0].amax(dim=1) for answer in answers]))


def test_a_window_answers_where_it_begins() -> None:
    model = drawn()
    states = alone(model, ROWS[0])
    first = 0
    for window, weight, bias in filters(model):
        answers = F.conv1d(embedded(model, ROWS[0]), weight, bias).relu()[0].T
        close(states[: len(answers), first : first + 6], answers)
        assert len(answers) == len(ROWS[0]) - window + 1
        assert not states[len(answers) :, first : first + 6].any()
        first += 6


def test_centred_windows_are_torchs_same() -> None:
    model = drawn(centred=True, windows=(1, 3, 4, 5))
    for row in ROWS:
        x = embedded(model, row)
        # what padding="same" is, without torch's warning that an even window costs a copy
        answers = [
            F.conv1d(F.pad(x, ((w - 1) // 2, w // 2)), weight, bias).relu()[0].T
            for w, weight, bias in filters(model)
        ]
        close(alone(model, row), torch.cat(answers, dim=1))


def test_rows_without_tokens_say_nothing(model: Convolution) -> None:
    assert not model(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool)).any()
    assert model(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool)
    ).shape == (
        2,
        0,
        model.config.traits.width,
    )


def test_the_static_channel_stays() -> None:
    model = Convolution(
        ConvolutionConfig(vocabulary_size=10, embedding_width=5, maps=6, channels=2)
    )
    assert model.static is not None
    assert torch.equal(model.static, model.embedding.weight)
    assert "static" not in dict(model.named_parameters())
    model.embedding.weight.data.fill_(2.0)
    assert not torch.equal(model.static, model.embedding.weight)
    other = Convolution(model.config)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.static, model.static)  # type: ignore[arg-type]
    model.settle_static()
    assert torch.equal(model.static, model.embedding.weight)
    Convolution(ConvolutionConfig(vocabulary_size=10, embedding_width=5)).settle_static()


def test_as_published() -> None:
    """Section 3.1: windows of 3, 4 and 5 with 100 filters each, word vectors of 300 numbers."""
    model = Convolution(ConvolutionConfig(vocabulary_size=20))
    assert [tuple(weight.shape) for _, weight, _ in filters(model)] == [
        (100, 300, 3),
        (100, 300, 4),
        (100, 300, 5),
    ]
    assert model.config.traits.width == 300
    assert bool((model.embedding.weight.abs() <= 0.25).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": ()}, "model.windows must be one or more different sizes"),
        ({"windows": (3, 3)}, "model.windows must be one or more different sizes"),
        ({"windows": (0,)}, "model.windows must be one or more different sizes"),
        ({"maps": 0}, "model.maps must be at least 1"),
        ({"dropout": -0.1}, "model.dropout must be in"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ConvolutionConfig(**{"vocabulary_size": 10} | options)
