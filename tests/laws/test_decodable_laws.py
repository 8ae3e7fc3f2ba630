"""The laws that every model keeps which predicts a next token: `logits, state = model(tokens, state)`.

Step by step, in pieces, alone, in a batch, padded anywhere, reordered or searched: the same answers, and the
same gradients. `conftest.py` lists the models.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid, logits_processors
from seqloom.decoding.strategies import BeamSearch, Sampling
from seqloom.layers.outputs.adaptive_softmax import AdaptiveOutput
from seqloom.protocols import (
    NeuralDecodable,
    Shared,
    State,
    fork,
    next_logits,
    reorder_in_place,
    select_rows,
    target_log_probs,
)
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from tests.laws.conftest import Subject

Rows = Sequence[Sequence[int]]

# Three rows of different lengths, on either side; each row goes on with the tokens in MORE.
INPUTS: Rows = [[5, 3, 4, EOS], [4, EOS], [6, 6, 3, 5, 4, EOS]]
TOKENS: Rows = [[BOS, 3, 5], [BOS, 4, 4, 6, 3, 5], [BOS]]
MORE: Rows = [[3, 6], [5, 5], [4, 3]]

LAYOUTS = ("right", "left", "around")
LIVE = (3, 4, 5, 6)
"""Tokens that may be generated, beside EOS."""
RULES = [forbid([PAD, BOS])]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Only one law looks at gradients; the others are quicker without."""
    with torch.no_grad():
        yield


def padded(rows: Rows, layout: str) -> Tensor:
    """`(rows, steps)`: padding on the right, on the left, or before, inside and after."""
    longest = max(map(len, rows)) + 3 * (layout == "around")
    return torch.tensor([_padded(list(row), longest - len(row), layout) for row in rows])


def _padded(row: list[int], pads: int, layout: str) -> list[int]:
    if layout == "right":
        return row + [PAD] * pads
    if layout == "left":
        return [PAD] * pads + row
    half = (len(row) + 1) // 2
    return [PAD, *row[:half], *[PAD] * (pads - 2), *row[half:], PAD]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def start(subject: Subject, rows: Rows = INPUTS, layout: str = "right") -> State:
    return subject.start(padded(rows, layout))


@cache
def alone(subject: Subject, row: int) -> tuple[Tensor, Tensor]:
    """What a row's tokens and, after them, its MORE give where there is no other row and no padding: `(steps,
    vocabulary)` each."""
    logits, state = subject.model(torch.tensor([TOKENS[row]]), start(subject, [INPUTS[row]]))
    after, _ = subject.model(torch.tensor([MORE[row]]), state)
    return logits[0], after[0]


def in_pieces(subject: Subject, tokens: Tensor, state: State, cuts: Sequence[int]) -> tuple[Tensor, State]:
    """The same call, once for each piece between the cuts."""
    found = []
    for piece in tokens.tensor_split(list(cuts), dim=1):
        logits, state = subject.model(piece, state)
        found.append(logits)
    return torch.cat(found, dim=1), state


# The call


def test_step_by_step_is_all_at_once(subject: Subject) -> None:
    tokens = torch.tensor([[BOS, 4, 4, 6, 3, 5], [BOS, 3, 6, 6, 3, 4], [BOS, 5, EOS, 3, 3, 6]])
    whole, state = subject.model(tokens, start(subject))
    steps, stepped = in_pieces(subject, tokens, start(subject), range(1, 6))
    close(steps, whole)
    close(subject.model(torch.tensor(MORE), stepped)[0], subject.model(torch.tensor(MORE), state)[0])


def test_in_pieces_is_all_at_once(subject: Subject) -> None:
    tokens = padded(TOKENS, "around")  # so some pieces are padding only
    whole, state = subject.model(tokens, start(subject))
    after, _ = subject.model(torch.tensor(MORE), state)
    chance = random.Random(0)
    for _ in range(3):
        cuts = sorted(chance.sample(range(1, tokens.shape[1]), k=chance.randint(1, 4)))
        pieces, state = in_pieces(subject, tokens, start(subject), cuts)
        close(pieces[tokens != PAD], whole[tokens != PAD])
        close(subject.model(torch.tensor(MORE), state)[0], after)


def test_logits_do_not_depend_on_what_comes_later(subject: Subject) -> None:
    tokens = torch.tensor([[BOS, 4, 4, 6, 3, 5]])
    whole, _ = subject.model(tokens, start(subject, INPUTS[:1]))
    for step in range(1, tokens.shape[1]):
        other = tokens.clone()
        other[:, step:] = (tokens[:, step:] - 2) % 4 + 3  # each of 3 to 6 becomes another
        logits, _ = subject.model(other, start(subject, INPUTS[:1]))
        close(logits[:, :step], whole[:, :step])
        assert not torch.allclose(logits[:, step], whole[:, step], rtol=1e-3)


def test_the_two_halves_are_the_call(neural: Subject) -> None:
    assert isinstance(neural.model, NeuralDecodable)
    tokens = torch.tensor(MORE)
    logits, _ = neural.model(tokens, start(neural))
    hidden, _ = neural.model.read(tokens, start(neural))
    close(neural.model.output.logits(hidden), logits)


def test_the_next_logits_are_the_last_of_the_call(subject: Subject) -> None:
    tokens = padded(TOKENS, "left")
    logits, _ = subject.model(tokens, start(subject))
    close(next_logits(subject.model, tokens, start(subject))[0], logits[:, -1])


def test_log_probs_of_targets_are_those_of_the_call(subject: Subject) -> None:
    tokens = padded(TOKENS, "right")
    targets = tokens.roll(-1, dims=1).masked_fill(tokens == PAD, IGNORE)
    targets[targets < EOS] = IGNORE  # what is never predicted
    logits, state = subject.model(tokens, start(subject))
    found, after = target_log_probs(subject.model, tokens, targets, start(subject))
    expected = logits.log_softmax(-1).gather(-1, targets.clamp(min=EOS)[..., None])[..., 0]
    torch.testing.assert_close(
        found, expected.where(targets != IGNORE, 0), rtol=subject.tolerance, atol=subject.tolerance
    )
    close(subject.model(torch.tensor(MORE), after)[0], subject.model(torch.tensor(MORE), state)[0])


# Padding


def test_a_row_in_a_padded_batch_is_that_row_alone(subject: Subject) -> None:
    for layout, source_layout in itertools.product(LAYOUTS, repeat=2):
        tokens = padded(TOKENS, layout)
        logits, state = subject.model(tokens, start(subject, layout=source_layout))
        after, _ = subject.model(torch.tensor(MORE), state)
        for row in range(len(TOKENS)):
            expected, expected_after = alone(subject, row)
            close(logits[row][tokens[row] != PAD], expected)
            close(after[row], expected_after)


def test_gradients_of_a_padded_batch_are_the_sum_over_rows_alone(neural: Subject) -> None:
    rows = [
        gradients(neural, torch.tensor([i]), torch.tensor([t])) for i, t in zip(INPUTS, TOKENS, strict=True)
    ]
    total = [sum(parts[1:], parts[0]) for parts in zip(*rows, strict=True)]
    assert any(gradient.any() for gradient in total)
    for layout in LAYOUTS:
        for actual, expected in zip(
            gradients(neural, padded(INPUTS, layout), padded(TOKENS, layout)), total, strict=True
        ):
            close(actual, expected)


@torch.enable_grad()
def gradients(subject: Subject, inputs: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Of the summed loss of predicting, at each true step, the token itself."""
    hidden, _ = subject.model.read(tokens, subject.start(inputs))
    smoothing = 0.0 if isinstance(subject.model.output, AdaptiveOutput) else 0.1  # which it refuses
    loss = subject.model.output.loss(hidden, tokens.masked_fill(tokens == PAD, IGNORE), smoothing)
    assert loss.count == (tokens != PAD).sum()
    found: tuple[Tensor, ...] = torch.autograd.grad(
        loss.total, list(subject.model.parameters()), materialize_grads=True
    )
    return found


# The state


def shared_parts(state: State) -> list[Any]:
    """The `Shared` parts of a state."""
    if isinstance(state, Shared):
        return [state]
    return [part for inner in state for part in shared_parts(inner)] if isinstance(state, tuple) else []


def row_tensors(state: State) -> list[Tensor]:
    """The tensors of a state that belong to rows."""
    if isinstance(state, Tensor):
        return [state]
    return [part for inner in state for part in row_tensors(inner)] if isinstance(state, tuple) else []


def test_choosing_rows_then_stepping_is_stepping_then_choosing(subject: Subject) -> None:
    again = twice(subject)
    for rows in ([2, 0, 1], [1], [2, 0, 0, 1, 2, 2], [0, 1, 2]):
        chosen = torch.tensor(rows)
        _, state = subject.model(padded(TOKENS, "right"), start(subject))
        few = select_rows(state, chosen)
        assert all(part.shape[0] == len(rows) for part in row_tensors(few))
        for part, same in zip(shared_parts(few), shared_parts(state), strict=True):
            assert part is same
        logits, few = subject.model(torch.tensor(MORE)[chosen], few)
        for row, source in enumerate(rows):
            close(logits[row], alone(subject, source)[1])
        close(subject.model(torch.tensor(MORE)[chosen], few)[0], again[chosen])


def test_moving_rows_in_place_is_choosing_them(subject: Subject) -> None:
    """Rows that were one text up to some place, and rows that never were, moved again and again while the
    state grows."""
    texts = [[BOS, 3, 5, 4], [BOS, 3, 5, 6], [BOS, 3, 6, 4], [BOS, 4, 4, 4]]
    inputs = [INPUTS[0], INPUTS[0], INPUTS[0], INPUTS[2]]
    chance = random.Random(0)
    with torch.inference_mode():
        _, moved = subject.model(torch.tensor(texts), start(subject, inputs))
        _, chosen = subject.model(torch.tensor(texts), start(subject, inputs))
        for rows in ([0, 0, 2, 1, 3], [1, 0, 1, 3], [0, 1, 2, 2], [3, 2, 0], [0, 0, 2], [0, 1]):
            at, next_tokens = torch.tensor(rows), torch.tensor([[chance.choice(LIVE)] for _ in rows])
            logits, moved = subject.model(next_tokens, reorder_in_place(moved, at))
            expected, chosen = subject.model(next_tokens, select_rows(chosen, at))
            close(logits, expected)


def twice(subject: Subject) -> Tensor:
    """Logits of MORE the second time, without any choosing of rows."""
    _, state = subject.model(padded(TOKENS, "right"), start(subject))
    _, state = subject.model(torch.tensor(MORE), state)
    logits: Tensor = subject.model(torch.tensor(MORE), state)[0]
    return logits


def test_a_fork_goes_on_by_itself(subject: Subject) -> None:
    _, state = subject.model(padded(TOKENS, "left"), start(subject))
    twin = fork(state)
    for mine, its in zip(row_tensors(state), row_tensors(twin), strict=True):
        assert mine.data_ptr() != its.data_ptr()
        assert torch.equal(mine, its)
    subject.model(torch.tensor([[6, 6], [3, 3], [5, 5]]), state)
    logits, _ = subject.model(torch.tensor(MORE), twin)
    for row in range(len(MORE)):
        close(logits[row], alone(subject, row)[1])


# Decoding


def decode(
    subject: Subject, inputs: Rows, prompts: Rows, limits: Sequence[int], **beam: Any
) -> list[list[Hypothesis]]:
    return generate(
        subject.model,
        start(subject, inputs),
        prompts,
        limits,
        GenerationOptions(strategy=BeamSearch(**beam), eos=EOS, pad=PAD, processors=RULES),
    )


def greedy_by_hand(
    subject: Subject, inputs: Sequence[int], prompt: Sequence[int], limit: int
) -> tuple[list[int], bool, float]:
    """Reads everything anew at every step: (tokens, whether it ended, Σ log p)."""
    tokens, total = list(prompt), 0.0
    for _ in range(limit):
        logits, _ = subject.model(torch.tensor([tokens]), start(subject, [inputs]))
        log_probs = logits[0, -1].log_softmax(-1)
        best = max((EOS, *LIVE), key=lambda token: float(log_probs[token]))
        total += float(log_probs[best])
        if best == EOS:
            return tokens[len(prompt) :], True, total
        tokens.append(best)
    return tokens[len(prompt) :], False, total


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


def every_hypothesis(subject: Subject, inputs: Sequence[int], limit: int) -> dict[tuple[int, ...], float]:
    """All outputs of at most `limit` tokens, EOS among them where it was reached, and Σ log p of each."""
    live = list(itertools.product(LIVE, repeat=limit))
    state = select_rows(start(subject, [inputs]), torch.zeros(len(live), dtype=torch.long))
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
            subject, inputs, [[BOS]] * 2, [limit] * 2, width=100, n_best=n_best, length_penalty=length_penalty
        )
        for hypotheses, space in zip(found, spaces, strict=True):
            scored = sorted(
                ((total / len(tokens) ** length_penalty, tokens) for tokens, total in space.items()),
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
            start(subject, INPUTS),
            TOKENS,
            limits,
            GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=rules),
        )
        for prompt, hypotheses in zip(TOKENS, found, strict=True):
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
    limits = [5, 8, 2]
    beam = {"width": width, "n_best": width}
    together = decode(subject, INPUTS, TOKENS, limits, **beam)
    for row, hypotheses in enumerate(together):
        (expected,) = decode(subject, [INPUTS[row]], [TOKENS[row]], [limits[row]], **beam)
        assert [(h.tokens, h.finished) for h in hypotheses] == [(h.tokens, h.finished) for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-5)
        assert len(hypotheses) == width
        for h in hypotheses:
            assert h.finished or len(h.tokens) == limits[row]
            assert len(h.tokens) + h.finished <= limits[row]
            assert {PAD, BOS, EOS}.isdisjoint(h.tokens)
