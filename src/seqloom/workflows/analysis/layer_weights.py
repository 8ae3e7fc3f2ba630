"""Shows how much of each layer of an ELMo the models of tasks have learned to read: s_k and γ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from seqloom.errors import UsageError, printable
from seqloom.explaining.charts import MOST_SERIES, line_chart, save_chart
from seqloom.models.elmo import Elmo
from seqloom.models.encoder_with_head import EncoderWithHead
from seqloom.runs.output_files import PICTURES, new_file
from seqloom.runs.run_folder import open_model

TITLE = "What a task reads of each layer"
SUBTITLE = "s of γ Σ s_k h_k; layer 0 is the token layer."


@final
@dataclass(frozen=True, kw_only=True)
class MixtureWeights:
    """Of one model."""

    folder: str
    task: str
    weights: list[float]
    """s_k, layer 0 first."""
    scale: float
    """γ; 1 where it is not trained."""


@final
@dataclass(frozen=True, kw_only=True)
class LayerWeightsReport:
    """Of all models."""

    models: list[MixtureWeights]
    picture: Path

    def summary(self) -> dict[str, object]:
        return {"models": [vars(model) for model in self.models], "picture": str(self.picture)}

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The header, and a row for each model."""
        layers = max(len(model.weights) for model in self.models)
        header = ("model", "task", *(f"s_{k}" for k in range(layers)), "γ")
        rows = []
        for model in self.models:
            shown = [f"{weight:.3f}" for weight in model.weights]
            empty = [""] * (layers - len(shown))
            rows.append((printable(model.folder), model.task, *shown, *empty, f"{model.scale:.3f}"))
        return header, rows


def explain_layer_weights(folders: Sequence[str], output: str) -> LayerWeightsReport:
    """Draws the weights of these models, each with a line. Raises UsageError if a model reads no mixture
    of layers, where there are too many, or where the picture exists already."""
    picture = new_file(output, PICTURES)
    if len(folders) > MOST_SERIES:
        raise UsageError(f"a chart has at most {MOST_SERIES} models, but {len(folders)} are given")
    if len(set(folders)) < len(folders):
        raise UsageError("each model must be given once, but one is given twice")
    models = [_weights_of(folder) for folder in folders]
    lines = {model.folder: list(enumerate(model.weights)) for model in models}
    chart = line_chart(lines, x="layer k", y="s_k", title=TITLE, subtitle=SUBTITLE)
    save_chart(chart, picture)
    return LayerWeightsReport(models=models, picture=picture)


def _weights_of(folder: str) -> MixtureWeights:
    opened = open_model(folder, "cpu")
    model = opened.model
    encoder = model.encoder if isinstance(model, EncoderWithHead) else None
    if not isinstance(encoder, Elmo) or encoder.mix is None:
        raise UsageError(
            f"{printable(folder)}: --layer-weights are those of a task on top of an elmo, but this is"
            f" {opened.content['model_type']} of {opened.content['task']}"
        )
    mix = encoder.mix
    scale = 1.0 if mix.scale is None else mix.scale.item()
    return MixtureWeights(
        folder=folder,
        task=str(opened.content["task"]),
        weights=mix.weights().tolist(),
        scale=scale,
    )
