"""Which tokens were replaced: as ElectraForPreTraining of transformers says, by a folder of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.workflows.encoders import TEXTS, saved

import seqloom
from seqloom.cli import main
from seqloom.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("electra")
    model = saved(place, hf.ElectraForPreTraining)
    tokenizer = hf.AutoTokenizer.from_pretrained(place)
    with torch.no_grad():
        scores = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
        # about half of the tokens are found
        model.discriminator_predictions.dense_prediction.bias -= scores.median()
    model.save_pretrained(place)
    return place


def test_probabilities_are_those_of_transformers(folder: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    theirs: Any = hf.ElectraForPreTraining.from_pretrained(folder)
    texts = [*TEXTS, ""]
    answers = seqloom.load(folder, "cpu").replaced(texts)
    for text, tokens in zip(texts, answers, strict=True):
        encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        spans = encoded.pop("offset_mapping")[0].tolist()[1:-1]
        with torch.no_grad():
            expected = theirs(**encoded).logits[0, 1:-1].sigmoid().tolist()
        assert [[one.begin, one.end] for one in tokens] == spans
        assert [one.replaced for one in tokens] == pytest.approx(expected, abs=1e-5)


def test_the_command_marks_what_was_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, ""]) + "\n", "utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(["predict", str(folder), str(path)])
    lines = capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit, match="0"):
        main(["predict", str(folder), str(path), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.replace("[", "").replace("]", "") for line in lines] == [*TEXTS, ""]
    for line, answer in zip(lines, found, strict=True):
        marked = answer["text"]
        for token in reversed(answer["tokens"]):
            if token["replaced"] > 0.5:
                begin, end = token["begin"], token["end"]
                marked = f"{marked[:begin]}[{marked[begin:end]}]{marked[end:]}"
        assert line == marked
    assert any("[" in line for line in lines)


def test_what_it_cannot_do_is_said(folder: Path) -> None:
    model = seqloom.load(folder, "cpu")
    with pytest.raises(UsageError, match="is measured with its generator, which this folder has"):
        model.evaluate(["texts.txt"])
    with pytest.raises(UsageError, match="a model of replaced-token cannot generate"):
        model.generate("the dog")
    with pytest.raises(DataError, match=r"texts:2: .*at most 16 tokens, marks counted, but has"):
        model.replaced(["the dog", "the dog " * 100])
