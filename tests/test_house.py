"""The package stays easy to find one's way in: names, folders, functions and lines have bounds."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "seqloom"
VAGUE_NAMES = {"base", "utils", "common", "helpers", "factory"}
LONG_FUNCTIONS = 3
"""Functions of more than 60 lines; the goal is 0."""
FUNCTIONS_OF_MANY_ARGUMENTS = 2
"""Functions of more than 8 arguments; the goal is 0."""
WIDE_LINES = 40
"""Lines of more than 110 columns; the goal is 0."""
DYNAMIC_ATTRIBUTES = 32
"""Calls of hasattr and getattr; the goal is 15."""


@cache
def modules() -> dict[str, str]:
    """Path within the package -> source text."""
    return {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every module, with the path of its module."""
    return [(path, node) for path, text in modules().items() for node in ast.walk(ast.parse(text))]


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Place and definition of each function."""
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef):
            yield f"{path}:{node.lineno} {node.name}", node


def number_of_arguments(function: ast.FunctionDef) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_two_classes_have_the_same_name() -> None:
    classes = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


def test_no_folder_has_more_than_20_modules() -> None:
    folders = Counter(str(Path(path).parent) for path in modules() if not path.endswith("__init__.py"))
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


def test_every_module_has_a_name_that_says_what_is_in_it() -> None:
    assert [path for path in modules() if VAGUE_NAMES & {*Path(path).with_suffix("").parts}] == []


def test_functions_are_short() -> None:
    long = [place for place, one in functions() if (one.end_lineno or one.lineno) - one.lineno >= 60]
    assert len(long) <= LONG_FUNCTIONS, long


def test_functions_have_few_arguments() -> None:
    many = [place for place, function in functions() if number_of_arguments(function) > 8]
    assert len(many) <= FUNCTIONS_OF_MANY_ARGUMENTS, many


def test_lines_are_at_most_110_columns_wide() -> None:
    wide = []
    for path, text in modules().items():
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 110:
                wide.append(f"{path}:{number}")
    assert len(wide) <= WIDE_LINES, wide


def test_few_attributes_are_asked_for_by_a_string() -> None:
    calls = []
    for path, node in nodes():
        match node:
            case ast.Call(func=ast.Name(id="hasattr" | "getattr")):
                calls.append(f"{path}:{node.lineno}")
    assert len(calls) <= DYNAMIC_ATTRIBUTES, calls


@pytest.mark.parametrize(
    ("definition", "count"), [("def f(self, a, /, b, *, c): ...", 3), ("def f(a, *b, **c): ...", 1)]
)
def test_self_and_variadic_arguments_do_not_count(definition: str, count: int) -> None:
    (function,) = ast.parse(definition).body
    assert isinstance(function, ast.FunctionDef)
    assert number_of_arguments(function) == count
