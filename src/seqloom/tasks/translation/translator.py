"""Text in, text out, with a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from seqloom import files
from seqloom.decoding.hypotheses import DecodingStep
from seqloom.errors import UsageError, printable
from seqloom.runs.progress import in_chunks
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.runs.verbs import refuse_other_task
from seqloom.tasks.encoders.fill_mask import LIKELIEST, Filled, MaskFiller
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder
from seqloom.tasks.translation.translate import DecodedText, decode_texts

CHUNK = 512
"""Lines that are in memory at one time."""


@final
class Predictor:
    """A model that is ready to be asked.

    model = seqloom.load("runs/captions")
    model.predict(["A dog runs."])
    """

    def __init__(self, bundle: LoadedRun) -> None:
        self.bundle = bundle

    def predict(self, texts: Sequence[str], **decode: Any) -> list[str]:
        """The best output for each text; keywords change the folder's decode settings (beam=1, max_length=50,
        ...)."""
        return [outputs[0].text for outputs in self.n_best(texts, **decode | {"n_best": 1})]

    def n_best(
        self, texts: Sequence[str], watch: Callable[[DecodingStep], None] | None = None, **decode: Any
    ) -> list[list[DecodedText]]:
        """The `n_best` outputs for each text, best first, with scores. `watch` sees each step
        (`decoding.trace`)."""
        refuse_other_task(self.bundle, "predict", "translation")
        return decode_texts(
            self.bundle.model, self.bundle.tokenizer, list(texts), self.bundle.decode_with(decode), watch
        )

    def stream(self, texts: Iterable[str], chunk: int = CHUNK, **decode: Any) -> Iterator[list[DecodedText]]:
        """The same for any number of texts, in order; memory is bounded by the chunk.

        Where `texts` raises a SeqloomError, what came before it is answered first.
        """
        refuse_other_task(self.bundle, "predict", "translation")
        settings = self.bundle.decode_with(decode)
        for some in in_chunks(texts, chunk):
            yield from decode_texts(self.bundle.model, self.bundle.tokenizer, some, settings)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vector of each text, `(texts, width)`: of an encoder (`workflows.vectors`)."""
        return SentenceEncoder(self.bundle).encode(texts)

    def fill_masks(self, texts: Sequence[str], n_best: int = LIKELIEST) -> list[Filled]:
        """The likeliest tokens at each mask of each text: of a masked language model (`workflows.masks`)."""
        return list(MaskFiller(self.bundle).fill(texts, n_best))


def load(folder: str | Path, device: str = "auto") -> Predictor:
    """Opens a run folder. Raises FolderError where it is none, or is damaged."""
    return Predictor(load_run(folder, device))


def write_lines(path: str, texts: Sequence[str]) -> None:
    """Texts to a new file, one a line. Raises UsageError as `new_file` does."""
    place = new_file(path)
    files.write_atomic(place, "".join(text.replace("\r", " ").replace("\n", " ") + "\n" for text in texts))


def new_file(path: str, suffixes: tuple[str, ...] = ()) -> Path:
    """The place of an output, to be asked for before the work is done.

    Raises UsageError where a file of this name is there already (nothing that a user made is overwritten),
    where its folder is none, or where its name ends in none of `suffixes`, if there are any.
    """
    place = Path(path)
    if suffixes and place.suffix.lower() not in suffixes:
        given = printable(place.suffix) or "no suffix"
        raise UsageError(
            f"{printable(path)}: the output must end in {', '.join(suffixes)}, but this has {given}; name one"
            " of these"
        )
    if not place.parent.is_dir():
        raise UsageError(
            f"{printable(path)}: the output must be in a folder that is there, but"
            f" {printable(str(place.parent))} is none; make it first"
        )
    if place.exists():
        raise UsageError(
            f"{printable(path)}: the output must be a new file, but there is one already; name another or"
            " delete it"
        )
    return place
