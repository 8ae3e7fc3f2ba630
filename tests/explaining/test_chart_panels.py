"""Panels: one picture, one legend, one colour for each series."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from seqloom.errors import UsageError
from seqloom.explaining.chart_panels import Panel, line_panels
from seqloom.explaining.charts import MOST_SERIES, save_chart


def panel(title: str, *names: str) -> Panel:
    return Panel(title=title, series={name: [(-1, 0.1), (0, 1)] for name in names}, x="t", y="norm")


def test_a_series_has_one_colour_in_all_panels_and_one_place_in_the_legend(tmp_path: Path) -> None:
    chart = line_panels(
        [[panel("one", "a & b", "rnn"), panel("two", "rnn")], [panel("three", "rnn")]],
        title="Flow",
        log_y=True,
    )
    save_chart(chart, tmp_path / "a.svg")
    words = [
        node.text
        for node in fromstring((tmp_path / "a.svg").read_text("utf-8")).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    assert [words.count(name) for name in ("a & b", "rnn")] == [1, 1]
    assert [word for word in words if word in ("one", "two", "three", "Flow")] == [
        "one",
        "two",
        "three",
        "Flow",
    ]
    drawn = [layers for row in chart.to_dict()["vconcat"] for layers in row["hconcat"]]
    assert [len(layers["layer"]) for layers in drawn] == [2, 2, 2]
    scales = [layers["layer"][0]["encoding"]["color"]["scale"] for layers in drawn]
    assert scales == [scales[0]] * 3
    assert scales[0]["domain"] == ["a & b", "rnn"]


@pytest.mark.parametrize("suffix", ["png", "html", "json"])
def test_panels_are_saved_as_every_kind(suffix: str, tmp_path: Path) -> None:
    save_chart(line_panels([[panel("one", "a")]]), tmp_path / f"a.{suffix}")
    assert (tmp_path / f"a.{suffix}").stat().st_size


def test_panels_refuse_in_one_line() -> None:
    half = MOST_SERIES // 2 + 1
    many: list[list[Panel]] = [
        [panel("one", *map(str, range(half))), panel("two", *map(str, range(half, 2 * half)))]
    ]
    for rows in (many[:0], [many[0][:0]], many):
        with pytest.raises(UsageError, match=f"must have 1 to {MOST_SERIES} series"):
            line_panels(rows)
