"""Texts longer than the context of a model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.toys import BOS, EOS, PAD, Chain, Remembering

from seqloom.decoding.generate import GenerationOptions, finish, generate, steps
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.long_context import generate_windows, window_start
from seqloom.decoding.strategies import BeamSearch, Sampling, Strategy

RULES = [forbid([PAD, BOS])]


def long(
    model: Remembering | Chain, prompts: Sequence[Sequence[int]], limit: int, strategy: Strategy
) -> list[list[Hypothesis]]:
    made = generate_windows(
        model,
        prompts,
        limit,
        GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=RULES),
        context=model.context,
    )
    return finish(made)


@given(st.integers(0, 200), st.integers(1, 40))
def test_a_window_is_never_longer_than_the_context_and_begins_with_half_of_it(
    length: int, context: int
) -> None:
    start = window_start(length, context)
    assert length - start <= context
    if length <= context:
        assert start == 0
    elif window_start(length - 1, context) != start:  # it has just slid
        assert length - start == max(1, context // 2)
        assert length - 1 - window_start(length - 1, context) == context
    else:
        assert length - start > max(1, context // 2)
    assert window_start(length, None) == 0


def test_each_token_comes_from_its_window_alone() -> None:
    """A text is what a model with no memory gives, if it is shown the window before each token."""
    for context in (1, 2, 5, 8):
        model = Remembering(context=context)
        ((found,),) = long(model, [[BOS, 7]], 40, BeamSearch())
        text = [BOS, 7, *found.tokens, *[EOS] * found.finished]
        assert len(text) > 3 * context
        assert model.begun == len({window_start(length, context) for length in range(2, len(text))})
        for length in range(2, len(text)):
            window = text[window_start(length, context) : length]
            ((one,),) = generate(
                model,
                None,
                [window],
                [1],
                GenerationOptions(strategy=BeamSearch(), eos=EOS, pad=PAD, processors=RULES),
            )
            assert (one.tokens or [EOS]) == [text[length]]


@settings(deadline=None, max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(3, 20), max_size=20), min_size=1, max_size=4),
    context=st.integers(1, 9),
    limit=st.integers(1, 30),
    samples=st.integers(1, 3),
)
def test_windows_do_not_change_what_seeds_promise(
    prompts: list[list[int]], context: int, limit: int, samples: int
) -> None:
    """Alone, in a batch, with more samples: the same texts; each ends in time."""
    model, prompts, strategy = (
        Remembering(context=context),
        [[BOS, *prompt] for prompt in prompts],
        Sampling(seed=9, samples=samples),
    )
    found = long(model, prompts, limit, strategy)
    assert found == [long(model, [prompt], limit, strategy)[0] for prompt in prompts]
    assert [texts[:1] for texts in found] == long(model, prompts, limit, strategy.single())
    for texts in found:
        assert [h.sample for h in texts] == list(range(samples))
        assert all(
            len(h.tokens) + 1 <= limit if h.finished else len(h.tokens) == limit for h in texts
        )


@settings(deadline=None, max_examples=40)
@given(
    prompt=st.lists(st.integers(3, 20), max_size=20),
    context=st.integers(1, 9),
    first=st.integers(1, 20),
)
def test_going_on_with_a_text_is_never_having_stopped(
    prompt: list[int], context: int, first: int
) -> None:
    model = Remembering(context=context)
    ((whole,),) = long(model, [[BOS, *prompt]], 30, BeamSearch())
    ((begin,),) = long(model, [[BOS, *prompt]], first, BeamSearch())
    if begin.finished:
        assert begin == whole
    else:
        ((rest,),) = long(model, [[BOS, *prompt, *begin.tokens]], 30 - first, BeamSearch())
        assert begin.tokens + rest.tokens == whole.tokens
        assert begin.log_probability + rest.log_probability == pytest.approx(whole.log_probability)
        assert rest.finished == whole.finished


def test_random_numbers_go_on_from_window_to_window() -> None:
    """A chain needs the last token only, so its texts are the same with and without windows."""
    even = {i: [0, 0, 0.02, *[0.98 / 20] * 20] for i in [BOS, *range(3, 23)]}
    strategy = Sampling(seed=4, samples=5)
    texts = [
        long(Chain(even, context), [[BOS, 3], [BOS]], 60, strategy) for context in (None, 1, 2, 7)
    ]
    assert [[h.tokens for found in text for h in found] for text in texts] == [
        [h.tokens for found in texts[0] for h in found]
    ] * 4
    assert max(len(h.tokens) for found in texts[0] for h in found) > 40


def test_a_text_of_a_diverse_beam_goes_on_in_its_group() -> None:
    """After the first window each text is a beam of its own, as wide as its group."""
    model, prompts = Remembering(context=6), [[BOS, 4], [BOS, 9, 5]]
    beam = BeamSearch(width=6, n_best=6, groups=3, diversity=2.0)
    for prompt, texts in zip(prompts, long(model, prompts, 20, beam), strict=True):
        first = finish(
            steps(
                model,
                None,
                [prompt],
                [7 - len(prompt)],
                GenerationOptions(strategy=beam, eos=EOS, pad=PAD, processors=RULES),
            )
        )[0]
        for h in first:
            if h.finished:
                assert h in texts
                continue
            rest = long(model, [[*prompt, *h.tokens]], 20 - len(h.tokens), BeamSearch(width=2))[0][
                0
            ]
            (whole,) = (text for text in texts if text.tokens[: len(h.tokens)] == h.tokens)
            assert whole.tokens == [*h.tokens, *rest.tokens]
            assert whole.sample == h.sample


def test_what_fits_is_one_window() -> None:
    model, prompts = Remembering(context=40), [[BOS], [BOS, 4, 5]]
    for strategy in (Sampling(seed=1, samples=3), BeamSearch(width=4, n_best=3)):
        expected = generate(
            model,
            None,
            prompts,
            [20, 20],
            GenerationOptions(strategy=strategy, eos=EOS, pad=PAD, processors=RULES),
        )
        found = long(model, prompts, 20, strategy)
        assert [[h.tokens for h in texts] for texts in found] == [
            [h.tokens for h in texts] for texts in expected
        ]
        assert [[h.score for h in texts] for texts in found] == [
            [pytest.approx(h.score) for h in texts] for texts in expected
        ]


def test_the_score_of_a_long_text_is_that_of_all_its_tokens() -> None:
    for strategy in (BeamSearch(width=3, n_best=2, length_penalty=0.7), Sampling(samples=2)):
        (texts,) = long(Remembering(context=6), [[BOS]], 25, strategy)
        assert len(texts) == 2
        for h in texts:
            assert h.score == pytest.approx(
                strategy.score(h.log_probability, len(h.tokens) + h.finished)
            )
        if isinstance(strategy, BeamSearch):
            assert texts[0].score >= texts[1].score


def test_no_prompts_have_no_texts() -> None:
    assert long(Remembering(context=6), [], 25, BeamSearch()) == []
