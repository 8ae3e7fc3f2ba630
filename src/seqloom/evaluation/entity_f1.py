"""Spans that tags mark, and how many of them were found: precision, recall, F1, by the strict rules of
seqeval (Nakayama 2018).

A span counts as found only where its type, its begin and its end are right (Tjong Kim Sang and De Meulder
2003). Strict: an I- that nothing of its type begins is no span, and of BIOES one that does not end with E-
(or is S-) is none. conlleval, which takes such an I- as a begin, differs there.

Counts are kept for each sentence, so that resamples of a bootstrap are sums of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from seqloom.data.readers.tag_scheme import Scheme, scheme_of, span_tag
from seqloom.evaluation.intervals import RESAMPLES, with_intervals

Floats = NDArray[np.float64]


@final
class Entity(NamedTuple):
    """A span of words."""

    kind: str
    begin: int
    end: int
    """Without it."""


def entities(tags: Sequence[str], scheme: Scheme = "BIO") -> set[Entity]:
    """The spans of a sentence."""
    found = set()
    begun: tuple[str, int] | None = None
    for at, tag in enumerate([*tags, "O"]):
        marked = span_tag(tag)
        if begun is not None and (marked is None or marked.begins or marked.kind != begun[0]):
            if scheme == "BIO":
                found.add(Entity(*begun, at))
            begun = None
        if marked is None:
            continue
        if marked.prefix == "B":
            begun = marked.kind, at
        elif scheme == "BIOES" and marked.prefix in "SU":
            found.add(Entity(marked.kind, at, at + 1))
        elif scheme == "BIOES" and marked.closes and begun is not None:
            found.add(Entity(*begun, at + 1))
            begun = None
    return found


def f1(counts: Floats) -> Floats:
    """counts `(..., 3)` of spans found rightly, predicted and true -> 2 hits / (predicted + true); 0 where
    there are none."""
    return _share(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def _share(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0), np.float64)


@final
class SpanCounts:
    """What was found, predicted and true, sentence by sentence."""

    def __init__(self, true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
        """Tags of each sentence. The scheme is that of all tags together; where they mark no spans there are
        none."""
        self.scheme = scheme_of({tag for side in (true, predicted) for tags in side for tag in tags})
        self.counts: Floats = np.zeros((len(true), 3))
        """`(sentences, 3)`: found rightly, predicted, true."""
        self.kinds: dict[str, Counter[str]] = {}
        """type -> the same three, of all sentences."""
        for at, (right, tags) in enumerate(zip(true, predicted, strict=True)):
            if len(right) != len(tags):
                raise ValueError(f"sentence {at} has {len(right)} words, but {len(tags)} tags were predicted")
            wanted, given = entities(right, self.scheme), entities(tags, self.scheme)
            for column, spans in enumerate((wanted & given, given, wanted)):
                self.counts[at, column] = len(spans)
                for span in spans:
                    self.kinds.setdefault(span.kind, Counter())[("hits", "predicted", "true")[column]] += 1

    def metrics(self, resamples: int = RESAMPLES) -> dict[str, float]:
        """precision, recall and f1 over all spans, f1 where there are `resamples` with its 95 % interval
        (bootstrap over sentences)."""
        total = self.counts.sum(axis=0)
        shares = {"precision": float(_share(total[0], total[1])), "recall": float(_share(total[0], total[2]))}
        return shares | with_intervals(
            ("f1",), lambda drawn: f1(drawn @ self.counts)[:, None], len(self.counts), resamples
        )

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """type -> precision, recall, f1, and how many spans there are (support) and were predicted; in the
        order of the names."""
        table = {}
        for kind in sorted(self.kinds):
            one = self.kinds[kind]
            counts = np.array([one["hits"], one["predicted"], one["true"]], np.float64)
            table[kind] = {
                "precision": float(_share(counts[0], counts[1])),
                "recall": float(_share(counts[0], counts[2])),
                "f1": float(f1(counts)),
                "support": one["true"],
                "predicted": one["predicted"],
            }
        return table
