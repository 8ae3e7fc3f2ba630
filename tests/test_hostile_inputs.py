"""A few inputs of the campaign of benchmarks/hostile_inputs.py; docs/results.md has the figures of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import hostile_inputs


def test_mutated_inputs_are_read_or_refused_in_one_short_line(tmp_path: Path) -> None:
    found = hostile_inputs.inputs(600, 7, tmp_path)
    assert found.keys() == {"read", "refused"}


def test_hostile_folders_are_read_or_refused_in_one_short_line(tmp_path: Path) -> None:
    found = hostile_inputs.hostile_folders(40, 7, tmp_path)
    assert found.keys() == {"read", "refused"}


@pytest.mark.parametrize("name", hostile_inputs.SEEDS)
def test_what_is_mutated_is_right_before(name: str, tmp_path: Path) -> None:
    content, read = hostile_inputs.SEEDS[name]
    (tmp_path / name).write_bytes(content)
    assert hostile_inputs.outcome(lambda: read(tmp_path / name)) == "read"


def test_an_internal_error_and_a_long_message_are_found() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert hostile_inputs.outcome(fail).startswith("internal: KeyError")
