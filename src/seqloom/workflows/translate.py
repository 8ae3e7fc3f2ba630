"""Texts through a model and back to text: what `predict`, `evaluate` and the validation of training share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from seqloom.config import DecodeConfig
from seqloom.data.batches import TranslationBatch, cuts, pair_batch, source_batch
from seqloom.decoding.generate import generate
from seqloom.decoding.live import Step
from seqloom.decoding.spelled import cut
from seqloom.protocols import Tokenizer, device_of
from seqloom.text.special import BOS, EOS, PAD
from seqloom.workflows.decoding import decoding_of, found_or_refused


class Output(NamedTuple):
    """One text that a model made of one input."""

    text: str
    score: float
    """Σ log p / length^α, of a sample Σ log p; 0 for the blank input, which no model reads."""
    finished: bool
    """False where the maximum length cut it off."""


def decode_texts(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], decode: DecodeConfig, watch: Callable[[Step], None] | None = None
) -> list[list[Output]]:
    """For each text its `n_best` outputs, best first, or samples in order; a blank text gives one empty output.

    Texts of like length are decoded together; the order of the answers is that of the texts. `watch` sees each step.
    """
    sources = tokenizer.encode(texts)
    outputs = [[Output("", 0.0, True)] for _ in texts]
    waiting = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: (len(sources[i]), i))
    strategy, rules, stop = decoding_of(decode, tokenizer)
    encoder_decoder: Any = model
    for at in range(0, len(waiting), decode.batch_rows):
        rows = waiting[at : at + decode.batch_rows]
        with torch.inference_mode():
            state = encoder_decoder.encode(source_batch([sources[i] for i in rows]).to(device_of(model)))
        found = generate(
            encoder_decoder,
            state,
            [[BOS]] * len(rows),
            strategy=strategy,
            max_new_tokens=[decode.max_length or 2 * len(sources[i]) + 20 for i in rows],
            eos=EOS,
            pad=PAD,
            rules=rules,
            stop=stop,
            watch=watch,
        )
        for i, hypotheses in zip(rows, found, strict=True):
            kept = found_or_refused(hypotheses, strategy)
            outputs[i] = [Output(cut(tokenizer.decode(h.tokens), decode.stop), h.score, h.finished) for h in kept]
    return outputs


def batches_of_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], device: torch.device, budget: int = 8192
) -> Iterator[TranslationBatch]:
    """Pairs as batches for scoring, longest together, within a budget of tokens."""
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode([target for _, target in pairs])
    lengths = np.array([[len(source) + 1, len(target) + 1] for source, target in zip(sources, targets, strict=True)]).reshape(-1, 2)
    order = lengths.sum(axis=1).argsort(kind="stable")
    first = 0
    for end in cuts(lengths[order, 0], lengths[order, 1], budget):
        batch = pair_batch([sources[i] for i in order[first:end]], [targets[i] for i in order[first:end]])
        yield TranslationBatch(*(part.to(device) for part in batch))
        first = end
