"""The 256 characters that spell bytes in a byte-level vocabulary (`bytes_to_unicode` of GPT-2)."""

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


def symbols_to_bytes(piece: str) -> bytes:
    """The bytes of an entry of a byte-level vocabulary. Raises KeyError for any other entry."""
    return bytes(map(byte_of().__getitem__, piece))


def readable(spelled: bytes) -> str:
    """Bytes as text; a byte that is not part of a whole character is shown in hexadecimal: `⟨e2⟩`."""
    # surrogateescape turns such a byte into one of U+DC80 ... U+DCFF
    escaped = spelled.decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:x}⟩" if "\udc80" <= c <= "\udcff" else c for c in escaped)
