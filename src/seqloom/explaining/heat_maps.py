"""Heat maps of attention: of one layer, or a small one for each head, layers down and heads across."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import ArrayLike

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import (
    BLUES,
    EMPTY,
    ORANGE_TO_BLUE,
    Fields,
    columns_of,
    require_extra,
    styled,
)
from seqloom.json_values import as_text

if TYPE_CHECKING:
    import altair as alt

Grid = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]

MOST_WORDS = 256
"""The most words along one side of a heat map; no viewer opens a larger picture."""
MOST_CELLS = 60_000
"""In one picture of all heads, likewise."""
MOST_HEADS = 1024

_LONGEST_LABEL = 20  # characters
_ROUNDING = 0.01  # how far from 0..1 a weight may be: bfloat16 has 8 bits
_SPACE = "˽"  # the usual ␣ is not in the font


def attention_heat_map(
    weights: ArrayLike,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    pieces: bool = False,
    highest: float = 1.0,
    axes: tuple[str, str] = ("source", "target"),
) -> alt.Chart:
    """What each target word attended to: one cell for each pair of positions, in reading order (Bahdanau et
    al. 2015, figure 3).

    `weights` is `(target, source)` in 0..1, anything that numpy can read. `source` runs along the top and
    `target` down the side; a word that comes twice has two columns. Colours span 0..1, so that pictures can
    be compared; with a lower `highest`, for attention that is spread thin, larger weights are as dark as it.
    `axes` names the sides.

    With `pieces` the words are pieces of a tokenizer: the space (or `▁`) that starts a word is dropped, and a
    piece that continues a word is shown with a `·` before it. Otherwise words are shown as they are, and
    outer spaces as `˽`.

    Raises UsageError if the shapes disagree, a side is empty or longer than MOST_WORDS, or a weight is not
    in 0..1; MissingExtraError without the extra `plot`.
    """
    check_words("source", source)
    check_words("target", target)
    grid = weight_grid(weights, len(target), len(source))
    require_extra()
    import altair as alt

    source_title, target_title = printable(axes[0]), printable(axes[1])
    columns, rows = word_labels(source, pieces), word_labels(target, pieces)
    # pixels: 34 up to 22 words, 13 from 60 on
    cell = max(13, min(34, 780 // max(len(source), len(target))))
    font = max(10, min(13, cell // 2))
    angle = 0
    # a column is about as wide as 0.58 of the size of a font
    if 0.58 * max(map(columns_of, columns)) * font > cell - 4:
        angle = -45 if cell > 20 else -90
    legend = alt.Legend(
        title="weight",
        values=[highest * step / 4 for step in range(5)],
        format=".2~g",
        gradientLength=max(110, min(200, cell * len(rows))),
    )
    tooltip = [
        alt.Tooltip("from:N", title=source_title),
        alt.Tooltip("to:N", title=target_title),
        alt.Tooltip("weight:Q", format=".3f"),
    ]
    records = [{"target": i, "weight": row.round(4).tolist()} for i, row in enumerate(grid)]
    cells = (
        _cells(records)
        .transform_calculate("from", f"{json.dumps(columns)}[datum.source]")
        .transform_calculate("to", f"{json.dumps(rows)}[datum.target]")
        .mark_rect(stroke="white", strokeWidth=1 if cell > 20 else 0.5, aria=False)
    )
    x_axis = word_axis(columns, source_title, font, orient="top", labelAngle=angle)
    y_axis = word_axis(rows, target_title, font, orient="left")
    color = alt.Color("weight:Q", scale=weight_scale(0, highest), legend=legend)
    shape = len(rows), len(columns)
    chart = _heat_map(cells, cell, shape, (x_axis, y_axis), color=color, tooltip=tooltip)
    return styled(chart, title, subtitle, cell * len(columns) + 120, title or "Attention")


def head_heat_maps(
    weights: ArrayLike,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str = "",
    subtitle: str = "",
    pieces: bool = False,
    highest: float = 1.0,
) -> alt.Chart:
    """`weights` is `(layers, heads, target, source)` in 0..1; the rest is as for `attention_heat_map`. Layers
    and heads are counted from 1. Where all weights would be too many for a picture, a cell is the largest
    weight of several words, and the subtitle says so.

    Raises UsageError as that does, and where the heads are more than one picture can show.
    """
    check_words("source", source)
    check_words("target", target)
    grid = numpy.asarray(weights, dtype=numpy.float64)
    if grid.ndim != 4 or 0 in grid.shape[:2]:
        raise UsageError(
            f"weights of heads must be (layers, heads, target, source), but are {grid.shape}"
        )
    layers, heads = grid.shape[:2]
    if layers * heads > MOST_HEADS:
        raise UsageError(
            f"one picture can show {MOST_HEADS:,} heads, but there are {layers} layers of {heads}; show one"
        )
    checked = numpy.empty_like(grid)
    for layer, head in numpy.ndindex(layers, heads):
        checked[layer, head] = weight_grid(grid[layer, head], len(target), len(source))
    words = words_of_a_cell(checked.shape)
    if words > 1:
        checked = pooled(checked, words)
        subtitle = f"{subtitle} A cell is the largest weight of {words} x {words} tokens.".strip()
        source, target = source[::words], target[::words]
    records = []
    for layer, head in numpy.ndindex(layers, heads):
        for i, row in enumerate(checked[layer, head]):
            place = {"layer": layer + 1, "head": head + 1, "target": i}
            records.append({**place, "weight": row.round(3).tolist()})
    require_extra()
    import altair as alt

    def header(name: str) -> alt.Header:
        return alt.Header(labelExpr=f"'{name} ' + datum.value", labelFontSize=12)

    columns, rows = word_labels(source, pieces), word_labels(target, pieces)
    # pixels: 14 up to 18 words, 5 from 52 on
    cell = max(5, min(14, 260 // max(len(columns), len(rows))))
    font = max(7, cell - 3)
    every = -(-(font + 1) // cell)
    legend = alt.Legend(title="weight", format=".2~g")
    chart = _heat_map(
        _cells(records).mark_rect(stroke="white", strokeWidth=min(0.5, cell / 20), aria=False),
        cell,
        (len(rows), len(columns)),
        (
            word_axis(columns, "", font, every, orient="bottom", labelAngle=-90),
            word_axis(rows, "", font, every, orient="left"),
        ),
        color=alt.Color("weight:Q", scale=weight_scale(0, highest), legend=legend),
        row=alt.Row("layer:O", title=None, header=header("layer")),
        column=alt.Column("head:O", title=None, header=header("head")),
    )
    return styled(
        chart, title, subtitle, cell * len(columns) * heads, title or "Attention of each head"
    )


def words_of_a_cell(shape: tuple[int, ...]) -> int:
    """How many words along each side share a cell, so that weights `(layers, heads, target, source)` are
    MOST_CELLS at most."""
    layers, heads, rows, columns = shape
    words = 1
    while layers * heads * -(-rows // words) * -(-columns // words) > MOST_CELLS:
        words += 1
    return words


def pooled(grid: Grid, words: int) -> Grid:
    """The largest weight of each block of `words` x `words`, in `(layers, heads, target, source)`."""
    layers, heads, rows, columns = grid.shape
    down, across = -(-rows // words), -(-columns // words)
    padded = numpy.zeros((layers, heads, down * words, across * words))
    padded[..., :rows, :columns] = grid
    largest: Grid = padded.reshape(layers, heads, down, words, across, words).max(axis=(3, 5))
    return largest


def _cells(records: list[Fields]) -> alt.Chart:
    """The data of a heat map: a record for each row of weights, which Vega makes into cells; altair is slow
    to check each cell."""
    import altair as alt

    positions = list(range(len(records[0]["weight"])))
    values = [{**record, "source": positions} for record in records]
    return alt.Chart(alt.InlineData(values=values)).transform_flatten(["source", "weight"])


def _heat_map(
    cells: alt.Chart, cell: int, shape: tuple[int, int], axes: Sequence[alt.Axis], **channels: Any
) -> alt.Chart:
    """The cells `(rows, columns)`, each a square of `cell` pixels, between the axes of columns and of
    rows."""
    import altair as alt

    (rows, columns), (x_axis, y_axis) = shape, axes
    chart: alt.Chart = cells.encode(
        x=alt.X("source:O", scale=cell_scale(columns), axis=x_axis),
        y=alt.Y("target:O", scale=cell_scale(rows), axis=y_axis),
        **channels,
    ).properties(width=cell * columns, height=cell * rows)
    return chart


def cell_scale(count: int) -> alt.Scale:
    """Positions without gaps between them."""
    import altair as alt

    return alt.Scale(domain=list(range(count)), padding=0)


def weight_scale(lowest: float, highest: float) -> alt.Scale:
    """Colours of weights."""
    import altair as alt

    return alt.Scale(domain=[lowest, highest], range=BLUES, interpolate="lab", clamp=True)


def signed_scale(largest: float) -> alt.Scale:
    """Colours of numbers from -largest to largest: orange, white, blue, which all eyes tell apart."""
    import altair as alt

    return alt.Scale(domain=[-largest, 0, largest], range=ORANGE_TO_BLUE, interpolate="lab")


def check_words(side: str, words: Sequence[str]) -> None:
    """Raises UsageError if one side of a heat map cannot be drawn."""
    is_text = as_text(words) is not None
    if is_text or not 1 <= len(words) <= MOST_WORDS:
        given = "one string" if is_text else f"{len(words)} words"
        raise UsageError(
            f"the {side} of a heat map must be a list of 1 to {MOST_WORDS} words, but is {given}; show a"
            " shorter sentence"
        )


def weight_grid(weights: ArrayLike, rows: int, columns: int) -> Grid:
    """`(rows, columns)` in 0..1. Raises UsageError for another shape, or what is no weight."""
    shape = (
        f"weights must be ({rows}, {columns}): a row for each target word"
        " and a column for each source word"
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


def word_labels(words: Sequence[str], pieces: bool) -> list[str]:
    """Words as they are shown: never empty, without control characters, of at most 20 characters."""
    labels = []
    for i, word in enumerate(words):
        label = _visible(_piece(words, i)) if pieces else _visible(word)
        if len(label) > _LONGEST_LABEL:
            label = label[: _LONGEST_LABEL - 1] + "…"
        labels.append(label)
    return labels


def _piece(words: Sequence[str], i: int) -> str:
    """A piece without the space that starts a word, or with `·` where it continues one."""
    word = words[i]
    if word[:1] in ("▁", " "):
        return word[1:] or " "
    before = words[i - 1] if i else ""  # a special token ends in no letter: </s>, [SEP]
    return f"·{word}" if _in_word(before[-1:]) and _in_word(word[:1]) else word


def _in_word(character: str) -> bool:
    combining = character != "" and unicodedata.combining(character) > 0
    return character.isalnum() or combining or character == "\ufffd"


def _visible(word: str) -> str:
    inner = word.strip(" ")
    if not inner:
        return _SPACE * len(word) or EMPTY
    start = word.index(inner)
    # a combining accent needs a base character
    circle = "◌" if unicodedata.combining(inner[0]) else ""
    return _SPACE * start + circle + printable(inner) + _SPACE * (len(word) - start - len(inner))


def word_axis(labels: list[str], title: str, font: int, every: int = 1, **options: Any) -> alt.Axis:
    """An axis over positions whose labels are words, all or every second, third, ... of them. The
    words are a JSON list, which no word can leave."""
    import altair as alt

    return alt.Axis(
        title=title or None,
        values=list(range(0, len(labels), every)),
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        labelFontSize=font,
        labelLimit=0,
        labelOverlap=False,
        labelPadding=5,
        ticks=False,
        domain=False,
        **options,
    )
