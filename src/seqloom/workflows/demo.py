"""One minute on a laptop: attention learns to read dates, written in many ways and many languages."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, final

from seqloom import files
from seqloom.data.synthetic.pairs import DatePair, date_phrases
from seqloom.runs.run_folder import load_run
from seqloom.tasks.translation.evaluate_pairs import evaluate_pairs
from seqloom.tasks.translation.translator import Predictor
from seqloom.training.loop import Progress
from seqloom.workflows.explain.text import attention_of, draw_attention
from seqloom.workflows.train import train

logger = logging.getLogger(__name__)

SETTINGS = (
    "data.tokenizer=characters",
    "train.batch_rows=128",
    "train.learning_rate=0.004",
    "train.warmup_steps=50",
    "train.log_every=50",
    "train.best=exact_match",
    "decode.beam=1",
)
EXAMPLES = 10
REPORTED, VALIDATED = 1_000, 200
"""Held-out pairs that are reported on, and other ones that choose the best checkpoint."""


@final
@dataclass(frozen=True)
class DemoResult:
    summary: dict[str, Any]
    """exact_match (held-out years), exact_match_new_forms, seconds (training), heatmap, output_dir; after a
    signal stopped and output_dir alone."""
    examples: list[tuple[str, ...]]
    """(written, read as, right)."""
    stopped: str
    """How the training ended, as in TrainResult."""


def demo(output_dir: str, steps: int, progress: Callable[[Progress], None]) -> DemoResult:
    """Makes the data, trains on it, measures on years and on written forms that it never saw, draws one heat
    map.

    A training that a signal stopped is not measured.
    """
    phrases = date_phrases(held_out=REPORTED + VALIDATED)
    years, forms = phrases.held_out_years[:REPORTED], phrases.held_out_forms[:REPORTED]
    validation = phrases.held_out_years[REPORTED:]
    logger.info(
        f"date phrases of {len(phrases.locales)} locales: {len(phrases.train):,} to train on, {len(years):,}"
        f" of years and {len(forms):,} of written forms that are held out, {len(validation):,} to choose the"
        f" best checkpoint by; {phrases.ambiguous:,} of {phrases.considered:,} were left out, because two"
        " locales read them as different dates (3/4/2021) or their century is not said"
    )
    folder = free_folder(Path(output_dir))
    if str(folder) != output_dir:
        logger.info(f"{output_dir} holds something already; this run goes to {folder}")
    run, known, unknown = (
        folder / "model",
        folder / "data" / "train.jsonl",
        folder / "data" / "validation.jsonl",
    )
    write_pairs(known, phrases.train)
    write_pairs(unknown, validation)
    began = time.perf_counter()
    result = train(
        "translation",
        [str(known)],
        output_dir=run,
        model="seq2seq:tiny",
        validation=[str(unknown)],
        settings=[*SETTINGS, f"train.max_steps={steps}", f"train.evaluate_every={max(steps // 4, 1)}"],
        progress=progress,
    )
    seconds = time.perf_counter() - began
    if result.stopped in signal.Signals.__members__:
        return DemoResult({"stopped": result.stopped, "output_dir": str(run)}, [], result.stopped)
    bundle = load_run(run)

    def exact(pairs: Sequence[DatePair]) -> float:
        return evaluate_pairs(
            bundle.model, bundle.tokenizer, [pair[:2] for pair in pairs], bundle.decode
        ).metrics["exact_match"]

    heatmap = folder / "heatmap.png"
    attention = attention_of(bundle, max((pair.phrase for pair in years), key=len))
    draw_attention(attention, heatmap, "Where the model looks as it writes a date", pieces=False)
    draw_attention(attention, heatmap.with_suffix(".svg"), pieces=False)
    shown = spread(years, EXAMPLES)
    read = Predictor(bundle).predict([pair.phrase for pair in shown])
    summary = {
        "exact_match": round(exact(years), 2),
        "exact_match_new_forms": round(exact(forms), 2),
        "seconds": round(seconds, 1),
        "heatmap": str(heatmap),
        "output_dir": str(run),
    }
    examples: list[tuple[str, ...]] = [
        (p.phrase, r, "yes" if r == p.iso else f"no: {p.iso}") for p, r in zip(shown, read, strict=True)
    ]
    return DemoResult(summary, examples, result.stopped)


def spread(pairs: Sequence[DatePair], count: int) -> list[DatePair]:
    """Some pairs, each of another locale, the written forms in turn."""
    chosen: dict[str, DatePair] = {}
    for form in cycle(sorted({pair.form for pair in pairs})):
        found = next((pair for pair in pairs if pair.form == form and pair.locale not in chosen), None)
        if found is None or len(chosen) == count:
            return list(chosen.values())
        chosen[found.locale] = found
    return []


def write_pairs(path: Path, pairs: Sequence[DatePair]) -> None:
    """Pairs as a file that `seqloom train` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps({"source": pair.phrase, "target": pair.iso}, ensure_ascii=False) + "\n" for pair in pairs
    )
    path.write_text("".join(lines), "utf-8")


def free_folder(wanted: Path) -> Path:
    """`wanted`, or with the first free number where it holds something."""
    folder, number = wanted, 2
    while files.holds_something(folder):
        folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return folder
