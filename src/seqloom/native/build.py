"""Compiles the loops. Imports nothing but the standard library: it runs while nothing is installed yet
(`hatch_build.py`)."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent

FLAGS = (
    *("-std=c++20", "-O3", "-fopenmp", "-fPIC", "-shared"),
    # sums and products may fuse and loops may become vectors, but nothing may be reordered: not -ffast-math
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)

KINDS: dict[str, tuple[str, ...]] = {
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "avx2": ("-march=x86-64-v3",),
    "plain": (),
}
"""Kinds of processors, and the flags that let the compiler use their instructions."""


def kinds_here() -> list[str]:
    """The kinds that are built on this machine."""
    return ["avx512", "avx2"] if platform.machine() in ("x86_64", "AMD64") else ["plain"]


def library_path(folder: Path, capability: str) -> Path:
    """Where the library is for a processor of this capability, as torch names it."""
    return library_of_kind(folder, {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "plain"))


def library_of_kind(folder: Path, kind: str) -> Path:
    return folder / f"recurrent-{kind}.so"


def built_from(folder: Path) -> str:
    """What a library was built from: one hash of all its sources and flags."""
    whole = hashlib.sha256(repr((FLAGS, KINDS)).encode())
    for path in sorted([*folder.glob("*.h"), *folder.glob("*.cpp")]):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def build(folder: Path = SOURCES) -> list[Path]:
    """Compiles the sources in `folder` beside themselves. Raises OSError where there is no compiler, or it
    fails."""
    if sys.platform != "linux":
        raise OSError(f"the compiled loops are for Linux, but this is {sys.platform}")
    preferred = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    compilers = [command for command in (preferred, ["g++"]) if shutil.which(command[0])]
    if not compilers:
        raise OSError(f"there must be a C++ compiler, but neither {preferred[0]} nor g++ was found")
    return [compiled(folder, kind, compilers) for kind in kinds_here()]


def compiled(folder: Path, kind: str, compilers: list[list[str]]) -> Path:
    """Compiles for one kind with the first compiler that can (a clang may lack OpenMP) -> the library. Raises
    OSError with the last one's message."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        new, library = Path(work) / "recurrent.so", library_of_kind(folder, kind)
        stamp = f'-DSEQLOOM_BUILT_FROM="{built_from(folder)}"'
        for compiler in compilers:
            command = [
                *compiler,
                *FLAGS,
                *KINDS[kind],
                stamp,
                str(folder / "recurrent.cpp"),
                "-o",
                str(new),
            ]
            run = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if run.returncode == 0:
                new.replace(library)
                return library
        raise OSError(
            f"{shlex.join(compiler)} must compile recurrent.cpp, but said: {run.stderr.strip()[-500:]}"
        )
