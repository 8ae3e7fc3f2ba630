"""A data cache that is not as it was written is built again, whatever has happened to it."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.campaigns.damage import DAMAGES, fits
from tests.data.batching.test_corpus_store import build as build_corpus
from tests.data.batching.test_token_store import build as build_pairs
from tests.data.batching.test_token_store import place_of
from tests.data.images.test_image_store import built as build_images

STORES: dict[str, Callable[[Path], object]] = {
    "pairs": build_pairs,
    "corpus": build_corpus,
    "images": build_images,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", STORES)
def test_every_damaged_file_is_found_and_built_again(
    tmp_path: Path, kind: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    build, rng = STORES[kind], random.Random(7)
    build(tmp_path)
    place = place_of(tmp_path)
    whole = contents(place)
    for name in whole:
        for _ in range(4 if fits(damage, place / name) else 0):
            DAMAGES[damage](place / name, rng)
            if (place / name).is_file() and contents(place) == whole:
                continue  # zeros where zeros were
            caplog.clear()
            build(tmp_path)
            assert contents(place) == whole, name
            assert name in caplog.text
            assert "is built again" in caplog.text


@pytest.mark.parametrize("kind", STORES)
def test_a_whole_cache_is_opened_in_silence(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    STORES[kind](tmp_path)
    written = (place_of(tmp_path) / "meta.json").stat().st_ino
    STORES[kind](tmp_path)
    assert (place_of(tmp_path) / "meta.json").stat().st_ino == written
    assert not caplog.text


@pytest.mark.parametrize("kind", STORES)
def test_something_else_in_the_place_of_a_cache_goes(tmp_path: Path, kind: str) -> None:
    STORES[kind](tmp_path)
    place = place_of(tmp_path)
    whole = contents(place)
    shutil.rmtree(place)
    place.write_text("a file")
    STORES[kind](tmp_path)
    assert contents(place) == whole
