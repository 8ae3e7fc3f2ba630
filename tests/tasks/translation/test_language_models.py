"""Pairs of texts with a language model: `<s> source <delim> target </s>`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqloom
from seqloom.data.batching.pair_batches import pair_batch
from seqloom.errors import UsageError
from seqloom.layers.transformer.blocks import AttentionInputs
from seqloom.layers.transformer.key_value_cache import mask_and_positions
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.protocols import read_source, target_log_probs
from seqloom.registry import find_task
from seqloom.runs.run_folder import load_run
from seqloom.shapes import IGNORE
from seqloom.testing import check_task
from seqloom.text.special_tokens import BOS, DELIMITER, EOS, PAD, SPECIAL_IDS, for_text_pairs
from seqloom.training.objectives import PairModelling, Translation
from seqloom.workflows.exchange import export_model
from seqloom.workflows.onnx import export_onnx
from seqloom.workflows.train import train

IDS = for_text_pairs(SPECIAL_IDS)
SOURCES = [[20, 21, 22, 23], [24], [25, 26, 20]]
TARGETS = [[21, 20], [22, 23, 24, 25], [26]]
FAMILIES = ("gpt", "gpt, rotary", "recurrent_lm")
SMALL = ["model.width=16", "train.batch_rows=8"]


def model_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    if family == "recurrent_lm":
        sizes: Any = {"width": 8, "embedding_width": 8, "dropout": 0.0}
        return RecurrentLM(RecurrentLMConfig(vocabulary_size=30, **sizes, **changes)).double()
    positions: Any = "rotary" if "rotary" in family else "learned"
    config = GPTConfig(
        vocabulary_size=30,
        context=24,
        width=16,
        layers=2,
        heads=2,
        dropout=0.0,
        embedding_dropout=0.0,
        positions=positions,
        **changes,
    )
    return GPT(config).double()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("source_loss", [False, True])
def test_its_loss_is_that_of_the_row_as_one_text(family: str, source_loss: bool) -> None:
    """One row after the other, unpadded, as the language model itself scores them."""
    model = model_of(family)
    batch = pair_batch(SOURCES, TARGETS, IDS)
    found = PairModelling(PAD, source_loss=source_loss)(model, batch)
    if not source_loss:
        in_two_calls = Translation()(model, batch)
        assert in_two_calls.count == found.count
        assert in_two_calls.total.item() == pytest.approx(found.total.item(), rel=1e-10)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        row = torch.tensor([[BOS, *source, DELIMITER, *target, EOS]])
        targets = row[:, 1:].clone()
        targets[targets == DELIMITER] = IGNORE
        if not source_loss:
            targets[:, : len(source)] = IGNORE
        total -= target_log_probs(model, row[:, :-1], targets, None)[0].sum()
        count += int((targets != IGNORE).sum())
    assert found.count.item() == count
    assert found.total.item() == pytest.approx(total.item(), rel=1e-10)


def hidden_with_mask(model: GPT, row: Tensor, source: int) -> Tensor:
    """The states of a row whose first tokens see each other, with the mask written out."""
    steps = row.shape[1]
    mask = torch.ones(steps, steps, dtype=torch.bool).tril()
    mask[:source, :source] = True
    call = mask_and_positions(row, None, PAD)
    x, inputs = model._embed(row, call)
    hidden: Tensor = model.stack(x, AttentionInputs(mask[None, None], 0, inputs.rotary), None)[0]
    return hidden


@pytest.mark.parametrize("family", ["gpt", "gpt, rotary"])
def test_a_source_that_sees_all_of_itself(family: str) -> None:
    """Prefix language model: as the mask of the whole row says, padded or not."""
    model = model_of(family, bidirectional_source=True)
    batch = pair_batch(SOURCES, TARGETS, IDS)
    hidden, _ = model.read(batch.inputs, read_source(model, batch.source))
    causal, _ = model.read(batch.inputs, model.read(batch.source, None)[1])
    for number, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        row = torch.tensor([[BOS, *source, DELIMITER, *target]])
        wanted = hidden_with_mask(model, row, 1 + len(source))[0, 1 + len(source) :]
        found = hidden[number, : len(target) + 1]
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
        assert not torch.allclose(causal[number, : len(target) + 1], wanted, rtol=0, atol=1e-6)


def write_pairs(folder: Path) -> str:
    words = ["ab", "cd", "ef", "gh", "ij", "kl"]
    pairs = [(f"{a} {b}", f"{b} {a}") for a in words for b in words]
    path = folder / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    return str(path)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ["gpt", "recurrent_lm"])
def test_it_keeps_the_laws_of_tasks(family: str, tmp_path: Path) -> None:
    task = find_task("translation")
    assert task is not None
    sizes = ["model.context=64", "model.heads=2"] if family == "gpt" else []
    settings = [*SMALL, *sizes, "train.source_loss=true"]
    check_task(task, [write_pairs(tmp_path)], model=family, settings=settings)


def test_it_learns_to_translate_and_answers_as_it_was_taught(tmp_path: Path) -> None:
    """By heart; from the command's own functions to the text, and exact search agrees with the beam."""
    data = write_pairs(tmp_path)
    train(
        "translation",
        [data],
        validation=[data],
        output_dir=tmp_path / "run",
        model="gpt:tiny",
        settings=[
            *SMALL,
            "model.context=40",
            "model.bidirectional_source=true",
            "data.tokenizer=words",
            "train.max_steps=400",
            "train.learning_rate=0.005",
            "train.evaluate_every=400",
        ],
    )
    model = seqloom.load(tmp_path / "run")
    assert model.evaluate([data]).metrics["exact_match"] > 95
    assert model.predict(["ab cd", "kl ij"]) == ["cd ab", "ij kl"]
    with pytest.raises(UsageError, match="ONNX holds no language model that reads a source"):
        export_onnx(str(tmp_path / "run"), str(tmp_path / "graphs"))
    with pytest.raises(UsageError, match="the hub has no gpt for translation, only for"):
        export_model(str(tmp_path / "run"), str(tmp_path / "hub"))
    ids = load_run(tmp_path / "run").tokenizer.special_ids
    assert (ids.prefix, ids.bos, ids.suffix) == ((BOS,), (DELIMITER,), ())


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("seq2seq:tiny", ["train.source_loss=true"], "an encoder only reads it"),
        (
            "gpt:tiny",
            ["train.source_loss=true", "model.bidirectional_source=true"],
            "each of its tokens sees the next",
        ),
        ("gpt:tiny", ["model.context=4"], "must fit into model.context=4 together"),
        ("recurrent_lm:tiny", ["model.bidirectional_source=true"], "bidirectional_source"),
    ],
)
def test_what_changes_nothing_or_does_not_fit_is_refused(
    model: str, settings: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        train(
            "translation",
            [write_pairs(tmp_path)],
            output_dir=tmp_path / "run",
            model=model,
            settings=[*settings, "train.max_steps=1"],
        )


def test_a_validation_pair_that_does_not_fit_is_said_before_the_training(tmp_path: Path) -> None:
    validation = tmp_path / "validation.tsv"
    validation.write_text("source\ttarget\n" + "ab " * 40 + "\tcd\n")
    with pytest.raises(UsageError, match="the longest validation pair has"):
        train(
            "translation",
            [write_pairs(tmp_path)],
            validation=[str(validation)],
            output_dir=tmp_path / "run",
            model="gpt:tiny",
            settings=["model.context=24", "train.max_steps=1"],
        )
    assert not (tmp_path / "run" / "run.yaml").exists()


def test_it_is_refused_where_no_source_is_read(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ab cd ef\n" * 20)
    with pytest.raises(
        UsageError, match="bidirectional_source changes nothing for text-generation"
    ):
        train(
            "text-generation",
            [str(text)],
            output_dir=tmp_path / "run",
            model="gpt:tiny",
            settings=["model.bidirectional_source=true"],
        )
