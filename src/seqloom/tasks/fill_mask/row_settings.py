"""The rows with masks that the settings of a training ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqloom.config import TrainConfig
from seqloom.data.batching.corpus_windows import WindowPlan
from seqloom.data.encoding.masks import MaskOptions
from seqloom.errors import UsageError
from seqloom.models.bert import BertConfig
from seqloom.models.electra import ElectraConfig
from seqloom.protocols import StoredTokenizer
from seqloom.tasks.denoising.noisy_windows import ends_sentence
from seqloom.tasks.fill_mask.masked_rows import FullWindows, MaskedRows, TextRows
from seqloom.tasks.fill_mask.sentence_pairs import SentencePairs

DENSITY = 0.15
"""Share of the tokens that are chosen (Devlin et al. 2019)."""
GENERATOR_MASKS = 0.85
"""Share of the chosen tokens that an ELECTRA's generator reads as masks; the others stay (google-research/
electra, pretrain_helpers.mask)."""


def masked_rows(
    train: TrainConfig, tokenizer: StoredTokenizer, config: BertConfig | ElectraConfig
) -> MaskedRows:
    """Raises UsageError if the tokenizer has no mask, or a row no room for text."""
    ids = tokenizer.special_ids
    if ids.mask is None:
        raise UsageError(
            "fill-mask needs a tokenizer with a mask, but that of --from has none; start from a masked"
            " language model"
        )
    window = train.window or config.context
    pairs = train.sentence_pairs != "none"
    room = window - len(ids.prefix) - len(ids.suffix) - pairs * len(ids.separator)
    if window > config.context:
        raise UsageError(
            f"train.window must be at most model.context={config.context}, but is {window}"
        )
    if room < 2:
        raise UsageError(
            f"train.window must have room for special tokens and two others, but is {window}; make it longer"
        )
    rows = train.batch_rows or max(train.batch_tokens // window, 1)
    texts: TextRows
    if train.sentence_pairs == "none":
        plan = WindowPlan(seed=train.seed, window=room, rows=rows, fixed=train.static_masks)
        texts = FullWindows(plan=plan, special_ids=ids)
    else:
        texts = SentencePairs(
            kind=train.sentence_pairs,
            seed=train.seed,
            room=room,
            rows=rows,
            static=train.static_masks,
            ends_sentence=np.array([ends_sentence(token) for token in tokenizer.token_bytes]),
            special_ids=ids,
        )
    options = MaskOptions.of(
        tokenizer, train.noise_density or DENSITY, train.mask_units, train.noise_span
    )
    if config.replaces_tokens:
        options = replace(options, as_mask=GENERATOR_MASKS, as_random=0.0)
    return MaskedRows(
        texts=texts,
        options=options,
        seed=train.seed,
        static=train.static_masks,
        replaced=config.replaces_tokens,
    )
