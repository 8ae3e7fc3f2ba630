"""Numbers over the words of a text as colours: several matrices, one above the other, with the same columns;
and bars below them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import UsageError
from seqloom.explaining.charts import NUMBER, require_extra, styled
from seqloom.explaining.heat_maps import (
    MOST_WORDS,
    cell_scale,
    signed_scale,
    weight_scale,
    word_axis,
    word_labels,
)

if TYPE_CHECKING:
    import altair as alt

MOST_LABELLED = 16
"""Rows whose names are written."""
_WIDEST, _NARROWEST = 76, 6


class Bars(NamedTuple):
    """A bar below each column; none where a value is None."""

    name: str
    values: Sequence[float | None]


@final
@dataclass(frozen=True, kw_only=True)
class ColourMatrix:
    """Numbers `(rows, columns)`."""

    title: str
    values: NDArray[np.float64]
    rows: Sequence[str]
    name: str = "value"
    """What the numbers are."""
    signed: bool = False
    """Whether 0 is white and colours go both ways, else they go from 0 to `highest`."""
    highest: float | None = None
    """By default the largest of all."""
    texts: Sequence[Sequence[str]] | None = None
    """What is written in the cells where there is room."""


def matrices_chart(
    matrices: Sequence[ColourMatrix],
    columns: Sequence[str],
    *,
    title: str,
    subtitle: str,
    bars: Bars | None = None,
    pieces: bool = False,
) -> alt.VConcatChart:
    """In reading order. Columns are named at the bottom, as in `attention_heat_map`."""
    if not 1 <= len(columns) <= MOST_WORDS:
        raise UsageError(
            f"one picture shows 1 to {MOST_WORDS} words, but there are {len(columns)}; give fewer"
        )
    require_extra()
    import altair as alt

    labels = word_labels(columns, pieces)
    room = _WIDEST if any(panel.texts for panel in matrices) else 26
    cell = max(_NARROWEST, min(room, 1200 // len(columns)))
    parts: list[alt.Chart | alt.LayerChart] = []
    for number, matrix in enumerate(matrices):
        last = bars is None and number == len(matrices) - 1
        parts.append(_drawn(matrix, labels, cell, named=last))
    if bars is not None:
        parts.append(_bars(bars, labels, cell))
    chart: alt.VConcatChart = alt.VConcatChart(vconcat=parts, spacing=8).resolve_scale(
        color="independent", x="independent"
    )
    return styled(chart, title, subtitle, max(420, cell * len(columns)), title)


def _columns_axis(labels: list[str], cell: int, named: bool) -> alt.Axis:
    import altair as alt

    if not named:
        return alt.Axis(labels=False, ticks=False, domain=False, title=None)
    font = max(6, min(12, cell - 1))
    angle = 0 if max(map(len, labels)) * 0.6 * font < cell - 4 else -90
    return word_axis(labels, "", font, orient="bottom", labelAngle=angle)


def _drawn(
    matrix: ColourMatrix, labels: list[str], cell: int, *, named: bool
) -> alt.Chart | alt.LayerChart:
    import altair as alt

    few = len(matrix.rows) <= MOST_LABELLED
    height = 22 if few else 5
    largest = float(np.abs(matrix.values).max()) if matrix.highest is None else matrix.highest
    scale = signed_scale(largest or 1.0) if matrix.signed else weight_scale(0, largest or 1.0)
    positions = list(range(len(labels)))
    values = []
    for row, numbers in enumerate(matrix.values.round(5).tolist()):
        texts = [""] * len(numbers) if matrix.texts is None else list(matrix.texts[row])
        values.append(
            {"row": row, "unit": matrix.rows[row], "at": positions, "value": numbers, "said": texts}
        )
    data = alt.Chart(alt.InlineData(values=values)).transform_flatten(["at", "value", "said"])
    data = data.transform_calculate("word", f"{json.dumps(labels)}[datum.at]")
    names = [matrix.rows[row] if few else "" for row in range(len(matrix.rows))]
    y_axis = (
        word_axis(names, "", 11, orient="left")
        if few
        else alt.Axis(labels=False, ticks=False, domain=False, title=f"{len(names)} units")
    )
    tooltip = [
        alt.Tooltip("word:N"),
        alt.Tooltip("unit:N"),
        alt.Tooltip("value:Q", title=matrix.name),
    ]
    if matrix.texts is not None:
        tooltip.append(alt.Tooltip("said:N"))
    length = max(44, min(120, height * len(names)))
    legend = alt.Legend(title=matrix.name, gradientLength=length, format=".2~g")
    base = data.encode(
        x=alt.X("at:O", scale=cell_scale(len(labels)), axis=_columns_axis(labels, cell, named)),
        y=alt.Y("row:O", scale=cell_scale(len(names)), axis=y_axis),
    )
    cells = base.mark_rect(
        stroke="white", strokeWidth=0.5 if cell > 10 else 0.2, aria=False
    ).encode(color=alt.Color("value:Q", scale=scale, legend=legend), tooltip=tooltip)
    layers: list[alt.Chart] = [cells]
    if matrix.texts is not None and cell >= 30:
        dark = alt.condition(
            f"abs(datum.value) > {0.55 * largest}", alt.value("white"), alt.value("#1c2733")
        )
        written = base.mark_text(fontSize=10, limit=cell - 4, aria=False)
        layers.append(written.encode(text="said:N", color=dark, tooltip=tooltip))
    heading = alt.TitleParams(
        text=matrix.title, fontSize=12, fontWeight="normal", anchor="start", offset=4
    )
    return alt.LayerChart(layer=layers).properties(
        width=cell * len(labels), height=height * len(names), title=heading
    )


def _bars(bars: Bars, labels: list[str], cell: int) -> alt.Chart:
    import altair as alt

    values = [
        {"at": index, "word": label, "value": value}
        for index, (label, value) in enumerate(zip(labels, bars.values, strict=True))
    ]
    x = alt.X("at:O", scale=cell_scale(len(labels)), axis=_columns_axis(labels, cell, named=True))
    heading = alt.TitleParams(
        text=bars.name, fontSize=12, fontWeight="normal", anchor="start", offset=4
    )
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(color="#5b6875", width=max(2, cell - 3), aria=False)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=3, labelExpr=NUMBER)),
            tooltip=[alt.Tooltip("word:N"), alt.Tooltip("value:Q", title=bars.name, format=".3f")],
        )
        .properties(width=cell * len(labels), height=70, title=heading)
    )
    return chart
