"""The laws that every model keeps which predicts a next token: `logits, state = model(tokens, state)`.

Step by step, in pieces, alone, in a batch, padded anywhere, reordered or searched: the same answers, and the
same gradients. `conftest.py` lists the models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid, logits_processors
from seqloom.decoding.strategies import BeamSearch, Sampling
from seqloom.protocols import select_rows
from seqloom.testing.decodable import INPUTS, TOKENS
from seqloom.text.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from tests.laws.conftest import Subject

LIVE = (3, 4, 5, 6)
"""Tokens that may be generated, beside EOS."""
RULES = [forbid([PAD, BOS])]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Only one law looks at gradients; the others are quicker without."""
    with torch.no_grad():
        yield


# The call


def test_step_by_step_is_all_at_once(subject: Subject) -> None:
    subject.step_by_step_is_all_at_once()


def test_in_pieces_is_all_at_once(subject: Subject) -> None:
    subject.in_pieces_is_all_at_once()


def test_logits_do_not_depend_on_what_comes_later(subject: Subject) -> None:
    subject.logits_do_not_depend_on_what_comes_later()


def test_the_two_halves_are_the_call(neural: Subject) -> None:
    neural.the_two_halves_are_the_call()


def test_the_next_logits_are_the_last_of_the_call(subject: Subject) -> None:
    subject.the_next_logits_are_the_last_of_the_call()


def test_log_probs_of_targets_are_those_of_the_call(subject: Subject) -> None:
    subject.log_probs_of_targets_are_those_of_the_call()


def test_only_what_can_come_next_has_probability(subject: Subject) -> None:
    logits, _ = subject.model(subject.more, subject.begin())
    p = logits.softmax(-1)
    assert p[..., (PAD, BOS)].eq(0).all()
    assert p[..., (EOS, *LIVE)].gt(0).all()


# Padding


def test_a_row_in_a_padded_batch_is_that_row_alone(subject: Subject) -> None:
    subject.a_row_in_a_padded_batch_is_that_row_alone()


def test_gradients_of_a_padded_batch_are_the_sum_over_rows_alone(neural: Subject) -> None:
    neural.gradients_of_a_padded_batch_are_the_sum_over_rows_alone()


# The state


def test_selecting_rows_then_stepping_is_stepping_then_selecting(subject: Subject) -> None:
    subject.selecting_rows_then_stepping_is_stepping_then_selecting()


def test_reordering_in_place_is_selecting_rows(subject: Subject) -> None:
    subject.reordering_in_place_is_selecting_rows()


def test_a_fork_continues_by_itself(subject: Subject) -> None:
    subject.a_fork_continues_by_itself()


# Decoding


def decode(
    subject: Subject,
    inputs: Sequence[str],
    prompts: Sequence[str],
    limits: Sequence[int],
    **beam: Any,
) -> list[list[Hypothesis]]:
    return generate(
        subject.model,
        subject.begin(inputs),
        subject.ids(*prompts),
        limits,
        GenerationOptions(strategy=BeamSearch(**beam), eos=EOS, pad=PAD, processors=RULES),
    )


def greedy_by_hand(
    subject: Subject, inputs: str, prompt: str, limit: int
) -> tuple[list[int], bool, float]:
    """Reads everything anew at every step: (tokens, whether it ended, Σ log p)."""
    tokens, total = subject.ids(prompt)[0], 0.0
    given = len(tokens)
    for _ in range(limit):
        logits, _ = subject.model(torch.tensor([tokens]), subject.begin([inputs]))
        log_probs = logits[0, -1].log_softmax(-1)
        best = max((EOS, *LIVE), key=lambda token: float(log_probs[token]))
        total += float(log_probs[best])
        if best == EOS:
            return tokens[given:], True, total
        tokens.append(best)
    return tokens[given:], False, total


def test_greedy_search_is_a_beam_of_one_and_the_loop_by_hand(subject: Subject) -> None:
    limits = [7, 1, 4]
    by_hand = [greedy_by_hand(subject, *row) for row in zip(INPUTS, TOKENS, limits, strict=True)]
    for hypotheses, (tokens, finished, total) in zip(
        decode(subject, INPUTS, TOKENS, limits), by_hand, strict=True
    ):
        (found,) = hypotheses
        assert found.tokens == tokens
        assert found.finished == finished
        assert found.log_probability == pytest.approx(total, abs=1e-4)
        assert found.score == pytest.approx(total / (len(tokens) + finished), abs=1e-4)


def every_hypothesis(subject: Subject, inputs: str, limit: int) -> dict[tuple[int, ...], float]:
    """All outputs of at most `limit` tokens, EOS among them where it was reached, and Σ log p of each."""
    live = list(itertools.product(LIVE, repeat=limit))
    state = select_rows(subject.begin([inputs]), torch.zeros(len(live), dtype=torch.long))
    logits, _ = subject.model(torch.tensor([[BOS, *tokens[:-1]] for tokens in live]), state)
    found = {}
    for tokens, log_probs in zip(live, logits.log_softmax(-1).tolist(), strict=True):
        total = 0.0
        for step, token in enumerate(tokens):
            found[*tokens[:step], EOS] = total + log_probs[step][EOS]
            total += log_probs[step][token]
        found[tokens] = total
    return found


def test_a_beam_as_wide_as_the_space_is_exhaustive_search(subject: Subject) -> None:
    limit, inputs = 3, INPUTS[:2]
    spaces = [every_hypothesis(subject, row, limit) for row in inputs]
    for length_penalty, n_best in itertools.product((0.0, 0.5, 1.0, 2.0), (1, 6)):
        found = decode(
            subject,
            inputs,
            ["^"] * 2,
            [limit] * 2,
            width=100,
            n_best=n_best,
            length_penalty=length_penalty,
        )
        for hypotheses, space in zip(found, spaces, strict=True):
            scored = sorted(
                (
                    (total / len(tokens) ** length_penalty, tokens)
                    for tokens, total in space.items()
                ),
                reverse=True,
            )
            assert [(*h.tokens, EOS) if h.finished else tuple(h.tokens) for h in hypotheses] == [
                tokens for _, tokens in scored[:n_best]
            ]
            assert [h.score for h in hypotheses] == pytest.approx(
                [score for score, _ in scored[:n_best]], abs=1e-4
            )


def test_every_rule_holds_with_every_model(subject: Subject) -> None:
    """What each rule promises, in beams and samples of several inputs."""
    rules = logits_processors(
        DecodeConfig(min_length=3, no_repeat_ngram=2, repetition_penalty=1.5), [PAD, BOS, 6], EOS
    )
    for strategy in (
        BeamSearch(width=3, n_best=3),
        BeamSearch(width=4, n_best=4, groups=2),
        Sampling(seed=1, samples=5),
    ):
        limits = [8, 5, 6]
        found = generate(
            subject.model,
            subject.begin(),
            subject.ids(*TOKENS),
            limits,
            GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=rules),
        )
        for prompt, hypotheses in zip(subject.ids(*TOKENS), found, strict=True):
            assert hypotheses
            for h in hypotheses:
                text = [*prompt, *h.tokens]
                fresh = list(itertools.pairwise(text))[len(prompt) - 1 :]
                assert len(h.tokens) >= 3 or not h.finished
                assert 6 not in h.tokens
                assert len(set(fresh)) == len(fresh)
                assert not set(fresh) & set(itertools.pairwise(prompt))


@pytest.mark.parametrize("width", [1, 3])
def test_ragged_prompts_decode_together_as_alone(subject: Subject, width: int) -> None:
    subject.rows_decode_together_as_alone(width)
