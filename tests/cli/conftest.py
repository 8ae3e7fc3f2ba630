"""The command line in this process, and one small trained model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seqloom.cli import main
from seqloom.data.synthetic.pairs import copy_task


class Ran(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one line of JSON that it wrote."""
        (line,) = self.out.splitlines()
        return json.loads(line)


Command = Callable[..., Ran]


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """`command("check", "translation", ...)` as at a terminal, without the price of a process."""

    def ran(*words: object) -> Ran:
        capfd.readouterr()
        code = run(*words)
        return Ran(code, *capfd.readouterr())

    return ran


@pytest.fixture(scope="session")
def narrow() -> list[str]:
    """The options of a model that costs nothing."""
    return [
        f"--set=model.{name}=8"
        for name in (
            "width",
            "encoder_width",
            "embedding_width",
            "attention_width",
            "readout_width",
        )
    ]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.jsonl` (200 rows of letters to copy) and `val.jsonl` (20)."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, seed, count in (("train", 0, 200), ("val", 1, 20)):
        texts = [" ".join(letters) for letters, _ in copy_task(seed, count, "abcd", (1, 6))]
        lines = [json.dumps({"source": text, "target": text}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def trained(pairs: Path, narrow: list[str]) -> Path:
    """The run folder of a small model, trained with train.best=bleu until it copies a little."""
    folder = pairs / "run"
    settings = [
        "data.tokenizer=words",
        "train.max_steps=90",
        "train.evaluate_every=45",
        "train.batch_rows=32",
        "train.best=bleu",
    ]
    sets = [*narrow, *(f"--set={setting}" for setting in (*settings, "train.learning_rate=0.03"))]
    assert (
        run(
            "train",
            "translation",
            pairs / "train.jsonl",
            "--validation",
            pairs / "val.jsonl",
            "--output-dir",
            folder,
            *sets,
        )
        == 0
    )
    return folder
