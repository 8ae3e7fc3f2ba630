"""A text as an encoder-decoder (or a language model of pairs) reads it, and what it writes, for its
pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.data.batching.pair_batches import decoder_ids, encoder_ids
from seqloom.layers.recurrent.stack import RecurrentStack
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import (
    EncodedBatch,
    EncoderDecoder,
    device_of,
    last_hidden,
    read_source,
)
from seqloom.runs.run_folder import LoadedRun
from seqloom.shapes import IGNORE
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import (
    ModelInput,
    Predictions,
    Score,
    single_row,
    words_of,
)
from seqloom.tasks.language_modeling.explained_input import sums_of_log_probs
from seqloom.tasks.translation.translate import decode_texts, target_tokenizer


def explained_input(run: LoadedRun, text: str, look: Look, decode: DecodeConfig) -> ModelInput:
    """The text, and `look.target`, by default the model's own output."""
    model, tokenizer = run.model, run.tokenizer
    special_ids, (source,) = tokenizer.special_ids, tokenizer.encode([text])
    device = device_of(model)
    target = look.target
    if target is None:
        target = decode_texts(run.decoder(decode), tokenizer, [text], decode)[0][0].text
    target_ids = _ids(run, target)
    batch = single_row(encoder_ids(source, special_ids), device)
    inputs = torch.tensor([target_ids[:-1]], device=device)
    source_rows = _source(run, batch.tokens)

    def write() -> Tensor:
        logits: Tensor = model(inputs, read_source(model, source_rows))[0]
        return logits

    def log_probs() -> Tensor:
        with torch.inference_mode():
            return write()[0].float().log_softmax(dim=-1).cpu()

    source_pieces = tokenizer.pieces(encoder_ids(source, special_ids))
    written = target_tokenizer(tokenizer).pieces(target_ids)
    two_parts = isinstance(model, EncoderDecoder)
    sides = {
        "encoder": source_pieces,
        "decoder": written[:-1],
        "written": written[len(special_ids.bos) :],
    }
    if not two_parts:
        sides = {"self": [*source_pieces, *written[:-1]]}
    return ModelInput(
        model=model,
        tokenizer=tokenizer,
        batch=batch,
        sides=sides,
        read=write,
        answer=target,
        words=lambda: words_of(tokenizer, text, len(source), first=len(special_ids.prefix)),
        score=lambda: _score(run, target_ids, target, look),
        next_tokens=Predictions("decoder" if two_parts else "self", log_probs, target_ids[1:]),
        numbers={"output": target},
    )


def _ids(run: LoadedRun, text: str) -> list[int]:
    """A text as the decoder reads and writes it, with its special tokens."""
    (ids,) = target_tokenizer(run.tokenizer).encode([text])
    return decoder_ids(ids, run.tokenizer.special_ids)


def _source(run: LoadedRun, rows: Tensor) -> Tensor:
    """Rows with -1 at padding as the model reads them."""
    return rows.where(rows >= 0, run.tokenizer.special_ids.pad)


def _score(run: LoadedRun, target: Sequence[int], text: str, look: Look) -> Score:
    """log p of the target, minus that of a foil where there is one."""
    targets, asked = [target], f"log p({text})"
    if look.foil is not None:
        targets.append(_ids(run, look.foil))
        asked += f" - log p({look.foil})"

    def difference(batch: EncodedBatch) -> Tensor:
        source = _source(run, batch.tokens)
        totals = [_log_prob(run, source, ids) for ids in targets]
        return totals[0] - totals[1] if len(totals) > 1 else totals[0]

    return Score(asked, difference)


def _log_prob(run: LoadedRun, source: Tensor, ids: Sequence[int]) -> Tensor:
    """log p of a text for each source `(rows,)`; of its special tokens only the end counts."""
    forced = len(run.tokenizer.special_ids.bos) - 1
    wanted = [IGNORE] * forced + list(ids[1 + forced :])
    rows = torch.tensor([list(ids[:-1])] * len(source), device=source.device)
    targets = torch.tensor([wanted] * len(source), device=source.device)
    state = read_source(run.model, source)
    return sums_of_log_probs(run.model, rows, targets, state)


def source_vector(run: LoadedRun, text: str) -> Tensor:
    """One vector of a source `(width,)` (`Translator.text_vector`)."""
    model = run.model
    special_ids, (ids,) = run.tokenizer.special_ids, run.tokenizer.encode([text])
    row = single_row(encoder_ids(ids, special_ids), device_of(model)).tokens
    seen: list[Any] = []
    encoders = [
        module for name, module in model.named_modules() if name.split(".")[-1] == "encoder"
    ]
    if not encoders:
        return cast("Tensor", last_hidden(model, row))
    handle = encoders[0].register_forward_hook(lambda _, given, output: seen.append(output))
    try:
        # a compiled encoder calls no hooks
        with PackedWeights(compiled=False):
            read_source(model, row)
    finally:
        handle.remove()
    outputs, states = seen[0]
    if isinstance(encoders[0], RecurrentStack):
        last: Tensor = states[0][0, -2 if encoders[0].config.bidirectional else -1 :]
        return last.flatten()
    mean: Tensor = outputs[0].mean(dim=0)
    return mean
