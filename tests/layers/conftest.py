from __future__ import annotations

import pytest
import torch

from seqloom.layers.recurrent import compiled_loops, compiled_products
from seqloom.native.build import SOURCES, kinds_here, library_of_kind
from seqloom.native.library import load


@pytest.fixture(params=kinds_here())
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library for each kind of processor that this one can be."""
    if request.param == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor has no AVX-512")
    found = load(library_of_kind(SOURCES, request.param))
    assert found is not None
    for module in (compiled_loops, compiled_products):
        monkeypatch.setattr(module, "library", lambda: found)
    return str(request.param)
