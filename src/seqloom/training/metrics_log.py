"""The metrics of a training in metrics.jsonl of its folder: one line a report, whole lines only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from seqloom import files

METRICS = "metrics.jsonl"
LONGEST = 2**30
"""Bytes of it."""
Metrics = dict[str, Any]
"""A line of it: numbers by name."""


def append(folder: Path, record: Metrics) -> None:
    """Appends a whole line to metrics.jsonl, or nothing where the disk is full (FolderError). Values that are
    not finite become null."""
    line = (files.json_line(record) + "\n").encode()
    if files.is_there(folder / METRICS):
        files.regular(folder / METRICS)
    with files.writing(folder / METRICS):
        handle = os.open(folder / METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        before = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
            if written < len(line):  # the next write raises the reason
                os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, before)
            raise
        finally:
            os.close(handle)


def cut(folder: Path, step: int) -> None:
    """Drops the lines after a step, which a killed run left, and an incomplete last line."""
    path = folder / METRICS
    if not files.is_there(path):
        return
    kept = []
    for line in files.read_bytes(path, LONGEST).split(b"\n")[:-1]:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            continue
    files.write_atomic(path, b"".join(kept))


def read(folder: Path) -> list[Metrics]:
    """The lines of metrics.jsonl."""
    path = folder / METRICS
    if not files.is_there(path):
        return []
    return [json.loads(line) for line in files.read_bytes(path, LONGEST).splitlines()]


def validation(folder: Path, step: int) -> dict[str, float]:
    """The validation metrics at a step."""
    prefix = "validation_"
    for record in reversed(read(folder)):
        if record["step"] == step and f"{prefix}loss" in record:
            return {
                name.removeprefix(prefix): value
                for name, value in record.items()
                if name.startswith(prefix) and value is not None
            }
    return {}
