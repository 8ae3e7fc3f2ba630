"""A leaderboard: every model is there twice, in its place and its colour, and nothing in a name can break
out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from seqloom.errors import UsageError
from seqloom.explaining.charts import save_chart
from seqloom.explaining.leaderboard import LONGEST_NAME, MOST_MODELS, RankedModel, leaderboard_chart

STANDINGS = [
    RankedModel("gru & lstm", 0.91, 0.90, 0.92, 61.0),
    RankedModel("</script><b>", 0.88, 0.85, 0.91, 20.0),
    RankedModel("bag", 0.85, 0.85, 0.85, 0.5),
]


def panels(chart: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    left, right = chart.to_dict()["vconcat"][0]["hconcat"]
    return left["layer"], right["layer"]


def test_both_panels_show_the_same_models_in_the_same_colours() -> None:
    left, right = panels(leaderboard_chart(STANDINGS, score="accuracy"))
    assert [layer["mark"]["type"] for layer in left] == ["rule", "point"]
    assert [layer["mark"]["type"] for layer in right] == ["rule", "point", "text"]
    scales = [layer["encoding"]["color"]["scale"] for layer in (*left, *right)]
    assert scales == [scales[0]] * 5
    assert len(set(scales[0]["range"])) == 3
    for rule, point, low in ((left[0], left[1], "x"), (right[0], right[1], "y")):
        assert (rule["encoding"][low]["field"], rule["encoding"][f"{low}2"]["field"]) == (
            "low",
            "high",
        )
        assert point["encoding"][low]["field"] == "mean"
    assert right[1]["encoding"]["x"]["field"] == "seconds"
    assert right[1]["encoding"]["x"]["scale"]["type"] == "log"


def test_models_stand_in_their_order_with_their_numbers(tmp_path: Path) -> None:
    save_chart(
        leaderboard_chart(STANDINGS, score="accuracy", title="t", subtitle="s"), tmp_path / "a.svg"
    )
    texts = [
        node.text
        for node in fromstring((tmp_path / "a.svg").read_text("utf-8")).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    assert [
        text for text in texts if text in ("#1  gru & lstm", "#2  </script><b>", "#3  bag")
    ] == [
        "#1  gru & lstm",
        "#2  </script><b>",
        "#3  bag",
    ]
    assert [text for text in texts if text in ("#1", "#2", "#3")][-3:] == ["#1", "#2", "#3"]


def test_numbers_of_points_that_are_near_stand_apart(tmp_path: Path) -> None:
    near = [
        RankedModel("a", 0.8, 0.79, 0.81, 10.0),
        RankedModel("b", 0.8, 0.79, 0.81, 10.1),
        RankedModel("c", 0.6, 0.59, 0.61, 100.0),
    ]
    _, right = panels(leaderboard_chart(near, score="accuracy"))
    texts = [layer for layer in right if layer["mark"]["type"] == "text"]
    assert sorted((text["transform"][0]["filter"], text["mark"]["align"]) for text in texts) == [
        ("datum.beside == 0", "left"),  # b and c
        ("datum.beside == 2", "right"),  # a, to the left of b's bar
    ]
    save_chart(leaderboard_chart(near, score="accuracy"), tmp_path / "a.svg")
    shown = [
        node.text
        for node in fromstring((tmp_path / "a.svg").read_text("utf-8")).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    assert all(shown.count(f"#{number}") == 1 for number in "123")


def test_one_model_alone_is_a_picture_too(tmp_path: Path) -> None:
    save_chart(leaderboard_chart(STANDINGS[:1], score="accuracy"), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_many_models_and_long_names_fit() -> None:
    many = [
        RankedModel(f"model {at} " + "x" * 100, 0.5, 0.4, 0.6, 1.0 + at)
        for at in range(MOST_MODELS)
    ]
    left, _ = panels(leaderboard_chart(many, score="accuracy"))
    assert len(left[0]["encoding"]["color"]["scale"]["range"]) == MOST_MODELS
    assert "x" * LONGEST_NAME not in left[0]["encoding"]["y"]["axis"]["labelExpr"]
    assert "…" in left[0]["encoding"]["y"]["axis"]["labelExpr"].encode().decode("unicode_escape")


@pytest.mark.parametrize(
    ("standings", "message"),
    [
        ([], "1 to 40 models"),
        ([RankedModel("a", 0.5, 0.5, 0.5, 1.0)] * (MOST_MODELS + 1), "1 to 40 models"),
        ([RankedModel("a", math.nan, 0.5, 0.5, 1.0)], "must be finite"),
        ([RankedModel("a", 0.5, -math.inf, 0.6, 1.0)], "must be finite"),
        ([RankedModel("a", 0.5, 0.6, 0.7, 1.0)], "low <= mean <= high"),
        ([RankedModel("a\nb", 0.5, 0.5, 0.5, 0.0)], r"a\\nb"),
    ],
)
def test_a_leaderboard_refuses_in_one_line(standings: list[RankedModel], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        leaderboard_chart(standings, score="accuracy")
    assert "\n" not in str(refused.value)
