"""Reading with a BERT beside transformers' with the same weights: forward, and a step of masked-LM training.

    python -m benchmarks.encoders [TEXT] [--rows 32] [--rounds 7] [--threads 2] [--write]

Width 256, 4 layers, 4 heads, vocabulary 8,000, float32. Rows are as long as lines of TEXT in words and signs,
at most 128, in the order of the file; without one, lengths are drawn (log-normal, median 20, which pads about
as film reviews do). Both get the same padded batches and masks; the peer has scaled_dot_product_attention. A
step is forward, cross-entropy of 15 % of the tokens and backward, without dropout. States must agree to 1e-4,
and the loss.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import report
from benchmarks.hub_models import same_weights
from benchmarks.measuring import interleaved
from seqloom.files import open_binary
from seqloom.shapes import IGNORE

OURS, PEER = "seqloom", "transformers"
WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST = 256, 4, 4, 8000, 128
BATCHES = 8
REQUIRED = 1.3


def lengths_of(path: str | None, count: int) -> list[int]:
    """How many tokens each row has."""
    if path is None:
        drawn = torch.empty(count).log_normal_(
            mean=3.0, std=0.35, generator=torch.Generator().manual_seed(0)
        )
        return [int(length) for length in drawn.clamp(4, LONGEST)]
    with open_binary(path) as file:
        text = file.read().decode("utf-8", "replace")
    found = [
        min(len(re.findall(r"\w+|[^\w\s]", line)) + 2, LONGEST)
        for line in text.splitlines()
        if line.strip()
    ]
    return (found * (count // len(found) + 1))[:count]


def batches(lengths: list[int], rows: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """inputs, mask, targets `(rows, longest)` each."""
    chance = torch.Generator().manual_seed(1)
    made = []
    for at in range(0, len(lengths), rows):
        of = torch.tensor(lengths[at : at + rows])
        mask = torch.arange(int(of.max())) < of[:, None]
        inputs = torch.randint(16, VOCABULARY, mask.shape, generator=chance).where(mask, 0)
        chosen = (torch.rand(mask.shape, generator=chance) < 0.15) & mask
        made.append((inputs, mask, inputs.where(chosen, IGNORE)))
    return made


def models() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    peer = BertForMaskedLM(config)
    return same_weights(peer), peer


def forward_runs(
    ours: Any, peer: Any, data: list[tuple[Tensor, Tensor, Tensor]]
) -> dict[str, Callable[[], Any]]:
    @torch.inference_mode()
    def mine() -> list[Tensor]:
        return [ours(inputs, mask) for inputs, mask, _ in data]

    @torch.inference_mode()
    def theirs() -> list[Tensor]:
        return [
            peer.bert(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
            for inputs, mask, _ in data
        ]

    for (_, mask, _), a, b in zip(data, mine(), theirs(), strict=True):
        torch.testing.assert_close(a[mask], b[mask], rtol=1e-4, atol=1e-4)
    return {OURS: mine, PEER: theirs}


def training_runs(
    ours: Any, peer: Any, data: list[tuple[Tensor, Tensor, Tensor]]
) -> dict[str, Callable[[], Any]]:
    def mine() -> float:
        ours.zero_grad(set_to_none=True)
        total = 0.0
        for inputs, mask, targets in data:
            chosen = targets != IGNORE
            loss = ours.output.loss(ours.head(ours(inputs, mask)[chosen]), targets[chosen])
            (loss.total / loss.count).backward()
            total += float(loss.total.detach() / loss.count)
        return total

    def theirs() -> float:
        peer.zero_grad(set_to_none=True)
        total = 0.0
        for inputs, mask, targets in data:
            logits = peer(input_ids=inputs, attention_mask=mask.long()).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    ours.train()
    peer.train()
    assert abs(mine() - theirs()) < 1e-3 * len(data), "the losses must agree"
    return {OURS: mine, PEER: theirs}


def main() -> None:
    """Measures both and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="?")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = batches(lengths_of(arguments.text, BATCHES * arguments.rows), arguments.rows)
    tokens = sum(int(mask.sum()) for _, mask, _ in data)
    share = 1 - tokens / sum(mask.numel() for _, mask, _ in data)
    points: list[dict[str, Any]] = []
    waited = 0.0
    for way, runs in (("forward", forward_runs), ("training step", training_runs)):
        timing = interleaved(runs(*models(), data), rounds=arguments.rounds)
        waited = max(waited, timing.waited)
        points.append(
            {
                "way": way,
                "ratio": timing.ratio(OURS, PEER)._asdict(),
                "tokens_per_second": {n: tokens / timing.median(n) for n in (OURS, PEER)},
            }
        )
    rows = [
        [
            point["way"],
            *(f"{point['tokens_per_second'][name]:,.0f}" for name in (OURS, PEER)),
            "{median:.2f} ({low:.2f} to {high:.2f})".format(**point["ratio"]),
            f"{REQUIRED}",
            "yes" if point["ratio"]["median"] >= REQUIRED else "no",
        ]
        for point in points
    ]
    header = [
        "way",
        "true tokens/s",
        "transformers'",
        "ratio to transformers",
        "required",
        "passes",
    ]
    text = (
        f"A BERT (width {WIDTH}, {LAYERS} layers, vocabulary {VOCABULARY:,}, float32, batches of"
        f" {arguments.rows} rows, {share:.0%} padding) beside transformers with the same"
        f" weights.\n\n{report.table(header, rows)}\n\n`python -m"
        f" benchmarks.encoders{' TEXT' if arguments.text else ''}`, {arguments.rounds} rounds. It waited for"
        f" a core for {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("encoders", {"points": points, "padding": share}, f"## Encoders\n\n{text}")


if __name__ == "__main__":
    main()
