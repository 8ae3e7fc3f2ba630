"""Opening a large checkpoint beside transformers: seconds, and the memory that it takes at most.

    python -m benchmarks.loading [--gigabytes 1] [--families gpt2 bert] [--rounds 5] [--write]

A random checkpoint in float32 (12 or more layers of width 1,024), saved by transformers. Each side opens it
in fresh processes, by turns, the file being in the page cache; the time is that of the one call, the imports
done before. Memory is what the process has more than before the call: at most (VmHWM, in which pages of the
file that are mapped count too), at most of its own (RssAnon, looked at every 2 ms), and afterwards. A process
ends with a sum over all weights, so that both have read them all.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import report

OURS, PEER = "seqloom", "transformers"
FAMILIES = ("gpt2", "bert")
"""GPT-2 has query, key and value in one matrix, as we have; of BERT they are joined."""
REQUIRED_MEMORY, REQUIRED_RATIO = 1.1, 1.0
WIDTH, VOCABULARY = 1024, 30522


def write_checkpoint(folder: Path, family: str, gigabytes: float) -> int:
    """A random model as large as that; returns the bytes of its weights."""
    import torch
    import transformers as hf

    matrices = {"layers": 12 * WIDTH**2, "embeddings": (VOCABULARY + 512) * WIDTH}
    layers = max(1, round((gigabytes * 1e9 / 4 - matrices["embeddings"]) / matrices["layers"]))
    config: Any
    if family == "gpt2":
        ids: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
        config = hf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=layers, n_head=16, n_positions=512, **ids
        )
        kind: Any = hf.GPT2LMHeadModel
    else:
        config = hf.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_attention_heads=16,
            intermediate_size=4 * WIDTH,
        )
        kind = hf.BertModel
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def opener(side: str, family: str) -> Callable[[str], Any]:
    """What opens a folder, all imports done."""
    if side == OURS:
        from seqloom.interop.checkpoint import read_checkpoint
        from seqloom.models import model_family

        model_family("gpt" if family == "gpt2" else family)
        return lambda folder: read_checkpoint(folder).model
    import transformers as hf

    kind: Any = hf.GPT2LMHeadModel if family == "gpt2" else hf.BertModel
    return lambda folder: kind.from_pretrained(folder)


def memory(name: str) -> int:
    """Bytes of this process: VmHWM, VmRSS or RssAnon (Linux)."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


class Highest:
    """The most anonymous memory while it is open, looked at every 2 ms."""

    def __enter__(self) -> Highest:
        self.bytes, self._over = memory("RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.bytes = max(self.bytes, memory("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = max(self.bytes, memory("RssAnon"))


def open_once(side: str, family: str, folder: str) -> dict[str, float]:
    """In this process: seconds, and bytes beyond those before."""
    import torch

    open_it = opener(side, family)
    if side == PEER:
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with torch.device("meta"):  # torch imports more when this is first asked for
        torch.nn.init.normal_(torch.nn.Linear(2, 2).weight)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, own = memory("VmRSS"), memory("RssAnon")
    with Highest() as highest:
        began = time.perf_counter()
        model = open_it(folder)
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    total = sum(float(parameter.detach().sum()) for parameter in model.parameters())
    read = time.perf_counter() - began
    return {
        "seconds": seconds,
        "seconds_and_read": seconds + read,
        "peak": memory("VmHWM") - before,
        "own_peak": highest.bytes - own,
        "own_after": memory("RssAnon") - own,
        "sum": total,
    }


def measure(folder: str, family: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Of each side, the figures of each round."""
    found: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
    for number in range(rounds + 1):
        for side in (OURS, PEER) if number % 2 else (PEER, OURS):
            command = [sys.executable, "-m", "benchmarks.loading", "--once", side, family, folder]
            one: dict[str, float] = json.loads(
                subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1]
            )
            if number:  # the first fills the page cache
                found[side].append(one)
    return found


def compared(family: str, gigabytes: float, rounds: int) -> tuple[dict[str, Any], str]:
    """The figures of one family, and what is said of them."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder), family, gigabytes)
        found = measure(folder, family, rounds)
    sums = {one["sum"] for side in found.values() for one in side}
    assert max(sums) - min(sums) <= 1e-3 * max(map(abs, sums)), "both must have the same weights"
    medians = {
        side: {name: statistics.median(one[name] for one in of) for name in of[0]}
        for side, of in found.items()
    }
    header = [
        "",
        "seconds",
        "with a sum over all weights",
        "peak / file",
        "peak of its own / file",
        "its own afterwards / file",
    ]
    memories = ("peak", "own_peak", "own_after")
    rows = [
        [
            side,
            f"{one['seconds']:.2f}",
            f"{one['seconds_and_read']:.2f}",
            *(f"{one[name] / size:.2f}" for name in memories),
        ]
        for side, one in medians.items()
    ]
    ours, peer = medians[OURS], medians[PEER]
    ratio = peer["seconds_and_read"] / ours["seconds_and_read"]
    passes = ours["peak"] <= REQUIRED_MEMORY * size and ratio >= REQUIRED_RATIO
    text = (
        f"A {family} of {size / 1e9:.2f} GB in float32, from the page cache, in fresh processes by turns;"
        f" memory beyond that of the process before.\n\n{report.table(header, rows)}\n\n{ratio:.2f} times as"
        f" fast as transformers (required: {REQUIRED_RATIO}), at most {ours['peak'] / size:.2f} times the"
        f" file in memory (required: at most {REQUIRED_MEMORY}): {'passes' if passes else 'does not pass'}."
    )
    return {"bytes": size, "rounds": found, "ratio": ratio}, text


def main() -> None:
    """Measures what was asked for and prints a table of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--once", nargs=3, metavar=("SIDE", "FAMILY", "FOLDER"), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(open_once(*arguments.once)))
        return
    found = {
        family: compared(family, arguments.gigabytes, arguments.rounds)
        for family in arguments.families
    }
    text = "\n\n".join(
        [said for _, said in found.values()]
        + [f"`python -m benchmarks.loading`, median of {arguments.rounds} rounds."]
    )
    print(text)
    if arguments.write:
        report.publish(
            "loading",
            {family: figures for family, (figures, _) in found.items()},
            f"## Opening a checkpoint\n\n{text}",
        )


if __name__ == "__main__":
    main()
