"""Strings to ids and back: the tokenizers that seqloom trains itself, on the `tokenizers` library.

A tokenizer is saved in one `tokenizer.json`, which the library of Hugging Face reads too, and nowhere else.
The kinds are in `tokenizer_kinds.py`, their training in `vocabulary_learning.py`; the tokenizers of published
checkpoints are in `hub/`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, final, get_args

from tokenizers import AddedToken

from seqloom.config import tokenizer_kind
from seqloom.errors import FolderError, SeqloomError, UsageError, printable, shown
from seqloom.protocols import SpecialIds, SpecialTokenTemplate
from seqloom.text.added_tokens import check_added, check_whole
from seqloom.text.byte_symbols import byte_symbols, readable
from seqloom.text.segment_encoder import SegmentEncoder, with_added
from seqloom.text.special_tokens import (
    BOS,
    EOS,
    MASK,
    MASK_TOKEN,
    MASKED_IDS,
    PAD,
    SPECIAL_IDS,
    SPECIAL_TOKENS,
    UNK,
    sentinel,
)
from seqloom.text.tokenizer_kinds import KINDS as KINDS
from seqloom.text.tokenizer_kinds import (
    SPECIALS,
    Learned,
    Merges,
    Normalisation,
    assemble,
    by_id,
    normalizer_of,
    sentinels_of,
    with_mask,
    with_sentinels,
)
from seqloom.text.tokenizers_library import (
    check_ids,
    checked_batch,
    checked_texts,
    panics_are_errors,
    prepare_for_fork,
)
from seqloom.text.vocabulary_learning import learn, require_vocabulary

WORD_TOKENIZERS = ("words", "whitespace")
"""Kinds of tokenizers whose entries are words."""


@final
class TextTokenizer:
    """Meets `protocols.StoredTokenizer`. Made by `train_tokenizer` or `from_json`.

    Encoding runs in parallel; its memory does not grow with the text that went through. Set the environment
    variable TOKENIZERS_PARALLELISM to `false` to have it run on one thread.
    """

    def __init__(
        self,
        kind: str,
        learned: Learned,
        normalisation: Normalisation = "none",
        *,
        former: bool = False,
        added: Sequence[str] = (),
    ) -> None:
        """`former`: as earlier versions trained this kind. `added`: entries that a user added."""
        self.kind = kind
        self.normalisation = normalisation
        self._kind = (KINDS[kind].former if former else None) or KINDS[kind]
        self._tokenizer = assemble(self._kind, learned, normalisation)
        self._tokenizer.add_tokens([AddedToken(text, normalized=True) for text in added])
        self._encoder = SegmentEncoder(self._tokenizer, with_added(self._kind.cuts, added))
        self._learned, self._former = learned, former
        self.added = tuple(added)
        self.sentinels = sentinels_of(learned.vocabulary)
        entries = by_id(learned.vocabulary)
        pieces = entries[len(SPECIAL_TOKENS) : len(entries) - len(self.sentinels)]
        self.token_bytes: Sequence[bytes] = (
            *[b""] * len(SPECIAL_TOKENS),
            *map(self._kind.token_bytes, pieces),
            *[b""] * len(self.sentinels),
            *map(self._kind.token_bytes if self._kind.space_prefix else str.encode, added),
        )
        self.vocabulary_size = len(self.token_bytes)
        """Special ids included; smaller than asked for where the text allowed no more."""
        self.text_separator = self._kind.text_separator
        self.space_prefix = self._kind.space_prefix
        self.has_unknown = self._kind.has_unknown
        """Whether a character may become `<unk>`, because no entry spells it."""
        self.special_ids = MASKED_IDS if entries[MASK] == MASK_TOKEN else SPECIAL_IDS
        self.pretrained = False
        self.template = SpecialTokenTemplate()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it.

        The only special id is `<unk>`, once for each unknown character or word, where `has_unknown`. Raises
        UsageError if a text is not a string or holds half a character (a lone surrogate).
        """
        return self._encoder.encode(texts)

    def with_sentinels(self, count: int) -> TextTokenizer:
        """A new tokenizer with sentinels for so many corrupted spans as its last entries."""
        return TextTokenizer(self.kind, with_sentinels(self._learned, count), self.normalisation)

    def with_mask(self) -> TextTokenizer:
        """A new tokenizer of a masked language model. Raises UsageError if a text could spell the mask."""
        if self.kind == "whitespace":
            raise UsageError(
                f"data.tokenizer must be another one where there are masks, since the words of whitespace"
                f" may spell {MASK_TOKEN}; take words or wordpiece"
            )
        return TextTokenizer(self.kind, with_mask(self._learned), self.normalisation)

    def with_added_tokens(self, tokens: Sequence[str]) -> TextTokenizer:
        """The same tokenizer with these entries at its end. Raises UsageError if they cannot be added."""
        check_added(tokens, self._tokenizer.get_vocab(), set(self.token_bytes))
        changed = TextTokenizer(
            self.kind,
            self._learned,
            self.normalisation,
            former=self._former,
            added=(*self.added, *tokens),
        )
        check_whole(changed, tokens, self.vocabulary_size)
        return changed.with_special_ids(self.special_ids)

    def with_special_ids(self, special_ids: SpecialIds) -> Self:
        """The same tokenizer for a model that uses special tokens in another way."""
        changed = copy.copy(self)
        changed.special_ids = special_ids
        return changed

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, but `<mask>`, with the spaces before it, gives the mask id where there is one."""
        if self.special_ids.mask is None:
            return self.encode(texts)
        texts_in_parts = [text.split(MASK_TOKEN) for text in checked_texts(texts)]
        parts = []
        for *before, last in texts_in_parts:
            parts += [*(part.rstrip(" ") for part in before), last]
        encoded, rows = iter(self.encode(parts)), []
        for parts_of_text in texts_in_parts:
            ids = next(encoded)
            for _ in parts_of_text[1:]:
                ids = [*ids, self.special_ids.mask, *next(encoded)]
            rows.append(ids)
        return rows

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The characters `text[begin:end]` of each id of `encode`. Raises as `encode` does."""
        prepare_for_fork()
        with panics_are_errors("encode"):
            encodings = self._tokenizer.encode_batch(checked_batch(texts), add_special_tokens=False)
            return [encoding.offsets for encoding in encodings]

    def stable_prefix(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still being typed: the ids that stay whatever comes next, and the bytes of the rest.

        Under the normalisation "nfc" a combining mark that comes next can still change the last character.
        Raises as `encode` does.
        """
        (text,) = checked_texts([text])
        text = self.normalise(text)
        length = self._stable_length(text)
        (ids,) = self.encode([text[:length]])
        rest = text[length:]
        if self.space_prefix and rest:
            words = rest.strip() if self.kind == "wordpiece" else rest.strip(" ")
            return ids, self.space_prefix + words.encode()
        if self.text_separator:
            # spaces are lost, but a space says that the word before it is whole
            return ids, (self.text_separator if ids and rest else b"") + rest.strip().encode()
        return ids, rest.encode()

    def _stable_length(self, text: str) -> int:
        """How much of a text stays the same tokens whatever comes next. Where an added entry may begin that
        is not whole yet, the text before it is as far as anybody knows."""
        begin, end = 0, len(text)
        if self.added:
            longest = max(map(len, self.added))
            for start in range(len(text) - 1, max(-1, len(text) - longest), -1):
                if any(token.startswith(text[start:]) for token in self.added):
                    end = start
            first_added = self.vocabulary_size - len(self.added)
            (ids,), (spans,) = self.encode([text[:end]]), self.offsets([text[:end]])
            ends = [stop for i, (_, stop) in zip(ids, spans, strict=True) if i >= first_added]
            begin = ends[-1] if ends else 0
        return begin + self._kind.stable_length(text[begin:end])

    @property
    def space_suffix(self) -> bytes:
        """No tokenizer of ours writes spaces after words."""
        return b""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids. Special ids, `<unk>` too, add nothing to it.

        Words are joined by one space; with wordpiece and unigram no space begins a text. Bytes that are no
        whole character become U+FFFD, as a model may end in the middle of one. Raises UsageError if an id
        is outside of the vocabulary.
        """
        check_ids(ids, self.vocabulary_size)
        spelled = [self.token_bytes[i] for i in ids]
        if self.text_separator:
            spelled = [piece for piece in spelled if piece]
        return (
            self.text_separator.join(spelled)
            .removeprefix(self.space_prefix)
            .decode("utf-8", "replace")
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form: spaces are kept, special ids have their names.

        A byte that is no whole character in its piece is shown in hexadecimal, such as `⟨e2⟩`.
        """
        check_ids(ids, self.vocabulary_size)
        names = {i: sentinel(number) for number, i in enumerate(self.sentinels)}
        names |= dict(enumerate(SPECIAL_TOKENS))
        if self.special_ids.mask is not None:
            names[self.special_ids.mask] = MASK_TOKEN
        return [names[i] if i in names else readable(self.token_bytes[i]) for i in ids]

    def normalise(self, text: str) -> str:
        """The text as `data.normalisation` changes it."""
        normalizer = normalizer_of(self.normalisation)
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of a folder that it is read from, by name."""
        return {"tokenizer.json": self.to_json().encode()}

    @property
    def tokenizer_config(self) -> dict[str, object]:
        """The content of `tokenizer_config.json`, with which `transformers` opens the tokenizer.

        `transformers` makes added tokens of the special ones: there, and only there, a text that spells one
        becomes one.
        """
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL_TOKENS[PAD],
            "bos_token": SPECIAL_TOKENS[BOS],
            "eos_token": SPECIAL_TOKENS[EOS],
            "clean_up_tokenization_spaces": False,
        }
        if self.special_ids.mask is not None:
            roles = {"cls": SPECIAL_TOKENS[BOS], "sep": SPECIAL_TOKENS[EOS], "mask": MASK_TOKEN}
            config |= {f"{role}_token": name for role, name in roles.items()}
        return config | ({"unk_token": SPECIAL_TOKENS[UNK]} if self.has_unknown else {})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal: equal for tokenizers that do the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> TextTokenizer:
        """The tokenizer that `to_json` wrote.

        Only the vocabulary, the merges and the scores are taken from `text`. Everything else is built again
        and must be the same, so that nothing foreign (such as a regular expression without end) ever runs.
        Raises FolderError otherwise.
        """
        try:
            content = json.loads(text)
            given = content.pop("added_tokens", None) or []
            kind, normalisation, former = _recognised(content)
            vocabulary = content["model"]["vocab"]
            merges = [(left, right) for left, right in content["model"].get("merges", [])]
            unigram = kind == "unigram"
            learned = _scored(vocabulary, merges) if unigram else Learned(vocabulary, merges, [])
            _check_learned(kind, learned)
            added = [entry["content"] for entry in given]
            with panics_are_errors("load"):
                made = cls(kind, learned, normalisation, former=former, added=added)
            if added and json.loads(made.to_json())["added_tokens"] != given:
                raise ValueError("its added tokens are others")
            return made
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            SeqloomError,
        ) as error:
            raise FolderError(
                f"tokenizer.json must be as seqloom wrote it, but {shown(error, 200)}; restore the file, or"
                " train again"
            ) from None


def train_tokenizer(
    texts: Iterable[str],
    kind: str = "bpe",
    vocabulary: int = 8000,
    normalisation: Normalisation = "none",
    minimum_count: int = 1,
) -> TextTokenizer:
    """Learns a tokenizer of at most `vocabulary` ids, the 16 special ones included, and of words that occur
    at least `minimum_count` times.

    Where the text allows fewer, `vocabulary_size` is smaller; that is no error. The same texts give the same
    ids, in any order and on any number of threads. Case is kept; `normalisation` "nfc" composes characters
    (Unicode form C) in training and in encoding.

    Raises UsageError if the kind is unknown, where `vocabulary` is too small (the smallest is named), or
    where a text is not a string or holds half a character; DataError if there is no text.
    """
    kind = str(tokenizer_kind(kind))
    if kind not in KINDS:
        summaries = "; ".join(f"{name} ({k.summary})" for name, k in KINDS.items())
        raise UsageError(
            f"the kind of tokenizer must be one of {', '.join(KINDS)}, but is {printable(kind)!r}. They"
            f" are: {summaries}"
        )
    if normalisation not in get_args(Normalisation):
        raise UsageError(
            f"the normalisation must be one of none, nfc, but is {printable(str(normalisation))!r}"
        )
    require_vocabulary(kind, vocabulary, KINDS[kind].min_vocabulary)
    prepare_for_fork()
    with panics_are_errors("train"):
        learned = learn(kind, checked_texts(texts), vocabulary, normalisation, minimum_count)
        return TextTokenizer(kind, learned, normalisation)


# --- reading a tokenizer.json
# ----------------------------------------------------------------------------------------


def _recognised(content: object) -> tuple[str, Normalisation, bool]:
    """The kind and normalisation that build the same `tokenizer.json`, except for what training decides; and
    whether it is the former one of that kind."""
    fixed = _without_learned(content)
    untrained = Learned(SPECIALS, [], [0.0] * len(SPECIALS))
    forms = [(name, kind, False) for name, kind in KINDS.items()]
    forms += [(name, kind.former, True) for name, kind in KINDS.items() if kind.former is not None]
    for name, kind, former in forms:
        for normalisation in get_args(Normalisation):
            ours = json.loads(assemble(kind, untrained, normalisation).to_str())
            if _alike(fixed, _without_learned(ours)):
                return name, normalisation, former
    raise ValueError(
        f"it is none of the kinds {', '.join(KINDS)}, or its special tokens match inside of text"
    )


def _without_learned(content: object) -> dict[object, object]:
    """A `tokenizer.json` without what training decides. Raises ValueError if it holds no tokenizer."""
    match content:
        case {"model": dict(model), **parts}:
            fixed = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
            return {**parts, "model": fixed}
    raise ValueError("it holds no tokenizer")


def _alike(ours: object, theirs: object) -> bool:
    """Equal, where an absent key counts as null, false or empty: versions of the library differ in that."""
    match ours, theirs:
        case dict(), dict():
            keys = ours.keys() | theirs.keys()
            return all(_alike(ours.get(key), theirs.get(key)) for key in keys)
    return bool(ours == theirs or not (ours or theirs))


def _scored(entries: list[tuple[str, float]], merges: Merges) -> Learned:
    """The vocabulary of unigram. Raises ValueError or TypeError if it is invalid."""
    scores = [score for _, score in entries]
    vocabulary = {piece: i for i, (piece, _) in enumerate(entries)}
    if len(vocabulary) < len(entries):
        raise ValueError("an entry occurs twice")
    if not all(type(score) in (int, float) and math.isfinite(score) for score in scores):
        raise ValueError("one of its scores is no number")
    return Learned(vocabulary, merges, [float(score) for score in scores])


def _check_learned(kind: str, learned: Learned) -> None:
    """Raises ValueError if ids would be lost, shared or not what the kind promises."""
    vocabulary, merges, _ = learned
    ids = vocabulary.values()
    if not all(type(i) is int for i in ids) or sorted(ids) != list(range(len(vocabulary))):
        raise ValueError("its ids are not the numbers from 0 on, each once")
    entries = by_id(vocabulary)
    pieces = entries[len(SPECIALS) : len(entries) - len(sentinels_of(vocabulary))]
    special = {SPECIAL_TOKENS, tuple(by_id(with_mask(Learned(SPECIALS, [], [])).vocabulary))}
    if tuple(entries[: len(SPECIALS)]) not in special:
        raise ValueError(
            f"its ids 0 to {len(SPECIALS) - 1} are not {' '.join(SPECIAL_TOKENS[:5])} ..."
        )
    if kind == "characters" and any(len(piece) != 1 for piece in pieces):
        raise ValueError("one of its pieces is not one character")
    if kind == "bytes" and pieces != byte_symbols():
        raise ValueError("its pieces are not the 256 bytes in order")
    if kind == "bpe" and not set("".join(pieces)) == set(byte_symbols()) <= set(pieces):
        raise ValueError("its pieces are not made of the 256 bytes, each of which is one of them")
    if kind == "unigram" and not all(pieces):
        raise ValueError("one of its pieces is empty")
    if merges and kind != "bpe":
        raise ValueError(f"the kind {kind} has merges")
    for left, right in merges:
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ValueError("one of its merges is not in the vocabulary")
