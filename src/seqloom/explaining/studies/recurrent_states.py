"""The gates and states of a recurrent layer at each step of a text: what it lets in, keeps and shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqloom.explaining.recurrent_steps import NamedLayer, recorded_steps, recurrent_layers

STATES = ("h", "c")
"""The parts of a state, in the order of CellState."""
CANDIDATES = ("g", "h̃")
"""Gates that are no shares: what would be written. Cells with gates call theirs h, as they do the state."""


class LayerStates(NamedTuple):
    """What a layer does at each step of one row, in the order of the text."""

    name: str
    values: dict[str, Tensor]
    """The gates by name, then c where there is one, and h: `(units, steps)` each."""


@torch.no_grad()
def layer_states(model: nn.Module, run: Callable[[], object], row: int = 0) -> list[LayerStates]:
    """Of each recurrent layer that `run` calls, from the first to the last."""
    named = recurrent_layers(model)
    with recorded_steps(model, [layer for _, _, layer in named]) as recorded:
        run()
        found = []
        for place, steps in zip(named, recorded, strict=True):
            columns: dict[str, list[Tensor]] = {}
            for number, step in enumerate(steps):
                if row >= len(step.new[0]):
                    break
                values = place.layer.gate_values(step.gates, step.old, number)
                if len(values) > 1 and "h" in values:
                    values["h̃"] = values.pop("h")
                states = dict(zip(STATES, step.new, strict=False))
                for name in reversed(states):
                    values[name] = states[name]
                for name, value in values.items():
                    columns.setdefault(name, []).append(value[row])
            if columns:
                found.append(_in_text_order(place, columns))
    return found


def _in_text_order(place: NamedLayer, columns: dict[str, list[Tensor]]) -> LayerStates:
    values = {name: torch.stack(steps, dim=1).double().cpu() for name, steps in columns.items()}
    if place.direction == "backward":
        values = {name: value.flip(1) for name, value in values.items()}
    return LayerStates(place.name, values)


def telling_units(states: LayerStates, most: int) -> list[int]:
    """The units whose state changes most over the text, in their order."""
    state = states.values["c" if "c" in states.values else "h"]
    change = state.std(dim=1, correction=0)
    return sorted(change.topk(min(most, len(change))).indices.tolist())
