"""A small training in memory that records what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from seqloom.config import TrainConfig
from seqloom.data.batching.pair_batches import BatchPlan, translation_batch
from seqloom.data.batching.token_store import TokenStore
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.training.checkpoints import TrainerState
from seqloom.training.loop import Trainer
from seqloom.training.objectives import Translation
from seqloom.training.optimisation import make_optimizer

VOCABULARY = 30


def small_model(dropout: float = 0.0) -> Seq2Seq:
    torch.manual_seed(7)
    widths: dict[str, Any] = {
        "embedding_width": 6,
        "encoder_width": 5,
        "width": 7,
        "attention_width": 4,
        "readout_width": 6,
    }
    return Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, dropout=dropout, **widths))


class Saved(NamedTuple):
    """Copies of what there was to save."""

    state: TrainerState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


@dataclass
class Bench:
    """A trainer, and what it logged and saved."""

    trainer: Trainer
    logged: list[dict[str, Any]] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    signals: dict[int, int] = field(default_factory=dict)
    """Step -> signal that has come by then."""
    state: TrainerState = field(default_factory=TrainerState)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """A trainer with 40 pairs; `validations` are the losses that its validations give, one after another."""

    def make(validations: Iterable[float] = (), dropout: float = 0.0, **settings: Any) -> Bench:
        rng = np.random.default_rng(0)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 10, 80))])
        tokens = rng.integers(16, VOCABULARY, offsets[-1]).astype(np.uint16)
        store = TokenStore(("source", "target"), tokens, offsets, np.arange(1, 41))
        defaults: dict[str, Any] = {
            "batch_rows": 8,
            "log_every": 1,
            "schedule": "constant",
            "warmup_steps": 0,
        }
        config = TrainConfig(**(defaults | settings))
        plan = BatchPlan(seed=config.seed, batch_tokens=None, batch_rows=config.batch_rows)
        model = small_model(dropout)
        values = iter(validations)
        recorded: Bench

        def save(state: TrainerState) -> None:
            recorded.saved.append(
                Saved(
                    *deepcopy(
                        (state, dict(model.state_dict()), recorded.trainer.optimizer.state_dict())
                    )
                )
            )

        recorded = Bench(
            Trainer(
                model=model,
                objective=Translation(),
                optimizer=make_optimizer(model, config),
                config=config,
                batches=lambda epoch, start: plan.epoch(store, epoch, start),
                load=lambda rows, whole: translation_batch(store, rows, whole, None),
                describe=lambda rows: "lines " + ", ".join(str(store.lines[row]) for row in rows),
                validate=lambda: {"loss": next(values), "bleu": 1.0},
                save=save,
                log=lambda record: recorded.logged.append(record),
                progress=lambda progress: None,
                interrupted=lambda: recorded.signals.get(recorded.state.step, 0),
                evaluate_every=config.evaluate_every or 1000,
            )
        )
        return recorded

    return make
