"""The chart of token probabilities: every number and token is in it, in order, and in its series' colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair")

from seqloom.errors import UsageError
from seqloom.explaining.charts import save_chart
from seqloom.explaining.degeneration import (
    COLOURS,
    Mean,
    ProbabilityCurve,
    degeneration_chart,
    moving_mean,
)

HUMAN = ProbabilityCurve(["a", "</script>", "\u202ec"], [0.1, 0.2, 0.3], "a </script>\n \u202ec")
BEAM = ProbabilityCurve(["b", "b"], [0.8, 0.9], "word " * 60 + "the end")
MEANS = {
    "human": Mean([0.1, 0.4], [9, 8]),
    "beam=5": Mean([0.7, 0.8, 0.9], [9, 9, 7]),
    "top_p=0.95": Mean([0.3], [9]),
}


def drawn(example: dict[str, ProbabilityCurve], means: dict[str, Mean]) -> Any:
    return degeneration_chart(
        example, means, prompt="so it\nbegan", title="Title", subtitle="first and last"
    )


def test_all_numbers_are_in_the_chart() -> None:
    spec = drawn({"human": HUMAN, "beam=5": BEAM}, MEANS).to_dict()
    above, below = spec["vconcat"]
    values = spec["datasets"]
    means = values[above["data"]["name"]]
    assert [(v["series"], v["position"], v["probability"], v["texts"]) for v in means] == [
        ("human", 1, 0.1, 9),
        ("human", 2, 0.4, 8),
        ("beam=5", 1, 0.7, 9),
        ("beam=5", 2, 0.8, 9),
        ("beam=5", 3, 0.9, 7),
        ("top_p=0.95", 1, 0.3, 9),
    ]
    assert [v["smooth"] for v in means[2:5]] == pytest.approx([0.8] * 3)
    tokens = values[below["data"]["name"]]
    assert [(v["series"], v["position"], v["probability"], v["token"]) for v in tokens] == [
        ("human", 1, 0.1, "a"),
        ("human", 2, 0.2, "</script>"),
        ("human", 3, 0.3, "\\u202ec"),
        ("beam=5", 1, 0.8, "b"),
        ("beam=5", 2, 0.9, "b"),
    ]
    for panel, told in ((above, "texts"), (below, "token")):
        for layer in panel["layer"]:
            assert layer["encoding"]["color"]["scale"] == {
                "domain": list(MEANS),
                "range": list(COLOURS[:3]),
            }
            assert layer["encoding"]["y"]["scale"] == {"zero": True}  # a small share looks small
        assert told in [one["field"] for one in panel["layer"][-1]["encoding"]["tooltip"]]
    assert [layer["encoding"]["y"]["field"] for layer in above["layer"]] == [
        "probability",
        "smooth",
        "probability",
    ]
    assert spec["title"]["text"] == ["Title"]
    assert (above["title"]["text"], below["title"]["text"]) == (
        "Mean over 9 texts",
        "One text, token by token",
    )
    prompt, human, beam = below["title"]["subtitle"]
    assert (prompt, human) == ("after “so it began”", "human: “a </script> \\u202ec”")
    assert beam.startswith("beam=5: “… word word")
    assert beam.endswith("word the end”")
    assert len(beam) < 140


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([1.0, 0.0], [0.5, 0.5]),
        ([0.0] * 4 + [9.0] + [0.0] * 5, [9 / 5, 9 / 6, 9 / 7, 9 / 8, 1, 1, 9 / 8, 9 / 7, 9 / 6, 0]),
    ],
)
def test_a_moving_mean_has_fewer_neighbours_at_the_ends(
    values: list[float], expected: list[float]
) -> None:
    assert moving_mean(values) == pytest.approx(expected)


def test_files_of_every_kind(tmp_path: Path) -> None:
    chart = drawn({"human": HUMAN, "beam=5": BEAM}, MEANS)
    for suffix in (".png", ".svg", ".html"):
        save_chart(chart, tmp_path / f"chart{suffix}")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    svg, page = (
        (tmp_path / "chart.svg").read_text("utf-8"),
        (tmp_path / "chart.html").read_text("utf-8"),
    )
    assert all(
        word in svg
        for word in (
            "probability of the token",
            "tokens after the prompt",
            "human",
            "beam=5",
            "first and last",
        )
    )
    assert page.count("</script>") == 2  # those of the page, and none that a token brought
    assert '"token"' in page
    assert 'src="http' not in page


def test_what_cannot_be_drawn_is_refused() -> None:
    many = {str(at): Mean([0.5], [1]) for at in range(6)}
    for example, means in (({}, {}), ({"0": HUMAN}, many), ({"other": HUMAN}, MEANS)):
        with pytest.raises(UsageError, match="must have 1 to 5 series"):
            drawn(example, means)
    with pytest.raises(UsageError, match="each text is empty"):
        drawn({"human": ProbabilityCurve([], [], "")}, {"human": Mean([], [])})
