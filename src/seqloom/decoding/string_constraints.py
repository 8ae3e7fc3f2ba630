"""Constraints on the text that tokens spell: banned strings, stop strings, and a text to begin with.

All of them are exact on the bytes of the text, however tokens cut it: a string may lie across tokens, or
begin inside of one. In UTF-8 no character is part of another, so a string is found in the bytes exactly where
it is found in the text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import torch
from torch import Tensor

from seqloom.decoding.hypotheses import LiveHypotheses, StoppingCriterion
from seqloom.decoding.logits_processors import LogitsProcessor
from seqloom.errors import UsageError, printable
from seqloom.protocols import Tokenizer


@final
class Lexicon:
    """Tokens sorted by their bytes, for looking up. Tokens without bytes are left out."""

    def __init__(self, token_bytes: Sequence[bytes], separator: bytes = b"") -> None:
        entries = sorted((separator + piece, i) for i, piece in enumerate(token_bytes) if piece)
        self.texts = [text for text, _ in entries]
        self.ids = torch.tensor([i for _, i in entries], dtype=torch.long)
        self.longest = max(map(len, self.texts), default=0)

    def with_prefix(self, prefix: bytes) -> slice:
        """The range of `texts` that begin with `prefix`."""
        start = bisect_left(self.texts, prefix)
        return slice(
            start, bisect_right(self.texts, prefix, lo=start, key=lambda text: text[: len(prefix)])
        )

    def prefixes_of(self, text: bytes) -> list[int]:
        """The indices in `texts` of all proper prefixes of `text`, the shortest first."""
        indices: list[int] = []
        for length in range(1, min(self.longest, len(text) - 1) + 1):
            prefix = text[:length]
            indices += range(bisect_left(self.texts, prefix), bisect_right(self.texts, prefix))
        return indices

    def containing(self, string: bytes) -> Tensor:
        """Ids of tokens that contain `string`, which must be UTF-8; an id comes once for each occurrence."""
        joined, starts = self._joined
        positions, position = [], joined.find(string)
        while position >= 0:
            positions.append(position)
            position = joined.find(string, position + 1)
        index = (
            torch.searchsorted(starts, torch.tensor(positions, dtype=torch.long), right=True) - 1
        )
        return self.ids[index]

    @cached_property
    def first_bytes(self) -> Tensor:
        """The first byte of each of `texts`."""
        return torch.tensor([text[0] for text in self.texts], dtype=torch.long)

    @cached_property
    def _joined(self) -> tuple[bytes, Tensor]:
        """The texts with a byte between them that UTF-8 never uses, and where each begins."""
        starts = torch.tensor([0, *(len(text) + 1 for text in self.texts)]).cumsum(0)[:-1]
        return b"\xff".join(self.texts), starts


@final
@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How ids become bytes: the bytes of each token, empty for special ids, and what separates tokens. What
    is no id (NO_TOKEN) spells nothing."""

    token_bytes: Sequence[bytes]
    text_separator: bytes
    space_prefix: bytes = b""
    """The space before pieces that begin a word, which is dropped at the beginning of a text."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> Spelling:
        return cls(
            token_bytes=tokenizer.token_bytes,
            text_separator=tokenizer.text_separator,
            space_prefix=tokenizer.space_prefix,
        )

    def spell(self, ids: Iterable[int]) -> bytes:
        """The bytes of the ids, a space prefix at the beginning included."""
        return self.text_separator.join(
            [piece for i in ids if i >= 0 and (piece := self.token_bytes[i])]
        )

    def last_bytes(self, ids: Sequence[int], size: int, begins_text: bool = True) -> bytes:
        """The last `size` bytes of a text, or all of it where it has fewer; `begins_text` says that the text
        begins with these ids."""
        pieces: list[bytes] = []
        length = -len(self.text_separator)
        for i in reversed(ids):
            if i >= 0 and (piece := self.token_bytes[i]):
                pieces.append(piece)
                length += len(self.text_separator) + len(piece)
                # a space prefix at the beginning of the text does not count
                if length >= size + len(self.space_prefix):
                    return self.text_separator.join(reversed(pieces))[-size:]
        text = self.text_separator.join(reversed(pieces))
        return text.removeprefix(self.space_prefix) if begins_text else text

    def spells_anything(self, ids: Sequence[int]) -> bool:
        """Whether one of the ids has bytes, if only a space prefix."""
        return any(i >= 0 and self.token_bytes[i] for i in ids)

    @cached_property
    def first_tokens(self) -> Lexicon:
        """What a token adds to an empty text."""
        return Lexicon([piece.removeprefix(self.space_prefix) for piece in self.token_bytes])

    @cached_property
    def later_tokens(self) -> Lexicon:
        """What a token adds to a text that is not empty."""
        if self.text_separator or self.space_prefix:
            return Lexicon(self.token_bytes, self.text_separator)
        return self.first_tokens


def ban(spelling: Spelling, strings: Sequence[str]) -> LogitsProcessor:
    """None of these strings appears in the text, also across tokens, and across the end of the prompt: a
    token is impossible where an occurrence would end in it. What the prompt itself contains stays, and the
    end of the text is never banned.

    A token completes a string if it contains it, or if the text ends in a prefix of it and the token begins
    with the rest. Raises UsageError for an empty string.
    """
    banned = _encoded(strings, "a string to ban")
    longest = max(map(len, banned), default=0)
    rests_after: dict[bytes, list[bytes]] = defaultdict(list)
    for string in banned:
        for length in range(1, len(string)):
            rests_after[string[:length]].append(string[length:])

    @lru_cache
    def containing(lexicon: Lexicon) -> Tensor:
        return torch.cat([lexicon.ids[:0], *(lexicon.containing(string) for string in banned)])

    @lru_cache(maxsize=1000)
    def completing(lexicon: Lexicon, rests: tuple[bytes, ...]) -> Tensor:
        return torch.cat(
            [containing(lexicon), *(lexicon.ids[lexicon.with_prefix(rest)] for rest in rests)]
        )

    def banned_after(ids: Sequence[int]) -> Tensor:
        text_end = spelling.last_bytes(ids, max(1, longest - 1))
        rests: list[bytes] = []
        for length in range(1, min(len(text_end), longest - 1) + 1):
            rests += rests_after.get(text_end[-length:], ())
        begins_text = not text_end and not spelling.spells_anything(ids)
        lexicon = spelling.first_tokens if begins_text else spelling.later_tokens
        return completing(lexicon, tuple(rests))

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        # the whole sequence, since its last tokens may have no bytes
        ids = [banned_after(sequence) for sequence in live.sequences.tolist()]
        rows = torch.repeat_interleave(torch.tensor([len(row) for row in ids]))
        index = (rows.to(log_probs.device), torch.cat(ids).to(log_probs.device))
        return log_probs.index_put(index, log_probs.new_tensor(float("-inf")))

    return process


def stop_strings(spelling: Spelling, strings: Sequence[str]) -> StoppingCriterion:
    """Whether the new text of a hypothesis, without the prompt, contains one of these strings.

    A hypothesis that contained one before its last token has ended, so only strings that end in that token
    are looked for. Raises UsageError for an empty string.
    """
    wanted = _encoded(strings, "a string to stop at")
    longest = max(map(len, wanted), default=0)

    def contains(prompt: list[int], new: list[int]) -> bool:
        if not new:
            return False
        size = longest + len(spelling.text_separator) + len(spelling.token_bytes[new[-1]])
        text_end = spelling.last_bytes(new, size, begins_text=not spelling.spells_anything(prompt))
        if spelling.text_separator and 0 < len(text_end) < size and spelling.last_bytes(prompt, 1):
            # the new text begins with what separates it
            text_end = spelling.text_separator + text_end
        return any(string in text_end for string in wanted)

    def stop(live: LiveHypotheses) -> Tensor:
        rows = zip(live.sequences.tolist(), live.new_length.tolist(), strict=True)
        contained = [contains(ids[: len(ids) - new], ids[len(ids) - new :]) for ids, new in rows]
        return torch.tensor(contained, dtype=torch.bool, device=live.input_index.device)

    return stop


def begin(spelling: Spelling, text: str) -> LogitsProcessor:
    """The new text begins with `text`, however tokens cut it: a token must continue it, or reach its end and
    continue from there. The end of the text comes no sooner. A separator or space prefix after the prompt
    does not count, and `text` may leave it out.

    Raises UsageError where the tokens cannot spell the text.
    """
    target = _utf8(text, "the beginning").removeprefix(
        spelling.text_separator or spelling.space_prefix
    )
    allowed = _allowed_ids(spelling, target, text)

    @lru_cache
    def mask(offset: int, vocabulary: int) -> Tensor:
        return torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, allowed[offset], True)

    def process(live: LiveHypotheses, log_probs: Tensor) -> Tensor:
        if live.tokens.shape[1] >= len(target):  # each token spells at least a byte
            return log_probs
        vocabulary = log_probs.shape[1]
        masks = []
        for ids, new in zip(live.sequences.tolist(), live.new_length.tolist(), strict=True):
            offset = len(spelling.spell(ids[len(ids) - new :]).removeprefix(spelling.space_prefix))
            if offset < len(target):
                masks.append(mask(offset, vocabulary))
            else:
                masks.append(torch.ones(vocabulary, dtype=torch.bool))
        return log_probs.masked_fill(~torch.stack(masks).to(log_probs.device), float("-inf"))

    return process


def _allowed_ids(spelling: Spelling, target: bytes, text: str) -> list[Tensor]:
    """For each offset in `target` the ids with which the rest of it can be spelled to the end."""
    allowed: list[Tensor] = []  # from the end: the last entry is that of the offset after this one
    for offset in reversed(range(len(target))):
        lexicon = spelling.later_tokens if offset else spelling.first_tokens
        rest = target[offset:]
        # a token may reach the end of the target, or an offset from which the end can be reached
        leading = [
            index for index in lexicon.prefixes_of(rest) if len(allowed[-len(lexicon.texts[index])])
        ]
        allowed.append(torch.cat([lexicon.ids[lexicon.with_prefix(rest)], lexicon.ids[leading]]))
    allowed.reverse()
    if allowed and not len(allowed[0]):
        separated = ""
        if spelling.text_separator:
            separated = f" (its pieces are joined by {spelling.text_separator.decode()!r})"
        reached = target[: _furthest_offset(spelling, target)].decode("utf-8", "ignore")
        raise UsageError(
            f"a text must begin with what the tokenizer can spell, but {printable(text)!r} it cannot"
            f"{separated}; it comes as far as {printable(reached)!r}"
        )
    return allowed


def _furthest_offset(spelling: Spelling, target: bytes) -> int:
    """The furthest offset in `target` up to which tokens can spell it."""
    reached = {0}
    for offset in range(len(target)):
        if offset in reached:
            lexicon = spelling.later_tokens if offset else spelling.first_tokens
            prefixes = lexicon.prefixes_of(target[offset:])
            reached |= {offset + len(lexicon.texts[index]) for index in prefixes}
    return max(reached)


def cut_at(text: str, strings: Sequence[str]) -> str:
    """The text before the string that is complete first, or all of it where it contains none.

    Of several that end at the same place the longest counts. So the answer is the same however the text
    is split into tokens: with the strings `b` and `aba`, generation ends at the `b` of `aba`."""
    found = [
        (start + len(string), start) for string in strings if (start := text.find(string)) >= 0
    ]
    return text[: min(found)[1]] if found else text


def possible_stop_length(text: str, strings: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of one of the strings, and are not
    certain to stay."""
    longest = 0
    for string in strings:
        for length in range(1, min(len(text), len(string) - 1) + 1):
            if text.endswith(string[:length]):
                longest = max(longest, length)
    return longest


def _encoded(strings: Sequence[str], what: str) -> list[bytes]:
    if not all(strings):
        raise UsageError(
            f"{what} must have at least one character, but one of {len(strings)} has none; leave it out"
        )
    return [_utf8(string, what) for string in dict.fromkeys(strings)]


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} must be Unicode, but {printable(text)!r} holds half a character"
        ) from None
