"""Surprise, lens, back-off, knock-out and induction: each against the model itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import INPUTS, SENTENCE, opened

from seqloom.errors import UsageError
from seqloom.explaining.studies.head_studies import induction_scores
from seqloom.layers.transformer.blocks import SelfAttention
from seqloom.protocols import target_log_probs

WRITING = [name for name in INPUTS if name.startswith(("text-", "translation-"))]
LENS = ["text-gpt", "text-gpt-bpe", "translation-transformer", "translation-t5"]


def shown(name: str, show: str, **options: Any) -> Any:
    return opened(name).explain(INPUTS[name], show=show, **options).numbers


@pytest.mark.parametrize("name", [name for name in WRITING if name.startswith("text-")])
def test_surprisal_is_what_score_says(name: str) -> None:
    model: Any = opened(name)
    texts = ("the red",) if name == "text-gpt-rotary" else INPUTS[name]
    found: Any = model.explain(texts, show="surprisal").numbers
    (scored,) = model.score(texts, tokens=True)
    table = scored.table[: len(found["tokens"])]
    assert [one.token for one in table] == found["tokens"]
    np.testing.assert_allclose([one.surprisal for one in table], found["surprisal"], atol=1e-4)
    for said, one in zip(found["expected"], table, strict=True):
        assert (one.rank == 1) == said.startswith(f"{one.token} ") or one.rank <= 3


@pytest.mark.parametrize("name", LENS)
def test_the_last_layer_of_the_lens_is_the_model(name: str) -> None:
    found, plain = shown(name, "lens"), shown(name, "surprisal")
    last = np.array(found["log_prob_of_text"])[-1]
    bits = -last / np.log(2)
    written = [bit for bit, token in zip(bits, found["tokens"], strict=True) if token]
    count = len(plain["surprisal"])
    ends = bits[len(bits) - count :] if name.startswith("translation") else bits[:count]
    np.testing.assert_allclose(ends, plain["surprisal"], atol=1e-5)
    assert len(written) == len(found["predicted"][0])
    assert np.abs(np.diff(found["probabilities"], axis=0)).max() > 1e-6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text-gpt-rotary", "norms after them"),
        ("text-recurrent-lm", "this model is none"),
        ("labels-bert", "does not; see --show"),
    ],
)
def test_the_lens_is_refused_where_it_means_nothing(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shown(name, "lens")


def test_the_orders_of_an_n_gram_add_up_to_the_models_probability() -> None:
    model: Any = opened("text-ngram")
    found = shown("text-ngram", "backoff")
    (row,) = model.run.tokenizer.encode([SENTENCE])
    tokens = torch.tensor([[1, *row]])
    log_probs, _ = target_log_probs(model.model, tokens[:, :-1], tokens[:, 1:], None)
    np.testing.assert_allclose(found["probabilities"], log_probs[0].exp(), rtol=1e-6)
    for p, levels, used in zip(
        found["probabilities"], found["levels"], found["order_used"], strict=True
    ):
        assert sum(level["added"] for level in levels) == pytest.approx(p, rel=1e-6)
        assert [level["order"] for level in levels] == [3, 2, 1]
        assert all(0 < level["passed_down"] <= 1 for level in levels)
        assert used == max(level["order"] for level in levels if level["share"])
        for level in levels:
            assert level["history_known"] == (level["words_after"] > 0)
    unknown = opened("text-ngram").explain("zzz zzz cat", show="backoff").numbers
    assert unknown["order_used"][1:] == [1, 1]
    with pytest.raises(UsageError, match="of an n-gram model"):
        shown("text-gpt", "backoff")


@pytest.mark.parametrize("name", ["text-gpt", "labels-bert", "translation-transformer"])
def test_a_head_whose_output_is_not_read_is_not_missed(name: str) -> None:
    model = opened(name).model
    layer = next(one for one in model.modules() if isinstance(one, SelfAttention))
    part = "encoder" if name.startswith("translation") else "self"
    before = np.array(shown(name, "knockout")["falls"][part])
    kept = layer.output.weight.detach().clone()
    width = kept.shape[1] // layer.heads
    try:
        with torch.no_grad():
            layer.output.weight[:, width : 2 * width] = 0
        after = np.array(shown(name, "knockout")["falls"][part])
    finally:
        with torch.no_grad():
            layer.output.weight.copy_(kept)
    assert abs(before[0, 1]) > 1e-7
    assert after[0, 1] == pytest.approx(0, abs=1e-12)
    assert abs(after[0, 0]) > 1e-7


def test_a_head_that_looks_everywhere_alike_has_the_mean_of_1_by_position() -> None:
    model: Any = opened("text-gpt").model
    found = opened("text-gpt").explain(show="induction").numbers
    assert np.array(found["scores"]).shape == (model.config.layers, model.config.heads)
    layer = next(one for one in model.modules() if isinstance(one, SelfAttention))
    kept = (
        layer.query_key_value.weight.detach().clone(),
        layer.query_key_value.bias.detach().clone(),
    )
    ids = torch.randint(16, model.config.vocabulary_size, (3, 5))
    try:
        with torch.no_grad():
            layer.query_key_value.weight.zero_()
            layer.query_key_value.bias.zero_()
        scores, alike = induction_scores(model, lambda tokens: model(tokens, None), ids, [1])
    finally:
        with torch.no_grad():
            layer.query_key_value.weight.copy_(kept[0])
            layer.query_key_value.bias.copy_(kept[1])
    assert alike == pytest.approx(np.mean([1 / (at + 1) for at in range(6, 11)]))
    np.testing.assert_allclose(scores[0], alike, rtol=1e-6)
    with pytest.raises(UsageError, match="leave it out"):
        opened("text-gpt").explain("a text", show="induction")
    with pytest.raises(UsageError, match="has none"):
        opened("text-recurrent-lm").explain(show="induction")
