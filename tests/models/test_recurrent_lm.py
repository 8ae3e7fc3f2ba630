"""The recurrent language model: its equations written out, document by document, and the laws of its state.

All in float64, with every weight and bias drawn at random.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.layers.equations import INPUT, WIDTH, close, draw_parameters, stack_written_out
from torch import Tensor, nn

import seqloom.layers.recurrent.stack
from seqloom.errors import UsageError
from seqloom.layers.outputs.maxent import NO_TOKEN, MaxEntOutput
from seqloom.layers.recurrent.cells import CELLS
from seqloom.models.recurrent_lm import (
    ABOUT,
    SIZES,
    RecurrentLM,
    RecurrentLMConfig,
    RecurrentLMState,
)
from seqloom.protocols import NeuralDecodable, detach, select_rows
from seqloom.run_file import parse
from seqloom.runs.new_model import model_config
from seqloom.shapes import IGNORE

PAD, BOS = 0, 1
VOCABULARY = 9
TINY = RecurrentLMConfig(
    vocabulary_size=VOCABULARY,
    embedding_width=INPUT,
    width=WIDTH,
    layers=2,
    dropout=0.0,
    tie_output=False,
)

KINDS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in CELLS},
    "lstm projected": {"projection": 2},
    "gru normalised": {"cell": "gru", "normalisation": "layer"},
    "lstm highway": {"connection": "highway", "layers": 3},
    "residual": {
        "cell": "mut2",
        "connection": "residual",
        "embedding_width": WIDTH,
        "tie_output": True,
    },
    "tied through a map": {"tie_output": True},
    "the last layer in a stack of its own": {
        "last_width": WIDTH,
        "layers": 3,
        "connection": "residual",
    },
    "maxent": {"cell": "elman", "maxent": 4, "maxent_size": 50},
    "maxent of pairs": {"maxent": 2, "maxent_size": 50},
}
SOME: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru, tied through a map": {"cell": "gru", "tie_output": True},
    "last layer narrow": {"cell": "lstm", "last_width": 2},
    "elman, maxent": {"cell": "elman", "maxent": 4, "maxent_size": 50},
}
"""What the laws of the state are tried on, in both ways to treat documents."""

ROWS = [
    [1, 5, 6, 1, 7, 8, 5, 1, 1, 4],
    [5, 6, 7, 1, 4, 4, 3, 8, 5, 6],
    [0, 0, 1, 5, 6, 7, 0, 1, 8, 0],
    [6, 0, 5, 8, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
]
"""Documents that begin, go on, end, are empty; padding left, right and between; a row of nothing."""


def drawn(**options: Any) -> RecurrentLM:
    model = RecurrentLM(replace(TINY, **options)).double().eval()
    draw_parameters(model)
    return model


def carried(model: RecurrentLM, rows: int = len(ROWS)) -> RecurrentLMState:
    """As after other tokens: one row none, the others more."""
    before = torch.tensor([[0, 0, 0], [0, 0, 5], [1, 6, 3], [1, 4, 4], [8, 7, 6]])[:rows]
    return detach(model.read(before, None)[1])  # type: ignore[no-any-return]


def ids(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.long)


def real(tokens: Tensor) -> Tensor:
    return (tokens != PAD)[..., None]


# The equations


def documents_of(row: list[int], *, joined: bool) -> list[list[int]]:
    """The places of each document's tokens in a row."""
    documents: list[list[int]] = [[]]
    for at, token in enumerate(row):
        if token == BOS and documents[-1] and not joined:
            documents.append([])
        if token != PAD:
            documents[-1].append(at)
    return documents


def written_out(
    model: RecurrentLM, rows: list[list[int]], state: RecurrentLMState
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits, 0 at padding, and h (and c), one document of one row at a time."""
    c, joined = model.config, model.config.documents == "joined"
    logits, ends = [], []
    for number, row in enumerate(rows):
        at = [torch.zeros(VOCABULARY, dtype=torch.float64)] * len(row)
        parts = tuple(part[number : number + 1] for part in state.hidden)
        past = (
            []
            if state.past is None
            else [int(token) for token in state.past[number] if token != NO_TOKEN]
        )
        for places in documents_of(row, joined=joined):
            tokens = [row[place] for place in places]
            if tokens[:1] == [BOS] and not joined:
                parts, past = tuple(torch.zeros_like(part) for part in parts), []
            x, after = model.get_parameter("embedding.weight")[tokens][None], list[Tensor]()
            whole = torch.ones(1, len(tokens), dtype=torch.bool)
            for stack in model.stacks if tokens else []:
                states = CELLS[c.cell].state_count
                x, end = stack_written_out(stack, x, whole, parts[len(after) : len(after) + states])
                after += end
            parts = tuple(after) or parts
            for k, place in enumerate(places):
                at[place] = logits_of(model, x[0, k], [*past, *tokens[: k + 1]])
            past += tokens
        logits.append(torch.stack(at))
        ends.append(parts)
    return torch.stack(logits), tuple(torch.cat(parts) for parts in zip(*ends, strict=True))


def logits_of(model: RecurrentLM, h: Tensor, before: list[int]) -> Tensor:
    """From the last layer's h and the document so far."""
    if isinstance(model.to_output, nn.Linear):
        h = model.to_output.weight @ h
    parameters = {
        name.removeprefix("full."): value
        for name, value in model.output.named_parameters()  # type: ignore[attr-defined]
    }
    w = model.get_parameter("embedding.weight") if model.config.tie_output else parameters["weight"]
    logits = w @ h + parameters["bias"]
    if isinstance(model.output, MaxEntOutput):
        for n in range(1, min(model.output.order - 1, len(before)) + 1):
            history = torch.full((1, model.output.order - 1), NO_TOKEN)
            history[0, -n:] = torch.tensor(before[-n:])
            # the hash itself is held to by tests/layers/test_maxent.py
            start = int(model.output.starts(history)[0, n - 1])
            logits = logits + model.output.table[start : start + VOCABULARY]
    return logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("name", KINDS)
def test_logits_states_and_gradients_are_those_of_the_equations(name: str, documents: str) -> None:
    model = drawn(**KINDS[name], documents=documents)
    state, tokens = carried(model), ids(ROWS)
    logits, after = model(tokens, state)
    expected, expected_after = written_out(model, ROWS, state)
    close(logits * real(tokens), expected)
    close(after.hidden, expected_after)
    weights = torch.randn(
        logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    ) * real(tokens)
    ends = torch.stack([part.square().sum() for part in after.hidden]).sum()
    expected_ends = torch.stack([part.square().sum() for part in expected_after]).sum()
    leaves = list(model.parameters())
    found = torch.autograd.grad((logits * weights).sum() + ends, leaves)
    close(found, torch.autograd.grad((expected * weights).sum() + expected_ends, leaves))


def test_nothing_read_yet_is_a_state_of_zeros() -> None:
    model = drawn(maxent=3, maxent_size=50)
    tokens = ids(ROWS)
    start = model.start(len(ROWS))
    assert all(not part.any() for part in start.hidden)
    for mine, its in zip(
        model(tokens, None)[1].hidden, model(tokens, start)[1].hidden, strict=True
    ):
        assert torch.equal(mine, its)
    close(model(tokens)[0], model(tokens, start)[0])


# Laws


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("name", SOME)
def test_what_follows_changes_nothing_before(name: str, documents: str) -> None:
    model = drawn(**SOME[name], documents=documents)
    tokens = ids(ROWS[:2])
    logits, _ = model(tokens, carried(model, 2))
    for at in range(1, tokens.shape[1]):
        for token in (BOS, PAD, 8):
            changed = tokens.clone()
            changed[:, at:] = token
            close(model(changed, carried(model, 2))[0][:, :at], logits[:, :at])
    before_last = tokens.clone()
    before_last[:, 0] = 3
    assert (model(before_last, carried(model, 2))[0] - logits).abs().amax(dim=(0, 2))[0] > 1e-3


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("piece", [1, 2, 3, 7])
@pytest.mark.parametrize("name", SOME)
def test_read_in_pieces_is_read_at_once_also_when_rows_change_places(
    name: str, piece: int, documents: str
) -> None:
    model = drawn(**SOME[name], documents=documents)
    tokens, state = ids(ROWS), carried(model)
    logits, after = model(tokens, state)
    order = torch.tensor([3, 1, 4, 0, 2, 2])
    rows = torch.arange(len(ROWS))
    for start in range(0, tokens.shape[1], piece):
        part = tokens[rows, start : start + piece]
        found, state = model(part, state)
        close(found * real(part), logits[rows, start : start + piece] * real(part))
        if start == 0:
            rows, state = rows[order], select_rows(state, order)
    close(tuple(state), tuple(select_rows(after, rows)))


@pytest.mark.parametrize("name", SOME)
def test_packed_documents_are_those_documents_one_by_one(name: str) -> None:
    """Hidden states, loss and gradients, with padding between."""
    model = drawn(**SOME[name])
    row = [0, 1, 5, 6, 0, 1, 7, 8, 5, 1, 0, 1, 4, 0]
    alone = [[1, 5, 6], [1, 7, 8, 5], [1], [1, 4]]
    targets = [IGNORE, 5, 6, 2, IGNORE, 7, 8, 5, 2, 2, IGNORE, 4, 2, IGNORE]
    hidden, after = model.read(ids([row]))
    loss = model.output.loss(hidden, ids([targets]))
    places = [at for at, token in enumerate(row) if token]
    trained = [target for target in targets if target != IGNORE]
    totals, states, at = [], [], 0
    for document in alone:
        expected, state = model.read(ids([document]))
        close(hidden[:, places[at : at + len(document)]], expected)
        totals.append(model.output.loss(expected, ids([trained[at : at + len(document)]])).total)
        states.append(state)
        at += len(document)
    close(loss.total, torch.stack(totals).sum())
    close(tuple(after), tuple(states[-1]))
    leaves = list(model.parameters())
    close(
        torch.autograd.grad(loss.total, leaves),
        torch.autograd.grad(torch.stack(totals).sum(), leaves),
    )


@pytest.mark.parametrize("documents", ["separate", "joined"])
@pytest.mark.parametrize("name", SOME)
def test_a_row_is_the_same_alone_and_under_any_padding(name: str, documents: str) -> None:
    model = drawn(**SOME[name], documents=documents)
    for row, tokens in enumerate(ROWS[:3]):
        text = [token for token in tokens if token != PAD]
        state = select_rows(carried(model), torch.tensor([row]))
        logits, after = model(ids([text]), state)
        for padded in (
            [0, 0, *text],
            [*text, 0, 0, 0],
            [*text[:2], 0, *text[2:3], 0, 0, *text[3:]],
        ):
            found, found_after = model(ids([padded]), state)
            close(found[:, ids([padded])[0] != PAD], logits)
            close(tuple(found_after), tuple(after))


@pytest.mark.parametrize("documents", ["separate", "joined"])
def test_padding_and_no_steps_leave_the_state(documents: str) -> None:
    model = drawn(maxent=3, maxent_size=50, documents=documents)
    state = carried(model)
    for steps in (0, 1, 4):
        hidden, after = model.read(torch.zeros(len(ROWS), steps, dtype=torch.long), state)
        assert hidden.shape == (len(ROWS), steps, WIDTH + 2)
        close(tuple(after), tuple(state), 0.0, 0.0)


def test_what_begins_a_document_forgets_what_was_carried_and_joined_it_does_not() -> None:
    tokens = ids([[BOS, 5], [PAD, BOS], [4, 5], [BOS, 5], [BOS, 5]])
    for documents, forgets in (("separate", True), ("joined", False)):
        model = drawn(documents=documents)
        found, fresh = model(tokens, carried(model))[0], model(tokens, None)[0]
        same = [
            torch.allclose(found[row, -1], fresh[row, -1], rtol=0, atol=1e-9) for row in range(1, 5)
        ]
        assert same == [forgets, False, forgets, forgets]


def test_a_detached_state_ends_backpropagation() -> None:
    model = drawn()
    _, state = model.read(ids([[BOS, 5, 6]]))
    assert all(part.requires_grad for part in state.hidden)
    cut = detach(state)
    assert isinstance(cut, RecurrentLMState)
    assert not any(part.requires_grad for part in cut.hidden)


def test_torchs_kernel_and_the_driver_agree_on_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, under dropout of the recurrent weights, with gradients."""
    model = drawn(width=16, weight_dropout=0.5).float().train()

    def run() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        hidden, after = model.read(ids(ROWS), None)
        loss = hidden.square().sum() + after.hidden[1].sum()
        learned = [*model.embedding.parameters(), *model.layers.parameters()]
        return hidden, *after.hidden, *torch.autograd.grad(loss, learned)

    fused = run()
    monkeypatch.setattr(seqloom.layers.recurrent.stack, "has_kernel", lambda *_: False)
    close(fused, run(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whole", [False, True], ids=["autocast", "the whole model"])
def test_in_bfloat16_the_history_keeps_its_ids(whole: bool) -> None:
    """It holds whole numbers up to 256 only."""
    model = drawn(vocabulary_size=3000, maxent=3, maxent_size=4000, tie_output=True).float()
    tokens = torch.arange(2993, 3000)[None]
    expected, _ = model(tokens)
    model = model.bfloat16() if whole else model
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not whole):
        hidden, _ = model.read(tokens)
        logits = model.output.logits(hidden)
        found = model.output.log_probs(hidden, tokens)
        loss = model.output.loss(hidden, tokens)
    assert hidden[0, :, -1].tolist() == tokens[0].tolist()
    assert hidden[0, 1:, -2].tolist() == tokens[0, :-1].tolist()
    close(logits.float(), expected, rtol=0.05, atol=0.05)
    close(loss.total, -found.sum(), rtol=1e-3, atol=1e-3)
    torch.autograd.backward(loss.total)


# Dropout

ONLY: dict[str, Any] = {"dropout": 0.0, "input_dropout": 0.0, "output_dropout": 0.0}


def seen(model: RecurrentLM, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """hidden, and what each stack reads."""
    found: list[Tensor] = []
    hooks = [
        stack.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        for stack in model.stacks
    ]
    hidden, _ = model.read(tokens)
    for hook in hooks:
        hook.remove()
    return hidden, found


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("place", ["input_dropout", "output_dropout", "dropout"])
def test_features_are_dropped_where_the_setting_says_and_at_all_steps_alike_where_variational(
    place: str, variational: bool
) -> None:
    torch.manual_seed(0)
    options = ONLY | {
        place: 0.5,
        "embedding_width": 64,
        "width": 48,
        "last_width": 32,
        "variational_dropout": variational,
    }
    model = drawn(**options).train()
    hidden, inputs = seen(model, torch.full((4, 10), 5))
    for name, features in zip(
        ("input_dropout", "dropout", "output_dropout"), (*inputs, hidden), strict=True
    ):
        dropped = features == 0
        assert bool(dropped.any()) == (name == place), name
        if name == place:
            assert dropped.double().mean() == pytest.approx(0.5, abs=0.12)
            assert bool((dropped == dropped[:, :1]).all()) == variational
            assert not torch.equal(dropped[0], dropped[1])


def test_one_setting_drops_at_all_three_places_and_none_in_evaluation() -> None:
    torch.manual_seed(0)
    model = drawn(
        dropout=0.5,
        embedding_width=64,
        width=48,
        last_width=32,
        weight_dropout=0.5,
        embedding_dropout=0.5,
        state_dropout=0.5,
    )
    tokens = torch.full((4, 10), 5)
    first, inputs = seen(model, tokens)
    assert torch.equal(first, seen(model, tokens)[0])
    assert all((features != 0).all() for features in (*inputs, first))
    model.train()
    hidden, inputs = seen(model, torch.arange(2, 9).repeat(4, 1))
    assert all((features == 0).double().mean() > 0.4 for features in (*inputs, hidden))


def test_kept_features_are_scaled() -> None:
    torch.manual_seed(0)
    model = drawn(**ONLY | {"input_dropout": 0.75})
    tokens = ids([[BOS, 5, 6]])
    _, (plain,) = seen(model, tokens)
    _, (found,) = seen(model.train(), tokens)
    kept = found != 0
    close(found[kept], 4 * plain[kept])


@pytest.mark.parametrize("cell", ["lstm", "mut3"])
def test_a_pass_uses_one_masked_weight_and_its_gradient_goes_to_the_weight(cell: str) -> None:
    """In all documents of all rows and at all steps; the second stack's too."""
    model, masked = (
        drawn(cell=cell, last_width=2, weight_dropout=0.5),
        drawn(cell=cell, last_width=2),
    )
    state = carried(masked)
    torch.manual_seed(7)
    hidden, after = model.train().read(ids(ROWS), state)
    torch.manual_seed(7)
    layers = [layer for stack in masked.stacks for layer in stack.stack]
    masks = [nn.functional.dropout(torch.ones_like(layer.weight_h), 0.5) for layer in layers]
    with torch.no_grad():
        for layer, mask in zip(layers, masks, strict=True):
            layer.weight_h.mul_(mask)
    expected, expected_after = masked.read(ids(ROWS), state)
    close(hidden, expected)
    close(tuple(after), tuple(expected_after))
    found = torch.autograd.grad(hidden.square().sum(), list(model.layers.parameters()))
    wanted = torch.autograd.grad(expected.square().sum(), list(masked.layers.parameters()))
    at = iter(masks)
    for (name, _), mine, its in zip(model.layers.named_parameters(), found, wanted, strict=True):
        close(mine, its * next(at) if name.endswith("weight_h") else its)
    torch.testing.assert_close(
        model.eval().read(ids(ROWS), state)[0],
        drawn(cell=cell, last_width=2).read(ids(ROWS), state)[0],
    )


def test_dropped_words_are_dropped_in_all_rows_but_not_from_the_output() -> None:
    torch.manual_seed(1)
    model = drawn(embedding_dropout=0.5, tie_output=True, embedding_width=WIDTH).train()
    tokens = torch.arange(VOCABULARY).repeat(2, 1)[:, 2:]
    _, (inputs,) = seen(model, tokens)
    dropped = (inputs == 0).all(dim=2)
    assert 0 < dropped[0].sum() < VOCABULARY - 2
    assert torch.equal(dropped[0], dropped[1])
    close(inputs[~dropped], 2 * model.get_parameter("embedding.weight")[tokens[~dropped]])
    hidden = torch.ones(WIDTH, dtype=torch.float64)
    close(
        model.output.logits(hidden),
        model.get_parameter("embedding.weight").sum(dim=1) + model.get_parameter("output.bias"),
    )


# Configuration


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"cell": "rnn"}, "cell must be one of elman"),
        ({"cell": "gru", "projection": 3}, "projection needs model.cell=lstm"),
        ({"last_width": 3, "layers": 1}, "last_width needs"),
        ({"last_width": 3, "projection": 2}, "last_width needs"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"weight_dropout": -0.1}, "weight_dropout must be in"),
        ({"embedding_dropout": 1.5}, "embedding_dropout must be in"),
        ({"output_dropout": 1.0}, "output_dropout must be in"),
        ({"maxent": 1}, "maxent must be 2 to 9"),
        ({"maxent": 10}, "maxent must be 2 to 9"),
        ({"maxent": 3, "maxent_size": 8}, "maxent_size must be at least the vocabulary's 9"),
        ({"maxent": 3, "maxent_size": 2**31}, "maxent_size must be at least"),
        ({"bidirectional": True}, "bidirectional"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], problem: str) -> None:
    given = {"vocabulary_size": VOCABULARY, **options}
    with pytest.raises(UsageError, match=problem):
        parse(RecurrentLMConfig, given)


def test_the_smallest_settings_are_taken() -> None:
    config = RecurrentLMConfig(
        vocabulary_size=1,
        embedding_width=1,
        width=1,
        layers=1,
        projection=1,
        dropout=0,
        maxent=2,
        maxent_size=1,
        state_dropout=0.99,
    )
    assert RecurrentLM(config)(torch.ones(1, 1, dtype=torch.long) - 1)[0].shape == (1, 1, 1)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_can_be_made_and_says_what_it_is(size: str) -> None:
    assert list(ABOUT) == list(SIZES)
    with torch.device("meta"):
        model = RecurrentLM(RecurrentLMConfig(vocabulary_size=100, **SIZES[size]))
    assert isinstance(model, NeuralDecodable)
    assert model.carries
    assert model.context is None


@pytest.mark.parametrize("family", ["recurrent_lm", "gpt"])
def test_a_bidirectional_core_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(UsageError, match=r"would read the tokens that are to be predicted"):
        model_config(family, "tiny", 20, {"bidirectional": True})


def test_lstm_2048_2_is_two_layers_of_2048() -> None:
    with torch.device("meta"):
        model = RecurrentLM(RecurrentLMConfig(vocabulary_size=793_471, **SIZES["lstm-2048-2"]))
    assert [layer.width for stack in model.stacks for layer in stack.stack] == [2048, 2048]
    assert model.config.output == "adaptive"


@pytest.mark.parametrize(
    ("size", "vocabulary", "millions"),
    [
        ("zaremba-medium", 10_000, 19.8),
        ("zaremba-large", 10_000, 66.0),
        ("awd-lstm", 33_278, 33.5),
        ("lstm-2048", 793_471, 823.1),
        ("lstm-8192-2", 793_471, 1776.9),
    ],
)
def test_the_papers_sizes_have_the_papers_parameters(
    size: str, vocabulary: int, millions: float
) -> None:
    """As published: 66M of the large one; 33M; 0.83B and 1.8B."""
    with torch.device("meta"):
        model = RecurrentLM(RecurrentLMConfig(vocabulary_size=vocabulary, **SIZES[size]))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(
        millions, rel=5e-3
    )
