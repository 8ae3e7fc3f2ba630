"""Words and whole texts as points: the vectors are those that the model goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import INPUTS, opened

from seqloom.errors import UsageError
from seqloom.explaining.word_space import principal_axes
from seqloom.protocols import next_logits
from seqloom.tasks.explain.space import read_points

TEXTS = ["the red dog sees a cat", "a green bird", "the old house", "the park likes the boat"]
PAIRS = {"labels-gpt", "similar-recurrent", "similar-bert-tuned", "questions-bert", "questions-t5"}
ONE_TEXT = [name for name in INPUTS if name not in PAIRS | {"choices-gpt", "text-ngram"}]
POOLED = ["labels-bag", "labels-bert", "labels-convolution", "labels-recurrent"]


@pytest.mark.parametrize("name", [one for one in ONE_TEXT if one != "text-mixture"])
def test_the_texts_of_every_family_have_points(name: str) -> None:
    texts = ["the red", "a dog", "the cat"] if "bpe" in name else TEXTS
    found = opened(name).explain(texts, show="projection").numbers
    assert found["names"] == texts
    assert np.isfinite(found["points"]).all()
    assert 0 < sum(found["shares_of_variance"]) <= 1 + 1e-9
    vectors = torch.stack([opened(name).text_vector(text).detach().double() for text in texts])
    np.testing.assert_allclose(principal_axes(vectors.numpy()).points, found["points"], atol=1e-9)


@pytest.mark.parametrize("name", POOLED)
def test_the_vector_of_a_text_is_what_the_head_reads(name: str) -> None:
    model: Any = opened(name)
    with torch.no_grad():
        scores = model.encoder.head.score(model.text_vector(TEXTS[0]))
    (answer,) = model.predict([TEXTS[0]])
    probabilities = scores.softmax(dim=-1)
    best = max(answer["probabilities"], key=answer["probabilities"].get)
    assert float(probabilities.max()) == pytest.approx(answer["probabilities"][best], abs=1e-6)


@pytest.mark.parametrize("name", ["text-gpt", "text-recurrent-lm-adaptive"])
def test_the_vector_of_a_text_predicts_what_follows(name: str) -> None:
    model: Any = opened(name)
    (ids,) = model.run.tokenizer.encode([TEXTS[0]])
    with torch.no_grad():
        expected, _ = next_logits(model.model, torch.tensor([[1, *ids]]), None)
        found = model.model.output.logits(model.text_vector(TEXTS[0])[None])
    torch.testing.assert_close(found, expected)


def test_words_have_the_rows_of_the_embedding_and_unknown_ones_are_said() -> None:
    model: Any = opened("text-gpt")
    vectors, kept = model.word_table(["dog", "zzz", "cat", "house"])
    assert kept == [0, 2, 3]
    ids = [one for (one,) in model.run.tokenizer.encode(["dog", "cat", "house"])]
    np.testing.assert_allclose(vectors, model.model.embedding.weight[ids].detach().numpy())
    explained = model.explain("dog, zzz, cat, house", show="words")
    assert explained.numbers["names"] == ["dog", "cat", "house"]
    assert explained.numbers["left_out"] == ["zzz"]
    assert any("zzz" in line for line in explained.lines())
    with pytest.raises(UsageError, match="makes no vector"):
        opened("text-ngram").explain(TEXTS, show="projection")
    with pytest.raises(UsageError, match="no embedding"):
        opened("text-ngram").explain("a,b", show="words")


def test_a_file_has_names_and_a_column_that_colours_them(tmp_path: Path) -> None:
    model = opened("text-gpt")
    for name, mark in (("words.tsv", "\t"), ("words.csv", ",")):
        path = tmp_path / name
        path.write_text(f"word{mark}kind\ndog{mark}animal\ncat{mark}animal\nhouse{mark}thing\n")
        found = model.explain([str(path)], show="words", column="kind").numbers
        assert (found["names"], found["groups"]) == (
            ["dog", "cat", "house"],
            ["animal", "animal", "thing"],
        )
        with pytest.raises(UsageError, match="--column must be one of word, kind"):
            model.explain([str(path)], show="words", column="colour")
    plain = tmp_path / "plain.txt"
    plain.write_text("dog\ncat\nhouse\n")
    assert model.explain([str(plain)], show="words").numbers["groups"] is None


def test_a_quotation_mark_is_part_of_a_line_and_not_of_a_cell(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text('"Good day," said he.\nShe said "no".\n')
    points = read_points([str(tmp_path / "texts.txt")], None, commas=False)
    assert points.names == ['"Good day," said he.', 'She said "no".']
    (tmp_path / "texts.csv").write_text('text,kind\n"one, ""two""\nthree",a\nfour,b\n')
    points = read_points([str(tmp_path / "texts.csv")], "kind", commas=False)
    assert points.names == ['one, "two"\nthree', "four"]
    assert points.groups == ["a", "b"]
