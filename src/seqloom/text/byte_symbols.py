"""The 256 characters that stand for bytes in a byte-level vocabulary (`bytes_to_unicode` of GPT-2), and ids
as bytes."""

from __future__ import annotations

from functools import cache


def byte_symbols() -> list[str]:
    """The character of each byte."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


@cache
def byte_of() -> dict[str, int]:
    """The byte of each character."""
    return {symbol: byte for byte, symbol in enumerate(byte_symbols())}


def spell_bytes(piece: str) -> bytes:
    """The bytes of an entry of a byte-level vocabulary. Raises KeyError where it is none."""
    return bytes(map(byte_of().__getitem__, piece))


def readable(spelled: bytes) -> str:
    """Bytes for looking at; one that is no whole character is shown in hexadecimal, such as `⟨e2⟩`."""
    escaped = spelled.decode(
        "utf-8", "surrogateescape"
    )  # a byte that is no whole character becomes U+DC80 ... U+DCFF
    return "".join(f"⟨{ord(c) - 0xDC00:x}⟩" if "\udc80" <= c <= "\udcff" else c for c in escaped)
