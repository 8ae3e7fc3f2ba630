"""ELECTRA: its losses beside those of transformers, what is sampled, and what the gradient reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from tests.models.equations import close, drawn
from torch import Tensor
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.interop.export import target_of, their_tensors
from seqloom.models.bert import Bert
from seqloom.models.electra import (
    SIZES,
    Electra,
    ElectraConfig,
    discriminator_loss,
    generator_loss,
    sampled,
)
from seqloom.shapes import IGNORE

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = ElectraConfig(
    vocabulary_size=11,
    context=12,
    width=8,
    layers=2,
    heads=2,
    embedding_width=6,
    generator_fraction=0.5,
    dropout=0.0,
    attention_dropout=0.0,
)
MASK = 4
TEXTS = torch.tensor([[2, 5, 6, 7, 8, 9, 3], [2, 10, 9, 5, 3, -1, -1]])
CHOSEN = torch.tensor([[0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0]]).bool()
INPUTS, TARGETS = TEXTS.masked_fill(CHOSEN, MASK), TEXTS.where(CHOSEN, IGNORE)
# chosen, and left as it is
INPUTS[0, 5] = TEXTS[0, 5]
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])


def made(**changes: Any) -> Electra:
    model: Electra = drawn(Electra(replace(TINY, **changes)))
    return model


def uniform(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(INPUTS.shape, generator=generator, dtype=torch.float64)


def of_transformers(model: Bert, task: str, kind: Any) -> Any:
    """The same weights in a class of transformers."""
    target = target_of("bert", model.config, task)
    content: dict[str, Any] = dict(target.content)
    theirs = kind(hf.ElectraConfig(**content)).double().eval()
    state = their_tensors(model, target)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {
        "electra.embeddings.position_ids",
        "electra.embeddings.token_type_ids",
        "generator_lm_head.weight",
    }
    theirs.tie_weights()
    return theirs


@pytest.mark.parametrize("embedding_width", [6, None])
def test_both_losses_are_those_of_transformers_for_the_same_replacements(
    embedding_width: int | None,
) -> None:
    model = made(embedding_width=embedding_width)
    out = model(INPUTS, TARGETS, uniform(), SEGMENTS)
    read = {"attention_mask": (INPUTS >= 0).long(), "token_type_ids": SEGMENTS}
    generator = of_transformers(model.generator, "fill-mask", hf.ElectraForMaskedLM)
    expected = generator(INPUTS.clamp(min=0), labels=TARGETS, **read).loss
    total, count = generator_loss(out, TARGETS)
    assert int(count) == 5
    close(total / count, expected)
    discriminator = of_transformers(model.discriminator, "replaced-token", hf.ElectraForPreTraining)
    expected = discriminator(out.tokens, labels=out.replaced.long(), **read).loss
    total, count = discriminator_loss(out, INPUTS)
    assert int(count) == 12
    # theirs is in float32, whatever the model is in
    close(total / count, expected.double(), 1e-6)


def test_only_chosen_tokens_are_replaced_and_a_right_sample_counts_as_original() -> None:
    model = made()
    right = 0
    for seed in range(40):
        out = model(INPUTS, TARGETS, uniform(seed))
        assert torch.equal(out.tokens[~CHOSEN], TEXTS.clamp(min=0)[~CHOSEN])
        assert torch.equal(out.replaced, (out.tokens != TEXTS) & CHOSEN)
        right += int((out.tokens == TEXTS)[CHOSEN].sum())
    assert 0 < right < 40 * 5


def test_samples_follow_the_softmax_and_depend_on_nothing_but_the_numbers_drawn() -> None:
    logits = torch.tensor([[0.0, 2.0, -torch.inf, 1.0]]).double()
    drawn_with = (torch.arange(10_000).double() + 0.5) / 10_000
    ids = sampled(logits.expand(10_000, -1), drawn_with)
    shares = torch.bincount(ids, minlength=4) / 10_000
    torch.testing.assert_close(shares.double(), logits.softmax(-1)[0], rtol=0, atol=2e-4)
    # the last number below 1 still gives an id that is possible
    last = torch.tensor([1 - 2**-53]).double()
    for dtype in (torch.float32, torch.bfloat16):
        assert int(sampled(logits.to(dtype), last)) == 3
    model = made()
    alone = model(INPUTS[1:, :5], TARGETS[1:, :5], uniform()[1:, :5]).tokens
    assert torch.equal(model(INPUTS, TARGETS, uniform()).tokens[1:, :5], alone)


def test_nothing_is_back_propagated_through_the_samples() -> None:
    """The loss of the discriminator moves what it shares with the generator, and nothing else of it."""
    model = made()
    shared = {id(one) for one in model.discriminator.parameters()}
    torch.autograd.backward(discriminator_loss(model(INPUTS, TARGETS, uniform()), INPUTS).total)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if name.startswith("discriminator."):
            assert gradient is not None, name
            assert gradient.any(), name
    for name, parameter in model.generator.named_parameters():
        if id(parameter) not in shared:
            assert parameter.grad is None or not parameter.grad.any(), name


def test_the_gradient_of_the_discriminator_is_that_of_a_fixed_text() -> None:
    """The embeddings that both share get no more than a discriminator alone would give them."""
    model = made()
    out = model(INPUTS, TARGETS, uniform())
    torch.autograd.backward(discriminator_loss(out, INPUTS).total)
    shared = model.discriminator.embedding.weight
    assert shared.grad is not None
    together = shared.grad.clone()
    model.zero_grad()
    mask = INPUTS >= 0
    scores = model.discriminator.logits(model.discriminator(out.tokens, mask))[mask]
    wanted = out.replaced[mask].double()
    alone = F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")
    torch.autograd.backward(alone)
    close(together, shared.grad)


def test_generator_and_discriminator_are_both_trained() -> None:
    model = made()
    out = model(INPUTS, TARGETS, uniform())
    both = generator_loss(out, TARGETS).total + discriminator_loss(out, INPUTS).total
    torch.autograd.backward(both)
    assert not [name for name, one in model.named_parameters() if one.grad is None]


def test_embeddings_are_shared_and_blocks_are_not() -> None:
    model = made()
    ours, other = model.discriminator, model.generator
    for name in ("embedding.weight", "positions.embedding.weight", "segments.weight"):
        assert ours.get_parameter(name) is other.get_parameter(name)
    assert ours.embedding_norm is other.embedding_norm
    assert other.output.weight is ours.embedding.weight
    assert other.projection is not ours.projection
    names = {name.partition(".")[0] for name, _ in model.named_parameters()}
    assert names == {"discriminator", "generator"}


@pytest.mark.parametrize(
    ("size", "generator", "millions"),
    [("electra-small", (64, 1, 256), 13.5), ("electra-base", (256, 4, 1024), 109.5)],
)
def test_published_sizes_have_the_published_sizes(
    size: str, generator: tuple[int, int, int], millions: float
) -> None:
    config = ElectraConfig(vocabulary_size=30522, **SIZES[size])
    small = config.generator
    assert (small.width, small.heads, small.feed_forward_width) == generator
    with torch.device("meta"):
        model = Electra(config)
    count = sum(one.numel() for one in model.discriminator.parameters())
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"generator_fraction": 0.0}, "model.generator_fraction must be above 0 and at most 1"),
        ({"generator_fraction": 1.5}, "model.generator_fraction must be above 0 and at most 1"),
        (
            {"width": 32, "heads": 8, "generator_fraction": 0.45},
            "a width that its 4 heads divide, but 0.45 of 32 is 14",
        ),
        ({"heads": 3}, "model.heads must divide model.width"),
        ({"discriminator_weight": 0.0}, "model.discriminator_weight must be above 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(TINY, **changes)
    assert words in str(caught.value)
