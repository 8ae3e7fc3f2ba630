"""The demo's data keeps its promises: right answers, one meaning a phrase, parts that share nothing, one
result a seed."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import defaultdict
from datetime import date, timedelta

import pytest

from seqloom.data.synthetic.pairs import (
    FORMS,
    LOCALES,
    DatePair,
    DatePhrases,
    DateReader,
    add_noise,
    copy_task,
    date_phrases,
    phrase_key,
    reverse_task,
    write_date,
)
from seqloom.errors import MissingExtraError, UsageError


@pytest.fixture(scope="module")
def phrases() -> DatePhrases:
    return date_phrases(3, train=4000, held_out=300)


@pytest.fixture(scope="module")
def reader() -> DateReader:
    return DateReader(LOCALES)


def everything(phrases: DatePhrases) -> tuple[DatePair, ...]:
    return phrases.train + phrases.held_out_years + phrases.held_out_forms


def bare(phrase: str) -> str:
    """Letters and digits only, in lower case and without accents. Written apart from `phrase_key`."""
    folded = unicodedata.normalize("NFD", phrase.replace("ı", "i").casefold())
    return "".join(c for c in folded if c.isalnum())


def signs(phrase: str) -> list[str]:
    return re.findall(r"\d\s*([./-])\s*(?=\d)", phrase)


def test_sizes(phrases: DatePhrases) -> None:
    assert (len(phrases.train), len(phrases.held_out_years), len(phrases.held_out_forms)) == (
        4000,
        300,
        300,
    )
    assert phrases.considered == 4600 + phrases.ambiguous
    assert phrases.locales == LOCALES
    assert 20 <= len({pair.locale for pair in phrases.train}) <= 40


def test_answers_are_right(phrases: DatePhrases) -> None:
    for phrase, iso, locale, form in everything(phrases):
        assert re.fullmatch(r"(19|20)\d\d-[01]\d-[0-3]\d", iso)
        written = write_date(date.fromisoformat(iso), locale, form)
        if locale.startswith("en"):
            phrase, written = (
                re.sub(r"0?(\d+)(st|nd|rd|th)\b", r"\1", text.lower()) for text in (phrase, written)
            )
        assert bare(phrase) == bare(written)
        assert signs(phrase) == signs(written)


def test_phrases_are_plain_text_of_fair_length(phrases: DatePhrases) -> None:
    for pair in everything(phrases):
        assert pair.phrase.isprintable()
        assert 0 < len(pair.phrase.strip()) <= len(pair.phrase) <= 60
        assert unicodedata.is_normalized("NFC", pair.phrase)


def test_noise_is_there_and_some_phrases_have_none(phrases: DatePhrases) -> None:
    clean = sum(
        p.phrase == write_date(date.fromisoformat(p.iso), p.locale, p.form) for p in phrases.train
    )
    assert 0.1 < clean / len(phrases.train) < 0.7
    texts = [pair.phrase for pair in phrases.train]
    assert any(re.search(r"\d(st|ND|rd|TH)\b", text) for text in texts)
    assert any("  " in text for text in texts)
    assert any(text.startswith(" ") for text in texts)
    assert any(text.endswith(" ") for text in texts)
    assert any(text.isupper() for text in texts)
    assert any(re.search(r"\d\.[^\W\d_]", text) for text in texts)  # a blank is missing: 30.Juni
    assert any(
        p.locale == "en_US" and p.form == "full" and "," not in p.phrase for p in phrases.train
    )
    assert any(p.locale == "de" and p.form == "long" and "." not in p.phrase for p in phrases.train)


def test_no_phrase_is_in_two_parts_nor_twice(phrases: DatePhrases) -> None:
    keys = [phrase_key(pair.phrase) for pair in everything(phrases)]
    assert len(set(keys)) == len(keys)
    assert len({bare(p.phrase) + str(signs(p.phrase)) for p in phrases.train}) == len(phrases.train)


def test_held_out_years_are_never_trained(phrases: DatePhrases) -> None:
    trained = {pair.iso[:4] for pair in phrases.train}
    held = {pair.iso[:4] for pair in phrases.held_out_years}
    assert len(held) == 20
    assert not held & trained
    assert {(p.locale, p.form) for p in phrases.held_out_years} <= {
        (p.locale, p.form) for p in phrases.train
    }


def test_held_out_forms_are_new_but_their_parts_are_known(phrases: DatePhrases) -> None:
    trained = {(pair.locale, pair.form) for pair in phrases.train}
    held = {(pair.locale, pair.form) for pair in phrases.held_out_forms}
    assert len(held) == len({locale for locale, _ in held}) == len(LOCALES) // 4
    assert not held & trained
    for locale, form in held:
        assert {"full": (locale, "long"), "long": (locale, "full")}[
            form
        ] in trained  # it has the names of the months
        assert any(other != locale and f == form for other, f in trained)
    assert {p.iso[:4] for p in phrases.held_out_forms} <= {p.iso[:4] for p in phrases.train}


def test_words_of_held_out_forms_stand_so_in_no_trained_phrase(phrases: DatePhrases) -> None:
    def words(pair: DatePair) -> str:
        return re.sub(r"\d+", "#", phrase_key(pair.phrase))

    assert not {words(p) for p in phrases.held_out_forms} & {words(p) for p in phrases.train}


def test_one_meaning_by_brute_force() -> None:
    """Every date of three years in every writing: what is kept is what only one date is written like."""
    locales, years = ["en_US", "en_GB", "hr", "pl", "cs", "es", "hu", "bg"], range(2003, 2006)
    forms = [*FORMS, "ordinal"]
    meanings: dict[str, set[str]] = defaultdict(set)
    for n in range(3 * 365 + 1):
        day = date(2003, 1, 1) + timedelta(n)
        for locale in locales:
            for form in forms[: None if locale.startswith("en") else -1]:
                meanings[rough_key(write_date(day, locale, form))].add(day.isoformat())
    reader = DateReader(locales, years)
    drawn = date_phrases(1, train=1500, held_out=60, locales=locales, years=years)
    for pair in everything(drawn):
        assert meanings[
            rough_key(write_date(date.fromisoformat(pair.iso), pair.locale, pair.form))
        ] == {pair.iso}
    ambiguous = 0
    for key, isos in meanings.items():
        assert {day.isoformat() for day in reader.dates(key)} == isos
        ambiguous += len(isos) > 1
    assert ambiguous > 1000
    assert drawn.ambiguous > 100


def rough_key(text: str) -> str:
    """What a reader who looks past case, points and leading zeros sees; for clean phrases only."""
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text.lower())
    text = re.sub(r"(?<!\d)\.|\.(?! ?\d)|,", "", text)
    text = re.sub(r"(?<=\d)\. (?=\d)", ".", text)
    return re.sub(r"\b0(?=\d)", "", text)


@pytest.mark.parametrize(
    ("phrase", "isos"),
    [
        ("03/04/2021", {"2021-03-04", "2021-04-03"}),
        ("3/4/2021", {"2021-03-04", "2021-04-03"}),
        ("26/03/2021", {"2021-03-26"}),
        ("04/04/2021", {"2021-04-04"}),
        ("03.04.2021", {"2021-04-03"}),
        ("26.03.21", {"1921-03-26", "2021-03-26"}),
        ("3 listopada 2021", {"2021-10-03", "2021-11-03"}),
        ("środa, 3 listopada 2021", {"2021-11-03"}),
        ("3. listopadu 2013", {"2013-11-03"}),
        ("mercredi 3 mars 2021", {"2021-03-03"}),
        ("mardi 3 mars 2021", set()),
        ("MARCH 3RD,2021", {"2021-03-03"}),
        ("29 Feb 2021", set()),
        ("31 Feb 2020", set()),
        ("3 Smarch 2021", set()),
        ("3 March 2100", set()),
    ],
)
def test_meanings(reader: DateReader, phrase: str, isos: set[str]) -> None:
    assert {day.isoformat() for day in reader.dates(phrase)} == isos


def test_keys() -> None:
    assert phrase_key(" 03/04/2021") == phrase_key("3/4/2021 ") != phrase_key("3.4.2021")
    assert phrase_key("04. 03. 2021.") == phrase_key("4.3.2021")
    assert (
        phrase_key("MARCH  3RD,2021") == phrase_key("March 3, 2021") != phrase_key("3 March 2021")
    )
    assert phrase_key("4 NİSAN 1900") == phrase_key("4 Nisan 1900")
    assert phrase_key("1/1/00") == "1 / 1 / 0"


def test_noise_never_changes_the_meaning(reader: DateReader) -> None:
    rng = random.Random(0)
    for locale, form in reader.shapes:
        for _ in range(25):
            day = date(rng.randint(1900, 2099), rng.randint(1, 12), rng.randint(1, 28))
            clean = write_date(day, locale, form)
            assert phrase_key(add_noise(clean, locale, form, rng)) == phrase_key(clean)
            assert day in reader.dates(clean)


def test_ordinals() -> None:
    written = [
        write_date(date(2021, 3, day), "en_GB", "ordinal")
        for day in (1, 2, 3, 4, 11, 12, 13, 20, 21, 22, 23, 24, 31)
    ]
    ordinals = "1st 2nd 3rd 4th 11th 12th 13th 20th 21st 22nd 23rd 24th 31st"
    assert written == [f"{ordinal} of March 2021" for ordinal in ordinals.split()]


def test_turkish_letters_change_case_as_in_turkish() -> None:
    def all_noise(text: str) -> set[str]:
        return {add_noise(text, "tr", "long", random.Random(seed)).strip() for seed in range(40)}

    assert {"3 NİSAN 2021", "3 nisan 2021"} <= all_noise(write_date(date(2021, 4, 3), "tr", "long"))
    assert {"3 KASIM 2021", "3 kasım 2021"} <= all_noise(
        write_date(date(2021, 11, 3), "tr", "long")
    )


def test_a_seed_gives_one_result_in_every_process() -> None:
    code = (
        "import hashlib; from seqloom.data.synthetic.pairs import date_phrases;"
        "print(hashlib.sha256(repr(date_phrases(7, train=300, held_out=40)).encode()).hexdigest())"
    )
    here = hashlib.sha256(repr(date_phrases(7, train=300, held_out=40)).encode()).hexdigest()
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == here


def test_global_random_is_left_alone_and_seeds_differ() -> None:
    random.seed(5)
    before = random.getstate()
    first, second = date_phrases(0, train=200, held_out=10), date_phrases(1, train=200, held_out=10)
    assert random.getstate() == before
    assert first != second
    assert not set(first.train) >= set(second.train)


def test_without_babel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "babel"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(MissingExtraError, match=r"the date phrases needs the extra `demo`"):
        date_phrases(train=10, held_out=0)


def test_importing_needs_no_babel() -> None:
    code = "import sys, seqloom.data.synthetic.pairs; print('babel' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        == "False\n"
    )


def test_nothing_held_out() -> None:
    drawn = date_phrases(0, train=50, held_out=0, locales=["fi"])
    assert (len(drawn.train), drawn.held_out_years, drawn.held_out_forms) == (50, (), ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"locales": ["en_GB", "xx_YY"]}, "'xx_YY'"),
        ({"locales": ["en-GB"]}, "'en-GB'"),
        ({"locales": ["fi", "fi"]}, "none twice"),
        ({"locales": []}, "at least one"),
        ({"train": 0}, "at least 1"),
        ({"held_out": -1}, "at least 0"),
        ({"years": range(2000, 2001)}, "at least two"),
        ({"years": range(10, 2000)}, "from 1000 to 9999"),
        ({"years": range(9990, 10001)}, "from 1000 to 9999"),
        (
            {"years": range(2000, 2002), "locales": ["fi", "sv"], "train": 9000, "held_out": 0},
            "were found among 36[56] days",
        ),
        ({"locales": ["fi"]}, "0 pairs of locale and form"),
    ],
)
def test_what_cannot_be_had(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        date_phrases(**arguments)  # type: ignore[arg-type]


def test_copy_and_reverse() -> None:
    copies, reversals = copy_task(4, 500, "xyz", (2, 5)), reverse_task(4, 500, "xyz", (2, 5))
    assert len(copies) == len(reversals) == 500
    assert {len(source) for source, _ in copies} == {2, 3, 4, 5}
    assert {letter for source, _ in copies for letter in source} == set("xyz")
    assert all(source == target for source, target in copies)
    assert all(list(target) == list(reversed(source)) for source, target in reversals)
    assert [source for source, _ in copies] == [source for source, _ in reversals]
    assert copies == copy_task(4, 500, "xyz", (2, 5)) != copy_task(5, 500, "xyz", (2, 5))
