"""Which files of the package a newcomer meets on the longest common way: train, one update, a printed answer.

    python -m scripts.walk [--calls] [--model NAME]

Trains a text classifier on a few sentences for two steps, as `seqloom train text-classification` does, and
asks it as `seqloom predict` does. Every function of the package that runs is counted, and the files they
are in are listed in the order in which they are first entered; --calls lists their functions too. What runs
while a module is imported does not count: one need not read it to follow the program.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import seqloom
from seqloom.cli import main

PACKAGE = Path(seqloom.__file__).parent
SENTENCES = "".join(
    f"good\ta warm film {number}\nbad\ta dull film {number}\n" for number in range(40)
)


class Walk:
    """A profiler that notes each function of the package when it first runs."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, None]] = {}
        """File -> the functions that ran, both in order."""
        self._imports = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and code.co_filename.startswith(str(PACKAGE)):
            name = str(Path(code.co_filename).relative_to(PACKAGE))
            self.functions.setdefault(name, {})[code.co_qualname] = None


def take(walk: Walk, *arguments: str) -> None:
    """Runs a command with the profiler on."""
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        main(list(arguments))
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def run() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="list the functions of each file too")
    parser.add_argument("--model", default="recurrent", help="the family that is trained")
    arguments = parser.parse_args()
    walk = Walk()
    with TemporaryDirectory() as place:
        data, folder, questions = (Path(place) / name for name in ("reviews.tsv", "run", "new.txt"))
        data.write_text("label\ttext\n" + SENTENCES)
        questions.write_text("a funny film\n")
        settings = (
            "--model",
            arguments.model,
            "--set",
            "train.max_steps=2",
            "--set",
            "data.tokenizer=words",
            "--set",
            "train.threads=1",
        )
        take(
            walk, "train", "text-classification", str(data), "--output-dir", str(folder), *settings
        )
        take(walk, "predict", str(folder), str(questions))
    for name, functions in walk.functions.items():
        print(f"{len(functions):5}  {name}")
        if arguments.calls:
            print("".join(f"         {function}\n" for function in functions), end="")
    print(f"{len(walk.functions)} files, {sum(map(len, walk.functions.values()))} functions")


if __name__ == "__main__":
    run()
