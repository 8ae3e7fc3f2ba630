"""The verb predict: a line for each input, whatever the model answers."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from seqloom.cli.options import Data, Flag, Settings, Verb, read_settings
from seqloom.cli.terminal import even_if_nobody_reads, flush_results, is_typed, put, put_json
from seqloom.errors import UsageError, counted

if TYPE_CHECKING:
    from seqloom.protocols import Answer

logger = logging.getLogger(__name__)


def predict(
    folder: str,
    /,
    *file: Data,
    settings: Settings = (),
    output: str | None = None,
    probabilities: Flag = False,
    trace: str | None = None,
    json: Flag = False,
) -> None:
    """Write the model's answer to each input.

    A line of the output answers a line of the input; an empty or skipped line gives an empty line. The answer
    is a text, the text with its masks filled, a vector, a label or tags; for a question its answer; for
    options the choice; for an image its label and the probability.

    Args:
        folder: A run folder.
        file: A text file with one input in each line. For labels, tags, questions and choices also a file as
            for train. - or nothing is standard input. For images any number of image, .npz or IDX files.
            For a text-to-text model of several tasks TASK=FILE, or TASK=- for standard input.
        settings: key=value for data.* and decode.*, such as decode.beam=1 or decode.n_best=3.
        output: A new .csv, .tsv, .jsonl or .parquet file: each row of FILE with its columns and the answer; a
            row that is skipped is there with the reason. A column of the answer whose name FILE has is called
            predicted_NAME.
        probabilities: With --output or --json, the probability of every label, however many there are.
        trace: A new file that shows each step of the search: the candidates, which are kept, and why others
            are dropped.
        json: One JSON object for each input, with all n-best outputs and their scores, the most likely tokens
            of each mask, the vector, or the probabilities of the most likely labels.
    """
    from seqloom.long_work import log_progress
    from seqloom.protocols import Request
    from seqloom.runs.output_files import new_file
    from seqloom.tasks.model import load
    from seqloom.workflows.predict import new_answer_file, write_answers

    if probabilities and output is None and not json:
        raise UsageError(
            "--probabilities needs --output or --json, which have room for them; add one"
        )
    given = read_settings(settings)
    if trace is not None:
        new_file(trace)  # refused before the work, not after it
    place = None if output is None else new_answer_file(output)
    model = load(folder)
    interactive = file in ((), ("-",)) and is_typed()
    request = Request(
        data=given.data,
        decode=given.decode,
        trace=trace,
        interactive=interactive,
        all_labels=probabilities,
    )
    if place is not None:
        written = write_answers(model, file, request, place)
        if json:
            put_json({"output": str(place), **written._asdict()})
        else:
            put(f"{counted(written.rows, 'row')}, {written.skipped:,} without an answer: {place}")
        return
    try:
        with even_if_nobody_reads(trace):
            answers = model.answers(file, request)
            if not sys.stdout.isatty():
                answers = log_progress(answers, "inputs answered")
            for number, answer in enumerate(answers):
                if number == 0 and not json and sys.stdout.isatty():
                    put(_header(answer))
                several = not json and given.decode.get("n_best", 1) != 1
                if number == 0 and several and not _shows_all(answer):
                    logger.info(
                        "a line shows the best alone: decode.n_best is for --json and --output"
                    )
                if json:
                    put_json(answer.content)
                else:
                    put(answer.text)
                if interactive:
                    flush_results()
    finally:
        # answers that came before an error stay before its line
        flush_results()


def _header(answer: Answer) -> str:
    """The fields that a readable line shows."""
    names = list(answer.row())
    return "\t".join(names[: answer.text.count("\t") + 1])


def _shows_all(answer: Answer) -> bool:
    """Whether a readable line has all that `decode.n_best` asks for."""
    return not answer.content.keys() & {"outputs", "masks"}


VERB = Verb(predict, "seqloom predict runs/reviews new.csv --output answers.csv")
