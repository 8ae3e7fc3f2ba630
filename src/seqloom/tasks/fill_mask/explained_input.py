"""A text as a masked language model reads it, for its pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.data.batching.pair_batches import encoder_ids
from seqloom.errors import UsageError, printable
from seqloom.models.bert import Bert
from seqloom.protocols import EncodedBatch, StoredTokenizer, device_of
from seqloom.tasks.explain.look import Look
from seqloom.tasks.explain.model_input import ModelInput, Score, Word, single_row, words_of


def explained_input(bert: Bert, tokenizer: StoredTokenizer, text: str, look: Look) -> ModelInput:
    """What is explained is the token at the (first) mask of the text."""
    special_ids, (ids,) = tokenizer.special_ids, tokenizer.encode_masked([text])
    row = encoder_ids(ids, special_ids)
    batch = single_row(row, device_of(bert))
    if special_ids.mask in row:
        batch = batch._replace(places=batch.tokens.new_tensor([[row.index(special_ids.mask)]]))

    def logits(batch: EncodedBatch) -> Tensor:
        """Of the mask: `(rows, vocabulary)`."""
        hidden = bert.encode_batch(batch)
        return bert.logits(hidden[torch.arange(len(hidden)), batch.places[:, 0]])

    def score() -> Score:
        if not batch.places.shape[1]:
            raise UsageError(
                "what is explained is the token at a mask, but the text has none; write one, or add --show"
                " attention"
            )
        with torch.inference_mode():
            target, foil = logits(batch)[0].topk(2).indices.tolist()
        if look.target is not None:
            target = _token(tokenizer, look.target)
        if look.foil is not None:
            foil = _token(tokenizer, look.foil)
        names = [printable(name.strip()) for name in tokenizer.pieces([target, foil])]
        asked = f"logit of {names[0]} - logit of {names[1]}, at the mask"
        return Score(asked, lambda rows: logits(rows)[:, target] - logits(rows)[:, foil])

    return ModelInput(
        model=bert,
        tokenizer=tokenizer,
        batch=batch,
        sides={"self": tokenizer.pieces(row)},
        read=lambda: bert.encode_batch(batch),
        words=lambda: _words(tokenizer, text, ids),
        score=score,
    )


def _words(tokenizer: StoredTokenizer, text: str, ids: Sequence[int]) -> list[Word]:
    """The words between masks."""
    mask, first = tokenizer.special_ids.mask, len(tokenizer.special_ids.prefix)
    ends = [index for index, token_id in enumerate(ids) if token_id == mask] + [len(ids)]
    parts = [text] if mask is None else text.split(tokenizer.pieces([mask])[0])
    words: list[Word] = []
    begin = 0
    for part, end in zip(parts, ends, strict=True):
        words += words_of(tokenizer, part.rstrip(" "), end - begin, first=first + begin)
        begin = end + 1
    return words


def _token(tokenizer: StoredTokenizer, text: str) -> int:
    """The id of a word that is one token. Raises UsageError if it is not."""
    for written in (f" {text}", text):
        (ids,) = tokenizer.encode([written])
        if len(ids) == 1:
            return ids[0]
    raise UsageError(
        f"a target must be one token at a mask, but {printable(repr(text))} is {len(ids)}"
    )
