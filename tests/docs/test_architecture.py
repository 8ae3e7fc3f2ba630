"""docs/architecture.md agrees with the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.architecture import PACKAGE, PAGE, first_sentence, updated_page


def test_the_generated_parts_of_the_page_are_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == updated_page(), (
        "run: python -m scripts.architecture --write"
    )


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert first_sentence(path)
