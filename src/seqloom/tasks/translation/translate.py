"""Texts through a model and back to text: what `predict`, `evaluate` and the validation of training share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import nn

from seqloom.config import DecodeConfig
from seqloom.data.batching.pair_batches import (
    TranslationBatch,
    batch_ends,
    pair_batch,
    source_batch,
    special_token_counts,
)
from seqloom.decoding.generate import generate
from seqloom.decoding.hypotheses import DecodingStep
from seqloom.decoding.string_constraints import cut_at
from seqloom.errors import UsageError
from seqloom.long_work import LongWork
from seqloom.packed_weights import packed_weights
from seqloom.protocols import (
    Decodable,
    EncoderDecoder,
    SpecialIds,
    Tokenizer,
    context_of,
    device_of,
    read_source,
)
from seqloom.runs.decoding_options import generation_options, require_hypotheses
from seqloom.shapes import on_device


@runtime_checkable
class HasTarget(Protocol):
    """A tokenizer of two languages: its own is that of the source."""

    target: Tokenizer


class DecodedText(NamedTuple):
    """An output for an input."""

    text: str
    score: float | None
    """Σ log p / length^α, of a sample Σ log p; None for a blank or skipped input, which the model does not
    read."""
    finished: bool
    """False where it reached the maximum length."""


@packed_weights()
def decode_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    decode: DecodeConfig,
    watch: Callable[[DecodingStep], None] | None = None,
    work: LongWork | None = None,
) -> list[list[DecodedText]]:
    """For each text its `n_best` outputs, best first, or samples in order; a blank text gives one empty
    output.

    Texts of similar length are decoded together; the order of the answers is that of the texts. `watch` sees
    each step; `work` counts the texts.
    """
    sources, special_ids = tokenizer.encode(texts), tokenizer.special_ids
    outputs = [[DecodedText("", None, True)] for _ in texts]
    nonblank = [i for i, text in enumerate(texts) if text.strip()]
    nonblank.sort(key=lambda i: (len(sources[i]), i))
    options = generation_options(decode, tokenizer)
    decodable = cast(Decodable, model)
    for first in range(0, len(nonblank), decode.batch_rows):
        rows = nonblank[first : first + decode.batch_rows]
        if work is not None:
            work.add(len(rows))
        batch = source_batch([sources[i] for i in rows], special_ids).to(device_of(model))
        with torch.inference_mode():
            state = read_source(model, batch)
        lengths = [longest_output(model, len(sources[i]), decode, special_ids) for i in rows]
        prompts = [[*special_ids.bos]] * len(rows)
        generated = generate(decodable, state, prompts, lengths, options, watch)
        for i, hypotheses in zip(rows, generated, strict=True):
            outputs[i] = []
            for hypothesis in require_hypotheses(hypotheses, options.strategy):
                # what each output is forced to begin with may be text
                written = [*special_ids.bos[1:], *hypothesis.tokens]
                text = cut_at(tokenizer.decode(written), decode.stop)
                outputs[i].append(DecodedText(text, hypothesis.score, hypothesis.finished))
    return outputs


def longest_output(
    model: nn.Module, source: int, decode: DecodeConfig, special_ids: SpecialIds
) -> int:
    """New tokens at most, the end mark counted, for a source of so many ids; no more than the positions of
    the decoder allow, which a language model shares with the source. Raises UsageError if that fills
    them."""
    wanted = decode.max_length or 2 * source + 20
    context = context_of(model)
    if context is None:
        return wanted
    given = len(special_ids.bos)
    if not isinstance(model, EncoderDecoder):
        given += source + len(special_ids.prefix) + len(special_ids.suffix)
        if given > context:
            raise UsageError(
                f"the model reads {context:,} tokens, a source and what it writes together, but this source"
                f" has {given:,}; shorten it, or train with a larger model.context"
            )
    return min(wanted, context + 1 - given)  # the last token is not read


def target_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer of the texts that a model writes: another one where the two languages have pieces of
    their own (Marian)."""
    return tokenizer.target if isinstance(tokenizer, HasTarget) else tokenizer


def batches_of_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], device: torch.device, budget: int = 8192
) -> Iterator[TranslationBatch]:
    """Pairs as batches for scoring, longest together, within a budget of tokens."""
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = target_tokenizer(tokenizer).encode([target for _, target in pairs])
    pairs_of_ids = zip(sources, targets, strict=True)
    lengths = np.array([[len(source), len(target)] for source, target in pairs_of_ids]).reshape(
        -1, 2
    ) + special_token_counts(tokenizer.special_ids)
    order = lengths.sum(axis=1).argsort(kind="stable")
    first = 0
    for end in batch_ends(lengths[order, 0], lengths[order, 1], budget):
        rows = order[first:end]
        batch = pair_batch(
            [sources[i] for i in rows], [targets[i] for i in rows], tokenizer.special_ids
        )
        yield on_device(batch, device)
        first = end
