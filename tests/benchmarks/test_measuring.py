"""What the benchmarks say of their timings: which way a ratio goes, what passes, what is published."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from benchmarks.measuring import Spread, Timing, geometric_mean, interleaved
from benchmarks.recurrent import Point, measure_training, summary
from benchmarks.recurrent_cases import CASES, OURS, Case, Size

from benchmarks import lengths, report

LSTM = CASES[0]


def test_every_way_takes_part_in_every_round() -> None:
    runs: list[str] = []
    timing = interleaved(
        {name: partial(runs.append, name) for name in "ab"},
        rounds=3,
        least=0.0,
        patience=0.0,
    )
    assert [len(timing.seconds[name]) for name in "ab"] == [3, 3]
    assert {runs.count("a") - runs.count("b")} <= {-1, 0, 1}  # but for the warm-up


def test_a_ratio_is_above_one_where_ours_is_faster_and_is_paired_by_round() -> None:
    timing = Timing({OURS: [1.0, 10.0, 2.0], "peer": [2.0, 20.0, 6.0]}, 0.0)
    assert timing.ratio(OURS, "peer") == Spread(2.0, 2.0, 3.0)
    assert timing.ratio(OURS, "peer").half_range == 0.5
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def point(size: str, ratio: float, case: Case = LSTM) -> Point:
    spread = Spread(ratio, ratio, ratio)
    return Point(case.name, next(iter(case.peers)), size, spread, 1.0, ratio, 1.0, 0.5, 100.0, 0.0)


@pytest.mark.parametrize(("ratios", "verdict"), [((0.98, 3.0), "yes"), ((0.96, 3.0), "no")])
def test_one_slow_size_fails_a_case(ratios: tuple[float, float], verdict: str) -> None:
    line = summary(
        [(LSTM, "torch.nn")], [point("8x128x1", ratios[0]), point("8x256x1", ratios[1])]
    ).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")][4] == f"{ratios[0]:.2f} (8x128x1)"
    assert line.split("|")[-2].strip() == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"), [((1.5, 1.6), "no"), ((1.5, 2.7), "yes"), ((1.3, 9.0), "no")]
)
def test_a_case_must_reach_its_geometric_mean_too(
    ratios: tuple[float, float], verdict: str
) -> None:
    (gru,) = (case for case in CASES if case.name == "gru")
    points = [point("8x128x1", ratios[0], gru), point("8x256x1", ratios[1], gru)]
    assert summary([(gru, "loop")], points).splitlines()[-1].split("|")[-2].strip() == verdict


def test_a_size_gives_a_point_for_each_peer() -> None:
    (elman,) = (case for case in CASES if case.name == "elman")
    points = measure_training(elman, Size(2, 4, 2), rounds=1, peak=1e12)
    assert [(one.peer, one.size) for one in points] == [
        (peer, "2x4x2") for peer in ("loop", "tuned loop", "torch.nn")
    ]
    assert all(one.ratio.median > 0 and 0 < one.of_peak < 1 for one in points)


def test_lengths_are_as_their_names_say() -> None:
    assert sorted(lengths.spread(5, 64, 128)) == [64, 80, 96, 112, 128]
    drawn = lengths.captions(8, 4, bucketed=False)
    buckets = lengths.captions(8, 4, bucketed=True)
    assert [len(batch) for batch in drawn + buckets] == [8] * 8
    assert (
        max(max(batch) - min(batch) for batch in buckets)
        <= 1
        < min(max(batch) - min(batch) for batch in drawn)
    )
    assert sum(lengths.WORDS) == 29_000


def test_publishing_replaces_its_own_section_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(report, "FIGURES", tmp_path / "benchmarks.json")
    for section, text in (("one", r"old \1"), ("two", "other"), ("one", r"new \1")):
        report.publish(section, {"figure": text}, text)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "old" not in page
    assert page.index(r"new \1") < page.index("other")
    figures = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [figures[section]["figure"] for section in ("one", "two")] == [r"new \1", "other"]
    assert "torch" in figures["one"]["machine"]
