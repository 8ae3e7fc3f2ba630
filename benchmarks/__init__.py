"""Measurements: each module is a command, `python -m benchmarks.NAME` from the root of the repository."""
