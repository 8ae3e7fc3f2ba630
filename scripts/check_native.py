"""The compiled loops under gcc's sanitizers of addresses and undefined behaviour.

    make check-native
    python -m scripts.check_native [TESTS ...]

Builds the library of this processor anew with -fsanitize=address,undefined in a folder of its own, and runs
the tests on it, with the allocator of the sanitizer in front of that of Python, NumPy and torch: a read or
write beside any array is found. Threads are not checked: -fsanitize=thread does not know the barriers of
libgomp, and takes every parallel region for a race.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from seqloom.native import build

FOLDER = "SEQLOOM_CHECKED_NATIVE"
"""Environment variable: where the library is that is checked."""
SANITIZERS = (
    *("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # libraries of several kinds in one process must not share their constants
    "-fno-gnu-unique",
)
TESTS = [
    "tests/native",
    "tests/layers",
    "tests/models/test_native_encoder.py",
    "tests/models/test_native_gpt.py",
    "tests/models/test_native_encoder_decoder.py",
    "tests/models/test_native_seq2seq.py",
    "tests/text/test_segment_encoder.py",
]
LEFT_OUT = ["-k", "not test_texts_are_the_same"]
"""With -O1 sums are rounded otherwise, which decides between two texts that are equally likely."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """This module is also a plugin of pytest: the tests load the library that is checked."""
    build.SOURCES = Path(os.environ[FOLDER])
    build.KINDS.update(with_sanitizers())
    # only now, as it takes the folder from there
    library = importlib.import_module("seqloom.native.library")
    assert library.library() is not None, "the checked library does not load"


def with_sanitizers() -> dict[str, tuple[str, ...]]:
    """The kinds of processors with other flags."""
    return {kind: (*flags, *SANITIZERS) for kind, flags in build.KINDS.items()}


def runtime(name: str) -> str:
    """The path of a shared library of gcc."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for path in [*build.SOURCES.glob("*.h"), *build.SOURCES.glob("*.cpp")]:
            shutil.copy(path, folder)
        build.KINDS.update(with_sanitizers())
        build.build(folder)
        environment = {
            **os.environ,
            FOLDER: str(folder),
            "LD_PRELOAD": ":".join(map(runtime, ("libasan.so", "libubsan.so"))),
            # what Python and torch keep until the end is no leak of ours
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "2",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.check_native", *LEFT_OUT]
        run = subprocess.run([*command, *(sys.argv[1:] or TESTS)], env=environment)
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
