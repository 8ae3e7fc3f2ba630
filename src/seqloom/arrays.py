"""The types of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.integer[Any]]
"""Of any size, as ids and counts are stored."""
Numbers = NDArray[Any]
"""Of whatever type a model or a count has."""
