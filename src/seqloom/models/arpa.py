"""n-gram models as ARPA text, the format of SRILM, KenLM and others.

    \\data\\
    ngram 1=5                   how many of each order follow
    ngram 2=9

    \\1-grams:
    -1.3903403  word  -0.61     log10 p, the words, log10 of the weight as a history (none: 0)
    \\2-grams:
    -0.8 some words
    \\end\\

Numbers have enough digits to restore the same float32. This module reads and writes bytes; files are opened
elsewhere.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn, final

import numpy as np
import torch
from torch import Tensor

from seqloom.errors import DataError, UsageError, printable
from seqloom.models.ngram import Ngram, NgramConfig
from seqloom.models.ngram_counts import EstimatedOrder, Floats, Integers

LN10 = math.log(10)
LINES = 2048
"""Lines that are read or written at once."""
NEVER = -99.0
"""log10 p of <s>, as SRILM writes it."""
FIRST = NgramConfig.first_word_id
SPECIAL = {b"<s>": NgramConfig.bos_id, b"</s>": NgramConfig.eos_id, b"<unk>": NgramConfig.unk_id}
UNKNOWN = -100.0
"""log10 p of <unk> where a file has none, as in KenLM."""


def write_arpa(model: Ngram, words: Sequence[str]) -> Iterator[bytes]:
    """Chunks of the text, many lines each. `words[i]` is the word of id `first_word_id + i`.

    Raises UsageError before the first chunk where such a text cannot hold a word, or `words` are not the
    model's.
    """
    c = model.config
    if len(words) != c.vocabulary_size - c.first_word_id:
        raise UsageError(
            f"the model has {c.vocabulary_size - c.first_word_id} words, but was given {len(words)} to write"
        )
    special = {c.bos_id: "<s>", c.eos_id: "</s>", c.unk_id: "<unk>"}
    word_of_id = [special.get(i, "") for i in range(c.first_word_id)] + list(words)
    taken = set(special.values())
    for word in words:
        if not word or re.search("[\\0\\t\\n\\v\\f\\r ]", word) or word in taken:
            raise UsageError(
                "a word of an ARPA text must be new and hold no white space, but there is"
                f" {printable(repr(word))}; use a model that was trained with data.tokenizer=words"
            )
        taken.add(word)
    return _chunks(model, word_of_id)


def _chunks(model: Ngram, word_of_id: list[str]) -> Iterator[bytes]:
    c = model.config
    unigrams = [c.unk_id, c.bos_id, c.eos_id, *range(c.first_word_id, c.vocabulary_size)]
    sizes = [len(unigrams), *(len(grams.keys) - 1 for grams in model.orders)]
    counts = "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, 1))
    yield f"\\data\\\n{counts}\n\\1-grams:\n".encode()
    log_prob = model.log_prob.double() / LN10
    log_prob[c.bos_id] = NEVER
    ids = torch.tensor(unigrams)
    backoff = None if c.order == 1 else model.backoff.cpu()[ids]
    yield _lines([ids], log_prob.cpu()[ids], backoff, word_of_id)
    for n, grams in enumerate(model.orders, 2):
        yield f"\n\\{n}-grams:\n".encode()
        for first in range(1, len(grams.keys), LINES):
            numbers = torch.arange(
                first, min(first + LINES, len(grams.keys)), device=grams.keys.device
            )
            backoff = None if n == c.order else grams.backoff[numbers].cpu()
            log10_p = (grams.log_prob[numbers].double() / LN10).cpu()
            yield _lines(_words_of(model, n, numbers), log10_p, backoff, word_of_id)
    yield b"\n\\end\\\n"


def _words_of(model: Ngram, order: int, numbers: Tensor) -> list[Tensor]:
    """The first, second, ... word of n-grams that are given by their numbers."""
    words: list[Tensor] = []
    for grams in reversed(model.orders[: order - 1]):
        keys = grams.keys[numbers]
        words.insert(0, keys % model.config.vocabulary_size)
        numbers = keys // model.config.vocabulary_size
    return [numbers, *words]


def _lines(
    words: list[Tensor], log10_p: Tensor, backoff: Tensor | None, word_of_id: list[str]
) -> bytes:
    columns = [map(word_of_id.__getitem__, column.tolist()) for column in words]
    texts = map(" ".join, zip(*columns, strict=True))
    lines = [f"{p:.9g}\t{text}" for p, text in zip(log10_p.tolist(), texts, strict=True)]
    if backoff is not None:
        weights = (backoff.double() / LN10).tolist()
        lines = [f"{line}\t{weight:.9g}" for line, weight in zip(lines, weights, strict=True)]
    return ("\n".join(lines) + "\n").encode()


class Arpa(NamedTuple):
    """What an ARPA text holds."""

    config: NgramConfig
    model: Ngram
    words: list[str]
    """`words[i]` has id `first_word_id + i`: all but <unk>, <s> and </s>, in the order of the file."""


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
        self.number = 0
        """Lines read so far."""
        self.first = 0
        """The number of the first line that was read last; several are read at once."""
        self.ids: dict[bytes, int] = {}
        self.orders: list[EstimatedOrder] = []

    def read(self) -> Arpa:
        line = self.next_line()
        if line != b"\\data\\":
            self.refuse(f"an ARPA text must begin with \\data\\, but here is {_shown(line)}")
        counts: list[int] = []
        while found := re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line := self.next_line()):
            if int(found[1]) != len(counts) + 1:
                self.refuse(
                    f"the count of order {len(counts) + 1} must stand here, but it is that of order"
                    f" {int(found[1])}"
                )
            counts.append(int(found[2]))
        if not counts:
            self.refuse(
                f"after \\data\\ must come lines such as `ngram 1=1000`, but here is {_shown(line)}"
            )
        words: list[str] = []
        for n, count in enumerate(counts, 1):
            if line != f"\\{n}-grams:".encode():
                before = f", as \\data\\ counts {counts[n - 2]} of order {n - 1}" if n > 1 else ""
                self.refuse(f"\\{n}-grams: must stand here{before}, but here is {_shown(line)}")
            if n == 1:
                words = self.unigrams(count, highest=len(counts) == 1)
            else:
                self.orders.append(self.section(n, count, highest=n == len(counts)))
            line = self.next_line()
        if line != b"\\end\\":
            self.refuse(
                f"\\end\\ must stand here, as \\data\\ counts {counts[-1]} of order {len(counts)}, but here"
                f" is {_shown(line)}"
            )
        config = NgramConfig(vocabulary_size=len(self.orders[0].keys), order=len(counts))
        model = Ngram.of(config, self.orders)
        return Arpa(model.config, model, words)

    def unigrams(self, count: int, *, highest: bool) -> list[str]:
        """The words, which get ids here. Order 1 has an entry for every id, also for unused ones."""
        words: list[str] = []
        ids, log10_p, backoffs = [], [], []
        for fields, log10, backoff in self.entries(1, count, highest=highest):
            for place, (_, spelled, *_) in enumerate(fields):
                if spelled in self.ids:
                    self.refuse(
                        f"every word must stand once, but {_shown(spelled)} stands twice", place
                    )
                self.ids[spelled] = SPECIAL.get(spelled, FIRST + len(words))
                ids.append(self.ids[spelled])
                if spelled not in SPECIAL:
                    words.append(self.text(spelled, place))
            log10_p.append(log10)
            backoffs.append(backoff)
        if missing := SPECIAL.keys() - self.ids.keys() - {b"<unk>"}:
            self.refuse(f"\\1-grams: must hold <s> and </s>, but {_shown(min(missing))} is missing")
        ids_of_all = np.arange(FIRST + len(words))
        found = EstimatedOrder(ids_of_all, *np.zeros((2, len(ids_of_all)), np.float32))
        found.log_prob[SPECIAL[b"<unk>"]] = UNKNOWN * LN10
        found.log_prob[ids], found.backoff[ids] = (
            np.concatenate(log10_p) * LN10,
            np.concatenate(backoffs) * LN10,
        )
        self.orders.append(found)
        return words

    def section(self, n: int, count: int, *, highest: bool) -> EstimatedOrder:
        """The n-grams of an order from 2 on, sorted."""
        parts: list[tuple[Integers, Floats, Floats]] = [
            (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        ]
        first_line = self.number + 1
        for fields, log10, backoff in self.entries(n, count, highest=highest):
            columns = itertools.islice(zip(*fields, strict=False), 1, n + 1)
            words = np.stack([self.ids_of(column) for column in columns])
            if len(bad := np.flatnonzero((words[1:] == SPECIAL[b"<s>"]).any(0))):
                self.refuse(
                    "<s> may only be the first word of an n-gram, but it stands further on",
                    int(bad[0]),
                )
            parts.append((self.numbers_of(words[:-1]) * self.size + words[-1], log10, backoff))
        keys, log10_p, backoffs = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if len(twice := np.flatnonzero(keys[1:] == keys[:-1])):
            line, again = first_line + order[twice[0]], first_line + order[twice[0] + 1]
            raise DataError(
                f"every n-gram must stand once, but that of line {line} stands here again",
                self.path,
                int(again),
            )
        return EstimatedOrder(
            keys, *((values[order] * LN10).astype(np.float32) for values in (log10_p, backoffs))
        )

    @property
    def size(self) -> int:
        """Of the vocabulary."""
        return len(self.orders[0].keys)

    def ids_of(self, column: Sequence[bytes]) -> Integers:
        try:
            return np.fromiter(map(self.ids.__getitem__, column), np.int64, len(column))
        except KeyError:
            place = next(i for i, word in enumerate(column) if word not in self.ids)
            self.refuse(
                f"every word must be among the 1-grams, but {_shown(column[place])} is not", place
            )

    def numbers_of(self, words: Integers) -> Integers:
        """words `(n-1, lines)` -> numbers of the histories that they are (see `Grams`)."""
        numbers: Integers = words[0]
        for n, (word, grams) in enumerate(zip(words[1:], self.orders[1:], strict=True), 2):
            keys = numbers * self.size + word
            places = np.searchsorted(grams.keys, keys)
            known = np.append(grams.keys, -1)[places] == keys
            if not known.all():
                self.refuse(
                    f"the first words of an n-gram must be an n-gram too, but here the first {n} are not",
                    int(np.argmin(known)),
                )
            numbers = places + 1
        return numbers

    def entries(
        self, n: int, count: int, *, highest: bool
    ) -> Iterator[tuple[list[list[bytes]], Floats, Floats]]:
        """Many lines at once: their fields, log10 p and log10 of the weights."""
        fewest, most = n + 1, n + 1 if highest else n + 2
        while count:
            fields = [line.split() for line in itertools.islice(self.lines, min(count, LINES))]
            self.first, self.number = self.number + 1, self.number + len(fields)
            for place, line in enumerate(fields):
                if not fewest <= len(line) <= most:
                    what = " ".join(["log10 p", *["word"] * n]) + (
                        "" if highest else " and perhaps a weight"
                    )
                    here = _shown(b" ".join(line))
                    self.refuse(
                        f"as \\data\\ counts more of order {n}, {what} must stand here, but here is {here}",
                        place,
                    )
            if len(fields) < min(count, LINES):
                self.refuse(
                    f"the text ends here, but \\data\\ counts {count - len(fields)} more of order {n}",
                    len(fields),
                )
            count -= len(fields)
            log10_p = self.floats([line[0] for line in fields])
            if len(bad := np.flatnonzero(log10_p > 0)):
                self.refuse(
                    f"log10 p must be at most 0, but is {_shown(fields[bad[0]][0])}", int(bad[0])
                )
            yield (
                fields,
                log10_p,
                self.floats([line[n + 1] if len(line) > n + 1 else b"0" for line in fields]),
            )

    def floats(self, fields: list[bytes]) -> Floats:
        try:
            found = np.fromiter(map(float, fields), np.float64, len(fields))
        except ValueError:
            found = np.array([_number(field) for field in fields])
        if not (finite := np.isfinite(found)).all():
            place = int(np.argmin(finite))
            self.refuse(
                f"a finite number must stand here, but here is {_shown(fields[place])}", place
            )
        return found

    def text(self, word: bytes, place: int) -> str:
        try:
            return word.decode()
        except UnicodeDecodeError:
            self.refuse(f"a word must be UTF-8, but {_shown(word)} is not", place)

    def next_line(self) -> bytes:
        """The next line that is not blank, without white space around it."""
        line = b""
        while not line:
            try:
                line = next(self.lines).strip()
            except StopIteration:
                self.refuse("the text ends here, but must end with \\end\\")
            self.first = self.number = self.number + 1
        return line

    def refuse(self, message: str, place: int = 0) -> NoReturn:
        """Raises DataError for a line; `place` counts from the first one that was read last."""
        raise DataError(message, self.path, self.first + place)


def _number(field: bytes) -> float:
    try:
        return float(field)
    except ValueError:
        return math.nan


def _shown(text: bytes) -> str:
    shown = printable(text[:60].decode("utf-8", "backslashreplace"))
    return f"`{shown}`" if shown else "a blank line"
