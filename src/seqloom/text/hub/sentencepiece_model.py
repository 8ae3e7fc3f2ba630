"""The `.model` files of sentencepiece, read without that library: pieces, scores and normalisation.

A file is one message of protocol buffers (`sentencepiece_model.proto` of github.com/google/sentencepiece): a
list of fields, each a number and a value. A value is an integer, four or eight bytes, or a length and that
many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, final

from seqloom.errors import FolderError
from seqloom.files import read_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The type of a piece. Control pieces and the unknown one are special: no text spells them."""

MAX_BYTES = 2**28
"""Of a file; the largest in use have 5 MB."""

Field = int | bytes
V = TypeVar("V", int, bytes)


@final
class SentencePiece(NamedTuple):
    text: str
    score: float
    kind: int


@final
class SentencePieceModel(NamedTuple):
    """What a file holds. The id of a piece is its place."""

    kind: Literal["unigram", "bpe"]
    pieces: list[SentencePiece]
    charsmap: bytes
    """The normalisation of Unicode, as a table that `tokenizers.normalizers.Precompiled` reads; empty if
    there is none."""
    add_dummy_prefix: bool
    """Whether a space is put before a text, so that its first word is a word like any other."""
    remove_extra_whitespaces: bool
    """Whether spaces at the ends are dropped, and runs of them become one."""

    @property
    def unk_id(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises FolderError if the file is missing or damaged, or is neither unigram nor bpe."""
    try:
        return _parsed(read_bytes(path, MAX_BYTES))
    except (ValueError, struct.error) as error:
        raise FolderError(
            f"must be a model that sentencepiece wrote, but {error}; get the file again", path
        ) from None


def _parsed(content: bytes) -> SentencePieceModel:
    pieces: list[SentencePiece] = []
    training: dict[int, Field] = {}
    normalising: dict[int, Field] = {}
    for number, value in _fields(content):
        if number == 1:
            pieces.append(_piece(value))
        elif number == 2:
            training = _message(value)
        elif number == 3:
            normalising = _message(value)
    if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
        raise ValueError(f"of its {len(pieces)} pieces not just one is the unknown one")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece occurs twice")
    kind = training.get(3, 1)
    if kind not in (1, 2):
        raise ValueError("its pieces are words or characters, neither unigram nor bpe")
    if not normalising.get(5, 1) or training.get(24, 0):
        raise ValueError("its spaces are no `▁` before words")
    charsmap = _get(normalising, 2, b"")
    _check_charsmap(charsmap)
    types: dict[Field, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
    return SentencePieceModel(
        kind=types[kind],
        pieces=pieces,
        charsmap=charsmap,
        add_dummy_prefix=bool(normalising.get(3, 1)),
        remove_extra_whitespaces=bool(normalising.get(4, 1)),
    )


def _piece(content: Field) -> SentencePiece:
    fields = _message(content)
    if 1 not in fields:
        raise ValueError("a piece has no text")
    (score,) = struct.unpack("<f", _get(fields, 2, bytes(4)))
    return SentencePiece(_get(fields, 1, b"").decode(), score, _get(fields, 3, NORMAL))


def _check_charsmap(charsmap: bytes) -> None:
    """It is the size of a table, the table, and the strings that the table points at: the library panics
    where that is not so."""
    if not charsmap:
        return
    (size,) = struct.unpack_from("<I", charsmap)
    if size % 4 or size + 4 > len(charsmap):
        raise ValueError("its table of normalisation is cut off")
    charsmap[4 + size :].decode()


def _get(fields: dict[int, Field], number: int, default: V) -> V:
    """A field of the type of its default."""
    value = fields.get(number, default)
    if type(value) is not type(default):
        raise ValueError(f"its field {number} is of another type")
    return value


def _message(content: Field) -> dict[int, Field]:
    """A message within the message; of a field that is repeated the last."""
    if isinstance(content, int):
        raise ValueError("a part of it is a number")
    return dict(_fields(content))


def _fields(content: bytes) -> Iterator[tuple[int, Field]]:
    """Number and value of each field. Raises ValueError if the bytes are no message."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        wire_type, length = key & 7, 8
        if wire_type == 0:
            value, position = _varint(content, position)
            yield key >> 3, value
            continue
        if wire_type == 2:
            length, position = _varint(content, position)
        elif wire_type == 5:
            length = 4
        elif wire_type != 1:
            raise ValueError(f"byte {position} begins no field")
        if position + length > len(content):
            raise ValueError("it is cut off")
        yield key >> 3, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """An integer, seven bits a byte, the lowest first; and where it ends."""
    if position < len(content) and content[position] < 0x80:
        return content[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            raise ValueError("it is cut off")
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    raise ValueError(f"byte {position} ends no integer")
