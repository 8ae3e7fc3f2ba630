"""How good a model is, as pictures: which label was taken for which, whether it is right as often as it is
confident, and its score by the length of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import BLUES, LINES, REFERENCE, line_chart, require_extra, styled

if TYPE_CHECKING:
    import altair as alt

MOST_LABELS = 40
"""In a picture of confusions."""
CELL = 34
"""Pixels of a cell."""


def confusion_chart(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> alt.LayerChart:
    """counts `(true, predicted)`: a cell has the share of its row, which is a true label, and the number.
    Raises UsageError for more than MOST_LABELS labels."""
    if len(labels) > MOST_LABELS:
        raise UsageError(
            f"a picture of confusions must have at most {MOST_LABELS} labels, but there are {len(labels)};"
            " evaluate --json has all"
        )
    require_extra()
    import altair as alt

    names = [printable(label) for label in labels]
    values = []
    for name, row in zip(names, counts, strict=False):
        for predicted, count in zip(names, row, strict=True):
            share = count / max(sum(row), 1)
            values.append({"true": name, "predicted": predicted, "n": count, "share": share})
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("predicted:N", sort=names, title="predicted", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("true:N", sort=names, title="true"),
    )
    colour = alt.Color(
        "share:Q",
        scale=alt.Scale(domain=[0, 1], range=BLUES),
        legend=alt.Legend(title="share of the row", format="%"),
    )
    cells = base.mark_rect().encode(color=colour)
    text = base.mark_text(fontSize=11).encode(
        text="n:Q", color=alt.condition("datum.share > 0.5", alt.value("white"), alt.value("black"))
    )
    size = max(CELL * len(names), 120)
    chart = alt.LayerChart(layer=[cells, text]).properties(width=size, height=size)
    return styled(chart, "Which label is taken for which", "", size, "Confusions of labels")


def reliability_chart(bins: Sequence[tuple[float, float, int]]) -> alt.LayerChart:
    """bins (mean confidence, accuracy, examples): a point for each, as large as it has examples; on the
    dashed line a model is right as often as it is confident."""
    require_extra()
    import altair as alt

    values = [{"confidence": x, "accuracy": y, "examples": n} for x, y, n in bins]
    corners = [{"confidence": 0.0, "accuracy": 0.0}, {"confidence": 1.0, "accuracy": 1.0}]
    unit = alt.Scale(domain=[0, 1])
    x = alt.X("confidence:Q", scale=unit, title="confidence")
    y = alt.Y("accuracy:Q", scale=unit, title="accuracy")
    ideal = alt.Chart(alt.InlineData(values=corners)).mark_line(color=REFERENCE, strokeDash=[5, 4])
    size = alt.Size("examples:Q", legend=alt.Legend(title="examples"))
    bin_means = alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y)
    line = bin_means.mark_line(color=LINES[0])
    points = bin_means.mark_point(filled=True, color=LINES[0]).encode(size=size)
    chart = alt.LayerChart(layer=[ideal.encode(x=x, y=y), line, points]).properties(
        width=340, height=340
    )
    subtitle = "dashed: right as often as confident"
    return styled(chart, "Reliability", subtitle, 340, "Accuracy by confidence")


def length_chart(groups: Sequence[tuple[float, float]], score: str) -> alt.LayerChart:
    """groups (mean words, mean score)."""
    return line_chart(
        {score: groups},
        x="words of the input",
        y=score,
        title=f"{score[0].upper()}{score[1:]} by the length of inputs",
        subtitle="groups of about equally many examples",
    )
