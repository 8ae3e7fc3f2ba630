"""Where a Vision Transformer looks: what [CLS] takes from each patch, through all layers, and in each head of
the last.

Attention rollout (Abnar and Zuidema 2020): A_l = (mean of the heads + I) / 2, since what a block reads is
also added to what comes out of it; [CLS] sees the patches by its row of A_L ... A_1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.errors import printable
from seqloom.explaining.charts import BLUES, require_extra, styled

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
    [CLS] keeps of itself."""
    seen = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    for layer in weights.mean(dim=1):
        seen = (layer + torch.eye(len(layer), dtype=layer.dtype, device=layer.device)) / 2 @ seen
    return seen[0, 1:]


def patch_panels(
    pixels: NDArray[np.uint8], looks: dict[str, NDArray[np.float64]], *, title: str = "", subtitle: str = ""
) -> alt.VConcatChart:
    """The picture `(height, width, 1 or 3)`, and beside it a panel for each name of `looks`: weights `(down,
    across)` of the patches, each panel from 0 to its largest. Raises MissingExtraError without the extra
    `plot`."""
    require_extra()
    import altair as alt

    panels = [_cells(_colours(pixels), "image", None)]
    panels += [
        _cells(grid.round(6).tolist(), name, [0.0, float(grid.max()) or 1.0]) for name, grid in looks.items()
    ]
    rows = [
        alt.HConcatChart(hconcat=panels[at : at + COLUMNS], spacing=14)
        for at in range(0, len(panels), COLUMNS)
    ]
    together = alt.VConcatChart(vconcat=[row.resolve_scale(color="independent") for row in rows], spacing=14)
    independent: alt.VConcatChart = together.resolve_scale(color="independent")
    return styled(independent, title, subtitle, COLUMNS * SIDE, title or "Where [CLS] looks")


def _colours(pixels: NDArray[np.uint8]) -> list[list[str]]:
    """Each cell as `#rrggbb`."""
    coarse = pixels[:: -(-len(pixels) // MOST_CELLS), :: -(-pixels.shape[1] // MOST_CELLS)]
    colours = coarse.repeat(3, axis=2) if coarse.shape[2] == 1 else coarse
    return [[f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in row] for row in colours]


def _cells(grid: list[list[Any]], name: str, domain: list[float] | None) -> alt.Chart:
    import altair as alt

    values = [{"down": down, "across": list(range(len(row))), "value": row} for down, row in enumerate(grid)]
    cells = (
        alt.Chart(alt.InlineData(values=values)).transform_flatten(["across", "value"]).mark_rect(aria=False)
    )
    if domain is None:
        own = sorted({value for row in grid for value in row})  # a scale of None cannot stand beside others
        colour = alt.Color("value:N", scale=alt.Scale(domain=own, range=own), legend=None)
    else:
        colour = alt.Color(
            "value:Q", scale=alt.Scale(domain=domain, range=BLUES, interpolate="lab"), legend=None
        )
    high, wide = len(grid), len(grid[0])
    x = alt.X("across:O", scale=alt.Scale(domain=list(range(wide)), padding=0), axis=None)
    y = alt.Y("down:O", scale=alt.Scale(domain=list(range(high)), padding=0), axis=None)
    heading = alt.TitleParams(text=printable(name), fontSize=13, fontWeight="normal", offset=6)
    size = SIDE / max(high, wide)
    chart: alt.Chart = cells.encode(x=x, y=y, color=colour).properties(
        width=size * wide, height=size * high, title=heading
    )
    return chart
