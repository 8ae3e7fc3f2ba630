"""Learning a vocabulary from texts, one function for each kind. The same texts give the same ids, in whatever
order they come."""

from __future__ import annotations

import importlib
import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from seqloom.errors import DataError, MissingExtraError, UsageError, printable
from seqloom.text.byte_symbols import byte_symbols
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizer_kinds import (
    CONTINUED,
    KINDS,
    SPECIALS,
    Learned,
    Normalisation,
    by_id,
    normalizer_of,
)

COVERAGE = 0.9995
"""Share of the characters of a text that have pieces of `unigram`; the rarest are unknown (sentencepiece's
own choice)."""
_BEGUN = "\U0010fffe"
"""Stands before each word in the training of `wordpiece`; no character, so not in a text."""
LONGEST = 4000
"""Characters of a sentence that sentencepiece is given at once: it leaves out what is longer than its limit
in bytes."""


def learn(kind: str, texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """At most `vocabulary` entries. Raises UsageError where they must be more, DataError where the texts hold
    nothing."""
    return LEARN[kind](_some(texts), vocabulary, normalisation)


def require_vocabulary(kind: str, vocabulary: int, smallest: int, why: str = "") -> None:
    """Raises UsageError where a vocabulary is too small for its kind."""
    if vocabulary < smallest:
        raise UsageError(
            f"the vocabulary must have at least {smallest} entries for the kind {kind!r}{why}"
            f" ({len(SPECIALS)} of them special), but {vocabulary} were asked for; ask for {smallest} or more"
        )


def _characters(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Every character that occurs, in the order of the code points."""
    normalizer = normalizer_of(normalisation)
    seen: set[str] = set()
    for text in texts:
        seen.update(text if normalizer is None else normalizer.normalize_str(text))
    require_vocabulary(
        "characters", vocabulary, len(SPECIALS) + len(seen), f", as the text has {len(seen)} characters"
    )
    return Learned(SPECIALS | {c: i for i, c in enumerate(sorted(seen), len(SPECIALS))}, [], [])


def _words(
    texts: Iterable[str], vocabulary: int, normalisation: Normalisation, kind: str = "words"
) -> Learned:
    """The most frequent words; of words that are equally frequent the first by code points."""
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    return _holding_words(
        _train(Tokenizer(models.WordLevel()), trainer, KINDS[kind].split(), texts, normalisation)
    )


def _bytes(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Nothing depends on the text: byte `b` is id 16 + `b`."""
    any(texts)  # complains where there is no text; needs no more than the first that is not empty
    return Learned(SPECIALS | {c: i for i, c in enumerate(byte_symbols(), len(SPECIALS))}, [], [])


def _bpe(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """The 256 bytes, then the most frequent pairs. A pair seen once is not merged: it would only quote the
    text."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=byte_symbols(),
        show_progress=False,
    )
    return _train(Tokenizer(models.BPE()), trainer, KINDS["bpe"].split(), texts, normalisation)


def _wordpiece(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Every character, at the begin of words and within them, then the most frequent pairs, as for bpe.

    The library's WordPieceTrainer numbers the characters within words as a hash table has them, so that two
    trainings differ. Here a mark begins every word, and the pairs are those of bpe.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary + 1, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    words = pre_tokenizers.Metaspace(replacement=_BEGUN, prepend_scheme="always", split=True)
    split = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), words])
    found = by_id(_train(Tokenizer(models.BPE()), trainer, split, texts, normalisation).vocabulary)[
        len(SPECIALS) :
    ]
    characters = sorted(piece for piece in found if len(piece) == 1 and piece != _BEGUN)
    both = [form for character in characters for form in (character, CONTINUED + character)]
    require_vocabulary(
        "wordpiece",
        vocabulary,
        len(SPECIALS) + len(both),
        f", as the text has {len(characters)} characters, each in two forms",
    )
    merged = [
        piece.removeprefix(_BEGUN) if piece.startswith(_BEGUN) else CONTINUED + piece
        for piece in found
        if piece != _BEGUN
    ]
    pieces = list(dict.fromkeys([*SPECIALS, *both, *merged]))[:vocabulary]
    return _holding_words(Learned({piece: i for i, piece in enumerate(pieces)}, [], []))


def _unigram(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """sentencepiece's training, on one thread and in one order of the texts, on which it would depend.

    It would cut a text at what spells a special token, so they have names there that no text has.
    """
    try:
        sentencepiece: Any = importlib.import_module("sentencepiece")
    except ImportError:
        raise MissingExtraError("the tokenizer kind 'unigram'", "unigram") from None
    normalizer, written = normalizer_of(normalisation), io.BytesIO()
    normal = texts if normalizer is None else map(normalizer.normalize_str, texts)
    sentences = sorted(piece for text in normal for piece in _in_pieces(text))
    roles, names = ("pad", "bos", "eos", "unk"), [f"{secrets.token_hex(16)}{i}" for i in range(len(SPECIALS))]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocabulary,
            hard_vocab_limit=False,
            character_coverage=COVERAGE,
            normalization_rule_name="identity",
            max_sentence_length=8 * LONGEST,
            num_threads=1,
            minloglevel=2,
            **{f"{role}_id": i for i, role in enumerate(roles)},
            **{f"{role}_piece": names[i] for i, role in enumerate(roles)},
            control_symbols=names[len(roles) :],
        )
    except (RuntimeError, OSError) as error:
        said = printable(" ".join(str(error).split()))[:200]
        raise UsageError(
            f"sentencepiece cannot learn a unigram vocabulary of {vocabulary} entries from this text"
            f" ({said}); ask for another size, or give it more text"
        ) from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    entries = range(processor.get_piece_size())
    pieces, scores = [processor.id_to_piece(i) for i in entries], [processor.get_score(i) for i in entries]
    pieces[: len(SPECIALS)] = SPECIAL_TOKENS
    return _holding_words(Learned({piece: i for i, piece in enumerate(pieces)}, [], scores))


def _in_pieces(text: str) -> Iterator[str]:
    """Cut at blanks; a word that is longer than a piece is cut anywhere."""
    while len(text) > LONGEST:
        at = text.rfind(" ", 1, LONGEST)
        at = at if at > 0 else LONGEST
        yield text[:at]
        text = text[at:]
    yield text


def _train(
    tokenizer: Tokenizer, trainer: Any, split: Any, texts: Iterable[str], normalisation: Normalisation
) -> Learned:
    if (normalizer := normalizer_of(normalisation)) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.train_from_iterator(texts, trainer)
    # What is left behind here are the "added tokens" that the trainer made of the special ones.
    model = json.loads(tokenizer.to_str())["model"]
    return Learned(model["vocab"], [(left, right) for left, right in model.get("merges", [])], [])


def _holding_words(learned: Learned) -> Learned:
    if len(learned.vocabulary) == len(SPECIALS):
        raise DataError(
            "the text to learn a tokenizer from must hold a word, but there is none; name a file that holds"
            " text"
        )
    return learned


def _some(texts: Iterable[str]) -> Iterator[str]:
    """The texts, of which at least one must not be empty."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise DataError(
            "the text to learn a tokenizer from must hold a character, but it is empty; name a file that"
            " holds text"
        )


LEARN: dict[str, Callable[[Iterable[str], int, Normalisation], Learned]] = {
    "characters": _characters,
    "words": _words,
    "blanks": partial(_words, kind="blanks"),
    "bytes": _bytes,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}
