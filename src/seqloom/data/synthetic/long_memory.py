"""Tasks that a model solves only by remembering something over a given distance. Each example is a function
of the seed.

    adding      T pairs (a number in [0, 1], a mark); one pair of each half is marked, and the answer is the
                sum of the two numbers. Always answering 1 has a mean squared error of 1/6.
                Hochreiter and Schmidhuber 1997, section 5.4; in the form of Arjovsky, Shah and Bengio 2016,
                section 5.2
    copy        5 symbols out of 8, a lag of blanks, then 5 question marks, at which the symbols must be
                repeated in order (10 symbols and one question mark in Arjovsky et al. 2016, section 5.1: much
                longer to learn)
    recall      a key, noise, a question mark: which key was it? Hochreiter and Schmidhuber 1997, task 2b,
                with 10 keys
    agreement   "the flights that the airline was cancelling" were: the number of the verb, from its subject
                (Linzen, Dupoux and Goldberg 2016), over clauses whose nouns have any number
    cloze       "the clouds behind the cooks are in the" sky: the last word, from the first noun, over clauses
                with other nouns of the list

Each answer is as frequent as any other. Validation and test have what training has not: other strings (copy),
other pairs of first and last noun (agreement); the other tasks sample new examples. No pair is held out in
cloze: what the last noun excludes would be a shortcut there, and a wrong one in the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import UsageError, printable

Ids = NDArray[np.int64]
Values = NDArray[np.int64 | np.float32]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


class Examples(NamedTuple):
    """The last `answers` steps of a row are where it must answer."""

    inputs: Values
    """Ids `(rows, steps)`; for adding, numbers `(rows, steps, 2)`."""
    targets: Values
    """Classes `(rows, answers)`; for adding, numbers `(rows, 1)`."""


@final
@dataclass(frozen=True, kw_only=True)
class MemoryTask:
    """What the examples of a task are made of."""

    about: str
    distance: str
    """What the distance counts."""
    distances: tuple[int, ...]
    """Those that are probed by default."""
    shortest: int
    words: tuple[str, ...] = ()
    """The words of the ids of inputs; empty if the inputs are numbers."""
    classes: tuple[str, ...] = ()
    """The answers; empty if they are numbers."""
    draw: Callable[[np.random.Generator, int, int, bool], Examples]
    """(random numbers, rows, distance, held out) -> examples."""
    shorter: float = 0.0
    """Share of the training at shorter distances, by default; none where the task was published so."""
    last_noun: Callable[[Values], Ids] | None = None
    """Inputs -> the answers `(rows,)` that follow from the last noun."""

    @property
    def metric(self) -> str:
        """What it is measured by."""
        return "accuracy" if self.classes else "mse"

    @property
    def chance(self) -> float:
        """The accuracy of guessing; for adding, the mean squared error of always answering 1."""
        return 1 / len(self.classes) if self.classes else 1 / 6


def examples(
    task: MemoryTask, seed: int, part: Part, number: int, rows: int, distance: int
) -> Examples:
    """Batch `number` of a part. Raises UsageError for a distance that the task does not have."""
    if distance < task.shortest:
        raise UsageError(
            f"a distance must be at least {task.shortest} here ({task.distance}), but is {distance}"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, PARTS.index(part), number, distance]))
    return task.draw(rng, rows, distance, part != "train")


def task_named(name: str) -> MemoryTask:
    """Raises UsageError for an unknown name."""
    if name not in MEMORY_TASKS:
        raise UsageError(
            f"the task of a probe must be one of {', '.join(MEMORY_TASKS)}, but is {printable(repr(name))}"
        )
    return MEMORY_TASKS[name]


def spell(task: MemoryTask, ids: Ids) -> str:
    """One row of inputs as text."""
    return " ".join(task.words[i] for i in ids)


def _adding(rng: np.random.Generator, rows: int, length: int, held_out: bool) -> Examples:
    numbers = rng.random((rows, length), dtype=np.float32)
    marks = np.zeros_like(numbers)
    every, half = np.arange(rows), length // 2
    marks[every, rng.integers(0, half, rows)] = 1
    marks[every, rng.integers(half, length, rows)] = 1
    return Examples(
        np.stack([numbers, marks], axis=-1), (numbers * marks).sum(axis=1, keepdims=True)
    )


SYMBOLS, COPIED = tuple("abcdefgh"), 5
BLANK, QUERY = len(SYMBOLS), len(SYMBOLS) + 1


def _copy(rng: np.random.Generator, rows: int, lag: int, held_out: bool) -> Examples:
    count = len(SYMBOLS)
    symbols = rng.integers(0, count, (rows, COPIED))
    # Held out are the strings whose sum has a given rest: whatever four symbols are, the fifth is still open
    # in training (7 of 8) and no symbol at any place is more frequent than another.
    rest = np.zeros(rows, np.int64) if held_out else rng.integers(1, count, rows)
    symbols[:, -1] = (rest - symbols[:, :-1].sum(axis=1)) % count
    inputs = np.full((rows, 2 * COPIED + lag), BLANK)
    inputs[:, :COPIED] = symbols
    inputs[:, -COPIED:] = QUERY
    return Examples(inputs, symbols)


KEYS, NOISE = tuple("ABCDEFGHIJ"), tuple("klmnopqrst")


def _recall(rng: np.random.Generator, rows: int, distance: int, held_out: bool) -> Examples:
    inputs = rng.integers(len(KEYS), len(KEYS) + len(NOISE), (rows, distance + 1))
    inputs[:, 0] = rng.integers(0, len(KEYS), rows)
    inputs[:, -1] = len(KEYS) + len(NOISE)
    return Examples(inputs, inputs[:, :1].copy())


OPEN_WORDS = {
    "preposition": ("near", "behind", "beside", "above", "with", "for"),
    "doing": (
        "cancelling",
        "praising",
        "watching",
        "calling",
        "helping",
        "following",
        "meeting",
        "visiting",
    ),
    "did": ("praised", "watched", "called", "helped", "followed", "met", "visited", "saw"),
    "adverb": ("here", "there", "today", "tonight"),
}
CLOSED_WORDS = ("the", "that", "was", "were", "are", "in")
CLAUSES = (
    ("preposition", "the", "noun"),
    ("that", "did", "the", "noun"),
    ("that", "the", "noun", "be", "doing"),
)
"""What is put between the first noun and the answer; "be" agrees with the noun before it. The rest, one
or two words, is adverbs."""
COMMON_WORDS = (*CLOSED_WORDS, *(word for words in OPEN_WORDS.values() for word in words))
SLOTS = (*CLOSED_WORDS, *OPEN_WORDS, "noun", "be")

NOUNS = (
    "flight",
    "airline",
    "pilot",
    "train",
    "driver",
    "farmer",
    "author",
    "letter",
    "painter",
    "doctor",
    "manager",
    "key",
)
PLACES = {
    "clouds": "sky", "fish": "sea", "books": "library", "cows": "barn", "coins": "purse", "prisoners": "jail",
    "patients": "hospital", "pupils": "classroom", "actors": "theatre", "monks": "monastery", "bees": "hive",
    "cooks": "kitchen", "judges": "court", "boats": "harbour", "roses": "garden", "planes": "hangar",
}  # fmt: skip
AGREEMENT_WORDS = (*COMMON_WORDS, *NOUNS, *(f"{noun}s" for noun in NOUNS))
CLOZE_WORDS = (*COMMON_WORDS, *PLACES)
CLOZE_ENDING = ("are", "in", "the")
FIRST_NOUN = len(COMMON_WORDS)
SUBJECT = 1
"""The first noun's place: "the flights ..."."""


def _slots(rng: np.random.Generator, rows: int, words: int, ending: tuple[str, ...]) -> Ids:
    """The kinds of the words of each sentence: `words` between the first noun and the ending."""
    sentences = []
    for choices in rng.integers(0, len(CLAUSES), (rows, words // 3 + 1)).tolist():
        between: list[str] = []
        while (left := words - len(between)) >= len(CLAUSES[0]):
            fitting = [clause for clause in CLAUSES if len(clause) <= left]
            between += fitting[choices.pop() % len(fitting)]
        kinds = ("the", "noun", *between, *["adverb"] * left, *ending)
        sentences.append([SLOTS.index(kind) for kind in kinds])
    return np.array(sentences, np.int64)


def _place_of_last_noun(is_noun: NDArray[np.bool_]) -> Ids:
    """The place of the last noun of each sentence `(rows,)`."""
    return np.asarray(is_noun.shape[1] - 1 - is_noun[:, ::-1].argmax(axis=1), np.int64)


def _sentences(
    rng: np.random.Generator, slots: Ids, nouns: int, numbers: int, differences: Sequence[int]
) -> Ids:
    """Words for the slots, out of `nouns` nouns in one or two numbers (1: all are plural).

    The places of the first and the last noun in the list differ by one of `differences`: so every noun is as
    frequent first and last, whatever is held out.
    """
    ids = np.zeros_like(slots)
    for index, kind in enumerate(SLOTS):
        where = slots == index
        options = [
            COMMON_WORDS.index(word)
            for word in OPEN_WORDS.get(kind, (kind,))
            if word in COMMON_WORDS
        ]
        if options:
            ids[where] = rng.choice(options, int(where.sum()))
    is_noun = slots == SLOTS.index("noun")
    noun, number = rng.integers(0, nouns, slots.shape), rng.integers(0, numbers, slots.shape)
    last, every = _place_of_last_noun(is_noun), np.arange(len(slots))
    partner = (noun[:, SUBJECT] + rng.choice(differences, len(slots))) % nouns
    noun[every, last] = np.where(last == SUBJECT, noun[:, SUBJECT], partner)
    ids[is_noun] = FIRST_NOUN + noun[is_noun] + nouns * number[is_noun]
    rows, places = np.nonzero(slots == SLOTS.index("be"))
    singular, plural = COMMON_WORDS.index("was"), COMMON_WORDS.index("were")
    ids[rows, places] = np.where(number[rows, places - 1] == numbers - 1, plural, singular)
    return ids


def _noun_at(inputs: Values, places: Ids | int) -> Ids:
    """Nouns by their place in the vocabulary's list of nouns, `(rows,)`."""
    return np.asarray(inputs[np.arange(len(inputs)), places] - FIRST_NOUN, np.int64)


def _agreement(rng: np.random.Generator, rows: int, distance: int, held_out: bool) -> Examples:
    differences = [
        difference for difference in range(len(NOUNS)) if (difference % 4 == 1) == held_out
    ]
    inputs = _sentences(rng, _slots(rng, rows, distance - 1, ()), len(NOUNS), 2, differences)
    return Examples(inputs, (_noun_at(inputs, SUBJECT) // len(NOUNS))[:, None])


def _cloze(rng: np.random.Generator, rows: int, distance: int, held_out: bool) -> Examples:
    between = distance - 1 - len(CLOZE_ENDING)
    inputs = _sentences(
        rng, _slots(rng, rows, between, CLOZE_ENDING), len(PLACES), 1, range(len(PLACES))
    )
    return Examples(inputs, _noun_at(inputs, SUBJECT)[:, None])


def _by_last_noun(inputs: Values, forms: int) -> Ids:
    """The answer by the last noun, where the list of nouns has `forms` nouns to each answer."""
    return _noun_at(inputs, _place_of_last_noun(inputs >= FIRST_NOUN)) // forms


MEMORY_TASKS: dict[str, MemoryTask] = {
    "adding": MemoryTask(
        about="the sum of two marked numbers",
        distance="the length of the sequence",
        distances=(20, 50, 100, 200),
        shortest=2,
        draw=_adding,
    ),
    "copy": MemoryTask(
        about=f"{COPIED} symbols, repeated in order",
        distance="the blanks between the symbols and the question marks",
        distances=(20, 50, 100, 200),
        shortest=0,
        words=(*SYMBOLS, "_", "?"),
        classes=SYMBOLS,
        draw=_copy,
    ),
    "recall": MemoryTask(
        about="the key at the start, over noise",
        distance="steps from the key to the question mark",
        distances=(10, 20, 50, 100, 200),
        shortest=1,
        words=(*KEYS, *NOISE, "?"),
        classes=KEYS,
        draw=_recall,
        shorter=0.5,
    ),
    "agreement": MemoryTask(
        about="was or were, by the subject",
        distance="words from the subject to its verb",
        distances=(5, 10, 20, 50, 100),
        shortest=1,
        words=AGREEMENT_WORDS,
        classes=("was", "were"),
        draw=_agreement,
        shorter=0.5,
        last_noun=partial(_by_last_noun, forms=len(NOUNS)),
    ),
    "cloze": MemoryTask(
        about="the last word, by the first noun",
        distance="words from the first noun to the last word",
        distances=(5, 10, 20, 50, 100),
        shortest=1 + len(CLOZE_ENDING),
        words=CLOZE_WORDS,
        classes=tuple(PLACES.values()),
        draw=_cloze,
        shorter=0.5,
        last_noun=partial(_by_last_noun, forms=1),
    ),
}
