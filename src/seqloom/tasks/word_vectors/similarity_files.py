"""Files that measure word vectors: pairs of words with how similar people find them, and analogies.

tiger   cat   7.35              a pair on each line; tabs, blanks or commas between
: capital-common-countries      a section of analogies, as in questions-words.txt of word2vec,
Athens Greece Bern Switzerland  then four words on each line
"""

from __future__ import annotations

import math
from typing import NamedTuple

from seqloom.config import DataConfig
from seqloom.errors import DataError, shown
from seqloom.runs.progress import each_text


class ScoredPair(NamedTuple):
    """Two words, and how similar people find them."""

    line: int
    first: str
    second: str
    score: float


class AnalogyQuestion(NamedTuple):
    """An analogy of a section: a is to b as c is to the answer."""

    line: int
    section: str
    words: tuple[str, str, str]
    answer: str


def read_word_tests(path: str, data: DataConfig) -> tuple[list[ScoredPair], list[AnalogyQuestion]]:
    """All pairs, or all analogies, of a file; which it has, its first line tells. Raises DataError, with the
    line, for one that is neither, and for a file without any."""
    pairs: list[ScoredPair] = []
    questions: list[AnalogyQuestion] = []
    section: str | None = None
    for number, text in enumerate(each_text(path, data), start=1):
        line = text.strip()
        if not line:
            continue
        if line.startswith(":") and not pairs:
            section = line[1:].strip()
        elif section is not None:
            questions.append(_question(line, section, path, number))
        else:
            pairs.append(_pair(line, path, number))
    if not pairs and not questions:
        raise DataError(
            "there must be a pair of words with a score, or an analogy, but there is none", path
        )
    return pairs, questions


def _pair(line: str, path: str, number: int) -> ScoredPair:
    cells = line.split("\t") if "\t" in line else line.replace(",", " ").split()
    cells = [cell.strip() for cell in cells]
    try:
        first, second, score = cells[0], cells[1], float(cells[2])
    except (ValueError, IndexError):
        score = math.nan
    if len(cells) != 3 or not math.isfinite(score):
        raise DataError(f"a line must be two words and a score, but is {shown(line)}", path, number)
    return ScoredPair(number, first, second, score)


def _question(line: str, section: str, path: str, number: int) -> AnalogyQuestion:
    words = line.split()
    if len(words) != 4:
        raise DataError(f"an analogy must be four words, but is {shown(line)}", path, number)
    return AnalogyQuestion(number, section, (words[0], words[1], words[2]), words[3])
