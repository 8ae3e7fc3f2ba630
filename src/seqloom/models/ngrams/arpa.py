"""n-gram models in ARPA text, the format of SRILM, KenLM and others.

    # comments                  or any other lines
    \\data\\
    ngram 1=5                   how many of each order follow
    ngram 2=9

    \\1-grams:
    -1.3903403  word  -0.61     log10 p, the words, log10 of the weight as a history (none: 0)
    \\2-grams:
    -0.8 some words
    \\end\\

What KenLM reads is read as KenLM reads it: words are separated by spaces and tabs alone, lines may end in CR,
blank lines mean nothing, <UNK> is <unk>, which has log10 p = -100 where it is missing, of equal n-grams the
first counts (of <unk> the last). This module reads bytes; files are opened elsewhere. `arpa_writer.py` writes
such texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, NoReturn, final

import numpy as np

from seqloom.arrays import Floats, Integers
from seqloom.errors import DataError, printable
from seqloom.models.ngrams.arpa_writer import LN10, UNKNOWN
from seqloom.models.ngrams.ngram import IMPOSSIBLE, Ngram, NgramConfig
from seqloom.models.ngrams.ngram_counts import EstimatedOrder

LINES = 2048
"""Lines that are read at once."""
HEAD_LINES: Final = 1000
"""Lines that may stand before \\data\\."""
FIRST = NgramConfig.first_word_id
SPECIAL = {b"<s>": NgramConfig.bos_id, b"</s>": NgramConfig.eos_id} | {
    spelled.encode(): NgramConfig.unk_id for spelled in UNKNOWN
}
LARGEST = 1e30
"""Weights are smaller, so that sums of them are finite."""
MISSING_UNKNOWN = -100.0
"""log10 p of <unk> where a file has none."""

_FIELDS = re.compile(rb"[^ \t\r\n]+")
_COUNT = re.compile(rb"ngram\s+\+?(\d{1,9})\s*=\s*\+?(\d{1,18})(\s.*)?")


class Arpa(NamedTuple):
    """What an ARPA text holds."""

    config: NgramConfig
    model: Ngram
    words: list[bytes]
    """`words[i]` has id `first_word_id + i`: all but <unk>, <s> and </s>, in the order of the file."""
    head: list[bytes]
    """The lines before \\data\\."""
    notes: list[str]
    """What of the text was left out, and why."""


class Rows(NamedTuple):
    """Lines of a section that were read together."""

    lines: list[int]
    """Their numbers."""
    words: list[tuple[bytes, ...]]
    """The first words of all, the second words, ..."""
    log10_p: Floats
    weights: Floats
    """log10."""


def read_arpa(lines: Iterable[bytes], path: str) -> Arpa:
    """The model in the lines of an ARPA text; errors name `path`.

    Raises DataError, with the line, where the text is not valid.
    """
    return _ArpaReader(lines, path).read()


@final
class _ArpaReader:
    """Reads a text, one section after the other."""

    def __init__(self, lines: Iterable[bytes], path: str) -> None:
        self.lines = iter(lines)
        self.path = path
        self.line = 0
        """The number of the line that was read last; at the end one more."""
        self.head: list[bytes] = []
        self.words: list[bytes] = []
        self.ids: dict[bytes, int] = {}
        self.orders: list[EstimatedOrder] = []
        self.has_unknown = False
        self.repeated = 0
        """n-grams that occur twice."""
        self.after_begin = 0
        """n-grams that have <s> further on."""

    def read(self) -> Arpa:
        self.read_head()
        counts, line = self.counts()
        for n, count in enumerate(counts, 1):
            if line != f"\\{n}-grams:".encode():
                before = f", as \\data\\ counts {counts[n - 2]} of order {n - 1}" if n > 1 else ""
                self.refuse(f"\\{n}-grams: must stand here{before}, but here is {_shown(line)}")
            rows = self.rows(n, count, highest=n == len(counts))
            self.orders.append(self.unigrams(rows) if n == 1 else self.ngrams(n, rows))
            line = self.next_line("\\end\\")
        if line != b"\\end\\":
            self.refuse(
                f"\\end\\ must stand here, as \\data\\ counts {counts[-1]} of order {len(counts)}, but here"
                f" is {_shown(line)}"
            )
        # to the end: only then a .gz is known to be whole
        while (rest := self.read_line()) is not None:
            if rest.strip():
                self.refuse(f"nothing may follow \\end\\, but here is {_shown(rest.strip())}")
        config = NgramConfig(vocabulary_size=len(self.orders[0].keys), order=len(counts))
        model = Ngram.of(config, self.orders)
        return Arpa(model.config, model, self.words, self.head, self.notes())

    def notes(self) -> list[str]:
        notes = []
        if not self.has_unknown:
            notes.append(
                f"it has no <unk>: an unknown word has log10 p = {MISSING_UNKNOWN:g}, as in KenLM"
            )
        if self.repeated:
            notes.append(
                f"n-grams that stand again: {self.repeated:,}; the first of each counts (of <unk> the last)"
            )
        if self.after_begin:
            notes.append(
                f"n-grams with <s> after another word: {self.after_begin:,}; left out, as <s> only begins a"
                " text"
            )
        return notes

    def read_head(self) -> None:
        """Lines up to \\data\\."""
        while len(self.head) < HEAD_LINES and (read := self.read_line()) is not None:
            line = read.strip().removeprefix(b"\xef\xbb\xbf")
            if line == b"\\data\\":
                return
            self.head.append(line)
        others = [i for i, line in enumerate(self.head) if line and not line.startswith(b"#")]
        first = others[0] if others else 0
        begin = self.head[first] if self.head else b""
        at_most = f" within {HEAD_LINES:,} lines" if len(self.head) == HEAD_LINES else ""
        self.refuse(
            f"an ARPA text must have a line \\data\\{at_most}, but begins with {_shown(begin)}",
            first + 1,
        )

    def counts(self) -> tuple[list[int], bytes]:
        """How many n-grams there are of each order, and the line after these counts."""
        counts: list[int] = []
        while (line := self.next_line("counts")).startswith(b"ngram"):
            found = _COUNT.fullmatch(line)
            if found is None or int(found[1]) != len(counts) + 1:
                self.refuse(
                    f"the count of order {len(counts) + 1} must stand here, such as `ngram"
                    f" {len(counts) + 1}=1000` (at most 18 digits), but here is {_shown(line)}"
                )
            counts.append(int(found[2]))
        if not counts:
            self.refuse(
                f"after \\data\\ must come lines such as `ngram 1=1000`, but here is {_shown(line)}"
            )
        return counts, line

    def unigrams(self, parts: Iterator[Rows]) -> EstimatedOrder:
        """The words, which get ids here. Order 1 has an entry for every id, also for unused ones."""
        numbers: dict[int, tuple[float, float]] = {}
        for rows in parts:
            for word, *both in zip(
                rows.words[0], rows.log10_p.tolist(), rows.weights.tolist(), strict=True
            ):
                known = word in self.ids
                self.repeated += known
                if not known:
                    self.ids[word] = SPECIAL.get(word, FIRST + len(self.words))
                    if word not in SPECIAL:
                        self.words.append(word)
                if not known or self.ids[word] == NgramConfig.unk_id:
                    numbers[self.ids[word]] = both[0], both[1]
        if missing := {b"<s>", b"</s>"} - self.ids.keys():
            self.refuse(f"\\1-grams: must hold <s> and </s>, but {_shown(min(missing))} is missing")
        self.has_unknown = NgramConfig.unk_id in numbers
        self.ids |= SPECIAL  # both spellings of <unk>
        log10_p, weights = np.zeros((2, FIRST + len(self.words)))
        log10_p[NgramConfig.unk_id] = MISSING_UNKNOWN
        ids = list(numbers)
        log10_p[ids], weights[ids] = zip(*numbers.values(), strict=True)
        return _order(np.arange(len(log10_p)), log10_p, weights)

    def ngrams(self, n: int, parts: Iterator[Rows]) -> EstimatedOrder:
        """The n-grams of an order from 2 on, sorted."""
        size = len(self.orders[0].keys)
        none = np.zeros(0)
        kept: list[tuple[Integers, Floats, Floats]] = [(none.astype(np.int64), none, none)]
        for rows in parts:
            words = np.stack([self.ids_of(column, rows.lines) for column in rows.words])
            good = (words[1:] != NgramConfig.bos_id).all(axis=0)
            self.after_begin += int(np.count_nonzero(~good))
            lines = [line for line, keep in zip(rows.lines, good, strict=True) if keep]
            words = words[:, good]
            keys = self.histories(words[:-1], lines) * size + words[-1]
            kept.append((keys, rows.log10_p[good], rows.weights[good]))
        keys, log10_p, weights = (np.concatenate(part) for part in zip(*kept, strict=True))
        unique, first = np.unique(keys, return_index=True)
        self.repeated += len(keys) - len(unique)
        return _order(unique, log10_p[first], weights[first])

    def ids_of(self, column: Sequence[bytes], lines: Sequence[int]) -> Integers:
        try:
            return np.fromiter(map(self.ids.__getitem__, column), np.int64, len(column))
        except KeyError:
            place = next(i for i, word in enumerate(column) if word not in self.ids)
            self.refuse(
                f"every word must be among the 1-grams, but {_shown(column[place])} is not",
                lines[place],
            )

    def histories(self, words: Integers, lines: Sequence[int]) -> Integers:
        """words `(n-1, lines)` -> numbers of the n-grams that they are (see `NgramTable`)."""
        size = len(self.orders[0].keys)
        numbers: Integers = words[0]
        for n, (word, grams) in enumerate(zip(words[1:], self.orders[1:], strict=True), 2):
            keys = numbers * size + word
            places = np.searchsorted(grams.keys, keys)
            known = np.append(grams.keys, -1)[places] == keys
            if not known.all():
                self.refuse(
                    f"the first words of an n-gram must be an n-gram too, but here the first {n} are not",
                    lines[int(np.argmin(known))],
                )
            numbers = places + 1
        return numbers

    def rows(self, n: int, count: int, *, highest: bool) -> Iterator[Rows]:
        """The lines of a section, many at once."""
        while count:
            lines: list[int] = []
            fields: list[list[bytes]] = []
            while len(lines) < min(count, LINES):
                line = self.read_line()
                if line is None:
                    missing = count - len(lines)
                    self.refuse(
                        f"the text ends here, but \\data\\ counts {missing} more of order {n}"
                    )
                found = _FIELDS.findall(line)
                if not found:
                    continue
                if not n + 1 <= len(found) <= n + 2:
                    words = " ".join(["log10 p", *["word"] * n])
                    self.refuse(
                        f"as \\data\\ counts more of order {n}, {words} and perhaps a weight must stand here,"
                        f" but here is {_shown(b' '.join(found))}"
                    )
                lines.append(self.line)
                fields.append(found)
            count -= len(lines)
            columns = list(zip(*(row[: n + 1] for row in fields), strict=True))
            weights = [row[n + 1] if len(row) > n + 1 else b"0" for row in fields]
            yield Rows(
                lines,
                columns[1:],
                self.log10_p(columns[0], lines),
                self.weights(weights, lines, highest=highest),
            )

    def log10_p(self, column: Sequence[bytes], lines: Sequence[int]) -> Floats:
        found = _floats(column)
        if (bad := ~(found <= 0)).any():
            place = int(np.argmax(bad))
            self.refuse(
                f"log10 p must be a number of at most 0, but is {_shown(column[place])}",
                lines[place],
            )
        return found

    def weights(self, column: Sequence[bytes], lines: Sequence[int], *, highest: bool) -> Floats:
        found = _floats(column)
        if (bad := found != 0 if highest else ~(np.abs(found) < LARGEST)).any():
            place = int(np.argmax(bad))
            what = "0, as nothing is longer" if highest else "a finite number"
            self.refuse(
                f"the weight of an n-gram must be {what}, but is {_shown(column[place])}",
                lines[place],
            )
        return found

    def next_line(self, wanted: str) -> bytes:
        """The next line that is not blank, without white space around it."""
        line = b""
        while not line:
            read = self.read_line()
            if read is None:
                self.refuse(f"the text ends here, but must have {wanted} and end with \\end\\")
            line = read.strip()
        return line

    def read_line(self) -> bytes | None:
        """The next line; None at the end."""
        self.line += 1
        return next(self.lines, None)

    def refuse(self, message: str, line: int | None = None) -> NoReturn:
        """Raises DataError for a line, by default the last one."""
        raise DataError(message, self.path, self.line if line is None else line)


def _order(keys: Integers, log10_p: Floats, weights: Floats) -> EstimatedOrder:
    log_prob = np.maximum(log10_p * LN10, IMPOSSIBLE)
    return EstimatedOrder(
        keys.astype(np.int64), log_prob.astype(np.float32), (weights * LN10).astype(np.float32)
    )


def _floats(column: Sequence[bytes]) -> Floats:
    """The numbers in a column, NaN if there is none."""
    return np.fromiter(map(_number, column), np.float64, len(column))


def _number(field: bytes) -> float:
    try:
        return math.nan if b"_" in field else float(field)
    except ValueError:
        return math.nan


def _shown(text: bytes) -> str:
    shown = printable(text[:60].decode("utf-8", "backslashreplace"))
    return f"`{shown}`" if shown else "a blank line"
