"""Texts that are longer than the learned positions of a model reach: an error, or left out and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from seqloom.config import DataConfig
from seqloom.data.batching.pair_batches import SOURCE, TARGET, special_token_counts
from seqloom.data.batching.token_store import TokenStore
from seqloom.data.encoding.encode_texts import Truncation
from seqloom.data.formats.columns import Record
from seqloom.errors import DataError
from seqloom.protocols import StoredTokenizer
from seqloom.runs.progress import chunked, log_notes
from seqloom.tasks.translation.translate import target_tokenizer

logger = logging.getLogger(__name__)

Pair = tuple[str, str]
CHUNK = 1024
"""Pairs whose ids are in memory at one time."""


@final
@dataclass(frozen=True, kw_only=True)
class TextLimit:
    """How long a source and a target may be."""

    context: int | None
    """Tokens that the model reads of each at most, special ones included; None if there is no limit."""
    tokenizer: StoredTokenizer
    data: DataConfig
    """Its max_length cuts texts of a training, and none of those that are read later."""

    def _size(self, ids: int, column: int) -> int:
        return ids + special_token_counts(self.tokenizer.special_ids)[column]

    def _too_long(self, ids: int, column: int) -> bool:
        return self.context is not None and self._size(ids, column) > self.context

    def _skip(self, ids: int, column: int, path: str, line: int, found: Truncation) -> None:
        """Counts a text that is left out. Raises DataError if it must not be."""
        size = self._size(ids, column)
        if self.data.on_bad_line != "skip":
            raise DataError(
                f"a {('source', 'target')[column]} must have at most {self.context} tokens to be read, marks"
                f" included, but has {size:,}; leave such texts out: --set data.on_bad_line=skip, or cut them"
                " for training: --set data.max_length=N",
                path,
                line,
            )
        found.too_long.append((size, (path, line)))

    def _log_longer(self, count: int) -> None:
        if count:
            texts = "source is" if count == 1 else "sources are"
            logger.info(
                f"{count:,} {texts} longer than data.max_length={self.data.max_length}, to which the training"
                " cut its texts; nothing is cut here"
            )

    def _is_longer(self, ids: int) -> bool:
        return self.data.max_length is not None and ids > self.data.max_length

    def sources(self, records: Iterable[Record]) -> Iterator[str]:
        """The texts of a file; one that is too long becomes empty."""
        found, longer = Truncation(), 0
        for record in records:
            text = record.fields["text"]
            if self.context is not None or self.data.max_length is not None:
                (ids,) = self.tokenizer.encode([text])
                longer += self._is_longer(len(ids))
                if self._too_long(len(ids), SOURCE):
                    self._skip(len(ids), SOURCE, record.path, record.line, found)
                    text = ""
            yield text
        log_notes(found.notices())
        self._log_longer(longer)

    def pairs(self, pairs: Sequence[Pair], path: str) -> list[Pair]:
        """The pairs without those that are too long."""
        return [pairs[number] for number in self.fitting(pairs, path)]

    def fitting(self, pairs: Sequence[Pair], path: str) -> list[int]:
        """Which pairs are not too long; messages name the number of the pair as the line."""
        if self.context is None and self.data.max_length is None:
            return list(range(len(pairs)))
        kept, found, number, longer = [], Truncation(), 0, 0
        for chunk in chunked(pairs, CHUNK):
            sources = self.tokenizer.encode([source for source, _ in chunk])
            targets = target_tokenizer(self.tokenizer).encode([target for _, target in chunk])
            for sides in zip(sources, targets, strict=True):
                number += 1
                longer += self._is_longer(len(sides[SOURCE]))
                for column, ids in enumerate(sides):
                    if self._too_long(len(ids), column):
                        self._skip(len(ids), column, path, number, found)
                        break
                else:
                    kept.append(number - 1)
        log_notes(found.notices())
        self._log_longer(longer)
        return kept

    def too_long(self, store: TokenStore, path: str) -> frozenset[int]:
        """The rows of a store that are left out."""
        if self.context is None:
            return frozenset()
        rows, found = np.arange(len(store)), Truncation()
        left_out: set[int] = set()
        for column in (SOURCE, TARGET):
            lengths = store.lengths(rows, column)
            if self.data.max_length is not None:
                lengths = np.minimum(lengths, self.data.max_length)
            for row in np.flatnonzero(self._size(0, column) + lengths > self.context).tolist():
                if row not in left_out:
                    self._skip(int(lengths[row]), column, path, int(store.lines[row]), found)
                    left_out.add(row)
        log_notes(found.notices())
        return frozenset(left_out)
