"""Compiles the loops in place, and says where they are."""

from __future__ import annotations

import sys

from seqloom.native.build import build

try:
    for path in build():
        print(path)
except OSError as error:
    sys.exit(f"error: {error}")
