"""A training step of the attention model beside the same model written with torch.nn, interleaved in one run.

    python benchmarks/training.py [--rounds 7] [--threads 2]

The peer is what a good engineer writes in an hour: nn.GRU over packed sentences as encoder, nn.GRUCell and additive
attention in a loop as decoder, nn.Linear and F.cross_entropy as output, AdamW. Same sizes, same batches, float32; its
GRU is torch's variant (ours is the published one). Prints a table on standard error and one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.data.batches import TranslationBatch, pair_batch
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.shapes import IGNORE
from seqloom.training.objectives import Translation

VOCABULARY = 8000


class Plain(nn.Module):
    """Bahdanau's model with torch.nn's parts."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.start = nn.Linear(2 * width, width)
        self.query, self.keys, self.score = (
            nn.Linear(width, width),
            nn.Linear(2 * width, width, bias=False),
            nn.Linear(width, 1, bias=False),
        )
        self.cell = nn.GRUCell(3 * width, width)
        self.readout = nn.Linear(4 * width, 2 * width)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, batch: TranslationBatch) -> Tensor:
        mask = batch.source != 0
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(batch.source), mask.sum(1), batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        keys, state = self.keys(memory), torch.tanh(self.start(torch.cat([last[0], last[1]], dim=-1)))
        embedded, hidden = self.embedding(batch.inputs), []
        for y in embedded.unbind(1):
            scores = self.score(torch.tanh(self.query(state)[:, None] + keys))[..., 0].masked_fill(~mask, -1e9)
            context = (scores.softmax(-1)[:, None] @ memory)[:, 0]
            state = self.cell(torch.cat([y, context], -1), state)
            hidden.append(torch.cat([state, y, context], -1))
        read = self.readout(torch.stack(hidden, 1)).unflatten(-1, (-1, 2)).amax(-1)
        logits: Tensor = self.output(read)
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum")


def batches(count: int, rows: int) -> list[TranslationBatch]:
    """Batches with the lengths of image captions: 8 to 24 pieces, alike within a batch."""
    rng = np.random.default_rng(0)

    def text(longest: int) -> list[int]:
        return [int(i) for i in rng.integers(16, VOCABULARY, int(rng.integers(max(longest - 3, 4), longest + 1)))]

    return [
        pair_batch([text(longest) for _ in range(rows)], [text(longest + 1) for _ in range(rows)]) for longest in rng.integers(8, 25, count)
    ]


def stepper(model: nn.Module, loss: Callable[[TranslationBatch], Tensor]) -> Callable[[TranslationBatch], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: TranslationBatch) -> None:
        torch.autograd.backward(loss(batch))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    ours, plain = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, dropout=0.0)), Plain()
    objective = Translation()

    def bf16(batch: TranslationBatch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return objective(ours, batch).total

    steps = {
        "torch.nn": stepper(plain, plain),
        "seqloom": stepper(ours, lambda batch: objective(ours, batch).total),
        "seqloom bf16": stepper(ours, bf16),
    }
    data = batches(6, arguments.rows)
    tokens = sum(int((batch.targets != IGNORE).sum()) for batch in data)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(arguments.rounds + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            for batch in data:
                step(batch)
            if number:  # the first round warms up
                speeds[name].append(tokens / (time.perf_counter() - began))
    result = {
        name: {
            "tokens_per_second": statistics.median(speed),
            "ratio": statistics.median(a / b for a, b in zip(speed, speeds["torch.nn"], strict=True)),
            "range": [min(speed), max(speed)],
        }
        for name, speed in speeds.items()
    }
    for name, row in result.items():
        sys.stderr.write(f"{name:14} {row['tokens_per_second']:>8,.0f} tokens/s   {row['ratio']:.2f} x torch.nn\n")
    machine = {"cpu": platform.processor() or platform.machine(), "threads": arguments.threads, "torch": torch.__version__}
    print(json.dumps({"training_step": result, "machine": machine}))


if __name__ == "__main__":
    main()
