"""How far beam search is from the most likely output: an exact search for each input, and beams of several
widths for comparison."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import torch

from seqloom import files
from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import source_batch
from seqloom.data.readers.records import read_texts
from seqloom.decoding.exact_search import (
    UNLIMITED,
    ExactSearchOptions,
    SearchBudget,
    check_length_penalty,
    exact_search,
)
from seqloom.decoding.generate import generate
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.strategies import BeamSearch, Strategy
from seqloom.errors import UsageError, place
from seqloom.packed_weights import packed_weights
from seqloom.protocols import Decodable, State, context_of, device_of, read_source
from seqloom.registry import hub_task
from seqloom.runs.decoding_options import IDLE, generation_options
from seqloom.runs.output_files import new_file
from seqloom.runs.progress import logged_report
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.tasks.language_modeling.generate import NEW_TOKENS, TASK, prompt_ids, text_after
from seqloom.tasks.model import no_such_verb
from seqloom.tasks.translation.translate import longest_output

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""In the unit of the score: a beam whose output is worse by no more has found an equally good one. float32
rounds differently in different batches."""
WIDEST_BEAM = 1000
SAVE_SECONDS = 5.0
"""Between two writings of the results."""


class BeamOutput(NamedTuple):
    """The output of one beam search for one input."""

    text: str
    tokens: list[int]
    log_probability: float
    score: float
    """As the exact search scores it."""
    finished: bool
    """False where the maximum length cut it off: then it is no complete sequence, and has no shortfall."""
    shortfall: float | None
    """How much worse its score is than the best known one."""
    seconds: float


class SearchResult(NamedTuple):
    """What was found for one input."""

    input: str
    text: str | None
    """The best complete output that is known; None if none is."""
    tokens: list[int] | None
    log_probability: float | None
    score: float | None
    proven: bool
    gap: float | None
    """How much better the score of another output could be: 0 where proven, None if no output is known."""
    empty_log_probability: float
    nodes: int
    seconds: float
    beams: dict[str, BeamOutput | None]
    """By the name of the search; None if it found nothing at all."""

    def summary(self) -> dict[str, object]:
        """For a line of JSON."""
        beams = {name: beam and beam._asdict() for name, beam in self.beams.items()}
        return self._asdict() | {"beams": beams}


class _SearchStart(NamedTuple):
    """What decoding an input starts from."""

    state: Callable[[], State]
    """A new one for each search, since a state is used once."""
    prompt: list[int]
    max_new_tokens: int
    """The end mark counted."""


@final
class ExactSearcher:
    """A model whose most likely outputs are searched for.

    searcher = load_searcher("runs/captions", beams=[1, 5])
    results = list(searcher.compare(["A dog runs."]))
    print(make_report(results))
    """

    def __init__(
        self,
        bundle: LoadedRun,
        *,
        beams: Sequence[int] = (1, 5),
        length_penalty: float = 0.0,
        budget: SearchBudget = UNLIMITED,
        decode: Mapping[str, object] | None = None,
    ) -> None:
        """`decode` changes the folder's settings; their rules hold in every search. Raises UsageError for
        settings that do not fit an exact search."""
        check_length_penalty(length_penalty)
        changes, widths = dict(decode or {}), sorted(set(beams))
        self.run, self.length_penalty, self.budget = bundle, length_penalty, budget
        self._check_changes(changes)
        if hub_task(bundle.task) not in (TASK, "translation"):
            raise no_such_verb(bundle.folder, bundle.task, "exact")
        special_ids = bundle.tokenizer.special_ids
        if special_ids.eos is None:
            raise UsageError(
                "exact search is for texts that end, but nothing ends a text of this model; use: seqloom"
                " generate"
            )
        self._eos, self._special_ids = special_ids.eos, special_ids
        self.settings = bundle.decode_settings({"n_best": 1} | changes)
        self._model = cast(Decodable, bundle.decoder(self.settings))
        if self.settings.stop:
            raise UsageError(
                "exact search is for texts that end by </s>, but decode.stop is set; use: --set"
                " decode.stop=[]"
            )
        if not all(1 <= width <= WIDEST_BEAM for width in widths):
            raise UsageError(
                f"the widths of beams must be from 1 to {WIDEST_BEAM}, but are {', '.join(map(str, widths))}"
            )
        self.searches: dict[str, Strategy] = {
            f"beam {width}": BeamSearch(width=width, length_penalty=length_penalty)
            for width in widths
        }
        beam = replace(self.settings, n_best=1)
        if beam.strategy == "sample":
            beam = replace(beam, strategy="beam")
        self._options = generation_options(beam, bundle.tokenizer)
        if self.settings.strategy != "sample":
            self.searches[f"its own: beam {beam.width}, α {beam.length_penalty:g}"] = (
                self._options.strategy
            )
        else:
            logger.info(
                "decode.strategy of this folder is sample: what it decodes with is not among the searches,"
                " only beams are"
            )

    def _check_changes(self, changes: Mapping[str, object]) -> None:
        idle = ["strategy", "n_best", *IDLE["beam"]]
        if self.run.decode.strategy == "sample":
            idle += IDLE["sample"]
        if given := [name for name in idle if name in changes]:
            raise UsageError(
                f"decode.{given[0]} changes nothing in an exact search, which is for the most likely text;"
                " leave it out"
            )

    def compare(self, texts: Iterable[str]) -> Iterator[SearchResult]:
        """Searches for each input in turn; a translation model skips blank ones. Raises UsageError for a
        prompt that fills the context."""
        for text in texts:
            if text.strip() or self.run.task == TASK:
                yield self._search(text, self._start(text))

    def _start(self, text: str) -> _SearchStart:
        model = self.run.model
        (ids,) = self.run.tokenizer.encode([text])
        if self.run.task != TASK:
            source = source_batch([ids], self._special_ids).to(device_of(self._model))
            longest = longest_output(model, len(ids), self.settings, self._special_ids)
            return _SearchStart(
                lambda: read_source(self._model, source), [*self._special_ids.bos], longest
            )
        prompt, context = prompt_ids(self.run.tokenizer, ids), context_of(model)
        longest = self.settings.max_length or NEW_TOKENS
        if context is not None:
            room = max(0, context + 1 - len(prompt))  # the last token is not read
            longest = self.settings.max_length or min(longest, room)
            if not 1 <= longest <= room:
                raise UsageError(
                    f"the model looks at {context:,} tokens: after a prompt of {len(prompt):,} an exact"
                    f" search reaches {room:,} more, not {longest or 1:,}; make decode.max_length or the"
                    " prompt shorter"
                )
        return _SearchStart(lambda: None, prompt, longest)

    @torch.inference_mode()
    @packed_weights()
    def _search(self, text: str, start: _SearchStart) -> SearchResult:
        beams = {name: self._beam(start, strategy) for name, strategy in self.searches.items()}
        options = ExactSearchOptions(
            max_new_tokens=start.max_new_tokens,
            eos=self._eos,
            length_penalty=self.length_penalty,
            processors=self._options.processors,
            budget=self.budget,
        )
        known = [beam for beam, _ in beams.values() if beam]
        found = exact_search(self._model, start.state(), start.prompt, options, known)
        best = found.best
        outputs: dict[str, BeamOutput | None] = {}
        for name, (beam, seconds) in beams.items():
            outputs[name] = (
                self._output(beam, start, best and best.score, seconds) if beam else None
            )
        best_text = self._text(start, best.tokens) if best else None
        gap = found.gap if best else None
        return SearchResult(
            input=text,
            text=best_text,
            tokens=best and best.tokens,
            log_probability=best and best.log_probability,
            score=best and best.score,
            proven=found.proven,
            gap=gap,
            empty_log_probability=found.empty,
            nodes=found.nodes,
            seconds=found.seconds,
            beams=outputs,
        )

    def _beam(self, start: _SearchStart, strategy: Strategy) -> tuple[Hypothesis | None, float]:
        """(the best hypothesis of a beam search, seconds)"""
        started = time.monotonic()
        options = replace(self._options, strategy=strategy)
        lengths = [start.max_new_tokens]
        (hypotheses,) = generate(self._model, start.state(), [start.prompt], lengths, options)
        return next(iter(hypotheses), None), time.monotonic() - started

    def _output(
        self, beam: Hypothesis, start: _SearchStart, best_score: float | None, seconds: float
    ) -> BeamOutput:
        length = len(beam.tokens) + beam.finished
        score = beam.log_probability / float(length**self.length_penalty)
        shortfall = (
            None if best_score is None or not beam.finished else max(0.0, best_score - score)
        )
        return BeamOutput(
            text=self._text(start, beam.tokens),
            tokens=beam.tokens,
            log_probability=beam.log_probability,
            score=score,
            finished=beam.finished,
            shortfall=shortfall,
            seconds=seconds,
        )

    def _text(self, start: _SearchStart, tokens: list[int]) -> str:
        return text_after(self.run.tokenizer, start.prompt, tokens)


def read_inputs(path: str, data: DataConfig, task: str, limit: int | None = None) -> list[str]:
    """The first lines of a file. A translation model skips blank ones, which is reported. Raises UsageError
    if no input is left, and what `read_texts` raises."""
    with logged_report() as report:
        try:
            records = islice(read_texts(path, data, report, every_line=True), limit)
            texts = [record.fields["text"] for record in records]
        finally:
            if task != TASK and "blank" in report.oddities:
                report.skips["blank"] = report.oddities.pop("blank")
    if inputs := [text for text in texts if text.strip() or task == TASK]:
        return inputs
    raise UsageError(f"there must be an input, but {place(path, None)} has none")


def load_searcher(folder: str | Path, device: str = "auto", **options: Any) -> ExactSearcher:
    """Opens a run folder; `options` are those of `ExactSearcher`. Raises FolderError if it is none, or is
    damaged."""
    return ExactSearcher(load_run(folder, device), **options)


@final
@dataclass(frozen=True, kw_only=True)
class SearchErrors:
    """One beam search over all inputs with a known best output."""

    search: str
    errors: int
    """Inputs where the score of its output is worse than the best known one by more than TOLERANCE."""
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

    @classmethod
    def of(cls, name: str, results: Sequence[SearchResult]) -> SearchErrors:
        outputs = [(result, result.beams[name]) for result in results]
        beams = [beam for _, beam in outputs if beam is not None]
        shortfalls = [beam.shortfall for beam in beams if beam.shortfall is not None]
        return cls(
            search=name,
            errors=sum(shortfall > TOLERANCE for shortfall in shortfalls),
            cut_off=len(results) - len(shortfalls),
            same=sum(
                beam.tokens == result.tokens for result, beam in outputs if beam and beam.finished
            ),
            mean_shortfall=_mean(shortfalls),
            largest_shortfall=max(shortfalls, default=0.0),
            mean_length=_mean([len(beam.tokens) for beam in beams]),
            seconds=sum(beam.seconds for beam in beams),
        )

    def shown(self) -> tuple[str, ...]:
        """As a row of the table."""
        counts = map(str, (self.errors, self.cut_off, self.same))
        shortfalls = f"{self.mean_shortfall:.3f}", f"{self.largest_shortfall:.3f}"
        return (self.search, *counts, *shortfalls, f"{self.mean_length:.2f}")


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
        return header, [exact, *(search.shown() for search in self.searches)]


def make_report(results: Sequence[SearchResult]) -> ExactReport:
    known = [result for result in results if result.tokens is not None]
    names = list(results[0].beams) if results else []
    return ExactReport(
        inputs=len(results),
        proven=sum(result.proven for result in results),
        found=len(known),
        empty=sum(not result.tokens for result in known),
        mean_log_probability=_mean([result.log_probability or 0.0 for result in known]),
        mean_empty_log_probability=_mean([result.empty_log_probability for result in known]),
        mean_length=_mean([len(result.tokens or ()) for result in known]),
        largest_gap=max((result.gap or 0.0 for result in known), default=0.0),
        nodes=sum(result.nodes for result in results),
        seconds=sum(result.seconds for result in results),
        searches=[SearchErrors.of(name, known) for name in names],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def saved(results: Iterable[SearchResult], path: str | None) -> Iterator[SearchResult]:
    """Passes the results on, and saves them in a new file where a path is given, one JSON object a line. The
    file is whole at any time, and up to date at the end, also where the results end early. Raises UsageError
    as `new_file` does, before the first result."""
    output = None if path is None else new_file(path)
    lines: list[str] = []
    written = time.monotonic()
    try:
        for result in results:
            lines.append(files.json_line(result.summary()) + "\n")
            if output is not None and time.monotonic() - written > SAVE_SECONDS:
                files.write_atomic(output, "".join(lines))
                written = time.monotonic()
            yield result
    finally:
        if output is not None and lines:
            files.write_atomic(output, "".join(lines))
