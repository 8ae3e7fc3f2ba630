"""A few draws of each family; `random_configs.py` makes as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.interop.random_configs import Illegal, outcome

from seqloom.interop.families import FAMILIES

pytestmark = pytest.mark.usefixtures("one_thread")
DRAWS = 4


@pytest.mark.parametrize("hub_type", FAMILIES)
def test_a_random_configuration_has_their_logits_or_is_refused_by_a_key(hub_type: str) -> None:
    kinds: Counter[str] = Counter()
    seed = 1000
    while kinds.total() < DRAWS:
        seed += 1
        try:
            kinds[outcome(hub_type, seed).kind] += 1
        except Illegal:
            continue
    assert kinds["equal"]
