"""What may come next, and the choice of the most likely."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqloom.config import DecodeConfig
from seqloom.decoding.hypotheses import LiveHypotheses
from seqloom.decoding.logits_processors import (
    LogitsProcessor,
    forbid,
    logits_processors,
    min_length,
    min_p,
    most_likely,
    no_repeat_ngram,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from seqloom.errors import UsageError

VALUES = st.sampled_from([-math.inf, -3.0, -2.0, -1.0, -1.0 + 2**-20, -0.0, 0.0])
"""Few values, so that equals are everywhere, at the border too."""


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_most_likely_is_a_stable_sort(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 40))
    rows = data.draw(
        st.lists(st.lists(VALUES, min_size=columns, max_size=columns), min_size=1, max_size=3)
    )
    k = data.draw(st.integers(1, columns))
    values, ids = most_likely(torch.tensor(rows), k)
    expected = []
    for row in rows:
        pairs = sorted((-value, i) for i, value in enumerate(row))
        expected.append([i for _, i in pairs][:k])
    for found, best, row in zip(ids.tolist(), expected, rows, strict=True):
        possible = [i for i in best if row[i] > -math.inf]
        assert found[: len(possible)] == possible
        assert len(set(found)) == k
    assert values.tolist() == [
        [row[i] for i in best] for row, best in zip(rows, expected, strict=True)
    ]


@pytest.mark.parametrize("k", [1, 2, 7, 500, 5000])
def test_most_likely_of_many_is_a_stable_sort(k: int) -> None:
    """Long rows go other ways inside torch than short ones."""
    for levels in (1, 2, 50, 10**6):
        log_probs = -torch.randint(
            levels, (3, 5000), generator=torch.Generator().manual_seed(levels)
        ).float()
        values, ids = most_likely(log_probs, k)
        expected = log_probs.sort(dim=-1, descending=True, stable=True)
        assert torch.equal(ids, expected.indices[:, :k])
        assert torch.equal(values, expected.values[:, :k])


def test_forbidden_ids_never_come_and_others_keep_their_log_probability() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]])
    before = log_probs.clone()
    after = forbid([0, 2])(LiveHypotheses.initial(torch.zeros(2, 0, dtype=torch.long)), log_probs)
    assert after.tolist() == [[-math.inf, -2.0, -math.inf], [-math.inf, -5.0, -math.inf]]
    assert torch.equal(log_probs, before)
    assert torch.equal(
        forbid([])(LiveHypotheses.initial(torch.zeros(2, 0, dtype=torch.long)), log_probs), before
    )


# The rules of sampling

ROWS = st.integers(1, 40).flatmap(
    lambda size: st.lists(
        st.lists(
            st.sampled_from([-math.inf, -9.0, -2.0, -1.0, -1.0 + 2**-20, -0.5, 0.0]),
            min_size=size,
            max_size=size,
        ).filter(lambda row: max(row) > -math.inf),
        min_size=1,
        max_size=3,
    )
)
"""Logits with many equals and much that is impossible."""


def after(rule: LogitsProcessor, log_probs: torch.Tensor) -> torch.Tensor:
    """What a rule gives, and that it changed nothing in place and sums to 1."""
    before = log_probs.clone()
    ruled = rule(
        LiveHypotheses.initial(torch.zeros(len(log_probs), 0, dtype=torch.long)), log_probs
    )
    assert torch.equal(log_probs, before)
    assert ruled.dtype == log_probs.dtype
    assert ruled.double().exp().sum(dim=-1).tolist() == pytest.approx(
        [1.0] * len(log_probs), abs=1e-5
    )
    return ruled


def check_only(ruled: torch.Tensor, log_probs: torch.Tensor, kept: list[list[int]]) -> None:
    """Only `kept` is left, with the shares it had of its mass."""
    for row, before, ids in zip(ruled.tolist(), log_probs.double().tolist(), kept, strict=True):
        assert [i for i, value in enumerate(row) if value > -math.inf] == sorted(ids)
        mass = math.fsum(math.exp(before[i]) for i in ids)
        assert [row[i] for i in ids] == pytest.approx(
            [before[i] - math.log(mass) for i in ids], abs=1e-5
        )


def best_first(row: list[float]) -> list[int]:
    """Ids that are possible, of equals the lowest first."""
    return sorted((i for i in range(len(row)) if row[i] > -math.inf), key=lambda i: (-row[i], i))


@settings(deadline=None)
@given(ROWS, st.sampled_from([0.05, 0.5, 1.0, 1.7, 100.0]))
def test_temperature_is_a_softmax_of_logits_divided(rows: list[list[float]], beta: float) -> None:
    logits = torch.tensor(rows)
    expected = (logits.double() / beta).log_softmax(dim=-1)
    # of the logits, or of log-probabilities that some of the mass was taken from
    for shift in (
        0.0,
        5.0,
    ):
        ruled = after(temperature(beta), logits + shift)
        assert torch.allclose(
            ruled.double(), expected, atol=1e-3 if beta < 0.1 else 1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("beta", [1e-3, 1e-30, 1e-300])
def test_a_temperature_near_0_leaves_the_best(beta: float) -> None:
    ruled = after(
        temperature(beta),
        torch.tensor([[-3.0, -0.5, -0.7, -math.inf], [-80.0, -90.0, -80.0, -100.0]]),
    )
    assert ruled.exp().tolist() == [pytest.approx([0, 1, 0, 0]), pytest.approx([0.5, 0, 0.5, 0])]


@settings(deadline=None)
@given(ROWS, st.integers(1, 45))
def test_top_k_leaves_exactly_k_and_of_equals_the_lowest_ids(
    rows: list[list[float]], k: int
) -> None:
    log_probs = torch.tensor(rows).log_softmax(dim=-1)
    check_only(
        after(top_k(k), log_probs), log_probs, [best_first(row)[:k] for row in log_probs.tolist()]
    )


@settings(deadline=None, max_examples=200)
@given(
    ROWS,
    st.one_of(st.floats(1e-6, 1), st.sampled_from([0.25, 0.5, 0.75, 1.0])),
    st.sampled_from([1, 2, 64]),
)
def test_top_p_leaves_the_smallest_set_with_the_mass(
    rows: list[list[float]], p: float, first_look: int
) -> None:
    log_probs = torch.tensor(rows).log_softmax(dim=-1)
    kept = []
    for row in log_probs.double().tolist():
        ids = best_first(row)
        masses = list(itertools.accumulate(math.exp(row[i]) for i in ids))
        assume(all(abs(mass - p) > 1e-6 for mass in masses) or p == 1)
        kept.append(ids if p == 1 else ids[: 1 + sum(mass < p for mass in masses)])
    check_only(after(top_p(p, first_look), log_probs), log_probs, kept)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=12),
    st.data(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_top_p_on_the_boundary_is_that_of_fractions(
    weights: list[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    """A sum that is p is enough, whatever the logarithm was rounded to; one that is a little less is not."""
    ids = sorted(range(len(weights)), key=lambda i: -weights[i])
    count = data.draw(st.integers(1, len(weights) - 1))
    log_probs = torch.tensor([weights], dtype=dtype).log().log_softmax(-1)
    p = Fraction(sum(weights[i] for i in ids[:count]), sum(weights))
    for share, kept in (
        (p, count),
        (p + Fraction(1, 10**5), count + 1),
        (p - Fraction(1, 10**5), count),
    ):
        ruled = after(top_p(float(share), data.draw(st.sampled_from([1, 64]))), log_probs)
        assert (ruled[0] > -math.inf).nonzero()[:, 0].tolist() == sorted(ids[:kept])


@pytest.mark.parametrize(("row", "p", "kept"), [([0.5, 0.25, 0.25], 0.5, 1), ([0.9, 0.1], 0.9, 1)])
def test_top_p_keeps_no_token_too_many_in_float32(row: list[float], p: float, kept: int) -> None:
    assert int((after(top_p(p), torch.tensor([row]).log()) > -math.inf).sum()) == kept


def test_top_p_adds_in_float64() -> None:
    """Tail tokens of 2^-26 each, one after the other onto 1 - 2^-14: in float32 every sum would stay the
    same."""
    tail = 2**12
    log_probs = torch.tensor([[1 - 2**-14, *[2.0**-26] * tail]], dtype=torch.float64).log().float()
    probabilities = log_probs.double().exp()[0]
    p = float(probabilities[:1001].sum())  # the float32 log-probabilities are what counts
    left = int((after(top_p(p), log_probs) > -math.inf).sum())
    # 32 of them are what a float32 cannot tell from p
    assert 1001 - 33 <= left <= 1002


def test_a_mass_of_exactly_p_is_enough() -> None:
    log_probs = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    ordered = log_probs.sort(dim=-1, descending=True)
    for count in (1, 7, 29):
        p = float(ordered.values[0, :count].double().exp().cumsum(0)[-1])
        check_only(after(top_p(p), log_probs), log_probs, [ordered.indices[0, :count].tolist()])


@pytest.mark.parametrize(
    ("size", "k", "p"), [(5000, 700, 0.9), (50000, 40, 0.999), (50000, 3, 0.1)]
)
def test_the_rules_of_long_rows(size: int, k: int, p: float) -> None:
    """Several looks of top-p, and other ways inside torch than for short rows."""
    generator = torch.Generator().manual_seed(size)
    log_probs = torch.stack(
        [scale * torch.randn(size, generator=generator) for scale in (0.1, 1.0, 4.0)]
    ).log_softmax(-1)
    ordered = log_probs.sort(dim=-1, descending=True, stable=True)
    check_only(after(top_k(k), log_probs), log_probs, [row[:k].tolist() for row in ordered.indices])
    # tokens of 1e-7 in a tail: a float32 does not tell at which of them the sum is p
    reached = p * (1 - 4 * torch.finfo(torch.float32).eps)
    counts = [int((row.double().exp().cumsum(0) < reached).sum()) + 1 for row in ordered.values]
    check_only(
        after(top_p(p), log_probs),
        log_probs,
        [row[:n].tolist() for row, n in zip(ordered.indices, counts, strict=True)],
    )


@pytest.mark.parametrize("rule", [temperature(0.5), top_k(2), top_p(0.5)])
def test_where_nothing_may_come_next_it_stays_so(rule: LogitsProcessor) -> None:
    ruled = rule(
        LiveHypotheses.initial(torch.zeros(2, 0, dtype=torch.long)),
        torch.tensor([[-math.inf] * 3, [-math.inf, 0.0, -math.inf]]),
    )
    assert ruled.tolist() == [[-math.inf] * 3, [-math.inf, 0.0, -math.inf]]


def test_the_order_of_the_rules() -> None:
    """Each works on what the one before left: top-p on the renormalised k, both after the temperature, all
    without the forbidden."""
    log_probs = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()

    def left(**changes: object) -> list[float]:
        ruled = log_probs
        for rule in logits_processors(DecodeConfig(**changes), [0], 2):  # type: ignore[arg-type]
            ruled = rule(LiveHypotheses.initial(torch.zeros(1, 0, dtype=torch.long)), ruled)
        return [round(x, 6) for x in ruled.softmax(-1)[0].tolist()]

    assert left(strategy="sample") == [0, 0.4, 0.3, 0.2, 0.1]
    assert left(strategy="sample", top_p=0.69) == [0, round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    # 4/7 of the two that are left
    assert left(strategy="sample", top_k=2, top_p=0.57) == [
        0,
        1,
        0,
        0,
        0,
    ]
    hot = [x**0.5 for x in (0.4, 0.3, 0.2, 0.1)]
    assert left(strategy="sample", temperature=2.0) == [0, *(round(x / sum(hot), 6) for x in hot)]
    # 2 if top-p came first
    assert sum(x > 0 for x in left(strategy="sample", temperature=2.0, top_p=0.69)) == 3
    assert left(strategy="sample", temperature=0.0, top_p=0.5) == [0, 1, 0, 0, 0]
    assert left(strategy="greedy") == [0, 0.4, 0.3, 0.2, 0.1]
    assert left(strategy="beam", temperature=2.0, top_k=1) == [0, 0.4, 0.3, 0.2, 0.1]


def test_rules_that_cannot_be_are_refused() -> None:
    for beta in (0.0, -1.0, math.nan):
        with pytest.raises(UsageError, match="the temperature must be above 0, but is"):
            temperature(beta)
    with pytest.raises(UsageError, match="top_k must be at least 1, but is 0"):
        top_k(0)
    for p in (0.0, 1.01, math.nan):
        with pytest.raises(UsageError, match="top_p must be above 0 and at most 1, but is"):
            top_p(p)


# Length and repetition


def prefix(
    prompt: list[list[int]], new: list[list[int]], generated_before: list[int] | None = None
) -> LiveHypotheses:
    """Rows of one input each."""
    return LiveHypotheses.initial(torch.tensor(prompt, dtype=torch.long))._replace(
        tokens=torch.tensor(new, dtype=torch.long),
        generated_before=torch.tensor(generated_before or [0] * len(prompt)),
    )


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_run_of_n_tokens_comes_twice(data: st.DataObject) -> None:
    n, rows, steps = (data.draw(st.integers(1, top)) for top in (4, 3, 8))
    texts = data.draw(
        st.lists(
            st.lists(st.integers(3, 5), min_size=steps, max_size=steps),
            min_size=rows,
            max_size=rows,
        )
    )
    prompt = data.draw(st.integers(0, steps))
    log_probs = torch.randn(rows, 6).log_softmax(-1)
    ruled = no_repeat_ngram(n, 2)(
        prefix([row[:prompt] for row in texts], [row[prompt:] for row in texts]), log_probs
    )
    for row, text in enumerate(texts):
        known = {tuple(text[at : at + n]) for at in range(len(text) - n + 1)}
        for token in range(6):
            again = (*text[len(text) - n + 1 :], token) in known
            assert float(ruled[row, token]) == (
                -math.inf if again and token != 2 else float(log_probs[row, token])
            )


def test_padding_before_a_text_repeats_nothing() -> None:
    """Not even the last id, which -1 would be the place of."""
    log_probs = torch.randn(2, 6).log_softmax(-1)
    for rule in (
        *(no_repeat_ngram(n, eos) for n in (1, 2, 3) for eos in (2, None)),
        repetition_penalty(2.0),
    ):
        together = rule(prefix([[-1, -1, 1, 3], [1, 3, 4, 3]], [[3], [4]]), log_probs)
        alone = rule(prefix([[1, 3]], [[3]]), log_probs[:1])
        assert torch.equal(together[:1], alone)


def test_a_token_that_was_there_becomes_less_likely_and_others_stay() -> None:
    log_probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    ruled = repetition_penalty(2.0)(prefix([[1]], [[3, 3]]), log_probs)
    assert ruled.exp()[0].tolist() == pytest.approx([0.4, 0.09, 0.2, 0.01])
    assert torch.equal(repetition_penalty(1.0)(prefix([[1]], [[3, 3]]), log_probs), log_probs)
    # what begins a text may end it too
    ended = repetition_penalty(2.0, eos=1)(prefix([[1]], [[3, 3]]), log_probs)
    assert ended.exp()[0].tolist() == pytest.approx([0.4, 0.3, 0.2, 0.01])


def test_no_text_ends_before_its_least_length() -> None:
    log_probs = torch.zeros(2, 4)
    for drawn, expected in (
        ([0, 0], [True, True]),
        ([1, 0], [False, True]),
        ([3, 1], [False, False]),
    ):
        ruled = min_length(3, 2)(prefix([[1, 3, 3, 3]] * 2, [[3, 3]] * 2, drawn), log_probs)
        assert (ruled[:, 2] == -math.inf).tolist() == expected
        assert torch.equal(ruled[:, [0, 1, 3]], log_probs[:, [0, 1, 3]])


@given(rows=ROWS, share=st.sampled_from([0.0, 1e-3, 0.05, 0.5]))
def test_min_p_leaves_what_is_likely_enough_beside_the_likeliest(
    rows: list[list[float]], share: float
) -> None:
    log_probs = torch.tensor(rows)
    least = math.log(share) if share else -math.inf
    kept = [
        [i for i, x in enumerate(row) if x > -math.inf and x >= max(row) + least] for row in rows
    ]
    check_only(after(min_p(share), log_probs), log_probs, kept)
    best = [[i for i, x in enumerate(row) if x == max(row) > -math.inf] for row in rows]
    check_only(after(min_p(1.0), log_probs), log_probs, best)
