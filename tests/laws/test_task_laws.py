"""The laws that every task keeps: a stopped training goes on to the same bits, a folder answers the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqloom.registry import find_task
from seqloom.testing import check_task

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS = ("embedding_width", "encoder_width", "width", "attention_width", "readout_width")
SMALL = [f"model.{name}=8" for name in WIDTHS]
WORDS = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
TASKS: dict[str, tuple[str, list[str]]] = {
    "translation": (
        "source\ttarget\n" + "".join(f"{word}\t{word[::-1]}\n" for word in WORDS),
        SMALL,
    ),
    "summarization": (
        "source\tsummary\n" + "".join(f"{word} {word[::-1]}.\t{word}\n" for word in WORDS),
        [*SMALL, "train.best=rouge1"],
    ),
    "text-generation": (
        "".join(f"{word} {word[::-1]} {word}\n" for word in WORDS * 3),
        ["model.width=8", "model.context=16", "model.heads=2", "data.format=text"],
    ),
    "text-classification": (
        "text\tlabel\n" + "".join(f"{word}\t{word[0]}\n" for word in WORDS),
        ["model.embedding_width=8", "model.width=8"],
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_keeps_the_laws_of_tasks(name: str, tmp_path: Path) -> None:
    content, settings = TASKS[name]
    path = tmp_path / "data.tsv"
    path.write_text(content)
    task = find_task(name)
    assert task is not None
    check_task(task, [str(path)], settings=["train.batch_rows=8", *settings])
