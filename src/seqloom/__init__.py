"""seqloom: one toolkit for sequence models. The public names, one table; each is loaded when it is asked for.

seqloom.train("translation", ["train.en", "train.de"], output_dir="runs/captions")
seqloom.load("runs/captions").predict(["A dog runs."])
seqloom.load("runs/reviews").predict(["A wonderful film."])
book = seqloom.load("runs/book")
book.generate(["ROMEO:"], seed=7)
book.complete("Once upon a ti")
list(book.score(["plays Kohli cricket for India Virat."]))

`load` opens every model. `load_generator`, `load_reader`, `load_completer`, `Scorer`, `Predictor` and `TextReader`
are old names, which stay for one release.
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
    from seqloom.tasks.model import load
    from seqloom.tasks.text.predictor import TextPredictor as TextReader
    from seqloom.tasks.text.predictor import load_reader
    from seqloom.tasks.translation.translator import Translator as Predictor
    from seqloom.workflows.analysis.exact import load_searcher
    from seqloom.workflows.train import train

_PUBLIC = {
    "SeqloomError": "seqloom.errors",
    "Predictor": "seqloom.tasks.translation.translator:Translator",
    "Scorer": "seqloom.tasks.language_modeling.score",
    "TextReader": "seqloom.tasks.text.predictor:TextPredictor",
    "load": "seqloom.tasks.model",
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
    "TextReader",
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
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
