"""Which settings of reading each form of a file reads: the others change nothing for it."""

from __future__ import annotations

from collections.abc import Iterable

LINES = frozenset({"encoding", "on_bad_line", "max_line_bytes"})
"""Of a file whose lines are texts, each of which is answered."""
INPUTS = frozenset(
    ("source", "text", "join", "part", "delimiter", "header", "quoting", "skip_initial_space")
)
"""Of a table whose rows are such texts."""
_COLUMNS = frozenset({"source", "target", "text", "second", "label", "score", "options", "group"})
_FIELDS = _COLUMNS | {"join"}
_CELLS = frozenset({"delimiter", "header", "quoting", "skip_initial_space"})
BY_FORM: dict[str, frozenset[str]] = {
    "csv": _COLUMNS | _CELLS,
    "tsv": _COLUMNS | _CELLS,
    "jsonl": _FIELDS,
    "parquet": _FIELDS,
    "json": _FIELDS | {"part"},
    "parallel": frozenset({"source", "target"}),
    "conll": frozenset({"columns"}),
    "conllu": frozenset({"tags"}),
    "text": frozenset({"document"}),
}
"""Form -> what only some forms read, and this one does. Other forms read nothing of it."""
_ANY = frozenset().union(*BY_FORM.values())


def unread_by(forms: Iterable[str]) -> frozenset[str]:
    """Settings that some form reads, but none of these."""
    return _ANY.difference(*(BY_FORM.get(form, frozenset()) for form in forms))
