"""A demonstration that takes one minute on a laptop: attention learns to read dates, written in many ways and
many languages."""

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
from seqloom.tasks.translation.translator import Translator
from seqloom.training.loop import Progress
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
"""Held-out pairs that are reported on, and others that choose the best checkpoint."""


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


def demo(output_dir: str, steps: int, progress: Callable[[Progress], None] | None) -> DemoResult:
    """Generates the data, trains on it, measures on years and on written forms that are not in it, and draws
    a heat map. A training that a signal stopped is not measured."""
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
    run, heatmap = folder / "model", folder / "heatmap.png"
    paths = {name: folder / "data" / f"{name}.jsonl" for name in ("train", "validation")}
    write_pairs(paths["train"], phrases.train)
    write_pairs(paths["validation"], validation)
    started = time.perf_counter()
    result = train(
        "translation",
        [str(paths["train"])],
        output_dir=run,
        model="seq2seq:tiny",
        validation=[str(paths["validation"])],
        settings=[
            *SETTINGS,
            f"train.max_steps={steps}",
            f"train.evaluate_every={max(steps // 4, 1)}",
        ],
        progress=progress,
    )
    seconds = time.perf_counter() - started
    if result.stopped in signal.Signals.__members__:
        return DemoResult({"stopped": result.stopped, "output_dir": str(run)}, [], result.stopped)
    bundle = load_run(run)

    def exact_match(pairs: Sequence[DatePair]) -> float:
        texts = [pair[:2] for pair in pairs]
        report = evaluate_pairs(bundle.model, bundle.tokenizer, texts, bundle.decode)
        return round(report.metrics["exact_match"], 2)

    looks = Translator(bundle).explain(max((pair.phrase for pair in years), key=len))
    looks.save(heatmap)
    looks.save(heatmap.with_suffix(".svg"))
    shown = spread(years, EXAMPLES)
    predictions = Translator(bundle).predict([pair.phrase for pair in shown])
    examples: list[tuple[str, ...]] = []
    for pair, predicted in zip(shown, predictions, strict=True):
        verdict = "yes" if predicted == pair.iso else f"no: {pair.iso}"
        examples.append((pair.phrase, predicted, verdict))
    summary = {
        "exact_match": exact_match(years),
        "exact_match_new_forms": exact_match(forms),
        "seconds": round(seconds, 1),
        "heatmap": str(heatmap),
        "output_dir": str(run),
    }
    return DemoResult(summary, examples, result.stopped)


def spread(pairs: Sequence[DatePair], count: int) -> list[DatePair]:
    """Some pairs, each of a different locale, with the written forms in turn."""
    chosen: dict[str, DatePair] = {}
    for form in cycle(sorted({pair.form for pair in pairs})):
        example = next(
            (pair for pair in pairs if pair.form == form and pair.locale not in chosen), None
        )
        if example is None or len(chosen) == count:
            return list(chosen.values())
        chosen[example.locale] = example
    return []


def write_pairs(path: Path, pairs: Sequence[DatePair]) -> None:
    """Pairs as a file that `seqloom train` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = ({"source": pair.phrase, "target": pair.iso} for pair in pairs)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), "utf-8")


def free_folder(wanted: Path) -> Path:
    """`wanted`, or that name with the first free number if the folder is not empty."""
    folder, number = wanted, 2
    while files.holds_something(folder):
        folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return folder
