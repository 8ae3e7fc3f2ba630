"""The normalisation of Unicode in a file of sentencepiece, done as that library does it.

`tokenizers.normalizers.Precompiled` looks at one grapheme at a time, and composes none of more than five
bytes: Vietnamese with its marks apart, as macOS writes it, would lose some. Here the longest entry that the
rest of the text begins with is replaced, wherever graphemes end.

The table is a double-array trie (Aoe 1989, as darts-clone packs it) over UTF-8, and after it the
replacements, each ended by a zero byte.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, final


class NormalisedText(NamedTuple):
    """A text, and where it comes from."""

    text: str
    spans: list[tuple[int, int]]
    """The characters `original[begin:end]` of each character."""


@final
class Charsmap:
    """Made of the bytes that a file holds, which `read_sentencepiece` has checked."""

    def __init__(self, content: bytes) -> None:
        (size,) = struct.unpack_from("<I", content)
        self._units = struct.unpack_from(f"<{size // 4}I", content, 4)
        self._replacements = content[4 + size :]

    def normalise(self, text: str) -> NormalisedText:
        """Each prefix that has an entry, the longest first, replaced by it."""
        content = text.encode()
        # the number of the character that each byte belongs to
        characters = [number for number, char in enumerate(text) for _ in char.encode()]
        characters.append(len(text))
        found: list[str] = []
        spans: list[tuple[int, int]] = []
        position = 0
        while position < len(content):
            length, replacement = self._longest(content, position)
            begin = characters[position]
            if not length:
                length, replacement = len(text[begin].encode()), text[begin]
            position += length
            found.append(replacement)
            spans += [(begin, characters[position])] * len(replacement)
        return NormalisedText("".join(found), spans)

    def _longest(self, content: bytes, position: int) -> tuple[int, str]:
        """How many bytes from here the longest entry has, and its replacement; 0 if there is none."""
        units = self._units
        node = _offset(units[0]) if units else 0
        length, place = 0, 0
        for index in range(position, len(content)):
            node ^= content[index]
            if node >= len(units) or units[node] & 0x800000FF != content[index]:
                break
            is_entry = units[node] >> 8 & 1
            node ^= _offset(units[node])
            if is_entry and node < len(units):
                length, place = index + 1 - position, units[node] & 0x7FFFFFFF
        if not length:
            return 0, ""
        end = self._replacements.find(b"\0", place)
        return length, self._replacements[place : end if end >= 0 else None].decode(
            "utf-8", "replace"
        )


def _offset(unit: int) -> int:
    """How far away the children of a node are."""
    return (unit >> 10) << ((unit & 0x200) >> 6)
