"""The space of words, or of whole texts, in a trained model."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.errors import UsageError, counted, printable
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.word_space import Projection, principal_axes, space_chart
from seqloom.files import read_text

Vectors = NDArray[np.floating]


class NamedPoints(NamedTuple):
    """What is to be shown of a space: names, and the group of each where a column says so."""

    names: list[str]
    groups: list[str] | None
    column: str


def read_points(
    given: Sequence[str], column: str | None, *, commas: bool, files: bool = True
) -> NamedPoints:
    """Names from the command line (with commas between, where `commas`), or, where `files`, those of one
    file: a name a line, and after a tab its group; or a table whose first line names its columns, where
    `column` is asked for.

    Raises UsageError if there is no name, or no such column.
    """
    if files and len(given) == 1 and os.path.isfile(given[0]):
        text = read_text(Path(given[0]))
        if given[0].endswith(".csv"):
            rows = [row for row in csv.reader(StringIO(text, newline="")) if row]
        else:
            # a quotation mark is part of a text
            rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    elif commas:
        rows = [[word.strip()] for text in given for word in text.split(",") if word.strip()]
    else:
        rows = [[word] for word in given]
    names, groups, name = rows, None, "group"
    if column is not None:
        header = names[0] if names else []
        if column not in header:
            raise UsageError(
                f"--column must be one of {', '.join(map(printable, header))} of the first line,"
                f" but is {printable(column)}"
            )
        at = header.index(column)
        names = names[1:]
        groups, name = [row[at] if at < len(row) else "" for row in names], column
    elif rows and all(len(row) == 2 for row in rows):
        groups = [row[1] for row in rows]
    found = [row[0] for row in names]
    if not found:
        raise UsageError("a picture of a space needs names, but none is given")
    return NamedPoints(found, groups, name)


def explain_space(
    show: str, points: NamedPoints, vectors: Vectors, kept: Sequence[int], title: str, missing: str
) -> Explanation:
    """`kept`: the numbers of the names that have a vector. `missing` says why others have none."""
    names = [points.names[index] for index in kept]
    groups = None if points.groups is None else [points.groups[index] for index in kept]
    there = set(kept)
    left_out = [name for index, name in enumerate(points.names) if index not in there]
    projection: Projection = principal_axes(vectors)
    first, second = projection.shares
    lines = [f"{first:.1%} and {second:.1%} of the variance are on the two axes"]
    if left_out:
        shown = ", ".join(map(printable, left_out[:10]))
        lines.append(f"{counted(len(left_out), 'name')} left out, {missing}: {shown}")
    numbers = {
        "names": names,
        "groups": groups,
        "points": projection.points.tolist(),
        "shares_of_variance": list(projection.shares),
        "left_out": left_out,
    }
    return Explanation(
        show=show,
        numbers=numbers,
        text=lines,
        draw=lambda: space_chart(
            projection, names, title=title, groups=groups, group_name=points.column
        ),
    )


@torch.inference_mode()
def embedded_words(
    table: nn.Embedding, encoded: Sequence[Sequence[int]], unknown: int | None
) -> tuple[Vectors, list[int]]:
    """The mean of the embeddings of each word's tokens, and the numbers of the words that have any; an
    unknown token has none."""
    kept, rows = list[int](), list[Tensor]()
    for index, ids in enumerate(encoded):
        if ids and unknown not in ids:
            embeddings = table.weight[torch.tensor(list(ids))]
            rows.append(embeddings.double().mean(dim=0).cpu())
            kept.append(index)
    vectors: Tensor = torch.stack(rows) if rows else torch.zeros(0, table.embedding_dim)
    return vectors.numpy(), kept
