"""ARPA text: what is written comes back, is what KenLM reads, and what is wrong is said with its line."""

from __future__ import annotations

import itertools
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from seqloom.errors import DataError, UsageError
from seqloom.models.ngrams import arpa, arpa_writer
from seqloom.models.ngrams.arpa import read_arpa
from seqloom.models.ngrams.arpa_writer import write_arpa
from seqloom.models.ngrams.ngram import Ngram, NgramConfig

pytestmark = pytest.mark.usefixtures("one_thread")

BOS, EOS, UNK, FIRST = 1, 2, 3, 16
WORDS = ["a", "über", "\u3000", "日本", "\\end\\", "e", "f", "g"]
"""White space that is not ASCII is no white space here."""


def fitted(order: int, prune: tuple[int, ...] = ()) -> Ngram:
    draw = np.random.default_rng(order)
    ids = draw.choice([EOS, EOS, UNK, *range(FIRST, FIRST + len(WORDS) - 1)], 600)
    return Ngram.fit(
        NgramConfig(vocabulary_size=FIRST + len(WORDS), order=order, prune=prune[:order]), ids
    )


def text_of(model: Ngram) -> bytes:
    return b"".join(write_arpa(model, WORDS))


TEXT = b"""
\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-99 <s> -0.5
-0.7 </s>
-2 <unk> 0
-1 b -0.25
-0.5 a

\\2-grams:
-0.2 b </s>
-0.1 <s> b 0.125
-0.3 b\ta -1
-0.4 a b

\\3-grams:
-0.05 b a b

\\end\\
"""


def read(text: bytes) -> arpa.Arpa:
    return read_arpa(text.splitlines(keepends=True), "x.arpa")


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_what_is_written_comes_back(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arpa, arpa_writer):
        monkeypatch.setattr(module, "LINES", 7)  # many pieces
    for prune in ((), (0, 1)):
        model = fitted(order, prune)
        found = read(text_of(model))
        assert found.words == [word.encode() for word in WORDS]
        assert found.config == NgramConfig(
            vocabulary_size=FIRST + len(WORDS), order=order, sizes=model.config.sizes
        )
        for name, tensor in model.state_dict().items():
            assert torch.equal(found.model.state_dict()[name], tensor), name
        assert text_of(found.model) == text_of(model)
        assert b"\n-99\t<s>" in text_of(model)  # never predicted


def test_a_text_says_what_its_numbers_say() -> None:
    found = read(TEXT)
    assert found.words == [b"b", b"a"]
    assert found.config.sizes == (18, 4, 1)
    b, a = FIRST, FIRST + 1
    expected = {
        (BOS, b): -0.1,
        (BOS, a): -0.5 - 0.5,
        (b, a): -0.3,
        (b, a, b): -0.05,
        (b, a, EOS): -1 + 0 - 0.7,  # `b a` and `a` as histories; `a` has no weight
        (BOS, b, a): 0.125 - 0.3,
        (BOS, b, UNK): 0.125 - 0.25 - 2,
        (UNK, a): -0.5,
    }
    for words, log10_p in expected.items():
        scored, _ = found.model.log_probs(
            torch.tensor([words[:-1]]), torch.tensor([words[1:]]), None
        )
        assert float(scored[0, -1]) == pytest.approx(log10_p * math.log(10), abs=1e-6), words
        logits, _ = found.model(torch.tensor([words[:-1]]), None)
        assert float(logits[0, -1, words[-1]]) == pytest.approx(log10_p * math.log(10), abs=1e-6), (
            words
        )


def test_lines_may_end_as_in_windows_and_unk_may_be_missing() -> None:
    whole, crlf = read(TEXT), read(TEXT.replace(b"\n", b"\r\n"))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(crlf.model.state_dict()[name], tensor)
    without = read(TEXT.replace(b"-2 <unk> 0\n", b"").replace(b"ngram 1=5", b"ngram 1=4"))
    assert float(without.model.log_prob[UNK]) == pytest.approx(-100 * math.log(10))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (rb"\\data", rb"data", 2, r"must have a line \\data\\, but begins with `data"),
        (rb"ngram 2=4", rb"ngram 3=4", 4, "count of order 2 must stand here"),
        (rb"ngram 2=4", rb"ngram 2=" + b"9" * 5000, 4, "at most 18 digits"),
        (rb"ngram 2=4", rb"ngram " + b"2" * 5000 + b"=4", 4, "at most 18 digits"),
        (rb"(ngram .*\n)+", b"", 4, "must come lines such as"),
        (
            rb"ngram 1=5",
            rb"ngram 1=6",
            14,
            "counts more of order 1, log10 p word and perhaps .* must stand here, but here is `.2-grams:`",
        ),
        (
            rb"ngram 1=5",
            rb"ngram 1=4",
            12,
            r"\\2-grams: must stand here, as \\data\\ counts 4 of order 1, but here is `-0.5 a`",
        ),
        (rb"ngram 3=1", rb"ngram 3=2", 23, "counts more of order 3"),
        (rb"ngram 3=1", rb"ngram 3=0", 21, r"\\end\\ must stand here"),
        (rb"\\2-grams", rb"\\3-grams", 14, r"\\2-grams: must stand here"),
        (rb"-0.4 a b\n\n\\3-grams:\n", rb"-0.4 a b\n\n", 20, r"\\3-grams: must stand here"),
        (rb"\\end\\\n", b"", 23, r"must have \\end\\ and end with"),
        (rb"(?s)-0.3 b.*", b"", 17, "the text ends here, but .* counts 2 more of order 2"),
        (rb"-1 b -0.25", rb"-1 b minus", 11, "must be a finite number, but is `minus`"),
        (rb"-1 b -0.25", rb"-1 b -inf", 11, "must be a finite number"),
        (rb"-1 b -0.25", rb"-1 b -1e999", 11, "must be a finite number"),
        (rb"-1 b -0.25", rb"1 b -0.25", 11, "at most 0"),
        (rb"-1 b -0.25", rb"nan b -0.25", 11, "a number of at most 0, but is `nan`"),
        (rb"-1 b -0.25", rb"-1_0 b -0.25", 11, "a number of at most 0, but is `-1_0`"),
        (rb"-0.05 b a b", rb"-0.05 b a b -0.1", 21, "must be 0, as nothing is longer"),
        (rb"-0.05 b a b", rb"-0.05 b a b 0 0", 21, "log10 p word word word and perhaps"),
        (rb"-0.4 a b", rb"-0.4 a", 18, "log10 p word word and perhaps a weight must stand here"),
        (rb"-0.4 a b", rb"-0.4 a c", 18, "must be among the 1-grams, but `c` is not"),
        (rb"-0.05 b a b", rb"-0.05 a a b", 21, "here the first 2 are not"),
        (rb"-99 <s>", rb"-99 s", 12, "but `<s>` is missing"),
        (rb"(?s)\Z", b"more\n", 24, "nothing may follow"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    old: bytes, new: bytes, line: int, message: str
) -> None:
    text, changed = re.subn(
        old, lambda _: new.replace(b"\\\\", b"\\").replace(b"\\n", b"\n"), TEXT, count=1
    )
    assert changed
    with pytest.raises(DataError, match=message) as caught:
        read(text)
    assert (caught.value.path, caught.value.line) == ("x.arpa", line)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_no_arpa_text_is_refused_after_some_lines() -> None:
    endless = itertools.repeat(b"some text\n")
    with pytest.raises(DataError, match=r"within 1,000 lines, but begins with `some text`"):
        read_arpa(endless, "x.arpa")


ODD_FIELDS = [
    b"",
    b" ",
    b"1e999",
    b"-1e39",
    b"-1e-999",
    b"-inf",
    b"nan",
    b"9" * 5000,
    b"\xff",
    b"\0",
]
ODD_FIELDS += [
    b"<s>",
    b"</s>",
    b"<unk>",
    b"\\end\\",
    b"\\data\\",
    "\u0663".encode(),
    b"0x1p3",
    b"1_0",
]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_text_is_read_or_refused_in_a_short_line(seed: int) -> None:
    """Fields replaced, bytes changed, parts left out or repeated: never another error, and a model that is
    read gives every word a probability."""
    draw = random.Random(seed)
    read_well, messages = 0, list[str]()
    for _ in range(2000):
        text = bytearray(TEXT)
        for _ in range(draw.randint(1, 3)):
            at, end = sorted(draw.choices(range(len(text) + 1), k=2))
            end = min(end, at + draw.randint(0, 12))
            field = draw.choice(
                [*ODD_FIELDS, bytes([draw.randrange(256)]), bytes(text[at:end] * 2)]
            )
            text[at:end] = field
        try:
            found = read(bytes(text))
        except DataError as error:
            messages.append(str(error))
            continue
        read_well += 1
        logits, _ = found.model(torch.tensor([[BOS]]), None)
        assert not bool(torch.isnan(logits).any())
    assert read_well >= 10
    assert max(map(len, messages)) < 2000
    assert not any("\n" in message for message in messages)


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(DataError, match="must have a line"):
        read(b"")


@pytest.mark.parametrize("word", ["", "a b", "tab\t", "line\n", "a", "<s>", "<unk>", "<UNK>"])
def test_a_word_that_would_not_come_back_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="must be new and hold no white space"):
        write_arpa(fitted(2), [*WORDS[:-1], word])


def test_words_must_be_the_models() -> None:
    with pytest.raises(UsageError, match="8 words, but was given 7"):
        write_arpa(fitted(2), WORDS[:-1])


@pytest.mark.parametrize("order", [2, 3, 5])
def test_kenlm_reads_what_is_written(order: int, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    model = fitted(order, (0, 0, 1))
    path = tmp_path / "model.arpa"
    path.write_bytes(text_of(model))
    peer = kenlm.Model(str(path))
    draw = np.random.default_rng(0)
    for _ in range(30):
        ids = draw.integers(FIRST, FIRST + len(WORDS), draw.integers(0, 12)).tolist()
        ids = [UNK if WORDS[i - FIRST] == "\u3000" else i for i in ids]
        expected = [
            log10_p
            for log10_p, _, _ in peer.full_scores(
                " ".join("no-such-word" if i == UNK else WORDS[i - FIRST] for i in ids)
            )
        ]
        found, _ = model.log_probs(torch.tensor([[BOS, *ids]]), torch.tensor([[*ids, EOS]]), None)
        np.testing.assert_allclose(found[0].numpy() / math.log(10), expected, atol=1e-5)
