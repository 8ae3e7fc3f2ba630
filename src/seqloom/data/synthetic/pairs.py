"""Synthetic pairs: dates in many locales for the demo, and strings to copy or reverse.

A date phrase is a day as people write it, and its answer is the day in ISO 8601, `YYYY-MM-DD`. Patterns and
names come from Babel (the Unicode CLDR), so the pairs of a seed are the same wherever the version of Babel is
the same.

What a phrase may mean is found by reading it with every pattern of every locale in use: "03/04/2021" is April
in London and March in New York, "3 listopada 2021" is October in Zagreb and November in Warsaw, "26.3.21" has
no century. Such phrases are left out and counted.
"""

from __future__ import annotations

import random
import re
import unicodedata
from calendar import isleap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from types import ModuleType
from typing import NamedTuple

from seqloom.errors import MissingExtraError, UsageError

# fmt: off
LOCALES = (
    "en_US", "en_GB", "en_IN", "en_CA", "de", "de_AT", "fr", "fr_CA", "es", "es_MX", "it", "nl", "pt",
    "pt_PT", "sv", "da", "nb", "fi", "is", "pl", "cs", "sk", "hu", "ro", "hr", "sl", "et", "lv", "lt", "tr",
    "id", "el", "ru", "uk", "bg", "ca",
)
# fmt: on
"""Locales with an alphabet, the Gregorian calendar and the digits 0 to 9."""

FORMS = ("full", "long", "medium", "short", "numeric")
"""CLDR's four lengths, and day, month and whole year in numbers. English has a sixth, `ordinal`: "3rd of
March 2021"."""

YEARS = range(1900, 2100)

Writing = tuple[str, str]
"""(locale, form)"""

_TOKENS = re.compile(r"\d+|[^\W\d_]+|(?<=\d)\s*[^\w\s,]+\s*(?=\d)")
_NUMBER = re.compile(r"\d+")
_DAY = re.compile(r"\b\d{1,2}\b")
_ORDINAL_ENDING = re.compile(r"(?<=\d)(st|nd|rd|th)\b")
_LOOSE_POINT = re.compile(r"(?<!\d)\.|\.(?!\s*\d)")  # not one between two numbers
_PROBES = [date(2077, month, day) for month in range(1, 13) for day in range(13, 20)]
"""Every month with every day of the week; day, month, year and year of the century are four different
numbers."""
_MOST_MISSES = 2000
"""So many draws without a new phrase that means one date, and there are hardly more."""


class DatePair(NamedTuple):
    """A date as it is written, with noise, the same date as `YYYY-MM-DD`, and its locale and form."""

    phrase: str
    iso: str
    locale: str
    form: str


@dataclass(frozen=True)
class DatePhrases:
    """Date phrases in three parts that share no phrase, not even up to letter case, spaces and points.

    train           the pairs to train on
    held_out_years  the same writings, but years that `train` never names
    held_out_forms  the years of `train`, but writings (locale, form) that it never uses, and of these only
                    phrases whose words occur so in no writing of `train`; it knows the locale and the form
                    in other writings
    considered      distinct phrases that were drawn, up to letter case, spaces and points
    ambiguous       how many of them were left out because two writings read them as different dates
    """

    train: tuple[DatePair, ...]
    held_out_years: tuple[DatePair, ...]
    held_out_forms: tuple[DatePair, ...]
    considered: int
    ambiguous: int
    locales: tuple[str, ...]


def date_phrases(
    seed: int = 0,
    train: int = 40_000,
    held_out: int = 1_000,
    *,
    locales: Sequence[str] = LOCALES,
    years: range = YEARS,
) -> DatePhrases:
    """Draws `train` pairs and twice `held_out` more: of years, and of forms, that the training pairs lack.

    Every tenth year is held out, and the form `full` or `long` of up to every fourth locale. A two-digit year
    may mean any year of `years` that ends so. Raises MissingExtraError without Babel, UsageError if a
    locale is unknown or so many phrases that mean one date cannot be had.
    """
    if train < 1 or held_out < 0:
        raise UsageError(
            f"train must be at least 1 and held_out at least 0, but they are {train} and {held_out}"
        )
    if len(years) < 2 or min(years) < 1000 or max(years) > 9999:
        raise UsageError(
            f"years must be at least two, from 1000 to 9999, but are {years}; give for example range(1900,"
            " 2100)"
        )
    rng = random.Random(seed)
    reader = DateReader(locales, years)
    held_years = set(rng.sample(years, max(1, len(years) // 10)))
    held_writings = _held_writings(reader, rng, len(locales) // 4)
    known_writings = [writing for writing in reader.shapes if writing not in held_writings]
    known_shapes = {shape for writing in known_writings for shape in reader.shapes[writing]}
    days: list[date] = []
    held_days: list[date] = []
    for year in years:
        first = date(year, 1, 1)
        of_year = [first + timedelta(number) for number in range(365 + isleap(year))]
        (held_days if year in held_years else days).extend(of_year)
    draw = _Draw(reader, rng)
    of_years = draw(held_out, held_days, known_writings)
    of_forms = draw(held_out, days, held_writings, known_shapes)
    of_train = draw(train, days, known_writings)
    return DatePhrases(of_train, of_years, of_forms, len(draw.seen), draw.ambiguous, tuple(locales))


def write_date(day: date, locale: str, form: str) -> str:
    """The date as Babel writes it, with single spaces. `form` is one of FORMS, or `ordinal` in English."""
    dates = _babel_dates()
    if form == "numeric":
        text = dates.format_skeleton("yMd", day, locale=locale)
    elif form == "ordinal":
        text = f"{_ordinal(day.day)} of {dates.format_date(day, 'MMMM y', locale=locale)}"
    else:
        text = dates.format_date(day, form, locale=locale)
    # Babel has narrow and no-break spaces
    return unicodedata.normalize("NFC", " ".join(text.split()))


def phrase_key(phrase: str) -> str:
    """The part of a phrase that has a meaning: its words and numbers, and the signs between two numbers.

    Letter case, accents, spaces, commas, points beside words, leading zeros and English ordinals are removed.
    So two phrases that a hasty reader might confuse have one key, and `add_noise` never changes it.
    """
    decomposed = unicodedata.normalize("NFKD", phrase.casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c)).replace("ı", "i")
    tokens = _TOKENS.findall(_ORDINAL_ENDING.sub("", plain))
    return " ".join(token.strip().lstrip("0") or "0" for token in tokens)


class DateReader:
    """Reads a phrase in every writing at once.

    With numbers replaced by #, the keys of a writing have few shapes: one a month, or one a month and day of
    the week. One table maps the shapes of all writings to what their numbers are.
    """

    def __init__(self, locales: Sequence[str], years: range = YEARS) -> None:
        """Raises MissingExtraError without Babel, UsageError if Babel has no such locale."""
        _check_locales(locales)
        self.years = years
        self.shapes: dict[Writing, set[str]] = {}
        self._weekdays: dict[str, dict[_DateReading, set[int]]] = {}
        for locale in locales:
            for form in (*FORMS, "ordinal") if _language(locale) == "en" else FORMS:
                shapes = self.shapes[locale, form] = set()
                for day in _PROBES:
                    shape, reading = _reading(day, phrase_key(write_date(day, locale, form)))
                    shapes.add(shape)
                    self._weekdays.setdefault(shape, {}).setdefault(reading, set()).add(
                        day.weekday()
                    )

    def dates(self, phrase: str) -> set[date]:
        """Every date in `years` that the phrase means in some writing."""
        shape, numbers = _split(phrase_key(phrase))
        found: set[date] = set()
        for reading, weekdays in self._weekdays.get(shape, {}).items():
            found.update(
                day for day in reading.dates(numbers, self.years) if day.weekday() in weekdays
            )
        return found


class _DateReading(NamedTuple):
    """What the numbers of a shape are, in order, and the month that its words name (0: a number does)."""

    roles: tuple[str, ...]
    month: int

    def dates(self, numbers: Sequence[int], years: range) -> list[date]:
        """The dates in `years`; none where no such day exists."""
        parts = dict(zip(self.roles, numbers, strict=True))
        dates = []
        for year in years:
            if (
                parts.get("year", year) != year
                or parts.get("year of a century", year % 100) != year % 100
            ):
                continue
            try:
                dates.append(date(year, parts.get("month", self.month), parts["day"]))
            except ValueError:
                continue
        return dates


def _reading(day: date, key: str) -> tuple[str, _DateReading]:
    """The shape of a date's key, and which part of the date each of its numbers is."""
    shape, numbers = _split(key)
    part_of = {
        day.day: "day",
        day.month: "month",
        day.year: "year",
        day.year % 100: "year of a century",
    }
    roles = tuple(part_of[number] for number in numbers)
    month = 0 if "month" in roles else day.month
    return shape, _DateReading(roles, month)


def _split(key: str) -> tuple[str, list[int]]:
    """A key with `#` for its numbers, and its numbers."""
    return _NUMBER.sub("#", key), [int(number) for number in _NUMBER.findall(key)]


class _Draw:
    """Draws pairs; remembers the keys of all phrases so far and counts the ambiguous ones."""

    def __init__(self, reader: DateReader, rng: random.Random) -> None:
        self.reader, self.rng = reader, rng
        self.seen: set[str] = set()
        self.ambiguous = 0

    def __call__(
        self,
        count: int,
        days: list[date],
        writings: list[Writing],
        known_shapes: set[str] | None = None,
    ) -> tuple[DatePair, ...]:
        """`count` pairs with new keys that mean one date, none of them in a shape of `known_shapes`."""
        pairs: list[DatePair] = []
        misses = 0  # in a row
        while writings and len(pairs) < count and misses < _MOST_MISSES:
            misses += 1
            day, (locale, form) = self.rng.choice(days), self.rng.choice(writings)
            text = write_date(day, locale, form)
            key = phrase_key(text)
            if key in self.seen or (known_shapes and _split(key)[0] in known_shapes):
                continue
            self.seen.add(key)
            if self.reader.dates(text) == {day}:
                misses = 0
                pairs.append(
                    DatePair(add_noise(text, locale, form, self.rng), day.isoformat(), locale, form)
                )
            else:
                self.ambiguous += 1
        if len(pairs) < count:
            raise UsageError(
                f"{count} distinct date phrases that mean one date must exist, but {len(pairs)} were found"
                f" among {len(days)} days and {len(writings)} pairs of locale and form; ask for fewer, or"
                " give more locales or years"
            )
        return tuple(pairs)


def _held_writings(reader: DateReader, rng: random.Random, count: int) -> list[Writing]:
    """Up to `count` writings, of as many locales: `full` or `long`, and most of the shapes in no other
    writing.

    These two forms of a locale share the names of the months, so the one that stays teaches those of the
    other.
    """
    spread = Counter(shape for shapes in reader.shapes.values() for shape in shapes)
    own: dict[str, list[Writing]] = {}
    for (locale, form), shapes in reader.shapes.items():
        if form in ("full", "long") and 2 * sum(spread[shape] == 1 for shape in shapes) > len(
            shapes
        ):
            own.setdefault(locale, []).append((locale, form))
    return [rng.choice(own[locale]) for locale in rng.sample(sorted(own), min(count, len(own)))]


def add_noise(text: str, locale: str, form: str, rng: random.Random) -> str:
    """A date as it may be typed: case, ordinals, commas, points and spaces change, but not its meaning."""
    if _language(locale) == "en" and form in ("full", "long", "medium") and rng.random() < 0.3:
        text = _DAY.sub(lambda found: _ordinal(int(found[0])), text, count=1)
    if rng.random() < 0.15:
        text = text.replace(", ", " ")
    if rng.random() < 0.15:
        text = _LOOSE_POINT.sub("", text)
    if rng.random() < 0.1:
        text = re.sub(r"([.,]) ", r"\1", text)
    spaces = [index for index, character in enumerate(text) if character == " "]
    if spaces and rng.random() < 0.1:
        space = rng.choice(spaces)
        text = f"{text[:space]} {text[space:]}"
    text = _change_case(text, locale, rng.choice(("as is", "as is", "lower", "upper")))
    return " " * (rng.random() < 0.05) + text + " " * (rng.random() < 0.05)


def _change_case(text: str, locale: str, case: str) -> str:
    turkish = _language(locale) == "tr"  # its i keeps the dot, its ı has none
    if case == "upper":
        text = (text.replace("i", "İ") if turkish else text).upper()
    elif case == "lower":
        text = (text.replace("I", "ı").replace("İ", "i") if turkish else text).lower()
    return unicodedata.normalize("NFC", text)


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _language(locale: str) -> str:
    return locale.split("_")[0]


def _babel_dates() -> ModuleType:
    try:
        import babel.dates
    except ImportError:
        raise MissingExtraError("the date phrases", "demo") from None
    return babel.dates


def _check_locales(locales: Sequence[str]) -> None:
    _babel_dates()
    from babel import Locale, UnknownLocaleError

    for locale in locales:
        try:
            Locale.parse(locale)
        except (UnknownLocaleError, ValueError):
            raise UsageError(
                f"a locale must be one that Babel knows, such as en_GB, but is {locale!r}"
            ) from None
    if not locales or len(set(locales)) < len(locales):
        raise UsageError(
            f"locales must be at least one, and none twice, but are {', '.join(locales) or 'none'}"
        )


def copy_task(
    seed: int, count: int, alphabet: str = "abcdefgh", lengths: tuple[int, int] = (1, 10)
) -> list[tuple[str, str]]:
    """`count` random strings, each with itself; lengths are uniform from the first bound to the second."""
    rng = random.Random(seed)
    strings = ["".join(rng.choices(alphabet, k=rng.randint(*lengths))) for _ in range(count)]
    return [(string, string) for string in strings]


def reverse_task(
    seed: int, count: int, alphabet: str = "abcdefgh", lengths: tuple[int, int] = (1, 10)
) -> list[tuple[str, str]]:
    """The strings of `copy_task`, each with its letters in reverse order."""
    return [(string, string[::-1]) for string, _ in copy_task(seed, count, alphabet, lengths)]
