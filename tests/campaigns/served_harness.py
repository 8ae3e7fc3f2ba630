"""PIQA of lm-evaluation-harness through the server, beside `seqloom score` of the same folder.

    python -m tests.campaigns.served_harness RUN valid.jsonl valid-labels.lst [--limit 100]

Needs lm-evaluation-harness (`lm_eval`). Prints one line of JSON; the exit status is 1 where a log-likelihood
is another by more than 1e-5 and by more than float32 rounds a number of its size.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.prompts import log_likelihoods, piqa_rows, write_task
from tests.campaigns.servers import exit_status, numbers_parser, server_process

import seqloom

NAME = "piqa_here"
ABSOLUTE = 1e-5
RELATIVE = 2.0**-22
"""Twice what lies between a float32 and the next: server and verb read batches of other shapes, which float32
rounds in other ways."""


def of_server(url: str, folder: Path, limit: int) -> list[list[float]]:
    """The log-likelihoods as the harness sees them, by item and answer."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model="local-completions",
        model_args=f"model=served,base_url={url}/v1/completions,tokenizer_backend=remote",
        tasks=[NAME],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        limit=limit,
        log_samples=True,
        bootstrap_iters=0,
    )
    return log_likelihoods(found["samples"][NAME])


def of_score(run: str, rows: list[dict[str, Any]]) -> list[list[float]]:
    """The same by the verb."""
    model = seqloom.load(run, "cpu")
    found = []
    for row in rows:
        prompt = f"Question: {row['goal']}\nAnswer:"
        scores = model.score([f" {option}" for option in row["options"]], prompt=prompt)
        found.append([score.log_probability_without_end for score in scores])
    return found


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = numbers_parser(__doc__, limit=100)
    for name in ("run", "piqa", "piqa_labels"):
        parser.add_argument(name)
    options = parser.parse_args(words)
    rows = piqa_rows([options.piqa, options.piqa_labels])[: options.limit]
    with (
        tempfile.TemporaryDirectory() as place,
        server_process(f"served={options.run}") as server,
    ):
        write_task(Path(place), NAME, rows)
        served = np.array(of_server(server.url, Path(place), options.limit))
    scored = np.array(of_score(options.run, rows))
    differences = np.abs(served - scored)
    return {
        "log_likelihoods": served.size,
        "from": float(served.min()),
        "to": float(served.max()),
        "largest_difference": float(differences.max()),
        "median_difference": float(np.median(differences)),
        "largest_relative": float((differences / np.abs(scored)).max()),
        "within_1e-5": int((differences <= ABSOLUTE).sum()),
        "right": bool(np.all(differences <= np.maximum(ABSOLUTE, RELATIVE * np.abs(scored)))),
    }


if __name__ == "__main__":
    report = main()
    sys.exit(exit_status([report], report["right"]))
