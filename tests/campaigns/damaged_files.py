"""Damages every file of run folders and of the data cache in every way, and sees what commands make of it.

    python -m tests.campaigns.damaged_files [KIND...] [--trials N] [--seed N]

A trial copies a folder, finished or unfinished, damages one file, and runs the verb that answers with the
model, or `train --resume`, or a new training on the cache. Right is: a refusal in one line, and the file is
named; the same answer as before; or another answer with a notice that names the file or its checkpoint.
Prints one line of JSON; the exit status is 1 where a trial was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.damage import DAMAGES, copied, fits
from tests.campaigns.processes import Ran, run

TINY = [
    f"--set={one}"
    for one in ("train.threads=1", "train.max_steps=4", "train.evaluate_every=1", "model.width=8")
]
GPT = [f"--set={one}" for one in ("model.layers=1", "model.heads=1", "model.context=16")]
TEXTS = ["text-generation", "text.txt", "--validation", "text.txt", "--set=data.document=line"]
WORDS = "--set=data.tokenizer=words"

KINDS: dict[str, tuple[list[str], list[str]]] = {
    "gpt": (
        ["train", *TEXTS, "--model", "gpt:tiny", "--set=data.tokenizer=characters", *TINY, *GPT],
        ["evaluate", "run", "text.txt", "--json"],
    ),
    "ngram": (
        ["train", *TEXTS, "--model", "ngram:bigram", WORDS],
        ["evaluate", "run", "text.txt", "--json"],
    ),
    "classifier": (
        [
            *("train", "text-classification", "labels.csv", "--validation", "labels.csv"),
            *("--model", "bag_of_words:tiny", WORDS, *TINY),
        ],
        ["evaluate", "run", "labels.csv", "--json"],
    ),
    "seq2seq": (
        [
            *("train", "translation", "pairs.tsv", "--validation", "pairs.tsv"),
            *("--model", "seq2seq:tiny", WORDS, *TINY, "--set=model.embedding_width=8"),
        ],
        ["evaluate", "run", "pairs.tsv", "--json"],
    ),
}
"""How each kind of model is trained, and the verb that answers with it."""


class Trial(NamedTuple):
    kind: str
    state: str
    file: str
    damage: str
    verb: str
    outcome: str
    """refused, same, said; or what is wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        subjects = [
            subject for kind in arguments.kinds for subject in prepare(Path(folder) / kind, kind)
        ]
        trials = []
        for number in range(arguments.trials):
            trial = subjects[number % len(subjects)].trial(rng)
            trials.append(trial)
            if trial.outcome not in ("refused", "same", "said"):
                print(json.dumps(trial), flush=True)
    counts = Counter(trial.outcome for trial in trials)
    right = counts["refused"] + counts["same"] + counts["said"]
    shown = {name: counts[name] for name in ("refused", "same", "said")}
    print(json.dumps({"trials": len(trials), "right": right, **shown}))
    return 0 if right == len(trials) else 1


class Subject(NamedTuple):
    """A folder that is damaged, and what it answers while it is whole."""

    kind: str
    state: str
    place: Path
    """Holds the data, the run, and the cache."""
    verbs: dict[str, list[str]]
    answers: dict[str, object]

    def trial(self, rng: random.Random) -> Trial:
        """Damages one file of a copy, at the place of the original, since a run names its data by paths."""
        whole = self.place.with_name("whole")
        copied(self.place, whole)
        name, damage = self._draw(rng)
        verb = rng.choice(sorted(self.verbs))
        path = self.place / name
        DAMAGES[damage](path, rng)
        outcome = self._outcome(verb, path)
        copied(whole, self.place)
        return Trial(self.kind, self.state, name, damage, verb, outcome)

    def _draw(self, rng: random.Random) -> tuple[str, str]:
        root = self.place / (".seqloom-cache" if self.state == "cache" else "run")
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        while True:
            path, damage = rng.choice(paths), rng.choice(sorted(DAMAGES))
            if fits(damage, path):
                return str(path.relative_to(self.place)), damage

    def _outcome(self, verb: str, path: Path) -> str:
        ran = run(self.verbs[verb], self.place, limit=60)
        if ran.stopped:
            return "hangs"
        if ran.code:
            return "refused" if is_refusal(ran, path) else f"not one line: {ran.err[-300:]}"
        if answer(ran, self.place) == self.answers[verb]:
            return "same"
        named = path.name in ran.err or path.parent.name in ran.err
        return "said" if named else f"another answer, and not a word: {ran.err[-300:]}"


def is_refusal(ran: Ran, path: Path) -> bool:
    """Whether the last line is the error and none of Python, and the file is named."""
    line = ran.err.strip().splitlines()[-1] if ran.err.strip() else ""
    named = path.name in ran.err or path.parent.name in ran.err
    return ran.code in (1, 2) and line.startswith("seqloom: ") and named and "--debug" not in line


def prepare(place: Path, kind: str) -> list[Subject]:
    """A kind of model: finished, unfinished, and as a training from a cache."""
    train, answering = KINDS[kind]
    subjects = []
    for state in ("finished", "unfinished", "cache"):
        work = place / state / "place"
        work.mkdir(parents=True)
        write_data(work)
        begin = [*train, "--output-dir", "run"]
        if state == "unfinished":
            # with a checkpoint or two, and all that a finished one needs
            killed = run(
                begin, work, limit=300, kill_at=".README" if kind == "ngram" else "checkpoint-4.tmp"
            )
            if killed.code != -9:
                raise SystemExit(f"{' '.join(begin)} was not killed: {killed.err}")
        else:
            expect(begin, work)
        verbs = {"answer": answering, "resume": ["train", "--resume", "run"]}
        if state == "cache":
            verbs = {"train": [*train, "--output-dir", "again"]}
            if not (work / ".seqloom-cache").exists():
                continue
        answers = {}
        for name, verb in verbs.items():
            copied(work, work.with_name("whole"))
            answers[name] = answer(expect(verb, work), work)
            copied(work.with_name("whole"), work)
        subjects.append(Subject(kind, state, work, verbs, answers))
    return subjects


def expect(words: Sequence[str], work: Path) -> Ran:
    ran = run(words, work, limit=300)
    if ran.code:
        raise SystemExit(f"{' '.join(words)}: {ran.err}")
    return ran


def answer(ran: Ran, work: Path) -> object:
    """The numbers that a verb gives, or the weights that a training ends with."""
    if ran.out.startswith(("{", "[")):
        return json.loads(ran.out)
    for folder in ("again", "run"):
        if (work / folder / "manifest.json").is_file():
            return (work / folder / "model.safetensors").read_bytes()
    return ran.out


def write_data(work: Path) -> None:
    lines = [f"the {a} sees {b} {c} cats" for a in "abc" for b in "defg" for c in "hi"]
    (work / "text.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{line},{'even' if at % 2 else 'odd'}" for at, line in enumerate(lines)]
    (work / "labels.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    pairs = [f"{line}\t{line[::-1]}" for line in lines]
    (work / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(pairs) + "\n")


if __name__ == "__main__":
    sys.exit(main())
