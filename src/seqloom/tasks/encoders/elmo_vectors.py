"""A trained ELMo: vectors of texts and of their tokens, and the perplexity of both its directions.

    of a token   its layers, mixed: uniformly, unless a task has trained s and γ
    of a text    the mean over its tokens

States are not carried from text to text: the vectors of a text depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.data.batching.pair_batches import pad
from seqloom.data.encoding.encoded_dataset import SequenceArray, WordCharacters
from seqloom.errors import UsageError, printable
from seqloom.evaluation.perplexity import CorpusLikelihood, score_texts
from seqloom.models.elmo import DirectionState, Elmo
from seqloom.protocols import (
    NO_REQUEST,
    Answer,
    Evaluation,
    Request,
    SpecialIds,
    StoredTokenizer,
    device_of,
)
from seqloom.runs.progress import chunked, each_text
from seqloom.runs.run_folder import LoadedRun
from seqloom.runs.settings import data_config
from seqloom.tasks.encoders.sentence_vectors import Vectors, batches
from seqloom.tasks.explain.explained_model import ExplainedModel
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.language_modeling.documents import Document, document_batches, each_document
from seqloom.tasks.model import single_path
from seqloom.text.word_characters import TokenSpelling

CHUNK = 1024
"""Texts that are in memory at one time."""


@final
class TextVectors(NamedTuple):
    """The vectors of one text."""

    vector: Vectors
    """`(2 * projection,)`"""
    tokens: list[str]
    layers: NDArray[np.float32]
    """`(1 + layers, tokens, 2 * projection)`: forward, then backward."""


@final
class ElmoVectors(ExplainedModel):
    """An ELMo, ready to be asked.

    seqloom.load("runs/elmo").vectors(["A dog runs.", "A cat sleeps."])
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data"}),
        "explain": frozenset(),
        "predict": frozenset({"lines"}),
    }
    pictures: ClassVar = frozenset({"words", "projection"})
    room = None
    """A text may have any number of tokens."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.elmo, self.tokenizer = cast(Elmo, run.model), run.tokenizer
        self.spelling = spelling_of(self.elmo, run.tokenizer)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """`(texts, width)`: the vector of each text; that of a blank one is 0."""
        found = [text.vector for text in self.stream(texts)]
        return np.stack(found) if found else np.zeros((0, 2 * self.elmo.config.projection), "f4")

    predict = vectors

    def layers(self, texts: Sequence[str]) -> list[TextVectors]:
        """Every layer of every token of each text."""
        return list(self.stream(texts))

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """The vector of each line of a file, and in full the layers of its tokens."""
        self.check("predict", request, paths)
        texts = each_text(single_path(paths), data_config(self.folder, request.data))
        for vectors in self.stream(texts, 1 if request.interactive else CHUNK):
            numbers = vectors.vector.tolist()
            tokens = [
                {"token": token, "layers": vectors.layers[:, index].tolist()}
                for index, token in enumerate(vectors.tokens)
            ]
            line = " ".join(f"{number:.8g}" for number in numbers)
            yield Answer(line, {"vector": numbers, "tokens": tokens})

    def default_show(self) -> str:
        return "projection"

    def text_vector(self, text: str) -> Tensor:
        return torch.from_numpy(self.vectors([text])[0])

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        """Raises UsageError: an ELMo by itself answers nothing."""
        raise UsageError(f"an ELMo by itself is shown with --show projection, not {look.show}")

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """The perplexity of both directions on documents. Raises UsageError for a model without an output."""
        self.check("evaluate", request, paths)
        if self.elmo.output is None:
            raise UsageError(
                f"{printable(str(self.folder))}: perplexity needs the softmax that a model was trained with,"
                " but the published files of an ELMo have none; train one: seqloom train feature-extraction"
            )
        data = data_config(self.folder, request.data)
        documents = each_document(paths, data, self.tokenizer)
        letters, special_ids = letters_of(self.spelling), self.tokenizer.special_ids
        likelihoods = both_likelihoods(self.elmo, letters, documents, special_ids)
        metrics = bidirectional_metrics(*likelihoods)
        vocabulary = {"vocabulary": self.tokenizer.vocabulary_size}
        return Evaluation(metrics | vocabulary, details={"tokenizer": self.tokenizer.kind})

    def stream(self, texts: Iterable[str], chunk: int = CHUNK) -> Iterator[TextVectors]:
        """The vectors of any number of texts, in order; memory is bounded by the chunk."""
        for batch in chunked(texts, chunk):
            yield from self._encode(batch)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> list[TextVectors]:
        width, device = 2 * self.elmo.config.projection, device_of(self.elmo)
        ids = (self.spelling or self.tokenizer).encode(texts)
        letters = (
            [] if self.spelling is None else self.spelling.known + self.spelling.take_unknown()
        )
        spelled = WordCharacters(words=SequenceArray.of(ids), characters=SequenceArray.of(letters))
        nothing = np.zeros((1 + self.elmo.config.layers, 0, width), np.float32)
        found = [TextVectors(np.zeros(width, np.float32), [], nothing) for _ in texts]
        read = [index for index, token_id in enumerate(ids) if token_id]
        for batch in batches([len(ids[index]) for index in read], device):
            rows = [read[position] for position in batch]
            tokens, characters = pad([ids[row] for row in rows], -1), None
            if self.spelling is not None:
                characters = spelled.batch(np.array(rows), tokens.shape[1]).to(device)
                tokens = self._known(tokens)
            tokens = tokens.to(device)
            layers, _ = self.elmo.layers_of_texts(tokens, characters)
            stacked, mask = torch.stack(layers), tokens >= 0
            mixed = stacked.mean(dim=0) if self.elmo.mix is None else self.elmo.mix(layers)
            sums = mixed.where(mask[..., None], 0).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            for row, vector, of_text in zip(rows, sums, stacked.unbind(dim=1), strict=True):
                length = len(ids[row])
                found[row] = TextVectors(
                    vector.float().cpu().numpy(),
                    self._pieces(ids[row], texts[row]),
                    of_text[:, :length].float().cpu().numpy(),
                )
        return found

    def _known(self, ids: Tensor) -> Tensor:
        """The ids, where those of unknown words are that of `<unk>`."""
        unknown = self.tokenizer.special_ids.unk
        beyond = ids >= self.tokenizer.vocabulary_size
        return ids if unknown is None else ids.masked_fill(beyond, unknown)

    def _pieces(self, ids: Sequence[int], text: str) -> list[str]:
        """Each token in readable form; an unknown word as the text has it."""
        size = self.tokenizer.vocabulary_size
        known = [token if token < size else 0 for token in ids]
        pieces = self.tokenizer.pieces(known)
        if max(ids, default=0) < size:
            return pieces
        (spans,) = self.tokenizer.offsets([text])
        return [
            piece if token < size else text[slice(*span)]
            for piece, token, span in zip(pieces, ids, spans, strict=True)
        ]


def spelling_of(model: Elmo, tokenizer: StoredTokenizer) -> TokenSpelling | None:
    """The bytes of tokens, where the model reads them."""
    c = model.config
    return TokenSpelling(tokenizer, c.longest_word) if c.tokens == "characters" else None


def letters_of(spelling: TokenSpelling | None) -> Tensor | None:
    """`(vocabulary, letters)`: the bytes of each id, -1 at padding."""
    return None if spelling is None else pad([row or [-1] for row in spelling.known], -1)


@final
class ElmoDirection(nn.Module):
    """One of the two language models of an ELMo, as a `TargetScorer`."""

    def __init__(self, elmo: Elmo, letters: Tensor | None, backward: bool) -> None:
        super().__init__()
        self.elmo, self.letters, self.backward = elmo, letters, backward

    def log_probs(
        self, tokens: Tensor, targets: Tensor, state: DirectionState | None
    ) -> tuple[Tensor, DirectionState]:
        assert self.elmo.output is not None
        letters = self.letters
        characters = None if letters is None else letters.to(tokens.device)[tokens]
        hidden, after = self.elmo.read_direction(tokens, characters, state, backward=self.backward)
        return self.elmo.output.log_probs(hidden, targets), after


def both_likelihoods(
    model: Elmo, letters: Tensor | None, documents: Iterator[Document], special_ids: SpecialIds
) -> tuple[CorpusLikelihood, CorpusLikelihood]:
    """Of documents under the forward and the backward language model; each is read from the empty state. The
    model must be in evaluation mode."""
    assert special_ids.eos is not None
    reverse = special_ids._replace(bos=(special_ids.eos,), eos=special_ids.bos[-1])
    directions = [(ElmoDirection(model, letters, False), special_ids, 1)]
    directions += [(ElmoDirection(model, letters, True), reverse, -1)]
    sums = [CorpusLikelihood.empty(special_ids) for _ in directions]
    for batch in document_batches(documents):
        for corpus, (direction, marks, step) in zip(sums, directions, strict=True):
            scores = score_texts(direction, [document.ids[::step] for document in batch], marks)
            for document, score in zip(batch, scores, strict=True):
                corpus.add(score, document.ids, words=document.words, size=document.bytes)
    return sums[0], sums[1]


def bidirectional_metrics(
    forward: CorpusLikelihood, backward: CorpusLikelihood
) -> dict[str, float]:
    """loss, perplexity and their kin, where log p is the mean of both directions; and forward_loss,
    backward_perplexity, ... of each. All with their intervals."""
    blocks = zip(forward.blocks, backward.blocks, strict=True)
    mean = replace(
        forward,
        nats=[(a + b) / 2 for a, b in zip(forward.nats, backward.nats, strict=True)],
        blocks=[((a + b) / 2, tokens) for (a, tokens), (b, _) in blocks],
    )
    metrics = mean.metrics()
    for name, direction in (("forward", forward), ("backward", backward)):
        for key, value in direction.metrics().items():
            if key.startswith(("loss", "perplexity")):
                metrics[f"{name}_{key}"] = value
    return metrics
