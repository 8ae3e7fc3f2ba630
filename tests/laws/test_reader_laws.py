"""The laws that every reader keeps: any encoder under any head.

Alone or in a batch, padded or not, whole or in parts, in any order: the same scores, answers, losses and
gradients.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from seqloom.config import HeadConfig
from seqloom.models import encoder_families
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig
from seqloom.models.heads import HeadKind
from seqloom.protocols import EncodedBatch, Loss
from seqloom.shapes import IGNORE
from seqloom.testing import check_encoder
from seqloom.testing.tensors import draw_parameters

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 20
BAG: dict[str, Any] = {"model_type": "bag_of_words", "width": 6}
MLP: dict[str, Any] = {"model_type": "mlp", "context": 8, "embedding_width": 4, "width": 6}
CONVOLUTION: dict[str, Any] = {
    "model_type": "convolution",
    "embedding_width": 4,
    "windows": (2, 3),
    "maps": 3,
}
RECURRENT: dict[str, Any] = {"model_type": "recurrent", "embedding_width": 4, "width": 3}
LETTERS: dict[str, Any] = {"alphabet": ("a", "b"), "character_width": 3, "character_maps": 2}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "context": 16,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "head": "none",
}
GPT: dict[str, Any] = {"model_type": "gpt", "context": 16, "width": 8, "layers": 1, "heads": 2}
T5: dict[str, Any] = {
    "model_type": "t5",
    "width": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "heads": 2,
    "buckets": 4,
    "furthest": 4,
}
ELMO: dict[str, Any] = {
    "model_type": "elmo",
    "width": 4,
    "projection": 3,
    "embedding_width": 2,
    "output": "none",
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bag of words": BAG,
    "bag of words, bigrams": BAG | {"ngrams": 2, "buckets": 31},
    "bag of words, tf-idf": BAG | {"features": "tf-idf", "first_word": 3},
    "bag of words, binary": BAG | {"features": "binary", "first_word": 3},
    "mlp": MLP,
    "mlp, 2 layers": MLP | {"layers": 2},
    "convolution": CONVOLUTION,
    "convolution, centred, 2 channels": CONVOLUTION | {"centred": True, "channels": 2},
    **{cell: RECURRENT | {"cell": cell} for cell in ("elman", "lstm", "gru-torch")},
    "lstm, one direction, 2 layers": RECURRENT | {"bidirectional": False, "layers": 2},
    "lstm, convolution over letters": RECURRENT | LETTERS | {"characters": "convolution"},
    "mut1, lstm over letters": RECURRENT | LETTERS | {"characters": "recurrent", "cell": "mut1"},
    "bert": BERT,
    "roberta": BERT | {"segments": 1, "position_offset": 2},
    "gpt": GPT,
    "t5": T5,
    "elmo": ELMO,
    "elmo, characters": ELMO
    | {"tokens": "characters", "filters": ((1, 2), (3, 2)), "character_width": 2, "highways": 1},
}


class Head(NamedTuple):
    kind: HeadKind
    options: dict[str, Any]
    rows: tuple[int, ...] = (1, 1, 1, 1)
    """Of each example."""

    @property
    def pairs(self) -> bool:
        return self.kind != "choice" and self.rows[0] == 2


TWO = (2, 2, 2, 2)
HEADS: dict[str, Head] = {
    **{
        way: Head("classification", {"pooling": way})
        for way in ("first", "last", "mean", "max", "sum", "attention")
    },
    "hidden layer": Head("classification", {"hidden_width": 5, "activation": "gelu"}),
    "compared pairs": Head("classification", {"pair": "compared", "pooling": "attention"}, TWO),
    "cosine of a pair": Head("regression", {"pair": "cosine"}, TWO),
    "both orders": Head("regression", {"pair": "both_orders"}, TWO),
    "multi-label": Head("multi-label", {}),
    "numbers": Head("regression", {"pooling": "mean"}),
    "tags": Head("tagging", {"hidden_width": 4}),
    "tags, crf": Head("tagging", {"crf": True}),
    "spans": Head("span", {}),
    "labels and the next token": Head("classification", {"lm_weight": 0.5}),
    "choices and the next token": Head("choice", {"lm_weight": 0.5}, (2, 3, 1, 2)),
    "choices": Head("choice", {"hidden_width": 4}, (2, 3, 1, 2)),
}
TEXTS = [
    [5, 17, 4, 7, 9],
    [16],
    [18, 18, 8, 10, 1, 4, 3],
    [6, 2],
    [19, 17, 19],
    [7, 7, 7, 2],
    [4, 18],
    [5, 5, 16, 19, 3, 2],
]
LETTERS_OF = [[1, 2], [0], [2, 2, 1], [1]]
TAGS = ("B-X", "I-X", "O")
EVERY = (0, 1, 2, 3)


def reader_of(encoder: dict[str, Any], head: Head) -> EncoderWithHead:
    labels = TAGS if head.kind in ("classification", "multi-label", "tagging") else ()
    config = EncoderWithHeadConfig(
        kind=head.kind,
        encoder=encoder | {"vocabulary_size": VOCABULARY},
        head=HeadConfig(**head.options),
        pairs=head.pairs,
        labels=labels,
        vocabulary_size=VOCABULARY,
    )
    model = EncoderWithHead(config).double().eval()
    draw_parameters(model)
    return model


@cache
def made(encoder: str, head: str) -> EncoderWithHead:
    return reader_of(ENCODERS[encoder], HEADS[head])


def fits(encoder: str, head: str) -> bool:
    """Whether such a reader can be made, and trained."""
    family, (kind, options, _) = ENCODERS[encoder]["model_type"], HEADS[head]
    if family != "gpt" and "lm_weight" in options:
        return False
    if family == "mlp":  # one state of the whole text: no words to ask, none to weight
        return kind not in ("tagging", "span") and options.get("pooling") != "attention"
    return True


CASES = [(encoder, head) for encoder, head in product(ENCODERS, HEADS) if fits(encoder, head)]


@pytest.fixture(params=CASES, ids=" / ".join)
def case(request: pytest.FixtureRequest) -> tuple[EncoderWithHead, Head]:
    return made(*request.param), HEADS[request.param[1]]


def batch_of(head: Head, examples: tuple[int, ...] = EVERY, more: int = 0) -> EncodedBatch:
    """Those examples, with `more` columns of padding."""
    begins = torch.tensor(head.rows).cumsum(0) - torch.tensor(head.rows)
    rows = [int(begins[at]) + k for at in examples for k in range(head.rows[at])]
    steps = max(len(TEXTS[row]) for row in rows) + more
    tokens = torch.full((len(rows), steps), -1)
    characters = torch.full((len(rows), steps, 3 + more), -1)
    for at, row in enumerate(rows):
        tokens[at, : len(TEXTS[row])] = torch.tensor(TEXTS[row])
        for step, token in enumerate(TEXTS[row]):
            letters = LETTERS_OF[token % len(LETTERS_OF)]
            characters[at, step, : len(letters)] = torch.tensor(letters)
    owner = torch.tensor(
        [at for at, example in enumerate(examples) for _ in range(head.rows[example])]
    )
    segments = torch.arange(steps).expand_as(tokens) % 2
    places = places_of(head, rows, more)
    return EncodedBatch(
        tokens, segments, characters, owner, places, targets_of(head, examples, places.shape[1])
    )


def places_of(head: Head, rows: list[int], more: int) -> Tensor:
    """Of tags and spans every other token; of the row of one token none is a word."""
    if head.kind not in ("tagging", "span"):
        return torch.zeros(len(rows), 0, dtype=torch.long)
    each = [
        []
        if head.kind == "tagging" and len(TEXTS[row]) == 1
        else list(range(0, len(TEXTS[row]), 2))
        for row in rows
    ]
    width = max(map(len, each)) + more
    return torch.tensor([row + [-1] * (width - len(row)) for row in each], dtype=torch.long).view(
        len(rows), width
    )


def targets_of(head: Head, examples: tuple[int, ...], places: int) -> Tensor:
    if head.kind == "regression":
        return torch.tensor([0.5, -1.0, torch.nan, 2.0], dtype=torch.float64)[list(examples)]
    if head.kind == "tagging":
        tags = [[0, 1, 2], [], [2, 0, IGNORE, 1], [1]]
        return torch.tensor(
            [tags[at] + [IGNORE] * (places - len(tags[at])) for at in examples], dtype=torch.long
        ).view(len(examples), places)
    every: dict[HeadKind, list[Any]] = {
        "classification": [0, 2, IGNORE, 1],
        "multi-label": [[0, 1, 1], [0, 0, 0], [IGNORE] * 3, [1, IGNORE, 1]],
        "span": [[1, 2], [0, 0], [IGNORE, IGNORE], [0, 0]],
        "choice": [1, IGNORE, 0, 0],
    }
    return torch.tensor([every[head.kind][at] for at in examples])


def trained(model: EncoderWithHead) -> dict[str, Tensor]:
    """All of the head but the bias of a GPT's, which stays 0, and the embedding below it."""
    encoder: Any = model.encoder
    return {name: one for name, one in model.head.named_parameters() if one.requires_grad} | {
        "embedding": encoder.embedding.weight
    }


class Answers(NamedTuple):
    scores: Tensor
    probabilities: Tensor
    predictions: Tensor


@torch.no_grad()
def answers(model: EncoderWithHead, batch: EncodedBatch) -> Answers:
    scores = model(batch)
    return Answers(
        scores, model.head.probabilities(scores, batch), model.head.predictions(scores, batch)
    )


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal as far as `expected` goes, and nothing beyond: padding of places and options."""
    if actual.dim() > 1 and actual.shape[1] > expected.shape[1]:
        assert bool((actual[:, expected.shape[1] :] <= 0).all())  # -inf, 0, -1
        actual = actual[:, : expected.shape[1]]
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def compare(
    head: Head, one: Answers, batch: EncodedBatch, other: Answers, expected: EncodedBatch
) -> None:
    """The answers of a batch beside those of another with less padding."""
    if head.kind == "tagging":  # scores at no place mean nothing
        one = one._replace(scores=one.scores.masked_fill((batch.places < 0)[..., None], -torch.inf))
        other = other._replace(
            scores=other.scores.masked_fill((expected.places < 0)[..., None], -torch.inf)
        )
    for mine, theirs in zip(one, other, strict=True):
        same(mine, theirs)


def test_batched_is_alone(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case
    batch = batch_of(head)
    together = answers(model, batch)
    for at in EVERY:
        mine = Answers(*(part[at : at + 1] for part in together))
        alone = batch_of(head, (at,))
        compare(
            head,
            mine,
            batch._replace(places=batch.places[at : at + 1]),
            answers(model, alone),
            alone,
        )


def test_padding_changes_nothing(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case
    batch, longer = batch_of(head), batch_of(head, more=3)
    compare(head, answers(model, longer), longer, answers(model, batch), batch)
    losses = [model.loss(each) for each in (batch, longer)]
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-10)


def test_what_stands_at_padding_is_never_read(case: tuple[EncoderWithHead, Head]) -> None:
    """Not even nan, forward or back."""
    model, head = case
    batch = batch_of(head)
    hidden = model.read(batch).detach()
    poisoned = hidden.masked_fill((batch.tokens < 0)[..., None], torch.nan)

    def run(states: Tensor) -> tuple[Tensor, list[Tensor]]:
        states = states.requires_grad_()
        scores = model.head(states, batch)
        loss = model.head.loss(scores, batch, 0.1)
        *grads, d_states = torch.autograd.grad(
            loss.total, [*(one for one in model.head.parameters() if one.requires_grad), states]
        )
        return scores, [*grads, d_states]

    torch.testing.assert_close(run(poisoned), run(hidden))


def test_a_batch_in_parts_is_the_whole(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case

    def run(examples: tuple[int, ...]) -> tuple[Loss, list[Tensor]]:
        loss = model.loss(batch_of(head, examples), 0.1)
        return loss, list(torch.autograd.grad(loss.total, [*trained(model).values()]))

    whole, gradient = run(EVERY)
    parts = [run((0,)), run((1, 2)), run((3,))]
    torch.testing.assert_close(sum(loss.total for loss, _ in parts), whole.total)
    assert (
        sum(int(loss.count) for loss, _ in parts)
        == int(whole.count)
        == {"tagging": 7}.get(head.kind, 3)
    )
    for mine, *theirs in zip(gradient, *(each for _, each in parts), strict=True):
        torch.testing.assert_close(sum(theirs), mine, rtol=1e-8, atol=1e-10)


def test_examples_in_another_order(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case
    order = (2, 0, 3, 1)
    batch, other = batch_of(head), batch_of(head, order)
    mine, theirs = answers(model, batch), answers(model, other)
    compare(
        head,
        Answers(*(part[list(order)] for part in mine)),
        batch._replace(places=batch.places[list(order)]),
        theirs,
        other,
    )


def test_all_of_the_head_is_trained(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case
    gradients = torch.autograd.grad(model.loss(batch_of(head)).total, [*trained(model).values()])
    untrained = [
        name
        for name, each in zip(trained(model), gradients, strict=True)
        if not bool(each.abs().sum() > 0)
    ]
    # one number more for all options or steps changes no softmax over them
    assert [
        name
        for name in untrained
        if not (head.kind in ("span", "choice") and name == "output.bias")
    ] == []


def test_a_saved_reader_answers_the_same(case: tuple[EncoderWithHead, Head]) -> None:
    model, head = case
    saved = model.state_dict()
    assert {name.split(".")[0] for name in saved} == {"encoder", "head"}
    other = EncoderWithHead(model.config).double().eval()
    other.load_state_dict(saved)
    torch.testing.assert_close(
        answers(other, batch_of(head)), answers(model, batch_of(head)), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("encoder", "head"),
    [
        (encoder, head)
        for encoder, head in product(ENCODERS, ("attention", "max", "last", "tags, crf", "tags"))
        if fits(encoder, head)
    ],
)
def test_an_empty_text_disturbs_nobody(encoder: str, head: str) -> None:
    model, batch = made(encoder, head), batch_of(HEADS[head])
    before = answers(model, batch)
    places, targets = batch.places.clone(), batch.targets.clone()
    tokens = batch.tokens.clone()
    tokens[1] = places[1] = -1
    targets[1] = IGNORE
    batch = batch._replace(tokens=tokens, places=places, targets=targets)
    after = answers(model, batch)
    others = [0, 2, 3]
    for mine, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(mine[others], theirs[others], rtol=1e-9, atol=1e-10)
    gradients = torch.autograd.grad(model.loss(batch).total, [*trained(model).values()])
    assert all(bool(each.isfinite().all()) for each in gradients)


@pytest.mark.parametrize(
    "name", [name for name, fields in ENCODERS.items() if "characters" not in fields]
)
def test_every_encoder_keeps_the_laws_of_encoders(name: str) -> None:
    check_encoder(made(name, "mean").encoder)


def test_every_family_is_under_law() -> None:
    assert {encoder["model_type"] for encoder in ENCODERS.values()} == set(encoder_families())
