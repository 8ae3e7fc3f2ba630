"""Several data sets in one training: how often each is drawn from, and in which order.

Raffel et al. 2020, section 3.5.2, with e_m examples in set m, the cap K and the temperature T:

    r_m = min(e_m, K)^(1/T) / Σ_n min(e_n, K)^(1/T)

T = 1 is examples-proportional mixing, T → ∞ equal mixing. An epoch has N = Σ_m min(e_m, K) examples, of which
n_m = N r_m are of set m, rounded so that they add up. The order is a function of (seed, epoch, position), as
in `order.py`: position p of an epoch goes to a place of a keyed permutation of 0..N-1, whose first n_1 places
are of set 1, the next n_2 of set 2, and so on. Place j of set m in epoch k is its (k n_m + j)-th draw, and
draw g is the example at g mod e_m in a keyed order of the whole set, another one for each pass g div e_m:
whenever an epoch ends, no example of a set was drawn twice more often than another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from seqloom.data.batching.order import order, permute
from seqloom.data.batching.token_store import TokenIds, TokenStore
from seqloom.protocols import Rows

PASS = 1
"""The last number of the key of a pass over a set; those of epochs and pools are shorter."""


@final
@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Which examples an epoch over several sets has. Rows are numbered through all sets, in their order."""

    sizes: tuple[int, ...]
    """e_m, each at least 1."""
    cap: int | None = None
    """K; None: no set counts as smaller than it is."""
    temperature: float | Literal["equal"] = 1.0
    """T, at least 1; "equal" is the limit, where all sets are drawn from alike."""

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        """`(sets,)`: r_m."""
        capped = np.array(self._capped(), np.float64)
        power = 0.0 if self.temperature == "equal" else 1 / self.temperature
        weights = capped**power
        return np.asarray(weights / weights.sum())

    @cached_property
    def draws(self) -> Rows:
        """`(sets,)`: n_m, by largest remainders."""
        shares = self.rates * len(self)
        draws = np.floor(shares).astype(np.int64)
        largest = np.argsort(draws - shares, kind="stable")
        draws[largest[: len(self) - int(draws.sum())]] += 1
        return draws

    def __len__(self) -> int:
        """N, the examples of an epoch."""
        return sum(self._capped())

    def _capped(self) -> list[int]:
        return [size if self.cap is None else min(size, self.cap) for size in self.sizes]

    def order(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        """The rows at positions start..stop-1 of an epoch."""
        places = order(seed, epoch, start, stop, len(self))
        ends = np.cumsum(self.draws)
        owners = np.searchsorted(ends, places, side="right")
        rows, first = np.zeros_like(places), 0
        for number, size in enumerate(self.sizes):
            mine = np.flatnonzero(owners == number)
            count = int(self.draws[number])
            drawn = epoch * count + places[mine] - (ends[number] - count)
            rows[mine] = first + self._examples(drawn, size, seed, number)
            first += size
        return rows

    def _examples(self, draws: Rows, size: int, seed: int, number: int) -> Rows:
        """The example of each draw from a set."""
        passes, positions = np.divmod(draws, size)
        examples = np.zeros_like(draws)
        for pass_number in np.unique(passes).tolist():
            mine = passes == pass_number
            examples[mine] = permute(positions[mine], size, seed, pass_number, number + 1, PASS)
        return examples


@final
@dataclass(frozen=True, kw_only=True)
class JoinedStores:
    """Stores of pairs, whose rows are numbered through all of them in their order."""

    stores: tuple[TokenStore, ...]

    @cached_property
    def _ends(self) -> Rows:
        return np.cumsum([len(store) for store in self.stores])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def place(self, row: int) -> tuple[int, int]:
        """(store, row in it)"""
        number = int(np.searchsorted(self._ends, row, side="right"))
        return number, row - int(self._ends[number]) + len(self.stores[number])

    def sequence(self, row: int, column: int) -> TokenIds:
        number, at = self.place(row)
        return self.stores[number].sequence(at, column)

    def lengths(self, rows: Rows, column: int) -> NDArray[np.int64]:
        numbers = np.searchsorted(self._ends, rows, side="right")
        lengths = np.zeros(len(rows), np.int64)
        for number, store in enumerate(self.stores):
            mine = np.flatnonzero(numbers == number)
            first = int(self._ends[number]) - len(store)
            lengths[mine] = store.lengths(rows[mine] - first, column)
        return lengths
