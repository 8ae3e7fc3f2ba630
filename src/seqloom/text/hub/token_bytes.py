"""The bytes of each id of a `tokenizer.json`, read off its decoder; and what a text loses at its ends.

A mark of a word becomes a space: `▁the` of sentencepiece and `the` of WordPiece spell " the", `the</w>` of
GPT spells "the ". So a text is its pieces side by side, except one space at its beginning or its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, final

from seqloom.text.byte_symbols import symbols_to_bytes
from seqloom.text.hub.pipeline import Component
from seqloom.text.tokenizer_kinds import SPELLED

_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>\Z")


WHOLE_WORDPIECE: Component = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"Regex": "^(?!##)"}, "content": " "},
        {"type": "Replace", "pattern": {"Regex": "^##"}, "content": ""},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
"""The decoder of an exported WordPiece: the library's own leaves `##` before a text that begins with the rest
of a word, as a model may write it."""
WHOLE_WORDS: Component = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"Regex": "^"}, "content": " "},
        {"type": "Replace", "pattern": {"String": SPELLED}, "content": ""},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
"""The same of whole words, without the mark of those that spell a special token. No other regular expression
of a file is ever run."""


@final
class PieceDecoder(NamedTuple):
    """What one part of a decoder does."""

    convert: Callable[[bytes], bytes]
    """A piece, as the step before left it -> the piece."""
    space_prefix: bytes | None = None
    """What is dropped at the beginning of a text; None if this part does not decide it."""
    space_suffix: bytes | None = None
    """The same at its end."""


@final
class HubTokenBytes(NamedTuple):
    """How entries become text."""

    token_bytes: Callable[[str], bytes]
    text_separator: bytes = b""
    """What joins the pieces."""
    space_prefix: bytes = b""
    """What is dropped at the beginning of a text."""
    space_suffix: bytes = b""
    """What is dropped at its end."""


def token_bytes_of(decoder: Component | None) -> HubTokenBytes:
    """Raises ValueError if the decoder is of a kind that no text model of the hub has."""
    if decoder is None:
        return HubTokenBytes(str.encode, b" ")
    if decoder == WHOLE_WORDPIECE:
        decoder = {"type": "WordPiece", "prefix": "##"}
    if decoder == WHOLE_WORDS:
        return HubTokenBytes(lambda piece: piece.removeprefix(SPELLED).encode(), b" ")
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    steps = [_step(part) for part in parts]
    conversions = [step.convert for step in steps]
    # the last part that decides what is dropped
    prefixes = [b"", *(step.space_prefix for step in steps if step.space_prefix is not None)]
    suffixes = [b"", *(step.space_suffix for step in steps if step.space_suffix is not None)]

    def token_bytes(piece: str) -> bytes:
        spelled = piece.encode()
        for convert in conversions:
            spelled = convert(spelled)
        return spelled

    return HubTokenBytes(token_bytes, b"", prefixes[-1], suffixes[-1])


def _step(part: Component) -> PieceDecoder:
    kind = part["type"]
    if kind == "ByteLevel":
        return PieceDecoder(_byte_level)
    if kind == "ByteFallback":
        return PieceDecoder(_byte_fallback)
    if kind == "Fuse":
        return PieceDecoder(bytes)
    if kind == "WordPiece":
        return PieceDecoder(_wordpiece(part["prefix"].encode()), space_prefix=b" ")
    if kind == "BPEDecoder":
        return PieceDecoder(_replace(part["suffix"], " "), space_suffix=b" ")
    if kind == "Metaspace":
        prepended = part.get("prepend_scheme", "always") != "never"
        prefix = b" " if prepended else None
        return PieceDecoder(_replace(part["replacement"], " "), prefix)
    if kind == "Replace" and "String" in part["pattern"]:
        return PieceDecoder(_replace(part["pattern"]["String"], part["content"]))
    if kind == "Strip":
        content = part["content"].encode()
        return PieceDecoder(bytes, content * part["start"], content * part["stop"])
    raise ValueError(f"its decoder has a part {kind}, which is none that seqloom knows")


def _replace(old: str, new: str) -> Callable[[bytes], bytes]:
    before, after = old.encode(), new.encode()
    return lambda piece: piece.replace(before, after)


def _wordpiece(continuation: bytes) -> Callable[[bytes], bytes]:
    def convert(piece: bytes) -> bytes:
        return piece.removeprefix(continuation) if piece.startswith(continuation) else b" " + piece

    return convert


def _byte_fallback(piece: bytes) -> bytes:
    byte = _BYTE.match(piece)
    return piece if byte is None else bytes([int(byte[1], 16)])


def _byte_level(piece: bytes) -> bytes:
    """An added entry of a byte-level vocabulary may be plain text."""
    try:
        return symbols_to_bytes(piece.decode())
    except KeyError:
        return piece
