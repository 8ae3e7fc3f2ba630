"""Finds the tensors of a model of ours in a checkpoint, and reports missing and unexpected ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import final

import torch
from torch import Tensor, nn

from seqloom.errors import FolderError, listed, printable
from seqloom.interop.tensor_names import Rule, TensorNames, pattern
from seqloom.interop.weights import StoredTensor, StoredWeights
from seqloom.layers.transformer.positions import sinusoids
from seqloom.training.checkpoints import is_finite, not_finite_error


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; a tied one under its first name."""
    first: dict[int, str] = {}
    named = model.state_dict(keep_vars=True)
    return {
        name: tensor for name, tensor in named.items() if first.setdefault(id(tensor), name) == name
    }


@final
class CheckpointTensors:
    """The tensors of a checkpoint by the names of its family, even where the file has old or short names."""

    def __init__(self, weights: StoredWeights, names: TensorNames) -> None:
        self.weights = weights
        self.names = names
        self.file_names = {self._current_name(name): name for name in weights.stored}
        """Name of today -> name in the file."""
        self.tied_output = True
        """Whether the weight of the output is a copy of the embedding."""

    def _current_name(self, name: str) -> str:
        for old, current in self.names.legacy_suffixes.items():
            if name.endswith(old):
                name = name.removesuffix(old) + current
        return name

    def find(self, name: str) -> str | None:
        """The name in the file; where it is missing, that of a tied copy or of its fallback. The output is
        the last of the copies, as its weight may be another one."""
        copies = [copy for copy, original in self.names.tied.items() if original == name]
        copies.sort(key=lambda copy: copy == self.names.output)
        if not self.tied_output:
            copies = [copy for copy in copies if copy != self.names.output]
        for candidate in (name, *copies, self.names.fallbacks.get(name, name)):
            for form in (candidate, candidate.removeprefix(self.names.prefix)):
                if form in self.file_names:
                    return self.file_names[form]
        return None

    def load(self, rule: Rule, dtype: torch.dtype) -> Tensor:
        """A tensor of ours, all of whose parts are there. Where nothing is joined or converted, it is the
        memory of the file itself. Raises FolderError if a value is not finite."""
        files = [name for part in rule.theirs if (name := self.find(part)) is not None]
        tensor = self._joined(rule, files, dtype)
        if not is_finite(tensor):
            broken = [name for name in files if not is_finite(self.weights.read(name))]
            # a number that is finite in the file may be too large for `dtype`
            raise not_finite_error(self.weights.stored[(broken or files)[0]].path, broken or files)
        return tensor

    def _joined(self, rule: Rule, files: list[str], dtype: torch.dtype) -> Tensor:
        dtypes = {self.weights.stored[name].dtype for name in files}
        if len(files) == 1 and dtypes == {dtype}:
            return rule.join([self.weights.mapped(files[0])])
        if len(dtypes) == 1 and not rule.transposed and not rule.leading_ones:
            return self.weights.read(*files).to(dtype)
        return rule.join([self.weights.read(name) for name in files]).to(dtype)

    def untied_output(self) -> tuple[str, str] | None:
        """The weight of the output and the embedding that the configuration ties it to, where they differ."""
        output, source = self.find(self.names.output), self._tied_to(self.names.output)
        if output is None or source is None or self._equal(output, source):
            return None
        return output, source

    def _tied_to(self, copy: str) -> str | None:
        """The name in the file of the tensor that this is tied to."""
        original = self.names.tied.get(copy)
        if original is None:
            return None
        found = self.find(original)
        return found if found not in (None, self.find(copy)) else self._tied_to(original)

    def _equal(self, one: str, two: str) -> bool:
        same_shape = self.weights.stored[one].shape == self.weights.stored[two].shape
        return same_shape and torch.equal(self.weights.read(one), self.weights.read(two))

    def missing(
        self, model: nn.Module, rules: Mapping[str, Rule], new: Collection[str]
    ) -> set[str]:
        """The tensors of ours that are missing though they may be, as their names begin with one of `new`.
        Raises FolderError if others are missing, are no floating-point numbers, or where a shape is not
        what the configuration says."""
        missing, allowed, wrong = [], set[str](), []
        for ours, tensor in unique_tensors(model).items():
            expected = rules[ours].their_shape(tuple(tensor.shape))
            for part in rules[ours].theirs:
                name = self.find(part)
                if name is None and ours.startswith(tuple(new)):
                    allowed.add(ours)
                elif name is None:
                    missing.append(part)
                elif problem := _problem(self.weights.stored[name], expected):
                    wrong.append(f"{printable(name)} {problem}")
        if missing:
            raise FolderError(
                f"the weights must be whole, but these tensors are missing: {listed(missing)}",
                self.weights.folder,
            )
        if wrong:
            raise FolderError(
                f"weights must be those that config.json says, but {'; '.join(wrong[:3])}",
                self.weights.folder,
            )
        return allowed

    def unexpected(self, rules: Iterable[Rule]) -> list[str]:
        """Notices about tensors that no rule reads. Raises FolderError for those that are not known to be
        useless."""
        read = {self.find(part) for rule in rules for part in rule.theirs}
        unused: dict[str, int] = {}
        unknown = []
        for current, name in sorted(self.file_names.items()):
            if name in read or self._useless(current, name):
                continue
            part = next(
                (what for form, what in self.names.unused.items() if self._is(form, current)), None
            )
            if part is None:
                unknown.append(name)
            else:
                unused[part] = unused.get(part, 0) + 1
        if unknown:
            raise FolderError(
                f"every tensor must have its place, but these have none: {listed(unknown)}",
                self.weights.folder,
            )
        return [
            f"not read: {part} ({count} tensors), which the model here has not got"
            for part, count in unused.items()
        ]

    def _is(self, form: str, name: str) -> bool:
        return any(
            pattern(form).fullmatch(tensor) is not None
            for tensor in (name, self.names.prefix + name)
        )

    def _useless(self, current: str, name: str) -> bool:
        """Whether it is a constant, a tied copy, or a table of sinusoids. Raises FolderError if a copy
        differs from what it is tied to."""
        if any(self._is(form, current) for form in self.names.constants):
            return True
        copies = (
            copy
            for copy in self.names.tied
            if current in (copy, copy.removeprefix(self.names.prefix))
        )
        source = self._tied_to(next(copies, ""))
        if source is None:
            return self._sinusoid(current, name)
        if not self._equal(name, source):
            raise FolderError(
                f"{printable(name)} must be the same as {printable(source)}, with which it is tied, but"
                " differs",
                self.weights.folder,
            )
        return True

    def _sinusoid(self, current: str, name: str) -> bool:
        if not any(self._is(form, current) for form in self.names.sinusoids):
            return False
        table = self.weights.read(name)
        ours = sinusoids(torch.arange(len(table)), table.shape[1], table.dtype, halves=True)
        return torch.allclose(table, ours, rtol=0, atol=4 * torch.finfo(table.dtype).eps)


def _problem(stored: StoredTensor, shape: tuple[int, ...]) -> str:
    """What is wrong with a tensor that must have this shape; empty if nothing is."""
    if stored.shape != shape:
        return f"must have shape {shape}, but has {stored.shape}"
    if not stored.dtype.is_floating_point:
        dtype = str(stored.dtype).removeprefix("torch.")
        return f"must hold floating-point numbers, but holds {dtype}"
    return ""
