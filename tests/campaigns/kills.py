"""Kills a command before each thing that it does to a file, and gives the same command again.

    python -m tests.campaigns.kills [VERB...] [--every N] [--seed N]

The second command must end well, or say that the folder is there already where the first was killed after its
work; what is there then must be what a command leaves that nobody disturbed, without a file too many. Prints
one line of JSON for each verb; the exit status is 1 where one command did not recover.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.damage import copied
from tests.campaigns.processes import Ran, run

TINY = [
    f"--set={one}"
    for one in (
        "data.tokenizer=characters",
        "data.document=line",
        "train.batch_tokens=64",
        "train.threads=1",
        "train.max_steps=2",
        "train.evaluate_every=1",
        "model.width=8",
        "model.layers=1",
        "model.heads=1",
        "model.context=16",
    )
]
GPT = ["train", "text-generation", "text.txt", "--validation", "dev.txt", "--model", "gpt:tiny"]
NGRAM = ["train", "text-generation", "text.txt", "--validation", "dev.txt", "--model"]
WORDS = "--set=data.tokenizer=words"

VERBS: dict[str, list[str]] = {
    "import": ["import", "hub", "made"],
    "import-arpa": ["import", "model.arpa", "made"],
    "export": ["export", "gpt", "made"],
    "export-onnx": ["export", "gpt", "made", "--format", "onnx"],
    "ensemble": ["ensemble", "two", "three", "--output-dir", "made"],
    "fit": [*NGRAM, "ngram:bigram", WORDS, "--output-dir", "made"],
    "train": [*GPT, *TINY, "--output-dir", "made"],
    "compare": [
        *("compare", "text-classification", "labels.csv", "--validation", "labels.csv"),
        *("--models", "bag_of_words:tiny,convolution:tiny", "--seeds", "1", "--grid", "2"),
        *("--set=data.tokenizer=words", "--set=train.max_steps=3", "--set=train.threads=1"),
        *("--output-dir", "made"),
    ],
}
IS_THERE = ("must be new or empty", "there is nothing to do")
TIMES = ("metrics.jsonl", "leaderboard", "choices.json", "score.json")
"""Files in which times stand."""


class Trial(NamedTuple):
    at: int
    recovered: bool
    seen: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verbs", nargs="*", default=list(VERBS))
    parser.add_argument("--every", type=int, default=1, help="kill before each N-th event only")
    arguments = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        place.mkdir()
        prepare(place)
        for verb in arguments.verbs:
            trials = kills(VERBS[verb], place, arguments.every)
            lost = [trial for trial in trials if not trial.recovered]
            good &= not lost
            report = {"verb": verb, "kills": len(trials), "recovered": len(trials) - len(lost)}
            print(json.dumps(report | {"lost": lost[:5]}), flush=True)
    return 0 if good else 1


def prepare(place: Path) -> None:
    """Small data and models."""
    lines = [f"the {a} sees {b} {c} cats" for a in "abc" for b in "defg" for c in "hi"]
    (place / "text.txt").write_text("\n".join(lines) + "\n")
    (place / "dev.txt").write_text("\n".join(lines[::5]) + "\n")
    rows = [f"{line},{'even' if at % 2 else 'odd'}" for at, line in enumerate(lines)]
    (place / "labels.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    commands = [
        [*GPT, *TINY, "--output-dir", "gpt"],
        [*NGRAM, "ngram:bigram", WORDS, "--output-dir", "two"],
        [*NGRAM, "ngram:trigram", WORDS, "--output-dir", "three"],
        ["export", "gpt", "hub"],
        ["export", "two", "model.arpa"],
    ]
    for command in commands:
        ran = run(command, place, limit=300)
        if ran.code:
            raise SystemExit(f"{' '.join(command)}: {ran.err}")
    shutil.rmtree(place / ".seqloom-cache")


def kills(command: Sequence[str], place: Path, every: int) -> list[Trial]:
    """The command, killed before the first event, and so on to its end."""
    work, alone = place.with_name("work"), place.with_name("alone")
    # at the same place as the others, since paths are written down
    copied(place, work)
    ran = run(command, work, limit=300)
    if ran.code:
        raise SystemExit(f"{' '.join(command)}: {ran.err}")
    copied(work, alone)
    trials: list[Trial] = []
    at = 1
    while True:
        copied(place, work)
        first = run(command, work, limit=300, kill_at=at)
        if first.code != -9:
            return trials
        trials.append(Trial(at, *recovery(command, work, alone)))
        at += every


def recovery(command: Sequence[str], work: Path, alone: Path) -> tuple[bool, str]:
    """Whether the command given again leaves what an undisturbed one does, and what is wrong."""
    ran = run(command, work, limit=300)
    if ran.code and not (ran.code == 2 and any(words in ran.err for words in IS_THERE)):
        return False, last_line(ran)
    names, wanted = names_in(work), names_in(alone)
    if names != wanted:
        return False, f"too many or missing: {sorted(names ^ wanted)[:5]}"
    for name in sorted(names):
        if contents(work / name) != contents(alone / name):
            return False, f"another {name}"
    return True, ""


def names_in(folder: Path) -> set[str]:
    """Of all files and folders; locks may stay."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock"}


def contents(path: Path) -> object:
    """Of a file; without times, and without hashes of files in which times stand."""
    if not path.is_file() or path.name.startswith(TIMES):
        return None
    if path.name in ("manifest.json", "meta.json"):
        listed = json.loads(path.read_bytes()).get("files")
        return listed if isinstance(listed, dict) else None
    return path.read_bytes()


def last_line(ran: Ran) -> str:
    return f"exit {ran.code}: {ran.err.strip()[-300:]}"


if __name__ == "__main__":
    sys.exit(main())
