"""Trained word vectors as a file that other programs read."""

from __future__ import annotations

from seqloom import files
from seqloom.errors import UsageError, printable
from seqloom.runs import run_folder
from seqloom.runs.output_files import new_file
from seqloom.tasks.word_vectors.vector_space import VectorSpace, space_of
from seqloom.text.vectors.write_vectors import SUFFIXES, write_vectors


def export_vectors(folder: str, path: str) -> dict[str, object]:
    """Writes the vectors of a run folder; returns how many there are. Raises UsageError for another model, or
    where the file is there already."""
    place = new_file(path, SUFFIXES)
    space = vectors_of_run(folder)
    suffix = place.suffix.lower()
    files.write_atomic(place, lambda file: write_vectors(file, suffix, space.words, space.vectors))
    words, width = space.vectors.shape
    return {"output": path, "words": words, "width": width, "form": suffix}


def vectors_of_run(folder: str) -> VectorSpace:
    """Raises UsageError if the folder has no word vectors."""
    run = run_folder.load_run(folder, "cpu")
    if run.task != "word-vectors":
        raise UsageError(
            f"{printable(folder)}: must hold word vectors, but is a model of {printable(run.task)}"
        )
    return space_of(run)
