"""How well attributions tell which words an answer stands on, and whether they depend on the model.

    python -m tests.campaigns.attributions RUN FILE [--texts N] [--seed N]

RUN is a classifier, FILE has its texts in a column `text`. Comprehensiveness (DeYoung et al. 2020): the mean
fall of p of the answer where the 10, 20, 30, 40 and 50 % of the words with the largest share are left out,
for leave-one-out, integrated gradients and a random order. Then the rank correlation of the shares with those
of the same model with random weights (Adebayo et al. 2018). Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import seqloom
from seqloom.explaining.studies.attribution import leave_one_out
from seqloom.protocols import NO_REQUEST
from seqloom.tasks.explain.look import Look, Method

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
METHODS: tuple[Method, ...] = ("leave-one-out", "integrated-gradients")


def fall(model: Any, text: str, order: Sequence[int]) -> float:
    """Of p, where the first words of an order are left out."""
    given = model.model_input([text], Look(show="attribution"), NO_REQUEST)
    words = list(given.words())
    batches = [
        [place for at in order[: max(1, round(share * len(words)))] for place in words[at].places]
        for share in SHARES
    ]
    with torch.inference_mode():
        probabilities = model.encoder(given.batch).softmax(dim=-1)[0]
    best = int(probabilities.argmax())

    def score(batch: Any) -> torch.Tensor:
        found: torch.Tensor = model.encoder(batch).softmax(dim=-1)[:, best]
        return found

    mask = given.tokenizer.special_ids.mask
    _, falls = leave_one_out(given.batch, batches, score, replacement=mask, of_nothing=3)
    return float(falls.mean())


def shares_of(model: Any, texts: Sequence[str], method: Method) -> list[NDArray[np.float64]]:
    return [
        np.array(model.explain(text, show="attribution", method=method).numbers["shares"])
        for text in texts
    ]


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    first, second = np.argsort(np.argsort(one)), np.argsort(np.argsort(other))
    return float(np.corrcoef(first, second)[0, 1])


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("file")
    parser.add_argument("--texts", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    model: Any = seqloom.load(given.run, "cpu")
    with open(given.file, encoding="utf-8", newline="") as file:
        dialect = "excel-tab" if given.file.endswith(".tsv") else "excel"
        rows = [row["text"] for row in csv.DictReader(file, dialect=dialect)]
    draw = np.random.default_rng(given.seed)
    long_enough = [text for text in rows if len(text.split()) > 4]
    texts = [long_enough[at] for at in draw.permutation(len(long_enough))[: given.texts]]
    orders: dict[str, list[NDArray[np.float64]]] = {
        method: shares_of(model, texts, method) for method in METHODS
    }
    orders["random"] = [draw.random(len(one)) for one in orders["leave-one-out"]]
    found: dict[str, float] = {"texts": len(texts)}
    for name, by_text in orders.items():
        falls = [
            fall(model, text, np.argsort(-one).tolist())
            for text, one in zip(texts, by_text, strict=True)
        ]
        found[f"comprehensiveness {name}"] = float(np.mean(falls))
    torch.manual_seed(given.seed)
    for parameter in model.model.parameters():
        nn.init.normal_(parameter, std=0.1)
    for method in METHODS:
        pairs = zip(orders[method], shares_of(model, texts, method), strict=True)
        found[f"correlation with random weights {method}"] = float(
            np.nanmean([correlation(one, other) for one, other in pairs])
        )
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
