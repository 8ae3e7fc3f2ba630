"""How long a keystroke waits for completions: real sentences, typed character by character.

    python -m benchmarks.complete [FOLDERS] [--rounds 3] [--threads 2] [--write]

For run folders of language models; without any for new models of the default sizes, with random weights: a
GPT and an LSTM, and a 5-gram, all with 8,000 pieces of BPE learned from this project's own text. Where
nothing is likely no search ends early, so random weights are the worst case. Each round types the text anew;
of a keystroke the fastest round counts, since others use the machine too. Prints a table; with --write puts
it into docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import report
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.ngrams.ngram import Ngram, NgramConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.tasks.language_modeling.complete import Completer, load_completer
from seqloom.text.special_tokens import EOS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

VOCABULARY, ORDER = 8000, 5
GOAL = 50.0
"""Milliseconds, for 95 of 100 keystrokes."""
TYPED = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:"
    " once or twice she had peeped into the book her sister was reading, but it had no pictures or"
    " conversations in it, \u201cand what is the use of a book,\u201d thought Alice \u201cwithout pictures or"
    " conversations?\u201d So she was considering in her own mind (as well as she could, for the hot day made"
    " her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the"
    " trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by"
    " her."
)
"""Carroll 1865."""
ROOT = Path(__file__).parents[1]


def own_text() -> list[str]:
    """The lines of this project's pages and sources."""
    paths = sorted(
        [
            *ROOT.glob("docs/*.md"),
            *ROOT.glob("src/**/*.py"),
            *ROOT.glob("tests/**/*.py"),
            *ROOT.glob("benchmarks/*.py"),
        ]
    )
    return [line for path in paths for line in path.read_text("utf-8").splitlines() if line]


def new_models() -> dict[str, Callable[[], Completer]]:
    """By name; each call makes it anew, without anything kept."""
    lines = own_text()
    tokenizer = train_tokenizer(lines, "bpe", VOCABULARY)
    size = tokenizer.vocabulary_size
    torch.manual_seed(0)
    models: dict[str, Any] = {
        "GPT, default size, random": GPT(GPTConfig(vocabulary_size=size)),
        "LSTM, default size, random": RecurrentLM(RecurrentLMConfig(vocabulary_size=size)),
        f"{ORDER}-gram": Ngram.fit(
            NgramConfig(vocabulary_size=size, order=ORDER), counted(tokenizer, lines)
        ),
    }
    return {
        f"{name}, {size:,} pieces": lambda model=model: Completer(model.eval(), tokenizer)  # type: ignore[misc]
        for name, model in models.items()
    }


def counted(tokenizer: TextTokenizer, lines: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([EOS, *(i for ids in tokenizer.encode(lines) for i in [*ids, EOS])])


def folders(paths: Sequence[str]) -> dict[str, Callable[[], Completer]]:
    return {
        "/".join(Path(path).parts[-2:]): lambda path=path: load_completer(path, "cpu")  # type: ignore[misc]
        for path in paths
    }


def milliseconds(make: Callable[[], Completer], rounds: int) -> list[float]:
    """Of each keystroke, the fastest round."""
    make().complete(TYPED[:20])  # the first call of a process prepares more than later ones do

    def typed() -> list[float]:
        completer = make()
        completer.complete("")  # what is prepared when a folder is opened
        found = []
        for length in range(1, len(TYPED) + 1):
            began = time.perf_counter()
            completer.complete(TYPED[:length])
            found.append(1000 * (time.perf_counter() - began))
        return found

    return [min(ones) for ones in zip(*(typed() for _ in range(rounds)), strict=True)]


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", help="run folders of language models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ways = folders(arguments.folders) if arguments.folders else new_models()
    points = []
    for name, make in ways.items():
        median, most, worst = np.quantile(
            milliseconds(make, arguments.rounds), [0.5, 0.95, 1.0]
        ).tolist()
        points.append({"model": name, "median": median, "of 95 in 100": most, "worst": worst})
    header = ["model", "median ms", "95 % are below", "worst", f"95 % within {GOAL:.0f} ms"]
    times = ("median", "of 95 in 100", "worst")
    good = {True: "yes", False: "no"}
    rows = [
        [
            point["model"],
            *(f"{point[key]:.1f}" for key in times),
            good[point["of 95 in 100"] <= GOAL],
        ]
        for point in points
    ]
    text = (
        f"Milliseconds a keystroke until the five likeliest completions are there, {len(TYPED)} keystrokes of"
        " running text.\n\n"
    )
    text += report.table(header, rows)
    text += (
        f"\n\n`python -m benchmarks.complete`, the fastest of {arguments.rounds} rounds for each"
        " keystroke."
    )
    print(text)
    if arguments.write:
        report.publish("complete", {"keystrokes": points}, f"## Autocomplete\n\n{text}")


if __name__ == "__main__":
    main()
