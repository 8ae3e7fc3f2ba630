"""BLEU by the length of the source, for several systems, as a table and a chart.

    python benchmarks/by_length.py SOURCE REFERENCE CHART NAME=OUTPUTS [NAME=OUTPUTS ...]

The bands are 95 % bootstrap intervals over the sentences of a bin. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from pathlib import Path

from seqloom.evaluation.text_metrics import bleu
from seqloom.explaining.charts import line_chart, save_chart

BINS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 19), (20, 99))
"""Words of the source, first to last."""
RESAMPLES = 200


def read(path: str) -> list[str]:
    content = Path(path).read_bytes()
    content = gzip.decompress(content) if path.endswith(".gz") else content
    return content.decode().removesuffix("\n").split("\n")


def interval(hypotheses: list[str], references: list[str]) -> tuple[float, float]:
    rng = random.Random(0)
    scores = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(len(references)), k=len(references))
        scores.append(bleu([hypotheses[i] for i in drawn], [references[i] for i in drawn]).value)
    scores.sort()
    return scores[round(0.025 * RESAMPLES)], scores[round(0.975 * RESAMPLES) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("reference")
    parser.add_argument("chart")
    parser.add_argument("systems", nargs="+")
    arguments = parser.parse_args()
    sources, references = read(arguments.source), read(arguments.reference)
    lengths = [len(source.split()) for source in sources]
    series: dict[str, list[tuple[float, float]]] = {}
    bands: dict[str, list[tuple[float, float, float]]] = {}
    for system in arguments.systems:
        name, _, path = system.partition("=")
        outputs = read(path)
        for low, high in BINS:
            rows = [i for i, length in enumerate(lengths) if low <= length <= high]
            texts, refs = [outputs[i] for i in rows], [references[i] for i in rows]
            middle = statistics.mean(lengths[i] for i in rows)
            series.setdefault(name, []).append((middle, bleu(texts, refs).value))
            bands.setdefault(name, []).append((middle, *interval(texts, refs)))
    sizes = [sum(low <= length <= high for length in lengths) for low, high in BINS]
    subtitle = "bands: 95 % bootstrap intervals; sentences a bin: " + ", ".join(map(str, sizes))
    chart = line_chart(
        series,
        x="words of the source",
        y="BLEU",
        title="BLEU by source length",
        subtitle=subtitle,
        bands=bands,
    )
    save_chart(chart, Path(arguments.chart))
    print(json.dumps({"bins": BINS, "sentences": sizes, "bleu": series, "interval": bands}))


if __name__ == "__main__":
    main()
