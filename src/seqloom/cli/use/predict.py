"""The verb predict: a line for each input, whatever the model answers."""

from __future__ import annotations

from seqloom.cli.options import Data, Flag, Settings, Verb, read_settings
from seqloom.cli.terminal import even_if_nobody_reads, flush_results, is_typed, put, put_json


def predict(
    folder: str,
    /,
    *file: Data,
    settings: Settings = (),
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
        trace: A new file that shows each step of the search: the candidates, which are kept, and why others
            are dropped.
        json: One JSON object for each input, with all n-best outputs and their scores, the most likely tokens
            of each mask, the vector, or the probabilities of all labels.
    """
    from seqloom.protocols import Request
    from seqloom.runs.output_files import new_file
    from seqloom.tasks.model import load

    given = read_settings(settings)
    if trace is not None:
        new_file(trace)  # refused before the work, not after it
    model = load(folder)
    interactive = file in ((), ("-",)) and is_typed()
    request = Request(data=given.data, decode=given.decode, trace=trace, interactive=interactive)
    try:
        with even_if_nobody_reads(trace):
            for answer in model.answers(file, request):
                if json:
                    put_json(answer.content)
                else:
                    put(answer.text)
                if interactive:
                    flush_results()
    finally:
        # answers that came before an error stay before its line
        flush_results()


VERB = Verb(predict, "seqloom predict runs/captions captions.en --set decode.beam=4")
