"""Precision, recall and F1 of the spans that tags mark, by the strict rules of seqeval (Nakayama 2018).

A span is a hit only where its type, its start and its end are right (Tjong Kim Sang and De Meulder 2003).
Strict: an I- without a B- of its type before it starts no span, and in BIOES a span must end with E- (or be
S-). conlleval, which lets such an I- start a span, differs there.

Counts are kept for each sentence, so that bootstrap resamples are sums of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypedDict, final

import numpy as np

from seqloom.arrays import Floats
from seqloom.data.readers.tag_scheme import Scheme, scheme_of, span_tag
from seqloom.evaluation.intervals import RESAMPLES, with_intervals


@final
class EntitySpan(NamedTuple):
    """A span of words."""

    kind: str
    start: int
    end: int
    """Exclusive."""


class EntityScore(TypedDict):
    """The scores of one type of span."""

    precision: float
    recall: float
    f1: float
    support: int
    """True spans."""
    predicted: int


def entities(tags: Sequence[str], scheme: Scheme = "BIO") -> set[EntitySpan]:
    """The spans of a sentence."""
    spans = set()
    opened: tuple[str, int] | None = None  # (type, start) of a span that has not ended yet
    for position, tag in enumerate([*tags, "O"]):
        parsed = span_tag(tag)
        if opened is not None and (parsed is None or parsed.begins or parsed.kind != opened[0]):
            if scheme == "BIO":  # in BIOES a span that does not end with E- is none
                spans.add(EntitySpan(*opened, position))
            opened = None
        if parsed is None:
            continue
        if parsed.prefix == "B":
            opened = parsed.kind, position
        elif scheme == "BIOES" and parsed.prefix in "SU":
            spans.add(EntitySpan(parsed.kind, position, position + 1))
        elif scheme == "BIOES" and parsed.closes and opened is not None:
            spans.add(EntitySpan(*opened, position + 1))
            opened = None
    return spans


def f1(counts: Floats) -> Floats:
    """counts `(..., 3)` of hits, predicted and true spans -> 2 hits / (predicted + true); 0 where there are
    none."""
    return _share(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def _share(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0), np.float64)


@final
class SpanCounts:
    """Hits, predicted and true spans, sentence by sentence."""

    def __init__(self, true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
        """Tags of each sentence. The scheme is that of all tags together."""
        self.scheme = scheme_of(
            {tag for sentences in (true, predicted) for tags in sentences for tag in tags}
        )
        self.counts: Floats = np.zeros((len(true), 3))
        """`(sentences, 3)`: hits, predicted, true."""
        self.kinds: tuple[Counter[str], Counter[str], Counter[str]] = (
            Counter(),
            Counter(),
            Counter(),
        )
        """The same by type, over all sentences."""
        for sentence, (right, tags) in enumerate(zip(true, predicted, strict=True)):
            if len(right) != len(tags):
                raise ValueError(
                    f"sentence {sentence} has {len(right)} words, but {len(tags)} tags were predicted"
                )
            wanted, given = entities(right, self.scheme), entities(tags, self.scheme)
            for column, spans in enumerate((wanted & given, given, wanted)):
                self.counts[sentence, column] = len(spans)
                self.kinds[column].update(span.kind for span in spans)

    def metrics(self, resamples: int = RESAMPLES) -> dict[str, float]:
        """precision, recall and f1 over all spans, f1 with `resamples` also with its 95 % interval (bootstrap
        over sentences)."""
        hits, predicted, true = self.counts.sum(axis=0)[:, None]
        shares = {
            "precision": float(_share(hits, predicted)[0]),
            "recall": float(_share(hits, true)[0]),
        }
        statistics = lambda weights: f1(weights @ self.counts)[:, None]  # noqa: E731
        return shares | with_intervals(("f1",), statistics, len(self.counts), resamples)

    def by_kind(self) -> dict[str, EntityScore]:
        """type -> its scores, in the order of the names."""
        table: dict[str, EntityScore] = {}
        for kind in sorted(self.kinds[1].keys() | self.kinds[2].keys()):
            counts = np.array([counter[kind] for counter in self.kinds], np.float64)
            table[kind] = {
                "precision": float(_share(counts[0], counts[1])),
                "recall": float(_share(counts[0], counts[2])),
                "f1": float(f1(counts)),
                "support": self.kinds[2][kind],
                "predicted": self.kinds[1][kind],
            }
        return table
