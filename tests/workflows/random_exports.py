"""Exports of random models with random settings of decoding: the same texts in transformers, with the run and
with the export; or a notice.

    python -m tests.workflows.random_exports 200       200 of all families, with the outcomes counted
    python -m tests.workflows.random_exports 200 50    from draw 50 on
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tests.workflows.exported_runs import FAMILIES, our_texts, their_texts, write_run

from seqloom.workflows.exchange import export_model

KINDS = ("bpe", "words", "whitespace", "wordpiece", "unigram", "characters", "bytes")
NEAR = 1e-4
NOTHING_LEFT = "the rules must leave a token that may come next"
USUAL = ("transformers reads at most", "the decoder has more layers than the encoder")
"""Notices that are about no text of these lengths."""


def random_settings(draw: random.Random) -> dict[str, Any]:
    """Settings of decoding, most of which transformers has keys for."""
    settings: dict[str, Any] = {"strategy": "beam", "beam": draw.choice([1, 2, 3, 5])}
    if draw.random() < 0.2:
        settings = {"strategy": "sample", "temperature": draw.choice([0.5, 2.0])}
        settings |= draw.choice([{"top_k": 1}, {"min_p": 1.0}, {"top_k": 1, "top_p": 0.9}])
    elif settings["beam"] > 1:
        settings["length_penalty"] = draw.choice([0.0, 0.6, 1.0, 2.0])
        settings["n_best"] = draw.choice([1, 1, 2])
        settings["refill"] = draw.random() < 0.8
        if settings["refill"]:
            settings["early_stopping"] = draw.choice(["never", "likely", "full"])
    if draw.random() < 0.9:
        settings["max_length"] = draw.choice([1, 3, 10, 14])
    now_and_then: dict[str, Any] = {
        "min_length": draw.randint(1, settings.get("max_length", 9)),
        "no_repeat_ngram": draw.choice([1, 2, 3]),
        "repetition_penalty": draw.choice([1.3, 2.0]),
        "ban": ("o",),
        "begin": "the",
        "stop": ("a",),
    }
    for name, value in now_and_then.items():
        if draw.random() < 0.12:
            settings[name] = value
    return settings


def outcome(number: int) -> str:
    """What came of a draw: "equal", "said", or "no text" where the rules leave none. Raises AssertionError
    where texts differ without a word."""
    draw = random.Random(number)
    family, kind = list(FAMILIES)[number % len(FAMILIES)], draw.choice(KINDS)
    settings = random_settings(draw)
    made = f"{family}, {kind}, {settings}"
    with tempfile.TemporaryDirectory() as temporary:
        run, out = Path(temporary) / "run", Path(temporary) / "out"
        write_run(run, family, kind, draw.choice(["none", "nfc", "lower"]), number, **settings)
        notes: Any = export_model(str(run), str(out))["notes"]
        task = FAMILIES[family][1]
        try:
            ours = our_texts(run, task)
        except AssertionError as error:
            if NOTHING_LEFT not in str(error):
                raise
            return "no text"
        again = our_texts(out, task)
        assert again.texts == ours.texts, f"opened again: {again.texts} for {ours.texts}; {made}"
        pairs = zip(again.scores, ours.scores, strict=True)
        assert all(abs(one - two) <= NEAR for one, two in pairs), f"scores differ; {made}"
        theirs = their_texts(out, task)
    if theirs == ours.texts:
        return "equal"
    longer = "max_length" not in settings and family in ("gpt2", "openai-gpt")
    said = [note for note in notes if longer or not note.startswith(USUAL)]
    assert said, f"transformers: {theirs} for {ours.texts} without a word; {made}"
    return "said"


def campaign(count: int, first: int) -> int:
    """Prints each failure and the counts; returns how many failed."""
    counts: Counter[tuple[str, str]] = Counter()
    failed = 0
    for number in range(first, first + count):
        family = list(FAMILIES)[number % len(FAMILIES)]
        try:
            kind = outcome(number)
        except AssertionError as error:
            kind, failed = "FAILED", failed + 1
            print(f"{number}: {str(error)[:900]}", flush=True)
        counts[family, kind] += 1
    for (family, kind), times in sorted(counts.items()):
        print(f"{family:12} {kind:8} {times}")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    total, begin = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(bool(campaign(total, begin)))
