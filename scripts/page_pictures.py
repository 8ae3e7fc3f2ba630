"""Pictures of every view of the page at three widths, to be looked at.

    python -m scripts.page_pictures FOLDER [--models NAME...] [--widths 360 800 1280] [--dark]

Of the stored models that the tests of the page use. Says of each view where it is wider than the window, and,
where axe is installed (pip install axe-playwright-python), what it finds. The exit status is 1 where there
was any of that.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from tests.serving.chromium import CHROMIUM, FIELDS, answered, violations, visit
from tests.tasks.explain.subjects import RUNS, SENTENCE

from seqloom.serving.server import serving
from seqloom.workflows.train import train

MORE = {"words": "red, cat, dog, park, bird", "texts": "a dog\na red cat\nthe park"}
SHOWN: dict[str, dict[str, str]] = {
    **FIELDS,
    "text-recurrent-lm": {"text": SENTENCE},
    "translation-t5": {"text": "the red dog"},
    "images-vit": {},
}


def views(page: Any, url: str, model: str) -> Iterator[str]:
    """Shows every view of a model with its answer, one after the other."""
    visit(page, url, model=model)
    for tab in page.evaluate("[...document.querySelectorAll('[role=tab]')].map((one) => one.id)"):
        view = tab.removeprefix("tab-")
        visit(page, url, model=model, view=view, tokens="5", **MORE, **SHOWN[model])
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=list(SHOWN), choices=SHOWN)
    parser.add_argument("--widths", nargs="+", type=int, default=[360, 800, 1280])
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        text, words = Path(place) / "text.txt", Path(place) / "words"
        text.write_text(f"{SENTENCE}\n" * 20)
        settings = ["train.max_steps=3", "train.threads=1", "data.minimum_count=1"]
        train(
            "word-vectors", [str(text)], output_dir=words, model="word2vec:tiny", settings=settings
        )
        folders = [f"{name}={words if name == 'words' else RUNS / name}" for name in options.models]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serving(*folders, device="cpu") as url:
            for width in options.widths:
                page = browser.new_page(
                    viewport={"width": width, "height": 800},
                    color_scheme="dark" if options.dark else "light",
                )
                for model in options.models:
                    for view in views(page, url, model):
                        name = f"{model}-{view}-{width}"
                        page.screenshot(path=options.folder / f"{name}.png", full_page=True)
                        for problem in problems(page, width):
                            count += 1
                            print(f"{name}: {problem}", flush=True)
                page.close()
        browser.close()
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
