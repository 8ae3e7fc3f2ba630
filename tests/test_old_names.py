"""Names that modules had before stay importable for one release."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("seqloom.decoding.rules", "seqloom.decoding.logits_processors", "top_p"),
        ("seqloom.text.hub_tokenizer", "seqloom.text.hub.tokenizer", "read_hub_tokenizer"),
    ],
)
def test_an_old_name_gives_the_same_function(old: str, new: str, name: str) -> None:
    assert vars(importlib.import_module(old))[name] is vars(importlib.import_module(new))[name]
