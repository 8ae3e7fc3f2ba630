"""Decoding with a GPT beside transformers' GPT-2 of the same sizes: greedy, sampling and beam 4.

    python -m benchmarks.generation [--ways greedy sample beam4] [--batches 1 8 32] [--rounds 5] [--threads 2]
    [--write]

Width 256, 4 layers, 4 heads, vocabulary 8,000, prompts of 16 tokens, 128 new ones for each, float32. Sampling
is from the 50 likeliest. The peer is `GPT2LMHeadModel.generate` with a cache, scaled_dot_product_attention
and the same weights; a plain loop in torch with a preallocated cache stands beside both, as what one would
write by hand. Both greedy texts must agree. Prints a table; with --write puts it into docs/benchmarks.md, and
the figures into docs/results/benchmarks.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import report
from benchmarks.gpt import CONTEXT, HEADS, LAYERS, OURS, PEER, VOCABULARY, WIDTH, transformers_model
from benchmarks.measuring import interleaved
from seqloom.config import DecodeConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import logits_processors
from seqloom.decoding.strategies import BeamSearch, Sampling, Strategy
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.protocols import Decodable

PLAIN = "plain loop"
PROMPT, NEW, TOP_K = 16, 128, 50
REQUIRED = {"greedy": 1.4, "sample": 1.4, "beam4": 1.6}
Run = Callable[[], list[list[int]]]
"""Makes the texts: the new tokens of each prompt."""
BOS, EOS, PAD = 1, 2, 0


def prompts(batch: int) -> Tensor:
    return torch.randint(
        16, VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(1)
    )


def our_model() -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary_size=VOCABULARY,
        context=CONTEXT,
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        activation="gelu-tanh",
        documents="joined",
    )
    model = GPT(config).eval()
    # sharper than at the start, so that the likeliest token is far from the next
    with torch.no_grad():
        model.embedding.weight.mul_(8)
    return model


def peer_model(ours: GPT) -> Any:
    """The same weights in transformers."""
    model = transformers_model(pad_token_id=PAD).eval()
    copy_weights(ours, model)
    return model


def copy_weights(ours: GPT, model: Any) -> None:
    """Into a `GPT2LMHeadModel` of the same sizes."""
    mine = {name: value.clone() for name, value in ours.state_dict().items()}
    body = model.transformer
    with torch.no_grad():
        body.wte.weight.copy_(mine["embedding.weight"])
        assert ours.positions is not None
        body.wpe.weight.copy_(next(iter(ours.positions.parameters())))
        for layer, block in enumerate(body.h):
            at = f"stack.blocks.{layer}."
            for theirs, name in (
                (block.ln_1, "attention_norm"),
                (block.ln_2, "feed_forward_norm"),
                (block.attn.c_attn, "attention.query_key_value"),
                (block.attn.c_proj, "attention.output"),
                (block.mlp.c_fc, "feed_forward.hidden"),
                (block.mlp.c_proj, "feed_forward.output"),
            ):
                weight = mine[f"{at}{name}.weight"]
                # Conv1D keeps a map the other way round
                theirs.weight.copy_(weight.T if weight.dim() == 2 else weight)
                theirs.bias.copy_(mine[f"{at}{name}.bias"])
        body.ln_f.weight.copy_(mine["stack.norm.weight"])
        body.ln_f.bias.copy_(mine["stack.norm.bias"])


def our_run(model: Decodable, way: str, read: Tensor) -> Run:
    strategies: dict[str, Strategy] = {
        "greedy": BeamSearch(width=1),
        "beam4": BeamSearch(width=4),
        "sample": Sampling(seed=0),
    }
    decode = DecodeConfig(strategy="sample", top_k=TOP_K) if way == "sample" else DecodeConfig()
    # without an end: 128 tokens each, as the peer is told to make
    rules = logits_processors(decode, [EOS], EOS)
    texts, limits = read.tolist(), [NEW] * len(read)

    def run() -> list[list[int]]:
        found = generate(
            model,
            None,
            texts,
            limits,
            GenerationOptions(strategy=strategies[way], eos=EOS, pad=PAD, processors=rules),
        )
        return [hypotheses[0].tokens for hypotheses in found]

    return run


def peer_run(model: Any, way: str, read: Tensor) -> Run:
    every: dict[str, dict[str, Any]] = {
        "greedy": {"do_sample": False},
        "sample": {"do_sample": True, "top_k": TOP_K, "temperature": 1.0},
        "beam4": {"num_beams": 4, "do_sample": False},
    }
    options = every[way]

    def run() -> list[list[int]]:
        with torch.inference_mode():
            made = model.generate(
                read,
                attention_mask=torch.ones_like(read),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                pad_token_id=PAD,
                **options,
            )
        texts: list[list[int]] = made[:, PROMPT:].tolist()
        return texts

    return run


def plain_run(model: Any, way: str, read: Tensor) -> Run:
    """What one would write by hand over the peer's modules: one call an operation, the cache allocated at
    once."""
    body = model.transformer

    def step(tokens: Tensor, at: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        rows, steps = tokens.shape
        x = body.wte(tokens) + body.wpe.weight[at : at + steps]
        for layer, block in enumerate(body.h):
            query, key, value = (
                block.attn.c_attn(block.ln_1(x))
                .view(rows, steps, 3, HEADS, -1)
                .permute(2, 0, 3, 1, 4)
            )
            keys[layer][:, :, at : at + steps] = key
            values[layer][:, :, at : at + steps] = value
            mixed = F.scaled_dot_product_attention(
                query,
                keys[layer][:, :, : at + steps],
                values[layer][:, :, : at + steps],
                is_causal=steps > 1,
            )
            x = x + block.attn.c_proj(mixed.transpose(1, 2).flatten(2))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        logits: Tensor = body.ln_f(x[:, -1]) @ body.wte.weight.T
        return logits

    @torch.inference_mode()
    def run() -> list[list[int]]:
        keys, values = (
            [torch.empty(len(read), HEADS, PROMPT + NEW, WIDTH // HEADS) for _ in range(LAYERS)]
            for _ in range(2)
        )
        tokens, at, made = read, 0, []
        for _ in range(NEW):
            logits = step(tokens, at, keys, values)
            logits[:, EOS] = float("-inf")
            at += tokens.shape[1]
            if way == "greedy":
                tokens = logits.argmax(-1, keepdim=True)
            else:
                best, ids = logits.topk(TOP_K)
                tokens = ids.gather(1, torch.multinomial(best.softmax(-1), 1))
            made.append(tokens)
        texts: list[list[int]] = torch.cat(made, 1).tolist()
        return texts

    return run


def measure(way: str, batch: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of each, and our ratio to the peer's."""
    model = our_model()
    peer = peer_model(model)
    read = prompts(batch)
    runs = {OURS: our_run(model, way, read), PEER: peer_run(peer, way, read)}
    if way != "beam4":
        runs[PLAIN] = plain_run(peer, way, read)
    if way == "greedy":
        texts = {name: run() for name, run in runs.items()}
        assert texts[OURS] == texts[PEER], "the greedy texts must agree"
    timing = interleaved(runs, rounds=rounds)
    return {
        "way": way,
        "batch": batch,
        "ratio": timing.ratio(OURS, PEER)._asdict(),
        "tokens_per_second": {name: batch * NEW / timing.median(name) for name in runs},
        "waited": timing.waited,
    }


def shown(point: dict[str, Any]) -> list[str]:
    ratio, speed = point["ratio"], point["tokens_per_second"]
    return [
        point["way"],
        str(point["batch"]),
        f"{speed[OURS]:,.0f}",
        f"{speed[PEER]:,.0f}",
        f"{speed[PLAIN]:,.0f}" if PLAIN in speed else "",
        f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
        f"{REQUIRED[point['way']]}",
        "yes" if ratio["median"] >= REQUIRED[point["way"]] else "no",
    ]


HEADER = [
    "way",
    "batch",
    "tokens/s",
    "transformers'",
    "a plain loop's",
    "ratio to transformers",
    "required",
    "passes",
]


def parsed(
    description: str | None, *, batches: Sequence[int], threads: int, sizes: Sequence[str] = ()
) -> argparse.Namespace:
    """The command line of a benchmark of decoding; `sizes` are those of its models, where it has several."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if sizes:
        parser.add_argument("--sizes", nargs="+", default=sizes[:1], choices=sizes)
    ways = [way for way in REQUIRED if not sizes or way != "sample"]
    parser.add_argument("--ways", nargs="+", default=ways, choices=ways)
    parser.add_argument("--batches", nargs="+", type=int, default=batches)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument(
        "--write", action="store_true", help="publish in docs/, in the place of the last figures"
    )
    return parser.parse_args()


def main() -> None:
    """Measures what was asked for."""
    arguments = parsed(__doc__, batches=[1, 8, 32], threads=2)
    torch.set_num_threads(arguments.threads)
    points = [
        measure(way, batch, arguments.rounds)
        for way in arguments.ways
        for batch in arguments.batches
    ]
    title = (
        f"Decoding with a GPT (width {WIDTH}, {LAYERS} layers, vocabulary {VOCABULARY:,}, prompts of"
        f" {PROMPT}, {NEW} new tokens, float32)"
    )
    text = (
        f"{title} beside transformers with the same"
        f" weights.\n\n{report.table(HEADER, [shown(point) for point in points])}"
    )
    waited = max(point["waited"] for point in points)
    text += (
        f"\n\n`python -m benchmarks.generation`, {arguments.rounds} rounds. It waited for a core for"
        f" {waited:.0%} of its time."
    )
    print(text)
    if arguments.write:
        report.publish("generation", {"decoding": points}, f"## Generation\n\n{text}")


if __name__ == "__main__":
    main()
