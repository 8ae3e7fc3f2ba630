"""One batch, one step: however it is split over micro-batches and workers.

Two workers are two processes over gloo, started with what `torchrun` would set; each runs this very file.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqloom.config import TrainConfig
from seqloom.data.batching.pair_batches import translation_batch
from seqloom.data.batching.token_store import TokenStore
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.protocols import Rows
from seqloom.testing import check_objective
from seqloom.training.distributed import ModelWithLoss, World, data_parallel, joined_world
from seqloom.training.loop import Trainer
from seqloom.training.objectives import Translation
from seqloom.training.optimisation import make_optimizer

VOCABULARY = 30
PRECISIONS = {"float64": 1e-10, "float32": 1e-5}
"""And how far a sum in another order may be off, relative to its norm."""
ROWS = 32
FEW = 3
"""Rows of a batch that leaves some micro-batches of some workers empty."""

Kept = dict[str, Tensor]


def make_store(rows: int) -> TokenStore:
    """Random pairs of 1 to 9 ids on each side."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 10, 2 * rows))])
    tokens = rng.integers(16, VOCABULARY, offsets[-1]).astype(np.uint16)
    return TokenStore(("source", "target"), tokens, offsets, np.arange(1, rows + 1))


def make_trainer(dtype: str, world: World, accumulate: int) -> Trainer:
    store = make_store(200)
    torch.manual_seed(7)
    widths: dict[str, Any] = {
        "embedding_width": 6,
        "encoder_width": 5,
        "width": 7,
        "attention_width": 4,
        "readout_width": 6,
    }
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, dropout=0.0, **widths)).to(
        getattr(torch, dtype)
    )
    config = TrainConfig(
        accumulate=accumulate,
        learning_rate=0.01,
        clip_norm=0.05,
        schedule="constant",
        warmup_steps=0,
    )
    return Trainer(
        model=model,
        objective=Translation(0.1),
        optimizer=make_optimizer(model, config),
        config=config,
        batches=lambda epoch, start: iter(()),
        load=lambda rows, whole: translation_batch(store, rows, whole, None),
        describe=str,
        validate=dict,
        save=lambda state: None,
        log=lambda record: None,
        progress=lambda progress: None,
        interrupted=lambda: 0,
        evaluate_every=1,
        world=world,
    )


def three_steps(dtype: str, world: World, accumulate: int, batches: list[Rows]) -> Kept:
    """Loss, count and gradient of the first batch; then the result of a step with each batch, and the
    weights."""
    trainer = make_trainer(dtype, world, accumulate)
    module = data_parallel(ModelWithLoss(trainer.model, trainer.objective), world)
    total, count = trainer.accumulate_gradient(module, batches[0], 1)
    kept = {"total": torch.tensor(total, dtype=torch.float64), "count": torch.tensor(count)}
    for name, parameter in trainer.model.named_parameters():
        assert parameter.grad is not None
        kept[f"gradient of {name}"] = parameter.grad * world.size
    trainer.optimizer.zero_grad(set_to_none=True)
    for step, rows in enumerate(batches, start=1):
        result = trainer.train_step(module, rows, step, 3)
        kept[f"step {step}"] = torch.tensor(tuple(result), dtype=torch.float64)
    return kept | {
        f"weights {name}": parameter.detach()
        for name, parameter in trainer.model.named_parameters()
    }


def batches_of(rows: int) -> list[Rows]:
    return [np.arange(at * rows, (at + 1) * rows) for at in range(3)]


def work(folder: Path) -> None:
    """What one of two workers does."""
    torch.set_num_threads(1)
    with joined_world() as world:
        for dtype in PRECISIONS:
            save_file(
                three_steps(dtype, world, 1, batches_of(ROWS)), folder / f"{world.rank}-{dtype}-1"
            )
            save_file(
                three_steps(dtype, world, 2, batches_of(FEW)), folder / f"{world.rank}-{dtype}-2"
            )


def run_worker(rank: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    work(Path(folder))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two workers kept."""
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "seqloom.workflows.train", "torch._dynamo"])
    processes = [
        context.Process(
            target=runpy.run_path,
            args=(__file__, {"ARGUMENTS": (rank, port, str(folder))}, "worker"),
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    return folder


def assert_same(one: Kept, other: Kept, tolerance: float) -> None:
    assert one.keys() == other.keys()
    off = {
        name: float(
            (one[name] - other[name]).double().norm() / one[name].double().norm().clamp(min=1e-300)
        )
        for name in one
    }
    assert max(off.values()) <= tolerance, {
        name: value for name, value in off.items() if value > tolerance
    }


@pytest.mark.parametrize(
    ("dtype", "accumulate"), [("float64", 4), ("float32", 4), ("float64", 5), ("float64", 40)]
)
def test_micro_batches_change_nothing(dtype: str, accumulate: int) -> None:
    whole = three_steps(dtype, World(), 1, batches_of(ROWS))
    assert_same(whole, three_steps(dtype, World(), accumulate, batches_of(ROWS)), PRECISIONS[dtype])


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_workers_change_nothing(workers: Path, dtype: str) -> None:
    for accumulate, rows in ((1, ROWS), (2, FEW)):  # 2 x 16 rows; and 3 rows for four micro-batches
        first, second = (load_file(workers / f"{rank}-{dtype}-{accumulate}") for rank in range(2))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert_same(three_steps(dtype, World(), 1, batches_of(rows)), first, PRECISIONS[dtype])


def test_the_loss_is_that_of_all_tokens_together() -> None:
    """Σ loss / Σ tokens of the rows one by one: no mean of means, which would give short rows more weight."""
    trainer = make_trainer("float64", World(), 1)
    rows = batches_of(ROWS)[0]
    check_objective(trainer.objective, trainer.model, trainer.load(rows, rows))
    alone = [
        trainer.objective(trainer.model, trainer.load(rows[at : at + 1], rows))
        for at in range(ROWS)
    ]
    assert len({int(loss.count) for loss in alone}) > 3
    total, count = trainer.accumulate_gradient(
        ModelWithLoss(trainer.model, trainer.objective), rows, 1
    )
    assert count == sum(int(loss.count) for loss in alone)
    assert total == pytest.approx(sum(float(loss.total.detach()) for loss in alone), rel=1e-12)


if __name__ == "worker":
    run_worker(*globals()["ARGUMENTS"])
