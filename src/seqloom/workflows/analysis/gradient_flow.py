"""Shows how gradient flows back through time in the recurrent layers of one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from math import isfinite, nan
from pathlib import Path
from typing import final

import torch
from torch import nn

from seqloom import files
from seqloom.config import DataConfig, TrainConfig
from seqloom.data.batching.corpus_windows import TextBatch
from seqloom.data.batching.pair_batches import TranslationBatch, decoder_ids, pad, pair_batch
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import UsageError, printable
from seqloom.explaining.chart_panels import Panel, line_panels
from seqloom.explaining.charts import MOST_SERIES, save_chart
from seqloom.explaining.gradient_flow import (
    STATES,
    GradientFlow,
    LayerFlow,
    NormCurve,
    gradient_flow,
)
from seqloom.models.ensemble import Ensemble, log_probs_with_gradient
from seqloom.protocols import EncodedBatch, Loss, Objective, Request, device_of
from seqloom.run_file import parse, read_run_file
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.runs.progress import each_pair
from seqloom.runs.run_folder import RUN, LoadedRun, load_run
from seqloom.runs.settings import data_config
from seqloom.shapes import IGNORE, on_device
from seqloom.tasks.language_modeling.documents import each_piece
from seqloom.tasks.model import load, refuse_unread_data
from seqloom.text.special_tokens import EOS
from seqloom.training.objectives import HeadObjective, LanguageModelling, Translation

STEPS = 100
"""Of a row of text, in tokens."""
MOST_RUNS = MOST_SERIES // len(STATES)
"""Runs in one chart: an LSTM has a line for each part of its state."""
TIME_AXIS = "t - n (the last step is at 0)"
TITLE = "Gradient on its way back through time"
SUBTITLE = (
    "Left: what the loss wants of the state at step t. Right: what the last state still knows of it. Medians"
    " over the rows."
)
HEADER = ("state", "first", "middle", "last", "a step", "Jacobian", "σ", "|λ|")
LEGEND = (
    "first, middle, last: ‖∂L/∂s_t‖ at these steps, the median of the pairs; a step: its factor with each"
    " step back; Jacobian: that of ‖∂s_n/∂s_t‖; σ, |λ|: largest singular value and eigenvalue of W_h, of all"
    " its blocks"
)
"""How to read the tables."""

BatchMaker = Callable[[LoadedRun], TranslationBatch | TextBatch | EncodedBatch]
"""The first rows of the data, encoded for a run."""
Row = tuple[str, ...]
Points = list[tuple[float, float]]


@final
@dataclass(frozen=True, kw_only=True)
class FlowReport:
    """How gradient flows in several runs, on the same data."""

    flows: dict[str, GradientFlow]
    """By run, in the order given."""
    rows: int
    picture: Path

    def summary(self) -> dict[str, object]:
        flows = {run: asdict(flow) for run, flow in self.flows.items()}
        return {"rows": self.rows, "picture": str(self.picture), "runs": flows}

    def tables(self) -> list[tuple[str, Row, list[Row]]]:
        """(title, header, rows) for each run, as LEGEND says."""
        tables: list[tuple[str, Row, list[Row]]] = []
        for run, flow in self.flows.items():
            rows = [row for layer in flow.layers for row in _layer_rows(layer)]
            tables.append((f"{run}: {flow.layers[0].cell}, loss {flow.loss:.3g}", HEADER, rows))
        return tables


def explain_gradient_flow(
    folders: Sequence[str | Path],
    paths: Sequence[str],
    data_settings: Mapping[str, object],
    *,
    rows: int = 64,
    output: str = "gradient-flow.png",
) -> FlowReport:
    """The gradient of the training's objective on the first `rows` pairs, in float64, for each run folder; of
    language models on the first documents, those longer than STEPS tokens cut into rows of so many.

    The data are read once, as for the first folder. Raises UsageError if a model has no recurrent layer,
    the picture exists already, the runs are too many for one chart, or are of two tasks.
    """
    picture = new_file(output, PICTURES)
    runs = _run_names(folders)
    if rows < 1:
        raise UsageError(f"rows must be at least 1, but is {rows}")
    bundles = {run: load_run(folder) for run, folder in runs.items()}
    tasks = {bundle.task for bundle in bundles.values()}
    if len(tasks) > 1:
        raise UsageError(
            "runs that are compared must be of one task, but these are of two; draw each by itself"
        )
    for folder in folders:
        files.require_folder(Path(folder), "a run folder of a recurrent model", RUN)
    task = tasks.pop()
    # pairs are cut as in training
    read = {name: value for name, value in data_settings.items() if name != "max_length"}
    refuse_unread_data(task, read, paths)
    if any(bundle.with_head is not None for bundle in bundles.values()):
        request = Request(data=data_settings)
        make_batch: BatchMaker = partial(_head_batch, paths=paths, request=request, rows=rows)
    else:
        make_batch = _batch_maker(task, paths, data_config(Path(folders[0]), data_settings), rows)
    batches = {run: make_batch(bundle) for run, bundle in bundles.items()}
    flows = {run: _flow_of(bundles[run], batch) for run, batch in batches.items()}
    chart = line_panels(flow_panels(flows), title=TITLE, subtitle=SUBTITLE, log_y=True)
    save_chart(chart, picture)
    first = next(iter(batches.values()))
    return FlowReport(flows=flows, rows=len(first[0]), picture=picture)


def _head_batch(
    bundle: LoadedRun, *, paths: Sequence[str], request: Request, rows: int
) -> EncodedBatch:
    """The first examples, read by each run itself, as their labels are its own."""
    batch: EncodedBatch = load(bundle.folder, "cpu").first_batch(paths, request, rows)
    return batch


def _batch_maker(task: str, paths: Sequence[str], data: DataConfig, rows: int) -> BatchMaker:
    """Reads the first rows; the result encodes them for a run."""
    if task == "text-generation":
        with closing(each_piece(paths, data)) as pieces:
            texts = _first_texts(pieces, rows)
        return lambda bundle: _text_batch(bundle, texts, rows)
    with closing(each_pair(paths, data)) as records:  # closing it logs what was left out
        pairs = [
            (record.fields["source"], record.fields["target"]) for record in islice(records, rows)
        ]
    return lambda bundle: _pair_batch(bundle, pairs, data.max_length)


def flow_panels(flows: dict[str, GradientFlow]) -> list[list[Panel]]:
    """For each layer two panels over t - n, so that the last step of each row is at 0: ‖∂L/∂s_t‖ and
    ‖∂s_n/∂s_t‖. Points that a logarithmic axis cannot show are left out."""
    gradients: dict[str, dict[str, Points]] = {}
    jacobians: dict[str, dict[str, Points]] = {}
    for run, flow in flows.items():
        for layer in flow.layers:
            for state, curves in layer.states.items():
                line = f"{run}: {state}" if len(layer.states) > 1 else run
                gradients.setdefault(layer.name, {})[line] = _points(curves.gradient_from_end)
                jacobians.setdefault(layer.name, {})[line] = _points(curves.jacobian)
    rows = []
    for name in gradients:
        row = []
        for label, lines in (
            ("‖∂L/∂s_t‖", gradients[name]),
            ("‖∂s_n/∂s_t‖ / √width", jacobians[name]),
        ):
            series = {line: points for line, points in lines.items() if points}
            if series:
                row.append(Panel(title=name, series=series, x=TIME_AXIS, y=label))
        rows.append(row)
    return [row for row in rows if row]


def _points(curve: NormCurve) -> Points:
    """Oldest step first."""
    points = [(float(-steps), value) for steps, value in enumerate(curve.median)]
    return [(time, value) for time, value in reversed(points) if value > 0 and isfinite(value)]


def _run_names(folders: Sequence[str | Path]) -> dict[str, str | Path]:
    """Each folder by its last name, or by the whole path where two have the same."""
    if len(folders) > MOST_RUNS:
        raise UsageError(
            f"one chart must have at most {MOST_RUNS} runs, but {len(folders)} are given; draw several"
        )
    short = [Path(folder).resolve().name for folder in folders]
    names: dict[str, str | Path] = {}
    for name, folder in zip(short, folders, strict=True):
        name = name if short.count(name) == 1 else str(folder)
        if name in names:
            raise UsageError(f"each run must be given once, but {printable(name)} is given twice")
        names[name] = folder
    return names


def _pair_batch(
    bundle: LoadedRun, pairs: Sequence[tuple[str, str]], max_length: int | None
) -> TranslationBatch:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [ids[:max_length] for ids in bundle.tokenizer.encode(texts)]

    sources, targets = zip(*pairs, strict=True)
    return pair_batch(encode(sources), encode(targets), bundle.tokenizer.special_ids)


def _first_texts(pieces: Iterator[DocumentPiece], rows: int) -> list[str]:
    """The first documents; of one that comes in several pieces only the first piece, which gives many
    rows."""
    texts: list[str] = []
    for piece in pieces:
        texts.append(piece.text)
        if len(texts) == rows or not piece.last:
            break
    return texts


def _text_batch(bundle: LoadedRun, texts: Sequence[str], rows: int) -> TextBatch:
    """At most so many rows of at most STEPS tokens. A row from the middle of a text starts from the empty
    state."""
    special_ids = bundle.tokenizer.special_ids
    windows: list[list[int]] = []
    for ids in bundle.tokenizer.encode(texts):
        document = decoder_ids(ids, special_ids)
        windows += [
            document[first : first + STEPS + 1] for first in range(0, len(document) - 1, STEPS)
        ]
    windows = windows[:rows]
    inputs = pad([window[:-1] for window in windows], special_ids.pad)
    targets = pad([window[1:] for window in windows], IGNORE)
    no_stream = torch.full((len(windows),), -1)
    return TextBatch(inputs, targets, no_stream, torch.ones(len(windows), dtype=torch.bool))


def mixture_loss(model: nn.Module, batch: TextBatch) -> Loss:
    """Cross-entropy of the next token under a mixture, with a gradient, which its `log_probs` has not."""
    trained = batch.targets != IGNORE
    targets = batch.targets.where(trained, EOS)
    return Loss(
        -log_probs_with_gradient(model, batch.inputs, targets)[trained].sum(), trained.sum()
    )


def _objective(bundle: LoadedRun, rows: object) -> Objective:
    train = read_run_file(str(bundle.folder / RUN))["train"]
    smoothing = parse(TrainConfig, train, "train.").label_smoothing
    match rows, bundle.model:
        case EncodedBatch(), _:
            return HeadObjective(smoothing)
        case TranslationBatch(), _:
            return Translation(smoothing)
        case _, Ensemble():
            return mixture_loss
    return LanguageModelling(smoothing)


def _flow_of(bundle: LoadedRun, rows: TranslationBatch | TextBatch | EncodedBatch) -> GradientFlow:
    objective = _objective(bundle, rows)
    model = bundle.model.double()  # a gradient that vanishes is below what float32 can hold
    batch = on_device(rows, device_of(model))
    try:
        return gradient_flow(model, lambda: objective(model, batch))
    except UsageError as error:
        raise UsageError(f"{printable(str(bundle.folder))}: {error}") from None


def _layer_rows(layer: LayerFlow) -> list[Row]:
    """One row for each part of the state; the spectra of the layer are in the first."""
    spectra = layer.spectra.values()
    singular_value = max(spectrum.singular_values[0] for spectrum in spectra)
    moduli = [spectrum.eigenvalue_moduli[0] for spectrum in spectra if spectrum.eigenvalue_moduli]
    largest = [_number(singular_value), _number(max(moduli, default=nan))]
    rows: list[Row] = []
    for state, flow in layer.states.items():
        end = flow.gradient_from_end.median
        norms = (flow.gradient_from_start.median[0], end[len(end) // 2], end[0])
        factors = (flow.gradient_per_step, flow.jacobian_per_step)
        name = f"{layer.name} {state}"
        rows.append((name, *(f"{norm:.2g}" for norm in norms), *map(_number, factors), *largest))
        largest = ["", ""]
    return rows


def _number(value: float) -> str:
    return f"{value:.3g}" if isfinite(value) else "none"
