"""Heat maps of heads: each weight in the cell of its layer, head, target and source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqloom.errors import UsageError
from seqloom.explaining.charts import save_chart
from seqloom.explaining.heat_maps import MOST_CELLS, head_heat_maps, pooled

# (layers, heads, target, source)
WEIGHTS = np.random.default_rng(0).dirichlet([1.0] * 4, size=(2, 3, 2))


def test_each_weight_has_its_cell(tmp_path: Path) -> None:
    chart = head_heat_maps(WEIGHTS, ["ein", "Hund", "läuft", "</s>"], ["a", "dog"])
    rows = next(iter(chart.to_dict()["datasets"].values()))
    assert len(rows) == 2 * 3 * 2
    for row in rows:
        assert row["source"] == [0, 1, 2, 3]
        np.testing.assert_allclose(
            row["weight"], WEIGHTS[row["layer"] - 1, row["head"] - 1, row["target"]], atol=6e-4
        )
    assert {(row["layer"], row["head"], row["target"]) for row in rows} == {
        (a, b, c) for a in (1, 2) for b in (1, 2, 3) for c in (0, 1)
    }
    save_chart(chart, tmp_path / "heads.svg")
    content = (tmp_path / "heads.svg").read_text("utf-8")
    for text in ("layer 1", "layer 2", "head 3", "Hund", "dog"):
        assert f">{text}<" in content
    assert content.count('stroke="white"') == WEIGHTS.size


def test_many_words_share_cells_that_hold_the_largest_weight() -> None:
    weights = np.random.default_rng(1).random((3, 4, 201, 201))
    chart = head_heat_maps(weights, ["a"] * 201, ["b"] * 201)
    rows = next(iter(chart.to_dict()["datasets"].values()))
    cells = sum(len(row["weight"]) for row in rows)
    assert MOST_CELLS / 2 < cells <= MOST_CELLS
    small = np.arange(12.0).reshape(1, 1, 3, 4)
    assert pooled(small, 2).tolist() == [[[[5, 7], [9, 11]]]]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"must be \(layers, heads, target, source\), but are \(2, 4\)"
    ):
        head_heat_maps(WEIGHTS[0, 0], ["a"] * 4, ["b"] * 2)
    with pytest.raises(UsageError, match="transpose"):
        head_heat_maps(WEIGHTS, ["a"] * 2, ["b"] * 4)
    with pytest.raises(UsageError, match="1,024 heads, but there are 100 layers of 11; show one"):
        head_heat_maps(np.zeros((100, 11, 1, 1)), ["a"], ["b"])
    with pytest.raises(UsageError, match=r"weights must be in 0\.\.1"):
        head_heat_maps(WEIGHTS - 2, ["a"] * 4, ["b"] * 2)
