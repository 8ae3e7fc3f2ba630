"""The conditional random field beside all sequences of tags, counted out."""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from seqloom.layers.crf import CRF, forbidden_transitions
from seqloom.shapes import IGNORE
from seqloom.testing.tensors import draw_parameters

LABELS = 3
MASK = torch.tensor(
    [
        [True, True, True, True],
        [True, True, False, False],
        [False, True, False, True],  # padding anywhere
        [True, False, False, False],
        [False, False, False, False],
    ]
)
BIO = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


class Case(NamedTuple):
    crf: CRF
    emissions: Tensor
    tags: Tensor


def case(names: tuple[str, ...] = (), labels: int = LABELS) -> Case:
    crf = CRF(labels, names).double()
    draw_parameters(crf)
    draw = torch.Generator().manual_seed(1)
    emissions = torch.randn(*MASK.shape, labels, dtype=torch.float64, generator=draw)
    return Case(
        crf,
        emissions.masked_fill(~MASK[..., None], torch.nan),
        torch.randint(labels, MASK.shape, generator=draw),
    )


def score(crf: CRF, emissions: Tensor, tags: tuple[int, ...]) -> Tensor:
    """s(x, y) of one row without padding, as it is written in the paper."""
    steps = [e[tag] for e, tag in zip(emissions, tags, strict=True)] + [
        crf.between[a, b] for a, b in pairwise(tags)
    ]
    return torch.stack([crf.start[tags[0]], *steps, crf.end[tags[-1]]]).sum()


def sequences(crf: CRF, emissions: Tensor) -> dict[tuple[int, ...], Tensor]:
    return {
        tags: score(crf, emissions, tags)
        for tags in product(range(emissions.shape[1]), repeat=len(emissions))
    }


def true_rows(emissions: Tensor) -> list[tuple[int, Tensor]]:
    """(row, its emissions without padding) of rows that are not empty."""
    return [(row, emissions[row][MASK[row]]) for row in range(len(MASK)) if bool(MASK[row].any())]


def test_the_loss_is_that_of_all_sequences() -> None:
    crf, emissions, tags = case()
    losses = crf.losses(emissions, MASK, tags)
    for row, alone in true_rows(emissions):
        scores = sequences(crf, alone)
        expected = (
            torch.stack([*scores.values()]).logsumexp(0)
            - scores[tuple(tags[row][MASK[row]].tolist())]
        )
        torch.testing.assert_close(losses[row], expected)
    assert losses[-1].item() == 0  # nothing to say


def test_probabilities_of_all_sequences_sum_to_one() -> None:
    crf, emissions, _ = case()
    every = torch.tensor([*product(range(LABELS), repeat=4)])
    rows = emissions[:1].expand(len(every), -1, -1)
    losses = crf.losses(rows, torch.ones(len(every), 4, dtype=torch.bool), every)
    torch.testing.assert_close((-losses).exp().sum(), torch.ones((), dtype=torch.float64))


def test_a_tag_that_is_not_known_may_be_any() -> None:
    crf, emissions, tags = case()
    tags[0, 1] = tags[1, 0] = IGNORE
    losses = crf.losses(emissions, MASK, tags)
    for row in (0, 1):
        each = [
            crf.losses(emissions, MASK, tags.where(tags != IGNORE, tag))[row]
            for tag in range(LABELS)
        ]
        torch.testing.assert_close((-losses[row]).exp(), sum((-loss).exp() for loss in each))
    unknown = crf.losses(emissions, MASK, torch.full_like(tags, IGNORE))
    torch.testing.assert_close(unknown, torch.zeros_like(unknown))


def test_the_gradient_is_right_and_no_padding_reaches_it() -> None:
    crf, emissions, tags = case()
    parts = []
    for row, alone in true_rows(emissions):
        scores = sequences(crf, alone)
        parts.append(
            torch.stack([*scores.values()]).logsumexp(0)
            - scores[tuple(tags[row][MASK[row]].tolist())]
        )
    parameters = [*crf.parameters()]
    got = torch.autograd.grad(crf.losses(emissions, MASK, tags).sum(), parameters)
    torch.testing.assert_close(got, torch.autograd.grad(torch.stack(parts).sum(), parameters))
    clean = emissions.nan_to_num().requires_grad_()
    # which are changed where they are
    assert torch.autograd.gradcheck(lambda e, *_: crf.losses(e, MASK, tags), (clean, *parameters))


@pytest.mark.parametrize("names", [(), BIO])
@torch.no_grad()
def test_viterbi_finds_the_best_allowed_sequence(names: tuple[str, ...]) -> None:
    crf, emissions, _ = case(names, len(names) or LABELS)
    tags = crf.decode(emissions, MASK)
    assert torch.equal(tags == -1, ~MASK)
    found_illegal = False
    for row, alone in true_rows(emissions):
        scores = {tags: float(value) for tags, value in sequences(crf, alone).items()}
        allowed = {tags: value for tags, value in scores.items() if legal(names, tags)}
        assert tuple(tags[row][MASK[row]].tolist()) == max(allowed, key=allowed.__getitem__)
        found_illegal |= max(allowed.values()) < max(scores.values())
    assert found_illegal == bool(names)  # or the constraint was not tried


@pytest.mark.parametrize("names", [(), BIO])
@torch.no_grad()
def test_marginals_are_sums_over_allowed_sequences(names: tuple[str, ...]) -> None:
    crf, emissions, _ = case(names, len(names) or LABELS)
    marginals = crf.marginals(emissions, MASK)
    assert float(marginals[~MASK].abs().sum()) == 0
    for row, alone in true_rows(emissions):
        weights = {
            tags: float(value.exp())
            for tags, value in sequences(crf, alone).items()
            if legal(names, tags)
        }
        expected = torch.zeros(alone.shape, dtype=torch.float64)
        for tags, weight in weights.items():
            expected[torch.arange(len(tags)), list(tags)] += weight / sum(weights.values())
        torch.testing.assert_close(marginals[row][MASK[row]], expected)


def legal(names: tuple[str, ...], tags: tuple[int, ...]) -> bool:
    """IOB2: I-x follows B-x or I-x."""
    before = "O"
    for name in (names[tag] for tag in tags) if names else ():
        if name.startswith("I-") and before not in ("B-" + name[2:], name):
            return False
        before = name
    return True


def test_what_may_not_follow_in_bioes() -> None:
    names = ("B-X", "I-X", "E-X", "S-X", "B-Y", "E-Y", "O")
    never = forbidden_transitions(names)
    start = [name for name, value in zip(names, never.start, strict=True) if value]
    end = [name for name, value in zip(names, never.end, strict=True) if value]
    after = {
        a: [b for b, value in zip(names, row, strict=True) if not value]
        for a, row in zip(names, never.between, strict=True)
    }
    assert start == ["I-X", "E-X", "E-Y"]
    assert end == ["B-X", "I-X", "B-Y"]
    free = ["B-X", "S-X", "B-Y", "O"]
    assert after == {
        "B-X": ["I-X", "E-X"],
        "I-X": ["I-X", "E-X"],
        "B-Y": ["E-Y"],
        "E-X": free,
        "S-X": free,
        "E-Y": free,
        "O": free,
    }


def test_tags_that_are_no_spans_are_free() -> None:
    for part in forbidden_transitions(("NOUN", "VERB", "X", "I", "Ex-a", "E", "")):
        assert float(part.sum()) == 0


@torch.no_grad()
def test_no_places_and_large_scores() -> None:
    crf, emissions, tags = case()
    assert crf.losses(emissions[:, :0], MASK[:, :0], tags[:, :0]).tolist() == [0] * len(MASK)
    assert (
        crf.decode(emissions[:, :0], MASK[:, :0]).shape
        == crf.marginals(emissions[:, :0], MASK[:, :0]).shape[:2]
        == (len(MASK), 0)
    )
    large = crf.float().losses(1000 * emissions.float(), MASK, tags)
    assert bool(large.isfinite().all())


def test_low_precision_around_it_does_not_reach_it() -> None:
    crf, emissions, tags = case()
    crf = crf.float()
    plain = crf.losses(emissions.float(), MASK, tags)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(crf.losses(emissions.float(), MASK, tags), plain)


def test_constraints_are_not_saved() -> None:
    assert sorted(CRF(5, BIO).state_dict()) == ["between", "end", "start"]
