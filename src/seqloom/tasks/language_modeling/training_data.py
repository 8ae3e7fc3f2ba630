"""Texts to what the training of a language model reads: a tokenizer, token stores, a plan of windows."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple, final

from torch import nn

from seqloom.config import DataConfig, RunConfig
from seqloom.data.batching.corpus_store import CorpusStore, Totals, build_corpus
from seqloom.data.batching.corpus_windows import StreamPlan, TextBatch, WindowPlan, load_windows
from seqloom.data.batching.splits import HeldOut, hold_out, select_pieces
from seqloom.data.batching.token_store import cache_folder, fingerprint
from seqloom.data.readers.documents import TEXT_ENDINGS, DocumentPiece, corpus_files
from seqloom.errors import UsageError, counted
from seqloom.long_work import duration, every_few_seconds, log_progress
from seqloom.models import model_family
from seqloom.protocols import (
    FittedModel,
    ModelConfig,
    Rows,
    StoredTokenizer,
    context_of,
)
from seqloom.tasks.language_modeling.documents import (
    Document,
    each_piece,
    log_spelled_unknown,
    score_documents,
)
from seqloom.tasks.starting_point import StartedTrainingData, StartingPoint, starting_point
from seqloom.tasks.training_data import (
    check_same_data,
    count_ids,
    record_data,
    set_output_counts,
    stored_reading_settings,
)
from seqloom.text.phrases import Phrases
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import LanguageModelling
from seqloom.training.stream_states import StreamStates

logger = logging.getLogger(__name__)

STREAM_WINDOW = 64
"""Tokens between two updates of a model that carries its state on, unless train.window says otherwise."""


@dataclass(frozen=True, kw_only=True)
class CorpusTrainingData(StartedTrainingData):
    """Documents that a model is trained on."""

    corpus: CorpusStore
    validation: CorpusStore

    def about(self) -> str:
        held = self.validation.totals
        return (
            f"{counted(self.corpus.totals.documents, 'document')} of"
            f" {counted(self.corpus.totals.ids, 'token')} ({held.documents:,} of {held.ids:,} for validation)"
        )


@dataclass(frozen=True, kw_only=True)
class WindowedCorpus(CorpusTrainingData):
    """Documents in windows."""

    plan: WindowPlan | StreamPlan

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(self.corpus, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.corpus)

    def describe(self, rows: Rows) -> str:
        starts = self.plan.windows(self.corpus, rows[:4]).starts
        places = ", ".join(map(self.corpus.place, starts.tolist()))
        return f"the windows in the documents of {places}" + (", ..." if len(rows) > 4 else "")

    def stream_states(self) -> StreamStates | None:
        """Those of the streams, where there are any."""
        return StreamStates(self.plan.rows) if self.plan.carries else None


@final
@dataclass(frozen=True, kw_only=True)
class PreparedCorpus(WindowedCorpus):
    """Documents as the training loop of a language model reads them."""

    def load(self, rows: Rows, whole: Rows) -> TextBatch:
        return load_windows(self.corpus, self.plan, rows, whole, self.tokenizer.special_ids)

    def objective(self) -> LanguageModelling:
        return LanguageModelling(self.run.train.label_smoothing, self.stream_states())

    def initialise(self, model: nn.Module) -> None:
        """An output layer that works by frequency needs to know how often each id occurs. A pretrained one
        knows it already: its clusters must stay as they are."""
        if self.start.pretrained is None:
            counts = count_ids(self.corpus.tokens, self.tokenizer.vocabulary_size)
            set_output_counts(model, counts)

    def fit(self, model_class: type[FittedModel], config: ModelConfig) -> nn.Module:
        return model_class.fit(config, self.corpus.tokens)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Perplexity and its kin; a long document is read in windows that do not overlap."""
        indices = range(len(self.validation))
        documents = (Document(self.validation.document(index), 0, 0) for index in indices)
        corpus = score_documents(model, documents, special_ids=self.tokenizer.special_ids)
        totals = self.validation.totals
        corpus.words, corpus.sizes = totals.words, [totals.bytes]
        return corpus.metrics()


@final
class DocumentSplit:
    """The documents to train on, and those held out for validation."""

    def __init__(self, data: DataConfig, seed: int) -> None:
        self.data, self.seed = data, seed
        self.train_files = corpus_files(data.train, data)
        self.validation_files = corpus_files(data.validation, data) if data.validation else []
        self.held_out = HeldOut()

    @property
    def files(self) -> list[str]:
        return [*self.train_files, *self.validation_files]

    def hold_out(self) -> None:
        """Chooses the validation documents, where no files of their own are named."""
        if self.validation_files:
            return
        self.held_out = hold_out(each_piece(self.data.train, self.data, notices=False), self.seed)
        by_seed = f" by seed {self.seed}" if self.held_out.documents else ""
        logger.info(f"no validation data given: {self.held_out} held out{by_seed}")

    def training(self, notices: bool = False) -> Iterator[DocumentPiece]:
        return self._joined(self._read_training(notices))

    def validation(self) -> Iterator[DocumentPiece]:
        if self.validation_files:
            return self._joined(each_piece(self.data.validation, self.data, notices=False))
        pieces = each_piece(self.data.train, self.data, notices=False)
        return self._joined(select_pieces(pieces, self.held_out, True))

    @cached_property
    def phrases(self) -> Phrases:
        """Those of the training text (`data.phrases`)."""
        phrases, threshold = Phrases(self.data), self.data.phrases or math.inf
        phrases.learn((piece.text for piece in self._read_training(notices=False)), threshold)
        examples = [f"{a}_{b} ({count:,})" for (a, b), count in islice(phrases.counts.items(), 5)]
        logger.info(
            f"data.phrases={threshold:g} joins {counted(len(phrases.counts), 'pair')} of words"
            + (f", the most frequent {', '.join(examples)}" if examples else "")
        )
        return phrases

    def _read_training(self, notices: bool) -> Iterator[DocumentPiece]:
        return select_pieces(each_piece(self.data.train, self.data, notices), self.held_out, False)

    def _joined(self, pieces: Iterator[DocumentPiece]) -> Iterator[DocumentPiece]:
        if self.data.phrases is None:
            return pieces
        return (piece._replace(text=self.phrases.join(piece.text)) for piece in pieces)

    def tokenizer_texts(self) -> Iterator[str]:
        """The training text, up to `data.learn_from` characters."""
        data = self.data
        remaining = math.inf if data.tokenizer == "characters" else data.learn_from
        pieces = log_spelled_unknown(self.training(notices=True), data.tokenizer)
        for piece in log_progress(pieces, "texts read for the tokenizer"):
            if remaining <= 0:
                logger.info(
                    f"the tokenizer is learned from the first {data.learn_from:,} characters"
                    " (data.learn_from)"
                )
                return
            remaining -= len(piece.text)
            yield piece.text


@final
class CorpusStores(NamedTuple):
    """Documents as ids, and the model that reads them."""

    start: StartingPoint
    corpus: CorpusStore
    validation: CorpusStore


def prepare_stores(
    run_config: RunConfig,
    folder: Path,
    first: bool,
    extend: Callable[[TextTokenizer], TextTokenizer] = lambda learned: learned,
    *,
    holds_out: bool = True,
) -> CorpusStores:
    """Reads the documents, trains the tokenizer on the training part alone (or takes the folder's), builds
    the stores. `extend`: what a new tokenizer gets beside what it learns. Where nothing is held out, both
    stores are the same."""
    data = run_config.data
    split = DocumentSplit(data, run_config.train.seed)
    fingerprints = [fingerprint(path) for path in split.files]
    check_same_data(folder, fingerprints)
    if holds_out:
        split.hold_out()
    start = starting_point(run_config, folder, split.tokenizer_texts, first, extend)
    tokenizer = with_document_ends(start.tokenizer)
    common = {
        "read": stored_reading_settings(data),
        "held_out": [] if split.validation_files else [str(split.held_out), split.seed],
        "tokenizer": tokenizer.fingerprint,
    }

    def build(
        pieces: Callable[[], Iterator[DocumentPiece]], part: str, paths: Sequence[str]
    ) -> CorpusStore:
        hashes = [file["sha256"] for file in fingerprints if file["path"] in paths]
        identity = {"files": hashes, "part": part, **common}
        # of other files nobody knows how much text is in them, nor what part of it is held out
        is_plain = part == "training" and all(path.endswith(TEXT_ENDINGS) for path in paths)
        progress = corpus_progress(part, sum(map(os.path.getsize, paths)) if is_plain else None)
        return build_corpus(pieces, tokenizer, identity, cache_folder(Path(paths[0])), progress)

    corpus = build(split.training, "training", split.train_files)
    validation = corpus
    if holds_out:
        paths = split.validation_files or split.train_files
        validation = build(split.validation, "validation", paths)
    if first:
        totals = {"training": asdict(corpus.totals), "validation": asdict(validation.totals)}
        record_data(folder, fingerprints, **totals)
    return CorpusStores(start, corpus, validation)


def with_document_ends(tokenizer: StoredTokenizer) -> StoredTokenizer:
    """Where no token ends a text that is written, as in encoders, what ends one that is read ends a
    document."""
    special_ids = tokenizer.special_ids
    if special_ids.eos is not None or not special_ids.suffix:
        return tokenizer
    return tokenizer.with_special_ids(special_ids._replace(eos=special_ids.suffix[-1]))


def prepare_corpus(run_config: RunConfig, folder: Path, first: bool) -> PreparedCorpus:
    """The training data of a language model."""
    start, corpus, validation = prepare_stores(run_config, folder, first)
    return PreparedCorpus(
        run=run_config,
        start=start,
        corpus=corpus,
        validation=validation,
        plan=make_plan(run_config, start.config, corpus),
    )


def make_plan(
    run_config: RunConfig, config: ModelConfig, corpus: CorpusStore
) -> WindowPlan | StreamPlan:
    """How the corpus is cut into batches: streams for a model that carries its state on, shuffled windows for
    others."""
    train = run_config.train
    family = model_family(run_config.model["name"])[1]
    output, context = vars(config).get("output", "full"), context_of(config)
    if context is not None:
        context -= train.prompt_length or 0
    if train.label_smoothing and output != "full":
        raise UsageError(
            "train.label_smoothing needs model.output=full, which knows all words at each position, but it"
            f" is {output}"
        )
    # a family from a plugin need not say it; that of one model may be a setting
    carries = vars(config).get("carry_states", getattr(family, "carries", False))
    if carries and train.prompt_length is not None:
        raise UsageError(
            "train.prompt_length is for models that read each window from its beginning, such as gpt, but a"
            f" {run_config.model['name']} carries its state on and would read the prompt now and then"
        )
    window = train.window or (STREAM_WINDOW if carries else context) or STREAM_WINDOW
    if context is not None and window > context:
        raise UsageError(
            f"train.window must be at most {context}, what the model reads beside a prompt, but is {window}"
            if train.prompt_length
            else f"train.window must be at most model.context={context}, but is {window}"
        )
    rows = train.batch_rows or max(train.batch_tokens // window, 1)
    if not carries:
        return WindowPlan(seed=train.seed, window=window, rows=rows)
    most = max(len(corpus.tokens) // window, 1)
    if rows > most and not issubclass(family, FittedModel):
        logger.info(
            f"the text is too short for {rows:,} streams of windows of {window} tokens: {most:,} are read"
            " side by side"
        )
    return StreamPlan(seed=train.seed, window=window, rows=min(rows, most))


def corpus_progress(part: str, size: int | None = None) -> Callable[[Totals], None]:
    """Logs every few seconds how much of a part is tokenised, and how long it will take where its size in
    bytes is known."""
    due, began = every_few_seconds(), time.monotonic()

    def show(totals: Totals) -> None:
        if due():
            left = ""
            if size is not None and totals.bytes:
                seconds = (time.monotonic() - began) / totals.bytes * max(0, size - totals.bytes)
                left = f", {duration(seconds)} left"
            tokens = counted(totals.ids, "token")
            logger.info(f"{part}: {totals.bytes / 1e6:,.0f} MB, {tokens}{left}")

    return show
