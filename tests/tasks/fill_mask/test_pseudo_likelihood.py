"""Minimal pairs by pseudo-likelihood: as transformers' model has it, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.workflows.encoders import saved

from seqloom.config import DataConfig
from seqloom.errors import UsageError
from seqloom.tasks.language_modeling.score import contrast, pair_scorer

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = [
    ("the cat sleeps", "the cat sleep"),
    ("a dog runs on the mat", "a dog run on the mat"),
    ("the the", "the the"),
    ("a cat, a dog", "cat a dog, a"),
]


@torch.no_grad()
def by_transformers(folder: Path, text: str) -> float:
    tokenizer: Any = hf.AutoTokenizer.from_pretrained(folder)
    model: Any = hf.BertForMaskedLM.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt").input_ids
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        log_probs = model(masked).logits[0, place].log_softmax(-1)
        total += float(log_probs[ids[0, place]])
    return total


def test_pairs_go_by_the_pseudo_likelihood(tmp_path: Path) -> None:
    saved(tmp_path / "bert", hf.BertForMaskedLM)
    texts = [text for pair in PAIRS for text in pair]
    found = list(pair_scorer(str(tmp_path / "bert"))(texts))
    expected = [by_transformers(tmp_path / "bert", text) for text in texts]
    assert [one.log_probability for one in found] == pytest.approx(expected, abs=1e-4)
    # sleep is no word of the vocabulary
    assert [one.unknown for one in found] == [0, 1, 0, 0, 0, 0, 0, 0]
    rows = "".join(json.dumps({"good": a, "bad": b}) + "\n" for a, b in PAIRS)
    (tmp_path / "pairs.jsonl").write_text(rows)
    folders = [str(tmp_path / "bert")] * 2
    for result in contrast(
        folders, [str(tmp_path / "pairs.jsonl")], "good", "bad", None, DataConfig()
    ):
        better = [a > b for a, b in zip(expected[::2], expected[1::2], strict=True)]
        assert (result.hits, result.halves) == ({"pairs": sum(better)}, {"pairs": 1})


def test_a_text_that_is_too_long_is_refused_in_one_line(tmp_path: Path) -> None:
    saved(tmp_path, hf.BertForMaskedLM)
    with pytest.raises(UsageError, match=r"at most 14 tokens to be scored by .*, but one has 20"):
        list(pair_scorer(str(tmp_path))(["the cat", "the " * 20]))
