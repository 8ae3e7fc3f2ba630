"""The verb explain: what a model does, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError, counted

Hidden = Annotated[bool, Parameter(negative="", show=False)]
"""An older name of --show NAME."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of explain."""

    show: str | None = None
    """The picture:
    attention (where it looks), attribution (what each word adds to the answer), surprisal (of each token of a
    text), gates (and states of recurrent layers), backoff (of an n-gram model), lens (what each layer would
    say), knockout (what is lost without each head), induction (which heads find repetitions), words and
    projection (where words and whole texts are in the space of vectors), gradient-flow (of recurrent layers,
    through time), layer-weights (what a task reads of each layer of an ELMo).
    By default what suits the model."""
    target: str | None = None
    """What is explained: a label, a tag, an option, or a text to write. By default the model's own answer."""
    foil: str | None = None
    """Of attribution and knockout: an answer to compare the target with. By default the next best."""
    method: str | None = None
    """Of attribution: leave-one-out (the default) or integrated-gradients."""
    word: int | None = None
    """Of attribution: the number of the word whose tag is explained."""
    part: str | None = None
    """Of attention and gates: encoder, decoder, cross, self or pooling."""
    layer: int | None = None
    """Of attention and gates: one layer, from 1 on."""
    head: int | None = None
    """Of attention: one head, from 1 on."""
    words: str | None = None
    """Show these words (king,queen,paris, or a file) in the space of the model's vectors: --show words."""
    column: str | None = None
    """Of words and projection: the column of the file that colours the points."""
    rows: int | None = None
    """Of gradient-flow: number of rows. By default 64."""
    beside: Folders = ()
    """Of gradient-flow and layer-weights: another run folder to compare with. May be given again."""
    output: str | None = None
    """A new picture: .png, .svg, .html or .json (Vega-Lite). By default the name of what is shown, such as
    attention.png."""
    gradient_flow: Hidden = False
    projection: Hidden = False
    layer_weights: Hidden = False


def explain(
    folder: str,
    /,
    *text: Data,
    options: ExplainOptions = ExplainOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Draw what a model does.

    docs/explaining.md says what each picture can tell, and what it cannot.

    Args:
        folder: A run folder.
        text: The text, or the two of a pair; a question and its context; a text and its options; or an image
            file. With gradient-flow: files in the same forms as for train.
        settings: key=value for decode.*, or with gradient-flow for data.*.
        json: All numbers as one line of JSON.
    """
    defaults = vars(ExplainOptions())
    given = {name: value for name, value in vars(options).items() if value != defaults[name]}
    if "words" in given:
        text = (str(given.pop("words")), *text)
        _choose(given, "words")
    for name in ("gradient_flow", "layer_weights", "projection"):
        if given.pop(name, False):
            _choose(given, name.replace("_", "-"))
    show = given.pop("show", None)
    if show == "gradient-flow":
        _explain_gradient_flow(folder, text, given, settings, json)
        return
    if show == "layer-weights":
        _explain_layer_weights(folder, text, given, settings, json)
        return
    refuse_others(given, {"rows", "beside"}, show or "this picture")
    from seqloom.protocols import Request
    from seqloom.runs.output_files import PICTURES, new_file
    from seqloom.tasks.model import load

    request = Request(decode=read_settings(settings, ("decode",)).decode)
    output = given.pop("output", None)
    if output is not None:
        new_file(output, PICTURES)  # refused before the work, not after it
    model = load(folder)
    explain = model.explain
    show = show or model.default_show()
    new_file(output or f"{show}.png", PICTURES)
    explanation = explain(text, output or f"{show}.png", request, show=show, **given)
    if json:
        put_json(explanation.summary())
        return
    for line in explanation.lines():
        put(line)


def _choose(given: dict[str, object], show: str) -> None:
    """Of an option that names a picture. Raises UsageError if another one is asked for."""
    if given.setdefault("show", show) != show:
        raise UsageError(
            f"--{show} is --show {show}, but --show {given['show']} is given; leave one out"
        )


def refuse_others(given: Mapping[str, object], others: set[str], show: str) -> None:
    """Raises UsageError for an option of another picture."""
    for name in sorted(others & given.keys()):
        raise UsageError(f"--{name} changes nothing of {show}; leave it out")


def _explain_gradient_flow(
    folder: str,
    data: Sequence[str],
    given: Mapping[str, Any],
    settings: Sequence[str],
    json: bool,
) -> None:
    refuse_others(given, given.keys() - {"rows", "beside", "output"}, "gradient-flow")
    read = read_settings(settings, ("data",))
    if not data:
        raise UsageError(
            "gradient-flow needs data: seqloom explain FOLDER DATA --show gradient-flow, with files as for"
            " train"
        )
    from seqloom.workflows.analysis.gradient_flow import LEGEND, explain_gradient_flow

    report = explain_gradient_flow(
        [folder, *given.get("beside", ())],
        data,
        read.data,
        rows=given.get("rows", 64),
        output=given.get("output", "gradient-flow.png"),
    )
    if json:
        put_json(report.summary())
        return
    for title, header, lines in report.tables():
        put_table(title, lines, header)
        put("")
    put(LEGEND)
    put(f"gradient flow on {counted(report.rows, 'row')}: {report.picture}")


def _explain_layer_weights(
    folder: str,
    texts: Sequence[str],
    given: Mapping[str, Any],
    settings: Sequence[str],
    json: bool,
) -> None:
    refuse_others(given, given.keys() - {"beside", "output"}, "layer-weights")
    if texts or settings:
        raise UsageError(
            "layer-weights are numbers of the model itself: no text is read, and no setting; leave them out"
        )
    from seqloom.workflows.analysis.layer_weights import explain_layer_weights

    output = given.get("output", "layer-weights.png")
    report = explain_layer_weights([folder, *given.get("beside", ())], output)
    if json:
        put_json(report.summary())
        return
    header, rows = report.table()
    put_table("what a task reads of each layer", rows, header)
    put(f"picture: {report.picture}")


VERB = Verb(explain, 'seqloom explain runs/captions "a dog runs" --output attention.svg')
