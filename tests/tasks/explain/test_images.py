"""Images: where [CLS] looks, and which patches an answer needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import RUNS

import seqloom
from seqloom.errors import UsageError
from seqloom.explaining.patch_attention import occluded

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def seen(tmp_path: Path) -> tuple[Any, str]:
    """A classifier, and an image that it can read."""
    model: Any = seqloom.load(RUNS / "images-vit", "cpu")
    config = model.model.config
    size, channels = config.image_size, config.channels
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, channels), np.uint8)
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(tmp_path / "a.png")
    return model, str(tmp_path / "a.png")


def test_a_patch_is_worth_what_the_score_falls_without_it(seen: tuple[Any, str]) -> None:
    model, path = seen
    found = model.explain(path, show="attribution").numbers
    config = model.model.config
    side = config.image_size // config.patch_size
    assert np.shape(found["patches"]) == (side, side)
    target, foil = found["asked"].removeprefix("logit of ").split(" - logit of ")
    assert target == found["label"]
    turned = model.explain(path, show="attribution", target=foil, foil=target).numbers
    np.testing.assert_allclose(turned["patches"], -np.array(found["patches"]), atol=1e-5)
    with pytest.raises(UsageError, match="the label must be one of"):
        model.explain(path, show="attribution", target="no such label")
    with pytest.raises(UsageError, match="only patches can be left out"):
        model.explain(path, show="attribution", method="integrated-gradients")


def test_a_linear_score_falls_by_what_a_patch_holds_and_not_by_what_is_not_read() -> None:
    inputs = torch.arange(36.0, dtype=torch.float64).view(1, 1, 6, 6)
    weights = torch.zeros(6, 6, dtype=torch.float64)
    weights[:2] = 1  # the score reads the upper row of patches alone
    falls = occluded(inputs, 2, lambda images: (images * weights).sum(dim=(1, 2, 3)))
    assert falls.tolist() == [
        [float(inputs[0, 0, :2, at : at + 2].sum()) for at in (0, 2, 4)],
        [0, 0, 0],
        [0, 0, 0],
    ]


def test_one_layer_of_heads(seen: tuple[Any, str]) -> None:
    model, path = seen
    found = model.explain(path, layer=1).numbers
    assert found["layer"] == 1
    assert len(found["heads"]) == model.model.config.heads
    with pytest.raises(UsageError, match="--layer must be 1 to"):
        model.explain(path, layer=99)
    with pytest.raises(UsageError, match="must be attention or attribution"):
        model.explain(path, show="lens")
