"""The metrics of a training in metrics.jsonl of its folder: one line a report, whole lines only."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from seqloom import files, manifest
from seqloom.errors import FolderError, printable
from seqloom.json_values import as_object, as_whole_number, field_of

METRICS = "metrics.jsonl"
logger = logging.getLogger(__name__)

LONGEST = 2**30
"""Bytes of it."""
DAMAGED = "{}; put it back, or delete it to go on without the numbers in it"
Metrics = dict[str, Any]
"""A line of it: numbers by name."""


def append(folder: Path, record: Metrics) -> None:
    """Appends a whole line to metrics.jsonl, or nothing if the disk is full (FolderError). Values that are
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


def cut(folder: Path, step: int, expected: object = None) -> None:
    """Drops the lines after a step, which a killed run left, and an incomplete last line. What remains must
    be as `expected` (as in `check`)."""
    path = folder / METRICS
    if not files.is_there(path):
        check(folder, expected)
        return
    kept = []
    for line in files.read_bytes(path, LONGEST).split(b"\n")[:-1]:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            continue
    content = b"".join(kept)
    listed = as_object(expected)
    if listed is not None and hashlib.sha256(content).hexdigest() != listed["sha256"]:
        raise FolderError(DAMAGED.format(f"{METRICS} is damaged"), folder)
    files.write_atomic(path, content)


def read(folder: Path) -> list[Metrics]:
    """The lines of metrics.jsonl. Raises FolderError if it is damaged."""
    path = folder / METRICS
    if not files.is_there(path):
        return []
    records = []
    for number, line in enumerate(files.read_bytes(path, LONGEST).splitlines(), start=1):
        record = files.parse_json(line, Path(f"{path}:{number}"))
        if as_whole_number(field_of(record, "step")) is None:
            raise FolderError("must be a report with its step, but is none", f"{path}:{number}")
        records.append(record)
    return records


def check(folder: Path, expected: object) -> None:
    """Raises FolderError if metrics.jsonl is there and is not what it was (its `entry` in a manifest;
    older ones have none)."""
    if as_object(expected) is None:
        return
    if not files.is_there(folder / METRICS):
        logger.info(
            f"{printable(str(folder))}: {METRICS} is missing, and with it the numbers so far"
        )
    elif problem := manifest.problem(folder, {METRICS: expected}):
        raise FolderError(DAMAGED.format(problem), folder)


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
