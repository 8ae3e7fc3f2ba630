"""The models of a comparison as a picture: the score of each with its interval, and the time of its
training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import copysign, isfinite, log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import LINES, REFERENCE, Fields, require_extra, styled

if TYPE_CHECKING:
    import altair as alt

WIDTH, ROW = 340, 30
"""The width of a panel, and the height of a model's line in it, in pixels."""
MOST_MODELS = 40
LONGEST_NAME = 44
"""Characters."""
LABEL_OFFSETS = ((8, -7), (8, 9), (-8, -7), (-8, 9))
"""Where the number of a point may be, in pixels to the right and down of it; the first is preferred."""
SECONDS = "format(datum.value, '~g') + ' s'"


class RankedModel(NamedTuple):
    """A model in the picture."""

    name: str
    mean: float
    low: float
    """Of its interval; the mean itself if there is none."""
    high: float
    seconds: float
    """Of its training."""


def leaderboard_chart(
    models: Sequence[RankedModel],
    *,
    score: str,
    title: str = "",
    subtitle: str = "",
    floor: float | None = None,
    percent: bool = False,
) -> alt.VConcatChart:
    """Two panels with the same numbers and colours: score and interval of each model in the given order, and
    score against seconds of training (a logarithmic axis). `floor`: the score of who has learnt nothing, a
    dashed line. `percent`: scores are shares, and written so.

    Raises UsageError if there are no models or more than MOST_MODELS, a number is not finite, or no time
    was taken; MissingExtraError without the extra `plot`.
    """
    _check(models)
    require_extra()
    import altair as alt

    names = [
        f"#{number}  {_shortened(printable(model.name))}"
        for number, model in enumerate(models, start=1)
    ]
    height = max(ROW * len(names), 150)
    tall = max(height, 240)
    places = _label_places(models, tall)
    values: Values = []
    for number, (model, name, place) in enumerate(zip(models, names, places, strict=True)):
        numbers = {
            "mean": model.mean,
            "low": model.low,
            "high": model.high,
            "seconds": model.seconds,
        }
        values.append(
            {"place": number, "number": f"#{number + 1}", **numbers, "name": name, "beside": place}
        )
    score = printable(score)
    axis: Fields = {"title": score, "scale": _score_scale(models, floor)}
    if percent:
        axis["axis"] = alt.Axis(format="~%")
    left = _score_panel(values, axis, names, floor).properties(width=WIDTH, height=height)
    right = _time_panel(values, axis, sorted(set(places))).properties(width=WIDTH, height=tall)
    chart = alt.VConcatChart(vconcat=[alt.HConcatChart(hconcat=[left, right], spacing=36)])
    return styled(
        chart, title, subtitle, 2 * WIDTH + 200, title or f"{score} of {len(names)} models"
    )


Values = list[Fields]
"""A record for each model."""


def _score_panel(
    values: Values, score: Fields, names: list[str], floor: float | None
) -> alt.LayerChart:
    """A line for each model, with its interval."""
    import altair as alt

    y_axis = alt.Axis(
        title=None, values=list(range(len(names))), labelExpr=f"{json.dumps(names)}[datum.value]",
        labelLimit=0, labelPadding=8, labelOverlap=False, ticks=False, domain=False, grid=False,
        labelFontSize=12,
    )  # fmt: skip
    y = alt.Y("place:O", scale=alt.Scale(domain=list(range(len(names)))), axis=y_axis)
    rule, dot = _interval_marks(values, y=y)
    low, mean = (alt.X(f"{field}:Q", **score) for field in ("low", "mean"))
    layers = [rule.encode(x=low, x2="high:Q"), dot.encode(x=mean, tooltip=_tooltip(score["title"]))]
    if floor is not None:
        line = alt.Chart(alt.InlineData(values=[{"floor": floor}]))
        line = line.mark_rule(color=REFERENCE, strokeDash=[5, 4], strokeWidth=1.5)
        layers.insert(0, line.encode(x=alt.X("floor:Q", **score)))
    return alt.LayerChart(layer=layers)


def _time_panel(values: Values, score: Fields, places: list[int]) -> alt.LayerChart:
    """A point for each model, with its interval and its number."""
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=22)
    x = alt.X(
        "seconds:Q",
        title="seconds of training",
        scale=scale,
        axis=alt.Axis(grid=False, labelExpr=SECONDS, labelSeparation=12),
    )
    rule, dot = _interval_marks(values, x=x)
    low, mean = (alt.Y(f"{field}:Q", **score) for field in ("low", "mean"))
    layers = [rule.encode(y=low, y2="high:Q"), dot.encode(y=mean, tooltip=_tooltip(score["title"]))]
    for place in places:
        dx, dy = LABEL_OFFSETS[place]
        align: Literal["left", "right"] = "left" if dx > 0 else "right"
        label = dot.transform_filter(f"datum.beside == {place}").mark_text(
            align=align, dx=dx, dy=dy, fontSize=11, fontWeight="bold", aria=False
        )
        layers.append(label.encode(y=mean, text="number:N"))
    return alt.LayerChart(layer=layers)


def _interval_marks(values: Values, **position: Any) -> tuple[alt.Chart, alt.Chart]:
    """The line of an interval and the dot of its mean."""
    import altair as alt

    count = len(values)
    colours = alt.Scale(domain=list(range(count)), range=[*LINES, *[REFERENCE] * count][:count])
    color = alt.Color("place:O", scale=colours, legend=None)
    base = alt.Chart(alt.InlineData(values=values)).encode(color=color, **position)
    dot = base.mark_point(filled=True, size=80, opacity=1, aria=False)
    return base.mark_rule(strokeWidth=2.4, aria=False), dot


def _score_scale(models: Sequence[RankedModel], floor: float | None) -> alt.Scale:
    """Around what is drawn. Where all of it is one value, a scale of its own would have a tick that is
    rounded to another number."""
    import altair as alt

    drawn = [value for model in models for value in (model.low, model.high)]
    drawn += [] if floor is None else [floor]
    if max(drawn) > min(drawn):
        return alt.Scale(zero=False, nice=True, padding=8, domain=[min(drawn), max(drawn)])
    around = max(abs(drawn[0]) / 20, 0.01)
    return alt.Scale(zero=False, nice=False, domain=[drawn[0] - around, drawn[0] + around])


def _tooltip(score: str) -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("name:N", title="model"),
        alt.Tooltip("mean:Q", title=score, format=".4~g"),
        alt.Tooltip("low:Q", format=".4~g"),
        alt.Tooltip("high:Q", format=".4~g"),
        alt.Tooltip("seconds:Q", format=".3~g"),
    ]


def _label_places(models: Sequence[RankedModel], height: int) -> list[int]:
    """For each point of the time panel the first of LABEL_OFFSETS where its number overlaps neither the
    intervals of other models nor the numbers before it."""
    times = [log(model.seconds) for model in models]
    lowest, highest = min(model.low for model in models), max(model.high for model in models)
    x_scale = WIDTH / (max(times) - min(times) or 1)
    y_scale = height / (highest - lowest or 1)
    # what must not be overlapped, as x, top and bottom in pixels
    bars = []
    for time, model in zip(times, models, strict=True):
        top, bottom = (highest - model.high) * y_scale, (highest - model.low) * y_scale
        bars.append(((time - min(times)) * x_scale, top, bottom))
    labels, places = list[tuple[float, float, float]](), list[int]()
    for index, model in enumerate(models):
        x, y = bars[index][0], (highest - model.mean) * y_scale
        spots = [(x + dx + copysign(4, dx), y + dy, y + dy) for dx, dy in LABEL_OFFSETS]
        taken = [*bars[:index], *bars[index + 1 :], *labels]
        free = [place for place, spot in enumerate(spots) if not _overlaps(spot, taken)]
        places.append(free[0] if free else 0)
        labels.append(spots[places[-1]])
    return places


def _overlaps(
    label: tuple[float, float, float], taken: Sequence[tuple[float, float, float]]
) -> bool:
    x, y, _ = label
    return any(abs(x - other) < 11 and top - 11 < y < bottom + 11 for other, top, bottom in taken)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _check(models: Sequence[RankedModel]) -> None:
    if not 1 <= len(models) <= MOST_MODELS:
        raise UsageError(
            f"a leaderboard must have 1 to {MOST_MODELS} models, but has {len(models)}; draw several"
        )
    for model in models:
        numbers = (model.low, model.mean, model.high, model.seconds)
        given = (
            f"{printable(repr(model.name))} has {', '.join(f'{number:g}' for number in numbers)}"
        )
        if not all(map(isfinite, numbers)):
            raise UsageError(
                f"low, mean, high and seconds of a model must be finite, but {given}; leave it out"
            )
        if not (model.low <= model.mean <= model.high and model.seconds > 0):
            raise UsageError(
                f"a model must have low <= mean <= high and seconds above 0, but {given}"
            )
