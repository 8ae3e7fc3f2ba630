"""What each id of a `tokenizer.json` stands for, read off its decoder: the bytes, and what is cut off the
ends of a text.

A word mark becomes a blank: `▁the` of sentencepiece and `the` of WordPiece spell " the", `the</w>` of GPT
spells "the ". So a text is its pieces side by side, but for one blank at its begin or its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, final

from seqloom.text.byte_symbols import spell_bytes

Spell = Callable[[bytes], bytes]
_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>\Z")


@final
class HubTokenBytes(NamedTuple):
    """How entries become text."""

    spell: Callable[[str], bytes]
    text_separator: bytes
    """What stands between the pieces."""
    space_prefix: bytes
    """What is cut off the begin of a text."""
    trail: bytes
    """What is cut off its end."""


def token_bytes_of(decoder: dict[str, Any] | None) -> HubTokenBytes:
    """Raises ValueError where the decoder is of a kind that no text model of the field has."""
    if decoder is None:
        return HubTokenBytes(str.encode, b" ", b"", b"")
    steps: list[Spell] = []
    lead = trail = b""
    for part in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
        step, cut = _step(part)
        steps.append(step)
        lead, trail = cut.get("lead", lead), cut.get("trail", trail)

    def spell(piece: str) -> bytes:
        spelled = piece.encode()
        for step in steps:
            spelled = step(spelled)
        return spelled

    return HubTokenBytes(spell, b"", lead, trail)


def _step(part: dict[str, Any]) -> tuple[Spell, dict[str, bytes]]:
    """What a part of a decoder does to a piece, and to the ends of a text."""
    kind = part["type"]
    if kind == "ByteLevel":
        return _bytes, {}
    if kind == "ByteFallback":
        return lambda piece: bytes([int(found[1], 16)]) if (found := _BYTE.match(piece)) else piece, {}
    if kind == "WordPiece":
        prefix = part["prefix"].encode()
        return lambda piece: piece.removeprefix(prefix) if piece.startswith(prefix) else b" " + piece, {
            "lead": b" "
        }
    if kind == "BPEDecoder":
        suffix = part["suffix"].encode()
        return lambda piece: piece.replace(suffix, b" "), {"trail": b" "}
    if kind == "Metaspace":
        mark, begun = part["replacement"].encode(), part.get("prepend_scheme", "always") != "never"
        return lambda piece: piece.replace(mark, b" "), {"lead": b" "} if begun else {}
    if kind == "Replace" and "String" in part["pattern"]:
        old, new = part["pattern"]["String"].encode(), part["content"].encode()
        return lambda piece: piece.replace(old, new), {}
    if kind == "Strip":
        return lambda piece: piece, {
            "lead": part["content"].encode() * part["start"],
            "trail": part["content"].encode() * part["stop"],
        }
    if kind == "Fuse":
        return lambda piece: piece, {}
    raise ValueError(f"its decoder has a part {kind}, which is none that seqloom knows")


def _bytes(piece: bytes) -> bytes:
    """An entry that was added to a byte-level vocabulary may stand as it is."""
    try:
        return spell_bytes(piece.decode())
    except KeyError:
        return piece
