"""Error rates and their intervals, against plain definitions and against sacreBLEU."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.evaluation.text_metrics import bleu
from seqloom.evaluation.word_errors import METRICS, difference_interval, edit_distances

Words = list[str]
words = st.lists(st.sampled_from("abc"), max_size=7)


def plain(one: Words, other: Words) -> int:
    """Levenshtein's distance as it is defined."""

    @functools.cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        )

    return distance(len(one), len(other))


@given(words, st.lists(words, min_size=1, max_size=5))
def test_distances_are_levenshtein_s(reference: Words, hypotheses: list[Words]) -> None:
    assert edit_distances(reference, hypotheses).tolist() == [
        plain(reference, one) for one in hypotheses
    ]


def test_words_and_characters_by_hand() -> None:
    """`grey tape` for `great ape`: both words wrong; a character replaced (y), one put in (t), and the blank
    moved."""
    counts = METRICS["wer"].statistics(
        "a great ape", ["a grey tape", "great ape", "a great ape", ""]
    )
    assert counts.tolist() == [[2, 3], [1, 3], [0, 3], [3, 3]]
    assert float(METRICS["wer"].value(counts.sum(axis=0))) == pytest.approx(100 * 6 / 12)
    assert METRICS["cer"].statistics("abcd", ["abd", "abxxcd", ""]).tolist() == [
        [1, 4],
        [2, 4],
        [4, 4],
    ]
    assert METRICS["exact_match"].statistics("a b", ["a b", "a  b"]).tolist() == [[1, 1], [0, 1]]


TEXTS = st.lists(
    st.sampled_from(["the", "cat", "sat", "on", "mat", ",", "it's", "."]), max_size=9
).map(" ".join)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_bleu_of_sums_is_that_of_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = [list(side) for side in zip(*pairs, strict=True)]
    counts = np.concatenate(
        [METRICS["bleu"].statistics(reference, [one]) for one, reference in pairs]
    )
    assert float(METRICS["bleu"].value(counts.sum(axis=0))) == pytest.approx(
        bleu(hypotheses, references).value, abs=1e-9
    )


def test_sums_of_many_corpora_at_once_and_what_is_better() -> None:
    for metric in METRICS.values():
        sums = np.stack(
            [
                metric.statistics(
                    "the cat sat on the mat", ["the cat on a mat", "the cat sat on the mat"]
                )
            ]
            * 3
        )
        assert metric.value(sums).shape == (3, 2)
        assert metric.value(sums)[0, 1] == (100 if metric.higher_is_better else 0)
        assert metric.cost(sums)[0, 1] < metric.cost(sums)[0, 0]


def test_an_interval_holds_the_truth_in_95_of_100_corpora() -> None:
    generator = np.random.default_rng(1)
    held = 0
    for corpus in range(60):
        lengths = generator.integers(5, 20, size=120)
        hard = generator.uniform(0.2, 0.8, size=120)  # of both systems alike
        before, after = generator.binomial(lengths, hard), generator.binomial(lengths, hard - 0.1)
        low, high = difference_interval(
            METRICS["wer"],
            np.stack([before, lengths], 1),
            np.stack([after, lengths], 1),
            seed=corpus,
        )
        held += low <= -10 <= high
    assert 52 <= held <= 60  # 57 and some three standard deviations


def test_the_same_system_differs_by_nothing() -> None:
    counts = np.array([[1, 4], [2, 4], [0, 0]])
    assert difference_interval(METRICS["wer"], counts, counts) == (0, 0)


def test_resamples_of_empty_references_only_do_not_count() -> None:
    """Two texts, of which one has no reference: a quarter of the resamples has no rate, the others have 0 or
    1 insertions less."""
    before, after = np.array([[2, 0], [1, 4]]), np.array([[1, 0], [1, 4]])
    assert difference_interval(METRICS["wer"], before, after) == (-25, 0)
    nothing = np.array([[2, 0]])
    assert np.isnan(difference_interval(METRICS["wer"], nothing, nothing)).all()
