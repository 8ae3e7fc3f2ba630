"""The commands that README.md and the pages of docs/ show, as words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
HISTORY = {"architecture.md", "changelog.md", "results.md"}
"""Pages that are generated, or say what was measured in the past."""
PAGES = [ROOT / "README.md"] + [
    path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in HISTORY
]
PLACEHOLDERS = {
    "TASK": "translation",
    "DATA": "train.tsv",
    "NAMES": "book.txt",
    "TEXTS": "test.txt",
    "NAME": "seq2seq",
    "FILE": "test.txt",
    "FILE.py": "mgu.py",
    "IMAGES": "images-idx3-ubyte",
    "LABELS": "labels-idx1-ubyte",
    "VERB": "train",
}
"""Words in capitals that stand for something; others are a folder of that name."""
ENDS = {"|", ">", "<", ";", "&&", ">>", "&"}


class Shown(NamedTuple):
    """A command, and where it stands."""

    page: str
    line: int
    words: tuple[str, ...]
    inline: bool = False
    """Within a sentence, where it may be no more than the beginning of one."""

    @property
    def verb(self) -> str:
        return self.words[0] if self.words else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {shlex.join(self.words)}"


def shown_commands() -> list[Shown]:
    return [command for page in PAGES for command in _of_page(page)]


def _of_page(page: Path) -> Iterator[Shown]:
    fenced, variables = False, dict[str, str]()
    for number, line in _whole_lines(page.read_text("utf-8")):
        if line.lstrip().startswith("```"):
            fenced, variables = not fenced, {}
            continue
        if fenced or line.startswith("    "):
            if match := re.match(r'\s*(\w+)="(.*)"', line):
                variables[match[1]] = match[2]
            if match := re.match(r"\s*for (\w+) in (\w+)", line):
                variables[match[1]] = match[2]
            for name in sorted(variables, key=len, reverse=True):
                line = line.replace(f"${name}", variables[name])
            if match := re.search(r"(?:^|[|;&] *|\$ |\s)(seqloom [a-z-].*)", line):
                yield from _shown(page, number, match[1], inline=False)
        else:
            for text in re.findall(r"`(seqloom [a-z-][^`]*)`", line):
                yield from _shown(page, number, text, inline=True)


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends in a backslash goes on with the next."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield first, begun + line
        begun, first = "", 0


def _shown(page: Path, number: int, text: str, inline: bool) -> Iterator[Shown]:
    text = text.replace("\\|", "|").split("  (")[0]
    text = re.split(r"\s{3,}[a-z]", text)[0]  # what follows in another column explains it
    words = list[str]()
    for word in shlex.split(text, comments=True)[1:]:
        if word in ENDS:
            break
        if word == "..." and words and words[-1] == "--text":
            words.append("a text")
        elif word != "...":
            words.append(_filled(word))
    yield Shown(page.name, number, tuple(words), inline)


def _filled(word: str) -> str:
    """A placeholder as a word that it may stand for."""
    word = word.replace("key=value", "train.seed=1")
    if re.fullmatch(r"[A-Z][A-Z_]*(\.py)?", word):
        return PLACEHOLDERS.get(word, word)
    return word
