"""Noise of T5 and BART: the rows of the papers, what is lost and what not, how often and how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare  # type: ignore[import-untyped]
from tests.campaigns.noise import NAMES, documents_of, examine, with_unknown

from seqloom.config import TrainConfig
from seqloom.data.encoding import noise as module
from seqloom.data.encoding.noise import (
    BART_NOISE,
    T5_NOISE,
    Denoising,
    Ids,
    NoiseOptions,
    apply_noise,
    check_noise,
    lengths_with_noise,
    noise_counts,
    sentinels_needed,
    text_length,
)
from seqloom.errors import UsageError
from seqloom.tasks.denoising.noisy_windows import noisy_windows
from seqloom.text.tokenizers import train_tokenizer

WORDS = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
X, Y, Z, UNK, STOP = 90, 91, 92, 3, 50
TEXT = np.arange(10, 10 + len(WORDS))


def options(**changes: Any) -> NoiseOptions:
    protected = np.zeros(200, bool)
    protected[[UNK, *range(90, 200)]] = True
    ends = np.zeros(200, bool)
    ends[STOP] = True
    settings: dict[str, Any] = {"density": 0.15, "span": 3.0, "mask": X, **changes}
    return NoiseOptions(
        sentinels=np.arange(90, 120), protected=protected, ends_sentence=ends, **settings
    )


def words(ids: Ids) -> str:
    names = {X: "X", Y: "Y", Z: "Z", 58: "apple"}
    return " ".join(names.get(int(i)) or WORDS[int(i) - 10] for i in ids)


class Chosen:
    """A generator that gives what it was told to."""

    def __init__(self, **given: list[Any]) -> None:
        self.given = {name: iter(values) for name, values in given.items()}

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: next(self.given[name])


def drawn(*corrupted: str) -> np.ndarray[Any, Any]:
    """Random numbers that corrupt these words."""
    return np.array([0.0 if word in corrupted else 0.99 for word in WORDS])


@pytest.mark.parametrize(
    ("name", "random", "source", "target"),
    [
        (
            "prefix-lm",
            Chosen(integers=[4]),
            "Thank you for inviting",
            "me to your party last week .",
        ),
        (
            "bert",
            Chosen(
                random=[drawn("for", "inviting", "last"), drawn("last")],
                integers=[np.array([57])],
            ),
            "Thank you X X me to your party apple week .",
            " ".join(WORDS),
        ),
        (
            "deshuffling",
            Chosen(permutation=[np.array([7, 4, 2, 6, 5, 10, 8, 1, 3, 9, 0])]),
            "party me for your to . last you inviting week Thank",
            " ".join(WORDS),
        ),
        (
            "mass",
            Chosen(random=[drawn("for", "inviting", "last")]),
            "Thank you X X me to your party X week .",
            " ".join(WORDS),
        ),
        (
            "iid-spans",
            Chosen(random=[drawn("for", "inviting", "last")]),
            "Thank you X me to your party Y week .",
            "X for inviting Y last Z",
        ),
        (
            "iid-drop",
            Chosen(random=[drawn("for", "inviting", "last")]),
            "Thank you me to your party week .",
            "for inviting last",
        ),
    ],
)
def test_the_rows_of_the_paper(name: str, random: Any, source: str, target: str) -> None:
    """Raffel et al. 2020, table 3, with the noise that it shows."""
    found = T5_NOISE[name](TEXT, options(), random)
    assert (words(found.source), words(found.target)) == (source, target)


def test_a_row_of_the_paper_from_text_to_text() -> None:
    """Through a tokenizer: what is read and what is to be written, spelled."""
    text = " ".join(WORDS)
    tokenizer = train_tokenizer([text], "words", 40).with_sentinels(4)
    windows = noisy_windows(TrainConfig(noise=("iid-spans",), window=4), tokenizer)
    ids = np.asarray(tokenizer.encode([text])[0], np.int64)
    chosen: Any = Chosen(random=[drawn("for", "inviting", "last")])
    found = T5_NOISE["iid-spans"](ids, windows.options, chosen)
    assert tokenizer.pieces(found.source.tolist()) == (
        ["Thank", "you", "<extra_id_0>", "me", "to", "your", "party", "<extra_id_1>", "week", "."]
    )
    assert tokenizer.pieces(found.target.tolist()) == (
        ["<extra_id_0>", "for", "inviting", "<extra_id_1>", "last", "<extra_id_2>"]
    )
    assert tokenizer.decode(found.source.tolist()) == "Thank you me to your party week ."


def test_the_row_of_random_spans() -> None:
    """The table's noise begins clean and ends clean, which no draw gives: here the mask itself is given."""
    corrupted = np.array(
        [word in ("for", "inviting", "me", "your", "party", "last") for word in WORDS]
    )
    found = module._with_sentinels(TEXT, corrupted, options())
    assert words(found.source) == "Thank you X to Y week ."
    assert words(found.target) == "X for inviting me Y your party last Z"


def sampled(name: str, texts: int, length: int, **changes: Any) -> list[tuple[Ids, Denoising]]:
    given, results = options(**changes), []
    for number in range(texts):
        text = np.random.default_rng([7, number]).integers(10, 90, size=length)
        text[number % length] = UNK
        found = apply_noise((name,), text, given, np.random.default_rng([1, number]))
        results.append((text, found))
    return results


@pytest.mark.parametrize("name", ["iid-spans", "random-spans"])
def test_source_and_target_rebuild_the_text(name: str) -> None:
    """Sentinels in their order, the closing one last, nothing lost, no protected id touched."""
    for text, found in sampled(name, 300, 97):
        spans: dict[int, list[int]] = {}
        for one in found.target.tolist():
            if one >= X:
                spans[one] = []
            else:
                spans[next(reversed(spans))].append(one)
        assert list(spans) == list(range(X, X + len(spans)))
        assert spans.pop(X + len(spans) - 1) == []
        rebuilt: list[int] = []
        for one in found.source.tolist():
            rebuilt += spans.pop(one) if one >= X else [one]
        assert rebuilt == text.tolist()
        assert not spans
        assert not found.corrupted[text == UNK].any()


@pytest.mark.parametrize("name", ["iid-drop", "bert", "mass", "deletion", "masking", "prefix-lm"])
def test_what_is_left_and_what_is_wanted(name: str) -> None:
    for text, found in sampled(name, 200, 60):
        clean, noisy = text[~found.corrupted], text[found.corrupted]
        if name in ("iid-drop", "prefix-lm"):
            assert found.source.tolist() == clean.tolist()
            assert found.target.tolist() == noisy.tolist()
            continue
        assert found.target.tolist() == text.tolist()
        kept = found.source if name == "deletion" else found.source[~found.corrupted]
        assert kept.tolist() == clean.tolist()
        if name == "mass":
            assert (found.source[found.corrupted] == X).all()
        if name == "bert":
            other = found.source[found.corrupted]
            assert ((other == X) | (other < 90)).all()
            assert UNK not in other.tolist()


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("random-spans", 0.15),
        ("iid-spans", 0.15),
        ("bert", 0.15),
        ("mass", 0.15),
        ("iid-drop", 0.15),
    ],
)
def test_how_much_is_corrupted(name: str, share: float) -> None:
    """A token of each text is protected, which random spans may meet."""
    counts = [found.corrupted.sum() for _, found in sampled(name, 2000, 100)]
    assert np.mean(counts) / 99 == pytest.approx(share, abs=0.004)
    if name == "bert":
        replaced = [
            np.sum((found.source != X) & found.corrupted) for _, found in sampled(name, 2000, 100)
        ]
        assert np.sum(replaced) / np.sum(counts) == pytest.approx(0.1, abs=0.01)


def test_the_lengths_of_random_spans_are_those_of_all_partitions() -> None:
    """15 corrupted tokens in 5 spans: the first has length k in C(14 - k, 3) of the C(14, 4) partitions."""
    counts = np.zeros(12)
    for seed in range(10_000):
        length = module._partition(15, 5, np.random.default_rng(seed))[0]
        counts[length] += 1
    ways = np.array([0, *(np.prod([14 - k - i for i in range(3)]) / 6 for k in range(1, 12))])
    assert ways.sum() == 1001
    assert chisquare(counts[1:], ways[1:] / 1001 * 10_000).pvalue > 0.001


def test_infilling_covers_its_share_with_spans_of_poisson_lengths() -> None:
    """Nothing but the spans is lost, and a span of no tokens is a mask too."""
    counts: list[int] = []
    for text, found in sampled("infilling", 1500, 101, density=0.3):
        kept = [one for one in found.source.tolist() if one not in (X, UNK)]
        clean = text[~found.corrupted & (text != UNK)]
        assert kept == clean.tolist()
        assert 29 <= found.corrupted.sum() <= 30
        counts.append(int((found.source == X).sum()))
    # spans until 30 tokens are covered: about 30 / 3 of them, and one that is cut
    assert np.mean(counts) == pytest.approx(10.5, abs=0.5)


def test_sentences_and_documents_are_turned_and_nothing_else() -> None:
    text = np.array([10, 11, STOP, 12, STOP, 13, 14, 15, STOP, 16])
    orders = set()
    for seed in range(200):
        found = BART_NOISE["sentence-permutation"](text, options(), np.random.default_rng(seed))
        sentences = [[10, 11, STOP], [12, STOP], [13, 14, 15, STOP], [16]]
        orders.add(tuple(found.source.tolist()))
        assert sorted(found.source.tolist()) == sorted(text.tolist())
        assert all(str(one)[1:-1] in str(found.source.tolist()) for one in sentences)
    assert len(orders) == 24
    turned = {
        tuple(BART_NOISE["document-rotation"](text, options(), np.random.default_rng(seed)).source)
        for seed in range(200)
    }
    assert turned == {tuple(np.roll(text, -first)) for first in range(len(text))}


def test_kinds_of_bart_follow_each_other() -> None:
    text = np.array([10, 11, STOP, 12, 13, STOP] * 10)
    names = ("sentence-permutation", "infilling")
    found = apply_noise(names, text, options(density=0.3), np.random.default_rng(3))
    assert found.target.tolist() == text.tolist()
    assert X in found.source.tolist()
    assert found.source.tolist() != text.tolist()
    for wrong in (
        (),
        ("bert", "mass"),
        ("infilling", "infilling"),
        ("x",),
        ("random-spans", "infilling"),
    ):
        with pytest.raises(UsageError, match=r"train\.noise must be"):
            check_noise(wrong)


def test_the_arithmetic_of_the_paper() -> None:
    """512 ids of a source are 568 tokens of text, 85 of them corrupted in 28 spans (Raffel et al. 2020)."""
    assert text_length(512, 0.15, 3.0) == 568
    assert noise_counts(568, 0.15, 3.0) == (85, 28)
    assert lengths_with_noise(568, 0.15, 3.0) == (512, 115)
    for length in range(2, 1000):
        # as run_t5_mlm_flax of transformers counts; its target lacks the sentinel that closes ours
        noise = round(length * 0.15)
        spans = round(noise / 3.0)
        if noise and spans:
            wanted = (length - noise + spans + 1, noise + spans + 1 + 1)
            assert lengths_with_noise(length, 0.15, 3.0) == wanted
    for source in range(3, 400):
        length = text_length(source, 0.15, 3.0)
        assert lengths_with_noise(length, 0.15, 3.0)[0] <= source
        assert lengths_with_noise(length + 1, 0.15, 3.0)[0] > source


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 40])
@pytest.mark.parametrize("name", [*T5_NOISE, *BART_NOISE])
def test_short_texts(name: str, length: int) -> None:
    text = np.arange(10, 10 + length)
    for density, span in ((0.15, 3.0), (0.9, 1.0), (0.5, 20.0)):
        given = options(density=density, span=span)
        found = apply_noise((name,), text, given, np.random.default_rng(length))
        assert len(found.corrupted) == length
        sentinels = {one for one in found.target.tolist() if one >= X}
        assert len(sentinels) <= max(sentinels_needed((name,), length, density, span), 1)


@pytest.mark.parametrize("names", NAMES, ids=",".join)
def test_laws_over_many_documents(names: tuple[str, ...], tmp_path: Path) -> None:
    """`python -m tests.campaigns.noise` runs this over any text."""
    random = np.random.default_rng(5)
    path = tmp_path / "texts.txt"
    sentences = [
        " ".join(random.choice(["we", "see", "the", "old", "sea", "at", "night"], 7)) + "."
        for _ in range(4800)
    ]
    paragraphs = [" ".join(sentences[i : i + 12]) for i in range(0, len(sentences), 12)]
    path.write_text("\n\n".join(paragraphs))
    tokenizer, documents = documents_of([str(path)], "words", 400, 64)
    found = examine(names, with_unknown(documents, random), tokenizer, 64)
    assert found.documents == 400
    assert found.corrupted == pytest.approx(found.expected, rel=0.05, abs=1)
    assert (found.unknown_lost, found.not_rebuilt, found.not_repeated) == (0, 0, 0)
    # a cut or a rotation has only 62 places
    few = {"prefix-lm", "document-rotation"} & set(names)
    assert found.same_in_two_epochs <= (20 if few else 0)
    p_value = found.p_value()
    assert (p_value is None) == (not {"random-spans", "infilling"} & set(names))
    assert p_value is None or p_value > 0.001
