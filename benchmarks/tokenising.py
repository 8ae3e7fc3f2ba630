"""Cutting text into ids and back: seqloom's tokenizer beside the library it stands on, and beside
transformers over the same file.

    python -m benchmarks.tokenising [--megabytes 5] [--vocabulary 8000] [--rounds 3] [--write]
    python -m benchmarks.tokenising --megabytes 100 --text FILE... [--kind bpe]

The text is the source of Python's standard library, line by line: the same on every machine with this Python.
Or it is that of files (.gz too), repeated up to the size; then only encoding is measured, with a vocabulary
that is learned from the first 5 million characters. All have the same merges and must give the same ids.
Learning is beside the trainer of `tokenizers`, called as its manual does. Prints a table; with --write puts
it into docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import importlib
import itertools
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks import report
from benchmarks.measuring import interleaved
from seqloom.data.batching.token_store import chunked
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

OURS, LIBRARY, PEER = "seqloom", "tokenizers", "transformers"
BATCH = 10_000
"""Lines that are encoded at once where files are named."""
LEARNED_FROM = 5_000_000
"""Characters."""
Ways = dict[str, Callable[[], Any]]


def source_lines(megabytes: float) -> list[str]:
    """Lines of the standard library's modules, in the order of their names."""
    lines: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if size > megabytes * 1e6:
            break
        if "site-packages" not in path.parts:
            text = path.read_bytes().decode("utf-8", "ignore")
            lines += text.splitlines()
            size += len(text.encode())
    return lines


def lines_of(paths: list[str], megabytes: float) -> list[str]:
    """Lines of these files, one after the other and again, up to a size."""
    lines: list[str] = []
    size = 0.0
    while size < megabytes * 1e6:
        for path in paths:
            opened = gzip.open if path.endswith(".gz") else open
            with opened(path, "rt", encoding="utf-8") as file:
                text = file.read()
            lines += text.splitlines()
            size += len(text.encode())
            if size >= megabytes * 1e6:
                break
    return lines


def library_learns(lines: list[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def peer_of(ours: TextTokenizer) -> Any:
    """The same tokenizer, opened by transformers."""
    transformers: Any = importlib.import_module(PEER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(ours.to_json(), encoding="utf-8")
        config = {
            key: value for key, value in ours.tokenizer_config.items() if key != "tokenizer_class"
        }
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **config)


def ways_of(lines: list[str], vocabulary: int) -> dict[str, Ways]:
    """What is measured: learning, encoding, decoding."""
    ours = train_tokenizer(lines, "bpe", vocabulary)
    library, peer = Tokenizer.from_str(ours.to_json()), peer_of(ours)
    ids = ours.encode(lines)
    assert ids == [one.ids for one in library.encode_batch(lines, add_special_tokens=False)], (
        "the ids must agree"
    )
    assert ids[:2000] == peer(lines[:2000], add_special_tokens=False)["input_ids"], (
        "the ids must agree"
    )
    return {
        "learning": {
            OURS: lambda: train_tokenizer(lines, "bpe", vocabulary),
            LIBRARY: lambda: library_learns(lines, vocabulary),
        },
        "encoding": {
            OURS: lambda: ours.encode(lines),
            LIBRARY: lambda: library.encode_batch(lines, add_special_tokens=False),
            PEER: lambda: peer(lines, add_special_tokens=False),
        },
        "decoding": {
            OURS: lambda: [ours.decode(one) for one in ids],
            LIBRARY: lambda: library.decode_batch(ids),
            PEER: lambda: peer.batch_decode(ids),
        },
    }


def encoding_ways(lines: list[str], kind: str, vocabulary: int) -> dict[str, Ways]:
    """Encoding alone, some lines at a time, without keeping the ids."""
    ours = train_tokenizer(first_lines(lines, LEARNED_FROM), kind, vocabulary)
    library = Tokenizer.from_str(ours.to_json())
    batches = list(chunked(lines, BATCH))

    def library_encodes(batch: list[str]) -> list[list[int]]:
        return [one.ids for one in library.encode_batch_fast(batch, add_special_tokens=False)]

    def all_batches(encode: Callable[[list[str]], list[list[int]]]) -> None:
        for batch in batches:
            encode(batch)

    for batch in batches:
        assert ours.encode(batch) == library_encodes(batch), "the ids must agree"

    def ours_encodes() -> None:
        # as in the first reading of a corpus: nothing is remembered yet
        all_batches(copy.deepcopy(ours).encode)

    return {"encoding": {OURS: ours_encodes, LIBRARY: lambda: all_batches(library_encodes)}}


def first_lines(lines: list[str], size: int) -> list[str]:
    ends = itertools.accumulate(map(len, lines))
    return [line for line, end in zip(lines, ends, strict=False) if end <= size]


def measure(what: str, ways: Ways, megabytes: float, rounds: int) -> dict[str, Any]:
    """Megabytes a second of each, and our ratios to the others'."""
    timing = interleaved(ways, rounds=rounds)
    return {
        "what": what,
        "megabytes_per_second": {name: megabytes / timing.median(name) for name in ways},
        "ratios": {name: timing.ratio(OURS, name)._asdict() for name in ways if name != OURS},
        "waited": timing.waited,
    }


def shown(point: dict[str, Any]) -> list[str]:
    speed, ratios = point["megabytes_per_second"], point["ratios"]
    cells = [point["what"], f"{speed[OURS]:.2f}"]
    for name in (LIBRARY, PEER):
        if name in speed:
            ratio = ratios[name]
            cells += [
                f"{speed[name]:.2f}",
                f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
            ]
        else:
            cells += ["", ""]
    return cells


HEADER = ["", "seqloom, MB/s", "tokenizers, MB/s", "ratio", "transformers, MB/s", "ratio"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", nargs="+", help="files to encode, in the place of Python's sources"
    )
    parser.add_argument("--kind", default="bpe", help="the tokenizer, where files are named")
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    return parser.parse_args()


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed()
    if arguments.text:
        lines = lines_of(arguments.text, arguments.megabytes)
        ways = encoding_ways(lines, arguments.kind, arguments.vocabulary)
    else:
        lines = source_lines(arguments.megabytes)
        ways = ways_of(lines, arguments.vocabulary)
    megabytes = sum(len(line.encode()) + 1 for line in lines) / 1e6
    points = [measure(what, timed, megabytes, arguments.rounds) for what, timed in ways.items()]
    name, source = "Byte-level BPE", "Python's standard library"
    if arguments.text:
        name, source = arguments.kind, f"{len(arguments.text)} files, repeated to that size,"
    text = (
        f"{name} of {arguments.vocabulary:,} pieces, {megabytes:.1f} MB of {source} line by line, the same"
        " ids.\n"
    )
    text += "\n" + report.table(HEADER, [shown(point) for point in points])
    waited = max(point["waited"] for point in points)
    text += (
        f"\n\n`python -m benchmarks.tokenising`, {arguments.rounds} rounds. It waited for a core for"
        f" {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("tokenising", {"points": points}, f"## Tokenising\n\n{text}")


if __name__ == "__main__":
    main()
