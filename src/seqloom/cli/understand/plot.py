"""The verb plot."""

from __future__ import annotations

from seqloom.cli.options import Flag, Verb
from seqloom.cli.terminal import put, put_json
from seqloom.errors import UsageError


def plot(*runs: str, output: str = "curves.svg", metric: str = "loss", json: Flag = False) -> None:
    """Draw the losses of runs, or another metric, by step.

    Args:
        runs: Run folders, finished or not; those of `compare` too.
        output: A new picture: .png, .svg, .html or .json (Vega-Lite).
        metric: A metric of the validations, such as loss, accuracy or bleu.
        json: One line of JSON with the picture and the runs in it.
    """
    from seqloom.workflows.plot import plot as draw

    if not runs:
        raise UsageError("plot needs run folders: seqloom plot runs/a runs/b")
    drawn = draw(runs, metric, output)
    if json:
        put_json({"output": output, "metric": metric, "runs": drawn})
    else:
        put(f"{metric} of {', '.join(drawn)}: {output}")


VERB = Verb(plot, "seqloom plot runs/a runs/b --output curves.svg")
