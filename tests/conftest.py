"""What tests of all folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("seqloom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqloom")
"""No timing decides a test."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models wait for a second thread more than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
