"""The special tokens of tokenizers that seqloom trains: ids that no text can spell."""

from __future__ import annotations

from seqloom.protocols import SpecialIds

PAD, BOS, EOS, UNK, DELIMITER = 0, 1, 2, 3, 4
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
"""The same for all of these tokenizers."""
