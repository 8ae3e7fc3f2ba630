"""Writes the generated parts of docs/architecture.md: import ranks, one line for each folder and file.

    python -m scripts.architecture            # print the page as it should be
    python -m scripts.architecture --write    # update docs/architecture.md

The lines are the first sentence of each module's docstring and the layers of import-linter in pyproject.toml,
so the page cannot disagree with the code. `tests/docs/test_architecture.py` checks that it is up to date.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "seqloom"
PAGE = ROOT / "docs" / "architecture.md"
WIDTH = 110
SENTENCE_END = re.compile(r"(?<!et al)[.!?](?=\s+[A-Z`])")


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line and without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0].rstrip(".:")


def list_item(name: str, description: str, indent: int = 0) -> str:
    """A line of a Markdown list, wrapped."""
    margin = " " * indent
    return textwrap.fill(
        f"- `{name}`: {description}",
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def folders() -> list[Path]:
    """The folders of the package that hold modules, parents first, in alphabetical order."""
    return sorted({path.parent for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE})


def module_lines() -> Iterator[str]:
    """One line for each folder, then for each folder one line a module."""
    yield "### Folders"
    yield ""
    for folder in folders():
        name = folder.relative_to(PACKAGE).as_posix()
        yield list_item(name + "/", first_sentence(folder / "__init__.py"), 2 * name.count("/"))
    for folder in [PACKAGE, *folders()]:
        modules = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__"))
        if not modules:
            continue
        yield ""
        yield f"### `{folder.relative_to(PACKAGE.parent).as_posix()}/`"
        yield ""
        for path in modules:
            yield list_item(path.name, first_sentence(path))


def rank_lines() -> Iterator[str]:
    """The layers of import-linter as a table, the lowest first."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    yield "| rank | modules | among themselves |"
    yield "| --- | --- | --- |"
    for rank, layer in enumerate(reversed(layers)):
        names = [name.strip().removeprefix("seqloom.") for name in re.split("[|:]", layer)]
        among = "may import each other" if ":" in layer else "do not import each other"
        yield f"| {rank} | {', '.join(names)} | {among if len(names) > 1 else ''} |"


def with_section(page: str, name: str, lines: Iterator[str]) -> str:
    """The page with the text between `<!-- begin NAME -->` and `<!-- end NAME -->` replaced."""
    before, begin, rest = page.partition(f"<!-- begin {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not begin or not end:
        raise SystemExit(
            f"{PAGE} must have the markers <!-- begin {name} --> and <!-- end {name} -->"
        )
    return before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after


def updated_page() -> str:
    """docs/architecture.md with its generated sections made from the code as it is now."""
    page = PAGE.read_text(encoding="utf-8")
    page = with_section(page, "ranks", rank_lines())
    return with_section(page, "modules", module_lines())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="update docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(updated_page(), encoding="utf-8")
    else:
        print(updated_page(), end="")


if __name__ == "__main__":
    main()
