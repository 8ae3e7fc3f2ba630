"""Texts to vectors with a trained encoder, and how well their cosines agree with what people say.

h_1 .. h_n of [CLS] text [SEP] -> v = Σ h_i / n (or another `Pooling`),
divided by |v| if the checkpoint says so
similarity of two texts: v · w / (|v| |w|)          Reimers and Gurevych: Sentence-BERT, EMNLP 2019
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import batch_ends, encoder_ids, pad
from seqloom.data.readers.labelled import read_labelled
from seqloom.errors import DataError, FolderError, UsageError, place, printable
from seqloom.evaluation.correlation import correlations
from seqloom.evaluation.worst_examples import similarity_examples
from seqloom.interop.sentence_transformers import Pooling, pooling_of
from seqloom.models.bert import Bert
from seqloom.models.electra import Electra
from seqloom.packed_weights import Storage
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, Request, device_of
from seqloom.runs.progress import chunked, each_text, logged_report
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.explain.explained_model import ExplainedModel, one_text
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput, encoder_input
from seqloom.tasks.model import single_path

logger = logging.getLogger(__name__)

CHUNK = 4096
"""Texts that are in memory at one time, and sorted by length together."""
BUDGET = {"cpu": 1024, "cuda": 16384}
"""Tokens of a batch, rows × longest, where the model is: what is fastest."""

Vectors = NDArray[np.float32]


@final
class SentenceEncoder(ExplainedModel):
    """An encoder of texts, ready to be asked.

    seqloom.load("runs/minilm").vectors(["A dog runs.", "A cat sleeps."])

    Raises UsageError if the model is no encoder of texts, FolderError if the files on its pooling are
    damaged. Logs what is not as one might think: texts that were cut, pooling that nobody named.
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data", "decode.weights"}),
        "explain": frozenset(),
        "predict": frozenset({"lines", "decode.weights"}),
    }
    pictures: ClassVar = frozenset({"attention", "words", "projection"})

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.encoder, self.tokenizer = bert_of(run), run.tokenizer
        self.storage: Storage = "float32"
        pooling = pooling_of(run.folder)
        if pooling is None:
            logger.info(
                f"{printable(str(run.folder))} does not say how states become one vector: the mean over"
                " all tokens is taken"
            )
        self.pooling = pooling or Pooling()
        self.longest = min(self.pooling.max_length or self.encoder.context, self.encoder.context)
        """Tokens of a text at most, special ones included."""
        special_ids = self.tokenizer.special_ids
        self.room = self.longest - len(special_ids.prefix) - len(special_ids.suffix)
        if self.room < 0:
            raise FolderError(
                f"{printable(str(run.folder))}: a text must have room for its marks, but has"
                f" {self.longest} tokens in all"
            )
        self.width = self.encoder.config.width * len(self.pooling.modes)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """`(texts, width)`. A blank text has the vector of its special tokens alone; a text that is too long
        is truncated."""
        vectors, truncated = self._encode(texts)
        self._log_truncation(truncated)
        return vectors

    vectors = predict = encode

    def with_weights(self, weights: Storage) -> SentenceEncoder:
        """The same model, its weights stored so. Raises UsageError where that cannot be."""
        encoder = copy.copy(self)
        encoder.storage = self.run.decode_settings({"weights": weights}).weights
        return encoder

    def with_settings(self, request: Request) -> SentenceEncoder:
        return self.with_weights(request.decode.get("weights", self.storage))

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The vector of each line of a file."""
        self.check("predict", request, paths)
        path = single_path(paths)
        texts = each_text(path, data_config(self.folder, request.data))
        for vector in self.with_settings(request).stream(
            texts, 1 if request.interactive else CHUNK
        ):
            numbers = vector.tolist()
            yield Answer(" ".join(f"{number:.8g}" for number in numbers), {"vector": numbers})

    def text_vector(self, text: str) -> Tensor:
        return torch.from_numpy(self.encode([text])[0])

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        return encoder_input(self.encoder, self.tokenizer, one_text(texts, self.task))

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """How well the cosine of two texts agrees with the scores that people gave them."""
        self.check("evaluate", request, paths)
        return evaluate_similarity(
            self.with_settings(request), paths, data_config(self.folder, request.data)
        )

    def stream(self, texts: Iterable[str], chunk: int = CHUNK) -> Iterator[Vectors]:
        """The vectors `(width,)` of any number of texts, in order; memory is bounded by the chunk."""
        truncated = 0
        try:
            for batch in chunked(texts, chunk):
                vectors, more = self._encode(batch)
                truncated += more
                yield from vectors
        finally:
            self._log_truncation(truncated)

    def _log_truncation(self, count: int) -> None:
        if count:
            texts = "text was" if count == 1 else "texts were"
            logger.info(f"{count:,} {texts} cut to {self.longest} tokens")

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> tuple[Vectors, int]:
        """The vectors, and how many texts were truncated."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        texts = [text.strip() for text in texts]  # as sentence-transformers does
        if self.pooling.lower_case:
            texts = [text.lower() for text in texts]
        ids = self.tokenizer.encode(texts)
        rows = [encoder_ids(text_ids[: self.room], self.tokenizer.special_ids) for text_ids in ids]
        # a blank text without special tokens has nothing to be read: its vector is 0
        read = [index for index, row in enumerate(rows) if row]
        for batch in batches([len(rows[index]) for index in read], device_of(self.encoder)):
            indices = [read[position] for position in batch]
            with self.run.kept_weights.of(self.storage):
                pooled = self._pooled([rows[index] for index in indices])
            vectors[indices] = pooled.float().cpu().numpy()
        return vectors, sum(len(text_ids) > self.room for text_ids in ids)

    def _pooled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        hidden, inputs = encoded(self.encoder, rows)
        mask = inputs >= 0
        lengths = mask.sum(dim=1, keepdim=True)
        parts = {
            "cls": lambda: hidden[:, 0],
            "max": lambda: hidden.masked_fill(~mask[..., None], -math.inf).amax(dim=1),
            "mean": lambda: hidden.sum(dim=1) / lengths,
            "mean-sqrt": lambda: hidden.sum(dim=1) / lengths.sqrt(),
        }
        vectors = torch.cat([parts[mode]() for mode in self.pooling.modes], dim=1)
        return torch.nn.functional.normalize(vectors, dim=1) if self.pooling.normalise else vectors


def batches(lengths: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """The indices of rows of these lengths that are read together: of similar length, within a budget of
    tokens."""
    sizes = np.array(lengths, np.int64)
    order = sizes.argsort(kind="stable")
    first = 0
    if not len(sizes):
        return
    for end in batch_ends(sizes[order], np.zeros_like(sizes), BUDGET[device.type]):
        yield order[first:end].tolist()
        first = end


def encoded(model: Bert, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """hidden `(rows, steps, width)` and what was read, `(rows, steps)`, -1 at padding, where hidden is 0."""
    inputs = pad(rows, -1).to(device_of(model))
    return model(inputs.clamp(min=0), inputs >= 0), inputs


def bert_of(run: LoadedRun) -> Bert:
    """Of an ELECTRA it is the discriminator. Raises UsageError if the model is no encoder of texts."""
    if not isinstance(run.model, Bert | Electra):
        raise UsageError(
            f"{printable(str(run.folder))}: vectors of texts come from an encoder (of the family bert),"
            f" but this is {run.model_type}"
        )
    return run.model.reader


def evaluate_similarity(
    encoder: SentenceEncoder, paths: Sequence[str], data: DataConfig
) -> Evaluation:
    """How well the cosine of two texts agrees with the score that people gave them.

    Raises DataError and UsageError as `read_labelled` does, and DataError for fewer than two pairs.
    """
    with logged_report() as report:
        pairs = list(read_labelled(paths, data, report, pairs=True, number=True))
    if len(pairs) < 2:
        raise DataError(
            "a correlation needs at least two pairs, but there is one; give more", pairs[0].path
        )
    texts = [pair.text for pair in pairs] + [str(pair.second) for pair in pairs]
    cosines = cosine(*np.split(encoder.encode(texts).astype(np.float64), 2))
    scores = np.array([float(pair.labels[0]) for pair in pairs])
    inputs = [(place(pair.path, pair.line), pair.shown) for pair in pairs]
    examples = similarity_examples(inputs, scores, cosines)
    metrics = correlations(cosines, scores) | {"pairs": len(pairs)}
    return Evaluation(metrics, outputs=[example.answer for example in examples], examples=examples)


def cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(rows, width)` each -> `(rows,)`; 0 where one is 0."""
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.asarray((x * y).sum(axis=1) / np.where(lengths > 0, lengths, 1), np.float64)
