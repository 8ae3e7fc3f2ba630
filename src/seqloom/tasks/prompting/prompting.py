"""A task measured by prompts: rows become prompts with shots, a model answers them, answers are right or
not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, final

from seqloom import files
from seqloom.config import DataConfig
from seqloom.data.formats.forms import TABLES
from seqloom.data.readers.labelled import form_of
from seqloom.errors import DataError, UsageError, counted, shown
from seqloom.evaluation.answer_f1 import normalised
from seqloom.long_work import every_few_seconds
from seqloom.protocols import NO_REQUEST, Request, Settings, context_of
from seqloom.run_file import parse
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.runs.progress import chunked, logged_report
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.model import refuse_unread_data
from seqloom.tasks.prompting.answers import LogProb, answer_scorer
from seqloom.tasks.prompting.choices import ScoredItem, choose
from seqloom.tasks.prompting.options import DEFAULT_SCORES, DEFAULT_SEPARATOR, PromptOptions
from seqloom.tasks.prompting.prompt_rows import PromptRow, read_prompt_rows
from seqloom.tasks.prompting.result import Answered, PromptResult, PromptRun, chance_of
from seqloom.tasks.prompting.shots import ShotPool, joined, label_counts
from seqloom.tasks.prompting.spread_chart import draw_spread, require_few_seeds
from seqloom.tasks.prompting.template import PromptTemplate, RenderedRow, read_template, render
from seqloom.tasks.prompting.written_answers import AnswerWriter

logger = logging.getLogger(__name__)

CHUNK = 128
"""Items that are answered at one time."""
OF_TABLES = frozenset(
    (
        *("format", "encoding", "on_bad_line", "max_line_bytes", "part"),
        *("delimiter", "header", "quoting", "skip_initial_space"),
    )
)
"""Settings of reading a table whose columns are taken as they are."""
WRITTEN = ("normalised", "exact")
"""How an answer that is written is compared."""


def prompt(
    run: LoadedRun, paths: Sequence[str], options: PromptOptions, request: Request = NO_REQUEST
) -> PromptResult:
    """Measures a model on the rows of files by prompts, once for each seed and order of the shots.

    Raises UsageError for options that cannot be, DataError for rows that cannot be used, and what the
    readers raise.
    """
    options.check()
    if not paths:
        raise UsageError("a prompt is made of each row of a file, but no file is named")
    if options.plot is not None:
        require_few_seeds(options.seed_numbers())
        new_file(options.plot, PICTURES)
    outputs = None if options.outputs is None else new_file(options.outputs, (".jsonl",))
    template = read_template(options.template, options.name)
    answerer = _Answerer(run, options, request.decode)
    rows = _read(template, paths, request.data)
    examples = _read(template, options.examples, request.data) if options.shots else []
    items, left_out = _items(template, options, rows[: options.limit], [*rows, *examples])
    if not options.generate and not all(item.choices for item in items):
        logger.info("the template has no answer choices: answers are written and compared")
        answerer.writes = True
    kinds = answerer.kinds(items)
    pool = None
    if options.shots:
        solved, _ = _items(template, options, examples, rows)
        pool = ShotPool(solved, options.shots, balanced=options.balanced)
    runs, lines = list[PromptRun](), list[str]()
    for seed in options.seed_numbers():
        drawn = [] if pool is None else pool.draw(seed)
        for order in range(options.orders):
            shots = _shots_of_each(items, pool, drawn, seed, order)
            answered = list(answerer.answers(items, shots, kinds, f"seed {seed}, order {order}"))
            counts = label_counts(drawn[: options.shots])
            runs.append(PromptRun.of(seed, order, kinds, answered, counts))
            if outputs is not None:
                lines += [
                    files.json_line(answer.summary(seed, order)) + "\n" for answer in answered
                ]
    answerer.log_cut(len(items) * len(runs))
    result = PromptResult(
        template=template.name,
        shots=options.shots,
        kinds=kinds,
        left_out=left_out,
        runs=runs,
        chance=None if answerer.writes else chance_of(items),
    )
    if outputs is not None:
        files.write_atomic(outputs, "".join(lines))
    if options.plot is not None:
        draw_spread(result, new_file(options.plot, PICTURES))
    return result


def _shots_of_each(
    items: Sequence[RenderedRow],
    pool: ShotPool | None,
    drawn: Sequence[RenderedRow],
    seed: int,
    order: int,
) -> list[list[RenderedRow]]:
    if pool is None:
        return [[] for _ in items]
    return [pool.of(item, drawn, seed, order) for item in items]


def _read(template: PromptTemplate, paths: Sequence[str], data: Settings) -> list[PromptRow]:
    config = parse(DataConfig, data, "data.")
    _refuse_unread(template, data, paths, config)
    with logged_report() as report:
        return read_prompt_rows(paths, config, report, template.task)


def _items(
    template: PromptTemplate,
    options: PromptOptions,
    rows: Sequence[PromptRow],
    others: Sequence[PromptRow],
) -> tuple[list[RenderedRow], int]:
    """Rows as items with a right answer, and how many rows are none; `others` have labels too. Raises
    DataError if the right answer is none of the choices, or there is no item."""
    rendered = render(template, rows, options.fields(), options.label_names(), others)
    items = [row for row in rendered if row.targets]
    left_out = len(rows) - len(items)
    if left_out:
        logger.info(
            f"{counted(left_out, 'row')} left out, for which the template is empty or has no right answer"
        )
    if not items:
        raise DataError(
            "there must be a row for which the template has a prompt and a right answer, but there is none",
            rows[0].path if rows else None,
        )
    for item in items:
        if item.choices is not None and item.targets[0] not in item.choices:
            listed = ", ".join(repr(choice) for choice in item.choices[:8])
            raise DataError(
                f"the right answer {shown(item.targets[0])!r} must be one of the choices"
                f" ({shown(listed, 200)}); number the labels with --labels, or"
                " compute them with --field label=...",
                item.row.path,
                item.row.line,
            )
    return items, left_out


def _refuse_unread(
    template: PromptTemplate, data: Settings, paths: Sequence[str], config: DataConfig
) -> None:
    """Raises UsageError if a setting of reading changes nothing."""
    if template.task is None and form_of(paths[0], config) in TABLES:
        for name in data:
            if name not in OF_TABLES:
                raise UsageError(
                    f"data.{name} changes nothing here, where the template reads columns by their names;"
                    " leave it out, or use --field NAME=COLUMN"
                )
    else:
        refuse_unread_data(template.task or "text-classification", data, paths)


class _Prompted(NamedTuple):
    """An item and the prompts that it is answered after."""

    item: RenderedRow
    prompt: str
    content_free: str | None


@final
class _Answerer:
    """A model that answers prompts, by likelihood or in writing."""

    def __init__(self, run: LoadedRun, options: PromptOptions, decode: Settings) -> None:
        """Raises UsageError for a model that writes no text."""
        self.run, self.options, self.decode = run, options, decode
        self.writes = options.generate
        self.scorer = answer_scorer(run)
        self.writer = AnswerWriter(run, decode)
        self.known: dict[tuple[str, str], LogProb] = {}
        self.cut = 0

    def kinds(self, items: Sequence[RenderedRow]) -> tuple[str, ...]:
        """How answers are judged. Raises UsageError if none of the ways that were asked for is open."""
        self._refuse_idle_separator()
        if self.writes:
            if self.options.scores != DEFAULT_SCORES:
                raise UsageError(
                    "--scores changes nothing where answers are written; leave it out, or give the template"
                    " answer_choices"
                )
            return WRITTEN
        if self.decode:
            raise UsageError(
                f"decode.{next(iter(self.decode))} changes nothing where answers are not written; leave it"
                " out, or add --generate"
            )
        kinds = list(self.options.checked_scores())
        closed = {}
        if not self.scorer.has_empty_prompt:
            closed["pmi"] = "nothing begins a text of this model, so it has no empty prompt"
        if any(item.content_free is None for item in items):
            closed["calibrated"] = "the template fails where N/A stands for each text"
        for kind, why in closed.items():
            if kind in kinds:
                logger.info(f"{kind} is left out: {why}")
                kinds.remove(kind)
        if not kinds:
            raise UsageError(
                f"--scores {self.options.scores} leaves nothing: {'; '.join(closed.values())}"
            )
        return tuple(kinds)

    def _refuse_idle_separator(self) -> None:
        """Raises UsageError if nothing is joined by it: without shots, a written answer, or the target of
        a model of text pairs, stands alone."""
        alone = self.writes or not self.scorer.joins
        if self.options.separator != DEFAULT_SEPARATOR and alone and not self.options.shots:
            raise UsageError(
                "--separator changes nothing here, where no prompt is joined with an answer; leave it out"
            )

    def answers(
        self,
        items: Sequence[RenderedRow],
        shots: Sequence[Sequence[RenderedRow]],
        kinds: tuple[str, ...],
        title: str,
    ) -> Iterator[Answered]:
        """What the model answers to each item, with its shots."""
        is_due, done = every_few_seconds(), 0
        between = self.options.between.replace("\\n", "\n")
        separator = self.options.separator
        for chunk in chunked(zip(items, shots, strict=True), CHUNK):
            prompted = []
            for item, before in chunk:
                content_free = None
                if item.content_free is not None and "calibrated" in kinds:
                    content_free = joined(before, item.content_free, separator, between)
                whole = joined(before, item.prompt, separator, between)
                prompted.append(_Prompted(item, whole, content_free))
            yield from self._written(prompted) if self.writes else self._chosen(prompted, kinds)
            done += len(chunk)
            if done < len(items) and is_due():
                logger.info(f"{done:,} of {counted(len(items), 'item')} answered ({title})")

    def _chosen(self, prompted: Sequence[_Prompted], kinds: tuple[str, ...]) -> Iterator[Answered]:
        for asked, item in zip(prompted, self._scored(prompted, kinds), strict=True):
            choices = asked.item.choices or ()
            if any(score.cut for score in item.given):
                self._count_cut(asked.item)
            scores = {kind: item.by(kind) for kind in kinds}
            chosen = {kind: choose(values) for kind, values in scores.items()}
            truth = choices.index(asked.item.targets[0])
            right = {kind: index == truth for kind, index in chosen.items()}
            yield Answered(asked.item, asked.prompt, scores, chosen, right, None)

    def _scored(
        self, prompted: Sequence[_Prompted], kinds: tuple[str, ...]
    ) -> Iterator[ScoredItem]:
        """The scores of the choices of each item. Those of all items are computed together."""
        prompts: list[tuple[str, str]] = []
        empty_prompts: list[tuple[str, str]] = []
        content_free_prompts: list[tuple[str, str]] = []
        for asked in prompted:
            for choice in asked.item.choices or ():
                answer = self.options.separator + choice
                prompts.append((asked.prompt, answer))
                if "pmi" in kinds:
                    empty_prompts.append(("", answer))
                if asked.content_free is not None:
                    content_free_prompts.append((asked.content_free, answer))
        given = iter(self.scorer.score(prompts))
        alone = iter(self._remembered(empty_prompts))
        content_free = iter(self._remembered(content_free_prompts))
        for asked in prompted:
            choices = asked.item.choices or ()
            item = ScoredItem(
                given=list(islice(given, len(choices))),
                bytes=[len(choice.encode()) for choice in choices],
                alone=None,
                content_free=None,
            )
            if "pmi" in kinds:
                item = item._replace(alone=list(islice(alone, len(choices))))
            if asked.content_free is not None:
                item = item._replace(content_free=list(islice(content_free, len(choices))))
            yield item

    def _remembered(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """log P of answers after prompts that many items share."""
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self.known))
        self.known |= dict(zip(new, self.scorer.score(new), strict=True))
        return [self.known[pair].value for pair in pairs]

    def _written(self, prompted: Sequence[_Prompted]) -> Iterator[Answered]:
        texts = []
        for asked in prompted:
            text, cut = self.writer.fitting(asked.prompt)
            if cut:
                self._count_cut(asked.item)
            texts.append(text)
        for asked, text in zip(prompted, map(str.strip, self.writer.write(texts)), strict=True):
            targets = asked.item.targets
            right = {
                "normalised": normalised(text) in set(map(normalised, targets)),
                "exact": text in targets,
            }
            yield Answered(asked.item, asked.prompt, {}, {}, right, text)

    def _count_cut(self, item: RenderedRow) -> None:
        if self.options.too_long == "error":
            raise DataError(
                f"a prompt with its answer must fit the {context_of(self.run.model)} tokens that the model"
                " reads, but this one is longer; take fewer --shots, or cut at the left: --too-long cut",
                item.row.path,
                item.row.line,
            )
        self.cut += 1

    def log_cut(self, prompts: int) -> None:
        if self.cut:
            logger.info(
                f"{self.cut:,} of {counted(prompts, 'prompt')} cut at the left to the"
                f" {context_of(self.run.model)} tokens that the model reads"
            )
