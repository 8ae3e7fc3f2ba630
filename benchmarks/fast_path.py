"""Trains with the recurrent layers as plain loops of autograd, or as they are: what the fast path is worth.

    python -m benchmarks.fast_path loop train translation ... --output-dir before
    python -m benchmarks.fast_path fast train translation ... --output-dir after

All else is `seqloom`'s own command line; the two runs see the same batches in the same order. At the end it
prints the processor's seconds.
"""

from __future__ import annotations

import sys
import time

from seqloom.cli import main as run_command
from seqloom.layers.recurrent import stack


def main() -> None:
    way, *arguments = sys.argv[1:]
    if way == "loop":
        stack.choose_implementation = lambda layers, inputs, mask=None: "loop"
    elif way != "fast":
        raise SystemExit(f"the first argument must be loop or fast, but is {way!r}")
    try:
        run_command(arguments)
    finally:
        sys.stderr.write(f"{way}: {time.process_time():,.0f} CPU-seconds\n")


if __name__ == "__main__":
    main()
