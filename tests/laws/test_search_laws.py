"""The laws of exact search, for every model: it is what an exhaustive search finds, no beam is better, and
where the budget ends first the gap that it states covers the truth. `conftest.py` lists the models.

Logits are made float32 before the search, which in another batch rounds otherwise: numbers agree to
`ROUNDING` nats.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from seqloom.decoding.exact_search import (
    ExactResult,
    ExactSearchOptions,
    SearchBudget,
    exact_search,
)
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis, LiveHypotheses
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import BeamSearch
from seqloom.protocols import select_rows
from seqloom.text.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from tests.laws.conftest import Subject

INPUT, PROMPT = [5, 3, 4, EOS], [BOS, 6]
LIVE = (3, 4, 5, 6)
"""Tokens that may be generated, beside EOS."""
CAP = 3
ROUNDING = 1e-5
PENALTIES = (0.0, 1.0)

pytestmark = pytest.mark.usefixtures("one_thread")


def reluctant(_: LiveHypotheses, log_probs: Tensor) -> Tensor:
    """The end mark is far less likely than a random model has it, or the empty sequence would be the answer
    too often."""
    result = log_probs.clone()
    result[:, EOS] -= 4
    return result


RULES = [forbid([PAD, BOS]), reluctant]


def exact(
    subject: Subject, length_penalty: float, known: Sequence[Hypothesis] = (), **changes: Any
) -> ExactResult:
    state = subject.start(torch.tensor([INPUT]))
    options = ExactSearchOptions(
        max_new_tokens=CAP, eos=EOS, processors=RULES, length_penalty=length_penalty, **changes
    )
    return exact_search(subject.model, state, PROMPT, options, known)


def beam(subject: Subject, width: int, length_penalty: float) -> list[Hypothesis]:
    """The finished hypotheses of a beam, best first."""
    state = subject.start(torch.tensor([INPUT]))
    strategy = BeamSearch(width=width, n_best=width, length_penalty=length_penalty)
    (found,) = generate(
        subject.model,
        state,
        [PROMPT],
        [CAP],
        GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=RULES),
    )
    return [one for one in found if one.finished]


@torch.no_grad()
def complete(subject: Subject) -> dict[tuple[int, ...], float]:
    """Every sequence that ends within the cap, without its end mark: Σ log p. Read whole, in one call,
    without any search."""
    rows = list(itertools.product(LIVE, repeat=CAP - 1))
    state = subject.start(torch.tensor([INPUT]))
    state = select_rows(state, torch.zeros(len(rows), dtype=torch.long))
    logits, _ = subject.model(torch.tensor([[*PROMPT, *row] for row in rows]), state)
    log_probs_after = logits[:, len(PROMPT) - 1 :].log_softmax(-1)
    log_probs_after[..., EOS] -= 4
    found: dict[tuple[int, ...], float] = {}
    for row, log_probs in zip(rows, log_probs_after.tolist(), strict=True):
        total = 0.0
        for step in range(CAP):
            found[row[:step]] = total + log_probs[step][EOS]
            total += log_probs[step][row[step]] if step < CAP - 1 else 0.0
    return found


def best_score(space: dict[tuple[int, ...], float], length_penalty: float) -> float:
    return max(
        total / float((len(tokens) + 1) ** length_penalty) for tokens, total in space.items()
    )


def test_exact_is_exhaustive_is_a_beam_as_wide_as_the_space(subject: Subject) -> None:
    space = complete(subject)
    assert len(space) == sum(len(LIVE) ** n for n in range(CAP))
    for length_penalty in PENALTIES:
        found = exact(subject, length_penalty)
        assert (found.proven, found.gap) == (True, 0.0)
        assert found.best is not None
        assert found.best.score == found.bound
        assert found.best.finished
        assert found.best.score == pytest.approx(best_score(space, length_penalty), abs=ROUNDING)
        assert found.best.log_probability == pytest.approx(
            space[tuple(found.best.tokens)], abs=ROUNDING
        )
        assert found.best.score == pytest.approx(
            beam(subject, len(LIVE) ** CAP * 2, length_penalty)[0].score, abs=ROUNDING
        )
        assert found.empty == pytest.approx(space[()], abs=ROUNDING)


def test_exact_is_never_worse_than_a_beam(subject: Subject) -> None:
    beams = [one for width in (1, 2, 5) for one in beam(subject, width, 0.0)[:1]]
    alone, seeded = exact(subject, 0.0), exact(subject, 0.0, known=beams)
    assert alone.best is not None
    assert seeded.best is not None
    assert all(alone.best.score >= one.score - ROUNDING for one in beams)
    assert all(seeded.best.score >= one.score for one in beams)


def test_the_gap_covers_the_truth_when_the_budget_ends_first(subject: Subject) -> None:
    space = complete(subject)
    for length_penalty, nodes in itertools.product(PENALTIES, (1, 3)):
        found, truth = (
            exact(subject, length_penalty, budget=SearchBudget(nodes=nodes)),
            best_score(space, length_penalty),
        )
        assert found.nodes <= nodes
        assert found.best is not None
        assert found.bound >= truth - ROUNDING
        assert found.best.score + found.gap == pytest.approx(found.bound)
        assert found.best.score <= truth + ROUNDING
        if not found.proven:
            assert found.gap > 0


def test_the_chunk_changes_no_answer(subject: Subject) -> None:
    one, many = (exact(subject, 1.0, chunk=chunk) for chunk in (1, 64))
    assert one.best is not None
    assert many.best is not None
    assert one.best.tokens == many.best.tokens
    assert one.best.score == pytest.approx(many.best.score, abs=ROUNDING)
    assert one.proven
    assert many.proven
