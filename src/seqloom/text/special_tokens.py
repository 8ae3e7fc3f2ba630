"""The special tokens of tokenizers that seqloom trains: ids that no text can spell."""

from __future__ import annotations

from seqloom.protocols import SpecialIds

PAD, BOS, EOS, UNK, DELIMITER, MASK = 0, 1, 2, 3, 4, 5
"""`<pad>` is a step that does not happen, `<s>` is read and never predicted, `</s>` ends every sequence."""

SPECIAL_TOKENS = (
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<delim>",
    *(f"<reserved-{i}>" for i in range(5, 16)),
)
"""Ids 0 to 15; the last eleven are reserved for later use."""
MASK_TOKEN = "<mask>"
"""What id 5 is called in tokenizers of masked language models."""

SPECIAL_IDS = SpecialIds(
    pad=PAD,
    bos=(BOS,),
    eos=EOS,
    unk=UNK,
    prefix=(),
    separator=(DELIMITER,),
    suffix=(EOS,),
    mask=None,
    forbidden=tuple(i for i in range(len(SPECIAL_TOKENS)) if i != EOS),
)
"""The same for all of these tokenizers but those with a mask."""
MASKED_IDS = SPECIAL_IDS._replace(prefix=(BOS,), separator=(EOS,), suffix=(EOS,), mask=MASK)
"""As BERT has them: `<s>` for [CLS], `</s>` for [SEP], between two texts too."""


def sentinel(number: int) -> str:
    """What stands in a text for its `number`-th corrupted span, from 0 on (Raffel et al. 2020). Tokenizers of
    denoising have some of them as their last entries, number 0 last, as T5 has them."""
    return f"<extra_id_{number}>"


def for_text_pairs(special_ids: SpecialIds) -> SpecialIds:
    """How a language model reads and writes a pair of texts, `<s> source <delim> target </s>`: the source
    begins as every text does, the delimiter begins the target. A tokenizer without a delimiter has its end of
    a text in its place (GPT-2)."""
    end = () if special_ids.eos is None else (special_ids.eos,)
    return special_ids._replace(prefix=special_ids.bos, suffix=(), bos=special_ids.separator or end)
