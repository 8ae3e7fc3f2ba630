"""Rows cut into documents, against a cut by hand."""

from __future__ import annotations

import random

import pytest
import torch

from seqloom.layers.recurrent.document_rows import Segments, cut_rows

PAD, BOS = 0, 1


def cut_by_hand(row: list[int], *, joined: bool) -> tuple[list[list[int]], list[list[int]]]:
    """The pieces of a row, and where each of their tokens stands in it."""
    pieces: list[list[int]] = [[]]
    places: list[list[int]] = [[]]
    for at, token in enumerate(row):
        if token == PAD:
            continue
        if token == BOS and pieces[-1] and not joined:
            pieces.append([])
            places.append([])
        pieces[-1].append(token)
        places[-1].append(at)
    return pieces, places


def drawn_rows(seed: int, rows: int = 5, steps: int = 9) -> list[list[int]]:
    generator = random.Random(seed)
    return [generator.choices([PAD, BOS, 2, 3], weights=[2, 2, 3, 3], k=steps) for _ in range(rows)]


def cut(rows: list[list[int]], *, joined: bool) -> Segments:
    return cut_rows(torch.tensor(rows), PAD, None if joined else BOS)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_those_of_a_cut_by_hand_and_go_back_where_they_were(
    seed: int, joined: bool
) -> None:
    rows = drawn_rows(seed)
    rows[seed % 5] = [PAD] * 9
    found = cut(rows, joined=joined)
    pieces = [cut_by_hand(row, joined=joined) for row in rows]
    flat = [piece for parts, _ in pieces for piece in parts]
    longest = max(map(len, flat))
    assert found.tokens.tolist() == [piece + [PAD] * (longest - len(piece)) for piece in flat]
    assert found.first is not None
    counts = torch.tensor([len(parts) for parts, _ in pieces])
    assert found.last.tolist() == (counts.cumsum(0) - 1).tolist()
    assert found.first.tolist() == (counts.cumsum(0) - counts).tolist()
    begins = [not joined and parts[0][:1] == [BOS] for parts, _ in pieces]
    assert (
        found.starts_document if found.starts_document is not None else torch.zeros(5).bool()
    ).tolist() == begins

    numbered = torch.arange(1.0, found.tokens.numel() + 1).view(*found.tokens.shape, 1)
    back = found.to_rows(numbered, torch.Size([5, 9]))[..., 0].tolist()
    expected = [[0.0] * 9 for _ in rows]
    piece = 0
    for row, (_, places) in enumerate(pieces):
        for of_piece in places:
            for step, at in enumerate(of_piece):
                expected[row][at] = piece * longest + step + 1
            piece += 1
    assert back == expected


@pytest.mark.parametrize(
    "rows",
    [[[1, 2, 3], [1, 2, 0]], [[2, 3, 2], [1, 0, 0]], [[0, 0, 0], [2, 2, 0]], [[], []]],
    ids=["begin", "one begins", "one is empty", "no steps"],
)
def test_rows_of_one_document_from_the_left_on_stay_as_they_are(rows: list[list[int]]) -> None:
    tokens = torch.tensor(rows, dtype=torch.long)
    found = cut_rows(tokens, PAD, BOS)
    assert found.first is None
    assert found.tokens is tokens
    outputs = torch.randn(*tokens.shape, 2)
    assert found.to_rows(outputs, tokens.shape) is outputs


def test_a_token_that_begins_no_document_is_no_cut_where_documents_are_joined() -> None:
    found = cut_rows(torch.tensor([[1, 2, 1, 3]]), PAD, None)
    assert found.first is None
    assert found.starts_document is None
