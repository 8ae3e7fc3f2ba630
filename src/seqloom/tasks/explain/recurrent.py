"""The gates and states of recurrent layers over a text, with how surprising each token was."""

from __future__ import annotations

from seqloom.errors import UsageError, printable
from seqloom.explaining.explanation import Explanation
from seqloom.explaining.matrices import Bars, ColourMatrix, matrices_chart
from seqloom.explaining.studies.recurrent_states import (
    CANDIDATES,
    STATES,
    LayerStates,
    layer_states,
    telling_units,
)
from seqloom.models.seq2seq import Seq2Seq
from seqloom.tasks.explain.language import surprisals
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput

MOST_UNITS = 24
"""Of a layer that are drawn; the numbers have all."""


def explain_gates(given: ModelInput, look: Look) -> Explanation:
    """Of one layer, by default the last. Raises UsageError if there is no recurrent layer, or no such."""
    found = [
        states
        for states in layer_states(given.model, given.read, given.row)
        if len(_steps(given, states)) <= states.values["h"].shape[1]
    ]
    if look.part is not None:
        found = [states for states in found if states.name.startswith(look.part)]
    if not found:
        raise UsageError(
            "gates are of a recurrent layer, but this model has none"
            f"{' in ' + printable(look.part) if look.part else ''}; see --show"
        )
    number = look.layer or len(found)
    if not 1 <= number <= len(found):
        names = ", ".join(states.name for states in found)
        raise UsageError(f"--layer must be 1 to {len(found)} ({names}), but is {number}")
    states = found[number - 1]
    steps = _steps(given, states)
    units = telling_units(states, MOST_UNITS)
    bits = _surprise(given, states, steps)
    numbers = {
        "layer": states.name,
        "layers": [layer.name for layer in found],
        "tokens": steps,
        "values": {name: value[:, : len(steps)].tolist() for name, value in states.values.items()},
        "surprisal": bits,
    }
    unit_names = [f"unit {unit + 1}" for unit in units]
    matrices = []
    for name, value in states.values.items():
        matrix = ColourMatrix(
            title=name,
            values=value[units, : len(steps)].numpy(),
            rows=unit_names,
            name=name,
            signed=name in (*CANDIDATES, *STATES) or bool((value < 0).any()),
            highest=None if name in ("c", "h") else 1.0,
        )
        matrices.append(matrix)
    count = len(states.values["h"])
    shown = "all units"
    if count > len(units):
        shown = f"{len(units)} of {count} units, those that change most"
    bars = None if bits is None else Bars("surprisal of the token (bits)", bits)
    return Explanation(
        show="gates",
        numbers={**given.numbers, **numbers},
        text=[f"{states.name}: {', '.join(states.values)}; {shown}"],
        draw=lambda: matrices_chart(
            matrices,
            steps,
            title=f"Gates and states of {states.name}",
            subtitle=f"A row is a unit ({shown}), a column a step of the text.",
            bars=bars,
            pieces=given.has_pieces,
        ),
    )


def _side(given: ModelInput, states: LayerStates) -> str:
    side = states.name.split(" ")[0]
    return side if side in given.sides else "self"


def _steps(given: ModelInput, states: LayerStates) -> list[str]:
    """The token at each step."""
    side = _side(given, states)
    tokens = list(given.sides[side]) if side in given.sides else []
    reverse = isinstance(given.model, Seq2Seq) and given.model.config.reverse_source
    return tokens[::-1] if reverse and side == "encoder" else tokens


def _surprise(
    given: ModelInput, states: LayerStates, steps: list[str]
) -> list[float | None] | None:
    """Of each token that was predicted, where the layer is of the side that is."""
    if given.next_tokens is None or given.next_tokens.side != _side(given, states):
        return None
    _, bits, _ = surprisals(given)
    predicted: list[float | None] = [*bits]
    predicted = predicted[: len(steps) - 1]
    return [None] * (len(steps) - len(predicted)) + predicted
