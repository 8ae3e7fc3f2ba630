"""ARPA files through the command line, from text, beside KenLM's Python module.

    python -m benchmarks.arpa MODEL.arpa[.gz] TEXT[.gz] [--lines 300] [--answers FILE.gz]

The file is written again in five dialects. Each is read by `seqloom import`; `seqloom score --tokens` scores
the first lines of the text word by word, and `seqloom evaluate` gives the perplexity of the whole. KenLM
reads the same file and the same lines. --answers are those of `query -v word` on the whole text: then the
file as it is is compared with them too, word by word.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report

SEQLOOM = (sys.executable, "-m", "seqloom")


def opened(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


GRAM = re.compile(r"(?m)^(-?\d\S*)\t([^\t\n]+)(?:\t(\S+))?$")
"""log10 p, the words, and perhaps the weight."""


def in_windows(arpa: str) -> str:
    return arpa.replace("\n", "\r\n")


def with_comments(arpa: str) -> str:
    """Comments before it, log10 p of <s> is -inf, n-grams of the highest order have a weight of 0."""
    begin = arpa.rindex("-grams:")
    highest = GRAM.sub(r"\1\t\2\t0", arpa[begin:])
    lower = re.sub(r"(?m)^\S+\t<s>\t", "-inf\t<s>\t", arpa[:begin])
    return f"# a comment\n\n# another\n{lower}{highest}"


def with_capitals(arpa: str) -> str:
    """<UNK>, no weight where it is 0, tabs between the words of an n-gram."""

    def gram(found: re.Match[str]) -> str:
        words = found[2].replace("<unk>", "<UNK>").replace(" ", "\t")
        weight = "" if found[3] is None or float(found[3]) == 0 else f"\t{found[3]}"
        return f"{found[1]}\t{words}{weight}"

    return GRAM.sub(gram, arpa)


def without_unknown(arpa: str) -> str:
    """No <unk>, and a blank line after every hundredth n-gram."""
    kept: list[str] = []
    counts: dict[int, int] = {}
    for line in arpa.split("\n"):
        found = GRAM.fullmatch(line)
        words = [] if found is None else found[2].split(" ")
        if "<unk>" in words:
            continue
        kept.append(line)
        if words:
            counts[len(words)] = counts.get(len(words), 0) + 1
            if counts[len(words)] % 100 == 0:
                kept.append("")
    lines = "\n".join(kept)
    return re.sub(r"(?m)^ngram (\d+)=\d+$", lambda m: f"ngram {m[1]}={counts[int(m[1])]}", lines)


DIALECTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda arpa: arpa,
    "lines end in CRLF": in_windows,
    "comments, -inf <s>, weights of 0 at the highest order": with_comments,
    "<UNK>, no weight where it is 0, tabs between words": with_capitals,
    "no <unk>, blank lines within sections": without_unknown,
}


class Compared(NamedTuple):
    """One file, scored by both."""

    words: int
    """Ends of lines included."""
    difference: float
    """The largest of any word's log10 p."""
    perplexity: float
    """Of the whole text, by `seqloom evaluate`."""
    theirs: float


def seqloom(*arguments: str) -> list[Any]:
    """The JSON lines of a command."""
    done = subprocess.run([*SEQLOOM, *arguments], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def log10_by_word(run: str, lines: Sequence[str], folder: Path) -> Iterator[list[float]]:
    """log10 p of each word and of the end, for each line."""
    text = folder / "lines.txt"
    text.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    for scored in seqloom("score", run, str(text), "--tokens", "--json"):
        yield [-token["surprisal"] * math.log10(2) for token in scored["table"]]


def largest_difference(ours: Iterator[list[float]], theirs: Iterator[list[float]]) -> float:
    return max(
        abs(one - other)
        for line, expected in zip(ours, theirs, strict=True)
        for one, other in zip(line, expected, strict=True)
    )


def compare(arpa: Path, text: Path, lines: int, folder: Path) -> Compared:
    """A file as KenLM and as we score it."""
    kenlm = importlib.import_module("kenlm")
    peer, run = kenlm.Model(str(arpa)), str(folder / "run")
    seqloom("import", str(arpa), run)
    whole = [line for line in opened(text).split("\n") if line.split()]
    first = whole[:lines]

    def theirs(line: str) -> list[float]:
        return [log10_p for log10_p, _, _ in peer.full_scores(line)]

    difference = largest_difference(log10_by_word(run, first, folder), map(theirs, first))
    total, words = sum(map(peer.score, whole)), sum(len(line.split()) + 1 for line in whole)
    (measured,) = seqloom("evaluate", run, str(text), "--json")
    assert measured["tokens"] == words
    count = sum(len(line.split()) + 1 for line in first)
    return Compared(count, difference, measured["perplexity"], 10 ** (-total / words))


def against_answers(arpa: Path, text: Path, answers: Path, folder: Path) -> tuple[int, float]:
    """Words, and the largest difference of any word's log10 p from the answers of `query -v word`."""
    run = str(folder / "run")
    seqloom("import", str(arpa), run)
    numbers = [
        float(field.rsplit(" ", 1)[1]) for field in opened(answers).split("\t") if field.strip()
    ]
    each, expected = iter(numbers), list[list[float]]()
    kept: list[str] = []
    for line in opened(text).split("\n")[:-1]:
        answer = [next(each) for _ in range(len(line.split()) + 1)]
        if line.split():
            kept.append(line)
            expected.append(answer)
    difference = largest_difference(log10_by_word(run, kept, folder), iter(expected))
    return sum(map(len, expected)), difference


def main() -> None:
    """Compares, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arpa", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--answers", type=Path)
    arguments = parser.parse_args()
    arpa = opened(arguments.arpa)
    rows = []
    for name, rewritten in DIALECTS.items():
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "model.arpa"
            path.write_bytes(rewritten(arpa).encode())
            found = compare(path, arguments.text, arguments.lines, Path(temporary))
        print(name, found, file=sys.stderr)
        rows.append(
            [
                name,
                f"{found.words:,}",
                f"{found.difference:.1e}",
                f"{found.perplexity:.4f}",
                f"{found.theirs:.4f}",
            ]
        )
    head = ["", "words", "largest difference of log10 p", "perplexity", "KenLM"]
    print(report.table(head, rows))
    if arguments.answers:
        with tempfile.TemporaryDirectory() as temporary:
            words, difference = against_answers(
                arguments.arpa, arguments.text, arguments.answers, Path(temporary)
            )
        print(
            f"\nAnswers of `query`: {words:,} words, largest difference of log10 p {difference:.1e}"
        )


if __name__ == "__main__":
    main()
