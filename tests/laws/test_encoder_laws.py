"""The laws that every model keeps which only reads: `model(inputs, mask)` -> `(rows, steps, width)`.

Alone, in a batch, padded anywhere, packed or not: the same states and the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from tests.laws.conftest import draw_parameters
from torch import Tensor

from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import AttentionInputs, Stack, padding_and_positions, padding_mask
from seqloom.models.bert import Bert, BertConfig

SMALL: dict[str, Any] = {"vocabulary_size": 11, "context": 12, "width": 8, "layers": 2, "heads": 2}


def bert(options: dict[str, Any]) -> Bert:
    model = Bert(BertConfig(**SMALL | options)).double().eval()
    draw_parameters(model)
    return model


ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": partial(bert, {}),
    "bert, norm before": partial(bert, {"norm": "before", "heads": 4, "activation": "gelu-tanh"}),
    "roberta": partial(bert, {"segments": 1, "position_offset": 2}),
    "electra": partial(bert, {"embedding_width": 5, "head": "replaced-token"}),
}

ROWS = [[5, 3, 4, 7, 9], [6, 2], [8, 8, 8, 10, 1, 4, 3]]
LAYOUTS = ("right", "left", "around")


@cache
def made(name: str) -> Any:
    return ENCODERS[name]()


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


def padded(rows: Sequence[Sequence[int]], layout: str, pad: int = 0) -> tuple[Tensor, Tensor]:
    """inputs and mask `(rows, steps)`; `around` has padding inside of the rows too."""
    longest = max(map(len, rows)) + 3 * (layout == "around")
    inputs = torch.full((len(rows), longest), pad)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        places = list(range(len(tokens)))
        if layout == "left":
            places = [longest - len(tokens) + at for at in places]
        elif layout == "around":
            places = [at + 1 + (at > 0) for at in places]
        inputs[row, places] = torch.tensor(tokens)
        mask[row, places] = True
    return inputs, mask


def alone(encoder: Any, row: int) -> Tensor:
    states: Tensor = encoder(torch.tensor([ROWS[row]]), torch.ones(1, len(ROWS[row]), dtype=torch.bool))
    return states[0]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batched_and_padded_is_alone(encoder: Any, layout: str) -> None:
    inputs, mask = padded(ROWS, layout)
    states = encoder(inputs, mask)
    for row in range(len(ROWS)):
        close(states[row][mask[row]], alone(encoder, row))


def test_what_stands_at_padding_is_not_read(encoder: Any) -> None:
    one, mask = padded(ROWS, "around", pad=0)
    other, _ = padded(ROWS, "around", pad=7)
    close(encoder(one, mask), encoder(other, mask))
    assert torch.equal(encoder(one, mask)[~mask], torch.zeros(int((~mask).sum()), 8, dtype=torch.float64))


def test_the_gradient_of_a_padded_batch_is_the_sum_of_those_alone(encoder: Any) -> None:
    inputs, mask = padded(ROWS, "right")
    parameters = [
        parameter
        for name, parameter in encoder.named_parameters()
        if name.startswith(("embedding", "positions", "stack"))
    ]

    def gradient(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, parameters))

    together = gradient((encoder(inputs, mask)[mask] ** 2).sum())
    parts = [gradient((alone(encoder, row) ** 2).sum()) for row in range(len(ROWS))]
    for whole, *each in zip(together, *parts, strict=True):
        torch.testing.assert_close(whole, sum(each), rtol=1e-9, atol=1e-10)


def test_packed_is_masked(encoder: Any) -> None:
    """Work on true tokens alone gives what work on all of them with a mask gives."""
    inputs, mask = padded(ROWS, "left")
    some, positions = padding_and_positions(mask)
    assert some is not None
    dense, _ = encoder.stack(encoder._embed(inputs, positions, None), AttentionInputs(padding_mask(mask)))
    close(encoder(inputs, mask)[mask], dense[mask])


def test_every_token_sees_every_one(encoder: Any) -> None:
    before = alone(encoder, 2)
    for place in range(len(ROWS[2])):
        other = list(ROWS[2])
        other[place] = 9
        states = encoder(torch.tensor([other]), torch.ones(1, len(other), dtype=torch.bool))[0]
        assert bool(((states - before).abs().amax(dim=1) > 1e-4).all())


def test_an_empty_row_disturbs_nobody(encoder: Any) -> None:
    inputs, mask = padded(ROWS, "right")
    mask[1] = False
    states = encoder(inputs, mask)
    close(states[0][mask[0]], alone(encoder, 0))
    loss = (states**2).sum()
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, list(encoder.stack.parameters())))


@torch.no_grad()
def test_looks_sum_to_one_and_to_nothing_at_padding(encoder: Any) -> None:
    inputs, mask = padded(ROWS, "left")
    looks = encoder.attention_weights(inputs, mask)
    assert looks.shape == (3, 2, encoder.config.heads, inputs.shape[1], inputs.shape[1])
    for row in range(len(ROWS)):
        close(looks[row].sum(-1), torch.ones_like(looks[row][..., 0]))
        assert float(looks[row][..., ~mask[row]].abs().sum()) == 0


def test_too_long_an_input_is_refused(encoder: Any) -> None:
    from seqloom.errors import UsageError

    with pytest.raises(UsageError, match="at most 12 tokens"):
        encoder(torch.ones(1, 13, dtype=torch.long), torch.ones(1, 13, dtype=torch.bool))


@pytest.mark.parametrize("norm", ["before", "after"])
def test_without_positions_an_encoder_is_permutation_equivariant(norm: Any) -> None:
    stack = Stack(BlockConfig(width=8, heads=2, feed_forward_width=12, norm=norm), 3).double().eval()
    draw_parameters(stack)
    x = torch.randn(2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    close(stack.encode(x[:, order], None), stack.encode(x, None)[:, order])
