"""Entries that a user adds to a tokenizer: texts that are never split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from seqloom.errors import UsageError, shown
from seqloom.protocols import StoredTokenizer

MOST = 10_000
"""Each is looked for in every text."""


def added_token(content: str) -> dict[str, object]:
    """How the library `tokenizers`, and transformers, are told of one. It is looked for in the text that
    normalisation leaves."""
    options = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    return {"content": content, "normalized": True, **options}


def check_added(
    tokens: Sequence[str], entries: Mapping[str, int], spelled: Collection[bytes]
) -> None:
    """Raises UsageError if some cannot be added to a tokenizer whose entries spell these bytes."""
    if len(tokens) > MOST:
        raise UsageError(f"data.add_tokens must be at most {MOST:,}, but are {len(tokens):,}")
    seen = set[str]()
    for token in tokens:
        problem = ""
        if not token.strip():
            problem = "must not be blank"
        elif token in seen:
            problem = "must differ"
        elif token in entries or token.encode("utf-8", "replace") in spelled:
            problem = "must be new"
        if problem:
            raise UsageError(
                f"the entries of data.add_tokens {problem}, but there is {shown(token)}"
                + (
                    "; the tokenizer has it already: leave it out"
                    if problem == "must be new"
                    else ""
                )
            )
        seen.add(token)


def with_added(tokenizer: StoredTokenizer, tokens: Sequence[str]) -> tuple[StoredTokenizer, range]:
    """A tokenizer with these entries too, and their ids; itself where there are none."""
    if not tokens:
        return tokenizer, range(0)
    grown = tokenizer.with_added_tokens(tokens)
    first = grown.encode(tokens[:1])[0][0]
    return grown, range(first, first + len(tokens))


def check_whole(tokenizer: StoredTokenizer, tokens: Sequence[str], first: int) -> None:
    """Raises UsageError if one of these new entries, from id `first` on, is not what its text becomes."""
    for number, ids in enumerate(tokenizer.encode(tokens)):
        if ids != [first + number]:
            raise UsageError(
                f"the entries of data.add_tokens must be found in a text, but {shown(tokens[number])} is not:"
                " the tokenizer changes it before it looks for entries, or another one is in it; leave it out"
            )
