"""Texts to what the training of a language model reads: a tokenizer, token stores, a plan of windows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from seqloom import files
from seqloom.config import RunConfig
from seqloom.data.batching.corpus_store import CorpusStore, Totals, build_corpus
from seqloom.data.batching.corpus_windows import StreamPlan, TextBatch, WindowPlan, load_windows
from seqloom.data.batching.splits import HeldOut, hold_out, select_pieces
from seqloom.data.batching.token_store import cache_folder, fingerprint
from seqloom.data.readers.documents import DocumentPiece, corpus_files
from seqloom.errors import UsageError
from seqloom.models import model_family
from seqloom.protocols import FittedModel, FrequencyOutput, NeuralDecodable, NewModel, Rows, context_of
from seqloom.run_file import to_plain
from seqloom.runs import run_folder
from seqloom.runs.progress import log_progress
from seqloom.runs.settings import model_fields
from seqloom.tasks.language_modeling.documents import Document, each_piece, score_documents
from seqloom.tasks.training_data import check_same_data, learned_tokenizer, new_model
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.objectives import LanguageModelling
from seqloom.training.stream_states import StreamStates

logger = logging.getLogger(__name__)

STREAM_WINDOW = 64
"""Tokens between two updates of a model that carries its state on, unless train.window says otherwise."""
COUNTED = 2**24
"""Ids that are counted at one time."""


@final
@dataclass(frozen=True, kw_only=True)
class PreparedCorpus:
    """A corpus turned into what the loop reads."""

    run: RunConfig
    tokenizer: TextTokenizer
    corpus: CorpusStore
    validation: CorpusStore
    plan: WindowPlan | StreamPlan

    def about(self) -> str:
        trained, held = self.corpus.totals, self.validation.totals
        return (
            f"{trained.documents:,} documents of {trained.ids:,} tokens ({held.documents:,} of {held.ids:,}"
            " for validation)"
        )

    def build(self) -> NewModel:
        return new_model(self.run, self.tokenizer.vocabulary_size)

    def batches(self, epoch: int, start: int) -> Iterator[Rows]:
        return self.plan.epoch(self.corpus, epoch, start)

    def batches_an_epoch(self) -> int:
        return self.plan.count(self.corpus)

    def load(self, rows: Rows, whole: Rows) -> TextBatch:
        return load_windows(self.corpus, self.plan, rows, whole, self.tokenizer.special_ids)

    def describe(self, rows: Rows) -> str:
        starts = self.plan.windows(self.corpus, rows[:4]).starts
        return (
            "the windows in the documents of "
            + ", ".join(map(self.corpus.place, starts.tolist()))
            + (", ..." if len(rows) > 4 else "")
        )

    def objective(self) -> LanguageModelling:
        stream_states = StreamStates(self.plan.rows) if isinstance(self.plan, StreamPlan) else None
        return LanguageModelling(self.run.train.label_smoothing, stream_states)

    def initialise(self, model: nn.Module) -> None:
        """An output layer that works by frequency is told how often each id occurs."""
        if isinstance(model, NeuralDecodable) and isinstance(model.output, FrequencyOutput):
            model.output.set_counts(torch.from_numpy(self.counts()))

    def counts(self) -> NDArray[np.int64]:
        """`(vocabulary,)`: how often each id occurs in the training text."""
        counts = np.zeros(self.tokenizer.vocabulary_size, np.int64)
        for at in range(0, len(self.corpus.tokens), COUNTED):
            counts += np.bincount(self.corpus.tokens[at : at + COUNTED], minlength=len(counts))
        return counts

    def fit(self, model_class: Any, config: Any) -> nn.Module:
        model: nn.Module = model_class.fit(config, self.corpus.tokens)
        return model

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Perplexity and its kin; a long document is read in windows that do not overlap."""
        documents = (Document(self.validation.document(at), 0, 0) for at in range(len(self.validation)))
        corpus = score_documents(model, documents, special_ids=self.tokenizer.special_ids)
        corpus.words, corpus.bytes = (
            self.validation.totals.words,
            self.validation.totals.bytes,
        )  # which the store counted
        return corpus.metrics()


def prepare_corpus(run_config: RunConfig, folder: Path, first: bool) -> PreparedCorpus:
    """Reads the texts, learns the tokenizer from the training part alone (or takes the folder's), makes the
    stores."""
    data, seed = run_config.data, run_config.train.seed
    used = corpus_files(data.train, data)
    others = corpus_files(data.validation, data) if data.validation else []
    prints = [fingerprint(path) for path in [*used, *others]]
    check_same_data(folder, prints)
    held = HeldOut()
    if not others:
        held = hold_out(each_piece(data.train, data, notices=False), seed)
        logger.info(
            f"no validation data given: {held} held out" + (f" by seed {seed}" if held.documents else "")
        )

    def training(notices: bool = False) -> Iterator[DocumentPiece]:
        return select_pieces(each_piece(data.train, data, notices), held, False)

    def validating(notices: bool = False) -> Iterator[DocumentPiece]:
        if others:
            return each_piece(data.validation, data, notices)
        return select_pieces(each_piece(data.train, data, notices), held, True)

    def texts() -> Iterator[str]:
        left = math.inf if data.tokenizer == "characters" else data.learn_from
        for piece in log_progress(training(notices=True), "texts read for the tokenizer"):
            if left <= 0:
                logger.info(
                    f"the tokenizer is learned from the first {data.learn_from:,} characters"
                    " (data.learn_from)"
                )
                return
            left -= len(piece.text)
            yield piece.text

    tokenizer = learned_tokenizer(folder, data, texts, first)
    read = {
        key: value
        for key, value in to_plain(data).items()
        if key not in ("train", "validation", "max_length")
    }
    common = {
        "read": read,
        "held_out": [str(held), seed] if not others else [],
        "tokenizer": tokenizer.fingerprint,
    }

    def build(pieces: Callable[[], Iterator[DocumentPiece]], part: str, paths: Sequence[str]) -> CorpusStore:
        hashes = [one["sha256"] for one in prints if one["path"] in paths]
        return build_corpus(
            pieces,
            tokenizer,
            {"files": hashes, "part": part, **common},
            cache_folder(Path(paths[0])),
            progress(part),
        )

    corpus = build(training, "training", used)
    validation = build(validating, "validation", others or used)
    if first and not (folder / run_folder.DATA).exists():
        files.write_json(
            folder / run_folder.DATA,
            {"files": prints, "training": asdict(corpus.totals), "validation": asdict(validation.totals)},
        )
    plan = make_plan(run_config, tokenizer.vocabulary_size, corpus)
    return PreparedCorpus(
        run=run_config, tokenizer=tokenizer, corpus=corpus, validation=validation, plan=plan
    )


def make_plan(run_config: RunConfig, vocabulary_size: int, corpus: CorpusStore) -> WindowPlan | StreamPlan:
    """How the corpus is cut into batches for a model: a stream where it carries its state on, shuffled
    windows where not."""
    train, model = run_config.train, run_config.model
    config = run_folder.model_config(model["name"], model["size"], vocabulary_size, model_fields(model))
    family = model_family(model["name"])[1]
    carries = getattr(family, "carries", False)
    context = context_of(config)
    if train.label_smoothing and getattr(config, "output", "full") != "full":
        raise UsageError(
            "train.label_smoothing needs model.output=full, which knows all words at each position, but it"
            f" is {config.output}"
        )
    window = train.window or (STREAM_WINDOW if carries else context) or STREAM_WINDOW
    if context is not None and window > context:
        raise UsageError(f"train.window must be at most model.context={context}, but is {window}")
    rows = train.batch_rows or max(train.batch_tokens // window, 1)
    if carries:
        most = max(len(corpus.tokens) // window, 1)
        if rows > most and not issubclass(family, FittedModel):
            logger.info(
                f"the text is too short for {rows:,} streams of windows of {window} tokens: {most:,} are read"
                " side by side"
            )
        return StreamPlan(seed=train.seed, window=window, rows=min(rows, most))
    return WindowPlan(seed=train.seed, window=window, rows=rows)


def progress(part: str, every: float = 5.0) -> Callable[[Totals], None]:
    """Says every few seconds how far the tokenising is."""
    said = [time.monotonic()]

    def show(totals: Totals) -> None:
        if time.monotonic() - said[0] > every:
            logger.info(f"{part}: {totals.bytes / 1e6:,.0f} MB, {totals.ids:,} tokens")
            said[0] = time.monotonic()

    return show
