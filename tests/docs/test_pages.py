"""The pages of the documentation name files that exist and link to places that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from tests.conftest import QUICK

import seqloom
from seqloom.version import VERSION

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "seqloom"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HISTORY = {"CHANGELOG.md"}
"""Pages that name files of the past."""
NAMED_FILE = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|h|cpp))(?:::\w+)?`")
NAMED_FOLDER = re.compile(r"`((?:src|tests|docs|benchmarks|examples|scripts)/[\w/]*)`")
NAMED_MODULE = re.compile(
    r"\b(?:from|import|python -m|automodule::) (seqloom(?:\.\w+)+|benchmarks\.\w+|scripts\.\w+)"
)
IMPORT = re.compile(r"^(from (?:seqloom|benchmarks)[\w.]* import [\w, ]+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def modules() -> dict[str, int]:
    """The name of each source file -> how many have it."""
    counts: dict[str, int] = {}
    for path in [
        *PACKAGE.rglob("*.*"),
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
    ]:
        counts[path.name] = counts.get(path.name, 0) + 1
    return counts


def named(pattern: re.Pattern[str], page: Path) -> list[str]:
    """What a page names; the lines that are generated from docstrings are left out."""
    text = page.read_text(encoding="utf-8").partition("<!-- begin modules -->")[0]
    return pattern.findall(text)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name
)
def test_files_that_a_page_names_exist(page: Path, modules: dict[str, int]) -> None:
    for name in [*named(NAMED_FILE, page), *named(NAMED_FOLDER, page)]:
        exists = any((place / name).exists() for place in (ROOT, PACKAGE, page.parent))
        assert exists or ("/" not in name and name in modules), (
            f"{page.name} names {name}, which does not exist"
        )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name
)
def test_modules_that_a_page_imports_exist(page: Path) -> None:
    for name in named(NAMED_MODULE, page):
        root = ROOT if not name.startswith("seqloom") else ROOT / "src"
        place = root / name.replace(".", "/")
        exists = place.is_dir() or place.with_suffix(".py").is_file()
        assert exists, f"{page.name} imports {name}, which does not exist"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name
)
def test_names_that_a_page_imports_exist(page: Path) -> None:
    for line in named(IMPORT, page):
        module, _, names = line.removeprefix("from ").partition(" import ")
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    for link in named(LINK, page):
        if not link.startswith(("http://", "https://", "#")):
            target = page.parent / link.partition("#")[0]
            assert target.exists(), f"{page.name} links to {link}, which does not exist"


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", QUICK)
def test_the_files_of_the_quick_tests_exist(name: str) -> None:
    assert (ROOT / "tests" / name).exists()


def test_each_term_of_the_glossary_says_where_it_lives() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.split(r"^- ", page, flags=re.MULTILINE)[1:]
    assert len(terms) > 50
    for term in terms:
        assert re.fullmatch(r"\*\*[^*]+\*\*: .+", term.split("\n\n")[0].strip(), re.DOTALL), term
        assert NAMED_FILE.search(term), f"no file is named: {term}"


def test_the_reference_lists_all_public_names() -> None:
    page = (ROOT / "docs" / "api" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"auto\w+:: seqloom\.(\w+)", page)
    assert sorted([*listed, "__version__"]) == sorted(seqloom.__all__)
