"""Decoding with a GPT whose weights are stored in float32, bfloat16 and int8, beside transformers and
CTranslate2: greedy and beam 4.

    python -m benchmarks.quantised_generation [--ways greedy beam4] [--batches 1 8] [--rounds 5] [--threads 1]
    [--sizes small gpt2] [--write]

small: width 256, 4 layers, 4 heads, vocabulary 8,000; gpt2: 768, 12, 12, 50,257. Prompts of 16 tokens, 128
new ones for each, all with the same weights. CTranslate2 (`pip install ctranslate2`) takes part where it is
installed. Prints a table; with
--write puts it into docs/benchmarks.md, and the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import importlib.util
import tempfile
from typing import Any, get_args

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks import report
from benchmarks.generation import (
    BOS,
    EOS,
    NEW,
    PAD,
    Run,
    copy_weights,
    our_run,
    parsed,
    peer_run,
    prompts,
)
from benchmarks.gpt import CONTEXT, HEADS, LAYERS, PEER, VOCABULARY, WIDTH
from benchmarks.measuring import interleaved
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.packed_weights import Storage
from seqloom.runs.quantised_weights import QuantisedModel

SIZES: dict[str, dict[str, Any]] = {
    "small": {"vocabulary_size": VOCABULARY, "width": WIDTH, "layers": LAYERS, "heads": HEADS},
    "gpt2": {"vocabulary_size": 50_257, "width": 768, "layers": 12, "heads": 12},
}
OTHER = "CTranslate2"
OTHER_TYPES = {"float32": "float32", "int8": "int8_float32"}


def our_model(size: str) -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(context=CONTEXT, activation="gelu-tanh", documents="joined", **SIZES[size])
    model = GPT(config)
    model.train(False)
    with torch.no_grad():
        model.embedding.weight.mul_(8)
    return model


def peer_model(ours: GPT) -> Any:
    c = ours.config
    config = GPT2Config(
        vocab_size=c.vocabulary_size,
        n_positions=c.context,
        n_embd=c.width,
        n_layer=c.layers,
        n_head=c.heads,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model: Any = GPT2LMHeadModel(config)
    model.train(False)
    copy_weights(ours, model)
    return model


def converted(peer: Any) -> str:
    """The folder of the same model for CTranslate2; a token is its number as a word."""
    import ctranslate2

    folder = tempfile.mkdtemp()
    peer.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(peer.config.vocab_size)}, "3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped: Any = PreTrainedTokenizerFast
    wrapped(
        tokenizer_object=words,
        bos_token=str(BOS),
        eos_token=str(EOS),
        pad_token=str(PAD),
        unk_token="3",
    ).save_pretrained(folder)
    made: str = ctranslate2.converters.TransformersConverter(folder).convert(f"{folder}/converted")
    return made


def other_run(folder: str, storage: str, way: str, read: Tensor) -> Run:
    import ctranslate2

    generator = ctranslate2.Generator(
        folder,
        device="cpu",
        compute_type=OTHER_TYPES[storage],
        inter_threads=1,
        intra_threads=torch.get_num_threads(),
    )
    texts = [[str(token) for token in row] for row in read.tolist()]
    width = 4 if way == "beam4" else 1

    def run() -> list[list[int]]:
        found = generator.generate_batch(
            texts,
            beam_size=width,
            max_length=NEW,
            min_length=NEW,
            end_token=[str(EOS)],
            include_prompt_in_result=False,
        )
        return [one.sequences_ids[0] for one in found]

    return run


def measure(size: str, way: str, batch: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of each."""
    model = our_model(size)
    peer, read = peer_model(model), prompts(batch)
    runs = {PEER: peer_run(peer, way, read)}
    for storage in get_args(Storage):
        decoder = model if storage == "float32" else QuantisedModel(model, storage)
        runs[storage] = our_run(decoder, way, read)
    if importlib.util.find_spec("ctranslate2") is not None:
        folder = converted(peer)
        for storage in OTHER_TYPES:
            runs[f"{OTHER} {storage}"] = other_run(folder, storage, way, read)
    if way == "greedy":
        assert runs["float32"]() == runs[PEER](), "the greedy texts must agree"
    timing = interleaved(runs, rounds=rounds)
    ratios = {
        storage: timing.ratio(storage, f"{OTHER} {storage}")._asdict()
        for storage in OTHER_TYPES
        if f"{OTHER} {storage}" in runs
    }
    return {
        "size": size,
        "way": way,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "ratios": ratios,
        "tokens_per_second": {name: batch * NEW / timing.median(name) for name in runs},
        "waited": timing.waited,
    }


def shown(point: dict[str, Any]) -> list[str]:
    speed = point["tokens_per_second"]
    names = [PEER, *get_args(Storage), *(f"{OTHER} {storage}" for storage in OTHER_TYPES)]
    return [
        point["size"],
        point["way"],
        str(point["batch"]),
        *(f"{speed[name]:,.0f}" if name in speed else "" for name in names),
        *(
            f"{point['ratios'][storage]['median']:.2f}" if storage in point["ratios"] else ""
            for storage in OTHER_TYPES
        ),
    ]


HEADER = [
    *("size", "way", "batch", "transformers", "float32", "bfloat16", "int8"),
    *("CTranslate2 float32", "CTranslate2 int8", "float32 / CTranslate2's", "int8 / its int8"),
]


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed(__doc__, batches=[1, 8], threads=1, sizes=[*SIZES])
    torch.set_num_threads(arguments.threads)
    points = [
        measure(size, way, batch, arguments.rounds)
        for size in arguments.sizes
        for way in arguments.ways
        for batch in arguments.batches
    ]
    text = (
        f"Tokens a second with a GPT, {arguments.threads} thread(s), prompts of 16, {NEW} new tokens; in the"
        f" middle seqloom by `decode.weights`.\n\n{report.table(HEADER, [shown(one) for one in points])}"
    )
    waited = max(point["waited"] for point in points)
    text += (
        f"\n\n`python -m benchmarks.quantised_generation`, {arguments.rounds} rounds. It waited for a core"
        f" for {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        published = {"quantised decoding": points}
        report.publish("quantised_generation", published, f"## Weights in fewer bits\n\n{text}")


if __name__ == "__main__":
    main()
