"""seqloom: one toolkit for sequence models. The public names, one table; each is loaded when it is asked for.

seqloom.train("translation", ["train.en", "train.de"], output_dir="runs/captions")
seqloom.load("runs/captions").predict(["A dog runs."])
seqloom.load_generator("runs/book").generate(["ROMEO:"], seed=7)
seqloom.load_reader("runs/reviews").label(["A wonderful film."])
seqloom.load_completer("runs/book").complete("Once upon a ti")
list(seqloom.Scorer("runs/book").score(["plays Kohli cricket for India Virat."]))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqloom.version import VERSION as __version__

if TYPE_CHECKING:
    from seqloom.errors import SeqloomError
    from seqloom.tasks.language_modeling.complete import load_completer
    from seqloom.tasks.language_modeling.generate import load_generator
    from seqloom.tasks.language_modeling.score import Scorer
    from seqloom.tasks.text.predictor import TextPredictor, load_reader
    from seqloom.tasks.translation.translator import Predictor, load
    from seqloom.workflows.analysis.exact import load_searcher
    from seqloom.workflows.train import train

_PUBLIC = {
    "SeqloomError": "seqloom.errors",
    "Predictor": "seqloom.tasks.translation.translator",
    "Scorer": "seqloom.tasks.language_modeling.score",
    "TextPredictor": "seqloom.tasks.text.predictor",
    "load": "seqloom.tasks.translation.translator",
    "load_completer": "seqloom.tasks.language_modeling.complete",
    "load_generator": "seqloom.tasks.language_modeling.generate",
    "load_reader": "seqloom.tasks.text.predictor",
    "load_searcher": "seqloom.workflows.analysis.exact",
    "train": "seqloom.workflows.train",
}

__all__ = [
    "Predictor",
    "Scorer",
    "SeqloomError",
    "TextPredictor",
    "__version__",
    "load",
    "load_completer",
    "load_generator",
    "load_reader",
    "load_searcher",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
