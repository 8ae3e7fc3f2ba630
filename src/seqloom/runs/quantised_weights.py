"""A model that writes with weights in fewer bits: `decode.weights`.

The weights of its linear maps, of its layers, output and embedding are read as they are stored; positions,
norms, biases, states and all sums are in float32. So it is the float32 model that has the rounded weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from seqloom.errors import FolderError
from seqloom.interop.checkpoint import assign
from seqloom.interop.tensor_mapping import unique_tensors
from seqloom.layers.outputs.softmax import (
    CHUNK,
    FullOutput,
    at_positions,
    select_trained,
)
from seqloom.models.compiled import CompiledModel
from seqloom.native.library import why_missing
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import (
    EncoderDecoder,
    NextLogProbs,
    State,
    WantedTokens,
    context_of,
    read_source,
)
from seqloom.stored_weight import SCALES, QuantisedWeight, StoredWeight
from seqloom.tensor_files import open_safetensors
from seqloom.training.checkpoints import check_weights, read_tensors, tensors_in

COMPILED = ("gpt", "recurrent_lm", "seq2seq", "transformer", "t5")
"""The families that have a compiled step of decoding."""


def why_not_compiled(model: object, *, stored: bool = False) -> str:
    """Why a step of decoding is not one compiled call, as a clause; empty if it is. `stored`: from weights in
    fewer bits."""
    if not isinstance(model, CompiledModel):
        return f"only {', '.join(COMPILED)} have a compiled step"
    if stored and (reason := model.why_not_stored()):
        return reason
    if problem := why_missing("step"):
        return problem
    reason = model.why_no_step()
    return f"this model has no compiled step: {reason}" if reason else ""


def why_not_quantised(model: object) -> str:
    """Why this model cannot be decoded from weights in fewer bits, as a clause; empty if it can."""
    return why_not_compiled(model, stored=True)


def stored_weights(model: CompiledModel) -> list[Tensor]:
    """The weights that are in fewer bits; a tied one once. Of a recurrent encoder only the embedding."""
    return list({id(weight): weight for weight in model.storable_weights()}.values())


def model_by_torch(model: nn.Module) -> ModelWithWeights:
    """The model without any compiled step."""
    kind = EncoderDecoderByTorch if isinstance(model, EncoderDecoder) else ModelWithWeights
    return kind(model, PackedWeights(compiled=False))


def quantised_model(model: nn.Module, storage: Storage) -> QuantisedModel:
    """The model with its weights in this storage; `why_not_quantised` must have no reason."""
    kind = QuantisedEncoderDecoder if isinstance(model, EncoderDecoder) else QuantisedModel
    return kind(model, storage)


class ModelWithWeights(nn.Module):
    """A `Decodable` that always decodes with these weights. They must stay as they are."""

    def __init__(self, model: Any, weights: PackedWeights) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.context = context_of(model)
        self._weights = weights

    def read_source(self, source: Tensor) -> State:
        """As `protocols.read_source` of the model."""
        with self._weights:
            return read_source(self.model, source)

    def forward(self, tokens: Tensor, state: State = None) -> tuple[Tensor, State]:
        with self._weights:
            found: tuple[Tensor, State] = self.model(tokens, state)
        return found


@final
class EncoderDecoderByTorch(ModelWithWeights):
    """An encoder-decoder without a compiled step."""

    def encode(self, source: Tensor) -> State:
        """As that of the model."""
        return self.read_source(source)


class QuantisedModel(ModelWithWeights):
    """A `Decodable` in two halves, for which `why_not_quantised` has no reason. Its weights are packed
    now."""

    def __init__(self, model: Any, storage: Storage) -> None:
        super().__init__(model, PackedWeights(storage))
        self.output = QuantisedOutput(model.output, self._weights)
        with self._weights, torch.inference_mode():
            model.pack(self._weights)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As that of the model."""
        with self._weights:
            found: tuple[Tensor, State] = self.model.read(tokens, state)
        return found

    def forward(self, tokens: Tensor, state: State = None) -> tuple[Tensor, State]:
        hidden, state = self.read(tokens, state)
        return self.output.logits(hidden), state


@final
class QuantisedEncoderDecoder(QuantisedModel):
    """The same of an encoder-decoder."""

    def encode(self, source: Tensor) -> State:
        """As that of the model."""
        return self.read_source(source)


@final
class QuantisedOutput(nn.Module):
    """The output layer of `QuantisedModel`, for decoding and scoring."""

    def __init__(self, output: FullOutput, weights: PackedWeights) -> None:
        super().__init__()
        self._output = output
        self._weights = weights

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `(..., width)` -> logits `(..., vocabulary)`."""
        with self._weights:
            return self._output.logits(hidden)

    def likeliest(self, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs | None:
        """As that of `FullOutput`."""
        with self._weights:
            return self._output.likeliest(hidden, wanted)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `(..., width)`, targets `(...)` -> log p of each target `(...)`, 0 at IGNORE."""
        places, states, flat = select_trained(hidden, targets)
        parts = [states.new_zeros(0)]
        for first in range(0, len(flat), CHUNK):
            part = slice(first, first + CHUNK)
            logits = self.logits(states[part])
            chosen = logits.gather(1, flat[part, None])[:, 0]
            parts.append(chosen - logits.logsumexp(dim=1))
        return at_positions(torch.cat(parts), places, targets)


def store(model: CompiledModel, storage: Storage) -> None:
    """Makes the weights of a model those in fewer bits; of a model on the meta device nothing but their
    types."""
    stored = {
        id(weight): nn.Parameter(StoredWeight(QuantisedWeight.of(weight, storage)), False)
        for weight in stored_weights(model)
    }
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in stored:
                setattr(module, name, stored[id(parameter)])


def read_stored(empty: CompiledModel, storage: Storage, path: Path) -> None:
    """Makes a model on the meta device that of a file in which weights are in fewer bits. Raises FolderError
    if the file is damaged or another model's."""
    store(empty, storage)
    check_weights(empty, tensors_in(path), path)
    found, read = dict[str, Tensor](), read_tensors(path)
    for name, tensor in unique_tensors(empty).items():
        found[name] = read[name]
        if isinstance(tensor, StoredWeight):
            scales = read.get(name + SCALES)
            if read[name].dtype != tensor.stored.values.dtype or (
                scales is not None and not bool((scales > 0).all())
            ):
                raise FolderError(
                    f"{name} must be {storage} with scales above 0, but is not; get the file again",
                    path,
                )
            found[name] = StoredWeight(QuantisedWeight(read[name], scales))
    assign(empty, found)


@torch.inference_mode(False)
def keep_in_file(model: nn.Module, path: Path) -> None:
    """Maps the weights of a model from their file anew, where they are the same: memory then holds only what
    somebody reads of them from now on."""
    if path.suffix != ".safetensors" or not path.is_file():
        return
    # comparing reads all of the first, which is then closed
    compared, kept = _tensors_of(path), _tensors_of(path)
    for name, parameter in model.named_parameters():
        if name in kept and torch.equal(compared[name], parameter):
            parameter.data = kept[name]


def _tensors_of(path: Path) -> dict[str, Tensor]:
    file = open_safetensors(path)
    names: list[str] = file.keys()  # type: ignore[no-untyped-call]
    return {name: file.get_tensor(name) for name in names}  # type: ignore[no-untyped-call]
