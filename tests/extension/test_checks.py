"""`seqloom.testing`: plugins pass its checks, and what breaks a law is reported by the name of that law."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch
from tests.extension.conftest import plugin
from torch import Tensor, nn

import seqloom
from seqloom.data.batching.pair_batches import pair_batch
from seqloom.layers.recurrent.cells import GRU, CellOps, CellState, GateTensors, SavedStep
from seqloom.models import model_family
from seqloom.models.convolution import Convolution, ConvolutionConfig
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.protocols import EncodedBatch, Loss
from seqloom.registry import find_task
from seqloom.testing import check_cell, check_decodable, check_encoder, check_objective, check_task
from seqloom.training.objectives import Translation

VOCABULARY = 25
WIDTHS = ("embedding_width", "encoder_width", "width", "attention_width", "readout_width")
SMALL: dict[str, Any] = dict.fromkeys(WIDTHS, 6)


def test_the_plugins_of_these_tests_pass() -> None:
    for name in ("mgu", "conv_lm"):
        seqloom.load_plugin(plugin(name))
    check_cell(sys.modules["mgu"].MGU)
    config, model, _ = model_family("conv_lm")
    check_decodable(
        model(config(vocabulary_size=VOCABULARY, embedding_width=4, width=6)), VOCABULARY
    )
    for name, sizes in (("recurrent_lm", {"embedding_width": 4, "width": 6}), ("seq2seq", SMALL)):
        config, model, _ = model_family(name)
        check_decodable(model(config(vocabulary_size=VOCABULARY, cell="mgu", **sizes)), VOCABULARY)


def test_the_task_of_these_tests_passes(tmp_path: Path) -> None:
    seqloom.load_plugin(plugin("toy_task"))
    (tmp_path / "lines.txt").write_text("".join(f"{a}{b}\n" for a in "abcdef" for b in "uvwxyz"))
    task = find_task("text-reversal")
    assert task is not None
    settings = ["train.batch_rows=8", *(f"model.{name}=8" for name in WIDTHS)]
    check_task(task, [str(tmp_path / "lines.txt")], settings=settings)


def test_the_objective_of_these_tests_passes() -> None:
    seqloom.load_plugin(plugin("rules"))
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, **SMALL)).double()
    batch = pair_batch([[17, 18], [19]], [[20], [21, 22, 23]])
    check_objective(sys.modules["rules"].ConfidencePenalty(Translation(0.1)), model, batch)
    assert model.training


# What is wrong is found


@final
class WrongGRU(GRU):  # type: ignore[misc]
    """Its backward step forgets a factor."""

    def backward(self, d: CellState, step: SavedStep, ops: CellOps, out: GateTensors) -> CellState:
        return tuple(2 * part for part in super().backward(d, step, ops, out))


def test_a_wrong_derivative_is_found() -> None:
    with pytest.raises(
        AssertionError, match="WrongGRU breaks a law: the derivative is that of autograd"
    ):
        check_cell(WrongGRU)


class Recurrent(nn.Module):
    """A model that does not know padding, or looks ahead."""

    def __init__(self, looks_ahead: bool) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(VOCABULARY, 4), nn.GRU(4, 5, batch_first=True)
        self.out, self.looks_ahead = nn.Linear(5, VOCABULARY), looks_ahead

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        first = None if state is None else state[0].transpose(0, 1).contiguous()
        outputs, after = self.gru(self.embedding(tokens), first)
        if self.looks_ahead:
            outputs = outputs.flip(1).cumsum(1).flip(1)
        return self.out(outputs), (after.transpose(0, 1),)


@pytest.mark.parametrize(
    ("looks_ahead", "law"),
    [(False, "a row in a padded batch is that row alone"), (True, "step by step is all at once")],
)
def test_a_model_that_breaks_a_law_is_found(looks_ahead: bool, law: str) -> None:
    with pytest.raises(AssertionError, match=f"Recurrent breaks a law: {law}"):
        check_decodable(Recurrent(looks_ahead), VOCABULARY)


class PadReader(nn.Module):
    """An encoder that adds the mean of a row, padding and all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)

    def encode_batch(self, batch: EncodedBatch) -> Tensor:
        states: Tensor = self.embedding(batch.tokens.clamp(min=0))
        return states + states.mean(dim=1, keepdim=True)


def test_an_encoder_that_reads_padding_is_found() -> None:
    with pytest.raises(AssertionError, match="PadReader breaks a law: batched and padded is alone"):
        check_encoder(PadReader())
    with pytest.raises(AssertionError, match="Linear must have `encode_batch`"):
        check_encoder(nn.Linear(1, 1))
    check_encoder(
        Convolution(ConvolutionConfig(vocabulary_size=VOCABULARY, embedding_width=4, maps=3))
    )


@final
@dataclass(frozen=True)
class MeanLoss:
    """A mean, which does not add up over rows."""

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        loss = Translation()(model, batch)
        return Loss(loss.total / loss.count, torch.ones_like(loss.count))


def test_an_objective_that_does_not_add_up_is_found() -> None:
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, **SMALL))
    batch = pair_batch([[17, 18], [19]], [[20], [21, 22, 23]])
    with pytest.raises(
        AssertionError, match="MeanLoss breaks a law: the loss of a batch is the sum over its"
    ):
        check_objective(MeanLoss(), model, batch)


def test_the_checks_need_no_pytest() -> None:
    script = "import sys, seqloom.testing; assert not {'pytest', 'hypothesis'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)
