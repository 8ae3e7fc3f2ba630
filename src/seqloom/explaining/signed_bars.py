"""A bar for each word: what it adds to an answer, to the right where it speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.explaining.charts import NUMBER, ORANGE_TO_BLUE, require_extra, styled
from seqloom.explaining.heat_maps import word_axis, word_labels

if TYPE_CHECKING:
    import altair as alt

MOST_BARS = 40
_WIDTH, _BAR = 420, 20


def signed_bars(
    words: Sequence[str],
    values: Sequence[float],
    *,
    name: str,
    title: str = "",
    subtitle: str = "",
) -> alt.LayerChart:
    """In reading order, from the top down; `name` is what the values are."""
    require_extra()
    import altair as alt

    labels = word_labels(words, pieces=False)
    records = [
        {"target": index, "word": label, "value": float(value), "for": bool(value >= 0)}
        for index, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    below, _, above = ORANGE_TO_BLUE
    chart = alt.Chart(alt.InlineData(values=records)).encode(
        y=alt.Y(
            "target:O",
            scale=alt.Scale(domain=list(range(len(labels))), paddingInner=0.2, paddingOuter=0.1),
            axis=word_axis(labels, "", 12, orient="left"),
        ),
        x=alt.X("value:Q", title=name, axis=alt.Axis(labelExpr=NUMBER, tickCount=6)),
        tooltip=[alt.Tooltip("word:N"), alt.Tooltip("value:Q", title=name, format=".4f")],
    )
    bars = chart.mark_bar(aria=False).encode(
        color=alt.condition("datum.for", alt.value(above), alt.value(below))
    )
    zero = (
        alt.Chart(alt.InlineData(values=[{"value": 0}]))
        .mark_rule(color="#5b6875", aria=False)
        .encode(x="value:Q")
    )
    layers = alt.LayerChart(layer=[bars, zero]).properties(width=_WIDTH, height=_BAR * len(labels))
    return styled(layers, title, subtitle, _WIDTH + 100, title or name)
