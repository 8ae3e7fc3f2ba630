"""Where each head of attention looked: a small heat map for each, layers down and heads across, in one
picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from seqloom.errors import UsageError
from seqloom.explaining.charts import (
    BLUES,
    check_words,
    require_extra,
    styled,
    weight_grid,
    word_axis,
    word_labels,
)

if TYPE_CHECKING:
    import altair as alt

MOST_CELLS = 100_000
"""In one picture; more would be one that no viewer opens."""


def head_heat_maps(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    pieces: bool = False,
) -> alt.Chart:
    """`weights` is `(layers, heads, target, source)` in 0..1; the rest is as for `charts.attention_heat_map`.

    Raises UsageError as that does, and where the heads are more than one picture can show.
    """
    check_words("source", source)
    check_words("target", target)
    grid = numpy.asarray(weights, dtype=numpy.float64)
    if grid.ndim != 4 or 0 in grid.shape[:2]:
        raise UsageError(f"weights of heads must be (layers, heads, target, source), but are {grid.shape}")
    if grid.size > MOST_CELLS:
        layers, heads = grid.shape[:2]
        raise UsageError(
            f"{layers} layers of {heads} heads with {len(target)} x {len(source)} weights each must be"
            f" {MOST_CELLS:,} weights at most, but are {grid.size:,}; show a shorter sentence"
        )
    panels = [[weight_grid(head, len(target), len(source)) for head in layer] for layer in grid]
    require_extra()
    import altair as alt

    columns, rows = word_labels(source, pieces), word_labels(target, pieces)
    cell = max(5, min(14, 260 // max(len(columns), len(rows))))  # pixels: 14 up to 18 words, 5 from 52 on
    font = max(7, cell - 3)
    below = word_axis(columns, "", font, orient="bottom", labelAngle=-90)
    beside = word_axis(rows, "", font, orient="left")
    layer, head = (
        alt.Header(labelExpr=f"'{name} ' + datum.value", labelFontSize=12) for name in ("layer", "head")
    )
    chart: alt.Chart = (
        _cells(panels)
        .mark_rect(stroke="white", strokeWidth=0.5, aria=False)
        .encode(
            x=alt.X("source:O", scale=alt.Scale(domain=list(range(len(columns))), padding=0), axis=below),
            y=alt.Y("target:O", scale=alt.Scale(domain=list(range(len(rows))), padding=0), axis=beside),
            color=alt.Color(
                "weight:Q",
                scale=alt.Scale(domain=[0, 1], range=BLUES, interpolate="lab"),
                legend=alt.Legend(title="weight"),
            ),
            row=alt.Row("layer:O", title=None, header=layer),
            column=alt.Column("head:O", title=None, header=head),
        )
        .properties(width=cell * len(columns), height=cell * len(rows))
    )
    return styled(
        chart, title, subtitle, cell * len(columns) * grid.shape[1], title or "Attention of each head"
    )


def _cells(panels: Sequence[Sequence[Any]]) -> alt.Chart:
    """The data: a row for each head and target word, which Vega makes into cells. Layers and heads are
    counted from 1."""
    import altair as alt

    values = [
        {
            "layer": layer,
            "head": head,
            "target": i,
            "source": list(range(len(row))),
            "weight": row.round(3).tolist(),
        }
        for layer, heads in enumerate(panels, start=1)
        for head, grid in enumerate(heads, start=1)
        for i, row in enumerate(grid)
    ]
    return alt.Chart(alt.InlineData(values=values)).transform_flatten(["source", "weight"])
