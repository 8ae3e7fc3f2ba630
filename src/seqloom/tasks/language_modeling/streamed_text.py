"""Text that is given out while its tokens come: whole characters only, and no part of a stop string.

The pieces together are the whole text, in time that is linear in its length.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import final

from seqloom.decoding.string_constraints import cut_at, possible_stop_length
from seqloom.protocols import Tokenizer


@final
class IncrementalText:
    """Decodes tokens as they come, after those of a prompt. At most three bytes of a character wait, and a
    space after a word, which would not be there if the word were the last."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False
        """Whether there is text before the next token."""
        self._held = b""
        for token in prompt:
            self.add(token)

    def add(self, token: int) -> str:
        """The characters that this token completes."""
        tokenizer = self._tokenizer
        spelled = tokenizer.token_bytes[token]
        if not spelled:
            return ""
        if self._begun:
            spelled = self._held + tokenizer.text_separator + spelled
        else:
            spelled = spelled.removeprefix(tokenizer.space_prefix)
        self._begun = True
        certain = spelled.removesuffix(tokenizer.space_suffix)
        self._held = spelled[len(certain) :]
        return self._utf8.decode(certain)

    def rest(self) -> str:
        """What never became a whole character."""
        return self._utf8.decode(b"", final=True)


@final
class StreamedText:
    """New text up to the first of the stop strings. What may be the beginning of one waits."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._text = IncrementalText(tokenizer, prompt)
        self._stop = stop
        self._waiting = ""
        self._stopped = False

    def add(self, token: int) -> str:
        """The characters that are certain once this token is there."""
        return self._certain(self._text.add(token), final=False)

    def rest(self) -> str:
        """What waits at the end of the text."""
        return self._certain(self._text.rest(), final=True)

    def _certain(self, new: str, final: bool) -> str:
        if self._stopped:
            return ""
        text = self._waiting + new
        before = cut_at(text, self._stop)
        self._stopped = before != text
        waiting = 0
        if not final and not self._stopped:
            waiting = possible_stop_length(text, self._stop)
        self._waiting = text[len(text) - waiting :]
        return before[: len(before) - waiting]
