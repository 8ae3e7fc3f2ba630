"""Pictures: where attention looked, and how a number moves. One description gives PNG, SVG, HTML and JSON,
offline.

Needs the extra `plot` (Vega-Altair and vl-convert, which draw without a network or a browser). All words that
come from data are shown with control and bidirectional characters escaped, and can end neither an SVG text
nor a script. Latin, Greek and Cyrillic are in the font that vl-convert brings; for others (Chinese, say) a
PNG shows boxes unless the machine has a font, while SVG and HTML take the reader's fonts.
"""

from __future__ import annotations

import importlib
import io
import json
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from seqloom.errors import MissingExtraError, UsageError, printable
from seqloom.files import write_atomic

if TYPE_CHECKING:
    import altair as alt

_Chart = TypeVar("_Chart", "alt.Chart", "alt.LayerChart", "alt.VConcatChart")

_Grid = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]

MOST_WORDS = 200
"""The most words along one side of a heat map; more would be a picture that no viewer opens."""

MOST_SERIES = 10
"""The most series in one line chart, which is the number of colours that the eye tells apart."""

_SUFFIXES = (".png", ".svg", ".html", ".json")
_LONGEST_LABEL = 20  # characters
_FEW_POINTS = 30  # up to here each point of a line has a dot
_ROUNDING = 0.01  # how far from 0..1 a weight may be: bfloat16 has 8 bits

_BLANK, _EMPTY = "˽", "(empty)"  # the usual ␣ is not in the font below
_FONT = "Liberation Sans, Arial, DejaVu Sans, sans-serif"  # vl-convert brings the first
_INK, _FAINT_INK = "#1c2733", "#5b6875"
BLUES = [
    "#edf2f8",
    "#5b90c4",
    "#08306b",
]  # evenly spaced in CIELAB lightness (95, 58, 21): equal steps look equal
LINES = [
    "#0868ac",
    "#e6550d",
    "#1b9e77",
    "#b5179e",
    "#7a5195",
    "#8c6d31",
    "#e7298a",
    "#41ab9d",
    "#636363",
    "#a6761d",
]

# The page may load nothing at all; Vega compiles its expressions, hence unsafe-eval.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 24px; background: white; }}</style>
</head>
<body>
<div id="chart"></div>
<script>{library}</script>
<script>vegaEmbed("#chart", {spec}, {{renderer: "svg", actions: {{export: true, source: false, compiled: false, editor: false}}}});</script>
</body>
</html>
"""


def attention_heat_map(
    weights: Any,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    pieces: bool = False,
    stretch: bool = False,
    axes: tuple[str, str] = ("source", "target"),
) -> alt.Chart:
    """What each target word attended to: one cell for each pair of positions, in reading order (Bahdanau et
    al. 2015, figure 3).

    `weights` is `(target, source)` in 0..1, anything that numpy can read. `source` runs along the top and
    `target` down the side; a word that comes twice has two columns. Colours span 0..1, so that pictures can
    be compared; `stretch` spans 0 to the largest weight instead, for attention that is spread thin, and the
    legend says so. `axes` names the sides.

    With `pieces` the words are pieces of a tokenizer: the blank (or `▁`) that starts a word is dropped, and a
    piece that goes on inside a word is shown with a `·` before it. Without it words are shown as they are,
    and outer blanks as `˽`.

    Raises UsageError where the shapes disagree, a side is empty or longer than MOST_WORDS, or a weight is not
    in 0..1; MissingExtraError without the extra `plot`.
    """
    check_words("source", source)
    check_words("target", target)
    grid = weight_grid(weights, len(target), len(source))
    require_extra()
    import altair as alt

    axes = (printable(axes[0]), printable(axes[1]))
    columns, rows = word_labels(source, pieces), word_labels(target, pieces)
    cell = max(13, min(34, 780 // max(len(source), len(target))))  # pixels: 34 up to 22 words, 13 from 60 on
    font = max(10, min(13, cell // 2))
    turned = max(map(_width, columns)) * font > cell - 4
    top = 1.0 if not stretch else float(grid.max()) or 1.0
    x = alt.X(
        "source:O",
        scale=alt.Scale(domain=list(range(len(columns))), padding=0),
        axis=word_axis(
            columns, axes[0], font, orient="top", labelAngle=0 if not turned else -45 if cell > 20 else -90
        ),
    )
    y = alt.Y(
        "target:O",
        scale=alt.Scale(domain=list(range(len(rows))), padding=0),
        axis=word_axis(rows, axes[1], font, orient="left"),
    )
    legend = alt.Legend(
        title="weight" if not stretch else "weight (0 to max)",
        values=[top * step / 4 for step in range(5)],
        format=".2~g",
        gradientLength=max(110, min(200, cell * len(rows))),
    )
    colour = alt.Color(
        "weight:Q", scale=alt.Scale(domain=[0, top], range=BLUES, interpolate="lab"), legend=legend
    )
    tooltip = [
        alt.Tooltip("from:N", title=axes[0]),
        alt.Tooltip("to:N", title=axes[1]),
        alt.Tooltip("weight:Q", format=".3f"),
    ]
    special_ids = _cells(grid, columns, rows).mark_rect(
        stroke="white", strokeWidth=1 if cell > 20 else 0.5, aria=False
    )
    width = cell * len(columns)
    chart: alt.Chart = special_ids.encode(x=x, y=y, color=colour, tooltip=tooltip).properties(
        width=width, height=cell * len(rows)
    )
    return styled(chart, title, subtitle, width + 120, title or "Attention")


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    title: str = "",
    subtitle: str = "",
    log_y: bool = False,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> alt.LayerChart:
    """A line for each name in `series`, through its points (x, y); `x` and `y` name the axes.

    `bands` adds a shaded interval (x, low, high) around the line of the same name: BLEU by source length,
    say, for two models with their bootstrap intervals. Lines of up to 30 points have a dot at each.

    Raises UsageError where there is nothing to draw, a number is not finite (or, with `log_y`, not above 0),
    a band belongs to no line or has low > high, or there are more than MOST_SERIES lines; MissingExtraError
    without the extra `plot`.
    """
    chart = line_layers(series, x=x, y=y, log_y=log_y, bands=bands or {}).properties(width=560, height=320)
    return styled(chart, title, subtitle, 560, title or f"{printable(y)} by {printable(x)}")


def line_layers(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log_y: bool,
    bands: Mapping[str, Sequence[tuple[float, float, float]]],
    colours: Sequence[str] = (),
    y_axis: Mapping[str, Any] | None = None,
) -> alt.LayerChart:
    """What `line_chart` draws, without size and style; `colours` names the series of a picture of which this
    is a part, `y_axis` adds to alt.Axis."""
    _check_lines(series, bands, log_y)
    require_extra()
    import altair as alt

    x, y = printable(x), printable(y)
    shown = {name: printable(name) or _EMPTY for name in series}
    points = [
        {"series": shown[name], "x": float(a), "y": float(b)} for name in series for a, b in series[name]
    ]
    ranges = [
        {"series": shown[name], "x": float(a), "low": float(low), "high": float(high)}
        for name in bands
        for a, low, high in bands[name]
    ]
    few = {shown[name] for name in series if len(series[name]) <= _FEW_POINTS}
    dotted = [point for point in points if point["series"] in few]
    whole = all(float(a).is_integer() for name in series for a, _ in series[name])

    domain = [printable(name) or _EMPTY for name in colours or series]
    palette = alt.Scale(domain=domain, range=LINES[: len(domain)])
    colour = alt.Color(
        "series:N",
        scale=palette,
        legend=alt.Legend(title=None, labelLimit=260, symbolOpacity=1, rowPadding=5),
    )
    below = alt.Axis(grid=False, tickMinStep=1 if whole else alt.Undefined)
    across = alt.X("x:Q", title=x, scale=alt.Scale(zero=False, nice=False, padding=14), axis=below)
    scale = alt.Scale(type="log", nice=False, padding=10) if log_y else alt.Scale(zero=False, nice=True)
    beside = alt.Axis(**y_axis) if y_axis else alt.Undefined
    up = alt.Y("y:Q", title=y, scale=scale, axis=beside)
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y)]

    def layer(values: list[dict[str, Any]]) -> alt.Chart:
        return alt.Chart(alt.InlineData(values=values)).encode(x=across, color=colour)

    layers = [
        layer(points).mark_line(strokeWidth=2.2, strokeJoin="round", aria=False).encode(y=up),
        layer(dotted).mark_point(filled=True, size=52, opacity=1, aria=False).encode(y=up, tooltip=tooltip),
    ]
    if ranges:
        # the outline also shows the interval of a single point, where an area has no width
        area = layer(ranges).mark_area(fillOpacity=0.16, strokeOpacity=0.35, strokeWidth=1, aria=False)
        low = alt.Y("low:Q", title=y, scale=scale, axis=beside)
        layers.insert(
            0, area.encode(y=low, y2="high:Q", stroke=alt.Stroke("series:N", scale=palette, legend=None))
        )
    return alt.LayerChart(layer=layers)


def save_chart(chart: alt.Chart | alt.LayerChart | alt.VConcatChart, path: Path) -> None:
    """Writes a picture, by suffix: `.png` (two pixels a point), `.svg`, `.html` (one file, works offline),
    `.json` (Vega-Lite).

    The file is seen whole or not at all. Raises UsageError for another suffix, FolderError where it cannot be
    written, MissingExtraError without the extra `plot`.
    """
    kind = path.suffix.lower()
    if kind not in _SUFFIXES:
        given = printable(path.suffix) or "no suffix"
        raise UsageError(
            f"{printable(str(path))}: a picture must end in {', '.join(_SUFFIXES)}, but this has {given};"
            " name one of these"
        )
    require_extra()
    if kind == ".png":
        drawn = io.BytesIO()
        chart.save(drawn, format="png", ppi=144)  # twice the 72 that make a point one pixel
        write_atomic(path, drawn.getvalue())
    elif kind == ".svg":
        text = io.StringIO()
        chart.save(text, format="svg")
        write_atomic(path, text.getvalue())
    elif kind == ".html":
        write_atomic(path, _page(chart))
    else:
        write_atomic(path, chart.to_json(indent=None) + "\n")


def _page(chart: alt.Chart | alt.LayerChart | alt.VConcatChart) -> str:
    import altair as alt
    import vl_convert

    version = ".".join(
        alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2]
    )  # vl-convert knows versions as 6.4
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    content = chart.to_dict()
    # altair's own page writes the words as they are, so that `</script>` among them would end the script
    spec = json.dumps(content).replace("<", "\\u003c")
    return _PAGE.format(title=escape(content["description"]), library=library, spec=spec)


def require_extra() -> None:
    try:
        importlib.import_module("altair")
        importlib.import_module("vl_convert")
    except ImportError:
        raise MissingExtraError("pictures", "plot") from None


def check_words(side: str, words: Sequence[str]) -> None:
    """Raises UsageError where one side of a heat map cannot be drawn."""
    if isinstance(words, str) or not 1 <= len(words) <= MOST_WORDS:
        given = "one string" if isinstance(words, str) else f"{len(words)} words"
        raise UsageError(
            f"the {side} of a heat map must be a list of 1 to {MOST_WORDS} words, but is {given}; show a"
            " shorter sentence"
        )


def weight_grid(weights: Any, rows: int, columns: int) -> _Grid:
    """`(rows, columns)` in 0..1. Raises UsageError for another shape, or what is no weight."""
    shape = (
        f"weights must be ({rows}, {columns}): a row for each target word and a column for each source word"
    )
    try:
        grid = numpy.asarray(weights, dtype=numpy.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{shape}, but numpy cannot read them ({printable(str(error))}); give"
            " tensor.detach().float().cpu()"
        ) from None
    if grid.shape != (rows, columns):
        hint = "; transpose them" if grid.shape == (columns, rows) else ""
        raise UsageError(f"{shape}, but are {grid.shape}{hint}")
    wrong = ~((grid >= -_ROUNDING) & (grid <= 1 + _ROUNDING))  # true for NaN
    if wrong.any():
        i, j = numpy.argwhere(wrong)[0]
        what = f"the one at target {i}, source {j} is {grid[i, j]:g}"
        raise UsageError(
            f"weights must be in 0..1, but {what}; give what the softmax returns, not the scores before it"
        )
    return grid.clip(0, 1)


def _cells(grid: _Grid, columns: list[str], rows: list[str]) -> alt.Chart:
    """The data of a heat map: a row for each target word, which Vega makes into cells; altair is slow to
    check each cell."""
    import altair as alt

    positions = list(range(len(columns)))
    values = [
        {"target": i, "source": positions, "weight": row.round(4).tolist()} for i, row in enumerate(grid)
    ]
    cells = alt.Chart(alt.InlineData(values=values)).transform_flatten(["source", "weight"])
    cells = cells.transform_calculate("from", f"{json.dumps(columns)}[datum.source]")
    return cells.transform_calculate("to", f"{json.dumps(rows)}[datum.target]")


def word_labels(words: Sequence[str], pieces: bool) -> list[str]:
    """Words as they are shown: never empty, never with a character that disturbs, at most 20 characters."""
    shown = [_piece(words, i) if pieces else word for i, word in enumerate(words)]
    return [_cut(_visible(word)) for word in shown]


def _piece(words: Sequence[str], i: int) -> str:
    """A piece without the mark that starts a word, or with `·` where it goes on inside one."""
    word = words[i]
    if word[:1] in ("▁", " "):
        return word[1:] or " "
    before = words[i - 1] if i else ""  # a special token ends in no letter: </s>, [SEP]
    return f"·{word}" if _in_word(before[-1:]) and _in_word(word[:1]) else word


def _in_word(character: str) -> bool:
    return (
        character.isalnum()
        or (character != "" and unicodedata.combining(character) > 0)
        or character == "\ufffd"
    )


def _visible(word: str) -> str:
    inner = word.strip(" ")
    if not inner:
        return _BLANK * len(word) or _EMPTY
    start = word.index(inner)
    circle = "◌" if unicodedata.combining(inner[0]) else ""  # an accent needs something to stand on
    return _BLANK * start + circle + printable(inner) + _BLANK * (len(word) - start - len(inner))


def _cut(word: str) -> str:
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "…"


def _width(word: str) -> float:
    """About how wide a word is, in font sizes."""
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.58 for c in word)


def word_axis(labels: list[str], title: str, font: int, **where: Any) -> alt.Axis:
    """An axis over positions whose labels are words. The words are a JSON list, which no word can leave."""
    import altair as alt

    return alt.Axis(
        title=title or None,
        values=list(range(len(labels))),
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        labelFontSize=font,
        labelLimit=0,
        labelOverlap=False,
        labelPadding=5,
        ticks=False,
        domain=False,
        **where,
    )


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
            raise UsageError(f"each series must have a point, but {printable(name)!r} has none; leave it out")
    for name in bands:
        if name not in series:
            raise UsageError(f"a band must belong to a series, but there is none named {printable(name)!r}")
    for name, rows in [*series.items(), *bands.items()]:
        for row in rows:
            a, *heights = map(float, row)
            given = f"{printable(name)!r} has {', '.join(f'{number:g}' for number in (a, *heights))}"
            if not all(map(isfinite, (a, *heights))):
                raise UsageError(f"points must be finite, but {given}; leave that point out")
            if log_y and min(heights) <= 0:
                raise UsageError(f"a logarithmic axis needs values above 0, but {given}; use a linear axis")
            if heights[0] > heights[-1]:
                raise UsageError(
                    f"a band must be (x, low, high) with low <= high, but {given}; exchange them"
                )


def styled(chart: _Chart, title: str, subtitle: str, width: int, description: str) -> _Chart:
    """The chart with its heading, its margins and the house's type and colours, on white."""
    import altair as alt

    if title or subtitle:  # wrapped, since Vega lets a long line run out of the picture
        wide = max(width, 240)
        above = textwrap.wrap(printable(title), wide // 8)
        below = textwrap.wrap(printable(subtitle), wide // 6)
        chart = chart.properties(title=alt.TitleParams(text=above or "", subtitle=below or ""))
    axis = {
        "labelColor": _INK,
        "titleColor": _FAINT_INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
    }
    lines = {"gridColor": "#e6eaee", "domainColor": "#aab4be", "tickColor": "#aab4be", "titlePadding": 10}
    heading = {
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
        "axis": axis | lines,
        "legend": axis | {"offset": 20},
        "title": heading | {"anchor": "start", "frame": "bounds"},
    }
    return chart.properties(description=printable(description), background="white", padding=16, config=config)
