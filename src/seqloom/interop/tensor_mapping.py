"""Which tensor of a folder is which of a model of ours, and what is said of those that are none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from seqloom.errors import FolderError, printable
from seqloom.interop.tensor_names import Names, Rule, Shape, pattern
from seqloom.interop.weights import StoredWeights
from seqloom.layers.transformer.positions import sinusoids

LISTED = 8
"""So many names of tensors at most are printed."""


def first_names(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; one that has two names stands under the first."""
    first: dict[int, str] = {}
    named = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in named.items() if first.setdefault(id(tensor), name) == name}


@final
class Theirs:
    """The names in a folder of weights, whatever old or short form they have."""

    def __init__(self, weights: StoredWeights, names: Names) -> None:
        self.weights = weights
        self.names = names
        self.by_today = {self._today(name): name for name in weights.stored}

    def _today(self, name: str) -> str:
        for old, today in self.names.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + today
        return name

    def find(self, name: str) -> str | None:
        """The name in the file of what the table calls so; a copy, or what stands in for it, does where it is
        missing."""
        others = [copy for copy, original in self.names.copies.items() if original == name]
        for one in (name, *others, self.names.fallbacks.get(name, name)):
            for form in (one, one.removeprefix(self.names.prefix)):
                if form in self.by_today:
                    return self.by_today[form]
        return None

    def found(self, name: str) -> str:
        found = self.find(name)
        assert found is not None, name
        return found

    def tensor(self, rule: Rule, dtype: torch.dtype) -> Tensor:
        """A tensor of ours: where nothing is joined or converted, the file's own memory."""
        found = [self.found(part) for part in rule.theirs]
        kinds = {self.weights.stored[part].dtype for part in found}
        if len(found) == 1 and kinds == {dtype}:
            return rule.join([self.weights.mapped(found[0])])
        if len(kinds) == 1 and not rule.transposed and not rule.ones:
            return self.weights.read(*found).to(dtype)
        return rule.join([self.weights.read(part) for part in found]).to(dtype)

    def source(self, copy: str) -> str | None:
        """The name in the file of what this is a copy of."""
        original = self.names.copies.get(copy)
        if original is None:
            return None
        found = self.find(original)
        return found if found not in (None, self.find(copy)) else self.source(original)

    def untied(self) -> tuple[str, str] | None:
        """The weight of the output and the embedding that it should be, where both are there and differ."""
        output = self.find(self.names.output)
        source = self.source(self.names.output)
        return None if output is None or source is None or self._equal(output, source) else (output, source)

    def _equal(self, one: str, two: str) -> bool:
        same = self.weights.stored[one].shape == self.weights.stored[two].shape
        return same and torch.equal(self.weights.read(one), self.weights.read(two))

    def left(self, rules: Mapping[str, Rule]) -> list[str]:
        """What is said of tensors that no rule takes. Raises FolderError for those that are not known to be
        of no use."""
        taken = {
            self.found(part) for rule in rules.values() for part in rule.theirs if self.find(part) is not None
        }
        unused: dict[str, int] = {}
        strange = []
        for today, name in sorted(self.by_today.items()):
            if (
                name in taken
                or self._constant(today)
                or self._copy(today, name)
                or self._sinusoid(today, name)
            ):
                continue
            part = next((what for form, what in self.names.unused.items() if self._is(form, today)), None)
            if part is None:
                strange.append(name)
            else:
                unused[part] = unused.get(part, 0) + 1
        if strange:
            raise FolderError(
                f"{printable(str(self.weights.folder))}: every tensor must have its place, but these have"
                f" none: {listed(strange)}"
            )
        return [
            f"not read: {part} ({count} tensors), which the model here has not got"
            for part, count in unused.items()
        ]

    def _is(self, form: str, name: str) -> bool:
        return any(pattern(form).fullmatch(one) is not None for one in (name, self.names.prefix + name))

    def _constant(self, name: str) -> bool:
        return any(self._is(form, name) for form in self.names.constants)

    def _sinusoid(self, today: str, name: str) -> bool:
        """Whether it is a table of sinusoids, which our model computes."""
        if not any(self._is(form, today) for form in self.names.sinusoids):
            return False
        table = self.weights.read(name)
        ours = sinusoids(torch.arange(len(table)), table.shape[1], table.dtype, halves=True)
        return torch.allclose(table, ours, rtol=0, atol=4 * torch.finfo(table.dtype).eps)

    def _copy(self, today: str, name: str) -> bool:
        """Whether it is a copy. Raises FolderError where it is not equal to what it is a copy of."""
        copy = next(
            (one for one in self.names.copies if today in (one, one.removeprefix(self.names.prefix))), None
        )
        source = None if copy is None else self.source(copy)
        if source is not None and not self._equal(name, source):
            where = printable(str(self.weights.folder))
            raise FolderError(
                f"{where}: {printable(name)} must be the same as {printable(source)}, with which it is tied,"
                " but differs"
            )
        return source is not None


def check(model: nn.Module, rules: Mapping[str, Rule], names: Theirs, new: Collection[str]) -> set[str]:
    """Names of ours that are new. Raises FolderError where tensors are missing or have other shapes than the
    configuration says."""
    missing, fresh, wrong = [], set(), []
    for name, tensor in first_names(model).items():
        expected: Shape = rules[name].their_shape(tuple(tensor.shape))
        for part in rules[name].theirs:
            found = names.find(part)
            if found is None:
                if name.startswith(tuple(new)):
                    fresh.add(name)
                else:
                    missing.append(part)
            elif (shape := names.weights.stored[found].shape) != expected:
                wrong.append(f"{printable(found)} must have shape {expected}, but has {shape}")
    where = printable(str(names.weights.folder))
    if missing:
        raise FolderError(
            f"{where}: the weights must be whole, but these tensors are missing: {listed(missing)}"
        )
    if wrong:
        raise FolderError(
            f"{where}: weights must have the shapes that config.json says, but {'; '.join(wrong[:3])}"
        )
    return fresh


def check_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raises FolderError that names tensors of a folder which hold what is no number."""
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise FolderError(
            f"{printable(str(folder))}: weights must be finite, but those of {listed(broken)} are not; get"
            " the files again"
        )


def listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(printable(name) for name in names[:LISTED]) + more
