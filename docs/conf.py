"""Sphinx configuration: `make docs` builds the pages and the API reference offline into docs/_build/html."""

from __future__ import annotations

import ast
import re
from typing import Any

from seqloom.version import VERSION

project = "seqloom"
author = "The seqloom authors"
copyright = author
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"seqloom {VERSION}"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

highlight_language = "none"
smartquotes = False

CODE = re.compile(r"`+([^`]+)`+")
TERM = re.compile(r"[A-Z][\w -]{0,40}")


def escaped(text: str) -> str:
    """A line of prose in which only `code` means something."""
    parts = CODE.split(text)
    for index, part in enumerate(parts):
        is_code = index % 2 == 1
        parts[index] = (
            f"\\ ``{part.strip()}``\\ " if is_code else re.sub(r"([\\*_|`])", r"\\\1", part)
        )
    return "".join(parts)


def is_python(paragraph: str) -> bool:
    """Whether a paragraph is an example in Python."""
    try:
        statements = ast.parse(paragraph).body
    except SyntaxError:
        return False
    kinds = (ast.Assign, ast.For, ast.With, ast.Import, ast.ImportFrom)
    return bool(statements) and all(
        isinstance(statement, kinds) or is_call(statement) for statement in statements
    )


def is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def as_restructured_text(lines: list[str]) -> list[str]:
    """Our docstrings are plain text with `code` in backticks. A paragraph with indented lines is an
    equation or
    an example, shown as it is; under a short title it is prose."""
    result: list[str] = []
    for paragraph in "\n".join(lines).strip("\n").split("\n\n"):
        text = paragraph.split("\n")
        indented = [line.startswith(" ") for line in text]
        if TERM.fullmatch(text[0]) and all(indented[1:]) and len(text) > 1:
            result += [text[0], "    " + escaped(" ".join(line.strip() for line in text[1:])), ""]
        elif any(indented) or is_python(paragraph):
            result += ["::", "", *("    " + line for line in text), ""]
        else:
            result += [escaped(" ".join(text)), ""]
    return result


def convert_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    if lines and lines[0].startswith(
        "Alias for field number"
    ):  # what Python says of a NamedTuple's field
        lines.clear()
    lines[:] = as_restructured_text(lines)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", convert_docstring)
