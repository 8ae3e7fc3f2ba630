"""Rules on what tokens spell: strings that never come about, strings that end a text, and how a text must
begin.

All of it is exact on the bytes of the text, however tokens cut it: a string may lie across tokens, or begin
inside of one. UTF-8 never reads one character inside of another, so a string is found in the bytes where it
is found in the text, and nowhere else.
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

from seqloom.decoding.live_rows import Live, Stop
from seqloom.decoding.rules import Rule
from seqloom.errors import UsageError, printable
from seqloom.protocols import Tokenizer


@final
class Lexicon:
    """Tokens by what they spell, for looking up. Those that spell nothing are not in it."""

    def __init__(self, spelled: Sequence[bytes], joint: bytes = b"") -> None:
        found = sorted((joint + piece, i) for i, piece in enumerate(spelled) if piece)
        self.texts = [text for text, _ in found]
        self.ids = torch.tensor([i for _, i in found], dtype=torch.long)
        self.longest = max(map(len, self.texts), default=0)

    def starting(self, prefix: bytes) -> slice:
        """Where in `texts` those stand that begin with `prefix`."""
        begin = bisect_left(self.texts, prefix)
        return slice(begin, bisect_right(self.texts, prefix, lo=begin, key=lambda text: text[: len(prefix)]))

    def inside(self, text: bytes) -> list[int]:
        """Where in `texts` those stand that `text` begins with, but goes on after, the shortest first."""
        lengths = range(1, min(self.longest, len(text) - 1) + 1)
        found = ((bisect_left(self.texts, text[:n]), bisect_right(self.texts, text[:n])) for n in lengths)
        return [at for begin, end in found for at in range(begin, end)]

    def holding(self, string: bytes) -> Tensor:
        """Ids that hold `string`, which must be UTF-8; one that holds it twice comes twice."""
        every, begins = self._all
        found, at = [], every.find(string)
        while at >= 0:
            found.append(at)
            at = every.find(string, at + 1)
        return self.ids[torch.searchsorted(begins, torch.tensor(found, dtype=torch.long), right=True) - 1]

    @cached_property
    def firsts(self) -> Tensor:
        """The first byte of each of `texts`."""
        return torch.tensor([text[0] for text in self.texts], dtype=torch.long)

    @cached_property
    def _all(self) -> tuple[bytes, Tensor]:
        """The texts with a byte between them that no UTF-8 has, and where each begins."""
        return (
            b"\xff".join(self.texts),
            torch.tensor([0, *(len(text) + 1 for text in self.texts)]).cumsum(0)[:-1],
        )


@final
@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How ids become bytes: the pieces, those of special ids empty, and the joint that stands before each but
    the first of a text. What is no id (a place where nothing stands) spells nothing."""

    pieces: Sequence[bytes]
    text_separator: bytes
    space_prefix: bytes = b""
    """What is dropped at the begin of a text, where pieces that begin a word spell it: a blank."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Spelling:
        return cls(
            pieces=tokenizer.token_bytes,
            text_separator=tokenizer.text_separator,
            space_prefix=tokenizer.space_prefix,
        )

    def spell(self, ids: Iterable[int]) -> bytes:
        """What pieces spell, a lead too."""
        return self.text_separator.join([piece for i in ids if i >= 0 and (piece := self.pieces[i])])

    def end(self, ids: Sequence[int], size: int, first: bool = True) -> bytes:
        """The last `size` bytes of a text, or all of it where it has fewer; `first` says that the text begins
        with these ids."""
        taken: list[bytes] = []
        length = -len(self.text_separator)
        for i in reversed(ids):
            if i >= 0 and (piece := self.pieces[i]):
                taken.append(piece)
                length += len(self.text_separator) + len(piece)
                if length >= size + len(
                    self.space_prefix
                ):  # the lead, where it is the text's first, does not count
                    return self.text_separator.join(reversed(taken))[-size:]
        return self.text_separator.join(reversed(taken)).removeprefix(self.space_prefix if first else b"")

    def begun(self, ids: Sequence[int]) -> bool:
        """Whether a piece is among them, if only a lead."""
        return any(i >= 0 and self.pieces[i] for i in ids)

    @cached_property
    def first(self) -> Lexicon:
        """What a token adds to a text that is empty."""
        return Lexicon(
            [piece.removeprefix(self.space_prefix) for piece in self.pieces]
            if self.space_prefix
            else self.pieces
        )

    @cached_property
    def later(self) -> Lexicon:
        """What a token adds to a text that is not."""
        return (
            Lexicon(self.pieces, self.text_separator)
            if self.text_separator or self.space_prefix
            else self.first
        )


def ban(spelling: Spelling, phrases: Sequence[str]) -> Rule:
    """None of these strings comes about in the text, also across tokens, and across the border of the prompt:
    a token is impossible where an occurrence would end in it. What the prompt itself holds stays, and the end
    of the text is never banned.

    A string that a token would complete is one that the token holds, or one whose beginning the text ends in
    and whose rest the token begins with. Raises UsageError for an empty string.
    """
    wanted = _encoded(phrases, "a string to ban")
    rest_of = _rests(wanted)
    longest = max(map(len, wanted), default=0)
    held = lru_cache(
        lambda lexicon: torch.cat([lexicon.ids[:0], *(lexicon.holding(phrase) for phrase in wanted)])
    )

    @lru_cache(maxsize=1000)
    def completing(lexicon: Lexicon, rests: tuple[bytes, ...]) -> Tensor:
        return torch.cat([held(lexicon), *(lexicon.ids[lexicon.starting(rest)] for rest in rests)])

    def banned(ids: Sequence[int]) -> Tensor:
        end = spelling.end(ids, max(1, longest - 1))
        rests = [rest for n in range(1, min(len(end), longest - 1) + 1) for rest in rest_of.get(end[-n:], ())]
        return completing(spelling.later if end or spelling.begun(ids) else spelling.first, tuple(rests))

    def rule(live: Live, log_probs: Tensor) -> Tensor:
        found = [banned(ids) for ids in live.text.tolist()]  # all of it, as tokens may spell nothing
        rows = torch.repeat_interleave(torch.tensor([len(ids) for ids in found]))
        at = (rows.to(log_probs.device), torch.cat(found).to(log_probs.device))
        return log_probs.index_put(at, log_probs.new_tensor(float("-inf")))

    return rule


def stops(spelling: Spelling, phrases: Sequence[str]) -> Stop:
    """Where the new text of a row, not the prompt, holds one of these strings. A row that held one before its
    last token has ended, so only what ends in that token is looked for. Raises UsageError for an empty
    string.
    """
    wanted = _encoded(phrases, "a string to stop at")
    longest = max(map(len, wanted), default=0)

    def holds(given: list[int], new: list[int]) -> bool:
        if not new:
            return False
        size = longest + len(spelling.text_separator) + len(spelling.pieces[new[-1]])
        end = spelling.end(new, size, first=not spelling.begun(given))
        if spelling.text_separator and 0 < len(end) < size and spelling.end(given, 1):
            end = spelling.text_separator + end  # the new text begins with the joint to the prompt
        return any(phrase in end for phrase in wanted)

    def stop(live: Live) -> Tensor:
        rows = zip(live.text.tolist(), live.new.tolist(), strict=True)
        found = [holds(ids[: len(ids) - new], ids[len(ids) - new :]) for ids, new in rows]
        return torch.tensor(found, dtype=torch.bool, device=live.owner.device)

    return stop


def begin(spelling: Spelling, text: str) -> Rule:
    """The new text begins with `text`, however tokens cut it: a token must go on with it, or reach its end
    and go on from there. The end of the text comes no sooner. Where pieces are joined or led, the joint or
    the lead after the prompt does not count, and `text` may leave it out.

    Raises UsageError where the tokens cannot spell the text.
    """
    target = _utf8(text, "the beginning").removeprefix(spelling.text_separator or spelling.space_prefix)
    allowed = _allowed(spelling, target, text)
    mask = lru_cache(
        lambda offset, size: torch.zeros(size, dtype=torch.bool).index_fill(0, allowed[offset], True)
    )

    def rule(live: Live, log_probs: Tensor) -> Tensor:
        if live.tokens.shape[1] >= len(target):  # each token spells at least a byte
            return log_probs
        rows = zip(live.text.tolist(), live.new.tolist(), strict=True)
        offsets = [
            len(spelling.spell(ids[len(ids) - new :]).removeprefix(spelling.space_prefix))
            for ids, new in rows
        ]
        every = torch.ones(log_probs.shape[1], dtype=torch.bool)
        masks = [mask(offset, log_probs.shape[1]) if offset < len(target) else every for offset in offsets]
        return log_probs.masked_fill(~torch.stack(masks).to(log_probs.device), float("-inf"))

    return rule


def _allowed(spelling: Spelling, target: bytes, text: str) -> list[Tensor]:
    """For each offset in `target` the ids with which its rest can be spelled to the end."""
    allowed: list[Tensor] = []  # from the end
    for offset in reversed(range(len(target))):
        lexicon, rest = spelling.later if offset else spelling.first, target[offset:]
        leading = [at for at in lexicon.inside(rest) if len(allowed[-len(lexicon.texts[at])])]
        allowed.append(torch.cat([lexicon.ids[lexicon.starting(rest)], lexicon.ids[leading]]))
    allowed.reverse()
    if allowed and not len(allowed[0]):
        joined = (
            f" (its pieces are joined by {spelling.text_separator.decode()!r})"
            if spelling.text_separator
            else ""
        )
        raise UsageError(
            f"a text must begin with what the tokenizer can spell, but {printable(text)!r} it cannot{joined};"
            f" it comes as far as {printable(target[: _reach(spelling, target)].decode('utf-8', 'ignore'))!r}"
        )
    return allowed


def _reach(spelling: Spelling, target: bytes) -> int:
    """The furthest offset in `target` that tokens spell the way to."""
    reached = {0}
    for offset in range(len(target)):
        if offset in reached:
            lexicon = spelling.later if offset else spelling.first
            reached |= {offset + len(lexicon.texts[at]) for at in lexicon.inside(target[offset:])}
    return max(reached)


def cut(text: str, phrases: Sequence[str]) -> str:
    """The text before the first of the phrases, or all of it where it holds none."""
    return text[: min((at for phrase in phrases if (at := text.find(phrase)) >= 0), default=len(text))]


def may_begin(text: str, phrases: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of one of the phrases: what is not sure
    to stay."""
    ends = (
        n
        for phrase in phrases
        for n in range(1, min(len(text), len(phrase) - 1) + 1)
        if text.endswith(phrase[:n])
    )
    return max(ends, default=0)


def _rests(phrases: Sequence[bytes]) -> dict[bytes, list[bytes]]:
    """The beginnings of the phrases, and what is left of each phrase after it."""
    rests: dict[bytes, list[bytes]] = defaultdict(list)
    for phrase in phrases:
        for n in range(1, len(phrase)):
            rests[phrase[:n]].append(phrase[n:])
    return rests


def _encoded(phrases: Sequence[str], what: str) -> list[bytes]:
    if not all(phrases):
        raise UsageError(
            f"{what} must have at least one character, but one of {len(phrases)} has none; leave it out"
        )
    return [_utf8(phrase, what) for phrase in dict.fromkeys(phrases)]


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} must be Unicode, but {printable(text)!r} holds half a character") from None
