"""The models of a comparison as a picture: how good each is and how sure that is, and what its training took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import copysign, isfinite, log
from typing import TYPE_CHECKING, Any, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import LINES, require_extra, styled

if TYPE_CHECKING:
    import altair as alt

WIDTH, ROW = 340, 30
"""Of a panel, and of a model's line in it, in pixels."""
MOST_MODELS = 40
LONGEST_NAME = 44
"""Characters."""
BESIDE = ((8, -7), (8, 9), (-8, -7), (-8, 9))
"""Where the number of a point may stand, in pixels to the right and down of it; the first is the usual one.
"""
REST = "#8a949e"
"""Of models beyond the colours that the eye tells apart."""


class RankedModel(NamedTuple):
    """A model in the picture."""

    name: str
    mean: float
    low: float
    """Of its interval; the mean itself where there is none."""
    high: float
    seconds: float
    """Of its training."""


def leaderboard_chart(
    standings: Sequence[RankedModel], *, score: str, title: str = "", subtitle: str = ""
) -> alt.VConcatChart:
    """Two panels with the same numbers and colours: score and interval of each model in the order that is
    given, and score against seconds of training (a logarithmic axis).

    Raises UsageError where there are no models or more than MOST_MODELS, a number is not finite, or no time
    was taken; MissingExtraError without the extra `plot`.
    """
    _check(standings)
    require_extra()
    import altair as alt

    names = [f"{at}  {_cut(printable(one.name))}" for at, one in enumerate(standings, start=1)]
    height = max(ROW * len(names), 150)
    tall = max(height, 240)
    sides = _beside(standings, tall)
    values = [
        {
            "place": at,
            "number": str(at + 1),
            "mean": one.mean,
            "low": one.low,
            "high": one.high,
            "seconds": one.seconds,
            "name": name,
            "beside": beside,
        }
        for at, (one, name, beside) in enumerate(zip(standings, names, sides, strict=True))
    ]
    colours = alt.Scale(domain=list(range(len(names))), range=[*LINES, *[REST] * len(names)][: len(names)])
    colour = alt.Color("place:O", scale=colours, legend=None)
    score = printable(score)
    tooltip = [alt.Tooltip("name:N", title="model"), alt.Tooltip("mean:Q", title=score, format=".4~g")]
    tooltip += [
        alt.Tooltip("low:Q", format=".4~g"),
        alt.Tooltip("high:Q", format=".4~g"),
        alt.Tooltip("seconds:Q", format=".3~g"),
    ]
    scale = alt.Scale(zero=False, nice=True, padding=8)

    def bars(values: list[dict[str, Any]], **place: Any) -> list[alt.Chart]:
        base = alt.Chart(alt.InlineData(values=values)).encode(color=colour, **place)
        return [
            base.mark_rule(strokeWidth=2.4, aria=False),
            base.mark_point(filled=True, size=80, opacity=1, aria=False),
        ]

    rows = alt.Axis(
        title=None, values=list(range(len(names))), labelExpr=f"{json.dumps(names)}[datum.value]", labelLimit=0, labelPadding=8,
        labelOverlap=False, ticks=False, domain=False, grid=False, labelFontSize=12,
    )  # fmt: skip
    across = alt.Y("place:O", scale=alt.Scale(domain=list(range(len(names)))), axis=rows)
    rule, dot = bars(values, y=across)
    left = alt.LayerChart(
        layer=[
            rule.encode(x=alt.X("low:Q", title=score, scale=scale), x2="high:Q"),
            dot.encode(x=alt.X("mean:Q", title=score, scale=scale), tooltip=tooltip),
        ]
    ).properties(width=WIDTH, height=height)
    seconds = alt.X(
        "seconds:Q",
        title="seconds of training",
        scale=alt.Scale(type="log", nice=False, padding=22),
        axis=alt.Axis(grid=False),
    )
    rule, dot = bars(values, x=seconds)
    up = alt.Y("mean:Q", title=score, scale=scale)
    right = alt.LayerChart(
        layer=[
            rule.encode(y=alt.Y("low:Q", title=score, scale=scale), y2="high:Q"),
            dot.encode(y=up, tooltip=tooltip),
            *(
                dot.transform_filter(f"datum.beside == {at}")
                .mark_text(
                    align="left" if dx > 0 else "right",
                    dx=dx,
                    dy=dy,
                    fontSize=11,
                    fontWeight="bold",
                    aria=False,
                )
                .encode(y=up, text="number:N")
                for at, (dx, dy) in enumerate(BESIDE)
                if at in sides
            ),
        ]
    ).properties(width=WIDTH, height=tall)
    chart = alt.VConcatChart(vconcat=[alt.HConcatChart(hconcat=[left, right], spacing=36)])
    return styled(chart, title, subtitle, 2 * WIDTH + 200, title or f"{score} of {len(names)} models")


def _beside(standings: Sequence[RankedModel], height: int) -> list[int]:
    """For each point of the right panel the first place of BESIDE where its number is clear of other models'
    bars and of the numbers before it."""
    across = [log(one.seconds) for one in standings]
    lowest, highest = min(one.low for one in standings), max(one.high for one in standings)
    wide, high = WIDTH / (max(across) - min(across) or 1), height / (highest - lowest or 1)
    # x, top and bottom in pixels
    bars = [
        ((x - min(across)) * wide, (highest - one.high) * high, (highest - one.low) * high)
        for x, one in zip(across, standings, strict=True)
    ]
    numbers, found = list[tuple[float, float, float]](), list[int]()
    for at, one in enumerate(standings):
        x, y = bars[at][0], (highest - one.mean) * high
        spots = [(x + dx + copysign(4, dx), y + dy, y + dy) for dx, dy in BESIDE]
        taken = [*bars[:at], *bars[at + 1 :], *numbers]
        clear = [
            place
            for place, (a, b, _) in enumerate(spots)
            if not any(abs(a - c) < 11 and t - 11 < b < u + 11 for c, t, u in taken)
        ]
        found.append(clear[0] if clear else 0)
        numbers.append(spots[found[-1]])
    return found


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _check(standings: Sequence[RankedModel]) -> None:
    if not 1 <= len(standings) <= MOST_MODELS:
        raise UsageError(
            f"a leaderboard must have 1 to {MOST_MODELS} models, but has {len(standings)}; draw several"
        )
    for one in standings:
        numbers = (one.low, one.mean, one.high, one.seconds)
        given = f"{printable(repr(one.name))} has {', '.join(f'{number:g}' for number in numbers)}"
        if not all(map(isfinite, numbers)):
            raise UsageError(
                f"low, mean, high and seconds of a model must be finite, but {given}; leave it out"
            )
        if not (one.low <= one.mean <= one.high and one.seconds > 0):
            raise UsageError(f"a model must have low <= mean <= high and seconds above 0, but {given}")
