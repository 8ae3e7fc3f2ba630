"""The Transformer's layers: equations written out, torch's own layer, masks, and the buffers of keys and
values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from seqloom.layers.attention import watched_attention
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import AttentionInputs, Block, SelfAttention, Stack
from seqloom.layers.transformer.feed_forward import ACTIVATIONS, FeedForward, Swish
from seqloom.layers.transformer.key_value_cache import (
    AttentionMask,
    KeysValues,
    RaggedCache,
    append,
    causal_mask,
)
from seqloom.shapes import prefix_mask

CAUSAL = AttentionInputs("causal")
WIDTH, HEADS = 6, 3

PHI: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "swish": lambda x: x / (1 + math.exp(-x)),  # as β is 1 at the start
    "tanh": math.tanh,
}


def config(**options: Any) -> BlockConfig:
    return BlockConfig(**{"width": WIDTH, "heads": HEADS, "feed_forward_width": 7} | options)


def drawn(module: Any) -> Any:
    """With every weight and bias drawn at random, in float64."""
    generator = torch.Generator().manual_seed(0)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.7, generator=generator)
    return module


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# The equations, one row and one query at a time


def written_attention(layer: SelfAttention, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """x `(steps, width)`, mask `(steps, steps)` -> A(x) `(steps, width)`, and the weights `(heads, steps,
    steps)`."""
    bias = (
        layer.query_key_value.bias
        if layer.query_key_value.bias is not None
        else torch.zeros(3 * WIDTH, dtype=x.dtype)
    )
    query, keys, values = (
        x @ w.T + b
        for w, b in zip(layer.query_key_value.weight.chunk(3), bias.chunk(3), strict=True)
    )
    d = WIDTH // HEADS
    mixed, looks = torch.zeros_like(x), x.new_zeros(HEADS, len(x), len(x))
    for head in range(HEADS):
        part = slice(head * d, (head + 1) * d)
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if mask[i, j]]
            exps = [math.exp(float(query[i, part] @ keys[j, part]) / math.sqrt(d)) for j in seen]
            for j, e in zip(seen, exps, strict=True):
                looks[head, i, j] = e / sum(exps)
                mixed[i, part] += looks[head, i, j] * values[j, part]
    return layer.output(mixed), looks


def written_norm(layer: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    centred = x - x.mean(-1, keepdim=True)
    y: Tensor = centred / ((centred**2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight
    return y if layer.bias is None else y + layer.bias


def written_block(block: Block, x: Tensor, activation: str, mask: Tensor) -> Tensor:
    def feed_forward(z: Tensor) -> Tensor:
        hidden = block.feed_forward.hidden(z)
        output: Tensor = block.feed_forward.output(hidden.clone().apply_(PHI[activation]))
        return output

    if block.norm_first:
        z = x + written_attention(block.attention, written_norm(block.attention_norm, x), mask)[0]
        return z + feed_forward(written_norm(block.feed_forward_norm, z))
    z = written_norm(block.attention_norm, x + written_attention(block.attention, x, mask)[0])
    return written_norm(block.feed_forward_norm, z + feed_forward(z))


@torch.no_grad()
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "swish"])
def test_a_block_is_the_equations(
    activation: str, norm: Literal["before", "after"], biases: bool
) -> None:
    block = drawn(Block(config(activation=activation, norm=norm, biases=biases)))
    assert biases == any(name.endswith("bias") for name, _ in block.named_parameters())
    x = numbers(2, 5, WIDTH)
    for inputs, mask in (
        (CAUSAL, torch.ones(5, 5).tril()),
        (AttentionInputs("all"), torch.ones(5, 5)),
    ):
        found, _ = block(x, inputs)
        for row in range(2):
            close(found[row], written_block(block, x[row], activation, mask))


def watched(layer: SelfAttention, x: Tensor, mask: AttentionMask) -> Tensor:
    """The weights that attention uses; watching changes no result."""
    with watched_attention(layer) as seen:
        found, _ = layer(x, AttentionInputs(mask))
    if not layer.training:
        close(found, layer(x, AttentionInputs(mask))[0])
    return seen[""][0]


@torch.no_grad()
def test_the_weights_are_those_that_attention_uses() -> None:
    layer, x = drawn(SelfAttention(config())), numbers(2, 4, WIDTH)
    mask = torch.tensor(
        [[[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1]], [[0, 0, 0, 1]] * 4]
    ).bool()
    cases: list[tuple[AttentionMask, Tensor]] = [
        (mask[:, None], mask),
        ("causal", torch.ones(2, 4, 4).tril()),
        ("all", torch.ones(2, 4, 4)),
    ]
    for given, of_row in cases:
        found, _ = layer(x, AttentionInputs(given))
        looks = watched(layer, x, given)
        for row in range(2):
            mixed, written = written_attention(layer, x[row], of_row[row])
            close(looks[row], written)
            close(found[row], mixed)


@torch.no_grad()
def test_a_prefix_reads_both_ways_and_what_follows_one_way() -> None:
    stack = drawn(Stack(config(), 2))
    x = numbers(1, 5, WIDTH)

    def read(x: Tensor) -> Tensor:
        hidden: Tensor = stack(x, AttentionInputs(prefix_mask(torch.tensor([3]), x.shape[1])))[0]
        return hidden

    close(read(x)[:, :3], stack(x[:, :3], AttentionInputs("all"))[0])
    for place in range(5):
        other = x.clone()
        other[:, place, 0] += 1  # of all features alike a norm would see nothing
        changed = ((read(other) - read(x)).abs().amax(-1)[0] > 1e-6).tolist()
        assert changed == [place < 3 or step >= place for step in range(5)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_who_sees_nothing_gets_nothing(dropout: float) -> None:
    """0 before W^O, so the bias after it; never NaN, in the gradient neither."""
    layer = drawn(SelfAttention(config(attention_dropout=dropout))).train()
    x = numbers(1, 3, WIDTH).requires_grad_()
    mask = torch.tensor([[0, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()[None, None]
    found, _ = layer(x, AttentionInputs(mask))
    close(found[0, 0], layer.output.bias)
    found.sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert torch.equal(watched(layer, x, mask)[0, :, 0], torch.zeros(HEADS, 3))


@pytest.mark.parametrize("norm", ["before", "after"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_torchs_layer_is_the_same(activation: str, norm: Literal["before", "after"]) -> None:
    """nn.TransformerEncoderLayer with the same weights and a causal mask: values and gradients."""
    block = drawn(Block(config(feed_forward_width=10, activation=activation, norm=norm)))
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 10, 0.0, activation, norm_first=norm == "before", batch_first=True
    ).double()
    parts = {
        "attention.output": "self_attn.out_proj",
        "feed_forward.hidden": "linear1",
        "feed_forward.output": "linear2",
        "attention_norm": "norm1",
        "feed_forward_norm": "norm2",
    }
    names = {
        f"{mine}.{kind}": f"{its}.{kind}"
        for mine, its in parts.items()
        for kind in ("weight", "bias")
    }
    names |= {
        f"attention.query_key_value.{kind}": f"self_attn.in_proj_{kind}"
        for kind in ("weight", "bias")
    }
    ours = dict(block.named_parameters())
    assert names.keys() == ours.keys()
    theirs.load_state_dict({names[name]: value.detach() for name, value in ours.items()})
    x = numbers(3, 5, WIDTH).requires_grad_()
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    found, expected = block(x, CAUSAL)[0], theirs(x, src_mask=mask, is_causal=True)
    close(found, expected)
    wanted = numbers(3, 5, WIDTH, seed=2)
    gradients = torch.autograd.grad((found * wanted).sum(), [x, *ours.values()])
    expected_gradients = torch.autograd.grad(
        (expected * wanted).sum(), [x, *(theirs.get_parameter(names[name]) for name in ours)]
    )
    for mine, its in zip(gradients, expected_gradients, strict=True):
        close(mine, its)


def test_a_stack_is_block_after_block_and_a_norm_where_norms_come_before() -> None:
    x = numbers(2, 4, WIDTH)
    for norm in ("before", "after"):
        stack = drawn(Stack(config(norm=norm), 3))
        expected = x
        for block in stack.blocks:
            expected, _ = block(expected, CAUSAL)
        found, kept = stack(x, CAUSAL)
        close(found, written_norm(stack.norm, expected) if norm == "before" else expected)
        assert len(kept) == 3


def test_dropout_is_of_what_is_added_and_of_the_weights_and_in_training_only() -> None:
    x = numbers(1, 4, WIDTH)
    plain = Block(config())
    for dropped in ("dropout", "attention_dropout"):
        options: dict[str, Any] = {dropped: 0.99999}
        block = Block(config(**options))
        block.load_state_dict(plain.state_dict())
        drawn(plain), drawn(block)
        close(block(x, CAUSAL)[0], plain(x, CAUSAL)[0])
        torch.manual_seed(0)
        found = block.train()(x, CAUSAL)[0]
        if dropped == "dropout":
            close(found, x)  # the residual stream itself is never dropped
        else:
            z = x + block.attention.output.bias
            close(found, z + block.feed_forward(block.feed_forward_norm(z)))
    after: Block = drawn(Block(config(norm="after", dropout=0.99999))).train()
    close(after(x, CAUSAL)[0], after.feed_forward_norm(after.attention_norm(x)))


# Masks


def test_the_causal_mask_is_built_only_where_it_is_needed() -> None:
    cpu = torch.device("cpu")
    assert causal_mask(5, 0, cpu) == "causal"
    assert causal_mask(1, 0, cpu) == causal_mask(1, 7, cpu) == "all"
    mask = causal_mask(2, 3, cpu)
    assert isinstance(mask, Tensor)
    assert mask.int().tolist() == [[[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]]


def test_where_ragged_rows_stand() -> None:
    """Against a loop over rows and tokens: P is padding, B begins a document, t is any other token."""
    rows = ["BtPtBtPt", "PPBttPtt", "tBBtPPBP", "tttttttt", "PPPPPPPP"]
    before = RaggedCache(torch.tensor([[True, False, True]] * 5), torch.tensor([2, 2, 2, 2, 2]))
    is_token = torch.tensor([[token != "P" for token in row] for row in rows])
    is_start = torch.tensor([[token == "B" for token in row] for row in rows])
    mask, positions, after = before.after(is_token, is_start)
    assert mask.shape == (5, 1, 8, 11)
    for r, row in enumerate(rows):
        visible, position = {0, 2}, 2
        for i, token in enumerate(row):
            if token == "B":
                visible, position = set(), 0
            if token != "P":
                visible = visible | {3 + i}
                assert int(positions[r, i]) == position
                position += 1
            assert set(mask[r, 0, i].nonzero()[:, 0].tolist()) == visible
        assert set(after.visible[r].nonzero()[:, 0].tolist()) == visible
        assert int(after.position[r]) == position


# The buffers


def test_keys_are_written_in_place_and_buffers_double() -> None:
    new = numbers(2, 3, 40, 4)
    with torch.no_grad():
        past, length, buffers = new[:, :, :0], 0, set()
        for start in range(0, 4000, 40):
            past = append(past, length, new + start)
            length += 40
            buffers.add(past.data_ptr())
        assert len(buffers) <= 8
        assert past.shape[2] < 2 * length + 80
        close(past[:, :, :length], torch.cat([new + start for start in range(0, 4000, 40)], 2))


def test_nothing_that_a_gradient_needs_is_written_over() -> None:
    past, new = numbers(1, 1, 4, 2), numbers(1, 1, 2, 2, seed=2).requires_grad_()
    found = append(past, 3, new)
    close(found, torch.cat([past[:, :, :3], new], 2))
    assert found.data_ptr() != past.data_ptr()
    kept = past.clone()
    with torch.no_grad():
        assert append(past, 2, new).data_ptr() == past.data_ptr()
    assert not torch.equal(past, kept)


def test_a_buffer_of_inference_mode_is_left_alone_outside_it() -> None:
    with torch.inference_mode():
        past = append(numbers(1, 1, 0, 2), 0, numbers(1, 1, 2, 2))
    with torch.no_grad():
        found = append(past, 2, numbers(1, 1, 1, 2, seed=3))
    close(found[:, :, :3], torch.cat([numbers(1, 1, 2, 2), numbers(1, 1, 1, 2, seed=3)], 2))


def test_without_a_past_keys_and_values_are_views_of_the_product() -> None:
    layer: SelfAttention = drawn(SelfAttention(config()))
    _, kept = layer(numbers(2, 5, WIDTH), CAUSAL)
    assert isinstance(kept, KeysValues)
    assert kept.keys.shape == kept.values.shape == (2, HEADS, 5, WIDTH // HEADS)
    assert kept.keys.untyped_storage().data_ptr() == kept.values.untyped_storage().data_ptr()


def test_activations_are_their_formulas() -> None:
    x = numbers(50) * 3
    for name, make in ACTIVATIONS.items():
        close(make()(x).detach(), x.clone().apply_(PHI[name]))


def test_the_slope_of_swish_is_trained() -> None:
    swish = Swish().double()
    with torch.no_grad():
        swish.beta.fill_(0.5)
    x = numbers(50)
    close(swish(x).detach(), x / (1 + (-0.5 * x).exp()))
    swish(x).sum().backward()
    sigmoid = (0.5 * x).sigmoid()
    assert swish.beta.grad is not None
    close(swish.beta.grad, (x**2 * sigmoid * (1 - sigmoid)).sum())


@torch.no_grad()
def test_a_gated_layer_multiplies_what_the_gate_lets_through() -> None:
    layer: FeedForward = drawn(FeedForward(config(feed_forward_width=4, gated=True)))
    x = numbers(2, 3, WIDTH)
    gate, kept = (
        x @ w.T + b
        for w, b in zip(layer.hidden.weight.chunk(2), layer.hidden.bias.chunk(2), strict=True)
    )
    close(
        layer(x),
        (gate.clone().apply_(PHI["gelu"]) * kept) @ layer.output.weight.T + layer.output.bias,
    )


def test_hidden_features_are_dropped_in_training_alone() -> None:
    layer = FeedForward(config(feed_forward_width=4, activation="relu", hidden_dropout=0.99))
    x = torch.randn(4, WIDTH)
    assert not torch.equal(layer.train()(x), layer.eval()(x))
    assert torch.equal(layer(x), layer(x))
