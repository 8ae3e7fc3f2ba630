"""Watching recurrent layers while a loss runs: their steps, put in order, and which rows take each.

A layer notes its steps one after another (`RecurrentLayer.watch`), whoever called it: a stack, or a decoder
that does something between its steps. What belongs together, and what was padding, is read off the graph: a
step is true for the rows in which the following step starts from its new state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from seqloom.layers.recurrent.layer import RecurrentLayer, WatchedStep
from seqloom.layers.recurrent.stack import RecurrentStack


def named_layers(model: nn.Module) -> list[tuple[str, str, RecurrentLayer]]:
    """(name, direction, layer), in the order of the model."""
    found: dict[int, tuple[str, str, RecurrentLayer]] = {}
    for path, module in model.named_modules():
        if isinstance(module, RecurrentStack):
            for k, layer in enumerate(module.forward_layers, start=1):
                place = f"{path} {k}".strip()
                found[id(layer)] = (f"{place} →" if module.config.bidirectional else place, "forward", layer)  # type: ignore[assignment]
                if module.config.bidirectional:
                    back = module.backward_layers[k - 1]
                    found[id(back)] = (f"{place} ←", "backward", back)  # type: ignore[assignment]
        elif isinstance(module, RecurrentLayer) and id(module) not in found:
            found[id(module)] = (path or "1", "forward", module)
    return list(found.values())


@contextmanager
def watched(model: nn.Module, layers: Sequence[RecurrentLayer]) -> Iterator[list[list[WatchedStep]]]:
    """While it lasts, each layer's steps are noted, nothing is dropped, and frozen weights are part of the
    graph."""
    training = [module for module in model.modules() if module.training]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    seen: list[list[WatchedStep]] = [[] for _ in layers]
    model.eval()
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        for layer, steps in zip(layers, seen, strict=True):
            layer.watch = steps
        yield seen
    finally:
        for layer in layers:
            layer.watch = None
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module in training:
            module.training = True


class StepSequence(NamedTuple):
    """Steps of a layer that follow each other, and which rows take each."""

    steps: list[WatchedStep]
    true: Tensor
    """`(steps, rows)`: false at padding. Where later steps have fewer rows, theirs are the first."""
    gradients: list[Tensor]
    """For each part of the state `(steps, rows, width)`: that of the loss."""

    @property
    def from_start(self) -> Tensor:
        """`(true steps,)`: the position of each, in the order of `true`."""
        return (self.true.cumsum(dim=0) - 1)[self.true]

    @property
    def from_end(self) -> Tensor:
        return (self.true.sum(dim=0) - self.true.cumsum(dim=0))[self.true]


def step_sequences(steps: list[WatchedStep], total: Tensor) -> Iterator[StepSequence]:
    """A loss may run a layer several times; a step begins a new sequence where it does not start from the
    state before."""
    if not steps:
        return
    parts = len(steps[0].new)
    states = [part for step in steps for part in step.new]
    found = torch.autograd.grad(total, states, retain_graph=True, allow_unused=True)
    gradients = [
        torch.zeros_like(state) if gradient is None else gradient
        for state, gradient in zip(states, found, strict=True)
    ]
    begin, true = 0, []
    for t, step in enumerate(steps):
        taken = _taken(step, steps[t + 1]) if t + 1 < len(steps) else None
        if taken is not None:
            true.append(taken)
            continue
        # the last of its sequence: what it passes on only the loss can say
        own = torch.stack([gradient.abs().amax(dim=1) for gradient in gradients[t * parts : (t + 1) * parts]])
        true.append(own.amax(dim=0) > 0)
        if any(bool(rows.any()) for rows in true):
            mine = [
                _filled(gradients[begin * parts + part : (t + 1) * parts : parts]) for part in range(parts)
            ]
            yield StepSequence(steps[begin : t + 1], _filled(true), mine)
        begin, true = t + 1, []


def _filled(parts: list[Tensor]) -> Tensor:
    """`(steps, rows, ...)`: the rows of each step filled up to those of the first."""
    whole = parts[0].new_zeros(len(parts), *parts[0].shape)
    for t, part in enumerate(parts):
        whole[t, : len(part)] = part
    return whole


def _taken(step: WatchedStep, following: WatchedStep) -> Tensor | None:
    """`(rows,)`: whether the step was true, that is, whether the following one starts from the new state and
    not from the old one; None where it starts from something else. Rows that it no longer has, for their text
    is over, were true."""
    new, old = step.new[0], following.old[0]
    if old is new:
        return torch.ones_like(new[:, 0], dtype=torch.bool)
    if not old.requires_grad or len(old) > len(new):
        return None
    slope = cast(
        "Tensor | None",
        torch.autograd.grad(old, new, torch.ones_like(old), retain_graph=True, allow_unused=True)[0],
    )
    if slope is None:
        return None
    kept = slope[:, 0] == 1
    if not torch.equal(slope, kept[:, None].to(slope).expand_as(slope)):
        return None
    if len(old) < len(new):
        return torch.ones_like(kept) if int(kept.sum()) == len(old) == int(kept[: len(old)].sum()) else None
    return kept
