"""What the families have in common whose steps of decoding can be one compiled call each."""

from __future__ import annotations

from torch import Tensor, nn

from seqloom.layers.linear import Linear
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.layers.packed_linear import packed_linear
from seqloom.layers.recurrent.native_step import RecurrentParts, prepare_step, why_not
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import modules_of


class CompiledModel(nn.Module):
    """A `NeuralDecodable` that has a compiled step, and whose weights can be in fewer bits."""

    def why_no_step(self) -> str:
        """Why a step of this one is no compiled call all the same, as a clause; empty if it is one."""
        raise NotImplementedError

    def why_not_stored(self) -> str:
        """Why the weights of this one cannot be in fewer bits, as a clause; empty if they can."""
        return ""

    def storable_weights(self) -> list[Tensor]:
        """The weights that can be in fewer bits; a tied one may be there twice."""
        weights: list[Tensor] = [each.weight for each in modules_of(self, Linear).values()]
        weights += [output.weight for output in modules_of(self, FullOutput).values()]
        # those of positions stay as they are
        tables = {
            name: each for name, each in modules_of(self, nn.Embedding).items() if "." not in name
        }
        return [*weights, *(table.weight for table in tables.values())]

    def pack(self, weights: PackedWeights) -> None:
        """Packs what a step reads; `weights` are open."""
        for weight in self.storable_weights():
            packed_linear(weights, weight)


class CompiledRecurrentModel(CompiledModel):
    """One whose step is that of recurrent layers."""

    def parts(self) -> RecurrentParts:
        """All of a step before the output layer."""
        raise NotImplementedError

    def why_no_step(self) -> str:
        return why_not(self.parts())

    def storable_weights(self) -> list[Tensor]:
        return [*super().storable_weights(), *self.parts().weights()]

    def pack(self, weights: PackedWeights) -> None:
        prepare_step(self, self.parts)
