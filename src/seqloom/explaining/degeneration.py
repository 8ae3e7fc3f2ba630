"""How predictable each next token of a text is: human texts and decoded ones (Holtzman et al. 2020,
arXiv:1904.09751, figure 2).

The upper panel is the mean over texts, the lower one a single text, token by token. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import Fields, require_extra, styled

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 720, 200
"""Of a panel, in pixels."""
COLOURS = ("#1c2733", "#e6550d", "#1b9e77", "#0868ac", "#b5179e")
"""Of human texts, then of the strategies."""
EXCERPT = 115
"""How many characters of the end of a text are quoted."""
SMOOTH = 9
"""Tokens of the moving average."""


class ProbabilityCurve(NamedTuple):
    """One text: its tokens as they are shown, and the probability of each."""

    tokens: Sequence[str]
    probabilities: Sequence[float]
    text: str
    """As a whole."""


class Mean(NamedTuple):
    """The mean probability at each position, and over how many texts."""

    probabilities: Sequence[float]
    texts: Sequence[int]


def degeneration_chart(
    example: Mapping[str, ProbabilityCurve],
    means: Mapping[str, Mean],
    *,
    prompt: str,
    title: str,
    subtitle: str,
) -> alt.VConcatChart:
    """Both panels, each series in its own colour. `example` has some of the series of `means`, human texts
    first in both.

    Raises UsageError if there is no series, more than COLOURS, or no token at all; MissingExtraError
    without the extra `plot`.
    """
    if not set(example) <= set(means) or not 1 <= len(means) <= len(COLOURS):
        raise UsageError(
            f"the chart must have 1 to {len(COLOURS)} series, of which the example shows some, but has"
            f" {len(means)}"
        )
    over_texts, of_one = list[Fields](), list[Fields]()
    for name, mean in means.items():
        rows = zip(*mean, moving_mean(mean.probabilities), strict=True)
        for position, (p, texts, smooth) in enumerate(rows, start=1):
            over_texts.append(
                {
                    "series": name,
                    "position": position,
                    "probability": p,
                    "texts": texts,
                    "smooth": smooth,
                }
            )
    for name, curve in example.items():
        tokens = zip(curve.tokens, curve.probabilities, strict=True)
        for position, (token, p) in enumerate(tokens, start=1):
            shown = printable(token)
            of_one.append({"series": name, "position": position, "probability": p, "token": shown})
    if not over_texts or not of_one:
        raise UsageError(
            "the chart must have a token to show, but each text is empty; use other data or a longer"
            " continuation"
        )
    require_extra()
    import altair as alt

    names = list(means)
    most_texts = max(max(mean.texts, default=0) for mean in means.values())
    note = f"thick: moving average over {SMOOTH} tokens"
    upper = _panel(over_texts, names, f"Mean over {most_texts:,} texts", [note])
    quotes = [f"after “{_end(prompt)}”"]
    quotes += [f"{name}: “{_end(curve.text)}”" for name, curve in example.items()]
    lower = _panel(of_one, names, "One text, token by token", quotes)
    return styled(
        alt.VConcatChart(vconcat=[upper, lower], spacing=30), title, subtitle, WIDTH + 120, title
    )


def moving_mean(values: Sequence[float]) -> list[float]:
    """The mean over SMOOTH neighbours, of which there are fewer at the ends."""
    half = SMOOTH // 2
    windows = [values[max(index - half, 0) : index + half + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _panel(values: list[Fields], names: list[str], title: str, lines: list[str]) -> alt.LayerChart:
    """Lines over positions, and points that only the pointer shows. A smooth line, where the values have one,
    is drawn over the other."""
    import altair as alt

    legend = alt.Legend(
        title=None,
        symbolType="stroke",
        symbolStrokeWidth=4,
        symbolSize=300,
        symbolOpacity=1,
        rowPadding=6,
        labelFontSize=13,
    )
    last = max(value["position"] for value in values)
    x_scale = alt.Scale(domain=[1, max(last, 2)], nice=False)
    palette = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    smooth = "smooth" in values[0]

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="probability of the token", scale=alt.Scale(zero=True))

    tooltip = [
        alt.Tooltip("series:N", title="text"),
        alt.Tooltip("position:Q"),
        alt.Tooltip("texts:Q" if smooth else "token:N"),
        alt.Tooltip("probability:Q", format=".3f"),
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("position:Q", title="tokens after the prompt", scale=x_scale),
        y=y("probability"),
        color=alt.Color("series:N", scale=palette, legend=legend),
    )
    width, opacity = (1, 0.3) if smooth else (1.7, 1)
    layers = [base.mark_line(strokeWidth=width, opacity=opacity, strokeJoin="round", aria=False)]
    if smooth:
        layers.append(
            base.mark_line(strokeWidth=3.4, strokeJoin="round", aria=False).encode(y=y("smooth"))
        )
    layers.append(
        base.mark_point(filled=True, size=60, opacity=0.001, aria=False).encode(tooltip=tooltip)
    )
    heading = alt.TitleParams(
        text=title,
        subtitle=lines,
        fontSize=14,
        fontWeight="bold",
        anchor="start",
        frame="group",
        offset=10,
        subtitleFontSize=12,
    )
    return alt.LayerChart(layer=layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def _end(text: str) -> str:
    """The end of a text on one line."""
    whole = printable(" ".join(text.split()))
    return (
        whole
        if len(whole) <= EXCERPT
        else f"… {whole[-EXCERPT:].partition(' ')[2] or whole[-EXCERPT:]}"
    )
