"""A text whose words have colours: how surprising each is, or what it adds to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from seqloom.errors import UsageError
from seqloom.explaining.charts import Fields, columns_of, require_extra, styled
from seqloom.explaining.heat_maps import signed_scale, weight_scale, word_labels

if TYPE_CHECKING:
    import altair as alt

COLUMNS = 76
"""Characters of a line."""
MOST_TOKENS = 5000
_WIDTH, _HEIGHT, _FONT = 8.4, 24, 14
_MONOSPACE = "Liberation Mono, DejaVu Sans Mono, Courier New, monospace"


def coloured_text(
    tokens: Sequence[str],
    values: Sequence[float],
    *,
    name: str,
    title: str = "",
    subtitle: str = "",
    signed: bool = False,
    pieces: bool = False,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> alt.LayerChart:
    """Each token on a patch of its colour, in lines as a text has them; a finger on one shows its value
    (`name`), and what `notes` say of it. `signed` colours have white at 0, others begin there; `pieces` are
    of a tokenizer. Raises UsageError for more than MOST_TOKENS."""
    if not 1 <= len(tokens) <= MOST_TOKENS:
        raise UsageError(
            f"a coloured text must have 1 to {MOST_TOKENS:,} tokens, but has {len(tokens):,}; give a part of"
            " it"
        )
    require_extra()
    import altair as alt

    largest = max(map(abs, values)) or 1.0
    records, line, column = [], 0, 0.0
    for index, (label, value) in enumerate(zip(word_labels(tokens, pieces), values, strict=True)):
        width = columns_of(label) + 0.6
        if column and column + width > COLUMNS:
            line, column = line + 1, 0.0
        record: Fields = {"x": column, "x2": column + width, "y": line, "y2": line + 0.86}
        record |= {"word": label, "value": float(value), "dark": abs(value) > 0.5 * largest}
        record |= {note: said[index] for note, said in (notes or {}).items()}
        records.append(record)
        column += width + 0.4
    scale = signed_scale(largest) if signed else weight_scale(0, largest)
    legend = alt.Legend(title=name, format=".2~g", gradientLength=max(90, min(200, _HEIGHT * line)))
    x_scale = alt.Scale(domain=[0, COLUMNS], nice=False)
    y_scale = alt.Scale(domain=[0, line + 1], nice=False, reverse=True)
    tooltip = [alt.Tooltip("word:N"), alt.Tooltip("value:Q", title=name, format=".4f")]
    tooltip += [alt.Tooltip(f"{note}:N") for note in notes or {}]
    base = alt.Chart(alt.InlineData(values=records)).encode(
        x=alt.X("x:Q", scale=x_scale, axis=None), y=alt.Y("y:Q", scale=y_scale, axis=None)
    )
    patches = base.mark_rect(cornerRadius=3, aria=False).encode(
        x2="x2:Q",
        y2="y2:Q",
        color=alt.Color("value:Q", scale=scale, legend=legend),
        tooltip=tooltip,
    )
    words = base.mark_text(
        align="left", baseline="top", dx=2.5, dy=3, font=_MONOSPACE, fontSize=_FONT, aria=False
    ).encode(
        text="word:N",
        color=alt.condition("datum.dark", alt.value("white"), alt.value("#1c2733")),
        tooltip=tooltip,
    )
    chart = alt.LayerChart(layer=[patches, words]).properties(
        width=COLUMNS * _WIDTH, height=_HEIGHT * (line + 1)
    )
    return styled(chart, title, subtitle, int(COLUMNS * _WIDTH), title or name)
