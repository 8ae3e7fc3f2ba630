"""Heads beside torch's losses and beside answers found by trying all. What holds for any encoder stands in
tests/laws."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.config import HeadConfig
from seqloom.errors import UsageError
from seqloom.models.heads import KINDS, MAX_ANSWER_LENGTH, Head, HeadKind, cross_entropy, make_head
from seqloom.protocols import EncodedBatch
from seqloom.shapes import IGNORE
from seqloom.testing.tensors import draw_parameters

WIDTH, LABELS, STEPS = 4, 3, 6
SETTLED: dict[str, Any] = {
    "pooling": "mean",
    "hidden_width": 0,
    "activation": "tanh",
    "pair": "joined",
}


def head_of(
    kind: HeadKind,
    labels: int = LABELS,
    *,
    pairs: bool = False,
    names: tuple[str, ...] = (),
    **options: Any,
) -> Any:
    head = (
        make_head(kind, HeadConfig(**SETTLED | options), WIDTH, labels, pairs=pairs, names=names)
        .double()
        .eval()
    )
    draw_parameters(head)
    return head


def batch_of(
    targets: Tensor,
    places: Tensor | None = None,
    owner: list[int] | None = None,
    rows: int | None = None,
) -> EncodedBatch:
    rows = len(owner) if owner is not None else rows or len(targets)
    tokens = torch.ones(rows, STEPS, dtype=torch.long)
    return EncodedBatch(
        tokens=tokens,
        segments=tokens * 0,
        characters=torch.zeros(rows, STEPS, 0, dtype=torch.long),
        owner=torch.tensor(owner) if owner is not None else torch.arange(rows),
        places=torch.zeros(rows, 0, dtype=torch.long) if places is None else places,
        targets=targets,
    )


def hidden_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(
        rows, STEPS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


# Losses


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_cost_what_torch_says(smoothing: float) -> None:
    head, targets = head_of("classification"), torch.tensor([0, 2, IGNORE, 1])
    batch = batch_of(targets)
    scores = head(hidden_of(4), batch)
    loss = head.loss(scores, batch, smoothing)
    torch.testing.assert_close(
        loss.total, F.cross_entropy(scores, targets, reduction="sum", label_smoothing=smoothing)
    )
    assert int(loss.count) == 3


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_a_weighted_loss_is_a_sum_of_weights_times_losses(kind: HeadKind) -> None:
    places = torch.tensor([[0, 2, 3], [1, -1, -1]])
    targets = (
        torch.tensor([0, 2])
        if kind == "classification"
        else torch.tensor([[0, 1, 2], [2, IGNORE, IGNORE]])
    )
    head, batch = head_of(kind), batch_of(targets, places)
    scores = head(hidden_of(2), batch)
    count = head.loss(scores, batch).count
    head.set_class_weights(torch.tensor([1.0, 0.5, 3.0]))
    loss = head.loss(scores, batch)
    flat = scores.reshape(-1, LABELS)
    expected = F.cross_entropy(
        flat, targets.flatten(), weight=torch.tensor([1.0, 0.5, 3.0]).double(), reduction="sum"
    )
    torch.testing.assert_close(loss.total, expected)
    assert int(loss.count) == int(count) == (2 if kind == "classification" else 4)
    assert "weights" not in head.state_dict()


def test_several_labels_cost_the_sum_of_each() -> None:
    head, targets = head_of("multi-label"), torch.tensor([[0, 1, 1], [IGNORE] * 3, [1, IGNORE, 0]])
    batch = batch_of(targets)
    scores = head(hidden_of(3), batch)
    known = targets != IGNORE
    expected = F.binary_cross_entropy_with_logits(
        scores[known], targets[known].double(), reduction="sum"
    )
    loss = head.loss(scores, batch)
    torch.testing.assert_close(loss.total, expected)
    assert int(loss.count) == 2
    smoothed = F.binary_cross_entropy_with_logits(
        scores[known], targets[known].double() * 0.8 + 0.1, reduction="sum"
    )
    torch.testing.assert_close(head.loss(scores, batch, 0.2).total, smoothed)
    weights = torch.tensor([2.0, 1.0, 0.5])
    head.set_class_weights(weights)
    each = F.binary_cross_entropy_with_logits(
        scores[known], targets[known].double(), reduction="none"
    )
    torch.testing.assert_close(
        head.loss(scores, batch).total, (each * weights.expand(3, 3)[known]).sum()
    )


def test_numbers_cost_their_squared_error() -> None:
    head, batch = head_of("regression"), batch_of(torch.tensor([1.0, torch.nan, -2.0]))
    scores = head(hidden_of(3), batch)
    loss = head.loss(scores, batch)
    torch.testing.assert_close(loss.total, (scores[0] - 1) ** 2 + (scores[2] + 2) ** 2)
    assert int(loss.count) == 2
    assert head.predictions(scores, batch) is scores


def test_a_span_costs_its_start_and_its_end() -> None:
    places = torch.tensor([[0, 1, 2, 5], [0, 3, -1, -1], [0, 1, 2, -1]])
    head, batch = head_of("span"), batch_of(torch.tensor([[1, 3], [0, 0], [IGNORE, 1]]), places)
    scores = head(hidden_of(3), batch)
    assert torch.equal(scores == -torch.inf, (places < 0)[..., None].expand_as(scores))
    loss = head.loss(scores, batch)
    start, end = scores.log_softmax(1).unbind(-1)
    torch.testing.assert_close(loss.total, -(start[0, 1] + end[0, 3] + start[1, 0] + end[1, 0]))
    assert int(loss.count) == 2
    probabilities = head.probabilities(scores, batch)
    torch.testing.assert_close(probabilities, scores.softmax(1))


def test_a_choice_is_among_the_rows_of_an_example() -> None:
    head, batch = (
        head_of("choice"),
        batch_of(torch.tensor([1, 0, IGNORE]), owner=[0, 0, 1, 1, 1, 2]),
    )
    hidden = hidden_of(6)
    scores = head(hidden, batch)
    each = head.score(hidden.mean(1))[:, 0]
    never = torch.full((2,), -torch.inf, dtype=torch.float64)
    torch.testing.assert_close(
        scores,
        torch.stack([torch.cat([each[:2], never[:1]]), each[2:5], torch.cat([each[5:], never])]),
    )
    loss = head.loss(scores, batch)
    torch.testing.assert_close(
        loss.total, -(each[:2].log_softmax(0)[1] + each[2:5].log_softmax(0)[0])
    )
    assert int(loss.count) == 2
    assert head.predictions(scores, batch).tolist() == [
        int(each[:2].argmax()),
        int(each[2:5].argmax()),
        0,
    ]
    torch.testing.assert_close(head.probabilities(scores, batch), scores.softmax(1))


def test_smoothing_spreads_over_what_can_be() -> None:
    scores = torch.tensor([[1.0, -torch.inf, 2.0]], dtype=torch.float64, requires_grad=True)
    losses = cross_entropy(scores, torch.tensor([2]), 0.3)
    expected = F.cross_entropy(scores[:, [0, 2]], torch.tensor([1]), label_smoothing=0.3)
    torch.testing.assert_close(losses[0], expected)
    assert bool(torch.autograd.grad(losses.sum(), scores)[0].isfinite().all())


def test_where_nothing_is_trained_nothing_is_lost() -> None:
    places = torch.tensor([[0, 1], [0, -1]])
    nothing: dict[HeadKind, Tensor] = {
        "classification": torch.full((2,), IGNORE),
        "multi-label": torch.full((2, LABELS), IGNORE),
        "regression": torch.full((2,), torch.nan),
        "tagging": torch.full((2, 2), IGNORE),
        "span": torch.full((2, 2), IGNORE),
        "choice": torch.full((2,), IGNORE),
    }
    for kind in KINDS:
        for head in (
            (head_of(kind), head_of(kind, crf=True)) if kind == "tagging" else (head_of(kind),)
        ):
            batch = batch_of(nothing[kind], places)
            hidden = hidden_of(2).requires_grad_()
            loss = head.loss(head(hidden, batch), batch, 0.1)
            assert (loss.total.item(), int(loss.count)) == (0, 0), kind
            assert torch.autograd.grad(loss.total, hidden)[0].abs().max().item() < 1e-12


def test_a_crf_counts_words() -> None:
    places = torch.tensor([[0, 2, 3], [1, -1, -1], [-1, -1, -1]])
    targets = torch.tensor([[0, IGNORE, 2], [1, IGNORE, IGNORE], [IGNORE] * 3])
    head, batch = head_of("tagging", crf=True), batch_of(targets, places)
    scores = head(hidden_of(3), batch)
    loss = head.loss(scores, batch)
    torch.testing.assert_close(
        loss.total, head.transitions.losses(scores, places >= 0, targets).sum()
    )
    assert int(loss.count) == 3  # the word whose tag is not known is none of them


# States of pairs


def test_compared_texts() -> None:
    head, batch = (
        head_of("classification", pairs=True, pair="compared"),
        batch_of(torch.tensor([0, 1]), owner=[0, 0, 1, 1]),
    )
    hidden = hidden_of(4)
    u, v = hidden.mean(1)[[0, 2]], hidden.mean(1)[[1, 3]]
    torch.testing.assert_close(
        head(hidden, batch), head.score(torch.cat([u, v, (u - v).abs(), u * v], 1))
    )


def test_the_cosine_of_a_pair_begins_as_the_smallest_and_the_largest_number() -> None:
    """Reimers & Gurevych 2019; nothing is dropped of the one number."""
    head, batch = (
        head_of("regression", pairs=True, pair="cosine", dropout=0.9),
        batch_of(torch.tensor([1.0, 3.0]), owner=[0, 0, 1, 1]),
    )
    hidden = hidden_of(4)
    u, v = hidden.mean(1)[[0, 2]], hidden.mean(1)[[1, 3]]
    cosine = (u * v).sum(1) / (u.norm(dim=1) * v.norm(dim=1))
    with torch.no_grad():
        head.output.bias.zero_()
    head.initialise_bias(torch.tensor([1.0, 5.0, 3.0]))
    torch.testing.assert_close(head.train()(hidden, batch), 1 + 4 * cosine)
    head.initialise_bias(torch.tensor([7.0, 9.0]))  # it is new no more
    torch.testing.assert_close(head(hidden, batch), 1 + 4 * cosine)
    with pytest.raises(UsageError, match=r"head\.pair must not be cosine for classification"):
        head_of("classification", pairs=True, pair="cosine")


def test_both_orders_are_added_and_their_order_is_nothing() -> None:
    head, batch = (
        head_of("regression", pairs=True, pair="both_orders"),
        batch_of(torch.tensor([0.0, 1.0]), owner=[0, 0, 1, 1]),
    )
    hidden = hidden_of(4)
    scores = head(hidden, batch)
    torch.testing.assert_close(
        scores, head.score(hidden.mean(1)[[0, 2]] + hidden.mean(1)[[1, 3]])[:, 0]
    )
    torch.testing.assert_close(head(hidden[[1, 0, 3, 2]], batch), scores)


def test_a_text_alone_is_not_compared() -> None:
    head, batch = head_of("classification", pair="compared"), batch_of(torch.tensor([0, 1]))
    assert head(hidden_of(2), batch).shape == (2, LABELS)


def test_the_hidden_layer() -> None:
    head, batch = (
        head_of("classification", hidden_width=5, activation="relu", pooling="first"),
        batch_of(torch.tensor([0, 1])),
    )
    hidden = hidden_of(2)
    expected = head.output(torch.relu(head.hidden(hidden[:, 0])))
    torch.testing.assert_close(head(hidden, batch), expected)
    names = ["hidden.bias", "hidden.weight", "output.bias", "output.weight"]
    assert sorted(head.state_dict()) == names
    attended = head_of("classification", pooling="attention", hidden_width=5)
    assert sorted(attended.state_dict()) == ["attention.vector", "attention.weight", *names]


def test_dropout_stands_before_both_layers() -> None:
    head = head_of("classification", hidden_width=500, dropout=0.5).train()
    read = torch.ones(400, WIDTH, dtype=torch.float64)
    seen: list[Tensor] = []
    for layer in (head.hidden, head.output):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    head.score(read)
    assert all(0.4 < (each == 0).double().mean().item() < 0.6 for each in seen)
    assert len(seen) == 2


# Answers


def test_labels_are_answered() -> None:
    scores = torch.tensor([[0.1, 2.0, -1.0], [3.0, -0.2, 0.4]], dtype=torch.float64)
    batch = batch_of(torch.tensor([0, 0]))
    one, many = head_of("classification"), head_of("multi-label")
    assert one.predictions(scores, batch).tolist() == [1, 0]
    torch.testing.assert_close(one.probabilities(scores, batch), scores.softmax(1))
    assert many.predictions(scores, batch).tolist() == [[True, True, False], [True, False, True]]
    assert torch.equal(many.probabilities(scores, batch) > 0.5, many.predictions(scores, batch))


def best_span(scores: Tensor) -> list[int]:
    """Of scores `(places, 2)`, by trying all."""
    start, end = scores.unbind(-1)
    spans = [
        (i, j)
        for i in range(len(start))
        for j in range(i, min(i + MAX_ANSWER_LENGTH, len(start)))
        if i or not j
    ]
    return [*max((float(start[i] + end[j]), (i, j)) for i, j in spans)[1]]


@pytest.mark.parametrize("places", [1, 2, 7, 50])
def test_the_best_legal_span_is_answered(places: int) -> None:
    head = head_of("span")
    scores = torch.randn(
        200, places, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(places)
    )
    there = torch.arange(places).expand(200, -1).clone()
    there[::3, max(1, places // 2) :] = -1
    scores = scores.masked_fill((there < 0)[..., None], -torch.inf)
    batch = batch_of(torch.zeros(200, 2, dtype=torch.long), there)
    answered = head.predictions(scores, batch)
    for row in range(200):
        n = int((there[row] >= 0).sum())
        assert answered[row].tolist() == best_span(scores[row, :n])


def test_a_row_without_places_has_no_span() -> None:
    head = head_of("span")
    batch = batch_of(torch.full((2, 2), IGNORE), torch.tensor([[0, 1], [-1, -1]]))
    scores = head(hidden_of(2), batch)
    assert head.predictions(scores, batch)[1].tolist() == [-1, -1]
    assert head.probabilities(scores, batch)[1].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("head", ["tagging", "crf", "span"])
def test_a_row_of_padding_alone_is_never_read(head: Any) -> None:
    made = head_of("tagging", crf=True) if head == "crf" else head_of(head)
    batch = batch_of(torch.tensor([[0, 1], [IGNORE, IGNORE]]), torch.tensor([[0, 1], [-1, -1]]))
    hidden = hidden_of(2)
    hidden[1] = torch.nan
    hidden.requires_grad_()
    loss = made.loss(made(hidden, batch), batch)
    gradients = torch.autograd.grad(loss.total, [hidden, *made.parameters()])
    assert all(bool(each.isfinite().all()) for each in gradients)


def test_tags_of_a_crf_obey_their_names() -> None:
    names = ("B-X", "I-X", "O")
    places = torch.arange(STEPS).expand(20, -1)
    batch = batch_of(torch.full((20, STEPS), IGNORE), places)
    free, bound = (head_of("tagging", crf=True, names=given) for given in ((), names))
    assert sorted(bound.state_dict()) == [
        "output.bias",
        "output.weight",
        "transitions.between",
        "transitions.end",
        "transitions.start",
    ]
    legal = []
    for head in (free, bound):
        with torch.no_grad():
            scores = head(hidden_of(20), batch)
            tags = [
                ["O", *(names[tag] for tag in row)]
                for row in head.predictions(scores, batch).tolist()
            ]
            torch.testing.assert_close(
                head.probabilities(scores, batch).sum(-1),
                torch.ones(20, STEPS, dtype=torch.float64),
            )
        legal.append(all(a != "O" for row in tags for a, b in pairwise(row) if b == "I-X"))
    assert legal == [False, True]


def test_tags_of_texts_without_words() -> None:
    for crf in (False, True):
        head = head_of("tagging", crf=crf)
        batch = batch_of(torch.zeros(2, 0, dtype=torch.long))
        scores = head(hidden_of(2), batch)
        loss = head.loss(scores, batch)
        assert (loss.total.item(), int(loss.count)) == (0, 0)
        assert head.predictions(scores, batch).shape == (2, 0)
        assert head.probabilities(scores, batch).shape == (2, 0, LABELS)


# Refusals


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tagging"])
def test_a_crf_is_for_tags(kind: HeadKind) -> None:
    with pytest.raises(UsageError, match=r"head\.crf must be false"):
        head_of(kind, crf=True)


@pytest.mark.parametrize("kind", ["classification", "multi-label", "tagging"])
def test_no_labels_are_refused(kind: HeadKind) -> None:
    with pytest.raises(UsageError, match="must have labels"):
        head_of(kind, labels=0)


@pytest.mark.parametrize("head", ["regression", "span", "choice", "crf"])
def test_weights_are_for_losses_of_labels(head: Any) -> None:
    made: Head = head_of("tagging", crf=True) if head == "crf" else head_of(head)
    with pytest.raises(UsageError, match=r"head\.class_weights must be none"):
        made.set_class_weights(torch.ones(LABELS))


@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_scores_have_exact_losses(kind: HeadKind) -> None:
    places = torch.tensor([[0, 1, 2], [0, 1, -1]])
    targets: dict[HeadKind, Tensor] = {
        "classification": torch.tensor([0, 1]),
        "multi-label": torch.tensor([[0, 1, 1], [0, 0, 1]]),
        "regression": torch.tensor([0.5, 1.0]),
        "tagging": torch.tensor([[0, 1, 2], [0, 0, IGNORE]]),
        "span": torch.tensor([[1, 2], [0, 0]]),
        "choice": torch.tensor([0, 0]),
    }
    head, batch = head_of(kind).float(), batch_of(targets[kind], places)
    scores = head(hidden_of(2).float(), batch).bfloat16()
    loss = head.loss(scores, batch)
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.total, head.loss(scores.float(), batch).total)
