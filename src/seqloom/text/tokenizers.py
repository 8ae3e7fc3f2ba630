"""Strings to ids and back: characters, words, bytes and byte-level BPE, on the `tokenizers` library.

Every kind has the special tokens as ids 0 to 15. They are plain entries of the vocabulary and never "added
tokens", which the library would look for inside the text: a text that spells `<s>` stays text.

A tokenizer lives in one `tokenizer.json`, which the library of Hugging Face reads too, and nowhere else.

Sources: BPE is Sennrich et al. 2016 (arXiv:1508.07909, algorithm 1), byte-level BPE is Radford et al. 2019 (GPT-2).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final, get_args

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from seqloom.errors import DataError, FolderError, SeqloomError, UsageError, printable
from seqloom.protocols import Marks
from seqloom.text.special import BOS, EOS, MARKS, PAD, SPECIAL_TOKENS, UNK

Normalisation = Literal["none", "nfc"]
Vocabulary = dict[str, int]
Merges = list[tuple[str, str]]

_SPECIALS: Vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}


@final
class TextTokenizer:
    """Meets `protocols.Tokenizer`. Made by `train_tokenizer` or `from_json`.

    Encoding runs in parallel; its memory does not grow with the text that went through. Set the environment
    variable TOKENIZERS_PARALLELISM to `false` to have it run on one thread.
    """

    def __init__(self, kind: str, vocabulary: Vocabulary, merges: Merges, normalisation: Normalisation = "none") -> None:
        self.kind = kind
        self.normalisation = normalisation
        self._tokenizer = _assemble(kind, vocabulary, merges, normalisation)
        learned = sorted(vocabulary, key=vocabulary.__getitem__)[len(SPECIAL_TOKENS) :]
        self._spelled = (*[b""] * len(SPECIAL_TOKENS), *map(KINDS[kind].spell, learned))

    @property
    def marks(self) -> Marks:
        """The ids that mean something by themselves."""
        return MARKS

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, special ones included; less than was asked for where the text allowed no more."""
        return len(self._spelled)

    @property
    def spelled(self) -> Sequence[bytes]:
        """The UTF-8 that each id stands for, or a part of a character of it; special ids spell nothing."""
        return self._spelled

    @property
    def joint(self) -> bytes:
        """What stands between the pieces of a text: a blank between words, else nothing."""
        return KINDS[self.kind].joint

    @property
    def unknown(self) -> bool:
        """Whether a character may become `<unk>`, because this tokenizer has no way to spell it."""
        return KINDS[self.kind].unknown

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start or end marks.

        The only special id that comes out is `<unk>`, once for each unknown character or word, where `unknown`.
        Raises UsageError where a text is not a string or holds half a character (a lone surrogate).
        """
        if isinstance(texts, str):
            raise UsageError("encode takes a list of texts, but was given one string; put it in a list")
        _prepare_forks()
        with _panics_are_errors("encode"):
            # The check comes first: the library takes a tuple or list for a text that is already cut.
            return [e.ids for e in self._tokenizer.encode_batch_fast(list(_checked(texts)), add_special_tokens=False)]

    def settle(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still being typed: the ids that stay, whatever comes after it, and the bytes of the rest.

        Under the normalisation "nfc" a mark that comes next can still change the last character. Raises as `encode` does.
        """
        (text,) = _checked([text])
        if (normalizer := _normalizer(self.normalisation)) is not None:
            text = normalizer.normalize_str(text)
        sure = KINDS[self.kind].settled(text)
        (ids,) = self.encode([text[:sure]])
        if self.joint:  # blanks are lost, but that there is one says that the word before it is whole
            return ids, (self.joint if ids and text[sure:] else b"") + text[sure:].strip().encode()
        return ids, text[sure:].encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` spell. Special ids spell nothing, and that includes `<unk>`.

        Words are joined by one blank. Bytes that are no whole character become U+FFFD, as a model may end in
        the middle of one. Raises UsageError where an id is outside of the vocabulary.
        """
        self._check_ids(ids)
        spelled = [self._spelled[i] for i in ids]
        if self.joint:
            spelled = [piece for piece in spelled if piece]
        return self.joint.join(spelled).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id spells, for looking at: blanks are kept, special ids have their names.

        A byte that is no whole character in its piece is shown in hexadecimal, such as `⟨e2⟩`.
        """
        self._check_ids(ids)
        return [SPECIAL_TOKENS[i] if i < len(SPECIAL_TOKENS) else _readable(self._spelled[i]) for i in ids]

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = len(self._spelled)
        if len(ids) and (min(ids) < 0 or max(ids) >= size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise UsageError(f"an id must be from 0 to {size - 1}, but {wrong} was given; was it made by another tokenizer?")

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal: equal for tokenizers that do the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> TextTokenizer:
        """The tokenizer that `to_json` wrote.

        Only the vocabulary and the merges are taken from `text`; all else is built anew and must be the same, so
        that nothing foreign (such as a regular expression without end) ever runs. Raises FolderError otherwise.
        """
        try:
            content = json.loads(text)
            kind, normalisation = _recognised(content)
            vocabulary: Vocabulary = content["model"]["vocab"]
            merges = [(left, right) for left, right in content["model"].get("merges", [])]
            _check_vocabulary(kind, vocabulary, merges)
            with _panics_are_errors("load"):
                return cls(kind, vocabulary, merges, normalisation)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SeqloomError) as error:
            raise FolderError(
                f"tokenizer.json must be as seqloom wrote it, but {printable(str(error))[:200]}; restore the file, or train again"
            ) from None


def train_tokenizer(
    texts: Iterable[str], kind: str = "bpe", vocabulary: int = 8000, normalisation: Normalisation = "none"
) -> TextTokenizer:
    """Learns a tokenizer of at most `vocabulary` ids, the 16 special ones included.

    Where the text allows fewer, `vocabulary_size` is smaller; that is no error. The same texts give the same ids,
    in whatever order they come and on any number of threads. Case is kept; `normalisation` "nfc" composes
    characters (Unicode form C) in training and in encoding.

    Raises UsageError where the kind is unknown, where `vocabulary` is too small (it says what is the smallest), or
    where a text is not a string or holds half a character; DataError where there is no text.
    """
    if kind not in KINDS:
        known = "; ".join(f"{name} ({k.summary})" for name, k in KINDS.items())
        raise UsageError(f"the kind of tokenizer must be one of {', '.join(KINDS)}, but is {printable(str(kind))!r}. They are: {known}")
    if normalisation not in get_args(Normalisation):
        raise UsageError(f"the normalisation must be one of none, nfc, but is {printable(str(normalisation))!r}")
    _require_vocabulary(kind, vocabulary, KINDS[kind].smallest)
    _prepare_forks()
    with _panics_are_errors("train"):
        learned, merges = KINDS[kind].learn(_some(_checked(texts)), vocabulary, normalisation)
        return TextTokenizer(kind, learned, merges, normalisation)


def tokenizer_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    """The content of `tokenizer_config.json`, with which `transformers` opens the tokenizer.

    Note that `transformers` makes its marks added tokens: there, and only there, a text that spells one becomes one.
    """
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL_TOKENS[PAD],
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "clean_up_tokenization_spaces": False,
    }
    return config | ({"unk_token": SPECIAL_TOKENS[UNK]} if tokenizer.unknown else {})


# --- learning a vocabulary -------------------------------------------------------------------------------------------


def _learn_characters(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> tuple[Vocabulary, Merges]:
    """Every character that occurs, in the order of the code points."""
    normalizer = _normalizer(normalisation)
    seen: set[str] = set()
    for text in texts:
        seen.update(text if normalizer is None else normalizer.normalize_str(text))
    _require_vocabulary("characters", vocabulary, len(_SPECIALS) + len(seen), f", as the text has {len(seen)} characters")
    return _SPECIALS | {c: i for i, c in enumerate(sorted(seen), len(_SPECIALS))}, []


def _learn_words(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> tuple[Vocabulary, Merges]:
    """The most frequent words; of words that are equally frequent the first by code points."""
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    learned, merges = _train(Tokenizer(models.WordLevel()), trainer, "words", texts, normalisation)
    if len(learned) == len(_SPECIALS):
        raise DataError("the text to learn a tokenizer from must hold a word, but there is none; name a file that holds text")
    return learned, merges


def _learn_bytes(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> tuple[Vocabulary, Merges]:
    """Nothing depends on the text: byte `b` is id 16 + `b`."""
    any(texts)  # complains where there is no text; needs no more than the first that is not empty
    return _SPECIALS | {c: i for i, c in enumerate(_byte_symbols(), len(_SPECIALS))}, []


def _learn_bpe(texts: Iterable[str], vocabulary: int, normalisation: Normalisation) -> tuple[Vocabulary, Merges]:
    """The 256 bytes, then the most frequent pairs. A pair seen once is not merged: it would only quote the text."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=_byte_symbols(),
        show_progress=False,
    )
    return _train(Tokenizer(models.BPE()), trainer, "bpe", texts, normalisation)


def _train(tokenizer: Tokenizer, trainer: Any, kind: str, texts: Iterable[str], normalisation: Normalisation) -> tuple[Vocabulary, Merges]:
    if (normalizer := _normalizer(normalisation)) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = KINDS[kind].split()
    tokenizer.train_from_iterator(texts, trainer)
    # What is left behind here are the "added tokens" that the trainer made of the special ones.
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model.get("merges", [])]


def _require_vocabulary(kind: str, vocabulary: int, smallest: int, why: str = "") -> None:
    if vocabulary < smallest:
        raise UsageError(
            f"the vocabulary must have at least {smallest} entries for the kind {kind!r}{why} ({len(_SPECIALS)} of them special), "
            f"but {vocabulary} were asked for; ask for {smallest} or more"
        )


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each of which must be a string that has an encoding in UTF-8."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {number} (counted from 0) must be a string, but is {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text {number} (counted from 0) must be Unicode, but at position {error.start} it has half a character "
                f"(the lone surrogate {printable(text[error.start])}); mend the program or file that it came from"
            ) from None
        yield text


def _some(texts: Iterable[str]) -> Iterator[str]:
    """The texts, of which at least one must not be empty."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise DataError("the text to learn a tokenizer from must hold a character, but it is empty; name a file that holds text")


# --- the four kinds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to cut text into pieces."""

    summary: str
    smallest: int
    """The least number of ids that makes sense, the special ones included."""
    unknown: bool
    """Whether there are texts that it cannot spell."""
    joint: bytes
    """What stands between the pieces of a decoded text."""
    model: Callable[[Vocabulary, Merges], models.Model]
    split: Callable[[], pre_tokenizers.PreTokenizer | None]
    join: Callable[[], decoders.Decoder | None]
    spell: Callable[[str], bytes]
    """The UTF-8 that an entry of the vocabulary stands for."""
    settled: Callable[[str], int]
    """Up to where the tokens of a text stay, whatever comes after it."""
    learn: Callable[[Iterable[str], int, Normalisation], tuple[Vocabulary, Merges]]


def _byte_symbols() -> list[str]:
    """The 256 characters that stand for the bytes in a byte-level vocabulary (`bytes_to_unicode` of GPT-2)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


@cache
def _byte_of() -> dict[str, int]:
    return {symbol: byte for byte, symbol in enumerate(_byte_symbols())}


def _spell_bytes(piece: str) -> bytes:
    return bytes(_byte_of()[symbol] for symbol in piece)


def _readable(spelled: bytes) -> str:
    escaped = spelled.decode("utf-8", "surrogateescape")  # a byte that is no whole character becomes U+DC80 ... U+DCFF
    return "".join(f"⟨{ord(c) - 0xDC00:x}⟩" if "\udc80" <= c <= "\udcff" else c for c in escaped)


def _units() -> pre_tokenizers.PreTokenizer:
    """Letters, digits and signs are cut apart before any merge, so no merge can spell `<s>`."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _before_last_unit(text: str) -> int:
    """Where the last run of letters, digits, signs or blanks begins, its leading blank too: no merge goes across that place."""
    *_, before, last = [0, 0, *(begin for _, (begin, _) in _units().pre_tokenize_str(text))]
    contraction = text[before:last] == "'" and text[last:] in ("r", "v", "l")  # may become 're, 've, 'll: one unit each
    return before if contraction else last


def _before_last_word(text: str) -> int:
    """Where the word begins that the text ends in, or the last one ends."""
    *_, (begin, end) = [(0, 0), *(span for _, span in pre_tokenizers.Whitespace().pre_tokenize_str(text))]
    return int(begin if end == len(text) else end)


# A long text is one "word" of the kinds characters and bytes, so keeping words in a cache would be of no use there.
KINDS: dict[str, Kind] = {
    "characters": Kind(
        summary="one id for each character that occurs in training",
        smallest=len(_SPECIALS) + 1,
        unknown=True,
        joint=b"",
        model=lambda vocabulary, merges: models.BPE(vocabulary, merges, unk_token=SPECIAL_TOKENS[UNK], cache_capacity=0),
        split=lambda: None,
        join=decoders.Fuse,
        spell=str.encode,
        settled=len,
        learn=_learn_characters,
    ),
    "words": Kind(
        summary="the most frequent words; blanks are lost",
        smallest=len(_SPECIALS) + 1,
        unknown=True,
        joint=b" ",
        model=lambda vocabulary, merges: models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]),
        split=pre_tokenizers.Whitespace,  # \w+|[^\w\s]+ never gives `<s>` as one word
        join=lambda: None,
        spell=str.encode,
        settled=_before_last_word,
        learn=_learn_words,
    ),
    "bytes": Kind(
        summary="one id for each byte of UTF-8",
        smallest=len(_SPECIALS) + 256,
        unknown=False,
        joint=b"",
        model=lambda vocabulary, merges: models.BPE(vocabulary, merges, cache_capacity=0),
        split=lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        join=decoders.ByteLevel,
        spell=_spell_bytes,
        settled=len,
        learn=_learn_bytes,
    ),
    "bpe": Kind(
        summary="frequent runs of bytes, the default",
        smallest=len(_SPECIALS) + 256,
        unknown=False,
        joint=b"",
        model=lambda vocabulary, merges: models.BPE(vocabulary, merges),
        split=_units,
        join=decoders.ByteLevel,
        spell=_spell_bytes,
        settled=_before_last_unit,
        learn=_learn_bpe,
    ),
}


def _normalizer(normalisation: Normalisation) -> normalizers.Normalizer | None:
    return normalizers.NFC() if normalisation == "nfc" else None


def _assemble(kind: str, vocabulary: Vocabulary, merges: Merges, normalisation: Normalisation) -> Tokenizer:
    chosen = KINDS[kind]
    tokenizer = Tokenizer(chosen.model(vocabulary, merges))
    if (normalizer := _normalizer(normalisation)) is not None:
        tokenizer.normalizer = normalizer
    if (split := chosen.split()) is not None:
        tokenizer.pre_tokenizer = split
    if (join := chosen.join()) is not None:
        tokenizer.decoder = join
    return tokenizer


# --- reading a tokenizer.json, and the edges of the library ----------------------------------------------------------


def _recognised(content: Any) -> tuple[str, Normalisation]:
    """The kind and normalisation that build the same `tokenizer.json`, but for the vocabulary and the merges."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("it holds no tokenizer")
    for kind in KINDS:
        for normalisation in get_args(Normalisation):
            ours = json.loads(_assemble(kind, _SPECIALS, [], normalisation).to_str())
            if _alike(_outline(content), _outline(ours)):
                return kind, normalisation
    raise ValueError(f"it is none of the kinds {', '.join(KINDS)}, or its special tokens match inside of text")


def _outline(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"model": {key: value for key, value in content["model"].items() if key not in ("vocab", "merges")}}


def _alike(one: Any, other: Any) -> bool:
    """Equal, where a key that is absent is as good as null, false or empty: versions of the library differ in that."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    return bool(one == other or not (one or other))


def _check_vocabulary(kind: str, vocabulary: Vocabulary, merges: Merges) -> None:
    """Raises ValueError where ids would be lost, shared or not what the kind promises."""
    if not all(type(i) is int for i in vocabulary.values()) or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("its ids are not the numbers from 0 on, each once")
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    learned = pieces[len(_SPECIALS) :]
    if tuple(pieces[: len(_SPECIALS)]) != SPECIAL_TOKENS:
        raise ValueError(f"its ids 0 to {len(_SPECIALS) - 1} are not {' '.join(SPECIAL_TOKENS[:5])} ...")
    if kind == "characters" and any(len(piece) != 1 for piece in learned):
        raise ValueError("one of its pieces is not one character")
    if kind == "bytes" and learned != _byte_symbols():
        raise ValueError("its pieces are not the 256 bytes in order")
    if kind == "bpe" and not set(_byte_symbols()) == {symbol for piece in learned for symbol in piece} <= set(learned):
        raise ValueError("its pieces are not made of the 256 bytes, each of which is one of them")
    if merges and kind != "bpe":
        raise ValueError(f"the kind {kind} has merges")
    if not all(left in vocabulary and right in vocabulary and left + right in vocabulary for left, right in merges):
        raise ValueError("one of its merges is not in the vocabulary")


@contextmanager
def _panics_are_errors(doing: str) -> Iterator[None]:
    """Turns what the library raises into a SeqloomError: bare `Exception`s, and panics of Rust, which are not even that.

    Anything else passes: the errors of whoever reads the texts, KeyboardInterrupt, SystemExit.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__module__ == "pyo3_runtime":
            raise SeqloomError(f"the library `tokenizers` could not {doing} ({printable(str(error))}); please report it") from error
        raise


@cache
def _prepare_forks() -> None:
    """Lets a process fork (a data loader does) after the library ran in parallel.

    The threads do not live on in a child. It must encode on one thread, and would wait for them for ever where the
    user has set TOKENIZERS_PARALLELISM=true.
    """
    name = "TOKENIZERS_PARALLELISM"
    chosen: str | None = None

    def before() -> None:
        nonlocal chosen
        chosen = os.environ.get(name)
        os.environ[name] = "false"

    def after_in_parent() -> None:
        if chosen is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = chosen

    os.register_at_fork(before=before, after_in_parent=after_in_parent)
