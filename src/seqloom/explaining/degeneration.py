"""How predictable each next token is along a text, a person's beside decoded ones (Holtzman et al. 2020,
arXiv:1904.09751, figure 2).

Above the mean over texts, below one text, token by token. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import require_extra, styled

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 720, 200
"""Of a panel, in pixels."""
COLOURS = ("#1c2733", "#e6550d", "#1b9e77", "#0868ac", "#b5179e")
"""Of the person, then of the strategies."""
EXCERPT = 115
"""Characters of a text that are quoted, its last ones."""
SMOOTH = 9
"""Tokens of the moving average."""


class ProbabilityCurve(NamedTuple):
    """One text: its tokens as they are shown, and the probability of each."""

    tokens: Sequence[str]
    probabilities: Sequence[float]
    text: str
    """As it reads."""


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
    """Both panels, each series in its own colour. `example` names some of the series of `means`, the person
    first in both.

    Raises UsageError where there is no series, more than COLOURS, or no token at all; MissingExtraError
    without the extra `plot`.
    """
    if not set(example) <= set(means) or not 1 <= len(means) <= len(COLOURS):
        raise UsageError(
            f"the chart must have 1 to {len(COLOURS)} series, of which the example shows some, but has"
            f" {len(means)}"
        )
    over_texts = [
        {"series": name, "position": at, "probability": p, "texts": texts, "smooth": smooth}
        for name, mean in means.items()
        for at, (p, texts, smooth) in enumerate(
            zip(*mean, moving_mean(mean.probabilities), strict=True), start=1
        )
    ]
    of_one = [
        {"series": name, "position": at, "probability": p, "token": printable(token)}
        for name, curve in example.items()
        for at, (token, p) in enumerate(zip(curve.tokens, curve.probabilities, strict=True), start=1)
    ]
    if not over_texts or not of_one:
        raise UsageError(
            "the chart must have a token to show, but each text is empty; use other data or a longer"
            " continuation"
        )
    require_extra()
    import altair as alt

    names, texts = list(means), max(max(mean.texts, default=0) for mean in means.values())
    upper = _panel(
        over_texts,
        names,
        f"Mean over {texts:,} texts",
        [f"thick: moving average over {SMOOTH} tokens"],
        told="texts",
    )
    quotes = [
        f"after “{_end(prompt)}”",
        *(f"{name}: “{_end(curve.text)}”" for name, curve in example.items()),
    ]
    lower = _panel(of_one, names, "One text, token by token", quotes, told="token")
    return styled(alt.VConcatChart(vconcat=[upper, lower], spacing=30), title, subtitle, WIDTH + 120, title)


def moving_mean(values: Sequence[float]) -> list[float]:
    """The mean over SMOOTH neighbours, of which there are fewer at the ends."""
    half = SMOOTH // 2
    around = [values[max(at - half, 0) : at + half + 1] for at in range(len(values))]
    return [sum(some) / len(some) for some in around]


def _panel(
    values: list[dict[str, Any]], names: list[str], title: str, lines: list[str], *, told: str
) -> alt.LayerChart:
    """Lines over positions, and points that are seen under the pointer only; `told` is what they tell beside
    the numbers. A smooth line, where there is one, is drawn over the other."""
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
    scale = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    last = max(value["position"] for value in values)

    def up(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="probability of the token", scale=alt.Scale(zero=True))

    tooltip = [
        alt.Tooltip("series:N", title="text"),
        alt.Tooltip("position:Q"),
        alt.Tooltip("token:N") if told == "token" else alt.Tooltip("texts:Q"),
        alt.Tooltip("probability:Q", format=".3f"),
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X(
            "position:Q",
            title="tokens after the prompt",
            scale=alt.Scale(domain=[1, max(last, 2)], nice=False),
        ),
        y=up("probability"),
        color=alt.Color("series:N", scale=scale, legend=legend),
    )
    smooth = "smooth" in values[0]
    layers = [
        base.mark_line(
            strokeWidth=1 if smooth else 1.7, opacity=0.3 if smooth else 1, strokeJoin="round", aria=False
        )
    ]
    if smooth:
        layers.append(base.mark_line(strokeWidth=3.4, strokeJoin="round", aria=False).encode(y=up("smooth")))
    layers.append(base.mark_point(filled=True, size=60, opacity=0.001, aria=False).encode(tooltip=tooltip))
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
    return whole if len(whole) <= EXCERPT else f"… {whole[-EXCERPT:].partition(' ')[2] or whole[-EXCERPT:]}"
