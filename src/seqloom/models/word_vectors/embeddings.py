"""What models of word vectors share: two embeddings, one of which may take the place of the other."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

WhichVectors = Literal["input", "output", "sum"]


class WordEmbeddings(nn.Module):
    """Vectors of words and vectors of words as their neighbours."""

    embedding: nn.Embedding
    """v, or w in GloVe."""
    output: nn.Embedding | None
    """u, or w~ in GloVe; None if a word has one vector for both."""
    chosen: WhichVectors

    @property
    def targets(self) -> nn.Embedding:
        """The vectors u."""
        return self.embedding if self.output is None else self.output

    def vectors(self) -> Tensor:
        """`(vocabulary, width)`: those that others use."""
        v, u = self.embedding.weight.detach(), self.targets.weight.detach()
        return {"input": v, "output": u, "sum": v + u}[self.chosen]
