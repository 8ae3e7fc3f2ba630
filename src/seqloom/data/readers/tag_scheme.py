"""Tags that mark spans, such as B-PER I-PER O, and tags that say something of each word by itself, such as
NOUN.

BIO (IOB2)     B- begins a span, I- goes on with it, O is outside      Ramshaw and Marcus 1995; Tjong Kim Sang and Veenstra 1999
BIOES, BILOU   E- or L- ends a longer span, S- or U- is one of a single word
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, final

from seqloom.data.formats.findings import Findings
from seqloom.errors import DataError, printable

Scheme = Literal["plain", "BIO", "BIOES"]
"""plain: no spans. BILOU counts as BIOES, for it says the same."""

OUTSIDE = "O"
_BEGIN, _GO_ON = frozenset("BSU"), frozenset("IEL")
_CLOSING = frozenset("ESLU")
_SPAN = re.compile(r"([BIESLU])(?:-(.+))?")


@final
class SpanTag(NamedTuple):
    """A tag that marks part of a span."""

    prefix: str
    kind: str
    """The type of the span, such as PER; empty where tags are B, I and O alone."""

    @property
    def begins(self) -> bool:
        return self.prefix in _BEGIN

    @property
    def closes(self) -> bool:
        """Whether nothing may go on with the span after it."""
        return self.prefix in _CLOSING


def span_tag(tag: str) -> SpanTag | None:
    """None where the tag is O, or no tag of a span."""
    found = _SPAN.fullmatch(tag)
    return None if found is None else SpanTag(found[1], found[2] or "")


def scheme_of(tags: Collection[str]) -> Scheme:
    """What a set of tags means. They mark spans where each is O or has a prefix, and some begin or go on with
    a span."""
    marked = [span_tag(tag) for tag in tags if tag != OUTSIDE]
    spans = [one for one in marked if one is not None]
    if len(spans) < len(marked) or not any(one.prefix in "BI" for one in spans):
        return "plain"
    if any(one.kind for one in spans) != all(one.kind for one in spans) or (
        not spans[0].kind and OUTSIDE not in tags
    ):
        return "plain"
    return "BIOES" if any(one.closes for one in spans) else "BIO"


@final
class TagCheck:
    """Sees to it that the tags of one file, sentence by sentence, are spans as they must be, if they are
    spans."""

    def __init__(self, path: str, findings: Findings, repair: bool) -> None:
        self._path, self._findings, self._repair = path, findings, repair
        self._span: tuple[str, int] | None = (
            None  # the first tag that shows that these are spans, and its line
        )
        self._other: tuple[str, int] | None = None  # the first that is none of a span

    def checked(self, tags: Sequence[str], lines: Sequence[int]) -> tuple[str, ...]:
        """The tags of a sentence; what goes on with a span that nothing began becomes its begin, where that
        may be repaired.

        So the first version of the scheme (IOB1, where B- only parts neighbours of one type) becomes the
        second. Raises DataError, with the line, where it may not, and where some tags of the file are of
        spans and some are not.
        """
        found, before = [], None
        for tag, line in zip(tags, lines, strict=True):
            marked = self._marked(tag, line)
            if marked is not None and not marked.begins and not _goes_on(before, marked):
                tag = self._begun(tag, marked, line)
                marked = span_tag(tag)
            found.append(tag)
            before = marked
        return tuple(found)

    def _marked(self, tag: str, line: int) -> SpanTag | None:
        if tag == OUTSIDE:
            return None
        marked = span_tag(tag)
        if marked is not None and not marked.kind:
            return None  # B alone may be any tag
        if marked is not None and marked.prefix in "BI" and self._span is None:
            self._span = tag, line
        if marked is None and self._other is None:
            self._other = tag, line
        if self._span is not None and self._other is not None:
            (span, span_line), (other, other_line) = self._span, self._other
            raise DataError(
                f"the tag {printable(other)!r} (line {other_line}) must be O or begin with B- or I-, as"
                f" {printable(span)!r} (line {span_line}) does; mend the one that is wrong",
                self._path,
                line,
            )
        return marked

    def _begun(self, tag: str, marked: SpanTag, line: int) -> str:
        if not self._repair:
            raise DataError(
                f"the tag {printable(tag)!r} goes on with a span that nothing before it begins; mend it, or,"
                " where the file is so throughout (IOB1), have such tags begin a span with --set"
                " data.repair_tags=true",
                self._path,
                line,
            )
        mended = {"I": "B", "E": "S", "L": "U"}[marked.prefix]
        self._findings.note(f"a tag {marked.prefix}- that goes on with no span, made {mended}-", line)
        return f"{mended}-{marked.kind}"


def _goes_on(before: SpanTag | None, tag: SpanTag) -> bool:
    return before is not None and not before.closes and before.kind == tag.kind
