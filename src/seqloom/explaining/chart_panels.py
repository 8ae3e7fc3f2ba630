"""Several line charts as one picture: the same series, in the same colours, in every panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import MOST_SERIES, line_layers, styled

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 330, 210
"""Of a panel, in pixels."""

_AXIS = {
    "minExtent": 44,  # one width of labels, so that panels stand in columns
    "maxExtent": 44,
    "tickCount": 6,
    "labelExpr": (
        "format(datum.value, datum.value == 0 || (abs(datum.value) >= 0.001 && abs(datum.value) < 10000) ?"
        " '~g' : '~e')"
    ),
}


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """One line chart among others."""

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str


def line_panels(
    rows: Sequence[Sequence[Panel]], *, title: str = "", subtitle: str = "", log_y: bool = False
) -> alt.VConcatChart:
    """Panels in reading order, under one heading and with one legend.

    Raises as `line_chart` does; the number of series is that of the whole picture.
    """
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.series))
    if not 1 <= len(names) <= MOST_SERIES:
        raise UsageError(
            f"a line chart must have 1 to {MOST_SERIES} series, but has {len(names)}; draw several charts"
        )
    drawn = [[_drawn(panel, names, log_y) for panel in row] for row in rows]
    import altair as alt

    chart = alt.VConcatChart(
        vconcat=[alt.HConcatChart(hconcat=row, spacing=30) for row in drawn], spacing=26
    )
    columns = max(len(row) for row in rows)
    return styled(
        chart, title, subtitle, columns * (WIDTH + 70), title or printable(rows[0][0].title)
    )


def _drawn(panel: Panel, names: list[str], log_y: bool) -> alt.LayerChart:
    import altair as alt

    heading = alt.TitleParams(
        text=printable(panel.title), fontSize=13, fontWeight="normal", offset=8
    )
    layers = line_layers(
        panel.series, x=panel.x, y=panel.y, log_y=log_y, bands={}, colours=names, y_axis=_AXIS
    )
    return layers.properties(width=WIDTH, height=HEIGHT, title=heading)
