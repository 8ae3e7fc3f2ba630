"""seqloom: one toolkit for sequence models. The public names, one table; each is loaded when it is asked for.

seqloom.train("translation", ["train.en", "train.de"], output_dir="runs/captions")
seqloom.load("runs/captions").predict(["A dog runs."])
seqloom.load("runs/reviews").predict(["A wonderful film."])
book = seqloom.load("runs/book")
book.generate(["ROMEO:"], seed=7)
book.complete("Once upon a ti")
list(book.score(["plays Kohli cricket for India Virat."]))

`load` opens every model. `register_...` adds cells, models, tasks and rules of one's own.
`load_generator`, `load_reader`, `load_completer`, `Scorer`, `Predictor` and `TextReader`
are old names, which stay for one release.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqloom.version import VERSION as __version__

if TYPE_CHECKING:
    from seqloom.decoding.logits_processors import register_logits_processor
    from seqloom.errors import SeqloomError
    from seqloom.evaluation.text_metrics import register_metric
    from seqloom.layers.recurrent.cells import register_cell
    from seqloom.models import register_model
    from seqloom.plugins import load_plugin
    from seqloom.registry import register_task
    from seqloom.serving.server import serve, serving
    from seqloom.tasks.language_modeling.complete import load_completer
    from seqloom.tasks.language_modeling.generate import load_generator
    from seqloom.tasks.language_modeling.score import Scorer
    from seqloom.tasks.model import load
    from seqloom.tasks.text.predictor import TextPredictor as TextReader
    from seqloom.tasks.text.predictor import load_reader
    from seqloom.tasks.translation.translator import Translator as Predictor
    from seqloom.training.objectives import register_objective
    from seqloom.workflows.analysis.exact import load_searcher
    from seqloom.workflows.train import train

_PUBLIC = {
    "SeqloomError": "seqloom.errors",
    "Predictor": "seqloom.tasks.translation.translator:Translator",
    "Scorer": "seqloom.tasks.language_modeling.score",
    "TextReader": "seqloom.tasks.text.predictor:TextPredictor",
    "load": "seqloom.tasks.model",
    "load_plugin": "seqloom.plugins",
    "register_cell": "seqloom.layers.recurrent.cells",
    "register_logits_processor": "seqloom.decoding.logits_processors",
    "register_metric": "seqloom.evaluation.text_metrics",
    "register_model": "seqloom.models",
    "register_objective": "seqloom.training.objectives",
    "register_task": "seqloom.registry",
    "load_completer": "seqloom.tasks.language_modeling.complete",
    "load_generator": "seqloom.tasks.language_modeling.generate",
    "load_reader": "seqloom.tasks.text.predictor",
    "load_searcher": "seqloom.workflows.analysis.exact",
    "serve": "seqloom.serving.server",
    "serving": "seqloom.serving.server",
    "train": "seqloom.workflows.train",
}

__all__ = [
    "Predictor",
    "Scorer",
    "SeqloomError",
    "TextReader",
    "__version__",
    "load",
    "load_completer",
    "load_generator",
    "load_plugin",
    "load_reader",
    "load_searcher",
    "register_cell",
    "register_logits_processor",
    "register_metric",
    "register_model",
    "register_objective",
    "register_task",
    "serve",
    "serving",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return vars(importlib.import_module(module))[attribute or name]
