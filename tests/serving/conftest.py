"""Small random models of each task, served on a port of loopback for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.serving.chromium import CHROMIUM, FIELDS, opened_page
from tests.tasks.explain.subjects import RUNS, SENTENCE

from seqloom.config import DataConfig, RunConfig
from seqloom.models import model_family
from seqloom.runs.write_run import write_finished_run
from seqloom.serving.limits import ServerLimits
from seqloom.serving.server import serving
from seqloom.text.special_tokens import EOS, SPECIAL_IDS, UNK
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.train import train

TEXTS = ["a dog runs in the park", "the cat sleeps at night", "zwei Häuschen 🐕 犬 für Bären"] * 4
LIMITS = ServerLimits(header_seconds=0.5, body_seconds=0.5, new_tokens=400, prompt_tokens=600)
SMALL: dict[str, Any] = {"width": 24, "heads": 2, "layers": 2, "context": 64}
"""Sizes of a GPT."""


def write_random_run(
    folder: Path, task: str, name: str, kind: str = "bytes", **fields: Any
) -> Path:
    """A run folder of a model with random weights, far from uniform."""
    tokenizer = train_tokenizer(TEXTS, kind, 300, "none")
    config_class, model_class, _ = model_family(name)
    never = [one for one in SPECIAL_IDS.forbidden if one != UNK or not tokenizer.has_unknown]
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "suppressed_ids": tuple(never)}
    torch.manual_seed(0)
    model = model_class(config_class(**sizes, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.35)
        if name == "gpt":
            model.get_parameter("embedding.weight")[EOS] *= 0.3
    run = RunConfig(
        task=task,
        output_dir=str(folder),
        model={"name": name, "size": "tiny", **fields},
        data=DataConfig(train=("data.tsv",)),
    )
    folder.mkdir(parents=True)
    write_finished_run(folder, run, model, tokenizer, [], None)
    return folder


QUICK = ["train.max_steps=3", "train.evaluate_every=3", "train.threads=1", "train.batch_rows=4"]


def trained(folder: Path, task: str, model: str, data: str, *settings: str) -> Path:
    path = folder.with_suffix(".tsv" if "\t" in data else ".txt")
    path.write_text(data)
    train(task, [str(path)], output_dir=folder, model=model, settings=[*QUICK, *settings])
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> run folder."""
    place = tmp_path_factory.mktemp("runs")
    labelled = "label\ttext\n"
    for number in range(12):
        labelled += f"good\ta fine film {number}\nbad\ta dull film {number}\n"
    return {
        "org/small": write_random_run(place / "gpt", "text-generation", "gpt", **SMALL),
        "pairs": write_random_run(
            place / "pairs",
            "translation",
            "t5",
            width=24,
            heads=2,
            encoder_layers=1,
            decoder_layers=1,
        ),
        "labels": trained(place / "labels", "text-classification", "bag_of_words:tiny", labelled),
    }


@pytest.fixture(scope="session")
def url(folders: dict[str, Path]) -> Iterator[str]:
    """A server of all of them."""
    places = [f"{name}={folder}" for name, folder in folders.items()]
    with serving(*places, limits=LIMITS, device="cpu") as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of every kind of model that the page shows."""
    stored = [name for name in [*FIELDS, "text-recurrent-lm", "images-vit"] if name != "words"]
    place = tmp_path_factory.mktemp("kinds")
    words, text = place / "words", place / "text.txt"
    text.write_text(f"{SENTENCE}\n" * 20)
    settings = ["train.max_steps=3", "train.threads=1", "data.minimum_count=1"]
    train("word-vectors", [str(text)], output_dir=words, model="word2vec:tiny", settings=settings)
    folders = [f"words={words}", *(f"{name}={RUNS / name}" for name in stored)]
    with serving(*folders, limits=LIMITS, device="cpu") as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Skips where there is none."""
    playwright_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright_api.sync_playwright() as playwright:
        # the sandbox needs rights that a container does not give
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened_page(browser, server) as opened:
        yield opened
