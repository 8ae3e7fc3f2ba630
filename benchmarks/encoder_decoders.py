"""Writing with an encoder-decoder beside transformers' with the same weights: T5 and Marian, greedy and beam
4.

    python -m benchmarks.encoder_decoders [--families t5 marian] [--ways greedy beam4] [--batches 1 8 32]
    [--rounds 5] [--write]

4 + 4 layers, width 256, 4 heads, vocabulary 8,000, sources of 32 tokens, 64 new ones for each, float32. The
peer is `generate` with a cache and scaled_dot_product_attention. Greedy and beam texts must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.hub_models import same_weights, sharpened
from benchmarks.measuring import interleaved
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import BeamSearch

OURS, PEER = "seqloom", "transformers"
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


def measure(family: str, way: str, batch: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of each, and our ratio to the peer's."""
    torch.manual_seed(0)
    peer = sharpened(FAMILIES[family]())
    source = torch.randint(
        4, VOCABULARY - 1, (batch, SOURCE), generator=torch.Generator().manual_seed(1)
    )
    begin = int(peer.config.decoder_start_token_id)
    runs = {
        OURS: our_run(same_weights(peer), way, source, begin),
        PEER: peer_run(peer, way, source),
    }
    assert runs[OURS]() == runs[PEER](), "the texts must agree"
    timing = interleaved(runs, rounds=rounds)
    return {
        "family": family,
        "way": way,
        "batch": batch,
        "ratio": timing.ratio(OURS, PEER)._asdict(),
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
            *(f"{point['tokens_per_second'][name]:,.0f}" for name in (OURS, PEER)),
            "{median:.2f} ({low:.2f} to {high:.2f})".format(**point["ratio"]),
            f"{REQUIRED}",
            "yes" if point["ratio"]["median"] >= REQUIRED else "no",
        ]
        for point in points
    ]
    header = [
        "family",
        "way",
        "batch",
        "tokens/s",
        "transformers'",
        "ratio to transformers",
        "required",
        "passes",
    ]
    waited = max(point["waited"] for point in points)
    text = (
        f"Encoder-decoders ({LAYERS} + {LAYERS} layers, width {WIDTH}, vocabulary {VOCABULARY:,}, sources of"
        f" {SOURCE}, {NEW} new tokens, float32) beside transformers with the same weights; the texts agree"
        f" token by token.\n\n{report.table(header, rows)}\n\n`python -m benchmarks.encoder_decoders`,"
        f" {arguments.rounds} rounds. It waited for a core for {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("encoder_decoders", {"decoding": points}, f"## Encoder-decoders\n\n{text}")


if __name__ == "__main__":
    main()
