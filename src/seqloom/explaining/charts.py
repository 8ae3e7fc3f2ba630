"""Line charts, the style of all charts, and their files: PNG, SVG, HTML and JSON from one description,
offline.

Needs the extra `plot` (Vega-Altair and vl-convert, which draw without a network or a browser). In all words
that come from data, control and bidirectional characters are escaped, and no word can end an SVG text or a
script. Latin, Greek and Cyrillic are in the font that vl-convert has; for others (such as Chinese) a PNG
shows boxes unless the machine has a font, while SVG and HTML use the reader's fonts.
"""

from __future__ import annotations

import importlib
import io
import json
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from seqloom.errors import MissingExtraError, UsageError, printable
from seqloom.files import write_atomic

if TYPE_CHECKING:
    import altair as alt

Fields = dict[str, Any]
"""Of a record that is drawn, or options of a part of a chart."""
_Chart = TypeVar("_Chart", "alt.Chart", "alt.LayerChart", "alt.VConcatChart")

MOST_SERIES = 10
"""The most series in one line chart, which is the number of colours that the eye tells apart."""

_SUFFIXES = (".png", ".svg", ".html", ".json")
_FEW_POINTS = 30  # up to here each point of a line has a dot
_FEW_NUMBERS = 12  # up to here each whole number has its place named on the axis

NUMBER = "format(datum.value, '~g')"
"""How ticks are written. A format of the axis itself would round them to the digits of a step: 0.795 to 1."""
EMPTY = "(empty)"  # the label of an empty name
_FONT = "Liberation Sans, Arial, DejaVu Sans, sans-serif"  # vl-convert brings the first
_INK, _FAINT_INK = "#1c2733", "#5b6875"
# evenly spaced in CIELAB lightness (95, 58, 21): equal steps look equal
BLUES = ["#edf2f8", "#5b90c4", "#08306b"]
ORANGE_TO_BLUE = ["#c1560f", "#ffffff", "#0b5fa5"]
"""Below 0, 0, above 0; darker is farther from 0, for those who print without colour."""
LINES = [
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#332288",
    "#882255",
    "#7a7a2c",
    "#3d3d3d",
]
"""Colours that those who see red and green alike tell apart (Okabe and Ito 2008, and darker ones after)."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
"""Of points, for those who print without colour."""
REFERENCE = "#8a949e"
"""The colour of what is no model, such as chance, and of models beyond those that the eye tells apart."""


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


# The page may load nothing from outside; Vega compiles its expressions, hence unsafe-eval.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src
 data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 24px; background: white; }}</style>
</head>
<body>
<div id="chart"></div>
<script>{library}</script>
<script>vegaEmbed("#chart", {spec}, {{renderer: "svg", actions: {{export: true, source: false, compiled:
false, editor: false}}}});</script> </body>
</html>
"""


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    title: str = "",
    subtitle: str = "",
    log_y: bool = False,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    references: Collection[str] = (),
) -> alt.LayerChart:
    """A line for each name in `series`, through its points (x, y); `x` and `y` name the axes.

    `bands` adds a shaded interval (x, low, high) around the line of the same name: BLEU by source length,
    say, for two models with their bootstrap intervals. Lines of up to 30 points have a dot at each.
    `references` are the series that are no model, such as chance: dashed and grey.

    Raises UsageError if there is nothing to draw, a number is not finite (or, with `log_y`, not above 0),
    a band belongs to no line or has low > high, or there are more than MOST_SERIES lines; MissingExtraError
    without the extra `plot`.
    """
    layers = line_layers(series, x=x, y=y, log_y=log_y, bands=bands or {}, references=references)
    chart = layers.properties(width=560, height=320)
    return styled(chart, title, subtitle, 560, title or f"{printable(y)} by {printable(x)}")


def line_layers(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log_y: bool,
    bands: Mapping[str, Sequence[tuple[float, float, float]]],
    colours: Sequence[str] = (),
    y_axis: Fields | None = None,
    references: Collection[str] = (),
) -> alt.LayerChart:
    """A line chart without size and style; `colours` names the series of the picture of which it is a part,
    `y_axis` are arguments of alt.Axis."""
    _check_lines(series, bands, log_y)
    require_extra()
    import altair as alt

    shown = {name: printable(name) or EMPTY for name in series}
    points, dotted, ranges = list[Fields](), list[Fields](), list[Fields]()
    for name, line in series.items():
        records = [{"series": shown[name], "x": float(a), "y": float(b)} for a, b in line]
        points += records
        if len(records) <= _FEW_POINTS:
            dotted += records
    for name, band in bands.items():
        for a, low, high in band:
            limits = {"low": float(low), "high": float(high)}
            ranges.append({"series": shown[name], "x": float(a), **limits})

    x, y = printable(x), printable(y)
    domain = [printable(name) or EMPTY for name in colours or series]
    shown_references = {printable(name) or EMPTY for name in references}
    colours_left, shapes_left = iter(LINES), cycle(SHAPES)
    ink = [REFERENCE if name in shown_references else next(colours_left) for name in domain]
    palette = alt.Scale(domain=domain, range=ink)
    shapes = alt.Scale(domain=domain, range=[next(shapes_left) for _ in domain])
    patterns = [[5, 4] if name in shown_references else [1, 0] for name in domain]
    dashes = alt.Scale(domain=domain, range=patterns)
    legend = alt.Legend(title=None, labelLimit=260, symbolOpacity=1, rowPadding=5)
    x_axis = alt.Axis(grid=False, **_whole_numbers({point["x"] for point in points}))
    x_channel = alt.X(
        "x:Q", title=x, scale=alt.Scale(zero=False, nice=False, padding=14), axis=x_axis
    )
    color = alt.Color("series:N", scale=palette, legend=legend)
    scale = (
        alt.Scale(type="log", nice=False, padding=10) if log_y else alt.Scale(zero=False, nice=True)
    )

    def y_channel(field: str) -> alt.Y:
        axis = alt.Axis(**y_axis) if y_axis else alt.Axis(labelExpr=NUMBER)
        return alt.Y(f"{field}:Q", title=y, scale=scale, axis=axis)

    def layer(values: list[Fields]) -> alt.Chart:
        return alt.Chart(alt.InlineData(values=values)).encode(x=x_channel, color=color)

    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y)]
    lines = layer(points).mark_line(strokeWidth=2.2, strokeJoin="round", aria=False)
    dots = layer(dotted).mark_point(filled=True, size=52, opacity=1, aria=False)
    dash = alt.StrokeDash("series:N", scale=dashes, legend=None)
    shape = alt.Shape("series:N", scale=shapes, legend=legend)
    layers = [
        lines.encode(y=y_channel("y"), strokeDash=dash),
        dots.encode(y=y_channel("y"), shape=shape, tooltip=tooltip),
    ]
    if ranges:
        # the outline also shows the interval of a single point, where an area has no width
        area = layer(ranges).mark_area(
            fillOpacity=0.16, strokeOpacity=0.35, strokeWidth=1, aria=False
        )
        stroke = alt.Stroke("series:N", scale=palette, legend=None)
        layers.insert(0, area.encode(y=y_channel("low"), y2="high:Q", stroke=stroke))
    return alt.LayerChart(layer=layers)


def _whole_numbers(places: set[float]) -> dict[str, Any]:
    """Options of an axis of points at these places: no fractions where all are whole numbers."""
    if not all(place.is_integer() for place in places):
        return {}
    if len(places) > _FEW_NUMBERS:
        return {"tickMinStep": 1}
    return {"values": sorted(places), "format": "d"}


def save_chart(chart: alt.Chart | alt.LayerChart | alt.VConcatChart, path: Path) -> None:
    """Writes a picture, by suffix: `.png` (two pixels a point), `.svg`, `.html` (one file, works offline),
    `.json` (Vega-Lite).

    The file is seen whole or not at all. Raises UsageError for another suffix, FolderError if it cannot be
    written, MissingExtraError without the extra `plot`.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        given = printable(path.suffix) or "no suffix"
        raise UsageError(
            f"{printable(str(path))}: a picture must end in {', '.join(_SUFFIXES)}, but this has {given};"
            " name one of these"
        )
    require_extra()
    if suffix == ".png":
        image = io.BytesIO()
        chart.save(image, format="png", ppi=144)  # twice the 72 that make a point one pixel
        write_atomic(path, image.getvalue())
    elif suffix == ".svg":
        write_atomic(path, svg_of(chart))
    elif suffix == ".html":
        write_atomic(path, html_of(chart))
    else:
        write_atomic(path, chart.to_json(indent=None) + "\n")


def svg_of(chart: alt.Chart | alt.LayerChart | alt.VConcatChart) -> str:
    """Raises MissingExtraError without the extra `plot`."""
    require_extra()
    text = io.StringIO()
    chart.save(text, format="svg")
    return text.getvalue()


def html_of(chart: alt.Chart | alt.LayerChart | alt.VConcatChart) -> str:
    """A page that needs nothing from elsewhere. Raises MissingExtraError without the extra `plot`."""
    require_extra()
    import altair as alt
    import vl_convert

    # vl-convert names versions as 6.4
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    content = chart.to_dict()
    # altair's own page writes the words as they are, so that `</script>` among them would end the script
    spec = json.dumps(content).replace("<", "\\u003c")
    return _PAGE.format(title=escape(content["description"]), library=library, spec=spec)


def require_extra() -> None:
    """Raises MissingExtraError without the extra `plot`."""
    try:
        importlib.import_module("altair")
        importlib.import_module("vl_convert")
    except ImportError:
        raise MissingExtraError("pictures", "plot") from None


def _check_lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    bands: Mapping[str, Sequence[tuple[float, float, float]]],
    log_y: bool,
) -> None:
    if not 1 <= len(series) <= MOST_SERIES:
        raise UsageError(
            f"a line chart must have 1 to {MOST_SERIES} series, but has {len(series)}; draw several charts"
        )
    for name, points in series.items():
        if len(points) == 0:
            raise UsageError(
                f"each series must have a point, but {printable(name)!r} has none; leave it out"
            )
    for name in bands:
        if name not in series:
            raise UsageError(
                f"a band must belong to a series, but there is none named {printable(name)!r}"
            )
    for name, rows in [*series.items(), *bands.items()]:
        for row in rows:
            numbers = [float(number) for number in row]
            heights = numbers[1:]
            given = f"{printable(name)!r} has {', '.join(f'{number:g}' for number in numbers)}"
            if not all(map(isfinite, numbers)):
                raise UsageError(f"points must be finite, but {given}; leave that point out")
            if log_y and min(heights) <= 0:
                raise UsageError(
                    f"a logarithmic axis needs values above 0, but {given}; use a linear axis"
                )
            if heights[0] > heights[-1]:
                raise UsageError(
                    f"a band must be (x, low, high) with low <= high, but {given}; exchange them"
                )


def styled(chart: _Chart, title: str, subtitle: str, width: int, description: str) -> _Chart:
    """The chart with its heading, margins, and the common fonts and colours, on white; without a title it is
    called by its description."""
    import altair as alt

    # wrapped, since Vega lets a long line run out of the picture
    title_lines = textwrap.wrap(printable(title or description), max(width, 240) // 8)
    subtitle_lines = textwrap.wrap(printable(subtitle), max(width, 240) // 6)
    heading = alt.TitleParams(text=title_lines or "", subtitle=subtitle_lines or "")
    chart = chart.properties(title=heading)
    axis = {
        "labelColor": _INK,
        "titleColor": _FAINT_INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
    }
    grid = {
        "gridColor": "#e6eaee",
        "domainColor": "#aab4be",
        "tickColor": "#aab4be",
        "titlePadding": 10,
    }
    titles = {
        "fontSize": 16,
        "color": _INK,
        "subtitleFontSize": 12,
        "subtitleColor": _FAINT_INK,
        "subtitlePadding": 5,
        "offset": 14,
    }
    config = {
        "font": _FONT,
        "view": {"stroke": None},
        "axis": axis | grid,
        "legend": axis | {"offset": 20},
        "title": titles | {"anchor": "start", "frame": "bounds"},
    }
    return chart.properties(
        description=printable(description), background="white", padding=16, config=config
    )
