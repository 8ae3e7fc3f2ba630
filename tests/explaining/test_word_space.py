"""The picture of a space: principal components, and names that can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqloom.errors import UsageError
from seqloom.explaining.charts import save_chart
from seqloom.explaining.word_space import (
    SIDE,
    Frame,
    Projection,
    placed_labels,
    principal_axes,
    space_chart,
)


def test_the_axes_are_those_of_the_covariance() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 6)) * [5, 3, 1, 1, 0.5, 0.1]
    found = principal_axes(vectors)
    values, axes = np.linalg.eigh(np.cov(vectors.T))
    assert found.shares == pytest.approx(values[::-1][:2] / values.sum())
    expected = (vectors - vectors.mean(axis=0)) @ axes[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(found.points), np.abs(expected), atol=1e-9)
    for turned in (vectors + 7, np.concatenate([vectors, vectors])[:30]):
        np.testing.assert_allclose(principal_axes(turned).points, found.points, atol=1e-9)
    line = principal_axes(np.outer(np.arange(4.0), [1, 2, 2]))
    assert line.shares == pytest.approx((1, 0))
    np.testing.assert_allclose(line.points[:, 0], [-4.5, -1.5, 1.5, 4.5], atol=1e-9)
    for wrong in (vectors[:1], np.ones((4, 3))):
        with pytest.raises(UsageError, match="a picture of a space needs"):
            principal_axes(wrong)


@pytest.mark.parametrize("seed", range(5))
def test_no_name_lies_on_another_or_outside(seed: int) -> None:
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(150, 2))
    labels = ["x" * int(length) for length in draw.integers(1, 28, size=150)]
    sides, frame = placed_labels(points, labels), Frame.around(points)
    boxes = []
    for (x, y), label, side in zip(
        (points - frame.low) * SIDE / frame.side, labels, sides, strict=True
    ):
        assert 0 <= x <= SIDE
        assert 0 <= y <= SIDE
        if side:
            width = 6.6 * len(label)
            begin = x + 5 if side == "right" else x - 5 - width
            boxes.append((begin, y - 6.6, begin + width, y + 6.6))
    assert 10 < len(boxes) < 150
    for at, one in enumerate(boxes):
        assert one[2] <= SIDE
        for other in boxes[:at]:
            apart = (
                one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
            )
            assert apart


def test_a_page_holds_all_it_needs_and_no_name_leaves_its_place(tmp_path: Path) -> None:
    names = ["</script><script>alert(1)</script>", "king", "queen\u202e", "a" * 60]
    points = Projection(np.array([[0.0, 0], [1, 1], [2, 0], [1, -1]]), (0.7, 0.2))
    chart = space_chart(
        points, names, title="Words", groups=["a", "a", "b", "b"], group_name="kind"
    )
    save_chart(chart, tmp_path / "space.html")
    page = (tmp_path / "space.html").read_text("utf-8")
    assert "</script><script>alert" not in page
    assert "default-src 'none'" in page
    assert "src=" not in page.split("<body>")[0]
    assert "\u202e" not in page
    save_chart(chart, tmp_path / "space.svg")
    svg = (tmp_path / "space.svg").read_text("utf-8")
    for text in ("axis 1 (70% of the variance)", "king", "kind", "Words"):
        assert f">{text}<" in svg
    with pytest.raises(UsageError, match="colours can be told apart"):
        space_chart(
            Projection(np.zeros((11, 2)), (1, 0)),
            ["a"] * 11,
            title="",
            groups=[str(at) for at in range(11)],
        )
