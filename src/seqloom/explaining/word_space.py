"""A space of words or texts as a picture: its two directions of largest variance.

    X = U S Vᵀ of the centred vectors;  a point is (U S)_1, (U S)_2;  share of variance of axis k: s_k² / Σ s²

Principal components (Pearson 1901). Distances in the picture are at most those in the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import (
    LINES,
    NUMBER,
    SHAPES,
    Fields,
    columns_of,
    require_extra,
    styled,
)

if TYPE_CHECKING:
    import altair as alt

MOST_POINTS = 5000
MOST_LABELS = 400
SIDE = 640
"""Of the picture, in points."""
_LONGEST = 28  # characters of a label
_FONT = 11


class Projection(NamedTuple):
    """Points in two dimensions."""

    points: NDArray[np.float64]
    """`(items, 2)`"""
    shares: tuple[float, float]
    """Of the variance, on each axis."""


def principal_axes(vectors: NDArray[np.floating]) -> Projection:
    """Of vectors `(items, width)`. Raises UsageError for fewer than two different ones."""
    centred = np.asarray(vectors, np.float64)
    if len(centred) < 2:
        raise UsageError(
            f"a picture of a space needs at least two points, but there is {len(centred)}"
        )
    centred = centred - centred.mean(axis=0)
    left, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    total = float((sizes**2).sum())
    if not total > 0:
        raise UsageError(
            "a picture of a space needs points that differ, but these are all the same"
        )
    count = min(2, len(sizes))
    points = np.zeros((len(centred), 2))
    points[:, :count] = left[:, :count] * sizes[:count]
    # the sign of an axis is arbitrary: its largest entry is made positive, on every machine alike
    for axis in range(count):
        if axes[axis, np.abs(axes[axis]).argmax()] < 0:
            points[:, axis] *= -1
    shares = [float(sizes[axis] ** 2) / total if axis < count else 0.0 for axis in range(2)]
    return Projection(points, (shares[0], shares[1]))


class Frame(NamedTuple):
    """The square of the space that is drawn."""

    low: NDArray[np.float64]
    """Its corner `(2,)`."""
    side: float

    @classmethod
    def around(cls, points: NDArray[np.float64]) -> Frame:
        low, high = points.min(axis=0), points.max(axis=0)
        side = max(1.12 * float((high - low).max()), 1e-9)
        return cls((low + high - side) / 2, side)


def placed_labels(points: NDArray[np.float64], labels: Sequence[str]) -> list[str]:
    """Where each label is written: right or left of its point, towards the middle; or nowhere (empty), where
    it would overlap another or a point. Earlier ones come first."""
    frame = Frame.around(points)
    places = (points - frame.low) * SIDE / frame.side
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.tolist()]
    found, written = [], 0
    for (x, y), label in zip(places.tolist(), labels, strict=True):
        width = 0.6 * _FONT * columns_of(label)
        side = "right" if x + width + 10 < SIDE else "left"
        begin = x + 5 if side == "right" else x - 5 - width
        box = (begin, y - 0.6 * _FONT, begin + width, y + 0.6 * _FONT)
        free = written < MOST_LABELS and not any(_overlap(box, other) for other in taken)
        if free:
            taken.append(box)
            written += 1
        found.append(side if free else "")
    return found


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def space_chart(
    projection: Projection,
    labels: Sequence[str],
    *,
    title: str,
    groups: Sequence[str] | None = None,
    group_name: str = "group",
) -> alt.LayerChart:
    """A point for each label, in the colour and shape of its group. A page can be searched (the names that
    hold the words stay dark), moved and zoomed; a finger on a point shows its whole name. Raises UsageError
    for more than MOST_POINTS."""
    if len(labels) > MOST_POINTS:
        raise UsageError(
            f"a picture has {MOST_POINTS:,} points at most, but here are {len(labels):,}; give fewer"
        )
    require_extra()
    values = _records(projection.points, labels, groups)
    known = list(dict.fromkeys(value["group"] for value in values))
    if len(known) > len(LINES):
        raise UsageError(
            f"{len(LINES)} colours can be told apart, but the column has {len(known)} different values"
        )
    hidden = sum(not value["side"] for value in values)
    subtitle = "The two directions in which the vectors differ most (principal components)."
    if hidden:
        subtitle += f" {hidden:,} of {len(values):,} names are left out where they would overlap."
    name = "" if groups is None else group_name
    chart = _layers(values, projection, known, name).properties(width=SIDE, height=SIDE)
    return styled(chart, title, subtitle, SIDE, title)


def _records(
    points: NDArray[np.float64], labels: Sequence[str], groups: Sequence[str] | None
) -> list[Fields]:
    written = [printable(" ".join(label.split())) for label in labels]
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in written]
    values: list[Fields] = []
    for index, side in enumerate(placed_labels(points, short)):
        x, y = points[index].tolist()
        record: Fields = {
            "x": x,
            "y": y,
            "name": written[index],
            "short": short[index],
            "side": side,
        }
        values.append(record | {"group": "" if groups is None else printable(groups[index])})
    return values


def _layers(
    values: list[Fields], projection: Projection, known: list[str], group_name: str
) -> alt.LayerChart:
    """Points, and names on both sides of them; `group_name` is empty if there are no groups."""
    import altair as alt

    frame = Frame.around(projection.points)

    def axis(name: str, number: int) -> Fields:
        begin = float(frame.low[number])
        scale = alt.Scale(domain=[begin, begin + frame.side], nice=False)
        title = f"axis {number + 1} ({projection.shares[number]:.0%} of the variance)"
        ticks = alt.Axis(tickCount=6, labelExpr=NUMBER)
        return {"shorthand": f"{name}:Q", "title": title, "scale": scale, "axis": ticks}

    binding = alt.binding(input="search", placeholder="a name", name="find ")
    search = alt.param(name="search", value="", bind=binding)
    has_words = "indexof(lower(datum.name), lower(search)) >= 0"
    opacity = alt.condition(f"search == '' || {has_words}", alt.value(0.95), alt.value(0.08))
    zoom = alt.selection_interval(bind="scales", name="zoom")
    legend = alt.Legend(title=group_name) if group_name else None
    colours = alt.Scale(domain=known, range=LINES[: len(known)])
    shapes = alt.Scale(
        domain=known, range=[SHAPES[index % len(SHAPES)] for index in range(len(known))]
    )
    tooltip = [alt.Tooltip("name:N")]
    if group_name:
        tooltip.append(alt.Tooltip("group:N", title=group_name))
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X(**axis("x", 0)), y=alt.Y(**axis("y", 1))
    )
    points = base.mark_point(filled=True, size=46, aria=False).encode(
        color=alt.Color("group:N", scale=colours, legend=legend),
        shape=alt.Shape("group:N", scale=shapes, legend=legend),
        opacity=opacity,
        tooltip=tooltip,
    )

    def names(side: str, align: Literal["left", "right"], dx: int, also: str) -> alt.Chart:
        chart: alt.Chart = (
            base.transform_filter(f"datum.side == '{side}'{also}")
            .mark_text(align=align, dx=dx, fontSize=_FONT, aria=False)
            .encode(text="short:N", opacity=opacity, tooltip=tooltip)
        )
        return chart

    # what is searched for is named wherever it is
    sought = f" || (datum.side == '' && search != '' && {has_words})"
    on_both_sides = [names("right", "left", 7, sought), names("left", "right", -7, "")]
    return alt.LayerChart(layer=[points.add_params(zoom, search), *on_both_sides])
