"""Tokenizers of checkpoints: the same ids as `transformers`, from the same files.

A text that spells a special token stays text: `[MASK]` in what a user writes is no mask. So in the pipeline
that encodes, the special entries have hidden names that no text holds. `to_json` gives their own names.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import secrets
import unicodedata
from base64 import b64decode
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self, final

from tokenizers import Encoding, Tokenizer

from seqloom.errors import FolderError, SeqloomError, UsageError, shown
from seqloom.files import is_there, read_bytes, read_json_object
from seqloom.json_values import JsonObject
from seqloom.protocols import SpecialIds
from seqloom.text.added_tokens import added_token, check_added, check_whole
from seqloom.text.byte_symbols import readable
from seqloom.text.hub.charsmap import Charsmap, NormalisedText
from seqloom.text.hub.cuts import cuts_of
from seqloom.text.hub.pipeline import Model, Pipeline, added_entries, check_growth, entries_of
from seqloom.text.hub.special_ids import (
    TokenizerSpecials,
    check_special_ids,
    special_ids_of,
    special_token_names,
    template_of,
)
from seqloom.text.hub.token_bytes import token_bytes_of
from seqloom.text.hub.tokenizer_files import (
    JSON,
    MARIAN,
    MAX_BYTES,
    OTHER_LANGUAGE,
    Side,
    TokenizerSettings,
    is_marian,
    tokenizer_file_names,
    tokenizer_json,
)
from seqloom.text.segment_encoder import SegmentEncoder
from seqloom.text.special_tokens import sentinel
from seqloom.text.tokenizers_library import (
    check_ids,
    checked_batch,
    checked_texts,
    panics_are_errors,
    prepare_for_fork,
)

KINDS = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes of transformers that do what tokenizer.json says."""
SPLIT_AT_SPACES = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel")
NAMES_CODE_OR_PLACES = {
    "auto_map",
    "name_or_path",
    "tokenizer_class",
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "special_tokens_map_file",
}
"""Keys of a tokenizer_config.json that are not kept."""


@final
class HubTokenizer:
    """Meets `protocols.StoredTokenizer`. Made by `read_hub_tokenizer`.

    `content` is a `tokenizer.json`, parsed in `pipeline`; `entries` are its ids by name. `config` is a
    config.json, overridden by a generation_config.json.
    """

    def __init__(
        self,
        content: str,
        entries: Mapping[str, int],
        special_ids: SpecialIds,
        size: int,
        settings: TokenizerSettings,
        config: JsonObject,
        *,
        marian: bool = False,
    ) -> None:
        pipeline: Pipeline = json.loads(content)
        self.kind = KINDS[pipeline["model"]["type"]]
        self.pretrained = True
        self.special_ids = special_ids
        self.vocabulary_size = size
        """The number of ids of the model; those without an entry spell nothing."""
        self.has_unknown = special_ids.unk is not None
        """Whether there may be text that no entries spell."""
        self.template = template_of(pipeline.get("post_processor"))
        """What it puts around a text by itself; nothing for the causal models of the hub."""
        self.target = self
        """The tokenizer of what a model writes. Marian's other language has pieces of its own, and the same
        ids."""
        self.files: Mapping[str, bytes] = {JSON: content.encode()}
        """The files of a folder that it is read from: `tokenizer.json`, or those of Marian's two languages.
        """
        self._content = content
        self._settings = settings
        self._config = config
        self._entries = entries
        self._special = _special(pipeline, special_ids)
        self._decoder = token_bytes_of(pipeline.get("decoder"))
        self.text_separator = self._decoder.text_separator
        self.space_prefix = self._decoder.space_prefix
        self._other_language = {
            token.removeprefix(OTHER_LANGUAGE): i
            for token, i in self._entries.items()
            if token.startswith(OTHER_LANGUAGE)
        }
        self._charsmap = _taken_charsmap(pipeline) if marian else None
        """Normalises the texts of Marian, before the pipeline reads them."""
        self._marian = marian
        self._surplus_entries = max(self._entries.values()) >= size
        self._splits_at_spaces = _splits_at_spaces(pipeline)
        self._composes = '"type": "Precompiled"' in json.dumps(pipeline.get("normalizer"))
        special = {token: i for token, i in self._entries.items() if i in self._special}
        self.pipeline = _with_hidden_names(pipeline, special)
        self._encoder = SegmentEncoder(self.pipeline, cuts_of(pipeline))

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        """The UTF-8 of each id, or part of the UTF-8 of a character; with a space where a word begins (or
        ends)."""
        spelled = [b""] * self.vocabulary_size
        for token, i in self._entries.items():
            if i < self.vocabulary_size and i not in self._special:
                spelled[i] = self._decoder.token_bytes(token)
        return tuple(spelled)

    @cached_property
    def sentinels(self) -> tuple[int, ...]:
        """The ids of `<extra_id_0>` and on, as T5 has them for corrupted spans; none in other checkpoints."""
        numbers = itertools.takewhile(
            lambda number: sentinel(number) in self._entries, itertools.count()
        )
        return tuple(self._entries[sentinel(number)] for number in numbers)

    @cached_property
    def _names(self) -> dict[int, str]:
        return {i: token for token, i in self._entries.items()}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it; the only special id is the unknown one.

        Raises UsageError if a text is not a string or holds half a character (a lone surrogate).
        """
        if not self._marian:
            return self._encoder.encode(texts)
        prepare_for_fork()
        return [[i for i, _ in found] for found in self._encode_marian(checked_batch(texts))]

    def _encode_marian(self, texts: Sequence[str]) -> list[list[tuple[int, tuple[int, int]]]]:
        """Ids, each with its characters. A text may begin with the code of a language, which is one id."""
        codes = [_language_code(text) for text in texts]
        rests = [
            self._normalised(text[len(code) :]) for text, code in zip(texts, codes, strict=True)
        ]
        with panics_are_errors("encode"):
            encodings = self.pipeline.encode_batch(
                [rest.text for rest in rests], add_special_tokens=False
            )
        found = []
        for code, rest, encoding in zip(codes, rests, encodings, strict=True):
            pieces: list[tuple[int, tuple[int, int]]] = []
            if code:
                pieces.append((self._other_language.get(code, self._unknown), (0, len(code))))
            for i, token, (begin, end) in zip(
                encoding.ids, encoding.tokens, encoding.offsets, strict=True
            ):
                characters = rest.spans[begin:end]
                span = (len(code), len(code))
                if characters:
                    span = (characters[0][0] + len(code), characters[-1][1] + len(code))
                pieces += [(token_id, span) for token_id in self._ids_of_piece(i, token)]
            found.append(pieces)
        return found

    @property
    def _unknown(self) -> int:
        """The id of what is unknown, which every Marian has."""
        assert self.special_ids.unk is not None
        return self.special_ids.unk

    def _ids_of_piece(self, i: int, token: str) -> list[int]:
        """What one language of Marian cannot spell stays whole, and may be an entry of the other, or the
        bytes of its characters where the vocabulary has them all."""
        if i >= self.vocabulary_size:
            return [self._unknown]
        if i != self._unknown:
            return [i]
        if token in self._other_language:
            return [self._other_language[token]]
        spelled = [self._other_language.get(f"<0x{byte:02X}>") for byte in token.encode()]
        known = [token_id for token_id in spelled if token_id is not None]
        return known if known and len(known) == len(spelled) else [i]

    def _normalised(self, text: str) -> NormalisedText:
        if self._charsmap is None:
            return NormalisedText(text, [(index, index + 1) for index in range(len(text))])
        return self._charsmap.normalise(text)

    def normalised(self, text: str) -> str:
        """A text as its pieces are looked for in it."""
        text = self._normalised(text).text
        normalizer = self.pipeline.normalizer
        if normalizer is None:
            return text
        with panics_are_errors("encode"):
            return str(normalizer.normalize_str(text))

    def with_special_ids(self, special_ids: SpecialIds) -> Self:
        """The same tokenizer for a model that uses special tokens in another way."""
        changed = copy.copy(self)
        changed.special_ids = special_ids
        return changed

    def with_added_tokens(self, tokens: Sequence[str]) -> HubTokenizer:
        """The same tokenizer with further entries. Raises UsageError if they cannot be added."""
        if self._marian:
            raise UsageError(
                "data.add_tokens is not for a Marian, whose files are those of sentencepiece; leave it out"
            )
        check_added(tokens, self._entries, set(self.token_bytes))
        first = max(self._entries.values()) + 1
        pipeline = json.loads(self._content)
        new = {token: i for i, token in enumerate(tokens, start=first)}
        listed = [{"id": i, **added_token(token)} for token, i in new.items()]
        content = {**pipeline, "added_tokens": [*(pipeline.get("added_tokens") or []), *listed]}
        ids = self.special_ids
        changed = HubTokenizer(
            json.dumps(content, ensure_ascii=False, indent=2),
            {**self._entries, **new},
            ids._replace(forbidden=tuple(i for i in ids.forbidden if i not in new.values())),
            max(self.vocabulary_size, first + len(tokens)),
            self._settings,
            self._config,
        )
        check_whole(changed, tokens, first)
        return changed

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, but the name of the mask token gives the mask id."""
        mask = self.special_ids.mask
        if mask is None:
            return self.encode(texts)
        (name,) = self.pieces([mask])
        hidden_name = str(self.pipeline.id_to_token(mask))
        return self.encode([text.replace(name, hidden_name) for text in texts])

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The characters `text[begin:end]` of each id of `encode`. Ids may share a character."""
        prepare_for_fork()
        texts = checked_batch(texts)
        if self._marian:
            return [[span for _, span in found] for found in self._encode_marian(texts)]
        with panics_are_errors("encode"):
            encodings = self.pipeline.encode_batch(texts, add_special_tokens=False)
            if not self._composes:
                return [encoding.offsets for encoding in encodings]
            return [self._composed_offsets(*pair) for pair in zip(texts, encodings, strict=True)]

    def _composed_offsets(self, text: str, encoding: Encoding) -> list[tuple[int, int]]:
        """Where a charsmap of sentencepiece drops characters, the library shifts the offsets after them; so
        these characters are left out first, if that changes no ids. Where it composes characters, the library
        counts only the first; here combining marks belong to their character.
        """
        spans: list[tuple[int, int]] = encoding.offsets
        normalise = self.pipeline.normalizer.normalize_str
        # "a" around it, as a space alone is dropped too
        dropped = {
            c
            for c in set(text)
            if unicodedata.category(c)[0] == "C" and normalise(f"a{c}a") == "aa"
        }
        if dropped:
            kept = [index for index, c in enumerate(text) if c not in dropped]
            shorter = self.pipeline.encode(
                "".join(text[index] for index in kept), add_special_tokens=False
            )
            if shorter.ids == encoding.ids:
                spans = []
                for begin, end in shorter.offsets:
                    if begin < end:
                        begin, end = kept[begin], kept[end - 1] + 1
                    spans.append((begin, end))
        return _with_combining_marks(text, spans)

    def stable_prefix(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still being typed: the ids that stay whatever comes next, and the bytes of the rest.

        Words are stable once a space has ended them; where pieces may cross words, nothing is.
        """
        (text,) = checked_texts([text])
        length = 0
        if self._splits_at_spaces:
            ends = [
                position
                for position in range(1, len(text))
                if text[position] == " " and not text[position - 1].isspace()
            ]
            length = ends[-1] if ends else 0
        (ids,) = self.encode([text[:length]])
        return ids, self._bytes_of_rest(text[length:], bool(ids))

    def _bytes_of_rest(self, text: str, follows: bool) -> bytes:
        """How pieces spell the end of a text, which follows other tokens or begins it."""
        prefix, suffix = self.space_prefix, self.space_suffix
        if not (prefix or suffix or self.text_separator):
            return text.encode()
        begins_with_space = text[:1] == " "
        text = self.normalised(text).replace("▁", " ")
        words = text.strip().encode()
        if not words and (suffix or not begins_with_space):
            return b""
        return (prefix or (self.text_separator if follows else b"")) + words

    @property
    def space_suffix(self) -> bytes:
        return self._decoder.space_suffix

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids. Special ids add nothing to it. Bytes that are no whole character become
        U+FFFD.

        Raises UsageError if an id is outside of the vocabulary.
        """
        check_ids(ids, self.vocabulary_size)
        spelled = self.text_separator.join([piece for i in ids if (piece := self.token_bytes[i])])
        inner = spelled.removeprefix(self.space_prefix).removesuffix(self.space_suffix)
        return inner.decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form: spaces are kept, special ids have their names."""
        check_ids(ids, self.vocabulary_size)
        return [readable(self.token_bytes[i]) or self._names.get(i, f"<{i}>") for i in ids]

    def normalise(self, text: str) -> str:
        """The same text: scores of published models are those of references as they are."""
        return text

    def to_json(self) -> str:
        """The content of `tokenizer.json`: as it was read, or as it was made of other files."""
        return self._content

    @property
    def tokenizer_config(self) -> dict[str, object]:
        """The content of our tokenizer_config.json: as it came, except what names code or places, and with
        the special tokens that the classes of `transformers` take for granted."""
        kept = {k: v for k, v in self._settings.content.items() if k not in NAMES_CODE_OR_PLACES}
        tokenizer_class = "PreTrainedTokenizerFast" if JSON in self.files else "MarianTokenizer"
        special = special_token_names(self._config, self.special_ids, self._names)
        return {**special, **kept, "tokenizer_class": tokenizer_class}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        return hashlib.sha256(self._content.encode()).hexdigest()


def read_hub_tokenizer(folder: Path, config: JsonObject) -> HubTokenizer:
    """The tokenizer of a checkpoint's folder, whose `config.json` is `config`; generation_config.json
    overrides it where it is there.

    Raises FolderError, in one line, where files are missing or damaged, where two entries share an id, or
    where there are more entries than the model has ids.
    """
    tokenizer = _read(folder, config, "source")
    if is_marian(folder):
        tokenizer.files = {
            name: read_bytes(folder / name, MAX_BYTES) for name in tokenizer_file_names(folder)
        }
        source, target, _ = (tokenizer.files[name] for name in MARIAN)
        if source != target:
            tokenizer.target = _read(folder, config, "target")
    return tokenizer


def _read(folder: Path, config: JsonObject, side: Side) -> HubTokenizer:
    """`side`: the language, for Marian."""
    content = tokenizer_json(folder, str(config.get("model_type", "")), side)
    settings = TokenizerSettings.of(folder)
    generation_path = folder / "generation_config.json"
    generation: JsonObject = {}
    if is_there(generation_path):
        generation = read_json_object(generation_path)
    check_special_ids(config, folder / "config.json")
    check_special_ids(generation, generation_path)
    try:
        given = {key: value for key, value in generation.items() if value is not None}
        effective = {**config, **given}
        pipeline: Pipeline = json.loads(content)
        check_growth(pipeline)
        entries = entries_of(pipeline)
        size = effective.get("vocab_size", max(entries.values(), default=-1) + 1)
        if type(size) is not int or size < 1:
            raise ValueError(f"vocab_size of config.json must be a number from 1 on, but is {size}")
        _check_entries(pipeline["model"], entries, size, str(effective.get("model_type", "")))
        specials = _specials(pipeline, entries, settings)
        template = template_of(pipeline.get("post_processor"))
        without_entry = set(range(size)) - set(entries.values())
        special_ids = special_ids_of(effective, size, specials, template, without_entry)
        with panics_are_errors("load"):
            tokenizer = HubTokenizer(
                content,
                entries,
                special_ids,
                size,
                settings,
                {**config, **generation},
                marian=is_marian(folder) or _reads_as_marian(config, settings),
            )
            # parts that are damaged may show only where they are used
            tokenizer.encode(["a b"])
            return tokenizer
    except FolderError:
        raise
    except KeyError as error:
        raise _unreadable(folder, f"it has no {error}") from None
    except (
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        SeqloomError,
    ) as error:
        raise _unreadable(folder, str(error)) from None


def _unreadable(folder: Path, reason: str) -> FolderError:
    return FolderError(
        f"its tokenizer cannot be read: {shown(reason, 200)}; get its files again",
        folder / JSON if is_there(folder / JSON) else folder,
    )


def _taken_charsmap(pipeline: Pipeline) -> Charsmap | None:
    """The charsmap of a pipeline that was made of a file of sentencepiece; it is taken out of it."""
    steps = (pipeline.get("normalizer") or {}).get("normalizers", [])
    for step in steps:
        if step["type"] == "Precompiled":
            steps.remove(step)
            return Charsmap(b64decode(step["precompiled_charsmap"]))
    return None


def _language_code(text: str) -> str:
    """`>>de<<`, where a text begins with one of whatever language."""
    end = text.find("<<")
    return text[: end + 2] if text.startswith(">>") and end >= 0 else ""


def _reads_as_marian(config: JsonObject, settings: TokenizerSettings) -> bool:
    """Whether it has the class of Marian's tokenizers; a model that was trained here has not."""
    plain = settings.content.get("tokenizer_class") in PLAIN_CLASSES
    return config.get("model_type") == "marian" and not plain


def _check_entries(model: Model, entries: Mapping[str, int], size: int, family: str) -> None:
    """Raises ValueError if ids are none, are shared, or are more than the model has."""
    if model.get("type") not in KINDS:
        raise ValueError(f"its model must be one of {', '.join(KINDS)}, but is {model.get('type')}")
    ids = entries.values()
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError("its ids are not numbers from 0 on")
    if len(set(ids)) < len(entries):
        raise ValueError("two of its entries have the same id")
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list) and len({text for text, _ in vocabulary}) < len(vocabulary):
        raise ValueError("an entry occurs twice in its vocabulary")
    if max(ids, default=-1) >= size and family != "marian":
        raise ValueError(
            f"it has ids up to {max(ids)}, but the model only {size} (vocab_size of config.json)"
        )


def _specials(
    pipeline: Pipeline, entries: Mapping[str, int], settings: TokenizerSettings
) -> TokenizerSpecials:
    model = pipeline["model"]
    unk = (
        model.get("unk_id")
        if model["type"] == "Unigram"
        else entries.get(model.get("unk_token") or "")
    )
    added = {entry["content"] for entry in added_entries(pipeline, special=True)}
    mask = settings.token("mask") or next(
        (name for name in ("[MASK]", "<mask>") if name in added), ""
    )
    pad, bos, eos = (entries.get(settings.token(role) or "") for role in ("pad", "bos", "eos"))
    return TokenizerSpecials(unk, pad, entries.get(mask), bos, eos)


def _special(pipeline: Pipeline, special_ids: SpecialIds) -> set[int]:
    """The ids that are no text."""
    special = {entry["id"] for entry in added_entries(pipeline, special=True)}
    special.update(
        # a forced begin may be a word
        special_ids.bos[:1],
        special_ids.prefix,
        special_ids.separator,
        special_ids.suffix,
        [special_ids.pad],
    )
    for i in (special_ids.eos, special_ids.unk, special_ids.mask):
        if i is not None:
            special.add(i)
    return special - {-1}


def _merged_pair(merge: str | list[str]) -> list[str]:
    """Both sides of a merge, which older files have in one text."""
    match merge:
        case str():
            return merge.split(" ")
        case _:
            return merge


def _with_hidden_names(pipeline: Pipeline, special: Mapping[str, int]) -> Tokenizer:
    """The pipeline in which no text can spell a special entry; without truncation, padding and dropout."""
    secret = secrets.token_hex(16)
    hidden = {token: f"{secret}{i}" for token, i in special.items()}
    model: Model = {**pipeline["model"]}
    if model["type"] == "BPE":
        model["dropout"] = None
    vocabulary = model["vocab"]
    match vocabulary:
        case dict():
            model["vocab"] = {hidden.get(token, token): i for token, i in vocabulary.items()}
        case _:
            model["vocab"] = [(hidden.get(token, token), score) for token, score in vocabulary]
    if unk_token := model.get("unk_token"):
        model["unk_token"] = hidden.get(unk_token, unk_token)
    if "merges" in model:
        model["merges"] = [
            [left, right]
            for left, right in map(_merged_pair, model["merges"])
            if not {left, right, left + right} & hidden.keys()
        ]
    added = [
        {**entry, "content": hidden.get(entry["content"], entry["content"])}
        for entry in pipeline.get("added_tokens") or []
    ]
    changes = {"model": model, "added_tokens": added, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps({**pipeline, **changes}))


def _with_combining_marks(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, with the combining marks (vowels and finals of Hangul too) that follow their last character
    and are in no other span."""
    begins, found = [begin for begin, _ in spans], []
    for index, (begin, end) in enumerate(spans):
        following = bisect_left(begins, end, lo=index + 1)
        limit = begins[following] if following < len(begins) else len(text)
        while begin < end < limit:
            if unicodedata.category(text[end])[0] != "M" and not "\u1160" <= text[end] <= "\u11ff":
                break
            end += 1
        found.append((begin, end))
    return found


def _splits_at_spaces(pipeline: Pipeline) -> bool:
    """Whether the tokens before a space stay as they are, whatever comes after it."""
    for entry in added_entries(pipeline, special=False):
        if " " in entry["content"] or entry["lstrip"] or entry["rstrip"] or entry["single_word"]:
            return False
    pre_tokenizer = pipeline.get("pre_tokenizer") or {"type": ""}
    parts = (
        pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    )
    return any(
        part["type"] in SPLIT_AT_SPACES and part.get("split", True) and part.get("use_regex", True)
        for part in parts
    )
