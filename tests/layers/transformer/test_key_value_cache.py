"""The cache of a causal Transformer: rows moved in place are rows chosen, whatever they were and whatever
input they read."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from seqloom.layers.transformer.key_value_cache import (
    KeysValues,
    KeyValueCache,
    RaggedCache,
    append,
    causal_mask,
    embed_tokens,
    extend_cache,
    mask_and_positions,
)
from seqloom.protocols import select_rows

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
PAD, BEGIN = 0, 1


class Texts:
    """Rows of tokens, each reading an input, with keys and values that are a function of the input and the
    tokens so far."""

    def __init__(self, rows: int, inputs: list[int]) -> None:
        self.tokens = [[] for _ in range(rows)]  # type: list[list[int]]
        self.inputs = inputs

    def keys_values(self, layer: int) -> KeysValues:
        """`(rows, 2, steps, 3)`: told from a hash of what they are a function of."""

        def numbers(kind: int) -> Tensor:
            steps = len(self.tokens[0])
            made = torch.empty(len(self.tokens), 2, steps, 3, dtype=torch.float64)
            for row, (text, of) in enumerate(zip(self.tokens, self.inputs, strict=True)):
                for at in range(steps):
                    chance = random.Random(str((kind, layer, of, text[: at + 1])))
                    made[row, :, at] = torch.tensor([chance.random() for _ in range(6)]).view(2, 3)
            return made

        return KeysValues(numbers(0), numbers(1))

    def reordered(self, rows: list[int]) -> None:
        self.tokens = [list(self.tokens[row]) for row in rows]
        self.inputs = [self.inputs[row] for row in rows]

    def grow(self, cache: KeyValueCache | None, new: list[list[int]]) -> KeyValueCache:
        """Reads one more piece of each row, as a model does."""
        for text, more in zip(self.tokens, new, strict=True):
            text += more
        tokens = torch.tensor(new)
        steps = tokens.shape[1]
        call = mask_and_positions(tokens, cache, PAD)
        layers = []
        for layer in range(2):
            of_new = KeysValues(*(part[:, :, -steps:].clone() for part in self.keys_values(layer)))
            past = cache and cache.layers[layer]
            layers.append(
                of_new
                if past is None
                else KeysValues(
                    *(
                        append(one, call.past_length, two)
                        for one, two in zip(past, of_new, strict=True)
                    )
                )
            )
        return extend_cache(cache, tuple(layers), tokens, call)

    def check(self, cache: KeyValueCache) -> None:
        assert cache.length == len(self.tokens[0])
        assert cache.tokens[:, : cache.length].tolist() == self.tokens
        for layer in range(2):
            for found, expected in zip(cache.layers[layer], self.keys_values(layer), strict=True):
                assert torch.equal(found[:, :, : cache.length], expected)


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_rows_moved_are_rows_chosen(seed: int, inference: bool) -> None:
    """Many random moves: fewer rows, as many, more; two words only, so that texts often agree and inputs
    differ."""
    chance = random.Random(seed)
    inputs = [chance.randrange(2) for _ in range(5)]
    texts, cache = Texts(5, inputs), None
    with torch.inference_mode(inference), torch.no_grad():
        for _ in range(12):
            steps = chance.choice([1, 1, 2])
            cache = texts.grow(
                cache, [[chance.choice([3, 4]) for _ in range(steps)] for _ in texts.tokens]
            )
            texts.check(cache)
            count = chance.choice(
                [
                    len(texts.tokens),
                    len(texts.tokens),
                    max(1, len(texts.tokens) - 1),
                    len(texts.tokens) + 1,
                ]
            )
            rows = [chance.randrange(len(texts.tokens)) for _ in range(count)]
            cache = cache.reordered(torch.tensor(rows), torch.tensor(texts.inputs))
            texts.reordered(rows)
            texts.check(cache)


@torch.inference_mode()
def test_equal_texts_of_other_inputs_are_copied_from_the_start() -> None:
    texts = Texts(3, [0, 1, 1])
    cache = texts.grow(None, [[3, 4], [3, 4], [4, 4]])
    moved = cache.reordered(torch.tensor([1, 1, 2]), torch.tensor(texts.inputs))
    texts.reordered([1, 1, 2])
    texts.check(moved)


@torch.inference_mode()
def test_without_inputs_what_agrees_is_not_copied() -> None:
    """Hypotheses of one input: keys of the part that two texts share stay in place, and only the rest is
    written."""
    texts = Texts(2, [0, 0])
    cache = texts.grow(None, [[3, 4, 3, 3], [3, 4, 4, 3]])
    for part in cache.layers[0]:
        part[0, :, :2] = 7.0  # a mark on what must not be written over
    moved = cache.reordered(torch.tensor([1, 1]))
    for part in moved.layers[0]:
        assert bool((part[0, :, :2] == 7.0).all())
        assert torch.equal(part[0, :, 2:4], part[1, :, 2:4])
    assert moved.layers[0].keys.data_ptr() == cache.layers[0].keys.data_ptr()


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 0], [1, 1], [2], [0, 2, 1, 1, 0]])
def test_where_ragged_rows_stand_moves_with_them(rows: list[int]) -> None:
    tokens = torch.tensor([[3, 0, 4], [4, 4, 4], [0, 0, 5]])
    layer = KeysValues(torch.randn(3, 1, 3, 2), torch.randn(3, 1, 3, 2))
    for inference in (True, False):
        with torch.inference_mode(inference):
            layers = (KeysValues(layer.keys.clone(), layer.values.clone()),)
            cache = extend_cache(None, layers, tokens, mask_and_positions(tokens, None, PAD))
            chosen = torch.tensor(rows)
            expected = select_rows(cache, chosen)
            found = cache.reordered(chosen)
            assert found.ragged is not None
            assert expected.ragged is not None
            for one, two in zip(found.ragged, expected.ragged, strict=True):
                assert torch.equal(one, two)
            assert torch.equal(found.tokens, expected.tokens)
            visible = found.ragged.visible
            for one, two in zip(found.layers[0], expected.layers[0], strict=True):
                assert torch.equal(one.movedim(2, 1)[visible], two.movedim(2, 1)[visible])


@torch.inference_mode()
def test_a_buffer_that_one_row_writes_changes_no_other() -> None:
    texts = Texts(3, [0, 0, 1])
    cache = texts.grow(None, [[3], [3], [3]])
    cache = cache.reordered(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 1]))
    texts.reordered([0, 0, 2])
    cache = texts.grow(cache, [[3], [4], [4]])
    texts.check(cache)
    cache = texts.grow(cache, [[4], [4], [4]])
    texts.check(cache)


# Where tokens stand


def test_even_rows_cost_no_mask() -> None:
    tokens = torch.tensor([[3, 4, 5], [4, 4, 4]])
    call = mask_and_positions(tokens, None, PAD, BEGIN)
    assert (call.mask, call.past_length, call.ragged, call.positions.tolist()) == (
        "causal",
        0,
        None,
        [0, 1, 2],
    )
    cache = KeyValueCache((), tokens, 3, None)
    assert mask_and_positions(tokens[:, :1], cache, PAD, BEGIN).mask == "all"
    later = mask_and_positions(tokens, cache, PAD, BEGIN)
    assert isinstance(later.mask, Tensor)
    assert later.mask.tolist() == [
        [[[True] * (4 + step) + [False] * (2 - step) for step in range(3)]]
    ]
    assert later.positions.tolist() == [3, 4, 5]


def test_a_document_may_begin_only_where_something_stands_before() -> None:
    tokens = torch.tensor([[BEGIN, 4, 5]])
    # the first place begins one anyhow
    assert mask_and_positions(tokens, None, PAD, BEGIN).ragged is None
    assert mask_and_positions(
        tokens, KeyValueCache((), tokens, 3, None), PAD, BEGIN
    ).positions.tolist() == [[0, 1, 2]]
    # a model without such a mark
    assert mask_and_positions(
        tokens, KeyValueCache((), tokens, 3, None), PAD
    ).positions.tolist() == [
        3,
        4,
        5,
    ]
    assert mask_and_positions(torch.tensor([[4, BEGIN]]), None, PAD, BEGIN).positions.tolist() == [
        [0, 0]
    ]


def test_once_ragged_rows_stay_so() -> None:
    tokens = torch.tensor([[PAD, 3], [4, 4]])
    call = mask_and_positions(tokens, None, PAD)
    assert call.ragged is not None
    after = mask_and_positions(
        torch.tensor([[5], [5]]), KeyValueCache((), tokens, 2, call.ragged), PAD
    )
    assert isinstance(after.mask, Tensor)
    assert after.positions.tolist() == [[1], [2]]
    assert after.mask[:, 0, 0].tolist() == [[False, True, True], [True, True, True]]


def test_even_rows_are_ragged_ones_that_agree() -> None:
    even = RaggedCache.even(2, 3, CPU)
    true = torch.ones(2, 4, dtype=torch.bool)
    found, positions, after = even.after(true, torch.zeros_like(true))
    mask = causal_mask(4, 3, CPU)
    assert isinstance(mask, Tensor)
    assert torch.equal(found, mask.expand(2, 1, 4, 7))
    assert positions.tolist() == [[3, 4, 5, 6]] * 2
    assert torch.equal(after.visible, torch.ones(2, 7, dtype=torch.bool))
    assert after.position.tolist() == [7, 7]


def test_a_pad_below_0_has_no_row_of_the_table() -> None:
    embedding, ids = nn.Embedding(5, 3), torch.tensor([[4, -1, 2]])
    found = embed_tokens(embedding, ids, -1)
    assert torch.equal(found[0, [0, 2]], embedding.weight[[4, 2]])
    known = ids.clamp(min=0)
    assert torch.equal(embed_tokens(embedding, known, 0), embedding(known))
    with pytest.raises(IndexError):
        embed_tokens(embedding, ids, 0)  # a wrong id is never hidden
