"""The benchmark of fine-tuning gives both sides one recipe, runs them by turns, and judges what they come
to."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fine_tuning import (
    OURS,
    PEER,
    Files,
    Outcome,
    described,
    main,
    missing,
    outcomes,
    seqloom_settings,
    steps_of,
    texts_and_labels,
    trainer_settings,
    verdict,
    with_seqloom,
    with_trainer,
)

from seqloom.config import RunConfig
from seqloom.errors import UsageError
from seqloom.run_file import apply_settings, parse

GIVEN = Files("train.tsv", "dev.tsv", "minilm")


def test_both_sides_have_one_recipe(tmp_path: Path) -> None:
    """6,920 texts: 217 batches an epoch, the last of 8."""
    ours = parse(
        RunConfig,
        {
            "task": "text-classification",
            "output_dir": "x",
            **apply_settings({}, seqloom_settings(6920, 3)),
        },
    ).train
    theirs = trainer_settings(6920, 3, tmp_path)
    assert steps_of(6920) == (434, 43)
    assert (ours.max_steps, ours.warmup_steps) == (
        theirs["num_train_epochs"] * 217,
        theirs["warmup_steps"],
    )
    assert ours.evaluate_every == ours.max_steps  # one validation, as theirs
    assert (ours.batch_rows, ours.learning_rate) == (
        theirs["per_device_train_batch_size"],
        theirs["learning_rate"],
    )
    assert (ours.weight_decay, ours.clip_norm, ours.beta2) == (
        theirs["weight_decay"],
        theirs["max_grad_norm"],
        theirs["adam_beta2"],
    )
    assert (ours.schedule, ours.seed) == (theirs["lr_scheduler_type"], theirs["seed"])
    assert (ours.label_smoothing, ours.layer_decay, ours.freeze) == (0, 1, ())


def test_the_settings_are_known_to_transformers(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    assert set(trainer_settings(100, 0, tmp_path)) <= {
        field.name for field in dataclasses.fields(TrainingArguments)
    }


def test_sides_take_turns_in_going_first_and_are_timed_each() -> None:
    went: list[tuple[str, int]] = []

    def side(name: str, score: float):  # type: ignore[no-untyped-def]
        def run(given: Files, seed: int, folder: Path) -> float:
            assert not folder.exists()
            folder.mkdir()
            went.append((name, seed))
            return score + seed

        return run

    found = outcomes(GIVEN, 3, {OURS: side(OURS, 90), PEER: side(PEER, 80)}, lambda _: None)
    assert went == [(OURS, 0), (PEER, 0), (PEER, 1), (OURS, 1), (OURS, 2), (PEER, 2)]
    assert [one.accuracy for one in found[OURS]] == [90, 91, 92]
    assert [one.accuracy for one in found[PEER]] == [80, 81, 82]
    assert all(one.seconds >= 0 for runs in found.values() for one in runs)


@pytest.mark.parametrize(
    ("ours", "seconds", "expected"),
    [
        ([91, 91, 91], 9, (True, True)),
        ([89.9, 89.9, 89.9], 11, (True, False)),
        ([87.4, 87.4, 87.4], 10, (False, True)),
    ],
)
def test_the_verdict(ours: list[float], seconds: float, expected: tuple[bool, bool]) -> None:
    """Trainer: 90 on the mean, 95 % interval from 87.5 to 92.5."""
    found = {
        OURS: [Outcome(one, seconds) for one in ours],
        PEER: [Outcome(one, 10) for one in (89, 90, 91)],
    }
    assert verdict(found) == expected
    text = described(found, GIVEN, "fine_tuning")
    assert "90.00 (87.52 to 92.48)" in text
    assert ("no more time" in text) == expected[1]
    assert ("not below" in text) == expected[0]


def test_a_file_has_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text('he said "so\t1\nno\t0\n')
    assert texts_and_labels(str(path)) == (['he said "so', "no"], ["1", "0"])
    path.write_text("yes\t1\nno\n")
    with pytest.raises(UsageError, match=r"train.tsv:2: must have a text and a label"):
        texts_and_labels(str(path))


def test_what_is_missing_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        missing(("torch", "no_such_module"))
        == "transformers' Trainer needs no_such_module: pip install no_such_module"
    )
    assert missing(("torch",)) is None
    monkeypatch.setattr("sys.argv", ["fine_tuning", "a.tsv", "b.tsv", "--from", "minilm"])
    monkeypatch.setattr("benchmarks.fine_tuning.NEEDED", ())
    monkeypatch.setattr("benchmarks.fine_tuning.missing", lambda: "it needs accelerate")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "it needs accelerate\n"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A tiny BERT with its tokenizer, and texts that a word gives away."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("toy")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *["good", "bad", "a", "film", "it", "is", "the", "one"],
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    }
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    for name, count in (("train", 320), ("dev", 60)):
        rows = (
            f"{' '.join(words[7 + (at * k) % 6] for k in range(1, 4))} {('bad', 'good')[at % 2]}\t{at % 2}"
            for at in range(count)
        )
        (folder / f"{name}.tsv").write_text("\n".join(rows))
    return Files(str(folder / "train.tsv"), str(folder / "dev.tsv"), str(folder / "bert"))


def test_our_side_runs(toy: Files, tmp_path: Path) -> None:
    assert 0 <= with_seqloom(toy, 0, tmp_path / "run") <= 100
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate"
)
def test_their_side_runs(toy: Files, tmp_path: Path) -> None:
    assert 0 <= with_trainer(toy, 0, tmp_path / "run") <= 100
    assert (tmp_path / "run" / "model.safetensors").exists()
