"""The one loop of decoding, on a toy whose next token depends on all that came before, against a plain beam
search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis, LiveHypotheses
from seqloom.decoding.logits_processors import forbid, no_repeat_ngram
from seqloom.decoding.strategies import BeamSearch, Sampling
from seqloom.decoding.string_constraints import Spelling, stop_strings
from seqloom.decoding.trace import Trace
from seqloom.errors import SeqloomError, UsageError
from seqloom.protocols import State

PAD, BOS, EOS = 0, 1, 2
VOCABULARY = 6
RULES = [forbid([PAD, BOS])]


class Toy:
    """Logits that are a random function of the whole prefix, whose code is the state; no parameters, no
    halves.

    With `levels` logits are small integers, so that many continuations are equally likely.
    """

    def __init__(self, seed: int, levels: int | None = None) -> None:
        table = torch.randn(997, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.table = 2 * table if levels is None else (table * levels).round()
        self.rows = list[int]()

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.rows.append(len(tokens))
        codes = []
        for token in tokens.unbind(1):
            state = torch.where(token == PAD, state, (31 * state + token) % 997)
            codes.append(state)
        return self.table[torch.stack(codes, 1)], state


class Spelled:
    """Logits looked up by the tokens since `<s>`; what is not listed is impossible."""

    def __init__(self, table: dict[tuple[int, ...], dict[int, float]]) -> None:
        self.table = table

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        state = torch.cat([state, tokens], dim=1)
        logits = torch.full((*tokens.shape, VOCABULARY), -math.inf)
        for row, prefix in enumerate(state.tolist()):
            for token, probability in self.table[tuple(prefix[1:])].items():
                logits[row, -1, token] = math.log(probability)
        return logits, state


def start(rows: int) -> Tensor:
    """A different first code for each row."""
    return torch.arange(rows) * 100


def decode(
    model: Any,
    state: State,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    rules: Any = RULES,
    **beam: Any,
) -> list[list[Hypothesis]]:
    return generate(
        model,
        state,
        prompts,
        limits,
        GenerationOptions(strategy=BeamSearch(**beam), eos=EOS, pad=PAD, processors=rules),
    )


class Partial(NamedTuple):
    total: float
    tokens: list[int]
    state: State
    log_probs: Tensor


def plain_beam(
    model: Toy, state: Tensor, prompt: Sequence[int], limit: int, beam: BeamSearch
) -> list[Hypothesis]:
    """One input, one hypothesis at a time, never stopped before no hypothesis lives."""

    def read(tokens: Sequence[int], state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = model(torch.tensor([tokens]), state)
        return RULES[0](
            LiveHypotheses.initial(torch.tensor([tokens])), logits[0, -1:].log_softmax(-1)
        )[0], state

    log_probs, state = read(prompt, state)
    live, ended = [Partial(0.0, [], state, log_probs)], list[Hypothesis]()
    while live:
        found = [
            (h.total + float(h.log_probs[token]), h, token)
            for h in live
            for token in order(h.log_probs)
        ]
        best = sorted((f for f in found if f[0] > -math.inf), key=lambda f: -f[0])[
            : beam.width - len(ended)
        ]
        live = []
        for total, h, token in best:
            tokens = [*h.tokens, token]
            if token == EOS or len(tokens) == limit:
                score = total / len(tokens) ** beam.length_penalty
                ended.append(
                    Hypothesis(score, total, tokens[:-1] if token == EOS else tokens, token == EOS)
                )
            else:
                log_probs, state = read([token], h.state)
                live.append(Partial(total, tokens, state, log_probs))
    return sorted(ended, key=lambda h: -h.score)[: beam.n_best]


def order(log_probs: Tensor) -> list[int]:
    """Ids, most likely first, the lowest of equals first."""
    return sorted(range(VOCABULARY), key=lambda i: (-float(log_probs[i]), i))


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    levels=st.sampled_from([None, 1]),
    prompts=st.lists(st.lists(st.integers(3, 5), max_size=3), min_size=1, max_size=3),
    limits=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    width=st.integers(1, 8),
    best=st.integers(1, 8),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
)
def test_search_is_a_plain_beam_search(
    seed: int,
    levels: int | None,
    prompts: list[list[int]],
    limits: list[int],
    width: int,
    best: int,
    length_penalty: float,
) -> None:
    model, beam = (
        Toy(seed, levels),
        BeamSearch(width=width, n_best=min(best, width), length_penalty=length_penalty),
    )
    prompts, limits = [[BOS, *prompt] for prompt in prompts], limits[: len(prompts)]
    found = generate(
        model,
        start(len(prompts)),
        prompts,
        limits,
        GenerationOptions(strategy=beam, eos=EOS, pad=PAD, processors=RULES),
    )
    for row, hypotheses in enumerate(found):
        expected = plain_beam(
            model, start(len(prompts))[row : row + 1], prompts[row], limits[row], beam
        )
        assert [(h.tokens, h.finished) for h in hypotheses] == [
            (h.tokens, h.finished) for h in expected
        ]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected])
        assert [h.log_probability for h in hypotheses] == pytest.approx(
            [h.log_probability for h in expected]
        )


# Scores and stopping


def test_the_end_mark_counts_in_score_and_length() -> None:
    model = Spelled(
        {(): {3: 0.5, EOS: 0.5}, (3,): {EOS: 0.25, 3: 0.75}, (3, 3): {EOS: 0.9, 3: 0.1}}
    )
    (found,) = decode(model, torch.zeros(1, 0).long(), [[BOS]], [3], width=9, n_best=4)
    by_tokens = {(tuple(h.tokens), h.finished): h for h in found}
    for tokens, finished, total in (
        ((), True, math.log(0.5)),
        ((3,), True, math.log(0.5 * 0.25)),
        ((3, 3), True, math.log(0.5 * 0.75 * 0.9)),
        ((3, 3, 3), False, math.log(0.5 * 0.75 * 0.1)),
    ):
        h = by_tokens.pop((tokens, finished))
        assert h.log_probability == pytest.approx(total)
        assert h.score == pytest.approx(total / (len(tokens) + finished))
    assert not by_tokens


def test_a_beam_does_not_stop_at_its_first_ended_hypothesis() -> None:
    """The short output has ended at -0.5 a token; the long one ends three steps later at -0.23 a token."""
    model = Spelled(
        {(): {EOS: 0.6, 3: 0.4}, (3,): {4: 1.0}, (3, 4): {5: 1.0}, (3, 4, 5): {EOS: 1.0}}
    )
    state = torch.zeros(1, 0).long()
    assert decode(model, state, [[BOS]], [9], width=2)[0][0].tokens == [3, 4, 5]
    assert decode(model, state, [[BOS]], [9], width=2, length_penalty=0.0)[0][0].tokens == []


def test_a_beam_stops_where_no_better_hypothesis_can_come() -> None:
    """Without a length penalty Σ log p can only fall: the first end of probability 0.9 is the best of all."""
    model = Toy(0)
    model.table[:] = torch.tensor([0, 0, 0.9, 0.05, 0.03, 0.02]).log()
    decode(model, start(1), [[BOS]], [50], width=4, length_penalty=0.0)
    assert len(model.rows) == 1
    decode(model, start(1), [[BOS]], [50], width=4, n_best=4, length_penalty=0.0)
    assert 2 < len(model.rows) < 10


def test_ties_go_to_the_lowest_id() -> None:
    model = Toy(0)
    model.table.zero_()
    assert decode(model, start(1), [[BOS]], [3])[0][0].tokens == []
    without_end = [forbid([PAD, BOS, EOS])]
    assert decode(model, start(1), [[BOS]], [3], without_end)[0][0].tokens == [3, 3, 3]
    (found,) = decode(model, start(1), [[BOS]], [2], without_end, width=4, n_best=4)
    assert [h.tokens for h in found] == [[3, 3], [3, 4], [3, 5], [4, 3]]


# Rows


def test_rows_that_finish_leave() -> None:
    model = Toy(3)
    limits = [2, 9, 5, 1]
    found = decode(model, start(4), [[BOS]] * 4, limits, [forbid([PAD, BOS, EOS])])
    assert [len(h[0].tokens) for h in found] == limits
    assert not any(h[0].finished for h in found)
    assert model.rows == [4, 3, 2, 2, 2, 1, 1, 1, 1]


def test_rules_see_the_new_tokens_and_what_stood_before() -> None:
    seen, texts = [], []

    def note(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        seen.append(live.tokens.tolist())
        texts.append(live.sequences.tolist())
        return forbid([PAD, BOS, EOS])(live, log_probs)

    (found,) = decode(Toy(5), start(1), [[BOS, 3, 4]], [3], [note])
    tokens = found[0].tokens
    assert seen == [[[]], [tokens[:1]], [tokens[:2]]]
    assert texts == [[[BOS, 3, 4, *tokens[:n]]] for n in range(3)]


def test_what_is_impossible_never_comes() -> None:
    """Where nothing may come next, a hypothesis dies; others of its input go on."""

    def nothing_after_3(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        return log_probs.masked_fill((live.tokens == 3).any(dim=1, keepdim=True), -math.inf)

    model = Spelled({(): {3: 0.9, 4: 0.1}, (3,): {EOS: 1.0}, (4,): {EOS: 1.0}})
    for width in (2, 3):
        (found,) = decode(
            model,
            torch.zeros(1, 0).long(),
            [[BOS]],
            [5],
            [nothing_after_3],
            width=width,
            n_best=width,
        )
        assert [(h.tokens, h.finished) for h in found] == [([4], True)]
        assert found[0].score == pytest.approx(math.log(0.1) / 2)
    assert decode(model, torch.zeros(1, 0).long(), [[BOS]], [5], [nothing_after_3]) == [[]]
    stop = stop_strings(
        Spelling(token_bytes=[b"", b"", b"", b"c", b"d", b"e"], text_separator=b""), ["e"]
    )
    beam = BeamSearch()
    assert generate(
        model,
        torch.zeros(1, 0).long(),
        [[BOS]],
        [5],
        GenerationOptions(strategy=beam, eos=EOS, pad=PAD, processors=[nothing_after_3], stop=stop),
    ) == [[]]


def test_a_logit_that_is_not_a_number_is_an_error() -> None:
    def broken(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((*tokens.shape, VOCABULARY), math.nan), state

    for width in (1, 3):
        with pytest.raises(SeqloomError, match="the model gave NaN"):
            decode(broken, torch.zeros(1, 0).long(), [[BOS]], [5], width=width)


# Refusals


def test_what_is_wrong_is_refused() -> None:
    for prompts, limits in (
        ([[BOS], []], [3, 3]),
        ([[BOS]], [3, 3]),
        ([[BOS]], []),
        ([[BOS]], [0]),
    ):
        with pytest.raises(
            UsageError,
            match="every prompt must have at least one token and a maximum of at least 1 new token",
        ):
            decode(Toy(0), start(len(prompts)), prompts, limits)
    for width, n_best in ((2, 3), (2, 0), (0, 1)):
        with pytest.raises(
            UsageError, match=f"n_best must be from 1 to the beam's width {width}, but is {n_best}"
        ):
            BeamSearch(width=width, n_best=n_best)
    with pytest.raises(
        UsageError,
        match="length_penalty must be from 0 to 10 and diversity at least 0, but they are -1",
    ):
        BeamSearch(length_penalty=-1)


def test_no_prompts_have_no_outputs() -> None:
    assert decode(Toy(0), start(0), [], []) == []


# Diverse beams

PROMPTS = [[BOS], [BOS, 3], [BOS, 5]]


def groups_of(count: int, diversity: float, width: int = 6) -> list[list[list[Hypothesis]]]:
    """For each prompt the hypotheses of each group, best first."""
    beam = {"width": width, "n_best": width, "groups": count, "diversity": diversity}
    found = decode(Toy(2), start(3), PROMPTS, [6, 4, 6], **beam)
    return [
        [[h for h in hypotheses if h.sample == group] for group in range(count)]
        for hypotheses in found
    ]


def test_groups_without_diversity_are_one_beam_of_their_width_and_nothing_comes_twice() -> None:
    alone = decode(Toy(2), start(3), PROMPTS, [6, 4, 6], width=2, n_best=2)
    for groups, expected in zip(groups_of(3, 0.0), alone, strict=True):
        found = sorted((h for hypotheses in groups for h in hypotheses), key=lambda h: -h.score)
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected])
    for groups in groups_of(3, 0.7):
        texts = [(tuple(h.tokens), h.finished) for hypotheses in groups for h in hypotheses]
        assert len(set(texts)) == len(texts) >= 2


def test_with_much_diversity_groups_choose_other_tokens_at_every_step() -> None:
    for groups in groups_of(3, 1e6, width=3):
        texts = [[*h.tokens, EOS] if h.finished else h.tokens for (h,) in groups]
        for step in range(max(map(len, texts))):
            here = [text[step] for text in texts if len(text) > step]
            assert len(set(here)) == len(here)


def test_diversity_changes_the_choice_and_not_the_score() -> None:
    plain, diverse = groups_of(1, 0.0), groups_of(3, 0.7)
    assert plain != diverse
    for row, (prompt, groups) in enumerate(zip(PROMPTS, diverse, strict=True)):
        for h in (h for hypotheses in groups for h in hypotheses):
            text = [*h.tokens, EOS] if h.finished else h.tokens
            logits, _ = Toy(2)(torch.tensor([[*prompt, *text[:-1]]]), start(3)[row : row + 1])
            log_probs = logits[0, len(prompt) - 1 :].log_softmax(-1)
            assert h.log_probability == pytest.approx(
                sum(float(log_probs[at, token]) for at, token in enumerate(text)), abs=1e-4
            )


def test_the_best_of_every_group_come_first() -> None:
    (found,) = decode(Toy(2), start(1), [[BOS]], [6], width=6, n_best=6, groups=3, diversity=9.0)
    firsts = len({h.sample for h in found})
    assert firsts > 1
    assert len({h.sample for h in found[:firsts]}) == firsts < len(found)
    for some in (found[:firsts], found[firsts:]):
        assert [h.score for h in some] == sorted((h.score for h in some), reverse=True)


# A stop


def test_a_row_ends_where_the_stop_says_so_and_its_tokens_stay() -> None:
    stop = lambda live: live.tokens[:, -1] == 4  # noqa: E731
    for beam in (BeamSearch(), BeamSearch(width=3, n_best=3)):
        found = generate(
            Toy(1),
            start(3),
            PROMPTS,
            [9] * 3,
            GenerationOptions(strategy=beam, eos=EOS, pad=PAD, processors=RULES, stop=stop),
        )
        for h in (h for hypotheses in found for h in hypotheses):
            assert 4 not in h.tokens[:-1]
            assert h.finished == (h.tokens[-1:] == [4] or len(h.tokens) < 9)
            assert h.score == pytest.approx(
                h.log_probability / (len(h.tokens) + (h.finished and h.tokens[-1:] != [4]))
            )
        assert any(h.tokens[-1:] == [4] for hypotheses in found for h in hypotheses)


# The trace


def test_a_trace_says_why_each_candidate_fell() -> None:
    table = {
        (): {3: 0.6, 4: 0.3, 5: 0.1},
        (3,): {EOS: 0.1, 3: 0.5, 4: 0.4},
        (4,): {EOS: 0.9, 3: 0.1},
        (3, 3): {EOS: 1.0},
        (3, 4): {EOS: 1.0},
    }
    lines: list[str] = []
    beam, rules = BeamSearch(width=2, length_penalty=0.0), [*RULES, no_repeat_ngram(1, EOS)]
    names = ["<pad>", "<s>", "</s>", "c", "d", "e"]
    trace = Trace(lines.append, lambda ids: [names[i] for i in ids], beam, rules)
    state = torch.zeros(1, 0).long()
    (found,) = generate(
        Spelled(table),
        state,
        [[BOS]],
        [5],
        GenerationOptions(strategy=beam, eos=EOS, pad=PAD, processors=rules),
        observer=trace,
    )
    assert found[0].tokens == [4]
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert text == "\n".join(
        [
            "step 1: 1 row",
            "'' log p 0.0000",
            "'c' -0.5108 goes on, log p -0.5108",
            "'d' -1.2040 goes on, log p -1.2040",
            "'e' -2.3026 falls: log p -2.3026, the last that is taken has -1.2040",
            "step 2: 2 rows",
            "'c' log p -0.5108",
            "'d' -0.9163 falls: it cannot become better than what has ended",
            "'</s>' -2.3026 falls: log p -2.8134, the last that is taken has -1.4271",
            "'c' -0.6931 ruled out by no_repeat_ngram",
            "'d' log p -1.2040",
            "'</s>' -0.1054 ends, log p -1.3093",
            "'c' -2.3026 falls: log p -3.5066, the last that is taken has -1.4271",
        ]
    )


def test_a_trace_of_samples_and_of_groups() -> None:
    for strategy, said in (
        (Sampling(seed=0, samples=20), "is not drawn"),
        (BeamSearch(width=4, groups=2, diversity=9.0), "groups before this one"),
    ):
        lines: list[str] = []
        trace = Trace(lines.append, lambda ids: [str(i) for i in ids], strategy, RULES)
        generate(
            Toy(0),
            start(1),
            [[BOS]],
            [4],
            GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=RULES),
            observer=trace,
        )
        assert any(said in line for line in lines)
        assert any("goes on" in line for line in lines)
        assert any("as long as it may be" in line for line in lines)
