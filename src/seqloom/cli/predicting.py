"""The verb predict: a line for each input, whatever the model answers."""

from __future__ import annotations

import sys

from seqloom.cli.options import Data, Flag, Settings, reading
from seqloom.cli.terminal import put, put_json


def predict(
    folder: str, /, *file: Data, settings: Settings = None, trace: str | None = None, json: Flag = False
) -> None:
    """Write the model's output for each line of a file or of standard input (an empty or skipped line gives
    an empty line): a text, the text with its masks filled, its vector, its label or tags; for each question
    its answer, of options the choice; for each image its label and the probability.

    Args:
        folder: A run folder.
        file: A text file, one input a line, or for labels, tags, questions and choices a file as for train; -
            or nothing is standard input. For a model of images any number of image files, .npz or IDX files.
        settings: key=value for data.* and decode.*, such as decode.beam=1 or decode.n_best=3.
        trace: A new file for every step of the search: the candidates, which of them go on, and why the
            others fall.
        json: One JSON object a line, with all n-best outputs and their scores, the likeliest tokens of each
            mask, the vector, or the probabilities of all labels.
    """
    from seqloom.protocols import Request
    from seqloom.runs.output_files import new_file
    from seqloom.tasks.model import load

    given, decode, _ = reading(settings)
    if trace is not None:
        new_file(trace)  # said before the work, not after it
    model = load(folder)
    interactive = file in ((), ("-",)) and sys.stdin.isatty()
    request = Request(data=given, decode=decode, trace=trace, interactive=interactive)
    try:
        for answer in model.answers(file, request):
            if json:
                put_json(answer.content)
            else:
                put(answer.text)
            if interactive:
                sys.stdout.flush()
    finally:
        sys.stdout.flush()  # what came before an error stands before it


VERBS = (predict,)
