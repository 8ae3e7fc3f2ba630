"""Attention rollout, beside its definition and its limits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from seqloom.explaining.charts import save_chart
from seqloom.explaining.patch_attention import patch_panels, rollout


def test_rollout_is_its_definition() -> None:
    weights = torch.rand(
        3, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).softmax(-1)
    first, second, third = (
        weights[at].mean(0) / 2 + torch.eye(5, dtype=torch.float64) / 2 for at in range(3)
    )
    torch.testing.assert_close(rollout(weights), (third @ second @ first)[0, 1:])


def test_who_looks_only_at_a_patch_sees_it_through_every_layer() -> None:
    """[CLS] that looks at patch 3 alone keeps half of itself in each layer; one that looks at itself sees
    nothing."""
    weights = torch.eye(5, dtype=torch.float64).repeat(4, 2, 1, 1)
    assert rollout(weights).tolist() == [0.0] * 4
    weights[:, :, 0] = torch.tensor([0.0, 0, 0, 1, 0], dtype=torch.float64)
    assert rollout(weights).tolist() == [0, 0, 1 - 0.5**4, 0]


@pytest.mark.parametrize(
    ("height", "width", "cells"), [(6, 4, (6, 4)), (224, 224, (56, 56)), (100, 30, (50, 30))]
)
def test_a_picture_is_drawn_as_cells(
    height: int, width: int, cells: tuple[int, int], tmp_path: Path
) -> None:
    pytest.importorskip("altair")
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[0, 0] = (255, 16, 1)
    save_chart(
        patch_panels(pixels, {f"head {at}": np.eye(3) for at in range(5)}, title="a"),
        tmp_path / "a.json",
    )
    drawn = json.loads((tmp_path / "a.json").read_text())
    assert [len(row["hconcat"]) for row in drawn["vconcat"]] == [4, 2]
    data = drawn["vconcat"][0]["hconcat"][0]["data"]
    values = data["values"] if "values" in data else drawn["datasets"][data["name"]]
    assert (len(values), len(values[0]["value"])) == cells
    assert values[0]["value"][:2] == ["#ff1001", "#000000"]
