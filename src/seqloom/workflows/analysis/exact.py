"""How far beam search is from the most likely output: exact search on each input, and beams of several widths
beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from seqloom import files
from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import source_batch
from seqloom.data.readers.records import read_texts
from seqloom.decoding.exact_search import (
    UNLIMITED,
    ExactResult,
    SearchBudget,
    check_length_penalty,
    exact_search,
)
from seqloom.decoding.generate import generate
from seqloom.decoding.live_rows import Hypothesis
from seqloom.decoding.strategies import Beam, Strategy
from seqloom.errors import UsageError, place
from seqloom.packed_weights import packed_weights
from seqloom.protocols import State, context_of, device_of
from seqloom.runs.decoding_options import decoding_of
from seqloom.runs.progress import tallied
from seqloom.runs.run_folder import IDLE, LoadedRun, load_run
from seqloom.runs.verbs import refuse_other_task
from seqloom.tasks.language_modeling.generate import NEW_TOKENS, TASK, begun, text_after
from seqloom.tasks.translation.predictor import new_file
from seqloom.tasks.translation.translate import longest_output

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""In the unit of the score: a beam that is worse by no more found something as good. Rounding of float32
differs from batch to batch."""
KEPT_EVERY = 5.0
"""Seconds between two writings of the results."""


class BeamOutput(NamedTuple):
    """What one beam search made of one input."""

    text: str
    tokens: list[int]
    log_probability: float
    score: float
    """In the measure of the exact search."""
    finished: bool
    """False where the maximum length cut it off: then it is no complete sequence, and has no shortfall."""
    shortfall: float | None
    """How much worse its score is than the best that is known."""
    seconds: float


class Compared(NamedTuple):
    """One input."""

    input: str
    text: str | None
    """The best complete output that is known; None where none is."""
    tokens: list[int] | None
    log_probability: float | None
    score: float | None
    proven: bool
    gap: float | None
    """How much better the score of another could be: 0 where proven, None where nothing is known."""
    empty_log_probability: float
    nodes: int
    seconds: float
    beams: dict[str, BeamOutput | None]
    """By the name of the search; None where it found nothing at all."""

    def summary(self) -> dict[str, Any]:
        """As a line of JSON has it."""
        return self._asdict() | {
            "beams": {name: beam and beam._asdict() for name, beam in self.beams.items()}
        }


class _Start(NamedTuple):
    """What decoding an input begins with."""

    state: Callable[[], State]
    """A new one for each search, since a state is used once."""
    prompt: list[int]
    cap: int
    """New tokens, the end mark counted."""


@final
class ExactSearcher:
    """A model whose most likely outputs are searched for.

    searcher = load_searcher("runs/captions", beams=[1, 5])
    rows = list(searcher.compare(["A dog runs."]))
    print(report_of(rows))
    """

    def __init__(
        self,
        bundle: LoadedRun,
        *,
        beams: Sequence[int] = (1, 5),
        length_penalty: float = 0.0,
        budget: SearchBudget = UNLIMITED,
        decode: dict[str, Any] | None = None,
    ) -> None:
        """`decode` changes the folder's settings; their rules hold in every search. Raises UsageError for
        what cannot be."""
        check_length_penalty(length_penalty)
        idle = (
            "strategy",
            "n_best",
            *IDLE["beam"],
            *(IDLE["sample"] if bundle.decode.strategy == "sample" else ()),
        )
        if given := [name for name in idle if name in (decode or {})]:
            raise UsageError(
                f"decode.{given[0]} changes nothing in an exact search, which is for the most likely text;"
                " leave it out"
            )
        if bundle.task != "text-generation":
            refuse_other_task(bundle, "exact", "translation")
        special_ids = bundle.tokenizer.special_ids
        if special_ids.eos is None:
            raise UsageError(
                "exact search is for texts that end, but nothing ends a text of this model; use: seqloom"
                " generate"
            )
        self._end, self._marks = special_ids.eos, special_ids
        self.bundle, self.length_penalty, self.budget = bundle, length_penalty, budget
        self.settings = bundle.decode_with({"n_best": 1} | (decode or {}))
        if self.settings.stop:
            raise UsageError(
                "exact search is for texts that end by </s>, but decode.stop is set; use: --set"
                " decode.stop=[]"
            )
        widths = sorted(set(beams))
        if not all(1 <= width <= 1000 for width in widths):
            raise UsageError(
                f"the widths of beams must be from 1 to 1000, but are {', '.join(map(str, widths))}"
            )
        self.searches: dict[str, Strategy] = {
            f"beam {width}": Beam(width=width, length_penalty=length_penalty) for width in widths
        }
        usual = replace(self.settings, n_best=1, strategy="beam")
        strategy, self._rules, _ = decoding_of(usual, bundle.tokenizer)
        if self.settings.strategy == "beam":
            self.searches[f"its own: beam {usual.beam}, α {usual.length_penalty:g}"] = strategy
        else:
            logger.info(
                "decode.strategy of this folder is sample: what it decodes with is not among the searches,"
                " only beams are"
            )

    def compare(self, texts: Iterable[str]) -> Iterator[Compared]:
        """Each input in turn. A translation model is asked for no blank text. Raises UsageError for a prompt
        that fills the context."""
        for text in texts:
            if text.strip() or self.bundle.task == TASK:
                yield self._compare(text, self._start(text))

    def _start(self, text: str) -> _Start:
        model: Any = self.bundle.model
        (ids,) = self.bundle.tokenizer.encode([text])
        if self.bundle.task != TASK:
            source = source_batch([ids], self._marks).to(device_of(model))
            return _Start(
                lambda: model.encode(source),
                [*self._marks.bos],
                longest_output(model, len(ids), self.settings, self._marks),
            )
        prompt, context = begun(self.bundle.tokenizer, ids), context_of(model)
        cap = self.settings.max_length or NEW_TOKENS
        if context is not None:
            room = max(0, context + 1 - len(prompt))  # the last token is not read
            cap = self.settings.max_length or min(cap, room)
            if not 1 <= cap <= room:
                raise UsageError(
                    f"the model looks at {context:,} tokens: after a prompt of {len(prompt):,} an exact"
                    f" search reaches {room:,} more, not {cap or 1:,}; make decode.max_length or the prompt"
                    " shorter"
                )
        return _Start(lambda: None, prompt, cap)

    @torch.inference_mode()
    @packed_weights()
    def _compare(self, text: str, start: _Start) -> Compared:
        beams = {name: self._beam(start, strategy) for name, strategy in self.searches.items()}
        model: Any = self.bundle.model
        found = exact_search(
            model,
            start.state(),
            start.prompt,
            max_new_tokens=start.cap,
            eos=self._end,
            rules=self._rules,
            length_penalty=self.length_penalty,
            known=[beam for beam, _ in beams.values() if beam],
            budget=self.budget,
        )
        return self._compared(text, start, found, beams)

    def _beam(self, start: _Start, strategy: Strategy) -> tuple[Hypothesis | None, float]:
        model: Any = self.bundle.model
        began = time.monotonic()
        (found,) = generate(
            model,
            start.state(),
            [start.prompt],
            strategy=strategy,
            max_new_tokens=[start.cap],
            eos=self._end,
            pad=self._marks.pad,
            rules=self._rules,
        )
        return next(iter(found), None), time.monotonic() - began

    def _compared(
        self, text: str, start: _Start, found: ExactResult, beams: dict[str, tuple[Hypothesis | None, float]]
    ) -> Compared:
        best = found.best

        def text_of(tokens: list[int]) -> str:
            return text_after(self.bundle.tokenizer, start.prompt, tokens)

        def beside(beam: Hypothesis, seconds: float) -> BeamOutput:
            score = beam.log_probability / float((len(beam.tokens) + beam.finished) ** self.length_penalty)
            shortfall = max(0.0, best.score - score) if best and beam.finished else None
            return BeamOutput(
                text_of(beam.tokens),
                beam.tokens,
                beam.log_probability,
                score,
                beam.finished,
                shortfall,
                seconds,
            )

        return Compared(
            input=text,
            text=text_of(best.tokens) if best else None,
            tokens=best and best.tokens,
            log_probability=best and best.log_probability,
            score=best and best.score,
            proven=found.proven,
            gap=found.gap if best else None,
            empty_log_probability=found.empty,
            nodes=found.nodes,
            seconds=found.seconds,
            beams={name: beside(beam, seconds) if beam else None for name, (beam, seconds) in beams.items()},
        )


def inputs_of(path: str, data: DataConfig, task: str, limit: int | None = None) -> list[str]:
    """The first lines of a file; a translation model is asked for no blank one, and of those that are left
    out there is a notice. Raises UsageError where no input is left, and what `read_texts` raises."""
    with tallied() as tally:
        try:
            texts = [
                record.fields["text"]
                for record in islice(read_texts(path, data, tally, every_line=True), limit)
            ]
        finally:
            if task != TASK and "blank" in tally.oddities:
                tally.skips["blank"] = tally.oddities.pop("blank")
    if inputs := [text for text in texts if text.strip() or task == TASK]:
        return inputs
    raise UsageError(f"there must be an input, but {place(path, None)} has none")


def load_searcher(folder: str | Path, device: str = "auto", **options: Any) -> ExactSearcher:
    """Opens a run folder; `options` are those of `ExactSearcher`. Raises FolderError where it is none, or is
    damaged."""
    return ExactSearcher(load_run(folder, device), **options)


@final
@dataclass(frozen=True, kw_only=True)
class SearchErrors:
    """One search over all inputs with a known best output."""

    search: str
    errors: int
    """Inputs where a complete output is known whose score is better than that of its own, by more than
    TOLERANCE."""
    cut_off: int
    """Inputs where its output is not complete, or where it has none; they are not among the errors."""
    same: int
    """Inputs where its output is the best one."""
    mean_shortfall: float
    """Over inputs where its output is complete; 0 where there are none."""
    largest_shortfall: float
    mean_length: float
    """Tokens, the end mark not counted."""
    seconds: float


@final
@dataclass(frozen=True, kw_only=True)
class ExactReport:
    """All inputs together."""

    inputs: int
    proven: int
    found: int
    """Inputs with a known best output; the figures below are over these. Where it is not proven they are
    bounds: errors and shortfalls can only be more."""
    empty: int
    """Inputs whose best output is the empty text."""
    mean_log_probability: float
    mean_empty_log_probability: float
    mean_length: float
    largest_gap: float
    nodes: int
    seconds: float
    searches: list[SearchErrors]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(header, rows): the exact search, then each beam."""
        header = ("search", "errors", "cut off", "same", "mean short", "largest", "length")
        exact = ("exact", "0", "0", str(self.found), "0.000", "0.000", f"{self.mean_length:.2f}")
        rows = [
            (
                one.search,
                str(one.errors),
                str(one.cut_off),
                str(one.same),
                f"{one.mean_shortfall:.3f}",
                f"{one.largest_shortfall:.3f}",
                f"{one.mean_length:.2f}",
            )
            for one in self.searches
        ]
        return header, [exact, *rows]


def report_of(rows: Sequence[Compared]) -> ExactReport:
    known = [row for row in rows if row.tokens is not None]
    names = list(rows[0].beams) if rows else []
    return ExactReport(
        inputs=len(rows),
        proven=sum(row.proven for row in rows),
        found=len(known),
        empty=sum(not row.tokens for row in known),
        mean_log_probability=_mean([row.log_probability or 0.0 for row in known]),
        mean_empty_log_probability=_mean([row.empty_log_probability for row in known]),
        mean_length=_mean([len(row.tokens or ()) for row in known]),
        largest_gap=max((row.gap or 0.0 for row in known), default=0.0),
        nodes=sum(row.nodes for row in rows),
        seconds=sum(row.seconds for row in rows),
        searches=[_search_errors(name, known) for name in names],
    )


def _search_errors(name: str, known: Sequence[Compared]) -> SearchErrors:
    outputs = [(row, row.beams[name]) for row in known]
    complete = [
        (row, beam, beam.shortfall)
        for row, beam in outputs
        if beam is not None and beam.shortfall is not None
    ]
    return SearchErrors(
        search=name,
        errors=sum(shortfall > TOLERANCE for _, _, shortfall in complete),
        cut_off=len(known) - len(complete),
        same=sum(beam.tokens == row.tokens for row, beam, _ in complete),
        mean_shortfall=_mean([shortfall for _, _, shortfall in complete]),
        largest_shortfall=max((shortfall for _, _, shortfall in complete), default=0.0),
        mean_length=_mean([len(beam.tokens) for _, beam in outputs if beam is not None]),
        seconds=sum(beam.seconds for _, beam in outputs if beam is not None),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def kept(rows: Iterable[Compared], path: str | None) -> Iterator[Compared]:
    """The same rows, and where a path is given a new file of them, one JSON object a line: whole at any time,
    and up to date at the end, also where it ends early. Raises UsageError as `new_file` does, before the
    first row."""
    output = None if path is None else new_file(path)
    lines: list[str] = []
    written = time.monotonic()
    try:
        for row in rows:
            lines.append(files.json_line(row.summary()) + "\n")
            if output is not None and time.monotonic() - written > KEPT_EVERY:
                files.write_atomic(output, "".join(lines))
                written = time.monotonic()
            yield row
    finally:
        if output is not None and lines:
            files.write_atomic(output, "".join(lines))
