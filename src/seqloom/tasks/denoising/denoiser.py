"""A trained denoising model. It is there to be trained further (`--from`), and can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import numpy as np

from seqloom.data.batching.corpus_windows import CorpusIds
from seqloom.errors import DataError
from seqloom.protocols import NO_REQUEST, Evaluation, Request, context_of
from seqloom.runs.settings import data_config, read_resumed
from seqloom.tasks.denoising.noisy_windows import noisy_windows, with_window
from seqloom.tasks.denoising.training_data import denoising_metrics
from seqloom.tasks.language_modeling.documents import each_document
from seqloom.tasks.model import TextModel


class _TextInMemory(NamedTuple):
    """A corpus that is no store."""

    tokens: CorpusIds


@final
class Denoiser(TextModel):
    """model = seqloom.load("runs/pretrained")
    model.evaluate(["novel.txt"])
    """

    reads: ClassVar = {"evaluate": frozenset({"data"})}

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """The loss under the noise of the training, on documents."""
        self.check("evaluate", request)
        tokenizer = self.run.tokenizer
        data = data_config(self.folder, request.data)
        texts = [document.ids for document in each_document(paths, data, tokenizer)]
        if not texts:
            raise DataError("there must be at least one document, but there is none", paths[0])
        train = with_window(read_resumed(self.folder).train, context_of(self.model))
        windows = noisy_windows(train, tokenizer)
        metrics = denoising_metrics(self.model, windows, _TextInMemory(np.concatenate(texts)))
        return Evaluation({**metrics, "documents": len(texts)})
