"""Sampling: its numbers, its draws, its distribution, and that nothing else in a batch changes a text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.toys import BOS, EOS, PAD, Chain, Remembering, fits
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import Earlier, GenerationOptions, finish, generate, steps
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid, logits_processors
from seqloom.decoding.strategies import BeamSearch, Sampling, draw, strategy_of, uniform
from seqloom.errors import UsageError

FORBIDDEN = [PAD, BOS]


def decode(
    model: Any, prompts: Sequence[Sequence[int]], limit: int, **changes: Any
) -> list[list[Hypothesis]]:
    config = DecodeConfig(**{"strategy": "sample"} | changes)
    limits = [limit] * len(prompts)
    rules = logits_processors(config, FORBIDDEN, EOS)
    return generate(
        model,
        None,
        prompts,
        limits,
        GenerationOptions(strategy=strategy_of(config), eos=EOS, pad=PAD, processors=rules),
    )


# Random numbers


def splitmix(state: int) -> int:
    """The finaliser, in plain integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


GAMMA = 0x9E3779B97F4A7C15


def plain_uniform(seed: int, sample: int, step: int) -> float:
    stream = splitmix((splitmix((seed + GAMMA) % 2**64) + (sample + 1) * GAMMA) % 2**64)
    return (splitmix((stream + (step + 1) * GAMMA) % 2**64) >> 11) / 2**53


def test_the_reference_is_splitmix64() -> None:
    """The first numbers of the seed 1234567, as published with the generator's C code."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix((1234567 + (i + 1) * GAMMA) % 2**64) for i in range(5)] == published


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=5),
    st.integers(0, 2**63 - 1),
)
def test_random_numbers_are_a_function_of_seed_sample_and_step_to_the_last_bit(
    places: list[tuple[int, int]], seed: int
) -> None:
    samples, at = torch.tensor(places).unbind(1)
    found = uniform(seed, samples, at)
    assert found.dtype == torch.float64
    assert found.tolist() == [plain_uniform(seed, *place) for place in places]


def test_random_numbers_are_even_and_unlike() -> None:
    for samples, at in (
        (torch.arange(4096), torch.zeros(4096).long()),
        (torch.zeros(4096).long(), torch.arange(4096)),
    ):
        for seed in (0, 1):
            u = uniform(seed, samples, at)
            assert fits(torch.histc(u, 16, 0, 1).long().tolist(), [1 / 16] * 16)
            pairs = (u[:-1] * 4).long() * 4 + (u[1:] * 4).long()
            assert fits(pairs.bincount(minlength=16).tolist(), [1 / 16] * 16)
    assert (
        len(
            {
                float(uniform(s, torch.tensor([j]), torch.tensor([t])))
                for s in range(5)
                for j in range(5)
                for t in range(5)
            }
        )
        == 125
    )


# Draws


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 1e-6, 0.1, 0.25, 1.0, 7.0]), min_size=6, max_size=6),
        min_size=1,
        max_size=4,
    ),
    u=st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4),
)
def test_a_draw_is_the_first_id_whose_mass_exceeds_u(
    rows: list[list[float]], u: list[float]
) -> None:
    log_probs = (torch.tensor(rows) / 20).log()
    ids = draw(log_probs, torch.tensor(u[: len(rows)], dtype=torch.float64))
    for row, chosen, at in zip(
        log_probs.softmax(-1).nan_to_num().double().tolist(), ids.tolist(), u, strict=False
    ):
        total = math.fsum(row)
        assert 0 <= chosen < len(row)
        if not total:
            continue
        assert row[chosen] > 0
        assert math.fsum(row[:chosen]) <= at * total + 1e-14
        assert math.fsum(row[: chosen + 1]) > at * total - 1e-14


def test_at_the_borders_the_next_id_is_drawn() -> None:
    # exp(0) is 1 to the last bit
    ones = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]] * 5)
    u = torch.tensor([0.0, 0.5 - 2**-53, 0.5, 0.5 + 2**-53, 1 - 2**-53], dtype=torch.float64)
    assert draw(ones, u).tolist() == [1, 1, 3, 3, 3]
    impossible_first = torch.tensor([[0.0, 1.0]]).log()
    assert draw(impossible_first, torch.zeros(1, dtype=torch.float64)).tolist() == [1]


def test_a_rare_token_is_drawn_as_often_as_it_should() -> None:
    """Shares that float32 could not add to a sum near 1."""
    log_probs = torch.tensor([[1.0 - 2**-13, *[2.0**-40] * 4]], dtype=torch.float64).log()
    begin = (1.0 - 2**-13) / (1.0 - 2**-13 + 4 * 2.0**-40)
    for at, expected in ((begin - 2**-45, 0), (begin + 2**-41, 1), (1 - 2**-45, 4)):
        assert draw(log_probs, torch.tensor([at], dtype=torch.float64)).tolist() == [expected]


# Distributions

P = [0.0, 0.0, 0.1, 0.2, 0.3, 0.05, 0.15, 0.2]
"""Of the next token; 3 and 7 are equally likely."""


def reference(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> list[float]:
    """What the rules leave of P after a prompt that has a 4, by plain arithmetic."""
    hot = [(x**repetition_penalty if i == 4 else x) ** (1 / temperature) for i, x in enumerate(P)]
    hot = [x / sum(hot) for x in hot]
    ids = sorted(range(len(P)), key=lambda i: (-hot[i], i))[:top_k]
    share = [hot[i] / sum(hot[j] for j in ids) for i in ids]
    ids = ids[: next(n for n in range(1, len(ids) + 1) if sum(share[:n]) >= top_p - 1e-9)]
    ids = [i for i in ids if hot[i] >= min_p * hot[ids[0]] - 1e-9]
    return [hot[i] / sum(hot[j] for j in ids) if i in ids else 0.0 for i in range(len(P))]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 2},
        {"top_k": 100},
        {"top_p": 0.65},
        {"top_p": 0.2},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.8},
        {"temperature": 0.5, "top_p": 0.9},
        {"min_p": 0.6},
        {"min_p": 0.4, "temperature": 2.0},
        {"repetition_penalty": 2.5},
        {"repetition_penalty": 1.5, "temperature": 0.7, "top_k": 4, "top_p": 0.95, "min_p": 0.5},
    ],
)
def test_tokens_come_as_often_as_each_rule_says(changes: dict[str, Any]) -> None:
    expected = reference(**changes)
    (found,) = decode(Chain({4: P}), [[BOS, 4]], 1, n_best=6000, **changes)
    drawn = Counter(EOS if h.finished else h.tokens[0] for h in found)
    assert fits([drawn[i] for i in range(len(P))], expected)
    assert not fits([drawn[i] for i in [*range(1, len(P)), 0]], expected)  # the test can fail
    for h in found[:50]:  # log p is the model's, whatever the rules
        assert h.log_probability == pytest.approx(
            math.log(P[EOS if h.finished else h.tokens[0]]), abs=1e-5
        )
        assert h.score == h.log_probability


def test_texts_come_as_often_as_the_model_says() -> None:
    """Steps are independent: whole texts, not only single tokens, have their probabilities."""
    chain = Chain(
        {BOS: [0, 0, 0.1, 0.5, 0.4], 3: [0, 0, 0.5, 0.25, 0.25], 4: [0, 0, 0.2, 0.7, 0.1]}
    )
    (found,) = decode(chain, [[BOS]], 3, n_best=8000, seed=5)
    expected: dict[tuple[int, ...], float] = {}

    def spread(text: tuple[int, ...], p: float) -> None:
        for token in (2, 3, 4):
            longer, q = (
                (*text, token),
                p * math.exp(chain.log_probs[text[-1] if text else BOS, token]),
            )
            if token == EOS or len(longer) == 3:
                expected[longer] = q
            else:
                spread(longer, q)

    spread((), 1.0)
    drawn = Counter((*h.tokens, EOS) if h.finished else tuple(h.tokens) for h in found)
    assert drawn.keys() <= expected.keys()
    assert fits([drawn[text] for text in expected], list(expected.values()))
    for h in found[:50]:
        text = (*h.tokens, EOS) if h.finished else tuple(h.tokens)
        assert h.log_probability == pytest.approx(math.log(expected[text]), abs=1e-5)


def test_seeds_and_samples_are_unlike() -> None:
    """Where all is equally likely, two streams agree in a token as often as chance has it."""
    even = Chain({i: [0, 0, 0, *[1 / 20] * 20] for i in [BOS, *range(3, 23)]})
    texts = [
        h.tokens for seed in (0, 1) for h in decode(even, [[BOS]], 400, n_best=3, seed=seed)[0]
    ]
    for at, one in enumerate(texts):
        for other in texts[:at]:
            same = sum(a == b for a, b in zip(one, other, strict=True))
            assert fits([same, 400 - same], [1 / 20, 19 / 20])


# Greedy


@pytest.mark.parametrize(
    "changes", [{"temperature": 1e-3}, {"temperature": 1e-300}, {"top_k": 1}, {"top_p": 1e-9}]
)
def test_the_narrowest_sampling_is_greedy(changes: dict[str, Any]) -> None:
    model = Remembering()
    prompts = [[BOS], [BOS, 5, 6], [BOS, 9]]
    greedy = decode(model, prompts, 25, strategy="beam", beam=1)
    sampled = decode(model, prompts, 25, **changes)
    assert [found[0].tokens for found in sampled] == [found[0].tokens for found in greedy]
    for one, other in zip(sampled, greedy, strict=True):
        assert one[0].log_probability == pytest.approx(other[0].log_probability)
        assert one[0].finished == other[0].finished


# The batch


@settings(deadline=None, max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(3, 20), max_size=5), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    samples=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_nothing_else_in_the_batch_changes_a_text(
    prompts: list[list[int]], order: Any, samples: int, seed: int
) -> None:
    model, prompts = Remembering(), [[BOS, *prompt] for prompt in prompts]
    changes = {"n_best": samples, "seed": seed, "temperature": 1.5, "top_p": 0.95}
    alone = [decode(model, [prompt], 12, **changes)[0] for prompt in prompts]
    assert [[h.sample for h in found] for found in alone] == [list(range(samples))] * len(prompts)
    assert decode(model, prompts, 12, **changes) == alone
    places = list(range(len(prompts)))
    order.shuffle(places)
    assert decode(model, [prompts[i] for i in places], 12, **changes) == [alone[i] for i in places]
    more = decode(model, prompts, 12, **changes | {"n_best": samples + 3})
    assert [
        found[:samples] for found in more
    ] == alone  # more samples leave the first ones as they were


def test_a_text_goes_on_where_it_was_cut() -> None:
    """Sample 2 of a text, cut after 5 tokens and gone on with, is the text that was never cut."""
    model, strategy, rules = Remembering(), Sampling(seed=3, samples=4), [forbid([*FORBIDDEN, EOS])]
    whole = generate(
        model,
        None,
        [[BOS, 4]],
        [15],
        GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=rules),
    )[0][2]
    assert len(whole.tokens) == 15
    prompt, one = [BOS, 4, *whole.tokens[:5]], strategy.single()
    options = GenerationOptions(strategy=one, eos=EOS, pad=PAD, processors=rules)
    rest = steps(model, None, [prompt], [10], options, earlier=[Earlier(sample=2, generated=5)])
    assert finish(rest)[0][0].tokens == whole.tokens[5:]


def test_rows_that_finish_leave_and_samples_keep_their_order() -> None:
    rows = []

    class Counting(Chain):
        def __call__(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            rows.append(len(tokens))
            return super().__call__(tokens, state)

    (found,) = decode(Counting({i: [0, 0, 0.5, 0.5] for i in (BOS, 3)}), [[BOS]], 50, n_best=64)
    assert rows[0] == 1  # the prompt is read once
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert rows[-1] < rows[1] < 64
    assert [h.sample for h in found] == list(range(64))
    lengths = [len(h.tokens) for h in found]
    assert sum(rows[1:]) == sum(lengths)  # a row is read once for each token that is not the last
    assert all(h.finished for h in found)


def test_what_is_forbidden_never_comes() -> None:
    even = Chain({i: [1 / 8] * 8 for i in range(8)})
    (found,) = decode(even, [[BOS]], 30, n_best=300)
    assert {token for h in found for token in h.tokens} == {3, 4, 5, 6, 7}
    nothing = [forbid(range(8))]
    options = GenerationOptions(strategy=Sampling(samples=3), eos=EOS, pad=PAD, processors=nothing)
    assert generate(even, None, [[BOS]], [5], options) == [[]]  # no token may come: the row dies


def test_steps_yield_each_token_as_it_comes() -> None:
    model, seen = Remembering(), list[list[int]]()
    options = GenerationOptions(
        strategy=Sampling(samples=2, seed=1), eos=EOS, pad=PAD, processors=[forbid([0, 1, 2])]
    )
    found = finish(steps(model, None, [[BOS]], [6], options), lambda new: seen.append(new.tolist()))
    assert [list(texts) for texts in zip(*seen, strict=True)] == [h.tokens for h in found[0]]


# Settings


def test_strategies_come_from_the_settings() -> None:
    assert strategy_of(DecodeConfig(strategy="sample", seed=4, n_best=7)) == Sampling(
        seed=4, samples=7
    )
    assert strategy_of(DecodeConfig(beam=3, n_best=2, length_penalty=0.5)) == BeamSearch(
        width=3, n_best=2, length_penalty=0.5
    )


@pytest.mark.parametrize(("samples", "seed"), [(0, 0), (1, -1), (1, 2**63)])
def test_a_sampling_that_cannot_be_is_refused(samples: int, seed: int) -> None:
    with pytest.raises(
        UsageError, match=r"samples must be at least 1 and the seed from 0 to 2\^63 - 1"
    ):
        Sampling(samples=samples, seed=seed)
