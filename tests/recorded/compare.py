"""Compares two recordings of `record.py`: every command's exit code and words, every file that was made.

    python tests/recorded/compare.py BEFORE AFTER [--renames FILE] [--lines 12] [--part]

FILE is JSON: {"words": {"old": "new"}, "files": {"old/path": "new/path"}, "expected": ["name or pattern"]}.
Words are replaced in all text of BEFORE where they stand whole, files are taken under their new path, and
what is expected to differ (names of results such as help-train or of files, * for any part) is counted and
not printed. The exit code is 1 where anything else differs. --part: AFTER holds some chains only
(`record.py --only`), and what it has not got is no difference.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PARTS = ("command.txt", "exit-code.txt", "stdout.txt", "stderr.txt")


@dataclass(frozen=True)
class Renames:
    """What is allowed to be called otherwise after the change."""

    words: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)

    def text(self, before: str) -> str:
        """Text of before, in the words of after."""
        for old, new in self.words.items():
            before = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", lambda _, new=new: new, before)  # type: ignore[misc]
        return before

    def is_expected(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.expected)


def differences(
    before: Path, after: Path, renames: Renames, part_only: bool
) -> Iterator[tuple[str, str, str]]:
    """(name, what differs, the difference) of everything that differs."""
    old, new = _results(before), _results(after)
    for name in [] if part_only else sorted(old.keys() - new.keys()):
        yield name, "is missing after", ""
    for name in sorted(new.keys() - old.keys()):
        yield name, "is new after", ""
    for name in sorted(old.keys() & new.keys()):
        for part in PARTS:
            one, other = (renames.text(_read(old[name] / part)), _read(new[name] / part))
            if one != other:
                yield name, part, _shown(one, other)
    yield from _file_differences(before, after, renames, part_only)


def _results(recording: Path) -> dict[str, Path]:
    """Name -> folder; the number before a name may change, but tells apart what has the same name."""
    found: dict[str, Path] = {}
    for folder in sorted((recording / "results").iterdir()):
        name, count = folder.name.partition("-")[2], 2
        while name in found:
            name, count = f"{folder.name.partition('-')[2]}-{count}", count + 1
        found[name] = folder
    return found


def _file_differences(
    before: Path, after: Path, renames: Renames, part_only: bool
) -> Iterator[tuple[str, str, str]]:
    hashes: list[dict[str, str]] = [
        json.loads((one / "files.json").read_text("utf-8")) for one in (before, after)
    ]
    paths = {renames.files.get(name, name): name for name in hashes[0]}
    chains = {name.partition("/")[0] for name in hashes[1]}
    for name in sorted(paths.keys() - hashes[1].keys()):
        if part_only and name.partition("/")[0] not in chains:
            continue
        yield name, "file is missing after", ""
    for name in sorted(hashes[1].keys() - paths.keys()):
        yield name, "file is new after", ""
    for name in sorted(paths.keys() & hashes[1].keys()):
        if hashes[0][paths[name]] == hashes[1][name]:
            continue
        one, other = before / "texts" / paths[name], after / "texts" / name
        if not one.is_file() or not other.is_file():
            yield name, "file has other bytes", ""
        elif (text := renames.text(_read(one))) != (now := _read(other)):
            yield name, "file", _shown(text, now)


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else "(not there)\n"


def _shown(before: str, after: str) -> str:
    """A diff without context; of long lines the part where they part."""
    lines = list(
        difflib.unified_diff(_pretty(before), _pretty(after), "before", "after", lineterm="", n=0)
    )[2:]
    return "\n".join(line if len(line) <= 300 else line[:300] + " ..." for line in lines)


def _pretty(text: str) -> list[str]:
    """Lines; one of JSON as many, so that a difference in it is short."""
    lines: list[str] = []
    for line in text.split("\n"):
        try:
            content = json.loads(line) if line[:1] in ("{", "[") else None
        except ValueError:
            content = None
        lines += (
            [line]
            if content is None
            else json.dumps(content, indent=1, ensure_ascii=False).split("\n")
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares two recordings.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--renames", type=Path, help="JSON of what may differ")
    parser.add_argument("--lines", type=int, default=12, help="lines of each difference, at most")
    parser.add_argument("--part", action="store_true", help="AFTER holds some chains only")
    given = parser.parse_args()
    renames = (
        Renames(**json.loads(given.renames.read_text("utf-8"))) if given.renames else Renames()
    )
    shown, expected = 0, 0
    for name, what, difference in differences(given.before, given.after, renames, given.part):
        if renames.is_expected(name):
            expected += 1
            continue
        shown += 1
        print(f"== {name}: {what}")
        lines = difference.split("\n") if difference else []
        print("".join(f"   {line}\n" for line in lines[: given.lines]), end="")
        if len(lines) > given.lines:
            print(f"   ... {len(lines) - given.lines} lines more")
    print(f"{shown} differences" + (f", and {expected} that are expected" if expected else ""))
    sys.exit(1 if shown else 0)


if __name__ == "__main__":
    main()
