"""Verbs that make and measure models: demo, train, evaluate."""

from __future__ import annotations

import logging
import shlex
from typing import Annotated, Any

from cyclopts import Parameter

from seqloom.cli.options import EXIT_CODES, Data, Flag, Settings, Several, reading
from seqloom.cli.terminal import progress_bar, put, put_json, put_table
from seqloom.errors import UsageError, printable

logger = logging.getLogger(__name__)


def demo(*, output_dir: str = "seqloom-demo", steps: int = 900, json: Flag = False) -> int:
    """Train attention on date phrases for about a minute; show its score, examples and heat map.

    Args:
        output_dir: Run folder; where it holds something already, the next free number is added.
        steps: Steps of training.
        json: Only the JSON line on standard output.
    """
    from seqloom.workflows.demo import demo as run_demo

    with progress_bar("demo") as progress:
        result = run_demo(output_dir, steps, progress)
    code = _stopped(result.stopped, result.summary["output_dir"])
    if not json and not code:
        put_table("Dates it never saw", result.examples, ("written", "read as", "right"))
    put_json(result.summary)
    return code


def train(
    task: str | None = None,
    /,
    *data: Data,
    model: str | None = None,
    output_dir: str | None = None,
    validation: Several = None,
    config: str | None = None,
    resume: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    settings: Settings = None,
    json: Flag = False,
) -> int:
    """Train a model on your own text into a new run folder, or go on with one: train --resume DIR.

    Args:
        task: translation, text-generation, image-classification, masked-image-modeling, text-classification,
            sentence-similarity, token-classification, question-answering or multiple-choice.
        data: Two parallel files, a prefix such as data/train (for train.en, train.de), or one .tsv, .csv or
            .jsonl; for text-generation any number of texts, tables, folders and patterns such as
            'news/*.txt'; also .gz. For image-classification two IDX files (images, labels), an .npz with
            images and labels, or a folder with a folder of image files for each label; for
            masked-image-modeling the same, without labels too. For tasks with labels, tags, answers or
            choices: tables, a folder with a folder or file for each label, __label__ lines, CoNLL and
            CoNLL-U, SQuAD; docs/encoder-tasks.md lists them all.
        model: NAME or NAME:SIZE; seqloom models lists them.
        output_dir: The new run folder.
        validation: Validation files in the same form; without them 2 % (of what has labels 10 %), at most
            1,000, is split off.
        config: A run file (YAML); arguments and --set change its values.
        resume: A run folder to go on with, to the same bits as if it had never stopped.
        start: A run folder, a Hugging Face directory or hf://NAME whose weights and tokenizer the model
            begins with: fine-tuning.
        settings: key=value, such as train.max_steps=60 or model.width=300; seqloom models NAME lists all
            keys.
        json: One JSON line instead of a table.
    """
    from seqloom.workflows.train import train as run_train

    with progress_bar("training") as progress:
        result = run_train(
            task,
            data,
            output_dir=output_dir,
            model=model,
            validation=validation or (),
            settings=settings or (),
            config=config,
            resume=resume,
            start=start,
            progress=progress,
        )
    if not result.first:  # another worker speaks for all
        return EXIT_CODES.get(result.stopped, 0)
    code = _stopped(result.stopped, str(result.folder))
    summary: dict[str, Any] = {
        "output_dir": str(result.folder),
        "step": result.step,
        "best_step": result.best_step,
        "stopped": result.stopped,
        **result.metrics,
    }
    if json:
        put_json(summary)
    else:
        if result.metrics:  # none before the first validation
            put_table(f"Validation at step {result.best_step}", _rows(result.metrics), ("metric", "value"))
        put(f"stopped: {result.stopped}; folder: {result.folder}")
    return code


def evaluate(
    folder: str,
    /,
    *data: Data,
    settings: Settings = None,
    outputs: str | None = None,
    stride: int | None = None,
    json: Flag = False,
) -> None:
    """Measure a trained model: loss, perplexity; on pairs also BLEU, chrF, exact match; of a language model
    bits per byte; of labels accuracy and macro F1; of a masked language model pseudo-perplexity; of sentence
    vectors how well their cosines agree with scores of similarity; with intervals.

    Args:
        folder: A run folder.
        data: Files of pairs, of texts for a language model, of what a reader answers, or images with labels,
            in the same forms as for train; for sentence vectors a table of two texts and a score.
        stride: Of a language model with limited context: how far the windows over a long text move on; by
            default half a window.
        settings: key=value for data.* and decode.*, such as decode.beam=1.
        outputs: Also write the model's texts, or labels, to this new file, one a line.
        json: One JSON line instead of a table.
    """
    from seqloom.runs.output_files import new_file, write_lines
    from seqloom.workflows.evaluate import evaluate as run_evaluate

    given, decode, _ = reading(settings)
    if outputs is not None:
        new_file(outputs)  # said before the work, not after it
    result = run_evaluate(folder, data, given, decode, stride)
    if json:
        put_json(
            result.metrics
            | {f"{name}_signature": signature for name, signature in result.signatures.items()}
            | result.details
        )
    else:
        put_table(f"{folder} on {' '.join(data)}", _rows(result.metrics), ("metric", "value"))
        for title, header, rows in _detail_tables(result.details):
            put_table(title, rows, header)
        for name, signature in result.signatures.items():
            put(f"{name}: {signature}")
    if outputs is not None:  # last, so that a full disk costs no metric
        if not result.outputs:
            raise UsageError(
                f"--outputs is for models that answer each input, but {folder} was only measured; leave"
                " it out"
            )
        write_lines(outputs, result.outputs)


def _stopped(reason: str, folder: str) -> int:
    """The exit code of a training that ended for this reason; after a signal, how to go on is said."""
    if reason in EXIT_CODES:
        logger.info(f"go on with: seqloom train --resume {shlex.quote(folder)}")
    return EXIT_CODES.get(reason, 0)


def _rows(metrics: dict[str, float]) -> list[tuple[str, ...]]:
    """Name and value; the ends of an interval stand beside the value that they belong to."""
    rows: list[tuple[str, ...]] = []
    for name, value in metrics.items():
        if not name.endswith(("_low", "_high")):
            interval = (
                f" ({metrics[f'{name}_low']:,.4g} to {metrics[f'{name}_high']:,.4g})"
                if f"{name}_low" in metrics
                else ""
            )
            rows.append((name, (f"{value:,}" if isinstance(value, int) else f"{value:,.4g}") + interval))
    return rows


MOST_LABELS, MOST_CONFUSED = 40, 12
"""Labels that are shown in a table, and in one of who is taken for whom; --json holds all."""


def _detail_tables(details: dict[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Title, header and rows of what is known of each label, of each kind of entity, and of who is taken for
    whom."""
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    for what, title in (("labels", "Labels"), ("entities", "Entities")):
        scores = details.get(what)
        if isinstance(scores, dict) and scores:
            shown = sorted(scores.items(), key=lambda item: -item[1]["support"])[:MOST_LABELS]
            rows: list[tuple[str, ...]] = [
                (
                    printable(name),
                    *(f"{of[key]:.3f}" for key in ("precision", "recall", "f1")),
                    f"{of['support']:,}",
                )
                for name, of in shown
            ]
            if len(scores) > MOST_LABELS:
                rows.append((f"and {len(scores) - MOST_LABELS:,} more", "", "", "", ""))
            tables.append((title, ("", "precision", "recall", "F1", "examples"), rows))
    confusion = details.get("confusion")
    if isinstance(confusion, dict) and len(confusion["order"]) <= MOST_CONFUSED:
        names = [printable(name) for name in confusion["order"]]
        counts = [
            (name, *(f"{count:,}" for count in row))
            for name, row in zip([*names, "(unseen)"], confusion["counts"], strict=True)
            if sum(row)
        ]
        tables.append(("Which label (rows) was taken for which (columns)", ("", *names), counts))
    return tables


VERBS = (demo, train, evaluate)
