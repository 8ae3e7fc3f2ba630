"""The n-gram model beside NLTK's and KenLM's: building, scoring, memory; and against what KenLM's own
programs computed.

    python -m benchmarks.ngram [--order 5] [--megabytes 20] [--rounds 3] [--threads 2] [--write]
    python -m benchmarks.ngram --kenlm-data DIR --wikitext DIR

The text is the standard library's own sources, every tenth line for scoring. NLTK (order 3) gets parts of it:
it is slow. KenLM's Python module cannot build, so it scores with our model, read from ARPA text. The second
form builds models of orders 2 to 5 from `valid.txt.gz` of --wikitext and compares each word of `test.txt.gz`
with `query_orderN.txt.gz` (`query -v word`), and the model of order 3 with `order3.arpa.gz` (`lmplz
--skip_symbols`).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import report
from benchmarks.measuring import Spread, interleaved
from benchmarks.recurrent_memory import kibibytes
from seqloom.models.ngrams.arpa import read_arpa
from seqloom.models.ngrams.arpa_writer import write_arpa
from seqloom.models.ngrams.ngram import Ngram, NgramConfig

BOS, EOS, UNK, FIRST = (
    NgramConfig.bos_id,
    NgramConfig.eos_id,
    NgramConfig.unk_id,
    NgramConfig.first_word_id,
)
NLTK_ORDER, NLTK_WORDS, NLTK_SCORED = 3, 100_000, 300

Sentences = Sequence[Sequence[str]]


def sources(megabytes: float) -> Iterator[list[str]]:
    """The words of each line of the standard library's sources, in the order of their paths."""
    left = megabytes * 1e6
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or left <= 0:
            continue
        text = path.read_text("utf-8", errors="ignore")
        left -= len(text)
        yield from filter(None, (re.findall(r"\w+|[^\w\s\0]", line) for line in text.split("\n")))


class Corpus(NamedTuple):
    """Text as words and as ids."""

    train: Sentences
    test: Sentences
    ids_of: dict[str, int]

    @classmethod
    def of(cls, train: Sentences, test: Sentences) -> Corpus:
        """Numbers the words of `train`."""
        return cls(
            train,
            test,
            {word: i for i, word in enumerate(dict.fromkeys(chain.from_iterable(train)), FIRST)},
        )

    @property
    def vocabulary_size(self) -> int:
        return FIRST + len(self.ids_of)

    def stream(self, sentences: Sentences) -> NDArray[np.uint32]:
        """`u_1 .. u_L </s> u_1 ..`"""
        get = (self.ids_of | {"": EOS}).get
        words = chain.from_iterable((*sentence, "") for sentence in sentences)
        return np.array([get(word, UNK) for word in words], np.uint32)


def log_probs(model: Ngram, stream: NDArray[np.uint32]) -> Tensor:
    """log p of every id of a stream, in nats."""
    targets = torch.from_numpy(stream.astype(np.int64))
    tokens = targets.roll(1)
    tokens[0] = EOS
    tokens.masked_fill_(tokens == EOS, BOS)
    return model.log_probs(tokens[None], targets[None], None)[0][0]


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def nltk_model(sentences: Sentences) -> Any:
    """A fitted KneserNeyInterpolated of order 3."""
    lm, preprocessing = (
        importlib.import_module("nltk.lm"),
        importlib.import_module("nltk.lm.preprocessing"),
    )
    model = lm.KneserNeyInterpolated(NLTK_ORDER)
    model.fit(*preprocessing.padded_everygram_pipeline(NLTK_ORDER, sentences))
    return model


def nltk_score(model: Any, sentences: Sentences) -> None:
    for sentence in sentences:
        words = ["<s>"] * (NLTK_ORDER - 1) + [*sentence, "</s>"]
        for i in range(NLTK_ORDER - 1, len(words)):
            model.score(words[i], words[i - NLTK_ORDER + 1 : i])


def part(sentences: Sentences, words: int) -> Sentences:
    """The first sentences, with at least so many words."""
    lengths = np.cumsum([len(sentence) for sentence in sentences])
    return sentences[: int(np.searchsorted(lengths, words)) + 1]


def size(sentences: Sentences) -> int:
    """Words and ends of sentences."""
    return sum(map(len, sentences)) + len(sentences)


class Way(NamedTuple):
    """One of those that are compared."""

    run: Callable[[], object]
    words: int


class Rate(NamedTuple):
    """What one of them did."""

    words: Spread
    """Words a second, ends of sentences included."""
    ratio: Spread
    """How many times as fast the first of them is, by rounds."""


def rates(ways: dict[str, Way], rounds: int) -> dict[str, Rate]:
    """All of them by turns; the first is ours."""
    seconds = interleaved(
        {name: way.run for name, way in ways.items()}, rounds=rounds, least=0.0
    ).seconds
    each = {name: [way.words / second for second in seconds[name]] for name, way in ways.items()}
    ours = each[next(iter(ways))]
    return {
        name: Rate(Spread.of(found), Spread.of(a / b for a, b in zip(ours, found, strict=True)))
        for name, found in each.items()
    }


def fit(stream: NDArray[np.uint32], vocabulary_size: int, order: int) -> Ngram:
    return Ngram.fit(NgramConfig(vocabulary_size=vocabulary_size, order=order), stream)


def building(corpus: Corpus, order: int, rounds: int) -> dict[str, Rate]:
    """Ids to a model; NLTK: words to a model, which estimates nothing before it is asked."""
    stream, few = corpus.stream(corpus.train), part(corpus.train, NLTK_WORDS)
    orders = (order, NLTK_ORDER) if order != NLTK_ORDER else (order,)
    ways = {
        f"seqloom, order {n}": Way(partial(fit, stream, corpus.vocabulary_size, n), len(stream))
        for n in orders
    }
    if has("nltk"):
        ways[f"NLTK, order {NLTK_ORDER}"] = Way(partial(nltk_model, few), size(few))
    return rates(ways, rounds)


def scoring(
    corpus: Corpus, order: int, rounds: int, arpa: Path, *, slow: bool = True
) -> tuple[dict[str, Rate], dict[str, float]]:
    """Words a second, and the perplexities of the test text that must agree; `slow`: with NLTK too."""
    model = fit(corpus.stream(corpus.train), corpus.vocabulary_size, order)
    arpa.write_bytes(b"".join(write_arpa(model, list(corpus.ids_of))))
    stream = corpus.stream(corpus.test)
    ways = {
        f"seqloom, order {order}, ids given": Way(partial(log_probs, model, stream), len(stream)),
        f"seqloom, order {order}, words given": Way(
            lambda: log_probs(model, corpus.stream(corpus.test)), len(stream)
        ),
    }
    perplexities = {"seqloom": math.exp(-float(log_probs(model, stream).double().mean()))}
    if has("kenlm"):
        peer = importlib.import_module("kenlm").Model(str(arpa))
        lines = [" ".join(sentence) for sentence in corpus.test]
        ways[f"kenlm (Python), order {order}, words given"] = Way(
            lambda: sum(map(peer.score, lines)), len(stream)
        )
        perplexities["kenlm (Python)"] = 10 ** (-sum(map(peer.score, lines)) / len(stream))
    if slow and has("nltk"):
        few, small = part(corpus.test, NLTK_SCORED), nltk_model(part(corpus.train, NLTK_WORDS))
        ways[f"NLTK, order {NLTK_ORDER}"] = Way(partial(nltk_score, small, few), size(few))
    return rates(ways, rounds), perplexities


def memory(corpus: Corpus, order: int, arpa: Path) -> dict[str, tuple[float, int]]:
    """What is measured -> MiB at the peak, words that were read; each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.npy"
        stream = corpus.stream(corpus.train)
        np.save(ids, stream)
        found = {
            f"seqloom builds, order {order}": (
                in_child("build", str(ids), str(corpus.vocabulary_size), str(order)),
                len(stream),
            )
        }
        if has("nltk"):
            few = part(corpus.train, NLTK_WORDS)
            words = Path(folder) / "words.txt"
            words.write_text("\n".join(map(" ".join, few)), "utf-8")
            found[f"NLTK builds, order {NLTK_ORDER}"] = (in_child("nltk", str(words)), size(few))
        model = fit(stream, corpus.vocabulary_size, order)
        log_probs(model, stream[:100])  # makes the tables
        held = sum(tensor.numel() * tensor.element_size() for tensor in model.buffers()) / 2**20
        found[f"seqloom holds, order {order}, tables included"] = (held, len(stream))
        if has("kenlm"):
            found[f"kenlm (Python) reads ARPA, order {order}"] = (
                in_child("kenlm", str(arpa)),
                len(stream),
            )
    return found


def in_child(*arguments: str) -> float:
    """MiB by which a new process grew."""
    command = [sys.executable, "-m", "benchmarks.ngram", "--child", *arguments]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    return int(done.stdout) / 1024


def child(what: str, *arguments: str) -> None:
    """Prints by how many KiB this process grows, at most, while it does one thing. Linux only (/proc)."""
    run: Callable[[], object]
    if what == "build":
        path, vocabulary_size, order = arguments
        run = partial(fit, np.load(path), int(vocabulary_size), int(order))
        fit(np.array([FIRST, EOS], np.uint32), FIRST + 1, 2)
    elif what == "nltk":
        run = partial(
            nltk_model,
            [line.split(" ") for line in Path(arguments[0]).read_text("utf-8").split("\n")],
        )
        nltk_model([["a"]])
    else:
        run = partial(importlib.import_module("kenlm").Model, arguments[0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kibibytes("VmRSS")
    kept = run()
    print(kibibytes("VmHWM") - before)
    del kept


def tables(
    built: dict[str, Rate],
    scored: dict[str, Rate],
    grown: dict[str, tuple[float, int]],
    perplexities: dict[str, float],
) -> str:
    """Markdown."""

    def rows(found: dict[str, Rate]) -> list[list[str]]:
        return [
            [
                name,
                f"{rate.words.median:,.0f}",
                f"{rate.ratio.median:,.2f} ± {rate.ratio.half_range:,.2f}",
            ]
            for name, rate in found.items()
        ]

    agree = ", ".join(f"{name} {value:.4f}" for name, value in perplexities.items())
    parts = [
        "Building:",
        report.table(["", "words a second", "the first is so many times as fast"], rows(built)),
        f"Scoring; perplexity of the test text: {agree}.",
        report.table(["", "words a second", "the first is so many times as fast"], rows(scored)),
        "Memory:",
        report.table(
            ["", "MiB", "words read", "bytes a word"],
            [
                [name, f"{mib:,.0f}", f"{words:,}", f"{mib * 2**20 / words:,.0f}"]
                for name, (mib, words) in grown.items()
            ],
        ),
    ]
    return "\n\n".join(parts)


def kenlm_text(path: Path, *, skip: str | None = None) -> list[list[str]]:
    """The words of each line, as KenLM takes them."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [[word for word in line.split() if word != skip] for line in file]


def against_kenlm(answers: Path, text: Path) -> str:
    """The largest difference of any word's log10 p, for each order. What `<unk>` stands for was skipped in
    training."""
    corpus = Corpus.of(
        kenlm_text(text / "valid.txt.gz", skip="<unk>"), kenlm_text(text / "test.txt.gz")
    )
    test = corpus.stream(corpus.test)
    rows = []
    for order in range(2, 6):
        model = fit(corpus.stream(corpus.train), corpus.vocabulary_size, order)
        with gzip.open(
            answers / f"query_order{order}.txt.gz", "rt", encoding="utf-8", newline="\n"
        ) as file:
            fields = [field for line in file for field in line.split("\t") if field.strip()]
        expected = torch.tensor(
            [float(field.rsplit(" ", 1)[1]) for field in fields], dtype=torch.float64
        )
        models = {f"built, order {order}": model}
        again = read_arpa(write_arpa_lines(model, corpus), "written")
        models[f"written as ARPA and read, order {order}"] = again.model
        for name, one in models.items():
            rows.append([name, f"{len(expected):,}", difference(log_probs(one, test), expected)])
        if order == 3:
            with gzip.open(answers / "order3.arpa.gz") as packed:
                theirs = read_arpa(packed, "order3.arpa.gz")
            known = Corpus(
                corpus.train,
                corpus.test,
                {word.decode(): i for i, word in enumerate(theirs.words, FIRST)},
            )
            found = log_probs(theirs.model, known.stream(corpus.test))
            rows.append(["order3.arpa.gz read", f"{len(expected):,}", difference(found, expected)])
    return report.table(["", "words", "largest difference of log10 p"], rows)


def write_arpa_lines(model: Ngram, corpus: Corpus) -> list[bytes]:
    return b"".join(write_arpa(model, list(corpus.ids_of))).splitlines(keepends=True)


def difference(found: Tensor, expected: Tensor) -> str:
    return f"{float((found.double() / math.log(10) - expected).abs().max()):.1e}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument(
        "--megabytes", type=float, default=20.0, help="of the standard library's sources"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    parser.add_argument(
        "--kenlm-data", type=Path, metavar="DIR", help="query_orderN.txt.gz and order3.arpa.gz"
    )
    parser.add_argument("--wikitext", type=Path, metavar="DIR", help="valid.txt.gz and test.txt.gz")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if (arguments.kenlm_data is None) != (arguments.wikitext is None):
        parser.error("--kenlm-data and --wikitext go together")
    return arguments


def main() -> None:
    """Measures, or compares."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        child(*arguments.child)
        return
    if arguments.kenlm_data:
        print(against_kenlm(arguments.kenlm_data, arguments.wikitext))
        return
    lines = list(sources(arguments.megabytes))
    corpus = Corpus.of([line for i, line in enumerate(lines) if i % 10], lines[::10])
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder) / "model.arpa"
        built = building(corpus, arguments.order, arguments.rounds)
        scored, perplexities = scoring(corpus, arguments.order, arguments.rounds, arpa)
        grown = memory(corpus, arguments.order, arpa)
    words = (
        f"{size(corpus.train):,} words for building and {size(corpus.test):,} for scoring, ends of lines"
        " included"
    )
    intro = (
        f"The standard library's sources, {words}; NLTK gets {NLTK_WORDS:,} and {NLTK_SCORED} of them."
        f" {arguments.rounds} rounds by turns."
    )
    text = f"{intro}\n\n{tables(built, scored, grown, perplexities)}"
    print(text)
    if arguments.write:
        figures = {
            "building": {name: plain(rate) for name, rate in built.items()},
            "scoring": {name: plain(rate) for name, rate in scored.items()},
            "mebibytes": {name: mib for name, (mib, _) in grown.items()},
            "perplexity": perplexities,
        }
        report.publish("ngram", figures, f"## n-gram models\n\n{text}")


def plain(rate: Rate) -> dict[str, Any]:
    return {"words_per_second": rate.words._asdict(), "ratio": rate.ratio._asdict()}


if __name__ == "__main__":
    main()
