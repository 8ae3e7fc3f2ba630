"""The `.model` files of sentencepiece, read without that library: pieces, scores and how text is made ready
for them.

A file is one message of protocol buffers (`sentencepiece_model.proto` of github.com/google/sentencepiece): a
row of fields, each a number and a value that is an integer, four or eight bytes, or a length and that many
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from seqloom.errors import FolderError, printable

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""What a piece is. Control pieces and the unknown one are special: no text spells them."""

LIMIT = 2**28
"""Bytes of a file, at most; the largest in use have 5 MB."""


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
    """The normalisation of Unicode, as a table that `tokenizers.normalizers.Precompiled` reads; empty where
    there is none."""
    dummy_prefix: bool
    """Whether a blank is put before a text, so that its first word is a word like any other."""
    one_blank: bool
    """Whether blanks at the ends are dropped, and runs of them become one."""

    @property
    def unknown(self) -> int:
        """The id of what has no other pieces."""
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises FolderError where the file is missing, damaged, or of a kind that no model of the field has."""
    shown = printable(str(path))
    try:
        if path.stat().st_size > LIMIT:
            raise FolderError(f"{shown}: must be at most {LIMIT} bytes, but has {path.stat().st_size}")
        return _parsed(path.read_bytes())
    except OSError as error:
        raise FolderError(f"{shown}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, struct.error) as error:
        raise FolderError(
            f"{shown}: must be a model that sentencepiece wrote, but {error}; get the file again"
        ) from None


def _parsed(content: bytes) -> SentencePieceModel:
    pieces = [_piece(value) for number, value in _fields(content) if number == 1]
    spec = {number: dict(_fields(value)) for number, value in _fields(content) if number in (2, 3)}
    training, normalising = spec.get(2, {}), spec.get(3, {})
    if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
        raise ValueError(f"of its {len(pieces)} pieces not just one is the unknown one")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece stands twice")
    if (kind := training.get(3, 1)) not in (1, 2):
        raise ValueError("its pieces are words or characters, neither unigram nor bpe")
    if not normalising.get(5, 1) or training.get(24, 0):
        raise ValueError("its blanks are no `▁` before words")
    charsmap = normalising.get(2, b"")
    _check_charsmap(charsmap)
    return SentencePieceModel(
        kind="unigram" if kind == 1 else "bpe",
        pieces=pieces,
        charsmap=charsmap,
        dummy_prefix=bool(normalising.get(3, 1)),
        one_blank=bool(normalising.get(4, 1)),
    )


def _piece(content: bytes) -> SentencePiece:
    fields: dict[int, Any] = dict(_fields(content))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return SentencePiece(fields[1].decode(), score, fields.get(3, NORMAL))


def _check_charsmap(charsmap: bytes) -> None:
    """The size of the table, the table, and then the strings that it points at: the library panics where that
    is not so."""
    if not charsmap:
        return
    (size,) = struct.unpack_from("<I", charsmap)
    if size % 4 or size + 4 > len(charsmap):
        raise ValueError("its table of normalisation is cut off")
    charsmap[4 + size :].decode()


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field, an integer or bytes. Raises ValueError where the bytes are no message."""
    at = 0
    while at < len(content):
        key, at = _integer(content, at)
        wire, length = key & 7, 8
        if wire == 0:
            value, at = _integer(content, at)
            yield key >> 3, value
            continue
        if wire == 2:
            length, at = _integer(content, at)
        elif wire == 5:
            length = 4
        elif wire != 1:
            raise ValueError(f"byte {at} begins no field")
        if at + length > len(content):
            raise ValueError("it is cut off")
        yield key >> 3, content[at : at + length]
        at += length


def _integer(content: bytes, at: int) -> tuple[int, int]:
    """An integer, seven bits a byte, the least first; and where it ends."""
    if at < len(content) and content[at] < 0x80:
        return content[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise ValueError("it is cut off")
        value |= (content[at] & 0x7F) << shift
        at += 1
        if content[at - 1] < 0x80:
            return value, at
    raise ValueError(f"byte {at} ends no integer")
