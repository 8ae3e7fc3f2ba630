"""Where a Vision Transformer looks: how much [CLS] attends to each patch, through all layers, and in each
head of one; and what it needs: how much a score falls where a patch is covered (Zeiler and Fergus 2014).

Attention rollout (Abnar and Zuidema 2020): A_l = (mean of the heads + I) / 2, since the residual connection
of a block adds its input to its output; [CLS] sees the patches by its row of A_L ... A_1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.errors import printable
from seqloom.explaining.charts import require_extra, styled
from seqloom.explaining.heat_maps import cell_scale, signed_scale, weight_scale
from seqloom.long_work import log_progress

if TYPE_CHECKING:
    import altair as alt

SIDE = 150
"""Of a panel, in points."""
COLUMNS = 4
"""Panels side by side."""
MOST_CELLS = 56
"""Cells along a side of a panel; a larger picture is drawn coarser."""


def rollout(weights: Tensor) -> Tensor:
    """Weights `(layers, heads, 1 + patches, 1 + patches)` -> `(patches,)`, which sum to at most 1: the rest
    is the weight of [CLS] itself."""
    product = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    for layer in weights.mean(dim=1):
        product = (
            (layer + torch.eye(len(layer), dtype=layer.dtype, device=layer.device)) / 2 @ product
        )
    return product[0, 1:]


def occluded(inputs: Tensor, size: int, score: Callable[[Tensor], Tensor]) -> Tensor:
    """inputs `(1, channels, height, width)`, score `(rows, ...) -> (rows,)` -> how much the score falls where
    a patch is 0, the mean of the colours: `(down, across)`."""
    down, across = inputs.shape[2] // size, inputs.shape[3] // size
    falls = torch.zeros(down, across, dtype=torch.float64)
    whole = score(inputs)[0]
    for row in log_progress(range(down), "rows of patches covered", total=down):
        covered = inputs.repeat(across, 1, 1, 1)
        for column in range(across):
            covered[
                column,
                :,
                row * size : (row + 1) * size,
                column * size : (column + 1) * size,
            ] = 0
        falls[row] = whole - score(covered)
    return falls


def patch_panels(
    pixels: NDArray[np.uint8],
    looks: dict[str, NDArray[np.float64]],
    *,
    title: str = "",
    subtitle: str = "",
    signed: bool = False,
) -> alt.VConcatChart:
    """The picture `(height, width, 1 or 3)`, and beside it a panel for each name of `looks`: weights `(down,
    across)` of the patches, each panel from 0 to its largest; `signed`: from minus to plus the largest, 0 in
    white. Raises MissingExtraError without the extra `plot`."""
    require_extra()
    import altair as alt

    image = _colours(pixels)
    own = sorted(set(chain.from_iterable(image)))  # a scale of None cannot be beside others
    color = alt.Color("value:N", scale=alt.Scale(domain=own, range=own), legend=None)
    panels = [_panel(image, "image", color)]
    for name, grid in looks.items():
        largest = float(np.abs(grid).max()) or 1.0
        scale = signed_scale(largest) if signed else weight_scale(0.0, largest)
        color = alt.Color("value:Q", scale=scale, legend=None)
        panels.append(_panel(grid.round(6).tolist(), name, color))
    rows = []
    for first in range(0, len(panels), COLUMNS):
        row = alt.HConcatChart(hconcat=panels[first : first + COLUMNS], spacing=14)
        rows.append(row.resolve_scale(color="independent"))
    chart: alt.VConcatChart = alt.VConcatChart(vconcat=rows, spacing=14).resolve_scale(
        color="independent"
    )
    return styled(chart, title, subtitle, COLUMNS * SIDE, title or "Where [CLS] looks")


def _colours(pixels: NDArray[np.uint8]) -> list[list[str]]:
    """Each cell as `#rrggbb`."""
    coarse = pixels[:: -(-len(pixels) // MOST_CELLS), :: -(-pixels.shape[1] // MOST_CELLS)]
    colours = coarse.repeat(3, axis=2) if coarse.shape[2] == 1 else coarse
    return [[f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in row] for row in colours]


def _panel(grid: Sequence[Sequence[object]], name: str, color: alt.Color) -> alt.Chart:
    """A heat map whose values have these colours."""
    import altair as alt

    values = [
        {"down": down, "across": list(range(len(row))), "value": row}
        for down, row in enumerate(grid)
    ]
    cells = alt.Chart(alt.InlineData(values=values)).transform_flatten(["across", "value"])
    height, width = len(grid), len(grid[0])
    size = SIDE / max(height, width)
    heading = alt.TitleParams(text=printable(name), fontSize=13, fontWeight="normal", offset=6)
    chart: alt.Chart = (
        cells.mark_rect(aria=False)
        .encode(
            x=alt.X("across:O", scale=cell_scale(width), axis=None),
            y=alt.Y("down:O", scale=cell_scale(height), axis=None),
            color=color,
        )
        .properties(width=size * width, height=size * height, title=heading)
    )
    return chart
