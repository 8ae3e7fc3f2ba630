"""n-gram models to and from the ARPA format, which KenLM, SRILM and speech recognisers read and write."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch

from seqloom import files
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.data.batching.token_store import fingerprint
from seqloom.errors import DataError, UsageError, printable
from seqloom.models.ngrams.arpa import Arpa, read_arpa
from seqloom.models.ngrams.arpa_writer import write_arpa
from seqloom.models.ngrams.ngram import Ngram
from seqloom.protocols import StoredTokenizer
from seqloom.run_file import parse
from seqloom.runs import run_folder
from seqloom.runs.output_files import new_file
from seqloom.runs.write_run import write_finished_run
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizer_kinds import SPELLED, Learned, word_entry
from seqloom.text.tokenizers import TextTokenizer

logger = logging.getLogger(__name__)

SUFFIXES = (".arpa", ".gz")
LONGEST_LINE = 2**20
"""The most bytes of a line of an ARPA file."""
HISTORIES = 64
"""Histories whose probabilities are summed up when a file is read."""
_COMMENT = re.compile(rb"# seqloom: data\.tokenizer=(\w+) data\.normalisation=(\w+)")


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
    tokenizer = run.tokenizer
    spelled = tokenizer.token_bytes[len(SPECIAL_TOKENS) :]
    lines = write_arpa(run.model, [word.decode() for word in spelled], _comment(tokenizer))

    def write(file: BinaryIO) -> None:
        if place.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                packed.writelines(lines)
        else:
            file.writelines(lines)

    files.write_atomic(place, write)
    return sizes(run.model)


def _comment(tokenizer: StoredTokenizer) -> str:
    """How text becomes words, where it is not by spaces alone. Other programs cannot know it."""
    normalisation = tokenizer.normalisation if isinstance(tokenizer, TextTokenizer) else "none"
    if (tokenizer.kind, normalisation) == ("whitespace", "none"):
        return ""
    settings = f"data.tokenizer={tokenizer.kind} data.normalisation={normalisation}"
    logger.info(
        f"text for other programs must be cut into words as here ({settings}), with spaces between them; a"
        " comment in the file says so to `seqloom import`"
    )
    return f"seqloom: {settings}"


def import_arpa(path: str, output_dir: str) -> dict[str, int]:
    """Makes a run folder of an ARPA file, `.gz` too. Its tokenizer takes words apart at spaces alone, as
    KenLM does, unless a comment of ours in the file says how.

    Raises DataError for what is no such file, and UsageError if the folder is there already.
    """
    folder = Path(output_dir)
    with files.atomic_folder(folder, "a new run", "name another --output-dir") as temporary:
        return _import_arpa(path, folder, temporary)


def _import_arpa(path: str, folder: Path, temporary: Path) -> dict[str, int]:
    with files.open_binary(path) as file:
        try:
            arpa = read_arpa(_lines(file, path), path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"must be a whole .gz file, but is damaged ({error})", path) from None
    data = _data_config(arpa, path)
    entries = [*SPECIAL_TOKENS, *_entries(arpa.words)]
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    if len(vocabulary) < len(entries):
        raise DataError("two of its words look alike here (U+10FFFE is no character)", path)
    tokenizer = TextTokenizer(data.tokenizer, Learned(vocabulary, [], []), data.normalisation)
    for note in [*arpa.notes, *_sums(arpa.model)]:
        logger.info(f"{printable(path)}: {note}")
    run = RunConfig(
        task="text-generation",
        output_dir=str(folder),
        model={"name": "ngram", "size": "small", "order": arpa.config.order},
        data=data,
        decode=DecodeConfig(strategy="sample"),
    )
    write_finished_run(temporary, run, arpa.model, tokenizer, [fingerprint(path)], None)
    return sizes(arpa.model)


def _lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The lines of a file, none of them longer than any n-gram is."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"a line of an ARPA text must be at most {LONGEST_LINE:,} bytes long, but this one is"
                " longer",
                path,
                number,
            )
        yield line


def _data_config(arpa: Arpa, path: str) -> DataConfig:
    found = next(filter(None, map(_COMMENT.fullmatch, arpa.head)), None)
    kind, normalisation = (b"whitespace", b"none") if found is None else found.groups()
    content = {
        "train": [str(Path(path).resolve())],
        "tokenizer": kind.decode(),
        "normalisation": normalisation.decode(),
        "vocabulary": arpa.config.vocabulary_size,
    }
    return parse(DataConfig, content, f"{printable(path)}: in its comment, data.")


def _entries(words: Iterable[bytes]) -> Iterator[str]:
    """The entries of the vocabulary. A word that is not UTF-8 can be in no text, but takes its share."""
    for word in words:
        try:
            yield word_entry(word.decode())
        except UnicodeDecodeError:
            yield SPELLED + word.decode("utf-8", "backslashreplace")


def _sums(model: Ngram) -> list[str]:
    """What to say where the probabilities of the next word do not sum to 1: checked after <s>, and after some
    words."""
    c = model.config
    step = max((c.vocabulary_size - c.first_word_id) // HISTORIES, 1)
    histories = [c.bos_id, *range(c.first_word_id, c.vocabulary_size, step)]
    logits, _ = model(torch.tensor(histories)[:, None], None)
    sums = logits[:, 0].double().exp().sum(dim=1)
    if (sums - 1).abs().max() < 0.01:
        return []
    low, high = float(sums.min()), float(sums.max())
    note = (
        f"the probabilities of the next word sum to {low:.3g} to {high:.3g}, not to 1. As in KenLM, score and"
        " evaluate take them as they are; generate divides by the sum"
    )
    return [note]


def sizes(model: Ngram) -> dict[str, int]:
    """Order -> how many n-grams a model holds."""
    return {str(order): size for order, size in enumerate(model.config.sizes, start=1)}
