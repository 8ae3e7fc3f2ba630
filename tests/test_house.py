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
DYNAMIC_ATTRIBUTES = 15
"""The most calls of hasattr and getattr."""
TYPE_CHECKS = 150
"""The most calls of isinstance."""


@cache
def modules() -> dict[str, str]:
    """Path within the package -> source text."""
    return {
        str(path.relative_to(SOURCE)): path.read_text("utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


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


def number_of_lines(function: ast.FunctionDef) -> int:
    """Those of the body, after the docstring."""
    last = function.end_lineno or function.lineno
    if ast.get_docstring(function) is None:
        return last - function.lineno
    return last - (function.body[0].end_lineno or function.lineno)


def test_no_two_classes_have_the_same_name() -> None:
    classes = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


def test_no_folder_has_more_than_20_modules() -> None:
    folders = Counter(
        str(Path(path).parent) for path in modules() if not path.endswith("__init__.py")
    )
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


def test_every_module_has_a_name_that_says_what_is_in_it() -> None:
    assert [path for path in modules() if VAGUE_NAMES & {*Path(path).with_suffix("").parts}] == []


def test_functions_are_short() -> None:
    long = [place for place, function in functions() if number_of_lines(function) > 60]
    assert long == []


def test_functions_have_few_arguments() -> None:
    many = [place for place, function in functions() if number_of_arguments(function) > 8]
    assert many == []


def test_lines_are_at_most_110_columns_wide() -> None:
    wide = []
    for path, text in modules().items():
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 110:
                wide.append(f"{path}:{number}")
    assert wide == []


def calls_of(*names: str) -> list[str]:
    """The places where one of these functions is called."""
    calls = []
    for path, node in nodes():
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                calls.append(f"{path}:{node.lineno}")
    return calls


def test_few_attributes_are_asked_for_by_a_string() -> None:
    calls = calls_of("hasattr", "getattr")
    assert len(calls) <= DYNAMIC_ATTRIBUTES, calls


def test_few_values_are_asked_what_they_are() -> None:
    calls = calls_of("isinstance")
    assert len(calls) <= TYPE_CHECKS, calls


@pytest.mark.parametrize(
    ("definition", "count"), [("def f(self, a, /, b, *, c): ...", 3), ("def f(a, *b, **c): ...", 1)]
)
def test_self_and_variadic_arguments_do_not_count(definition: str, count: int) -> None:
    (function,) = ast.parse(definition).body
    assert isinstance(function, ast.FunctionDef)
    assert number_of_arguments(function) == count
