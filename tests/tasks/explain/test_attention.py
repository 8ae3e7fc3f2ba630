"""Where a model looks: of every family with attention the weights that it uses, by part, layer and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import INPUTS, opened

from seqloom.errors import UsageError
from seqloom.layers.attention import watched_attention
from seqloom.protocols import NO_REQUEST
from seqloom.tasks.explain.look import Look

PARTS = {
    "labels-bert": ["self"],
    "labels-gpt": ["self"],
    "labels-recurrent": ["pooling"],
    "similar-bert-tuned": ["self"],
    "questions-bert": ["self"],
    "questions-t5": ["encoder"],
    "choices-gpt": ["self"],
    "masks-bert": ["self"],
    "text-gpt": ["self"],
    "text-gpt-bpe": ["self"],
    "text-gpt-rotary": ["self"],
    "translation-seq2seq": ["cross"],
    "translation-transformer": ["encoder", "decoder", "cross"],
    "translation-t5": ["encoder", "decoder", "cross"],
    "vectors-bert": ["self"],
}
CAUSAL = {"labels-gpt", "choices-gpt", "text-gpt", "text-gpt-bpe", "text-gpt-rotary"}


@pytest.mark.parametrize("name", PARTS)
def test_every_part_has_its_maps_and_each_row_sums_to_1(name: str) -> None:
    for part in PARTS[name]:
        seen: Any = opened(name).explain(INPUTS[name], show="attention", part=part).numbers
        assert sorted(seen["parts"]) == sorted(PARTS[name])
        weights = np.array(seen["weights"])
        assert weights.shape[-2:] == (len(seen["target"]), len(seen["source"]))
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        if part == "decoder" or name in CAUSAL:
            assert not np.triu(weights, 1).any()


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in PARTS])
def test_a_model_without_attention_says_so(name: str) -> None:
    if name == "text-mixture":
        pytest.skip("its members may have some")
    with pytest.raises(UsageError, match="must have attention"):
        opened(name).explain(INPUTS[name], show="attention")


@pytest.mark.parametrize("name", ["text-gpt", "translation-transformer", "translation-seq2seq"])
def test_watching_changes_nothing_and_what_is_changed_is_used(name: str) -> None:
    given = opened(name).model_input(INPUTS[name], Look(show="attention"), NO_REQUEST)

    def logits() -> torch.Tensor:
        read: Any = given.read()
        found: torch.Tensor = read[0] if isinstance(read, tuple) else read
        return found

    with torch.no_grad():
        plain = logits()
        with watched_attention(given.model):
            torch.testing.assert_close(logits(), plain)
        with watched_attention(given.model, lambda _, weights: weights * 0):
            assert float((logits() - plain).abs().max()) > 1e-3
        torch.testing.assert_close(logits(), plain, rtol=0, atol=0)


def test_one_head_is_its_map_of_all(tmp_path: Path) -> None:
    model, (text,) = opened("text-gpt"), INPUTS["text-gpt"]
    whole = np.array(model.explain(text).numbers["weights"])
    one = model.explain(text, str(tmp_path / "head.svg"), layer=1, head=2)
    np.testing.assert_allclose(np.array(one.numbers["weights"]), whole[0, 1])
    assert ">Self-attention: layer 1, head 2<" in (tmp_path / "head.svg").read_text("utf-8")
    assert one._repr_html_().startswith("<svg")
    for options, message in (
        ({"layer": 9}, "--layer must be 1 to"),
        ({"head": 9}, "--head must be 1 to"),
        ({"part": "cross"}, "--part must be one of self, but is cross"),
        ({"foil": "dog"}, "--foil changes nothing of --show attention"),
        ({"show": "colours"}, "--show must be one of attention"),
    ):
        with pytest.raises(UsageError, match=message):
            model.explain(text, **options)
