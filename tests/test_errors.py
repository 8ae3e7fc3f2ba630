"""Messages count in plain English."""

from __future__ import annotations

import pytest

from seqloom.errors import counted


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (0, ("document",), "0 documents"),
        (1, ("document",), "1 document"),
        (2, ("document",), "2 documents"),
        (1, ("text is", "texts are"), "1 text is"),
        (1234, ("text is", "texts are"), "1,234 texts are"),
    ],
)
def test_what_is_counted_is_in_the_singular_or_the_plural(
    number: int, words: tuple[str, ...], expected: str
) -> None:
    assert counted(number, *words) == expected
