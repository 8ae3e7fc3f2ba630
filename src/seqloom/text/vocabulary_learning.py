"""Learning a vocabulary from texts, one function for each kind. The order of the texts does not matter."""

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
    CONTINUATION,
    KINDS,
    SPECIALS,
    UNKNOWN_WORD,
    Learned,
    Normalisation,
    PreTokenizer,
    by_id,
    normalizer_of,
    word_entry,
)

COVERAGE = 0.9995
"""Share of the characters of a text that have pieces of `unigram`; the rarest are unknown (the default of
sentencepiece)."""
WORD_START = "\U0010fffe"
"""Put before each word in the training of `wordpiece`; it is no character, so no text has it."""
MAX_SENTENCE = 4000
"""Characters that sentencepiece is given at once: it leaves out sentences above its limit in bytes."""


def learn(
    kind: str,
    texts: Iterable[str],
    vocabulary: int,
    normalisation: Normalisation,
    minimum_count: int = 1,
) -> Learned:
    """At most `vocabulary` entries; of words those that occur at least `minimum_count` times. Raises
    UsageError if there must be more, DataError if the texts are empty."""
    learn_kind = LEARN[kind]
    if minimum_count > 1:
        learn_kind = partial(_words, kind=kind, minimum_count=minimum_count)
    return learn_kind(_not_all_empty(texts), vocabulary, normalisation)


def require_vocabulary(kind: str, vocabulary: int, smallest: int, why: str = "") -> None:
    """Raises UsageError if a vocabulary is too small for its kind."""
    if vocabulary < smallest:
        raise UsageError(
            f"the vocabulary must have at least {smallest} entries for the kind {kind!r}{why}"
            f" ({len(SPECIALS)} of them special), but {vocabulary} were asked for; ask for {smallest} or more"
        )


def _with_specials(symbols: Iterable[str]) -> Learned:
    """One entry for each symbol, after the special tokens."""
    return Learned({piece: i for i, piece in enumerate([*SPECIALS, *symbols])}, [], [])


def _characters(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Every character that occurs, in the order of the code points."""
    normalizer = normalizer_of(normalisation)
    seen: set[str] = set()
    for text in texts if normalizer is None else map(normalizer.normalize_str, texts):
        seen.update(text)
    require_vocabulary(
        "characters",
        vocabulary,
        len(SPECIALS) + len(seen),
        f", as the text has {len(seen)} characters",
    )
    return _with_specials(sorted(seen))


def _words(
    texts: Iterable[str],
    vocabulary: int,
    normalisation: Normalisation,
    kind: str = "words",
    minimum_count: int = 1,
) -> Learned:
    """The most frequent words; of words that are equally frequent the first by code points."""
    # one more than asked for: the unknown word, which a text may spell, is left out again
    most = vocabulary - len(SPECIALS) + 1
    trainer = trainers.WordLevelTrainer(
        vocab_size=most, min_frequency=minimum_count, show_progress=False
    )
    pre_tokenizer = KINDS[kind].pre_tokenizer()
    learned = _train(Tokenizer(models.WordLevel()), trainer, pre_tokenizer, texts, normalisation)
    words = [word for word in by_id(learned.vocabulary) if word != UNKNOWN_WORD]
    return _with_words(_with_specials(map(word_entry, words[: most - 1])))


def _bytes(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Nothing depends on the text: byte `b` is id 16 + `b`."""
    any(texts)  # raises where there is no text; reads up to the first that is not empty
    return _with_specials(byte_symbols())


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
    return _train(
        Tokenizer(models.BPE()), trainer, KINDS["bpe"].pre_tokenizer(), texts, normalisation
    )


def _wordpiece(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """Every character, as the first of a word and within one, then the most frequent pairs, as for bpe.

    The library's WordPieceTrainer numbers the characters within words in the order of a hash table, so two
    trainings differ. Here WORD_START begins every word, and the pairs are those of bpe.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary + 1,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    words = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=True)
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), words])
    learned = by_id(
        _train(Tokenizer(models.BPE()), trainer, pre_tokenizer, texts, normalisation).vocabulary
    )
    pieces = [piece for piece in learned[len(SPECIALS) :] if piece != WORD_START]
    characters = sorted(piece for piece in pieces if len(piece) == 1)
    both_forms = [
        form for character in characters for form in (character, CONTINUATION + character)
    ]
    require_vocabulary(
        "wordpiece",
        vocabulary,
        len(SPECIALS) + len(both_forms),
        f", as the text has {len(characters)} characters, each in two forms",
    )
    merged = [
        piece.removeprefix(WORD_START) if piece.startswith(WORD_START) else CONTINUATION + piece
        for piece in pieces
    ]
    entries = list(dict.fromkeys([*SPECIALS, *both_forms, *merged]))[:vocabulary]
    return _with_words(Learned({piece: i for i, piece in enumerate(entries)}, [], []))


def _unigram(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> Learned:
    """The training of sentencepiece, on one thread and in one order of the texts, on which it would depend.

    It splits a text at what spells a special token, so during training those have names that no text has.
    """
    try:
        sentencepiece: Any = importlib.import_module("sentencepiece")
    except ImportError:
        raise MissingExtraError("the tokenizer kind 'unigram'", "unigram") from None
    normalizer, written = normalizer_of(normalisation), io.BytesIO()
    normal = texts if normalizer is None else map(normalizer.normalize_str, texts)
    sentences = sorted(sentence for text in normal for sentence in _sentences(text))
    roles, names = (
        ("pad", "bos", "eos", "unk"),
        [f"{secrets.token_hex(16)}{i}" for i in range(len(SPECIALS))],
    )
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocabulary,
            hard_vocab_limit=False,
            character_coverage=COVERAGE,
            normalization_rule_name="identity",
            max_sentence_length=8 * MAX_SENTENCE,
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
    ids = range(processor.get_piece_size())
    pieces, scores = [processor.id_to_piece(i) for i in ids], [processor.get_score(i) for i in ids]
    pieces[: len(SPECIALS)] = SPECIAL_TOKENS
    return _with_words(Learned({piece: i for i, piece in enumerate(pieces)}, [], scores))


def _sentences(text: str) -> Iterator[str]:
    """A long text split at spaces; a word that is too long is split anywhere."""
    while len(text) > MAX_SENTENCE:
        end = text.rfind(" ", 1, MAX_SENTENCE)
        end = end if end > 0 else MAX_SENTENCE
        yield text[:end]
        text = text[end:]
    yield text


def _train(
    tokenizer: Tokenizer,
    trainer: trainers.Trainer,
    pre_tokenizer: PreTokenizer | None,
    texts: Iterable[str],
    normalisation: Normalisation,
) -> Learned:
    if (normalizer := normalizer_of(normalisation)) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(texts, trainer)
    # The "added tokens" that the trainer made of the special ones are left behind here.
    model = json.loads(tokenizer.to_str())["model"]
    return Learned(model["vocab"], [(left, right) for left, right in model.get("merges", [])], [])


def _with_words(learned: Learned) -> Learned:
    if len(learned.vocabulary) == len(SPECIALS):
        raise DataError(
            "the text to learn a tokenizer from must hold a word, but there is none; name a file that holds"
            " text"
        )
    return learned


def _not_all_empty(texts: Iterable[str]) -> Iterator[str]:
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
    "whitespace": partial(_words, kind="whitespace"),
    "bytes": _bytes,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}
