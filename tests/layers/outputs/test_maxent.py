"""Hashed n-gram features, against the same with whole numbers of Python and one weight at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.outputs import maxent as module
from seqloom.layers.outputs.maxent import (
    LARGEST_ID,
    MULTIPLIER,
    NO_TOKEN,
    PRIME,
    MaxEntOutput,
    histories,
    next_past,
)
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.protocols import OutputLayer
from seqloom.shapes import IGNORE

WIDTH, VOCABULARY, ORDER, SIZE = 3, 7, 4, 40
HISTORY = [
    [NO_TOKEN, NO_TOKEN, 1],
    [NO_TOKEN, 1, 5],
    [1, 5, 2],
    [5, 2, 6],
    [5, 2, 6],
    [6, 2, 6],
    [2, 6, 0],
]
"""Of seven positions the last three tokens."""


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def output(order: int = ORDER, size: int = SIZE) -> MaxEntOutput:
    made = MaxEntOutput(FullOutput(WIDTH, VOCABULARY), VOCABULARY, order, size).double()
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return made


def hidden(history: list[list[int]] = HISTORY) -> Tensor:
    return torch.cat(
        [drawn(len(history), WIDTH), torch.tensor(history, dtype=torch.float64)], dim=1
    )


def start_by_hand(tokens: list[int], size: int = SIZE) -> int:
    """Where the block of a history begins; the latest token comes first into the hash."""
    value = 0
    for token in reversed(tokens):
        value = (value + token + 1) * MULTIPLIER % PRIME
    return value % (size - VOCABULARY + 1)


def logits_by_hand(made: MaxEntOutput, of: Tensor) -> Tensor:
    """Autograd goes through each weight alone."""
    rows = []
    for position in of:
        ids = [int(token) for token in position[WIDTH:]]
        found = []
        for word in range(VOCABULARY):
            logit = (made.full.weight[word] * position[:WIDTH]).sum() + (
                0 if made.full.bias is None else made.full.bias[word]
            )
            for length in range(1, made.order):
                history = ids[len(ids) - length :]
                if NO_TOKEN not in history:
                    logit = logit + made.table[start_by_hand(history, len(made.table)) + word]
            found.append(logit)
        rows.append(torch.stack(found))
    return torch.stack(rows)


def close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("order", "size"), [(2, SIZE), (ORDER, SIZE), (ORDER, VOCABULARY), (ORDER, 5000)]
)
def test_logits_and_gradients_are_those_of_the_equation(order: int, size: int) -> None:
    """With a table of one vocabulary all blocks are the same; in one of 40 they overlap."""
    made, inputs = (
        output(order, size),
        hidden([row[ORDER - order :] for row in HISTORY]).requires_grad_(),
    )
    weights = drawn(len(HISTORY), VOCABULARY, seed=9)
    actual, expected = made.logits(inputs), logits_by_hand(made, inputs)
    close(actual, expected)
    leaves = [inputs, *made.parameters()]
    close(
        torch.autograd.grad((actual * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
    )


def test_the_gradient_is_that_of_finite_differences() -> None:
    made = output()
    assert torch.autograd.gradcheck(lambda _: made.logits(hidden()), [made.table])


@pytest.mark.parametrize("chunk", [1, 3, 1024])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_log_probs_and_gradients_however_the_positions_are_cut(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made, inputs = output(), hidden().requires_grad_()
    targets = torch.tensor([3, IGNORE, 2, 6, 0, IGNORE, 1])
    logits = logits_by_hand(made, inputs)
    expected = F.cross_entropy(
        logits, targets, reduction="sum", ignore_index=IGNORE, label_smoothing=smoothing
    )
    total, count = made.loss(inputs, targets, smoothing)
    close(total, expected)
    assert int(count) == 5
    leaves = [inputs, *made.parameters()]
    close(torch.autograd.grad(3 * total, leaves), torch.autograd.grad(3 * expected, leaves))

    chosen = (
        logits.log_softmax(dim=1)
        .gather(1, targets.clamp(min=0)[:, None])[:, 0]
        .masked_fill(targets == IGNORE, 0)
    )
    close(made.log_probs(inputs, targets), chosen.detach())
    close(made.log_probs(inputs.view(1, 7, -1), targets[None]), chosen[None].detach())


def test_a_loss_of_nothing_is_0_and_goes_back() -> None:
    made, inputs = output(), hidden().requires_grad_()
    total, count = made.loss(inputs, torch.full((7,), IGNORE))
    assert total == 0
    assert count == 0
    torch.autograd.backward(total)


def test_all_logits_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    made, seen = output(), list[int]()
    logits = made.logits

    def counted(of: Tensor) -> Tensor:
        seen.append(len(of))
        return logits(of)

    monkeypatch.setattr(made, "logits", counted)
    torch.autograd.backward(made.loss(hidden(), torch.zeros(7, dtype=torch.long)).total)
    made.log_probs(hidden(), torch.zeros(7, dtype=torch.long))
    assert max(seen) == 2


def test_histories_that_share_weights_learn_together() -> None:
    """Two blocks that begin d apart: the word v of the one has the weight of v - d of the other."""
    made = output(order=2, size=VOCABULARY + 3)
    starts = made.starts(torch.arange(VOCABULARY)[:, None])[:, 0].tolist()
    one, other = next(
        (a, b) for a in range(VOCABULARY) for b in range(VOCABULARY) if starts[b] > starts[a]
    )
    apart = starts[other] - starts[one]
    (gradient,) = torch.autograd.grad(made.logits(hidden([[one]]))[0, apart], made.table)
    with torch.no_grad():
        before = made.logits(hidden([[other]]))
        made.table.add_(gradient)
        change = made.logits(hidden([[other]])) - before
    close(change[0], torch.eye(VOCABULARY, dtype=torch.float64)[0])


def test_different_histories_begin_at_places_spread_over_the_table() -> None:
    """Also those of neighbouring ids, and the same ids in another order or number."""
    made = MaxEntOutput(FullOutput(1, 100), 100, 3, 2**20)
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    starts = made.starts(pairs)
    assert len(set(starts[:, 1].tolist())) > 0.99 * len(pairs)
    assert len(set(starts[:100, 0].tolist())) == 100
    filled = torch.histc(starts[:, 1].double(), bins=64, min=0, max=2**20)
    assert filled.min() > 0.5 * filled.mean()
    assert filled.max() < 2 * filled.mean()


def test_the_largest_ids_survive_the_way_as_float32_and_the_hash() -> None:
    made = MaxEntOutput(FullOutput(WIDTH, VOCABULARY), VOCABULARY, ORDER, SIZE)
    torch.nn.init.normal_(made.table)
    ids = torch.tensor([[LARGEST_ID - 1, LARGEST_ID, LARGEST_ID - 2]])
    assert torch.equal(ids.float().long(), ids)
    assert made.starts(ids).tolist() == [
        [start_by_hand(ids[0, 3 - n :].tolist()) for n in (1, 2, 3)]
    ]
    assert int(ids.max()) + 1 + PRIME < 2**63 // MULTIPLIER


def test_histories_and_the_past_are_the_last_tokens() -> None:
    tokens = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0], [0, 0, 0, 0]])
    past = torch.tensor([[NO_TOKEN, NO_TOKEN], [NO_TOKEN, 3], [2, 3]])
    mask = tokens != 0
    assert histories(tokens, past)[0].tolist() == [
        [NO_TOKEN, NO_TOKEN, 5],
        [NO_TOKEN, 5, 6],
        [5, 6, 7],
        [6, 7, 8],
    ]
    assert histories(tokens, past)[1, 0].tolist() == [NO_TOKEN, 3, 5]
    assert next_past(tokens, mask, past).tolist() == [[7, 8], [3, 5], [2, 3]]
    nothing = past[:, :0]
    assert histories(tokens, nothing).tolist() == tokens[..., None].tolist()
    assert next_past(tokens, mask, nothing).shape == (3, 0)


def test_it_is_an_output() -> None:
    made: OutputLayer = output()
    assert made.logits(hidden().view(1, 7, -1)).shape == (1, 7, VOCABULARY)
