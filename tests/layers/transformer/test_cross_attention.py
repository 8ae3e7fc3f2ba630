"""Attention to an encoder: the equation written out, rows in any order and number, and a memory that no row
copies."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.models.equations import close, cross_attention, drawn
from torch import Tensor, nn

from seqloom.layers.attention import watched_attention
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.cross_attention import (
    CrossAttention,
    CrossAttentionInputs,
    DecoderState,
    KeyValueMemory,
    QueryGroups,
)
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.protocols import Shared, fork, reorder_in_place, select_rows

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH = 6
SOURCES = torch.tensor([[5, 3, 8, 4], [2, 2, 0, 0], [0, 7, 1, 3], [6, 0, 0, 0]])
SIZES: dict[str, Any] = {
    "vocabulary_size": 9,
    "width": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "heads": 2,
}


def transformer() -> Any:
    return drawn(Transformer(TransformerConfig(**SIZES)))


def t5() -> Any:
    return drawn(T5(T5Config(**SIZES, buckets=4, furthest=5)))


@pytest.fixture(params=[transformer, t5])
def model(request: pytest.FixtureRequest) -> Any:
    return request.param()


def config(**options: Any) -> BlockConfig:
    return BlockConfig(width=WIDTH, heads=2, **options)


def memory_of(layer: CrossAttention, states: Tensor, mask: Tensor | None) -> KeyValueMemory:
    return KeyValueMemory((layer.keys_values(states),), mask, torch.arange(len(states)))


def cross_inputs(memory: KeyValueMemory, source: Tensor) -> CrossAttentionInputs:
    return CrossAttentionInputs(
        memory,
        QueryGroups.of(source, memory),
        None if memory.mask is None else memory.mask[:, None, None],
    )


def watched(layer: CrossAttention, x: Tensor, inputs: CrossAttentionInputs) -> Tensor:
    """The weights that attention uses, by row: those of an input stand together."""
    with watched_attention(layer) as seen:
        layer(x, inputs, 0)
    (weights,) = seen[""]
    steps, groups = x.shape[1], inputs.groups
    slots = torch.arange(len(x)) if groups.slots is None else groups.slots
    inputs_count, heads, _, source = weights.shape
    by_slot = weights.view(inputs_count, heads, groups.size, steps, source).transpose(1, 2)
    return by_slot.flatten(0, 1)[slots]


ORDERS = [
    [0, 1, 2],
    [2, 0, 1],
    [0, 0, 1, 1, 2, 2],
    [1],
    [2, 2, 2, 2, 0],
    [0, 1, 0, 1],
    [1, 2, 2, 2, 1, 0, 0],
]


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"head_width": 4, "biases": False, "scaled": False}, {"memory_width": 5}]
)
@pytest.mark.parametrize("order", ORDERS)
def test_rows_in_any_order_and_number_are_the_equation(
    order: list[int], options: dict[str, Any]
) -> None:
    options = dict(options)
    memory_width = options.pop("memory_width", WIDTH)
    layer: CrossAttention = drawn(CrossAttention(config(**options), memory_width))
    scale = options.get("head_width", WIDTH // 2) ** -0.5 if options.get("scaled", True) else 1.0
    states = torch.randn(3, 4, memory_width, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]]).bool()
    x = torch.randn(len(order), 2, WIDTH, dtype=torch.float64)
    inputs = cross_inputs(memory_of(layer, states, mask), torch.tensor(order))
    found, weights = layer(x, inputs, 0), watched(layer, x, inputs)
    for row, of in enumerate(order):
        mixed, looks = cross_attention(layer, x[row], states[of][mask[of]], 2, scale)
        close(found[row], mixed)
        close(weights[row][..., mask[of]], looks)
        assert not weights[row][..., ~mask[of]].any()


@torch.no_grad()
def test_torchs_attention_is_the_same() -> None:
    layer: CrossAttention = drawn(CrossAttention(config()))
    theirs = nn.MultiheadAttention(WIDTH, 2, batch_first=True).double()
    theirs.in_proj_weight.copy_(torch.cat([layer.query.weight, layer.key_value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([layer.query.bias, layer.key_value.bias]))
    theirs.out_proj.load_state_dict(layer.output.state_dict())
    x, states = (torch.randn(3, steps, WIDTH, dtype=torch.float64) for steps in (2, 4))
    memory = memory_of(layer, states, None)
    expected, weights = theirs(x, states, states, average_attn_weights=False)
    for source in (memory.inputs, memory.inputs.clone()):
        close(layer(x, cross_inputs(memory, source), 0), expected)
        close(watched(layer, x, cross_inputs(memory, source)), weights)


@pytest.mark.parametrize("order", ORDERS)
def test_every_row_has_a_slot_of_its_own_in_the_group_of_its_input(order: list[int]) -> None:
    source = torch.tensor(order)
    memory = KeyValueMemory((), None, torch.arange(3))
    groups = QueryGroups.of(source, memory)
    assert groups.size == max(order.count(of) for of in order)
    slots = list(range(len(order))) if groups.slots is None else groups.slots.tolist()
    assert len(set(slots)) == len(order)
    assert [slot // groups.size for slot in slots] == order
    for of in range(3):  # in the order of the rows
        mine = [slot for slot, reads in zip(slots, order, strict=True) if reads == of]
        assert mine == sorted(mine)


def test_slots_that_are_filled_in_order_need_no_table() -> None:
    memory = KeyValueMemory((), None, torch.arange(2))
    assert QueryGroups.of(memory.inputs, memory) == QueryGroups(memory.inputs, 1, None)
    assert QueryGroups.of(torch.tensor([0, 0, 1, 1]), memory).slots is None
    assert QueryGroups.of(torch.tensor([0, 1, 1, 0]), memory).slots is not None
    assert QueryGroups.of(torch.tensor([0, 1, 1]), memory).slots is not None  # a slot stays free


def test_dropout_is_of_the_weights_in_training_alone() -> None:
    layer: CrossAttention = drawn(CrossAttention(config(attention_dropout=0.99999)))
    states, x = (
        torch.randn(1, 4, WIDTH, dtype=torch.float64),
        torch.randn(1, 2, WIDTH, dtype=torch.float64),
    )
    inputs = cross_inputs(memory_of(layer, states, None), torch.tensor([0]))
    before = layer(x, inputs, 0)
    torch.manual_seed(0)
    close(layer.train()(x, inputs, 0), layer.output.bias.expand(1, 2, WIDTH))
    close(layer.eval()(x, inputs, 0), before)


# The state of a decoder


def rows_of(state: DecoderState) -> list[int]:
    """The length of the source of each row: who reads what, told by the memory alone."""
    mask = state.memory.value.mask
    assert mask is not None
    return mask[state.source].sum(1).tolist()


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_rows_moved_are_rows_chosen(model: Any, seed: int, inference: bool) -> None:
    """Random moves over many steps, in which inputs drop out: the same logits as those of the rows alone,
    from the start."""
    chance = random.Random(seed)
    with torch.inference_mode(inference), torch.no_grad():
        state = model.encode(SOURCES)
        reads, texts = list(range(4)), [[] for _ in range(4)]  # type: tuple[list[int], list[list[int]]]
        compacted = False
        for step in range(9):
            new = [chance.choice([3, 4]) for _ in texts]  # two words, so that texts agree
            logits, state = model(torch.tensor(new)[:, None], state)
            texts = [[*text, token] for text, token in zip(texts, new, strict=True)]
            for row, of in enumerate(reads):
                close(
                    logits[row, -1],
                    model(torch.tensor([texts[row]]), model.encode(SOURCES[of : of + 1]))[0][0, -1],
                    1e-9,
                )
            kept = sorted(set(reads))
            if step % 3 == 2 and len(kept) > 1:
                kept.remove(chance.choice(kept))
            places = [row for row, of in enumerate(reads) if of in kept]
            rows = [chance.choice(places) for _ in range(chance.randrange(1, 7))]
            chosen, before = torch.tensor(rows), len(state.memory.value.inputs)
            other = select_rows(fork(state), chosen)
            state = reorder_in_place(state, chosen)
            compacted |= len(state.memory.value.inputs) < before
            reads, texts = [reads[row] for row in rows], [list(texts[row]) for row in rows]
            assert (
                rows_of(state) == rows_of(other) == [int((SOURCES[of] != 0).sum()) for of in reads]
            )
            one, two = (
                model(torch.full((len(rows), 1), 5), fork(one))[0] for one in (state, other)
            )
            close(one, two)
        assert compacted


@torch.inference_mode()
def test_memory_goes_when_half_of_the_inputs_do(model: Any) -> None:
    _, state = model(torch.tensor([[3]] * 4), model.encode(SOURCES))
    whole = state.memory
    three = reorder_in_place(state, torch.tensor([1, 3, 0]))
    assert three.memory is whole
    two = reorder_in_place(three, torch.tensor([1, 0, 1]))  # those that read inputs 3 and 1
    assert two.memory.value.inputs.tolist() == [0, 1]
    assert two.source.tolist() == [1, 0, 1]
    assert rows_of(two) == [1, 2, 1]
    assert all(len(part) == 2 for layer in two.memory.value.layers for part in layer)


@torch.inference_mode()
def test_hypotheses_share_their_memory_and_rows_that_stay_share_their_groups(model: Any) -> None:
    state = model.encode(SOURCES)
    rows = torch.arange(4).repeat_interleave(3)
    beam = select_rows(state, rows)
    assert beam.memory is state.memory
    _, beam = model(torch.full((12, 1), 3), beam)
    groups = beam.groups
    # each stays with its input
    moved = reorder_in_place(beam, torch.tensor([1, 0, 2, 3, 5, 4, 6, 6, 6, 9, 9, 11]))
    assert moved.groups is groups
    assert moved.source is beam.source
    assert moved.query_groups() is groups.value
    _, after = model(torch.full((12, 1), 4), moved)
    assert after.groups.value is groups.value


def test_a_state_whose_rows_were_chosen_groups_them_again(model: Any) -> None:
    _, state = model(torch.tensor([[3]] * 4), model.encode(SOURCES))
    assert state.groups.value is not None
    for rows in ([3, 2, 1, 0], [0, 0, 1], [0, 1, 2, 3]):
        chosen = select_rows(state, torch.tensor(rows))
        assert chosen.query_groups().source.tolist() == rows


def test_an_empty_source_is_finite_and_disturbs_nobody(model: Any) -> None:
    tokens = torch.tensor([[3, 4]] * 3)
    source = torch.tensor([[5, 3, 8], [0, 0, 0], [2, 2, 0]])
    logits, _ = model(tokens, model.encode(source))
    assert bool(logits.isfinite().all())
    kept = [0, 2]
    close(logits[kept], model(tokens[kept], model.encode(source[kept]))[0])
    close(logits[1], model(tokens[:1], model.encode(torch.zeros(1, 1, dtype=torch.long)))[0][0])
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@torch.inference_mode()
def test_a_step_changes_no_other_row_and_no_fork(model: Any) -> None:
    _, state = model(torch.tensor([[3]] * 4), model.encode(SOURCES))
    _, state = model(torch.tensor([[4]] * 4), state)  # in a buffer now
    twins = [fork(state) for _ in range(3)]
    expected, _ = model(torch.tensor([[5], [6], [5], [6]]), twins[0])
    model(torch.tensor([[7]] * 4), twins[1])
    for row, other in ((0, 7), (3, 2)):
        tokens = torch.tensor([[5], [6], [5], [6]])
        tokens[row] = other
        found, _ = model(tokens, fork(twins[2]))
        keep = [r for r in range(4) if r != row]
        close(found[keep], expected[keep])
    state = twins[2]
    assert isinstance(state.memory, Shared)
