"""A training step of the attention model beside the same model written with torch.nn, interleaved in one run.

    python -m benchmarks.training [--rounds 7] [--threads 2] [--write]

The peer is what a good engineer writes in an hour: nn.GRU over packed sentences as encoder, nn.GRUCell and
additive attention in a loop as decoder, nn.Linear and F.cross_entropy as output, AdamW. Same sizes, same
batches, float32; its GRU is torch's variant (ours is the published one). Prints a table; with --write puts it
into docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import report
from benchmarks.measuring import interleaved
from seqloom.data.batching.pair_batches import TranslationBatch, pair_batch
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
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(batch.source), mask.sum(1), batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        keys, state = (
            self.keys(memory),
            torch.tanh(self.start(torch.cat([last[0], last[1]], dim=-1))),
        )
        embedded, hidden = self.embedding(batch.inputs), []
        for y in embedded.unbind(1):
            scores = self.score(torch.tanh(self.query(state)[:, None] + keys))[..., 0].masked_fill(
                ~mask, -1e9
            )
            context = (scores.softmax(-1)[:, None] @ memory)[:, 0]
            state = self.cell(torch.cat([y, context], -1), state)
            hidden.append(torch.cat([state, y, context], -1))
        read = self.readout(torch.stack(hidden, 1)).unflatten(-1, (-1, 2)).amax(-1)
        logits: Tensor = self.output(read)
        return F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )


def batches(count: int, rows: int) -> list[TranslationBatch]:
    """Batches with the lengths of image captions: 8 to 24 pieces, alike within a batch."""
    rng = np.random.default_rng(0)

    def text(longest: int) -> list[int]:
        return [
            int(i)
            for i in rng.integers(
                16, VOCABULARY, int(rng.integers(max(longest - 3, 4), longest + 1))
            )
        ]

    return [
        pair_batch([text(longest) for _ in range(rows)], [text(longest + 1) for _ in range(rows)])
        for longest in rng.integers(8, 25, count)
    ]


def stepper(
    model: nn.Module, loss: Callable[[TranslationBatch], Tensor], data: list[TranslationBatch]
) -> Callable[[], None]:
    """A training step on each of the batches."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def run() -> None:
        for batch in data:
            torch.autograd.backward(loss(batch))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def main() -> None:
    """Measures, prints, and publishes where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    ours, plain = Seq2Seq(Seq2SeqConfig(vocabulary_size=VOCABULARY, dropout=0.0)), Plain()
    objective, data = Translation(), batches(6, arguments.rows)

    def bf16(batch: TranslationBatch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return objective(ours, batch).total

    ways = {
        "torch.nn": stepper(plain, plain, data),
        "seqloom": stepper(ours, lambda batch: objective(ours, batch).total, data),
        "seqloom, bfloat16": stepper(ours, bf16, data),
    }
    tokens = sum(int((batch.targets != IGNORE).sum()) for batch in data)
    timing = interleaved(ways, rounds=arguments.rounds)
    speeds = {name: tokens / timing.median(name) for name in ways}
    ratios = {name: timing.ratio(name, "torch.nn") for name in ways}
    body = [
        [name, f"{speed:,.0f}", f"{ratios[name].median:.2f} ± {ratios[name].half_range:.2f}"]
        for name, speed in speeds.items()
    ]
    text = f"{__doc__.splitlines()[0]}\n\n{report.table(['model', 'tokens a second', 'x torch.nn'], body)}"
    print(text)
    if arguments.write:
        rows = [
            {"model": name, "tokens_per_second": speeds[name], "ratio": ratios[name]._asdict()}
            for name in ways
        ]
        report.publish(
            "training",
            {"training_step": rows, "waited": timing.waited},
            f"## Training the attention model\n\n{text}",
        )


if __name__ == "__main__":
    main()
