"""Tags that mark spans, such as B-PER I-PER O, and tags of single words, such as NOUN.

BIO (IOB2)     B- begins a span, I- continues it, O is outside
               (Ramshaw and Marcus 1995; Tjong Kim Sang and Veenstra 1999)
BIOES, BILOU   E- or L- ends a longer span, S- or U- is one of a single word
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, final

from seqloom.data.formats.data_file import DataFile
from seqloom.errors import printable

Scheme = Literal["plain", "BIO", "BIOES"]
"""plain: no spans. BILOU counts as BIOES, for it says the same."""

OUTSIDE = "O"
_BEGINNING, _CLOSING = frozenset("BSU"), frozenset("ESLU")
_SPAN = re.compile(r"([BIESLU])(?:-(.+))?")


@final
class SpanTag(NamedTuple):
    """A tag that marks part of a span."""

    prefix: str
    kind: str
    """The type of the span, such as PER; empty if tags are B, I and O alone."""

    @property
    def begins(self) -> bool:
        return self.prefix in _BEGINNING

    @property
    def closes(self) -> bool:
        """Whether nothing may continue the span after it."""
        return self.prefix in _CLOSING


def span_tag(tag: str) -> SpanTag | None:
    """None if the tag is O, or not a tag of a span."""
    found = _SPAN.fullmatch(tag)
    return None if found is None else SpanTag(found[1], found[2] or "")


def scheme_of(tags: Collection[str]) -> Scheme:
    """What a set of tags means. They mark spans where each is O or has a prefix, and some begin or continue a
    span."""
    spans: list[SpanTag] = []
    for tag in tags:
        span = span_tag(tag)
        if span is not None:
            spans.append(span)
        elif tag != OUTSIDE:
            return "plain"
    if not any(span.prefix in "BI" for span in spans):
        return "plain"
    kinds = [bool(span.kind) for span in spans]
    if any(kinds) != all(kinds) or not (kinds[0] or OUTSIDE in tags):
        return "plain"
    return "BIOES" if any(tagged.closes for tagged in spans) else "BIO"


@final
class TagCheck:
    """Checks that the tags of one file, sentence by sentence, are valid spans, if they are spans."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._span: tuple[str, int] | None = (
            None  # the first tag that shows that these are spans, its line
        )
        self._other: tuple[str, int] | None = None  # the first that is not a tag of a span

    def checked(self, tags: Sequence[str], lines: Sequence[int]) -> tuple[str, ...]:
        """The tags of a sentence; a tag that continues a span that nothing began becomes its beginning, where
        that may be repaired.

        So the first version of the scheme (IOB1, where B- only separates neighbours of one type) becomes the
        second. Raises DataError, with the line, where it may not, and where some tags of the file are of
        spans and some are not.
        """
        found: list[str] = []
        before = None
        for tag, line in zip(tags, lines, strict=True):
            span = self._span_tag(tag, line)
            if span is not None and not span.begins and not _continues(before, span):
                span = self._repaired(span, tag, line)
                tag = f"{span.prefix}-{span.kind}"
            found.append(tag)
            before = span
        return tuple(found)

    def _span_tag(self, tag: str, line: int) -> SpanTag | None:
        if tag == OUTSIDE:
            return None
        span = span_tag(tag)
        if span is not None and not span.kind:
            return None  # B alone may be any tag
        spans, others = self._span, self._other
        if span is None:
            others = others or (tag, line)
        elif span.prefix in "BI":
            spans = spans or (tag, line)
        if spans is not None and others is not None:
            (first, first_line), (other, other_line) = spans, others
            raise self._file.error(
                f"the tag {printable(other)!r} (line {other_line}) must be O or begin with B- or I-, as"
                f" {printable(first)!r} (line {first_line}) does; mend the one that is wrong",
                line,
            )
        self._span, self._other = spans, others
        return span

    def _repaired(self, span: SpanTag, tag: str, line: int) -> SpanTag:
        if not self._file.options.repair_tags:
            raise self._file.error(
                f"the tag {printable(tag)!r} goes on with a span that nothing before it begins; mend it, or,"
                " where the file is so throughout (IOB1), have such tags begin a span with --set"
                " data.repair_tags=true",
                line,
            )
        prefix = {"I": "B", "E": "S", "L": "U"}[span.prefix]
        self._file.find(f"a tag {span.prefix}- that goes on with no span, made {prefix}-", line)
        return SpanTag(prefix, span.kind)


def _continues(before: SpanTag | None, tag: SpanTag) -> bool:
    return before is not None and not before.closes and before.kind == tag.kind
