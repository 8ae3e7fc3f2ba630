"""ARPA files: every file that KenLM reads gives KenLM's probabilities, from text; and models come back."""

from __future__ import annotations

import gzip
import logging
import math
import random
from pathlib import Path

import pytest

from seqloom.errors import DataError, UsageError
from seqloom.tasks.language_modeling.arpa import export_arpa, import_arpa
from seqloom.tasks.language_modeling.score import Scorer
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-2.0\t<unk>
-99\t<s>\t-0.3
-0.5\t</s>
-0.4\tred\t-0.2
-0.6\ttape\t-0.1

\\2-grams:
-0.1\t<s> red\t-0.05
-0.2\tred tape\t-0.07
-0.25\ttape red
-0.3\ttape </s>

\\3-grams:
-0.01\t<s> red tape
-0.02\tred tape </s>

\\end\\
"""
TEXTS = (
    "red tape",
    "tape red",
    "zebra red tape",
    "red <unk> tape",
    "red <UNK>\ttape",
    "tape  red ",
)
SCORES = (
    (-0.1, -0.01, -0.02),
    (-0.9, -0.25, -0.7),
    (-2.3, -0.4, -0.2, -0.02),
    (-0.1, -2.25, -0.6, -0.3),
    (-0.1, -2.25, -0.6, -0.3),
    (-0.9, -0.25, -0.7),
)
"""log10 p of each word and of the end, as KenLM's Python module gives them."""


def changed(old: str, new: str) -> str:
    assert old in ARPA
    return ARPA.replace(old, new)


NO_UNK = changed("-2.0\t<unk>\n", "").replace("ngram 1=5", "ngram 1=4")
WITHOUT_BIGRAM: dict[int, tuple[float, ...]] = {
    0: (-0.1, -0.01, -0.02),
    1: (-0.9, -0.5, -0.7),
    5: (-0.9, -0.5, -0.7),
}
"""Scores where `tape red` is no bigram."""

Scores = tuple[float, ...]
DIALECTS: dict[str, tuple[str, dict[int, Scores]]] = {
    "as SRILM writes it": (ARPA, {}),
    "lines end as in Windows": (ARPA.replace("\n", "\r\n"), {}),
    "comments before it": (f"# one\n\n# two\n{ARPA}", {}),
    "other lines before it": (f"===\nA 3-gram model.\n{ARPA}", {}),
    "a byte order mark": (f"\ufeff{ARPA}", {}),
    "no blank lines": (ARPA.replace("\n\n", "\n"), {}),
    "blank lines anywhere": (ARPA.replace("\n-0.", "\n \t\n-0."), {}),
    "no end of the last line": (ARPA.rstrip("\n"), {}),
    "blank lines after it": (f"{ARPA}\n \n", {}),
    "tabs everywhere": (ARPA.replace(" ", "\t").replace("ngram\t", "ngram "), {}),
    "spaces everywhere": (ARPA.replace("\t", "  "), {}),
    "spaces at both ends": (ARPA.replace("\n-", "\n  -").replace("\n\n", "  \n\n"), {}),
    "counts with spaces": (ARPA.replace("=", " = "), {}),
    "counts with more after them": (changed("ngram 2=4", "ngram +2=04 bigrams"), {}),
    "weights at the highest order": (changed("<s> red tape\n", "<s> red tape\t-0.000\n"), {}),
    "<s> is impossible": (changed("-99\t<s>", "-inf\t<s>"), {}),
    "<s> is certain": (changed("-99\t<s>", "0\t<s>"), {}),
    "numbers with exponents": (changed("-0.2\tred", "-2E-01\tred").replace("-0.6", "-.6"), {}),
    "<unk> in capitals": (changed("<unk>", "<UNK>"), {}),
    "<unk> is missing": (
        NO_UNK,
        {i: tuple(p - 98 if p <= -2 else p for p in SCORES[i]) for i in (2, 3, 4)},
    ),
    "<unk> in both spellings": (
        changed("-2.0\t<unk>", "-2.0\t<unk>\n-1.5\t<UNK>").replace("ngram 1=5", "ngram 1=6"),
        {i: tuple(p + 0.5 if p <= -2 else p for p in SCORES[i]) for i in (2, 3, 4)},
    ),
    "an impossible word": (
        changed("-0.6\ttape", "-inf\ttape"),
        {
            1: (-math.inf, -0.25, -0.7),
            3: (-0.1, -2.25, -math.inf, -0.3),
            4: (-0.1, -2.25, -math.inf, -0.3),
            5: (-math.inf, -0.25, -0.7),
        },
    ),
    "a weight above 1": (
        changed("red\t-0.2", "red\t0.4"),
        {
            1: (-0.9, -0.25, -0.1),
            3: (-0.1, -1.65, -0.6, -0.3),
            4: (-0.1, -1.65, -0.6, -0.3),
            5: (-0.9, -0.25, -0.1),
        },
    ),
    "a word with a vertical tab": (
        changed("-0.6\ttape\t-0.1", "-0.6\ttape\t-0.1\n-0.9\tta\vpe\t-0.4").replace("1=5", "1=6"),
        {},
    ),
    "a word twice": (
        changed("-0.6\ttape\t-0.1", "-0.6\ttape\t-0.1\n-0.9\ttape\t-0.4").replace("1=5", "1=6"),
        {},
    ),
    "an n-gram twice": (
        changed("-0.02\tred tape </s>", "-0.9\t<s> red tape"),
        {0: (-0.1, -0.01, -0.37), 2: (-2.3, -0.4, -0.2, -0.37)},
    ),
    "<s> after a word": (changed("tape red", "tape <s>"), WITHOUT_BIGRAM),
    "<s> after <s>": (changed("tape red", "<s> <s>"), WITHOUT_BIGRAM),
    "a word after </s>": (changed("tape red", "</s> red"), WITHOUT_BIGRAM),
    "no n-gram of the highest order": (
        changed("ngram 3=2", "ngram 3=0").replace(
            "-0.01\t<s> red tape\n-0.02\tred tape </s>\n", ""
        ),
        {0: (-0.1, -0.25, -0.37), 2: (-2.3, -0.4, -0.2, -0.37)},
    ),
}


def imported(text: str | bytes, folder: Path) -> Scorer:
    path = folder / "model.arpa"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    import_arpa(str(path), str(folder / "run"))
    return Scorer(folder / "run")


def log10_of(scorer: Scorer, text: str) -> list[float]:
    (scored,) = scorer.score([text], tokens=True)
    each = [
        math.log10(token.probability) if token.probability else -math.inf for token in scored.table
    ]
    total = scored.log_probability / math.log(10)
    assert total == pytest.approx(sum(each), abs=1e-5)
    (without_table,) = scorer.score([text])
    assert without_table.log_probability == pytest.approx(scored.log_probability, abs=1e-6)
    return each


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_gives_the_scores_of_kenlm(dialect: str, tmp_path: Path) -> None:
    arpa, others = DIALECTS[dialect]
    scorer = imported(arpa, tmp_path)
    for i, text in enumerate(TEXTS):
        expected = others.get(i, SCORES[i])
        assert log10_of(scorer, text) == pytest.approx(expected, abs=1e-5), text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_kenlm_gives_these_scores(dialect: str, tmp_path: Path) -> None:
    """The numbers above are its own; it refuses some files that are read here."""
    kenlm = pytest.importorskip("kenlm")
    arpa, others = DIALECTS[dialect]
    path = tmp_path / "model.arpa"
    path.write_text(arpa, newline="")
    try:
        model = kenlm.Model(str(path))
    except OSError:
        assert dialect in {
            "other lines before it",
            "a byte order mark",
            "no blank lines",
            "tabs everywhere",
            "spaces everywhere",
            "spaces at both ends",
            "counts with spaces",
        }
        return
    for i, text in enumerate(TEXTS):
        found = [log10_p for log10_p, _, _ in model.full_scores(text)]
        assert found == pytest.approx(others.get(i, SCORES[i]), abs=1e-5), text


ODD_WORDS = (
    *("'s", "wasn't", "mother-in-law", ",", "C++", "<a>", "</div>", "a<unk>b", "<unk>,", "<S>"),
    *(
        "<pad>",
        "<delim>",
        "<reserved-7>",
        "10\u00a0km",
        "全角\u3000空白",
        "\\end\\",
        "#",
        "\u00e9",
        "e\u0301",
    ),
)


def test_words_are_what_spaces_divide(tmp_path: Path) -> None:
    kenlm_text = "\\data\\\nngram 1={}\n\n\\1-grams:\n{}\n\n\\end\\\n"
    lines = ["-1\t<unk>", "-99\t<s>", "-0.5\t</s>"]
    lines += [f"-{2 + i / 100:.2f}\t{word}" for i, word in enumerate(ODD_WORDS)]
    arpa = kenlm_text.format(len(lines), "\n".join(lines)).encode()
    latin = arpa.replace(b"\n\n\\end", b"\n-1.5\tcaf\xe9\n\n\\end").replace(
        f"ngram 1={len(lines)}".encode(), f"ngram 1={len(lines) + 1}".encode()
    )
    scorer = imported(latin, tmp_path)
    expected = [-(2 + i / 100) for i in range(len(ODD_WORDS))]
    assert log10_of(scorer, " ".join(ODD_WORDS)) == pytest.approx([*expected, -0.5], abs=1e-5)
    # neither marks nor what was not UTF-8
    assert log10_of(scorer, "<s> </s> <reserved-8> caf\\xe9") == pytest.approx([-1] * 4 + [-0.5])


def test_what_was_left_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = NO_UNK.replace("tape red", "tape <s>").replace("ngram 1=4", "ngram 1=5")
    imported(text.replace("-0.4\tred\t-0.2", "-0.4\tred\t-0.2\n-0.4\tred"), tmp_path)
    for part in ("no <unk>", "stand again: 1;", "<s> after another word: 1;", "not to 1."):
        assert part in caplog.text, part


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_end_is_refused(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("x.arpa.gz" if packed else "x.arpa")
    with gzip.open(path, "wb") if packed else open(path, "wb") as file:
        file.write(b"\\data\\\n" + bytes(2**22))
    with pytest.raises(DataError, match=r"x.arpa.*:2: a line of an ARPA text must be at most"):
        import_arpa(str(path), str(tmp_path / "run"))


@pytest.mark.parametrize("cut", [20, 5])
def test_a_damaged_gz_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode())[:-cut])
    with pytest.raises(DataError, match=r"must be a whole \.gz file"):
        import_arpa(str(path), str(tmp_path / "run"))


SENTENCES = (
    "The king wasn't <unk> , he said .",
    "the KING 's dog ( a <unk> one ) sleeps in 10\u00a0km .",
    "<pad> is a word , <T> too ; cafe\u0301 is one word .",
)


@pytest.mark.parametrize("tokenizer", ["whitespace", "words"])
@pytest.mark.parametrize("normalisation", ["none", "nfc", "lower"])
def test_what_was_exported_comes_back_with_the_same_numbers(
    tokenizer: str, normalisation: str, tmp_path: Path
) -> None:
    data, run, path = tmp_path / "t.txt", tmp_path / "run", str(tmp_path / "model.arpa")
    draw = random.Random(0)
    words = " ".join(SENTENCES).split(" ")
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(40)]
    data.write_text("\n".join([*SENTENCES, *lines]), "utf-8")
    settings = [f"data.tokenizer={tokenizer}", f"data.normalisation={normalisation}"]
    train("text-generation", [str(data)], output_dir=run, model="ngram:trigram", settings=settings)
    export_arpa(str(run), path)
    import_arpa(path, str(tmp_path / "back"))
    texts = [*SENTENCES, "a king-size wasn't 's,dog <pad>"]
    before, after = (list(Scorer(folder).score(texts)) for folder in (run, tmp_path / "back"))
    for one, other in zip(before, after, strict=True):
        assert (one.tokens, one.unknown) == (other.tokens, other.unknown)
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)


def test_a_comment_that_names_no_tokenizer_of_ours_is_refused(tmp_path: Path) -> None:
    comment = "# seqloom: data.tokenizer=phonemes data.normalisation=none\n"
    with pytest.raises(UsageError, match=r"data\.tokenizer must be"):
        imported(comment + ARPA, tmp_path)
