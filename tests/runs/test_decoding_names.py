"""Names of strategies: what they set, and what is none."""

from __future__ import annotations

import pytest

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError
from seqloom.runs.decoding_names import strategy_settings
from seqloom.workflows.analysis.degeneration import STRATEGIES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("greedy", DecodeConfig(strategy="beam", beam=1, seed=3)),
        ("beam=20", DecodeConfig(strategy="beam", beam=20, seed=3)),
        ("sampling", DecodeConfig(strategy="sample", seed=3)),
        ("top_k=40", DecodeConfig(strategy="sample", top_k=40, seed=3)),
        ("top-p=0.95", DecodeConfig(strategy="sample", top_p=0.95, seed=3)),
        ("sampling+no_repeat_ngram=3", DecodeConfig(strategy="sample", no_repeat_ngram=3, seed=3)),
        (
            "temperature=0.7 + top_k=5",
            DecodeConfig(strategy="sample", temperature=0.7, top_k=5, seed=3),
        ),
        (
            "repetition_penalty=1.2",
            DecodeConfig(strategy="beam", beam=1, repetition_penalty=1.2, seed=3),
        ),
        (
            "beam=4+length_penalty=0+min_length=2",
            DecodeConfig(strategy="beam", beam=4, length_penalty=0, min_length=2, seed=3),
        ),
    ],
)
def test_a_name_says_all_settings(name: str, expected: DecodeConfig) -> None:
    assert strategy_settings(name, 3) == expected


def test_the_strategies_that_are_shown_unless_asked_otherwise_are_all_different() -> None:
    assert len({strategy_settings(name, 0) for name in STRATEGIES}) == len(STRATEGIES) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "",
            "must be greedy, sampling, a setting such as beam=5, .* but is ''; settings are beam,",
        ),
        ("nucleus", "but is 'nucleus'"),
        ("seed=3", "but is 'seed=3'"),
        ("n_best=3", "but is"),
        ("beam", "but is 'beam'"),
        ("greedy=1", "but is"),
        ("beam=-1", "decode.beam must be greater than or equal to 1, but is -1"),
        ("beam=0", "decode.beam must be greater than or equal to 1, but is 0"),
        ("top_p=2", "decode.top_p must be less than or equal to 1"),
        ("top_k=all", "decode.top_k must be a valid integer"),
        ("beam=5+beam=6", "must say beam once, but 'beam=5.beam=6' says it twice"),
        ("greedy+beam=6", "must say beam once"),
        ("greedy+sampling", "must say strategy once"),
        ("beam=5+top_k=3", "must search or sample, but .* does both"),
        ("greedy+temperature=2", "must search or sample"),
        ("sampling+length_penalty=0", "must search or sample"),
    ],
)
def test_what_is_no_strategy_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        strategy_settings(name, 0)
