"""The laws that every model, cell, objective and task keeps, as checks for those of your own.

A check raises AssertionError with the law that is broken. The tests of seqloom call the same functions.
"""

from __future__ import annotations

from seqloom.testing.cells import check_cell
from seqloom.testing.decodable import check_decodable
from seqloom.testing.encoders import check_encoder
from seqloom.testing.training import check_objective, check_task

__all__ = ["check_cell", "check_decodable", "check_encoder", "check_objective", "check_task"]
