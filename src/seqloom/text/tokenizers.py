"""Strings to ids and back: the tokenizers that seqloom trains itself, on the `tokenizers` library.

A tokenizer lives in one `tokenizer.json`, which the library of Hugging Face reads too, and nowhere else. What
the kinds are stands in `kinds.py`, how they learn in `learning.py`; those of published checkpoints are in
`hub_tokenizer.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, final, get_args

from seqloom.errors import FolderError, SeqloomError, UsageError, printable
from seqloom.protocols import SpecialIds
from seqloom.text.byte_symbols import byte_symbols, readable
from seqloom.text.special_tokens import BOS, EOS, MARKS, PAD, SPECIAL_TOKENS, UNK
from seqloom.text.tokenizer_kinds import KINDS as KINDS
from seqloom.text.tokenizer_kinds import (
    SPECIALS,
    Learned,
    Merges,
    Normalisation,
    Vocabulary,
    assemble,
    by_id,
    normalizer_of,
)
from seqloom.text.tokenizers_library import batch_of, checked, panics_are_errors, prepare_forks
from seqloom.text.vocabulary_learning import learn, require_vocabulary


@final
class TextTokenizer:
    """Meets `protocols.Tokenizer`. Made by `train_tokenizer` or `from_json`.

    Encoding runs in parallel; its memory does not grow with the text that went through. Set the environment
    variable TOKENIZERS_PARALLELISM to `false` to have it run on one thread.
    """

    def __init__(
        self,
        kind: str,
        vocabulary: Vocabulary,
        merges: Merges,
        normalisation: Normalisation = "none",
        scores: Sequence[float] = (),
    ) -> None:
        self.kind = kind
        self.normalisation = normalisation
        self._tokenizer = assemble(kind, Learned(vocabulary, merges, list(scores)), normalisation)
        learned = by_id(vocabulary)[len(SPECIAL_TOKENS) :]
        self._spelled = (*[b""] * len(SPECIAL_TOKENS), *map(KINDS[kind].spell, learned))

    @property
    def special_ids(self) -> SpecialIds:
        """The ids that mean something by themselves."""
        return MARKS

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, special ones included; less than was asked for where the text allowed no more."""
        return len(self._spelled)

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The UTF-8 that each id stands for, or a part of a character of it; special ids spell nothing."""
        return self._spelled

    @property
    def text_separator(self) -> bytes:
        """What stands between the pieces of a text: a blank between words, else nothing."""
        return KINDS[self.kind].text_separator

    @property
    def space_prefix(self) -> bytes:
        """What pieces that begin a word spell first, a blank or nothing: `decode` drops it at the begin of a
        text."""
        return KINDS[self.kind].space_prefix

    @property
    def unknown(self) -> bool:
        """Whether a character may become `<unk>`, because this tokenizer has no way to spell it."""
        return KINDS[self.kind].unknown

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start or end marks.

        The only special id that comes out is `<unk>`, once for each unknown character or word, where
        `unknown`. Raises UsageError where a text is not a string or holds half a character (a lone
        surrogate).
        """
        prepare_forks()
        with panics_are_errors("encode"):
            return [
                e.ids for e in self._tokenizer.encode_batch_fast(batch_of(texts), add_special_tokens=False)
            ]

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The characters `text[begin:end]` that each id of `encode` comes from. Raises as `encode` does."""
        prepare_forks()
        with panics_are_errors("encode"):
            return [
                e.offsets for e in self._tokenizer.encode_batch(batch_of(texts), add_special_tokens=False)
            ]

    def settle(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still being typed: the ids that stay, whatever comes after it, and the bytes of the
        rest.

        Under the normalisation "nfc" a mark that comes next can still change the last character. Raises as
        `encode` does.
        """
        (text,) = checked([text])
        if (normalizer := normalizer_of(self.normalisation)) is not None:
            text = normalizer.normalize_str(text)
        sure = KINDS[self.kind].settled(text)
        (ids,) = self.encode([text[:sure]])
        if self.space_prefix:
            return ids, (
                self.space_prefix + text[sure:].strip(None if self.kind == "wordpiece" else " ").encode()
                if text[sure:]
                else b""
            )
        if (
            self.text_separator
        ):  # blanks are lost, but that there is one says that the word before it is whole
            return ids, (self.text_separator if ids and text[sure:] else b"") + text[sure:].strip().encode()
        return ids, text[sure:].encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` spell. Special ids spell nothing, and that includes `<unk>`.

        Words are joined by one blank; of wordpiece and unigram none begins a text. Bytes that are no whole
        character become U+FFFD, as a model may end in the middle of one. Raises UsageError where an id is
        outside of the vocabulary.
        """
        self._check_ids(ids)
        spelled = [self._spelled[i] for i in ids]
        if self.text_separator:
            spelled = [piece for piece in spelled if piece]
        return self.text_separator.join(spelled).removeprefix(self.space_prefix).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id spells, for looking at: blanks are kept, special ids have their names.

        A byte that is no whole character in its piece is shown in hexadecimal, such as `⟨e2⟩`.
        """
        self._check_ids(ids)
        return [SPECIAL_TOKENS[i] if i < len(SPECIAL_TOKENS) else readable(self._spelled[i]) for i in ids]

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = len(self._spelled)
        if len(ids) and (min(ids) < 0 or max(ids) >= size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise UsageError(
                f"an id must be from 0 to {size - 1}, but {wrong} was given; was it made by another"
                " tokenizer?"
            )

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

        Only the vocabulary, the merges and the scores are taken from `text`; all else is built anew and must
        be the same, so that nothing foreign (such as a regular expression without end) ever runs. Raises
        FolderError otherwise.
        """
        try:
            content = json.loads(text)
            kind, normalisation = _recognised(content)
            vocabulary, scores = _vocabulary(kind, content["model"]["vocab"])
            merges = [(left, right) for left, right in content["model"].get("merges", [])]
            _check_vocabulary(kind, vocabulary, merges)
            with panics_are_errors("load"):
                return cls(kind, vocabulary, merges, normalisation, scores)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SeqloomError) as error:
            raise FolderError(
                f"tokenizer.json must be as seqloom wrote it, but {printable(str(error))[:200]}; restore the"
                " file, or train again"
            ) from None


def train_tokenizer(
    texts: Iterable[str], kind: str = "bpe", vocabulary: int = 8000, normalisation: Normalisation = "none"
) -> TextTokenizer:
    """Learns a tokenizer of at most `vocabulary` ids, the 16 special ones included.

    Where the text allows fewer, `vocabulary_size` is smaller; that is no error. The same texts give the same
    ids, in whatever order they come and on any number of threads. Case is kept; `normalisation` "nfc"
    composes characters (Unicode form C) in training and in encoding.

    Raises UsageError where the kind is unknown, where `vocabulary` is too small (it says what is the
    smallest), or where a text is not a string or holds half a character; DataError where there is no text.
    """
    if kind not in KINDS:
        known = "; ".join(f"{name} ({k.summary})" for name, k in KINDS.items())
        raise UsageError(
            f"the kind of tokenizer must be one of {', '.join(KINDS)}, but is {printable(str(kind))!r}. They"
            f" are: {known}"
        )
    if normalisation not in get_args(Normalisation):
        raise UsageError(
            f"the normalisation must be one of none, nfc, but is {printable(str(normalisation))!r}"
        )
    require_vocabulary(kind, vocabulary, KINDS[kind].smallest)
    prepare_forks()
    with panics_are_errors("train"):
        learned = learn(kind, checked(texts), vocabulary, normalisation)
        return TextTokenizer(kind, learned.vocabulary, learned.merges, normalisation, learned.scores)


def tokenizer_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    """The content of `tokenizer_config.json`, with which `transformers` opens the tokenizer.

    Note that `transformers` makes its marks added tokens: there, and only there, a text that spells one
    becomes one.
    """
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL_TOKENS[PAD],
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "clean_up_tokenization_spaces": False,
    }
    return config | ({"unk_token": SPECIAL_TOKENS[UNK]} if tokenizer.unknown else {})


# --- reading a tokenizer.json
# ----------------------------------------------------------------------------------------


def _recognised(content: Any) -> tuple[str, Normalisation]:
    """The kind and normalisation that build the same `tokenizer.json`, but for the vocabulary and the merges."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("it holds no tokenizer")
    for kind in KINDS:
        for normalisation in get_args(Normalisation):
            ours = json.loads(
                assemble(kind, Learned(SPECIALS, [], [0.0] * len(SPECIALS)), normalisation).to_str()
            )
            if _alike(_outline(content), _outline(ours)):
                return kind, normalisation
    raise ValueError(
        f"it is none of the kinds {', '.join(KINDS)}, or its special tokens match inside of text"
    )


def _outline(content: dict[str, Any]) -> dict[str, Any]:
    return content | {
        "model": {key: value for key, value in content["model"].items() if key not in ("vocab", "merges")}
    }


def _alike(one: Any, other: Any) -> bool:
    """Equal, where a key that is absent is as good as null, false or empty: versions of the library differ in
    that."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    return bool(one == other or not (one or other))


def _vocabulary(kind: str, found: Any) -> tuple[Vocabulary, list[float]]:
    """The entries and their scores. Raises ValueError where they are none."""
    if kind != "unigram":
        return found, []
    if len({piece for piece, _ in found}) < len(found):
        raise ValueError("an entry stands twice")
    if not all(type(score) in (int, float) and math.isfinite(score) for _, score in found):
        raise ValueError("one of its scores is no number")
    return {piece: i for i, (piece, _) in enumerate(found)}, [float(score) for _, score in found]


def _check_vocabulary(kind: str, vocabulary: Vocabulary, merges: Merges) -> None:
    """Raises ValueError where ids would be lost, shared or not what the kind promises."""
    if not all(type(i) is int for i in vocabulary.values()) or sorted(vocabulary.values()) != list(
        range(len(vocabulary))
    ):
        raise ValueError("its ids are not the numbers from 0 on, each once")
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    learned = pieces[len(SPECIALS) :]
    if tuple(pieces[: len(SPECIALS)]) != SPECIAL_TOKENS:
        raise ValueError(f"its ids 0 to {len(SPECIALS) - 1} are not {' '.join(SPECIAL_TOKENS[:5])} ...")
    if kind == "characters" and any(len(piece) != 1 for piece in learned):
        raise ValueError("one of its pieces is not one character")
    if kind == "bytes" and learned != byte_symbols():
        raise ValueError("its pieces are not the 256 bytes in order")
    if kind == "bpe" and not set(byte_symbols()) == {symbol for piece in learned for symbol in piece} <= set(
        learned
    ):
        raise ValueError("its pieces are not made of the 256 bytes, each of which is one of them")
    if kind == "unigram" and any(not piece for piece in learned):
        raise ValueError("one of its pieces is empty")
    if merges and kind != "bpe":
        raise ValueError(f"the kind {kind} has merges")
    if not all(
        left in vocabulary and right in vocabulary and left + right in vocabulary for left, right in merges
    ):
        raise ValueError("one of its merges is not in the vocabulary")
