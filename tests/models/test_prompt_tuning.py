"""A frozen model with trained vectors before its input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.laws.conftest import PROMPTED, PROMPTED_LMS, made
from torch import Tensor

from seqloom.models.prompt_tuning import PromptTuned, prompt_tuned
from seqloom.protocols import EncoderDecoder, read_source
from seqloom.testing.tensors import assert_close
from seqloom.text.special_tokens import BOS, PAD

SOURCE = torch.tensor([[4, 3, 6, 2], [5, 2, PAD, PAD]])
TOKENS = torch.tensor([[BOS, 3, 3, 6], [PAD, BOS, 4, 5]])
WORDS = (5, 4, 4)
"""What a prompt begins as."""
KINDS = (*PROMPTED, *PROMPTED_LMS)


def whole(kind: str) -> Any:
    """The model that is frozen, as it is without a prompt."""
    model = copy.deepcopy(made(kind).model)
    name = model.embedding_name
    setattr(model.base, name, model.base.get_submodule(name).table)
    return model.base


def answers(model: Any, source: Tensor = SOURCE, tokens: Tensor = TOKENS) -> list[Tensor]:
    """Logits after a source, and of a language model also from scratch."""
    after_source = model(tokens[:, 2:], read_source(model, source))[0]
    if isinstance(model, EncoderDecoder):
        return [after_source]
    return [after_source, model(tokens, None)[0][tokens != PAD]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_prompt_changes_no_bit(kind: str) -> None:
    before = answers(whole(kind))
    after = answers(prompt_tuned(whole(kind), 0))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_words_is_a_text_that_begins_with_them(kind: str) -> None:
    base = whole(kind)
    prompted = prompt_tuned(whole(kind), len(WORDS)).double().begin_with(WORDS)
    words = torch.tensor([WORDS, WORDS])
    longer = torch.cat([words, SOURCE], dim=1)
    assert_close(answers(prompted)[0], answers(base, longer)[0])
    if kind in PROMPTED_LMS:
        tokens = torch.cat([TOKENS[:1, :1], words[:1], TOKENS[:1, 1:]], dim=1)
        logits = base(tokens, None)[0]
        assert_close(prompted(TOKENS[:1], None)[0], logits[:, len(WORDS) :])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_training_changes_the_prompt_alone(kind: str) -> None:
    model: Any = copy.deepcopy(made(kind).model)
    before = {name: tensor.clone() for name, tensor in model.base.state_dict().items()}
    prompt = model.prompt.weight.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.train()
    assert not model.base.training
    logits = torch.cat([part.flatten() for part in answers(model)])
    torch.autograd.backward(logits.exp().sum())
    optimizer.step()
    changed = [
        name for name, one in model.base.state_dict().items() if not torch.equal(one, before[name])
    ]
    assert all(name.endswith("embedding.prompt.weight") for name in changed)
    assert not torch.equal(model.prompt.weight, prompt)
    assert list(model.state_dict()) == ["prompt.weight"]


def test_a_row_that_begins_without_a_bos_reads_the_prompt_before_its_first_token() -> None:
    """Also where the first call holds padding only."""
    model: PromptTuned = made("prompted gpt").model
    whole_row = model(torch.tensor([[3, 4, 6]]), None)[0]
    _, state = model(torch.tensor([[PAD, PAD]]), None)
    assert_close(model(torch.tensor([[PAD, 3, 4, 6]]), state)[0][:, 1:], whole_row)


def test_an_id_beyond_the_prompt_is_never_hidden() -> None:
    model: Any = made("prompted t5").model
    last = model.config.vocabulary_size + model.length - 1
    model.base.encode(torch.tensor([[last]]))
    with pytest.raises(IndexError):
        model.base.encode(torch.tensor([[last + 1]]))
