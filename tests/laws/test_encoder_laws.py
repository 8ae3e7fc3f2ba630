"""The laws that every model keeps which only reads: `model(inputs, mask)` -> `(rows, steps, width)`.

Alone, in a batch, padded anywhere, packed or not: the same states and the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import (
    AttentionInputs,
    Stack,
    padding_and_positions,
    padding_mask,
)
from seqloom.models.bert import Bert, BertConfig
from seqloom.testing.encoders import ROWS, EncoderLaws
from seqloom.testing.tensors import LAYOUTS, draw_parameters

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


@cache
def made(name: str) -> Any:
    return ENCODERS[name]()


@cache
def laws_of(encoder: Any) -> EncoderLaws:
    below_the_head = ("embedding", "positions", "stack")
    named = encoder.named_parameters()
    parameters = [parameter for name, parameter in named if name.startswith(below_the_head)]
    return EncoderLaws(encoder, parameters, LAYOUTS)


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


def alone(encoder: Any, row: int) -> Tensor:
    return laws_of(encoder).alone(row)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batched_and_padded_is_alone(encoder: Any, layout: str) -> None:
    replace(laws_of(encoder), layouts=(layout,)).batched_and_padded_is_alone()


def test_what_stands_at_padding_is_not_read(encoder: Any) -> None:
    one, mask = laws_of(encoder).padded("around", pad=0)
    other, _ = laws_of(encoder).padded("around", pad=7)
    close(encoder(one, mask), encoder(other, mask))
    assert torch.equal(
        encoder(one, mask)[~mask], torch.zeros(int((~mask).sum()), 8, dtype=torch.float64)
    )


def test_the_gradient_of_a_padded_batch_is_the_sum_of_those_alone(encoder: Any) -> None:
    laws_of(encoder).the_gradient_of_a_padded_batch_is_the_sum_of_those_alone()


def test_packed_is_masked(encoder: Any) -> None:
    """Work on true tokens alone gives what work on all of them with a mask gives."""
    inputs, mask = laws_of(encoder).padded("left")
    some, positions = padding_and_positions(mask)
    assert some is not None
    dense, _ = encoder.stack(
        encoder._embed(inputs, positions, None), AttentionInputs(padding_mask(mask))
    )
    close(encoder(inputs, mask)[mask], dense[mask])


def test_every_token_sees_every_one(encoder: Any) -> None:
    before = alone(encoder, 2)
    for place in range(len(ROWS[2])):
        other = list(ROWS[2])
        other[place] = 9
        states = encoder(torch.tensor([other]), torch.ones(1, len(other), dtype=torch.bool))[0]
        assert bool(((states - before).abs().amax(dim=1) > 1e-4).all())


def test_an_empty_row_disturbs_nobody(encoder: Any) -> None:
    laws_of(encoder).an_empty_row_disturbs_nobody()


@torch.no_grad()
def test_looks_sum_to_one_and_to_nothing_at_padding(encoder: Any) -> None:
    inputs, mask = laws_of(encoder).padded("left")
    looks = attention_maps(encoder, lambda: encoder(inputs, mask))["self"]
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
    stack = (
        Stack(BlockConfig(width=8, heads=2, feed_forward_width=12, norm=norm), 3).double().eval()
    )
    draw_parameters(stack)
    x = torch.randn(2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    close(stack.encode(x[:, order], None), stack.encode(x, None)[:, order])
