"""Writing with an encoder-decoder beside transformers and CTranslate2 with the same weights: T5 and Marian,
greedy and beam 4, in float32 and int8.

    python -m benchmarks.encoder_decoders [--families t5 marian] [--ways greedy beam4] [--batches 1 8 32]
    [--rounds 5] [--threads 2] [--write]

4 + 4 layers, width 256, 4 heads, vocabulary 8,000, sources of 32 tokens, 64 new ones for each. transformers
is `generate` in float32 with a cache and scaled_dot_product_attention; greedy and beam texts must agree with
ours in float32. CTranslate2 (`pip install ctranslate2`) takes part where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.hub_models import same_weights, sharpened
from benchmarks.measuring import interleaved
from benchmarks.quantised_generation import OTHER, OTHER_TYPES
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import BeamSearch
from seqloom.runs.quantised_weights import quantised_model

OURS, PEER = "seqloom", "transformers"
RUNS = [
    *(f"{OURS} {storage}" for storage in OTHER_TYPES),
    PEER,
    *(f"{OTHER} {storage}" for storage in OTHER_TYPES),
]
"""Who takes part."""
WIDTH, LAYERS, HEADS, VOCABULARY, SOURCE, NEW = 256, 4, 4, 8000, 32, 64
REQUIRED = 1.4
EOS = 1


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    options: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": EOS}
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=HEADS,
        **options,
    )
    return T5ForConditionalGeneration(config)


def marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        max_position_embeddings=512,
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="swish",
    )
    return MarianMTModel(config)


FAMILIES: dict[str, Callable[[], Any]] = {"t5": t5, "marian": marian}
WIDTHS = {"greedy": 1, "beam4": 4}


def our_run(model: Any, way: str, source: Tensor, begin: int) -> Callable[[], list[list[int]]]:
    strategy = BeamSearch(width=WIDTHS[way])

    def run() -> list[list[int]]:
        with torch.inference_mode():
            state = model.encode(source)
        found = generate(
            model,
            state,
            [[begin]] * len(source),
            [NEW] * len(source),
            GenerationOptions(strategy=strategy, eos=EOS, pad=-1, processors=[forbid([EOS])]),
        )
        return [hypotheses[0].tokens for hypotheses in found]

    return run


def peer_run(model: Any, way: str, source: Tensor) -> Callable[[], list[list[int]]]:
    def run() -> list[list[int]]:
        with torch.inference_mode():
            made = model.generate(
                source,
                attention_mask=torch.ones_like(source),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                num_beams=WIDTHS[way],
                do_sample=False,
            )
        texts: list[list[int]] = made[:, 1:].tolist()
        return texts

    return run


def converted(family: str, peer: Any) -> str:
    """The folder of the same model for CTranslate2; a token is its number as a word."""
    from ctranslate2.converters import transformers as loaders

    loader = {"t5": loaders.T5Loader, "marian": loaders.MarianMTLoader}[family]()
    with torch.no_grad():
        spec = loader.get_model_spec(peer)
    # the loader drops the row of Marian's <pad>
    words = [str(token) for token in range(VOCABULARY - (family == "marian"))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    tokenizer = SimpleNamespace(
        eos_token=str(EOS), unk_token="3", pad_token="0", convert_ids_to_tokens=str
    )
    loader.set_config(spec.config, peer, tokenizer)
    folder = tempfile.mkdtemp()
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)
    return folder


def other_run(folder: str, storage: str, way: str, source: Tensor) -> Callable[[], Any]:
    import ctranslate2

    translator = ctranslate2.Translator(
        folder,
        device="cpu",
        compute_type=OTHER_TYPES[storage],
        inter_threads=1,
        intra_threads=torch.get_num_threads(),
    )
    texts = [[str(token) for token in row] for row in source.tolist()]

    def run() -> Any:
        found = translator.translate_batch(
            texts, beam_size=WIDTHS[way], max_decoding_length=NEW, min_decoding_length=NEW
        )
        assert all(len(one.hypotheses[0]) >= NEW - 1 for one in found)
        return found

    return run


def measure(family: str, way: str, batch: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of each, and our ratios to the peers'."""
    torch.manual_seed(0)
    peer = sharpened(FAMILIES[family]())
    source = torch.randint(
        4, VOCABULARY - 1, (batch, SOURCE), generator=torch.Generator().manual_seed(1)
    )
    begin = int(peer.config.decoder_start_token_id)
    model = same_weights(peer)
    runs: dict[str, Callable[[], Any]] = {
        f"{OURS} float32": our_run(model, way, source, begin),
        f"{OURS} int8": our_run(quantised_model(model, "int8"), way, source, begin),
        PEER: peer_run(peer, way, source),
    }
    assert runs[f"{OURS} float32"]() == runs[PEER](), "the texts must agree"
    if importlib.util.find_spec("ctranslate2") is not None:
        folder = converted(family, peer)
        for storage in OTHER_TYPES:
            runs[f"{OTHER} {storage}"] = other_run(folder, storage, way, source)
    timing = interleaved(runs, rounds=rounds)
    return {
        "family": family,
        "way": way,
        "batch": batch,
        "ratio": timing.ratio(f"{OURS} float32", PEER)._asdict(),
        "ratios": {
            storage: timing.ratio(f"{OURS} {storage}", f"{OTHER} {storage}")._asdict()
            for storage in OTHER_TYPES
            if f"{OTHER} {storage}" in runs
        },
        "tokens_per_second": {name: batch * NEW / timing.median(name) for name in runs},
        "waited": timing.waited,
    }


def main() -> None:
    """Measures what was asked for and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--ways", nargs="+", default=list(WIDTHS), choices=WIDTHS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    points: list[dict[str, Any]] = [
        measure(family, way, batch, arguments.rounds)
        for family in arguments.families
        for way in arguments.ways
        for batch in arguments.batches
    ]
    rows = [
        [
            point["family"],
            point["way"],
            str(point["batch"]),
            *(
                f"{point['tokens_per_second'][name]:,.0f}"
                if name in point["tokens_per_second"]
                else ""
                for name in RUNS
            ),
            *(
                "{median:.2f} ({low:.2f} to {high:.2f})".format(**ratio)
                for ratio in (point["ratio"], *point["ratios"].values())
            ),
        ]
        for point in points
    ]
    header = [
        "family",
        "way",
        "batch",
        *RUNS,
        "float32 / transformers",
        *(f"{storage} / {OTHER}'s" for storage in points[0]["ratios"]),
    ]
    waited = max(point["waited"] for point in points)
    text = (
        f"Tokens a second with encoder-decoders ({LAYERS} + {LAYERS} layers, width {WIDTH}, vocabulary"
        f" {VOCABULARY:,}, sources of {SOURCE}, {NEW} new tokens, {arguments.threads} thread(s)). In float32"
        f" the texts agree with those of transformers token by token; required of float32 is {REQUIRED}"
        f" times transformers.\n\n{report.table(header, rows)}\n\n`python -m benchmarks.encoder_decoders`,"
        f" {arguments.rounds} rounds. It waited for a core for {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("encoder_decoders", {"decoding": points}, f"## Encoder-decoders\n\n{text}")


if __name__ == "__main__":
    main()
