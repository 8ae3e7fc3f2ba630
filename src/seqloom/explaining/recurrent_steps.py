"""Recording the steps of recurrent layers while a loss runs, with the gradients of their states.

A layer records its steps one after another (`RecurrentLayer.watch`), whatever called it: a stack, or a
decoder that does other things between steps. Which steps belong together, and which were padding, follows
from the autograd graph: a row really takes a step if the following step starts from its new state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from seqloom.layers.recurrent.layer import RecurrentLayer, WatchedStep
from seqloom.layers.recurrent.stack import RecurrentStack


class NamedLayer(NamedTuple):
    """A recurrent layer in one direction."""

    name: str
    direction: str
    """forward or backward."""
    layer: RecurrentLayer


def recurrent_layers(model: nn.Module) -> list[NamedLayer]:
    """In the order of the model."""
    layers: dict[int, NamedLayer] = {}
    below: Counter[str] = Counter()
    """How many layers of a name there are already: the last one may be in a stack of its own."""
    for path, module in model.named_modules():
        match module:
            case RecurrentStack():
                both = module.config.bidirectional
                directions = [("forward", "→", module.forward_layers)]
                if both:
                    directions.append(("backward", "←", module.backward_layers))
                part = part_name(path)
                for number in range(len(module.forward_layers)):
                    below[part] += 1
                    name = f"{part} {below[part]}"
                    for direction, arrow, stack in directions:
                        layer = cast(RecurrentLayer, stack[number])
                        layer_name = f"{name} {arrow}" if both else name
                        layers[id(layer)] = NamedLayer(layer_name, direction, layer)
            case RecurrentLayer() if id(module) not in layers:
                layers[id(module)] = NamedLayer(path or "1", "forward", module)
    return list(layers.values())


def part_name(path: str) -> str:
    """The part of a model that a stack is, for people: `layers.0` is the layer of a language model,
    `encoder.layers` that of an encoder, `members.1.layers.0` that of the second model of a mixture."""
    words: list[str] = []
    names = path.split(".") if path else []
    for name, after in zip(names, [*names[1:], ""], strict=False):
        if name == "members" and after.isdigit():
            words.append(f"member {int(after) + 1}")
        elif name != "layers" and not name.isdigit():
            words.append(name)
    if not words or words[-1].startswith("member "):
        words.append("layer")
    return " ".join(words)


@contextmanager
def recorded_steps(
    model: nn.Module, layers: Sequence[RecurrentLayer]
) -> Iterator[list[list[WatchedStep]]]:
    """Inside, the steps of each layer are recorded, dropout is off, and frozen weights are part of the
    graph."""
    training = [module for module in model.modules() if module.training]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    recorded: list[list[WatchedStep]] = [[] for _ in layers]
    model.eval()
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        for layer, steps in zip(layers, recorded, strict=True):
            layer.watch = steps
        yield recorded
    finally:
        for layer in layers:
            layer.watch = None
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module in training:
            module.training = True


class StepSequence(NamedTuple):
    """Steps of a layer that follow each other."""

    steps: list[WatchedStep]
    mask: Tensor
    """`(steps, rows)`: false at padding. Where later steps have fewer rows, these are the first ones."""
    gradients: list[Tensor]
    """For each part of the state `(steps, rows, width)`: the gradient of the loss."""

    @property
    def from_start(self) -> Tensor:
        """`(true steps,)`: how many steps of its row come before each, in the order of `mask`."""
        return (self.mask.cumsum(dim=0) - 1)[self.mask]

    @property
    def from_end(self) -> Tensor:
        """`(true steps,)`: how many steps of its row come after each."""
        return (self.mask.sum(dim=0) - self.mask.cumsum(dim=0))[self.mask]


def step_sequences(steps: list[WatchedStep], total: Tensor) -> Iterator[StepSequence]:
    """The sequences in the steps of a layer, which a loss may run several times: a step that does not start
    from the state before begins a new one."""
    if not steps:
        return
    parts = len(steps[0].new)
    states = [part for step in steps for part in step.new]
    computed = torch.autograd.grad(total, states, retain_graph=True, allow_unused=True)
    gradients = [
        torch.zeros_like(state) if gradient is None else gradient
        for state, gradient in zip(states, computed, strict=True)
    ]
    first, mask = 0, []
    for t, step in enumerate(steps):
        stepping = _stepping_rows(step, steps[t + 1]) if t + 1 < len(steps) else None
        if stepping is not None:
            mask.append(stepping)
            continue
        # no step follows the last one of a sequence: it is true where the loss depends on its state
        own = [gradient.abs().amax(dim=1) for gradient in gradients[t * parts : (t + 1) * parts]]
        mask.append(torch.stack(own).amax(dim=0) > 0)
        if any(bool(rows.any()) for rows in mask):
            ranges = [slice(first * parts + part, (t + 1) * parts, parts) for part in range(parts)]
            of_parts = [_padded(gradients[part]) for part in ranges]
            yield StepSequence(steps[first : t + 1], _padded(mask), of_parts)
        first, mask = t + 1, []


def _padded(steps: list[Tensor]) -> Tensor:
    """`(steps, rows, ...)`: each step with as many rows as the first."""
    whole = steps[0].new_zeros(len(steps), *steps[0].shape)
    for t, step in enumerate(steps):
        whole[t, : len(step)] = step
    return whole


def _stepping_rows(step: WatchedStep, following: WatchedStep) -> Tensor | None:
    """`(rows,)`: whether a row really takes a step, so that the following step starts from its new state and
    not from its old one; None if the following step starts from something else. Rows that the following
    step no longer has, as their text is over, do take the step."""
    new, old = step.new[0], following.old[0]
    if old is new:
        return torch.ones_like(new[:, 0], dtype=torch.bool)
    if not old.requires_grad or len(old) > len(new):
        return None
    # ∂old/∂new is 1 in the rows that start from the new state, and 0 in the others
    gradients = torch.autograd.grad(
        old, new, torch.ones_like(old), retain_graph=True, allow_unused=True
    )
    slope = cast("Tensor | None", gradients[0])
    if slope is None:
        return None
    taken = slope[:, 0] == 1
    if not torch.equal(slope, taken[:, None].to(slope).expand_as(slope)):
        return None
    if len(old) == len(new):
        return taken
    only_first_rows = int(taken.sum()) == len(old) == int(taken[: len(old)].sum())
    return torch.ones_like(taken) if only_first_rows else None
