"""The verb explain: attention over a text or an image, gradient flow through time, or weights of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cyclopts import Parameter

from seqloom.cli.options import Data, Flag, Folders, Settings, Verb, read_settings
from seqloom.cli.terminal import put, put_json, put_table
from seqloom.errors import UsageError, counted


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of explain."""

    target: str | None = None
    """An output text to explain. By default the model's own."""
    gradient_flow: Flag = False
    """Follow the gradient of the loss back through the recurrent layers, step by step, on the first examples
    of the files."""
    rows: int | None = None
    """With --gradient-flow: number of pairs. By default 64."""
    layer_weights: Flag = False
    """Show how much of each layer of an ELMo the task reads (s_k and γ); no text is taken."""
    beside: Folders = ()
    """With --gradient-flow or --layer-weights: another run folder to compare with. May be given again."""
    output: str | None = None
    """A new picture: .png, .svg, .html or .json (Vega-Lite). By default attention.png, gradient-flow.png or
    layer-weights.png."""


def explain(
    folder: str,
    /,
    *text: Data,
    options: ExplainOptions = ExplainOptions(),
    settings: Settings = (),
    json: Flag = False,
) -> None:
    """Draw where a model looks, or how gradients flow in it.

    The picture shows where it looks in a text while it writes its output, or in an image. With
    --gradient-flow it shows how the gradient changes on its way back through time, with --layer-weights
    what a task reads of each layer of an ELMo.

    Args:
        folder: A run folder. Only a model with attention can show where it looks.
        text: The source text, or an image file. With --gradient-flow: files of pairs, or of texts for a
            language model, in the same forms as for train.
        settings: key=value for decode.*, or with --gradient-flow for data.*.
        json: All numbers as one line of JSON.
    """
    if options.layer_weights:
        _explain_layer_weights(folder, text, options, settings, json)
        return
    if options.gradient_flow:
        _explain_gradient_flow(folder, text, options, settings, json)
        return
    if options.rows is not None or options.beside:
        raise UsageError(
            "--rows belongs to --gradient-flow, --beside to that or to --layer-weights; leave them out, or"
            " add it"
        )
    if len(text) != 1:
        raise UsageError(
            f"explain takes FOLDER and one TEXT, but {len(text)} texts are given; put the text in quotes"
        )
    from seqloom.protocols import Request
    from seqloom.runs.output_files import PICTURES, new_file
    from seqloom.tasks.model import load

    request = Request(decode=read_settings(settings, ("decode",)).decode, target=options.target)
    picture = options.output or "attention.png"
    new_file(picture, PICTURES)  # refused before the work, not after it
    explanation = load(folder).explain(text[0], picture, request)
    if json:
        put_json(explanation.summary())
        return
    for line in explanation.lines():
        put(line)


def _explain_gradient_flow(
    folder: str, data: Sequence[str], options: ExplainOptions, settings: Sequence[str], json: bool
) -> None:
    if options.target is not None:
        raise UsageError(
            "--gradient-flow takes no --target: the targets are those of the data; leave it out"
        )
    given = read_settings(settings, ("data",))
    if not data:
        raise UsageError(
            "--gradient-flow needs data: seqloom explain FOLDER DATA --gradient-flow, with files of pairs as"
            " for train"
        )
    from seqloom.workflows.analysis.gradient_flow import LEGEND, explain_gradient_flow

    rows = 64 if options.rows is None else options.rows
    report = explain_gradient_flow(
        [folder, *options.beside],
        data,
        given.data,
        rows=rows,
        output=options.output or "gradient-flow.png",
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
    options: ExplainOptions,
    settings: Sequence[str],
    json: bool,
) -> None:
    others = options.gradient_flow, options.target, options.rows
    if texts or settings or any(one not in (None, False) for one in others):
        raise UsageError(
            "--layer-weights shows numbers of the model itself: it takes FOLDER, --beside, --output and"
            " --json; leave the rest out"
        )
    from seqloom.workflows.analysis.layer_weights import explain_layer_weights

    report = explain_layer_weights([folder, *options.beside], options.output or "layer-weights.png")
    if json:
        put_json(report.summary())
        return
    header, rows = report.table()
    put_table("what a task reads of each layer", rows, header)
    put(f"picture: {report.picture}")


VERB = Verb(explain, 'seqloom explain runs/captions "a dog runs" --output attention.svg')
