"""A few draws of each family; `random_generation.py` makes as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.interop.random_configs import Illegal
from tests.interop.random_generation import FAMILIES, outcome

pytestmark = pytest.mark.usefixtures("one_thread")
DRAWS = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_random_settings_give_their_texts_or_are_named(family: str) -> None:
    kinds: Counter[str] = Counter()
    seed = 5000
    while kinds.total() < DRAWS:
        seed += 1
        try:
            kinds[outcome(family, seed).kind] += 1
        except Illegal:
            continue
    assert kinds["equal"]
