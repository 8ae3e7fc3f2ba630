"""What a masked language model predicts: the tokens at the masks of a text,
p(token | [CLS] text with its masks [SEP]).

A text that spells the mask (`[MASK]`, `<mask>`) means the mask token here, and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from seqloom.config import TrainConfig
from seqloom.data.batching.corpus_store import CorpusStore
from seqloom.data.batching.corpus_windows import CorpusIds
from seqloom.data.batching.pair_batches import encoder_ids
from seqloom.data.formats.read_report import ReadReport
from seqloom.errors import DataError, UsageError, printable
from seqloom.evaluation.perplexity import Likelihood
from seqloom.models.bert import Bert
from seqloom.models.electra import Electra
from seqloom.protocols import NO_REQUEST, Answer, Evaluation, Request, device_of
from seqloom.runs.progress import chunked, each_text, logged_report
from seqloom.runs.run_folder import RUN, LoadedRun
from seqloom.runs.settings import data_config, run_config_in
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder, Vectors, batches, encoded
from seqloom.tasks.explain.explained_model import ExplainedModel, one_text
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput
from seqloom.tasks.fill_mask import explained_input
from seqloom.tasks.fill_mask.pseudo_likelihood import measure_alone, pseudo_log_probs
from seqloom.tasks.fill_mask.replaced_scores import measure_rows
from seqloom.tasks.fill_mask.row_settings import masked_rows
from seqloom.tasks.language_modeling.documents import each_document
from seqloom.tasks.language_modeling.training_data import with_document_ends
from seqloom.tasks.model import single_path

logger = logging.getLogger(__name__)

CHUNK = 512
"""Texts that are in memory at one time."""
MOST_LIKELY = 5
"""Tokens for each mask, by default."""


class Candidate(NamedTuple):
    """A token that may be at a mask."""

    token: str
    """What it spells, with a space before it where it begins a word."""
    id: int
    probability: float


class Filled(NamedTuple):
    """A text with its masks filled, and the candidates."""

    text: str
    """With the likeliest token at each mask."""
    masks: tuple[tuple[Candidate, ...], ...]
    """Of each mask, in order, its likeliest tokens, best first."""


@final
class MaskFiller(ExplainedModel):
    """A masked language model, ready to be asked. Raises UsageError if the model is none.

    seqloom.load("runs/bert").fill_masks(["A [MASK] runs."])
    """

    reads: ClassVar = {
        "evaluate": frozenset({"data"}),
        "explain": frozenset(),
        "predict": frozenset({"lines", "decode.n_best"}),
    }

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.masked = _masked_model(run)
        self.bert, self.tokenizer = self.masked.filler, run.tokenizer
        self.mask = _mask_of(run)
        (self.spelling,) = self.tokenizer.pieces([self.mask])
        """How a text spells the mask."""

    def fill_masks(self, texts: Sequence[str], n_best: int = MOST_LIKELY) -> list[Filled]:
        """The likeliest tokens at each mask of each text."""
        return list(self.fill(texts, n_best))

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Each text with the likeliest token at each of its masks."""
        return [filled.text for filled in self.fill(texts, 1)]

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """The vector of each text, `(texts, width)`."""
        return SentenceEncoder(self.run).encode(texts)

    def answers(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Iterator[Answer]:
        """Each line of a file with its masks filled; a blank or skipped line gives an empty one."""
        self.check("predict", request, paths)
        path = single_path(paths)
        data = data_config(self.folder, request.data)
        with logged_report() as report:
            skipped = report if data.on_bad_line == "skip" else None
            chunk = 1 if request.interactive else CHUNK
            n_best = request.decode.get("n_best", MOST_LIKELY)
            filled = self.fill(
                each_text(path, data), n_best, path=path, skipped=skipped, chunk=chunk
            )
            for text, masks in filled:
                candidates = []
                for mask in masks:
                    candidates.append([candidate._asdict() for candidate in mask])
                yield Answer(text, {"text": text, "masks": candidates})

    def text_vector(self, text: str) -> Tensor:
        """The mean over its tokens."""
        batch = self.model_input([text], Look(show="attention"), NO_REQUEST).batch
        return self.bert.encode_batch(batch)[0].mean(dim=0)

    def model_input(self, texts: Sequence[str], look: Look, request: Request) -> ModelInput:
        text = one_text(texts, self.task)
        return explained_input.explained_input(self.bert, self.tokenizer, text, look)

    def evaluate(self, paths: Sequence[str], request: Request = NO_REQUEST) -> Evaluation:
        """The loss and accuracy of masks that are always the same, and of pairs of sentences where the model
        knows them; then pseudo-perplexity and its kin, which takes far longer."""
        self.check("evaluate", request, paths)
        data = data_config(self.folder, request.data)
        documents = list(each_document(paths, data, self.tokenizer))
        if not documents:
            raise DataError("there must be at least one document, but there is none", paths[0])
        metrics = self._of_masks([document.ids for document in documents])
        logger.info(
            f"masked loss {metrics['masked_loss']:.4f}, accuracy {metrics['masked_accuracy']:.2f} %; now each"
            " token is masked alone"
        )
        metrics |= measure_alone(self.bert, documents, self.tokenizer.special_ids, self.mask)
        tokenizer = self.run.tokenizer
        vocabulary = {"vocabulary": tokenizer.vocabulary_size}
        return Evaluation(metrics | vocabulary, details={"tokenizer": tokenizer.kind})

    def pseudo_likelihoods(self, texts: Sequence[str]) -> Iterator[Likelihood]:
        """Σ log p(u_i | all others) of each text, each token masked in turn (Salazar et al. 2020)."""
        special_ids = self.tokenizer.special_ids
        room = self.bert.context - len(special_ids.prefix) - len(special_ids.suffix)
        for chunk in chunked(texts, CHUNK):
            ids = self.tokenizer.encode(chunk)
            if (longest := max(map(len, ids), default=0)) > room:
                raise UsageError(
                    f"a text must have at most {room} tokens to be scored by"
                    f" {printable(str(self.folder))}, but one has {longest}; leave it out"
                )
            scores = pseudo_log_probs(self.bert, ids, special_ids, self.mask)
            for text_ids, log_probs in zip(ids, scores, strict=True):
                unknown = 0 if special_ids.unk is None else text_ids.count(special_ids.unk)
                yield Likelihood(float(log_probs.sum()), unknown)

    def _of_masks(self, documents: Sequence[CorpusIds]) -> dict[str, float]:
        """Under the settings of the training, where there was one."""
        train = TrainConfig()
        if (self.folder / RUN).is_file():
            train = run_config_in(self.folder).train
        eos = with_document_ends(self.tokenizer).special_ids.eos
        corpus = CorpusStore.of(documents, eos)
        config = self.masked.config
        if train.sentence_pairs == "none" and config.next_sentence:
            train = replace(train, sentence_pairs="next")
        return measure_rows(self.masked, masked_rows(train, self.tokenizer, config), corpus)

    def fill(
        self,
        texts: Iterable[str],
        n_best: int = MOST_LIKELY,
        *,
        path: str = "texts",
        skipped: ReadReport | None = None,
        chunk: int = CHUNK,
    ) -> Iterator[Filled]:
        """For each text what its masks may be; an empty answer for a blank one. Memory is bounded by the
        chunk.

        A text without a mask, or one that is too long, is a DataError that names `path` and its number, from
        1, after what came before it was answered; with `skipped` it is counted there, and its answer is
        empty.
        """
        number = 0
        for batch in chunked(texts, chunk):
            ids = [
                encoder_ids(text_ids, self.tokenizer.special_ids) for text_ids in self._ids(batch)
            ]
            wanted = []
            for i, text in enumerate(batch):
                number += 1
                problem = self._problem(text, ids[i])
                if problem is None and self.mask in ids[i]:
                    wanted.append(i)
                elif problem is not None and skipped is not None:
                    reason = "too long" if self.mask in ids[i] else f"no {self.spelling}"
                    skipped.skip(reason, path, number)
                elif problem is not None:
                    yield from self._filled(batch[:i], ids, wanted, n_best)
                    raise DataError(problem, path, number)
            yield from self._filled(batch, ids, wanted, n_best)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_masked(texts)

    def _problem(self, text: str, ids: Sequence[int]) -> str | None:
        if text.strip() and self.mask not in ids:
            return (
                f"a text must hold {self.spelling} where a token is to be predicted, but holds none"
            )
        if self.mask in ids and len(ids) > self.bert.context:
            return (
                f"a text must have at most {self.bert.context} tokens, marks counted, but has {len(ids)};"
                " give a part of it"
            )
        return None

    @torch.inference_mode()
    def _filled(
        self, texts: Sequence[str], ids: Sequence[Sequence[int]], wanted: Sequence[int], n_best: int
    ) -> list[Filled]:
        """One for each text. `wanted` are the indices of those with masks; others are not answered."""
        found: list[list[tuple[Candidate, ...]]] = [[] for _ in texts]
        for batch in batches([len(ids[i]) for i in wanted], device_of(self.bert)):
            with self.run.kept_weights.of():
                logits, places = self._logits([ids[wanted[index]] for index in batch])
            best = logits.double().softmax(dim=-1).topk(min(n_best, logits.shape[-1]), dim=-1)
            lists = zip(places, best.indices.tolist(), best.values.tolist(), strict=True)
            for row, tokens, probabilities in lists:
                candidates = zip(self._spell(tokens), tokens, probabilities, strict=True)
                found[wanted[batch[row]]].append(tuple(map(Candidate._make, candidates)))
        return [
            Filled(self._text(text, masks) if masks else "", tuple(masks))
            for text, masks in zip(texts, found, strict=True)
        ]

    def _logits(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
        """`(masks, vocabulary)`, and the row of each mask; the rest has no logits."""
        hidden, inputs = encoded(self.bert, rows)
        masked = inputs == self.mask
        return self.bert.logits(hidden[masked]), masked.nonzero()[:, 0].tolist()

    def _spell(self, tokens: Sequence[int]) -> list[str]:
        spelled = self.tokenizer.token_bytes
        return [
            spelled[i].decode("utf-8", "replace") or self.tokenizer.pieces([i])[0] for i in tokens
        ]

    def _text(self, text: str, masks: Sequence[Sequence[Candidate]]) -> str:
        """The text with the best token at each mask. A token that continues a word follows it without a
        space."""
        parts = text.split(self.spelling)
        filled = parts[0]
        for candidates, after in zip(masks, parts[1:], strict=True):
            token = candidates[0].token
            filled = (
                filled + token.lstrip() if token[:1] == " " else filled.rstrip() + token
            ) + after
        return filled


def _masked_model(run: LoadedRun) -> Bert | Electra:
    if run.task != "fill-mask" or not isinstance(run.model, Bert | Electra):
        raise UsageError(
            f"{printable(str(run.folder))}: must be a masked language model (of fill-mask), but is one of"
            f" {run.task}"
        )
    return run.model


def _mask_of(run: LoadedRun) -> int:
    mask = run.tokenizer.special_ids.mask
    if mask is None:
        raise UsageError(
            f"{printable(str(run.folder))}: its tokenizer must have a mask, but has none; get its files again"
        )
    return mask
