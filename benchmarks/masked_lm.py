"""A step of masked language modelling beside the usual script with transformers: the same model and rows.

    python -m benchmarks.masked_lm FILES ... [--rounds 7] [--threads 1] [--rows 32] [--dtype float32]
                                             [--write]

A step is all that one costs: masks, forward, backward, clipping, AdamW; with dropout. Ours is a step of
`train fill-mask`. The peer is what its scripts do: the same rows, tokenised before; masks by
DataCollatorForLanguageModeling; BertForMaskedLM or BertForPreTraining with scaled_dot_product_attention;
AdamW in one kernel. Both have the same weights and, on the same masks, the same loss to 1e-4. Cases: `masks`,
full rows of a new bert:small; `pairs`, rows of two texts with next sentences, a tenth of which are short.
FILES should allow a vocabulary of 8,000 (about 300,000 words).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.measuring import interleaved
from benchmarks.trainings import train
from seqloom.protocols import MaskedBatch
from seqloom.runs.run_folder import load_run
from seqloom.runs.settings import read_resumed
from seqloom.shapes import IGNORE
from seqloom.tasks.fill_mask.training_data import MaskedCorpus, prepare_masked_corpus
from seqloom.text.special_tokens import PAD
from seqloom.training.distributed import ModelWithLoss, World
from seqloom.training.loop import Trainer
from seqloom.training.optimisation import make_optimizer
from seqloom.workflows.exchange import export_model

OURS, PEER = "seqloom", "transformers"
REQUIRED = 1.5
BATCHES = 4
"""That a round goes through."""
CASES = {"masks": "none", "pairs": "next"}
"""Case -> train.sentence_pairs."""


def prepare(files: list[str], folder: Path, case: str, rows: int, dtype: str) -> MaskedCorpus:
    """A run of one step, so that both programs begin with the files of the same model; and its data."""
    settings = [
        "train.max_steps=1",
        f"train.batch_rows={rows}",
        f"train.dtype={dtype}",
        f"train.sentence_pairs={CASES[case]}",
        "data.document=file",
    ]
    train("fill-mask", files, output_dir=folder / "run", settings=settings)
    export_model(str(folder / "run"), str(folder / "hub"))
    return prepare_masked_corpus(read_resumed(folder / "run"), folder / "run", first=False)


def our_steps(data: MaskedCorpus, folder: Path) -> Callable[[], None]:
    model, train_config = load_run(folder / "run", "cpu").model.train(), data.run.train
    objective = data.objective()
    trainer = Trainer(
        model=model,
        objective=objective,
        optimizer=make_optimizer(model, train_config),
        config=train_config,
        batches=data.batches,
        load=data.load,
        describe=str,
        validate=dict,
        save=lambda state: None,
        log=lambda record: None,
        progress=lambda progress: None,
        interrupted=lambda: 0,
        evaluate_every=1,
        world=World(),
    )
    module, epochs, step = ModelWithLoss(model, objective), _epochs(data), count(1)

    def run() -> None:
        for _ in range(BATCHES):
            trainer.train_step(module, next(epochs), next(step), 10**6)

    return run


def their_steps(data: MaskedCorpus, folder: Path, case: str) -> Callable[[], None]:
    import transformers as hf

    peer: Any = _peer(folder, case).train()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "hub")
    collator = hf.DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    features = _features(data)
    low = data.run.train.dtype == "bfloat16"

    def run() -> None:
        for _ in range(BATCHES):
            batch = collator(next(features))
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = peer(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def _peer(folder: Path, case: str) -> Any:
    import transformers as hf

    kind: Any = hf.BertForMaskedLM if case == "masks" else hf.BertForPreTraining
    return kind.from_pretrained(folder / "hub", attn_implementation="sdpa")


def _epochs(data: MaskedCorpus) -> Iterator[Any]:
    for epoch in count():
        yield from data.batches(epoch, 0)


def _features(data: MaskedCorpus) -> Iterator[list[dict[str, Any]]]:
    """The rows of each batch as a script keeps them. A set of them is made before, as scripts do, and read
    again and again."""
    made = []
    for _, rows in zip(range(8 * BATCHES), _epochs(data), strict=False):
        texts = [data.rows.text(data.corpus, row) for row in rows.tolist()]
        features = []
        for text in texts:
            one: dict[str, Any] = {
                "input_ids": text.ids.tolist(),
                "token_type_ids": text.segments.tolist(),
            }
            if text.label != IGNORE:
                one["next_sentence_label"] = text.label
            features.append(one)
        made.append(features)
    while True:
        yield from made


@torch.no_grad()
def check_same_loss(data: MaskedCorpus, folder: Path, case: str) -> None:
    rows = next(data.batches(0, 0))
    batch: MaskedBatch = data.load(rows, rows)
    ours = data.objective()(load_run(folder / "run", "cpu").model, batch)
    labels = {} if case == "masks" else {"next_sentence_label": batch.labels}
    theirs = _peer(folder, case).eval()(
        input_ids=batch.tokens.where(batch.tokens >= 0, PAD),
        attention_mask=(batch.tokens >= 0).long(),
        token_type_ids=batch.segments,
        labels=batch.targets,
        **labels,
    )
    assert abs(float(ours.total / ours.count) - float(theirs.loss)) < 1e-4, "the losses must agree"


def measure(files: list[str], case: str, rows: int, rounds: int, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare(files, folder, case, rows, dtype)
        if dtype == "float32":
            check_same_loss(data, folder, case)
        first = data.load(*[next(data.batches(0, 0))] * 2)
        padding = 1 - float((first.tokens >= 0).float().mean())
        ways = {OURS: our_steps(data, folder), PEER: their_steps(data, folder, case)}
        timing = interleaved(ways, rounds=rounds)
    return {
        "case": case,
        "padding": padding,
        "vocabulary": data.tokenizer.vocabulary_size,
        "milliseconds": {way: 1000 * timing.median(way) / BATCHES for way in (OURS, PEER)},
        "ratio": timing.ratio(OURS, PEER)._asdict(),
        "waited": timing.waited,
    }


def main() -> None:
    """Measures both and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    points = [measure(given.files, case, given.rows, given.rounds, given.dtype) for case in CASES]
    rows = [
        [
            point["case"],
            f"{point['padding']:.0%}",
            *(f"{point['milliseconds'][way]:,.0f}" for way in (OURS, PEER)),
            "{median:.2f} ({low:.2f} to {high:.2f})".format(**point["ratio"]),
            f"{REQUIRED}",
            "yes" if point["ratio"]["median"] >= REQUIRED else "no",
        ]
        for point in points
    ]
    waited = max(point["waited"] for point in points)
    header = ["rows", "padding", "ms a step", "transformers'", "ratio", "required", "passes"]
    text = (
        f"A step of bert:small (vocabulary {points[0]['vocabulary']:,}, {given.dtype}, batches of"
        f" {given.rows} rows of 128 tokens, {given.threads} threads) beside transformers with its"
        f" collator.\n\n{report.table(header, rows)}\n\n`python -m benchmarks.masked_lm FILES`,"
        f" {given.rounds} rounds. It waited for a core for {waited:.0%} of its time."
    )
    print(text)
    if given.write:
        report.publish("masked_lm", {"points": points}, f"## Masked language models\n\n{text}")


if __name__ == "__main__":
    main()
