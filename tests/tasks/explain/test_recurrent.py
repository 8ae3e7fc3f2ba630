"""The gates that are shown are those of the layer: its state is recomputed from them by the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.explain.subjects import INPUTS, opened

from seqloom.errors import UsageError
from seqloom.explaining.studies.recurrent_states import layer_states
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig

STEPS = 6


def recomputed(values: dict[str, Any]) -> tuple[Any, Any]:
    """(h, what it is by the equations) from the gates and the states before."""
    h, first = values["h"], np.zeros_like(values["h"][:, :1])
    if "c" in values:
        before = np.concatenate([first, values["c"][:, :-1]], axis=1)
        c = values["f"] * before + values["i"] * values["g"]
        np.testing.assert_allclose(values["c"], c, atol=1e-10)
        return h, values["o"] * np.tanh(c)
    before = np.concatenate([first, h[:, :-1]], axis=1)
    return h, (values["z"], before, values["h̃"])


@pytest.mark.parametrize("cell", [name for name in CELLS if not name.startswith("elman")])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_state_recomputed_from_the_gates_is_the_layers(cell: str, bidirectional: bool) -> None:
    torch.manual_seed(0)
    stack = RecurrentStack(RecurrentStackConfig(cell, 3, 4, layers=2, bidirectional=bidirectional))
    stack = stack.double().eval()
    x = torch.randn(1, STEPS, 3, dtype=torch.float64)
    states = layer_states(stack, lambda: stack(x))
    with torch.no_grad():
        outputs, _ = stack(x)
    assert len(states) == 2 * (1 + bidirectional)
    for one in states:
        values = {name: value.numpy() for name, value in one.values.items()}
        if "←" in one.name:
            values = {name: value[:, ::-1] for name, value in values.items()}
        h, expected = recomputed(values)
        if isinstance(expected, tuple):
            z, before, candidate = expected
            mixed = z * before + (1 - z) * candidate
            expected = z * candidate + (1 - z) * before if cell.startswith("mut") else mixed
        np.testing.assert_allclose(h, expected, atol=1e-10)
    top = torch.cat([one.values["h"] for one in states[-1 - bidirectional :]])
    torch.testing.assert_close(top.T, outputs[0])


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("text-recurrent-lm", 1),
        ("text-recurrent-lm-adaptive", 2),
        ("labels-recurrent", 2),
        ("tags-recurrent", 2),
        ("translation-seq2seq", 3),
        ("translation-seq2seq-lstm", 3),
    ],
)
def test_each_layer_of_a_trained_model_has_a_step_for_each_token(name: str, layers: int) -> None:
    found: Any = opened(name).explain(INPUTS[name], show="gates").numbers
    assert len(found["layers"]) == layers
    values = {gate: np.array(value) for gate, value in found["values"].items()}
    assert {value.shape[1] for value in values.values()} == {len(found["tokens"])}
    for gate in set(values) & {"i", "f", "o", "z", "r"}:
        assert ((values[gate] >= 0) & (values[gate] <= 1)).all()
    if name.startswith(("text", "translation")):
        assert len(found["surprisal"]) == len(found["tokens"])
        assert sum(bit is None for bit in found["surprisal"]) == 1
    else:
        assert found["surprisal"] is None
    with pytest.raises(UsageError, match="--layer must be 1 to"):
        opened(name).explain(INPUTS[name], show="gates", layer=99)


def test_a_model_without_recurrent_layers_says_so() -> None:
    with pytest.raises(UsageError, match="gates are of a recurrent layer"):
        opened("text-gpt").explain(INPUTS["text-gpt"], show="gates")
