"""Encoders with a head as ONNX graphs: their texts get the answers that they get here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import seqloom
from seqloom.errors import UsageError
from seqloom.workflows.onnx import export_onnx
from seqloom.workflows.train import train

onnxruntime = pytest.importorskip("onnxruntime")
WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "Ünïcode"]
TEXTS = ["good film", "bad", "the plot was bad bad", "", "unseen words 日本", "good " * 40]


def trained(place: Path, model: str, task: str = "text-classification", *settings: str) -> Path:
    random = Random(1)
    rows = []
    for number in range(80):
        text = " ".join(random.choices(WORDS, k=random.randint(1, 6)))
        label = ";".join(word for word in ("good", "bad") if word in text) or "none"
        second = f",{number / 10}" if task == "sentence-similarity" else f",{label}"
        rows.append(text + (f",{text}{second}" if task == "sentence-similarity" else second))
    header = "text,second,score" if task == "sentence-similarity" else "text,label"
    (place / "d.csv").write_text("\n".join([header, *rows]) + "\n")
    train(
        task,
        [str(place / "d.csv")],
        output_dir=place / "run",
        model=model,
        settings=["train.max_steps=8", "train.threads=1", *settings],
        progress=lambda _: None,
    )
    return place / "run"


def through_onnx(folder: Path, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """All texts in one call, without seqloom."""
    from tokenizers import Tokenizer

    about = json.loads((folder / "onnx.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    before, after = about["row"]["prefix"], about["row"]["suffix"]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    rows = [[*before, *one.ids, *after] for one in encoded]
    tokens = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    (answers,) = session.run(None, {"tokens": tokens})
    labels = session.get_modelmeta().custom_metadata_map["labels"]
    assert json.loads(labels) == about["labels"]
    return list(answers)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("bag_of_words:tiny", ()),
        ("bag_of_words:tiny", ("data.label_separator=;", "model.ngrams=2")),
        ("convolution:tiny", ()),
        ("recurrent:tiny", ("model.cell=lstm",)),
        ("recurrent:tiny", ("model.cell=gru", "head.pooling=attention", "model.layers=2")),
    ],
)
def test_texts_get_the_answers_that_they_get_here(
    model: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    run = trained(tmp_path, model, "text-classification", *settings)
    written = export_onnx(str(run), str(tmp_path / "out"))
    assert float(str(written["largest_difference"])) < 1e-4
    loaded: Any = seqloom.load(run)
    labels = loaded.run.model.config.labels
    texts = [text for text in TEXTS if text]
    known = [one["probabilities"] for one in loaded.predict(texts)]
    for found, expected in zip(through_onnx(tmp_path / "out", texts), known, strict=True):
        here = [expected[label] for label in labels]
        assert found == pytest.approx(here, abs=1e-5)


def test_the_program_in_the_read_me_runs(tmp_path: Path) -> None:
    run = trained(tmp_path, "bag_of_words:tiny")
    export_onnx(str(run), str(tmp_path / "out"))
    text = (tmp_path / "out" / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert program is not None
    ran = subprocess.run(
        [sys.executable, "-c", program[1]],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() in ("good", "bad", "none", "good;bad")


def test_what_reads_several_rows_for_an_answer_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, "bag_of_words:tiny", "sentence-similarity")
    with pytest.raises(UsageError, match="of pairs"):
        export_onnx(str(run), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
