"""Exact search on toys: the bound, the cap, the budget, equals, rules, and how much it holds, against all
sequences one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.toys import BOS, EOS, PAD, Chain, Remembering
from torch import Tensor

from seqloom.decoding import exact_search as exact_module
from seqloom.decoding.exact_search import (
    ExactResult,
    ExactSearchOptions,
    SearchBudget,
    exact_search,
)
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis, LiveHypotheses
from seqloom.decoding.logits_processors import LogitsProcessor, forbid
from seqloom.decoding.strategies import BeamSearch
from seqloom.errors import SeqloomError, UsageError
from seqloom.protocols import State

VOCABULARY = 6
LIVE = (3, 4, 5)
RULES = [forbid([PAD, BOS])]
FIVE_TOKENS = ExactSearchOptions(max_new_tokens=5, eos=EOS)

pytestmark = pytest.mark.usefixtures("one_thread")


class Leveled:
    """Logits that are small integers, a random function of all that was read: many sequences are equally
    likely."""

    def __init__(self, seed: int, levels: int, ending: float = 0.0) -> None:
        table = torch.randn(97, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.table = (table * levels).round()
        self.table[:, EOS] += ending

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        state = torch.zeros(len(tokens), dtype=torch.long) if state is None else state
        codes = []
        for token in tokens.unbind(1):
            state = (31 * state + token) % 97
            codes.append(state)
        return self.table[torch.stack(codes, 1)], state


class Uniform:
    """All tokens are alike everywhere; the end is a little likelier."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits = torch.zeros(*tokens.shape, VOCABULARY)
        logits[..., EOS] = 0.1
        return logits, torch.zeros(len(tokens), 1)


def exact(
    model: Any,
    prompt: Sequence[int] = (BOS,),
    cap: int = 5,
    rules: Sequence[LogitsProcessor] = RULES,
    known: Sequence[Hypothesis] = (),
    **changes: Any,
) -> ExactResult:
    options = ExactSearchOptions(max_new_tokens=cap, eos=EOS, processors=rules, **changes)
    return exact_search(model, None, prompt, options, known)


def every(
    model: Any, prompt: Sequence[int], cap: int, rules: Sequence[LogitsProcessor] = RULES
) -> dict[tuple[int, ...], float]:
    """Σ log p of every complete sequence, read whole, added up as a search does."""
    found: dict[tuple[int, ...], float] = {}
    for n in range(cap):
        rows = list(itertools.product(LIVE, repeat=n))
        tokens = torch.tensor(rows, dtype=torch.long).view(len(rows), n)
        logits, _ = model(torch.cat([torch.tensor([prompt] * len(rows)), tokens], dim=1), None)
        totals = torch.zeros(len(rows), dtype=torch.float64)
        for step in range(n + 1):
            log_probs = logits[:, len(prompt) - 1 + step].float().log_softmax(-1)
            for rule in rules:
                zeros = torch.zeros(len(rows), dtype=torch.long)
                log_probs = rule(
                    LiveHypotheses(
                        zeros, zeros, zeros, totals, tokens[:, :step], torch.tensor([prompt])
                    ),
                    log_probs,
                )
            following = tokens[:, step] if step < n else torch.full((len(rows),), EOS)
            totals = totals + log_probs.gather(1, following[:, None])[:, 0]
        found |= dict(zip(rows, totals.tolist(), strict=True))
    return found


def ranked(
    space: dict[tuple[int, ...], float], length_penalty: float
) -> list[tuple[float, int, tuple[int, ...]]]:
    """The best first; of equals the shortest, then the lowest ids."""
    return sorted(
        (-total / float((len(tokens) + 1) ** length_penalty), len(tokens), tokens)
        for tokens, total in space.items()
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([1, 2, 30]),
    ending=st.sampled_from([0.0, -3.0, -30.0]),
    prompt=st.lists(st.integers(3, 5), max_size=2),
    cap=st.integers(1, 5),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    chunk=st.sampled_from([1, 2, 64]),
)
def test_it_is_the_first_of_all_sequences(
    seed: int,
    levels: int,
    ending: float,
    prompt: list[int],
    cap: int,
    length_penalty: float,
    chunk: int,
) -> None:
    """Equals too: their numbers are the same bits here."""
    model = Leveled(seed, levels, ending)
    space = every(model, [BOS, *prompt], cap)
    score, _, tokens = ranked(space, length_penalty)[0]
    found = exact(model, [BOS, *prompt], cap, length_penalty=length_penalty, chunk=chunk)
    assert found.best == Hypothesis(-score, space[tokens], list(tokens), True)
    assert (found.proven, found.gap, found.bound) == (True, 0.0, -score)
    assert found.empty == space[()]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 30),
    length_penalty=st.sampled_from([0.0, 1.0]),
    chunk=st.sampled_from([1, 4, 64]),
)
def test_a_budget_that_ends_first_leaves_a_gap_that_holds(
    seed: int, nodes: int, length_penalty: float, chunk: int
) -> None:
    model = Leveled(seed, 2, ending=-4.0)
    truth = -ranked(every(model, [BOS], 4), length_penalty)[0][0]
    found = exact(
        model, cap=4, length_penalty=length_penalty, chunk=chunk, budget=SearchBudget(nodes=nodes)
    )
    assert found.nodes <= nodes
    assert found.best is not None
    assert found.best.score <= truth <= found.bound
    assert found.best.score + found.gap == pytest.approx(found.bound)
    if found.proven:
        assert found.best.score == truth == found.bound


def test_one_node_proves_nothing_and_says_how_much_is_left() -> None:
    """p(end) = 0.2, p(3) = 0.8: the empty sequence is known, and one that begins with 3 could have log
    0.8."""
    model = Chain({BOS: [0, 0, 0.2, 0.8, 0, 0], 3: [0, 0, 0.9, 0.1, 0, 0]})
    found = exact(model, budget=SearchBudget(nodes=1))
    assert found.best is not None
    assert (found.proven, found.nodes, found.best.tokens) == (False, 1, [])
    assert found.bound == pytest.approx(math.log(0.8))
    assert found.gap == pytest.approx(math.log(0.8 / 0.2))
    assert found.empty == pytest.approx(math.log(0.2))
    ended = exact(model)
    assert ended.best is not None
    assert (ended.proven, ended.best.tokens) == (True, [3])
    assert ended.best.log_probability == pytest.approx(math.log(0.72))
    assert ended.nodes == 2


def test_a_deadline_ends_it_after_one_step() -> None:
    found = exact(Remembering(), cap=12, budget=SearchBudget(seconds=1e-9))
    assert (found.nodes, found.proven) == (1, False)
    assert found.gap > 0


def test_a_search_that_can_find_nothing_says_so() -> None:
    endless = Chain({BOS: [0, 0, 0, 0.5, 0.5, 0], 3: [0, 0, 0, 1, 0, 0], 4: [0, 0, 0, 1, 0, 0]})
    found = exact(endless)
    assert (found.best, found.proven, found.gap, found.empty) == (None, True, 0.0, -math.inf)
    assert found.bound == -math.inf
    stopped = exact(endless, budget=SearchBudget(nodes=1))
    assert (stopped.best, stopped.proven, stopped.gap) == (None, False, math.inf)


def test_what_the_cap_cuts_off_is_no_answer() -> None:
    """3 4 and the end are far likelier than the empty sequence, but they are three."""
    model = Chain(
        {BOS: [0, 0, 0.01, 0.99, 0, 0], 3: [0, 0, 0.001, 0, 0.999, 0], 4: [0, 0, 1, 0, 0, 0]}
    )
    for cap, tokens in ((1, []), (2, []), (3, [3, 4])):
        found = exact(model, cap=cap)
        assert found.best is not None
        assert (found.best.tokens, found.proven) == (tokens, True)


# What is known


def test_known_hypotheses_are_where_it_starts() -> None:
    """The answer is never worse; what is unfinished, or longer than the cap, is no answer; its own α is not
    ours."""
    model = Remembering(VOCABULARY)
    alone = exact(model, cap=6)
    assert alone.best is not None
    kept = Hypothesis(-99.0, alone.best.log_probability + 1, [5, 5], finished=True)
    seeded = exact(model, cap=6, known=[kept], length_penalty=0.0)
    assert seeded.best == kept._replace(score=kept.log_probability)
    assert seeded.nodes < alone.nodes
    for other in (kept._replace(finished=False), kept._replace(tokens=[5] * 6)):
        assert exact(model, cap=6, known=[other]).best == alone.best


def test_of_equals_the_lowest_ids_win_also_against_what_is_known() -> None:
    """3 4 and 4 3 have probability 1/2 each: the prefix 3 is as likely as all of 4 3."""
    following = {BOS: (3, 4), 3: (4,), 4: (3,)}

    def model(tokens: Tensor, step: int | None) -> tuple[Tensor, int]:
        step = step or 0
        logits = torch.full((len(tokens), 1, VOCABULARY), -math.inf)
        for row, last in enumerate(tokens[:, -1].tolist()):
            logits[row, 0, EOS if step == 2 else following[last]] = 0.0
        return logits, step + 1

    first = exact(model)
    assert first.best is not None
    assert first.best.tokens == [3, 4]
    second = exact(model, known=[first.best._replace(tokens=[4, 3])])
    assert second.best == first.best


def test_a_good_start_saves_work_and_changes_nothing() -> None:
    model = Remembering()
    model.table[:, EOS] += 2
    (beam,) = generate(
        model,
        None,
        [[BOS]],
        [9],
        GenerationOptions(
            strategy=BeamSearch(width=20, length_penalty=0), eos=EOS, pad=PAD, processors=RULES
        ),
    )
    alone, seeded = exact(model, cap=9), exact(model, cap=9, known=beam)
    assert alone.best is not None
    assert seeded.best is not None
    assert alone.proven
    assert seeded.proven
    assert seeded.best.tokens == alone.best.tokens
    assert seeded.nodes < alone.nodes


def test_it_reads_no_more_than_the_bound_allows() -> None:
    """One prefix at a time, best first, α = 0: only prefixes at least as likely as the answer, and so cap /
    p(answer) at most."""
    for seed in range(20):
        model, cap = Leveled(seed, 1, ending=-1.0), 6
        found = exact(model, cap=cap, chunk=1)
        assert found.best is not None
        assert found.nodes <= cap / math.exp(found.best.log_probability)


# Rules, memory, mistakes


def test_rules_see_the_rows_as_in_a_beam() -> None:
    """A rule of what stands in the text, its prompt too: no token twice."""

    def once(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        assert (
            live.tokens.shape[0]
            == log_probs.shape[0]
            == live.sum_log_probs.shape[0]
            == live.new_length.shape[0]
        )
        result = log_probs.scatter(1, live.sequences, -math.inf)
        result[:, EOS] = log_probs[:, EOS] - 3
        return result

    rules = [*RULES, once]
    for seed in range(4):
        model = Leveled(seed, 30)
        found = exact(model, [BOS, 4], 5, rules=rules)
        space = {
            tokens: total
            for tokens, total in every(model, [BOS, 4], 5, rules).items()
            if total > -math.inf
        }
        assert all(4 not in tokens for tokens in space)
        assert found.best is not None
        assert tuple(found.best.tokens) == ranked(space, 0.0)[0][2]


def test_with_little_room_the_longest_go_first_and_the_answer_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = list[int]()  # open prefixes
    choose = exact_module._most_promising

    def watched(waiting: Sequence[Any]) -> Any:
        held.append(len(waiting))
        return choose(waiting)

    monkeypatch.setattr(exact_module, "_most_promising", watched)
    budget = SearchBudget(nodes=300)
    exact(Uniform(), cap=9, length_penalty=2.0, chunk=2, budget=budget)
    most = max(held)
    held.clear()
    monkeypatch.setattr(exact_module, "MOST_BYTES", 0)
    exact(Uniform(), cap=9, length_penalty=2.0, chunk=2, budget=budget)
    assert max(held) <= 9 < most
    found = exact(Leveled(3, 30), cap=5, length_penalty=1.0, chunk=2)
    monkeypatch.undo()
    assert found.best == exact(Leveled(3, 30), cap=5, length_penalty=1.0, chunk=2).best


def storage(tensors: Sequence[Tensor]) -> int:
    return sum(
        {
            part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors
        }.values()
    )


def test_what_is_counted_is_what_is_held_and_leaves_when_it_is_taken() -> None:
    """64 rows with a state of 400 bytes each, 1,000 continuations each, of which those of the first row are
    the likeliest."""
    rows, vocabulary = 64, 1000
    state, incumbent = torch.zeros(rows, 100), exact_module._Incumbent(FIVE_TOKENS, [])
    live = LiveHypotheses.initial(torch.ones(1, 1, dtype=torch.long)).select(
        torch.zeros(rows, dtype=torch.long)
    )
    live = live._replace(tokens=torch.arange(rows)[:, None])
    log_probs = (
        torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
        - torch.arange(rows)[:, None] * 100
    )
    prefixes = exact_module._expand(state, live, log_probs, incumbent)
    assert (
        prefixes.bytes
        == storage([prefixes.state, prefixes.index, prefixes.log_probs])
        == rows * 400 + rows * vocabulary * 8
    )
    order = log_probs.flatten().argsort(descending=True, stable=True)
    taken = list[tuple[int, int]]()
    for left in (60_000, 30_000, 900, 1):
        part, went = prefixes.pop(len(prefixes.index) - left)
        assert len(part) == len(went.tokens)
        assert went.sum_log_probs.equal(log_probs.double()[went.tokens[:, 0], went.tokens[:, 1]])
        taken += [(first, second) for first, second in went.tokens.tolist()]
        held = storage([prefixes.state, prefixes.index, prefixes.log_probs])
        assert prefixes.bytes == held
        assert held <= 2 * (left * 8 + -(-left // vocabulary) * 400 + 400)
        assert prefixes.highest == float(prefixes.totals()[0])
    assert taken == [divmod(int(place), vocabulary) for place in order[:-1]]


def test_what_can_no_longer_become_the_answer_frees_its_memory() -> None:
    incumbent = exact_module._Incumbent(FIVE_TOKENS, [Hypothesis(-2.0, -2.0, [3], finished=True)])
    live = LiveHypotheses.initial(torch.ones(1, 1, dtype=torch.long))
    prefixes = exact_module._expand(None, live, torch.linspace(-1.0, -1.99, 1000)[None], incumbent)
    assert prefixes.bytes == 8000
    incumbent._offer(-1.05, [4])
    prefixes.keep(slice(incumbent.count_promising(prefixes)))
    assert 0 < len(prefixes.index) < 60
    assert prefixes.bytes == 8 * len(prefixes.index)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "at least one token"),
        ({"cap": 0}, "at least 1 new token"),
        ({"length_penalty": -1.0}, "length_penalty must be a number from 0 to 100"),
        ({"length_penalty": math.nan}, "but is nan"),
        ({"length_penalty": math.inf}, "but is inf"),
        ({"length_penalty": 1e300}, "from 0 to 100"),
        ({"length_penalty": 100.0, "cap": 2000}, "smaller for a maximum of 2,000"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        exact(Uniform(), **options)


@pytest.mark.parametrize("budget", [{"nodes": 0}, {"seconds": 0.0}, {"seconds": math.nan}])
def test_a_budget_of_nothing_is_none(budget: dict[str, Any]) -> None:
    ((name, value),) = budget.items()
    with pytest.raises(UsageError, match=f"^the budget of {name} must be .*, but is {value}$"):
        SearchBudget(**budget)


def test_nan_and_rules_that_raise_probabilities_are_refused() -> None:
    model = Remembering(VOCABULARY)
    with pytest.raises(SeqloomError, match="leave that rule out"):
        exact(model, rules=[lambda _, log_probs: log_probs + 9])
    model.table[:] = math.nan
    with pytest.raises(SeqloomError, match="NaN"):
        exact(model)
