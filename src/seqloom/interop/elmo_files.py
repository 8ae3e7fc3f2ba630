"""The files of a published ELMo, read and written: options (`options.json`), weights (HDF5) and a vocabulary.

They are those of bilm-tf, which AllenNLP reads too: TensorFlow's names and orders. A matrix is `(in, out)`,
and the gates of an LSTM are i, g, f, o. The forget gate's bias is stored without the 1 that is added to it
when the model runs, here too, so that what is read and written again is the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from seqloom import files
from seqloom.errors import FolderError, MissingExtraError, UsageError, printable
from seqloom.interop.elmo_options import options_of, read_options
from seqloom.layers.recurrent.highway import HighwayLayer
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.models.elmo import Elmo
from seqloom.protocols import StoredTokenizer
from seqloom.text.special_tokens import BOS, EOS, UNK
from seqloom.text.tokenizer_kinds import SPECIALS, WORD_KINDS, Learned, word_entry
from seqloom.text.tokenizers import TextTokenizer
from seqloom.training.checkpoints import is_finite

if TYPE_CHECKING:
    import h5py

OPTIONS, WEIGHTS, VOCABULARY = "options.json", "weights.hdf5", "vocabulary.txt"
"""The files that are written; published ones may have a prefix, such as elmo_2x4096_..._options.json."""
MARKS = {"<S>": BOS, "</S>": EOS, "<UNK>": UNK}
"""Entries of a vocabulary -> our special ids."""
MOST_VOCABULARY = 2**28
"""Bytes of a vocabulary file."""


@final
class ElmoFiles(NamedTuple):
    options: Path
    weights: Path
    vocabulary: Path | None
    """None if no file is one: models that read characters need none."""


def elmo_files(folder: Path) -> ElmoFiles | None:
    """The files of an ELMo in a folder; None if there are no options and weights. Raises UsageError if
    there are several."""
    options = sorted(folder.glob("*options.json"))
    weights = sorted(folder.glob("*weights.hdf5"))
    if not options or not weights:
        return None
    vocabularies = [
        path for path in sorted(folder.glob("vocab*.txt")) if MARKS.keys() <= set(_lines(path))
    ]
    for found, what in (
        (options, "file of options (*options.json)"),
        (weights, "file of weights (*weights.hdf5)"),
        (vocabularies, "vocabulary (vocab*.txt)"),
    ):
        if len(found) > 1:
            names = ", ".join(printable(path.name) for path in found)
            raise UsageError(
                f"{printable(str(folder))}: must hold one {what} of an ELMo, but holds {names}; put the files"
                " of each model into a folder of its own"
            )
    return ElmoFiles(options[0], weights[0], next(iter(vocabularies), None))


def _lines(path: Path) -> list[str]:
    return files.read_text(path, MOST_VOCABULARY).split("\n")


def read_elmo(found: ElmoFiles) -> tuple[Elmo, TextTokenizer]:
    """The model without an output, and a tokenizer of its words, which spaces divide. Raises FolderError
    if a file is damaged."""
    words = [] if found.vocabulary is None else _words(found.vocabulary)
    entries = {word_entry(word): len(SPECIALS) + number for number, word in enumerate(words)}
    tokenizer = TextTokenizer("whitespace", Learned(SPECIALS | entries, [], []))
    config = read_options(found.options, tokenizer.vocabulary_size)
    if config.tokens == "embedding" and found.vocabulary is None:
        raise FolderError(
            "an ELMo without char_cnn needs a vocabulary of a word a line (vocab*.txt), with <S>, </S> and"
            " <UNK>, but there is none",
            found.options,
        )
    with _opened(found.weights) as weights:
        # nothing is allocated before the sizes are known to be in the file
        with torch.device("meta"):
            shapes = {name: tensor.shape for name, tensor in their_tensors(Elmo(config)).items()}
        if config.tokens == "embedding":
            shapes["embedding"] = torch.Size((len(words) + len(MARKS), config.projection))
        _check(weights, shapes, found.weights)
        read = {name: torch.from_numpy(np.asarray(weights[name])) for name in shapes}
    for name, tensor in read.items():
        if not is_finite(tensor):
            raise FolderError(f"{name} must hold numbers, but holds NaN or infinity", found.weights)
    model = Elmo(config).eval()
    if config.tokens == "embedding":
        rows = read["embedding"]
        order = [{**MARKS, **entries}[word] for word in _lines_of_words(found.vocabulary)]
        read["embedding"] = rows.new_zeros(config.vocabulary_size, config.projection)
        read["embedding"][order] = rows
    load_theirs(model, read)
    return model, tokenizer


def _lines_of_words(path: Path | None) -> list[str]:
    assert path is not None
    return [line for line in _lines(path) if line]


def _words(path: Path) -> list[str]:
    """The words of a vocabulary without the marks. Raises FolderError if one is there twice, or none."""
    lines = _lines_of_words(path)
    if len(set(lines)) < len(lines):
        raise FolderError("each word must be there once, but one is there twice", path)
    for number, word in enumerate(lines, start=1):
        if len(word.split()) != 1:
            raise FolderError(
                f"line {number} must be one word, but is {printable(repr(word[:40]))}", path
            )
    return [word for word in lines if word not in MARKS]


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file. Raises MissingExtraError without h5py, FolderError if it is damaged."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("a published ELMo (HDF5)", "elmo") from None
    try:
        with files.open_regular(path) as file, h5py.File(file, "r") as opened:
            yield opened
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = printable(str(error).partition("\n")[0])[:200]
        raise FolderError(f"must be HDF5, but is damaged ({reason})", path) from None


def _check(weights: h5py.File, shapes: dict[str, torch.Size], path: Path) -> None:
    """Raises FolderError if a tensor is missing or another one, or where its numbers are not in the file:
    HDF5 can name those of other files, and promise ones that nobody wrote."""
    import h5py

    if sum(4 * math.prod(shape) for shape in shapes.values()) > path.stat().st_size:
        raise FolderError("holds fewer numbers than the options say; get both files again", path)
    for name, shape in shapes.items():
        parts = name.split("/")
        links = ["/".join(parts[:end]) for end in range(1, 1 + len(parts))]
        inside = all(type(weights.get(link, getlink=True)) is h5py.HardLink for link in links)
        found = weights[name] if inside and name in weights else None
        if not isinstance(found, h5py.Dataset):
            raise FolderError(f"must hold {name}, but does not; get the file again", path)
        if found.shape != tuple(shape) or found.dtype != np.dtype("<f4"):
            raise FolderError(
                f"{name} must be float32 of {tuple(shape)}, as the options say, but is {found.dtype} of"
                f" {found.shape}",
                path,
            )
        stored = found.id.get_storage_size()
        if found.is_virtual or found.external or stored != 4 * math.prod(shape):
            raise FolderError(
                f"{name} must be in the file as it is, neither compressed nor elsewhere", path
            )


def write_elmo(folder: Path, model: Elmo, tokenizer: StoredTokenizer) -> list[str]:
    """Writes the files; returns their names. Raises UsageError if the words of the model cannot be in a
    vocabulary, and the model cannot do without one."""
    import h5py

    is_of_words = tokenizer.kind in WORD_KINDS
    if model.config.tokens == "embedding" and not is_of_words:
        raise UsageError(
            "the files of an ELMo hold words or read their characters, but this one embeds the pieces of"
            f" data.tokenizer={tokenizer.kind}; train one with model.tokens=characters, or with"
            " data.tokenizer=words"
        )
    files.write_json(folder / OPTIONS, options_of(model.config))
    tensors = their_tensors(model)
    words = tokenizer.token_bytes[len(SPECIALS) :]
    if model.config.tokens == "embedding":
        order = [*MARKS.values(), *range(len(SPECIALS), len(SPECIALS) + len(words))]
        tensors["embedding"] = tensors["embedding"][order]
    with h5py.File(folder / WEIGHTS, "w") as weights:
        for name, tensor in tensors.items():
            weights.create_dataset(name, data=tensor.detach().float().contiguous().cpu().numpy())
    written = [OPTIONS, WEIGHTS]
    if is_of_words and words:
        lines = [*MARKS, *(word.decode() for word in words)]
        files.write_atomic(folder / VOCABULARY, "".join(f"{line}\n" for line in lines))
        written.append(VOCABULARY)
    return written


# --- names and orders


def their_tensors(model: Elmo) -> dict[str, Tensor]:
    """The tensors of both language models, without the softmax, by their names and in their order."""
    bilm, tensors = model.bilm, dict[str, Tensor]()
    if bilm.embedding is not None:
        tensors["embedding"] = bilm.embedding.weight
    if bilm.letters is not None:
        tensors["char_embed"] = bilm.letters.embedding.weight
        for i, convolution in enumerate(cast(Sequence[nn.Conv1d], bilm.letters.filters)):
            tensors[f"CNN/W_cnn_{i}"] = convolution.weight.permute(2, 1, 0)[None]
            tensors[f"CNN/b_cnn_{i}"] = cast(Tensor, convolution.bias)
        for i, highway in enumerate(cast(Sequence[HighwayLayer], bilm.letters.highways)):
            for name, linear in (("transform", highway.linear), ("carry", highway.gate.linear)):
                tensors[f"CNN_high_{i}/W_{name}"] = linear.weight.T
                tensors[f"CNN_high_{i}/b_{name}"] = linear.bias
        tensors["CNN_proj/W_proj"] = bilm.letters.projection.weight.T
        tensors["CNN_proj/b_proj"] = bilm.letters.projection.bias
    for place, layer in _lstm_layers(model):
        both = torch.cat([layer.weight_x, layer.weight_h], dim=1)
        tensors[f"{place}/W_0"] = _swapped(both).T
        tensors[f"{place}/B"] = _swapped(layer.bias)
        tensors[f"{place}/W_P_0"] = layer.weight_p.T
    return tensors


@torch.no_grad()
def load_theirs(model: Elmo, tensors: dict[str, Tensor]) -> None:
    """Makes these the weights of the model, in place."""
    for name, ours in their_tensors(model).items():
        if not name.endswith(("/W_0", "/B")):
            ours.copy_(tensors[name])  # a view of the parameter
    for place, layer in _lstm_layers(model):
        both = _swapped(tensors[f"{place}/W_0"].T)
        layer.weight_x.copy_(both[:, : layer.weight_x.shape[1]])
        layer.weight_h.copy_(both[:, layer.weight_x.shape[1] :])
        layer.bias.copy_(_swapped(tensors[f"{place}/B"]))


def _lstm_layers(model: Elmo) -> Iterator[tuple[str, Any]]:
    for direction, stacks in enumerate((model.bilm.forward_layers, model.bilm.backward_layers)):
        for number, stack in enumerate(cast(Sequence[RecurrentStack], stacks)):
            place = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield place, stack.stack[0]


def _swapped(gates: Tensor) -> Tensor:
    """The blocks i, f, g, o of rows as i, g, f, o; or the other way around."""
    i, second, third, o = gates.chunk(4)
    return torch.cat([i, third, second, o])
