"""n-gram models to and from the ARPA format, which KenLM, SRILM and speech recognisers read and write."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import DataError, UsageError, printable
from seqloom.models.arpa import read_arpa, write_arpa
from seqloom.models.ngram import Ngram
from seqloom.runs import run_folder
from seqloom.runs.output_files import new_file
from seqloom.runs.write_run import write_finished_run
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizer_kinds import Learned
from seqloom.text.tokenizers import TextTokenizer

SUFFIXES = (".arpa", ".gz")


def export_arpa(folder: str, path: str) -> dict[str, int]:
    """Writes the n-gram model of a run folder as an ARPA file, `.gz` too; returns how many n-grams of each
    order it holds.

    Raises UsageError for another model, for pieces of text that ARPA cannot hold, or where the file is there
    already.
    """
    place = new_file(path, SUFFIXES)
    run = run_folder.load_run(folder)
    if not isinstance(run.model, Ngram):
        raise UsageError(
            f"{printable(folder)}: an ARPA file holds an n-gram model, but this is a {run.model_type}"
        )
    vocabulary = run.tokenizer.vocabulary_size
    words = [run.tokenizer.pieces([at])[0] for at in range(len(SPECIAL_TOKENS), vocabulary)]
    lines = write_arpa(run.model, words)

    def write(file: BinaryIO) -> None:
        if place.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                packed.writelines(lines)
        else:
            file.writelines(lines)

    files.write_atomic(place, write)
    return sizes(run.model)


def import_arpa(path: str, output_dir: str) -> dict[str, int]:
    """Makes a run folder of an ARPA file, `.gz` too; its tokenizer takes words apart at white space.

    Raises DataError for what is no such file, and UsageError where the folder is there already.
    """
    folder = Path(output_dir)
    with files.atomic_folder(folder, "a new run", "name another --output-dir") as temporary:
        return _import_arpa(path, folder, temporary)


def _import_arpa(path: str, folder: Path, temporary: Path) -> dict[str, int]:
    with files.open_binary(path) as file:
        try:
            arpa = read_arpa(file, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"must be a whole .gz file, but is damaged ({error})", path) from None
    vocabulary = {token: at for at, token in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {word: at for at, word in enumerate(arpa.words, start=len(SPECIAL_TOKENS))}
    if len(vocabulary) < arpa.config.vocabulary_size:
        strange = next(word for word in arpa.words if word in SPECIAL_TOKENS)
        raise DataError(
            f"its words must be no special tokens, but there is {strange}; write it in another way",
            path,
        )
    tokenizer = TextTokenizer("words", Learned(vocabulary, [], []))
    run = RunConfig(
        task="text-generation",
        output_dir=str(folder),
        model={"name": "ngram", "size": "small", "order": arpa.config.order},
        data=DataConfig(
            train=(str(Path(path).resolve()),), tokenizer="words", vocabulary=len(vocabulary)
        ),
        decode=DecodeConfig(strategy="sample"),
    )
    write_finished_run(temporary, run, arpa.model, tokenizer, [fingerprint(path)], None)
    return sizes(arpa.model)


def sizes(model: Ngram) -> dict[str, int]:
    """Order -> how many n-grams a model holds."""
    return {str(order): size for order, size in enumerate(model.config.sizes, start=1)}
