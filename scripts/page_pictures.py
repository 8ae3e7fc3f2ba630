"""Pictures of every view of the page at three widths, to be looked at.

    python -m scripts.page_pictures FOLDER [--models NAME...] [--widths 360 800 1280] [--dark]
    python -m scripts.page_pictures FOLDER --sheets docs/images/page

Of the stored models that the tests of the page use. Says of each view where it is wider than the window, and,
where axe is installed (pip install axe-playwright-python), what it finds. The exit status is 1 where there
was any of that. With --sheets only one of each kind of view, and its widths side by side at half their size
as a picture of few colours, which docs/page-views.md shows.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from tests.serving.chromium import CHROMIUM, FIELDS, answered, violations, visit
from tests.serving.test_chat import talker
from tests.tasks.explain.subjects import RUNS, SENTENCE

from seqloom.serving.server import serving
from seqloom.workflows.train import train

MORE = {"words": "red, cat, dog, park, bird", "texts": "a dog\na red cat\nthe park"}
SHOWN: dict[str, dict[str, str]] = {
    **FIELDS,
    "text-recurrent-lm": {"text": SENTENCE},
    "translation-t5": {"text": "the red dog"},
    "images-vit": {},
    "talker": {"text": "the dog"},
    "text-gpt+text-ngram": {"text": SENTENCE},
}
"""Model, or two side by side -> what is typed into its views."""
KEPT = (
    "text-gpt-write",
    "text-gpt-surprise",
    "text-gpt+text-ngram-surprise",
    "text-gpt-beams",
    "talker-chat",
    "text-ngram-backoff",
    "text-recurrent-lm-gates",
    "text-gpt-attention",
    "text-gpt-heads",
    "text-gpt-lens",
    "text-gpt-knockout",
    "text-gpt-induction",
    "translation-seq2seq-write",
    "labels-bert-answer",
    "labels-bert-attribution",
    "choices-gpt-answer",
    "similar-recurrent-answer",
    "tags-recurrent-answer",
    "questions-bert-answer",
    "masks-bert-answer",
    "words-answer",
    "vectors-bert-words",
    "vectors-bert-answer",
    "vectors-bert-projection",
    "images-vit-answer",
    "images-vit-attention",
    "images-vit-attribution",
)
"""One of each kind of view."""
LONGEST = 2400
"""Rows of a picture that a sheet shows."""
COLOURS = 96


def views(page: Any, url: str, shown: str, wanted: Collection[str]) -> Iterator[str]:
    """Shows every view of a model with its answer, one after the other, or those that are wanted."""
    model, _, beside = shown.partition("+")
    visit(page, url, model=model, beside=beside)
    for tab in page.evaluate("[...document.querySelectorAll('[role=tab]')].map((one) => one.id)"):
        view = tab.removeprefix("tab-")
        if wanted and f"{shown}-{view}" not in wanted:
            continue
        fields = {"tokens": "5", **MORE, **SHOWN[shown]}
        visit(page, url, model=model, beside=beside, view=view, **fields)
        if page.query_selector("#field-image"):
            page.set_input_files("#field-image", image_file())
        if not page.query_selector("#answers > *"):
            page.click("#ask")
        answered(page)
        option = page.query_selector("[role=option]:nth-child(3)")
        if option:
            option.click()
            page.wait_for_timeout(100)
        yield view


def image_file() -> dict[str, Any]:
    content = io.BytesIO()
    pixels = np.linspace(0, 255, 64).reshape(8, 8).astype(np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    return {"name": "image.png", "mimeType": "image/png", "buffer": content.getvalue()}


def problems(page: Any, width: int) -> list[str]:
    wide = page.evaluate("document.documentElement.scrollWidth")
    found = [f"is {wide} wide"] if wide > width else []
    if find_spec("axe_playwright_python"):
        found += [name for name, _ in violations(page)]
    return found


def folders_of(models: Sequence[str], place: Path) -> list[str]:
    """The folders of these models, each with its name; some are made here."""
    found = {name: RUNS / name for name in models if "+" not in name}
    if "words" in models:
        (place / "text.txt").write_text(f"{SENTENCE}\n" * 20)
        settings = ["train.max_steps=3", "train.threads=1", "data.minimum_count=1"]
        found["words"] = place / "words"
        train(
            "word-vectors",
            [str(place / "text.txt")],
            output_dir=found["words"],
            model="word2vec:tiny",
            settings=settings,
        )
    if "talker" in models:
        found["talker"] = talker(place)
    return [f"{name}={folder}" for name, folder in found.items()]


def write_sheet(pictures: Sequence[Path], path: Path) -> None:
    """Side by side, on grey."""
    opened = [Image.open(one).convert("RGB") for one in pictures]
    halves = []
    for one in opened:
        rows = min(one.height, LONGEST)
        cut = one.crop((0, 0, one.width, rows))
        halves.append(cut.resize((one.width // 2, rows // 2), Image.Resampling.LANCZOS))
    gap = 12
    width = sum(one.width + gap for one in halves) + gap
    sheet = Image.new("RGB", (width, max(one.height for one in halves) + 2 * gap), "#a0a4aa")
    left = gap
    for one in halves:
        sheet.paste(one, (left, gap))
        left += one.width + gap
    sheet.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=list(SHOWN), choices=SHOWN)
    parser.add_argument("--widths", nargs="+", type=int, default=[1280, 800, 360])
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--sheets", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    wanted = KEPT if options.sheets else ()
    pictures: dict[str, list[Path]] = {}
    count = 0
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serving(*folders_of(options.models, Path(place)), device="cpu") as url:
            for width in options.widths:
                page = browser.new_page(
                    viewport={"width": width, "height": 800},
                    color_scheme="dark" if options.dark else "light",
                )
                for model in options.models:
                    for view in views(page, url, model, wanted):
                        name = f"{model}-{view}"
                        path = options.folder / f"{name}-{width}.png"
                        page.screenshot(path=path, full_page=True)
                        pictures.setdefault(name, []).append(path)
                        for problem in problems(page, width):
                            count += 1
                            print(f"{path.stem}: {problem}", flush=True)
                page.close()
        browser.close()
    if options.sheets:
        options.sheets.mkdir(parents=True, exist_ok=True)
        for name, paths in pictures.items():
            write_sheet(paths, options.sheets / f"{name.replace('+', '-and-')}.png")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
