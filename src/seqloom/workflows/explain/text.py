"""Looking into a model: where it looked in a text, and how gradient flows back through time in its recurrent
layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from seqloom.config import DecodeConfig, TrainConfig
from seqloom.data.batching.corpus_windows import TextBatch
from seqloom.data.batching.pair_batches import (
    TranslationBatch,
    decoder_ids,
    encoder_ids,
    pad,
    pair_batch,
    source_batch,
)
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import UsageError, printable
from seqloom.explaining.chart_panels import Panel, line_panels
from seqloom.explaining.charts import MOST_SERIES, attention_heat_map, save_chart
from seqloom.explaining.gradient_flow import STATES, GradientFlow, LayerFlow, NormCurve, gradient_flow
from seqloom.explaining.head_maps import head_heat_maps
from seqloom.protocols import AttentiveEncoderDecoder, device_of
from seqloom.run_file import parse, read_run_file
from seqloom.runs.progress import each_pair
from seqloom.runs.run_folder import RUN, LoadedRun, load_run
from seqloom.runs.settings import as_trained
from seqloom.shapes import IGNORE
from seqloom.tasks.language_modeling.documents import each_piece
from seqloom.tasks.translation.translate import decode_texts, target_tokenizer
from seqloom.tasks.translation.translator import new_file
from seqloom.training.objectives import LanguageModelling, Translation

STEPS = 100
"""Of a row of text, in tokens."""
PICTURES = (".png", ".svg", ".html", ".json")
MOST_RUNS = MOST_SERIES // len(STATES)
"""Runs in one chart: an LSTM has a line for each part of its state."""


@final
@dataclass(frozen=True)
class AttentionMaps:
    """What the model looked at when it wrote each piece of its output."""

    source: list[str]
    """Pieces of the source, with `</s>`."""
    target: list[str]
    """Pieces of the output, with `</s>`."""
    weights: Tensor
    """`(target, source)`: each row sums to 1; of a Transformer `(layers, heads, target, source)`."""
    output: str


@final
@dataclass(frozen=True)
class Explanation:
    attention: AttentionMaps
    picture: Path

    def summary(self) -> dict[str, Any]:
        look = self.attention
        return {
            "output": look.output,
            "picture": str(self.picture),
            "source": look.source,
            "target": look.target,
            "weights": look.weights.tolist(),
        }


def attention_of(
    bundle: LoadedRun, text: str, target: str | None = None, decode: DecodeConfig | None = None
) -> AttentionMaps:
    """The attention weights for a text and a target, by default the model's own output.

    Raises UsageError for an empty text, or a model without attention.
    """
    model = bundle.model
    if not isinstance(model, AttentiveEncoderDecoder):
        raise UsageError(
            "explain needs a model that looks at a source while it writes, but this one is of"
            f" {printable(bundle.task)}"
        )
    if not model.has_attention:
        raise UsageError(
            "a model must have attention to be looked at, but this one has one context vector"
            " (model.attention=none)"
        )
    if not text.strip():
        raise UsageError("the text must hold a word, but it is empty")
    if target is None:
        target = decode_texts(model, bundle.tokenizer, [text], decode or bundle.decode)[0][0].text
    special_ids, (source,) = bundle.tokenizer.special_ids, bundle.tokenizer.encode([text])
    (written,) = target_tokenizer(bundle.tokenizer).encode([target])
    ids = decoder_ids(written, special_ids)
    with torch.inference_mode():
        state = model.encode(source_batch([source], special_ids).to(device_of(model)))
        weights = model.attention_weights(torch.tensor([ids[:-1]], device=device_of(model)), state)[0]
    pieces, first = bundle.tokenizer.pieces, len(special_ids.bos)
    weights = weights[..., first - 1 :, :]  # what the marks at the beginning were read for is no output
    return AttentionMaps(
        pieces(encoder_ids(source, special_ids)), pieces(ids[first:]), weights.float().cpu(), target
    )


def draw_attention(attention: AttentionMaps, path: Path, title: str = "", *, pieces: bool = True) -> None:
    """The heat map as a picture, or one for each head. Raises MissingExtraError where the extra `plot` is not
    installed."""
    draw = attention_heat_map if attention.weights.dim() == 2 else head_heat_maps
    save_chart(
        draw(attention.weights.numpy(), attention.source, attention.target, title=title, pieces=pieces), path
    )


def explain(
    folder: str | Path, text: str, target: str | None, output: str, decode: dict[str, Any]
) -> Explanation:
    """The verb. Raises UsageError where the picture is there already."""
    place = new_file(output, PICTURES)
    bundle = load_run(folder)
    attention = attention_of(bundle, text, target, bundle.decode_with(decode))
    draw_attention(attention, place, pieces=spells_words(bundle))
    return Explanation(attention, place)


def spells_words(bundle: LoadedRun) -> bool:
    """Whether pieces are parts of words, so that a picture should show where a word goes on."""
    return bundle.tokenizer.kind not in ("words", "whitespace", "characters", "bytes")


LEGEND = (
    "first, middle, last: ‖∂L/∂s_t‖ at these steps, the median of the pairs; a step: its factor with each"
    " step back; Jacobian: that of ‖∂s_n/∂s_t‖; σ, |λ|: largest singular value and eigenvalue of W_h, of all"
    " its blocks"
)
"""How to read the tables."""


@final
@dataclass(frozen=True, kw_only=True)
class FlowReport:
    """How gradient flows in several runs, on the same pairs."""

    flows: dict[str, GradientFlow]
    """By run, the first as asked for first."""
    rows: int
    picture: Path

    def summary(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "picture": str(self.picture),
            "runs": {run: asdict(flow) for run, flow in self.flows.items()},
        }

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """(title, header, rows) for each run, as LEGEND says."""
        header = ("state", "first", "middle", "last", "a step", "Jacobian", "σ", "|λ|")
        return [
            (
                f"{run}: {flow.layers[0].cell}, loss {flow.loss:.3g}",
                header,
                [row for layer in flow.layers for row in _table_rows(layer)],
            )
            for run, flow in self.flows.items()
        ]


def explain_gradient_flow(
    folders: Sequence[str | Path],
    paths: Sequence[str],
    given: Mapping[str, Any],
    *,
    rows: int = 64,
    output: str = "gradient-flow.png",
) -> FlowReport:
    """The verb: the gradient of the training's objective on the first `rows` pairs, in float64, for each run
    folder; of language models on the first documents, those longer than STEPS tokens cut into rows of so
    many.

    Data are read once, as for the first folder. Raises UsageError where a model has no recurrent layer, the
    picture is there already, the runs are too many for one chart, or are of two tasks.
    """
    place = new_file(output, PICTURES)
    runs = _run_names(folders)
    if rows < 1:
        raise UsageError(f"rows must be at least 1, but is {rows}")
    bundles = {run: load_run(folder) for run, folder in runs.items()}
    if len({bundle.task for bundle in bundles.values()}) > 1:
        raise UsageError(
            "runs that are compared must be of one task, but these are of two; draw each by itself"
        )
    if strange := [folder for folder in folders if not (Path(folder) / RUN).is_file()]:
        raise UsageError(
            f"{printable(str(strange[0]))}: must be a run folder of a recurrent model, but holds no {RUN}"
        )
    data = as_trained(Path(folders[0]), given)
    batches: dict[str, tuple[Any, Any]]
    if next(iter(bundles.values())).task == "text-generation":
        with closing(each_piece(paths, data)) as pieces:
            texts = _first_texts(pieces, rows)
        batches = {run: _text_rows(bundle, texts, rows) for run, bundle in bundles.items()}
    else:
        with closing(each_pair(paths, data)) as records:  # it says at its end what it left out
            pairs = [(record.fields["source"], record.fields["target"]) for record in islice(records, rows)]
        batches = {run: _pair_rows(bundle, pairs, data.max_length) for run, bundle in bundles.items()}
    flows = {run: _flow_of(bundle, *batches[run]) for run, bundle in bundles.items()}
    save_chart(
        line_panels(
            flow_panels(flows), title="Gradient on its way back through time", subtitle=_SUBTITLE, log_y=True
        ),
        place,
    )
    return FlowReport(flows=flows, rows=len(next(iter(batches.values()))[1][0]), picture=place)


_TIME = "t - n (the last step is at 0)"
_SUBTITLE = (
    "Left: what the loss wants of the state at step t. Right: what the last state still knows of it. Medians"
    " over the rows."
)


def flow_panels(flows: dict[str, GradientFlow]) -> list[list[Panel]]:
    """For each layer two panels over t - n, so that the last step of each row is at 0: ‖∂L/∂s_t‖ and
    ‖∂s_n/∂s_t‖. Points that a logarithmic axis cannot show are left out."""
    names = list(dict.fromkeys(layer.name for flow in flows.values() for layer in flow.layers))
    rows = []
    for name in names:
        gradients, jacobians = {}, {}
        for run, flow in flows.items():
            for layer in (layer for layer in flow.layers if layer.name == name):
                for state, flowing in layer.states.items():
                    line = f"{run}: {state}" if len(layer.states) > 1 else run
                    gradients[line], jacobians[line] = (
                        _points(flowing.gradient_from_end),
                        _points(flowing.jacobian),
                    )
        drawn = (("‖∂L/∂s_t‖", gradients), ("‖∂s_n/∂s_t‖ / √width", jacobians))
        row = [
            Panel(title=name, series={line: at for line, at in lines.items() if at}, x=_TIME, y=y)
            for y, lines in drawn
        ]
        rows.append([panel for panel in row if panel.series])
    return [row for row in rows if row]


def _points(curve: NormCurve) -> list[tuple[float, float]]:
    return [
        (float(-position), value)
        for position, value in enumerate(curve.median)
        if value > 0 and isfinite(value)
    ][::-1]


def _run_names(folders: Sequence[str | Path]) -> dict[str, str | Path]:
    """Each folder by its last name, or by the whole where two have the same."""
    if len(folders) > MOST_RUNS:
        raise UsageError(
            f"one chart must have at most {MOST_RUNS} runs, but {len(folders)} are given; draw several"
        )
    short = [Path(folder).resolve().name for folder in folders]
    names = [
        name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)
    ]
    if len(set(names)) < len(names):
        raise UsageError(
            f"each run must be given once, but {printable(max(names, key=names.count))} is given twice"
        )
    return dict(zip(names, folders, strict=True))


def _pair_rows(
    bundle: LoadedRun, pairs: Sequence[tuple[str, str]], max_length: int | None
) -> tuple[Translation, TranslationBatch]:
    sources, targets = (
        [ids[:max_length] for ids in bundle.tokenizer.encode(texts)] for texts in zip(*pairs, strict=True)
    )
    return Translation(_smoothing(bundle)), pair_batch(sources, targets, bundle.tokenizer.special_ids)


def _first_texts(pieces: Iterator[DocumentPiece], rows: int) -> list[str]:
    """The first documents; of a longer one than a piece, its first piece, which gives many rows."""
    texts: list[str] = []
    begins = True
    for piece in pieces:
        texts += [piece.text] if begins else []
        begins = piece.last
        if len(texts) == rows or not begins:
            break
    return texts


def _text_rows(bundle: LoadedRun, texts: Sequence[str], rows: int) -> tuple[LanguageModelling, TextBatch]:
    """At most so many rows of at most STEPS tokens; a row that begins in the midst of a text begins without a
    state."""
    special_ids = bundle.tokenizer.special_ids
    documents = [decoder_ids(ids, special_ids) for ids in bundle.tokenizer.encode(texts)]
    cut = [ids[at : at + STEPS + 1] for ids in documents for at in range(0, len(ids) - 1, STEPS)][:rows]
    inputs, targets = pad([row[:-1] for row in cut], special_ids.pad), pad([row[1:] for row in cut], IGNORE)
    alone, begins = torch.full((len(cut),), -1), torch.ones(len(cut), dtype=torch.bool)
    return LanguageModelling(_smoothing(bundle)), TextBatch(inputs, targets, alone, begins)


def _smoothing(bundle: LoadedRun) -> float:
    return parse(TrainConfig, read_run_file(str(bundle.folder / RUN))["train"], "train.").label_smoothing


def _flow_of(bundle: LoadedRun, objective: Any, rows: Any) -> GradientFlow:
    model = bundle.model.double()  # a gradient that vanishes is below what float32 can hold
    batch = type(rows)(*(part.to(device_of(model)) for part in rows))
    try:
        return gradient_flow(model, lambda: objective(model, batch))
    except UsageError as error:
        raise UsageError(f"{printable(str(bundle.folder))}: {error}") from None


def _table_rows(layer: LayerFlow) -> list[tuple[str, ...]]:
    stretch = max(spectrum.singular_values[0] for spectrum in layer.spectra.values())
    turn = max(
        (spectrum.eigenvalue_moduli[0] for spectrum in layer.spectra.values() if spectrum.eigenvalue_moduli),
        default=float("nan"),
    )
    rows: list[tuple[str, ...]] = []
    for state, flow in layer.states.items():
        end = flow.gradient_from_end.median
        norms = [f"{value:.2g}" for value in (flow.gradient_from_start.median[0], end[len(end) // 2], end[0])]
        numbers = (flow.gradient_per_step, flow.jacobian_per_step, *(() if rows else (stretch, turn)))
        rows.append(
            (
                f"{layer.name} {state}",
                *norms,
                *(f"{value:.3g}" if isfinite(value) else "none" for value in numbers),
            )
        )
    return [(*row, *[""] * (len(rows[0]) - len(row))) for row in rows]
