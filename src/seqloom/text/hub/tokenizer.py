"""Tokenizers of the field's checkpoints: the same ids as `transformers`, from the same files.

A text that spells a special token stays text: `[MASK]` in what a user writes is no mask. For that the special
entries have names, in the pipeline that runs, that no text holds. What `to_json` gives has their own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import Encoding, Tokenizer

from seqloom.errors import FolderError, SeqloomError, UsageError, printable
from seqloom.files import read_json
from seqloom.protocols import SpecialIds
from seqloom.text.byte_symbols import readable
from seqloom.text.hub.special_ids import Roles, frame_of, special_ids_of
from seqloom.text.hub.token_bytes import token_bytes_of
from seqloom.text.hub.tokenizer_files import (
    JSON,
    MARIAN,
    OTHER_SIDE,
    Side,
    TokenizerSettings,
    is_marian,
    kept_files,
    pipeline_of,
)
from seqloom.text.tokenizers_library import batch_of, checked, panics_are_errors, prepare_forks

KINDS = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
_CUT_AT_BLANKS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel")


@final
class HubTokenizer:
    """Meets `protocols.Tokenizer`. Made by `read_hub_tokenizer`; `content` is a `tokenizer.json`, `entries`
    its ids by name."""

    def __init__(
        self,
        content: str,
        pipeline: Mapping[str, Any],
        entries: Mapping[str, int],
        special_ids: SpecialIds,
        size: int,
    ) -> None:
        self.kind = KINDS[pipeline["model"]["type"]]
        self.special_ids = special_ids
        self.vocabulary_size = size
        """The number of ids of the model; those that no entry has spell nothing."""
        self.frame = frame_of(pipeline.get("post_processor"))
        """What it puts around a text, and between two, by itself: nothing, of the causal models of the field.
        """
        self.target = self
        """The tokenizer of what a model writes. Marian's other language has pieces of its own, and the same
        ids."""
        self.files: Mapping[str, bytes] = {JSON: content.encode()}
        """What a folder must hold for it, by name: `tokenizer.json`, or the files of Marian's two languages.
        """
        self._content = content
        self._entries = entries
        self._special = _special(pipeline, special_ids)
        self._spelling = token_bytes_of(pipeline.get("decoder"))
        self._lent = {
            token.removeprefix(OTHER_SIDE): i for token, i in entries.items() if token.startswith(OTHER_SIDE)
        }
        self._surplus = special_ids.unk if max(entries.values()) >= size else None
        self._settles = _settles(pipeline)
        self._composes = '"type": "Precompiled"' in json.dumps(pipeline.get("normalizer"))
        self.running = _running(pipeline, {token: i for token, i in entries.items() if i in self._special})

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        """The UTF-8 that each id stands for, or a part of a character of it; a blank where it begins (or
        ends) a word."""
        spelled = [b""] * self.vocabulary_size
        for token, i in self._entries.items():
            if i < self.vocabulary_size and i not in self._special:
                spelled[i] = self._spelling.spell(token)
        return tuple(spelled)

    @property
    def text_separator(self) -> bytes:
        """What stands between the pieces of a text: nothing, but for whole words."""
        return self._spelling.text_separator

    @property
    def space_prefix(self) -> bytes:
        """What pieces that begin a word spell first: `decode` drops it at the begin of a text."""
        return self._spelling.space_prefix

    @property
    def unknown(self) -> bool:
        """Whether there may be text that this tokenizer has no way to spell."""
        return self.special_ids.unk is not None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without marks around it; of special ids only the unknown one comes out.

        Raises UsageError where a text is not a string or holds half a character (a lone surrogate).
        """
        prepare_forks()
        with panics_are_errors("encode"):
            encode = (
                self.running.encode_batch if self._lent else self.running.encode_batch_fast
            )  # which leaves the pieces out
            found = [self._ids_of(one) for one in encode(batch_of(texts), add_special_tokens=False)]
        if self._surplus is None:
            return found
        return [[i if i < self.vocabulary_size else self._surplus for i in ids] for ids in found]

    def _ids_of(self, encoding: Encoding) -> list[int]:
        """What the pieces of one language of Marian cannot spell stays whole, and may be an entry of the
        other."""
        ids: list[int] = encoding.ids
        if self._lent and self.special_ids.unk in ids:
            return [
                self._lent.get(token, i) if i == self.special_ids.unk else i
                for i, token in zip(ids, encoding.tokens, strict=True)
            ]
        return ids

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The characters `text[begin:end]` that each id of `encode` comes from. Those of one character may
        share it."""
        prepare_forks()
        texts = batch_of(texts)
        with panics_are_errors("encode"):
            found = self.running.encode_batch(texts, add_special_tokens=False)
            return [
                self._placed(text, one) if self._composes else one.offsets
                for text, one in zip(texts, found, strict=True)
            ]

    def _placed(self, text: str, encoding: Encoding) -> list[tuple[int, int]]:
        """Where a table of sentencepiece drops characters, the library shifts what follows; so they are left
        out before, where that changes nothing else. Where the table composes characters, the library counts
        the first alone; here marks belong to what they mark.
        """
        spans: list[tuple[int, int]] = encoding.offsets
        normal = self.running.normalizer.normalize_str
        dropped = {
            c for c in set(text) if unicodedata.category(c)[0] == "C" and normal(f"a{c}a") == "aa"
        }  # alone a blank goes too
        if dropped:
            kept = [at for at, c in enumerate(text) if c not in dropped]
            again = self.running.encode("".join(text[at] for at in kept), add_special_tokens=False)
            if again.ids == encoding.ids:
                spans = [
                    (kept[begin], kept[end - 1] + 1) if begin < end else (begin, begin)
                    for begin, end in again.offsets
                ]
        return _with_marks(text, spans)

    def settle(self, text: str) -> tuple[list[int], bytes]:
        """A text that is still being typed: the ids that stay, whatever comes after it, and the bytes that
        the rest spells.

        Words stay that a blank has ended; where pieces go across words, nothing does.
        """
        (text,) = checked([text])
        blanks = (
            [at for at in range(1, len(text)) if text[at] == " " and not text[at - 1].isspace()]
            if self._settles
            else []
        )
        sure = blanks[-1] if blanks else 0
        (ids,) = self.encode([text[:sure]])
        return ids, self._rest(text[sure:], bool(ids))

    def _rest(self, text: str, follows: bool) -> bytes:
        """How pieces spell the end of a text."""
        lead, trail = self._spelling.space_prefix, self._spelling.trail
        if not (lead or trail or self.text_separator):
            return text.encode()
        if (normalizer := self.running.normalizer) is not None:
            with panics_are_errors("encode"):
                text, blank = normalizer.normalize_str(text).replace("▁", " "), text[:1] == " "
        else:
            blank = text[:1] == " "
        words = text.strip().encode()
        return (
            (lead or (self.text_separator if follows else b"")) + words
            if words or (blank and not trail)
            else b""
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` spell. Special ids spell nothing. Bytes that are no whole character become
        U+FFFD.

        Raises UsageError where an id is outside of the vocabulary.
        """
        self._check_ids(ids)
        spelled = self.text_separator.join([piece for i in ids if (piece := self.token_bytes[i])])
        return (
            spelled.removeprefix(self._spelling.space_prefix)
            .removesuffix(self._spelling.trail)
            .decode("utf-8", "replace")
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id spells, for looking at: blanks are kept, special ids have their names."""
        self._check_ids(ids)
        return [readable(self.token_bytes[i]) or self._names.get(i, f"<{i}>") for i in ids]

    def token(self, i: int) -> str | None:
        """The entry of an id, as the files have it; None where none has it."""
        return next((token for token, known in self._entries.items() if known == i), None)

    @cached_property
    def _names(self) -> dict[int, str]:
        return {i: token for token, i in self._entries.items()}

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self.vocabulary_size
        if len(ids) and (min(ids) < 0 or max(ids) >= size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise UsageError(
                f"an id must be from 0 to {size - 1}, but {wrong} was given; was it made by another"
                " tokenizer?"
            )

    def to_json(self) -> str:
        """The content of `tokenizer.json`: as it was read, or as it was made of other files."""
        return self._content

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        return hashlib.sha256(self._content.encode()).hexdigest()


def read_hub_tokenizer(folder: Path, config: Mapping[str, Any]) -> HubTokenizer:
    """The tokenizer of a checkpoint's folder, whose `config.json` is `config`; `generation_config.json` goes
    before it where it is there.

    Raises FolderError, in one line, where files are missing or damaged, where two entries share an id, or
    where there are more entries than the model has ids.
    """
    tokenizer = _read(folder, config, "source")
    if is_marian(folder):
        tokenizer.files = {name: (folder / name).read_bytes() for name in kept_files(folder)}
        source, target, _ = (tokenizer.files[name] for name in MARIAN)
        if source != target:
            tokenizer.target = _read(folder, config, "target")
    return tokenizer


def _read(folder: Path, config: Mapping[str, Any], side: Side) -> HubTokenizer:
    """That of one language of Marian, of others the one."""
    content = pipeline_of(folder, config, side)
    where = printable(str(folder))
    if (folder / "generation_config.json").exists():
        generation = read_json(folder / "generation_config.json")
        config = {**config, **{key: value for key, value in generation.items() if value is not None}}
    try:
        pipeline: dict[str, Any] = json.loads(content)
        entries = _entries(pipeline)
        size = config.get("vocab_size", max(entries.values(), default=-1) + 1)
        _check_entries(pipeline, entries, size, str(config.get("model_type", "")))
        roles = _roles(pipeline, entries, TokenizerSettings.of(folder))
        missing = set(range(size)) - set(entries.values())
        special_ids = special_ids_of(config, size, roles, frame_of(pipeline.get("post_processor")), missing)
        with panics_are_errors("load"):
            return HubTokenizer(content, pipeline, entries, special_ids, size)
    except FolderError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
        SeqloomError,
    ) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise FolderError(
            f"{where}: its tokenizer cannot be read: {printable(said)[:200]}; get its files again"
        ) from None


def _entries(pipeline: Mapping[str, Any]) -> dict[str, int]:
    """The id of each entry, added ones included."""
    vocabulary = pipeline["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {text: i for i, (text, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in pipeline.get("added_tokens") or []}}


def _check_entries(pipeline: Mapping[str, Any], entries: Mapping[str, int], size: int, family: str) -> None:
    """Raises ValueError where ids are none, are shared or are more than the model's."""
    model = pipeline["model"]
    if model.get("type") not in KINDS:
        raise ValueError(f"its model must be one of {', '.join(KINDS)}, but is {model.get('type')}")
    if type(size) is not int or size < 1:
        raise ValueError(f"vocab_size of config.json must be a number from 1 on, but is {size}")
    ids = entries.values()
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError("its ids are not numbers from 0 on")
    if len(set(ids)) < len(entries):
        raise ValueError("two of its entries have the same id")
    if isinstance(model["vocab"], list) and len({text for text, _ in model["vocab"]}) < len(model["vocab"]):
        raise ValueError("an entry stands twice in its vocabulary")
    if max(ids, default=-1) >= size and family != "marian":
        raise ValueError(
            f"it has ids up to {max(ids)}, but the model only {size} (vocab_size of config.json)"
        )


def _roles(pipeline: Mapping[str, Any], entries: Mapping[str, int], settings: TokenizerSettings) -> Roles:
    model = pipeline["model"]
    unknown = model.get("unk_id") if model["type"] == "Unigram" else entries.get(model.get("unk_token") or "")
    added = {token["content"] for token in pipeline.get("added_tokens") or [] if token["special"]}
    mask = settings.token("mask") or next((token for token in ("[MASK]", "<mask>") if token in added), None)
    return Roles(unknown=unknown, pad=entries.get(settings.token("pad") or ""), mask=entries.get(mask or ""))


def _special(pipeline: Mapping[str, Any], special_ids: SpecialIds) -> set[int]:
    """The ids that are no text."""
    added = {token["id"] for token in pipeline.get("added_tokens") or [] if token["special"]}
    single = {special_ids.pad, special_ids.eos, special_ids.unk, special_ids.mask}
    return {
        i
        for i in added
        | single
        | {*special_ids.bos, *special_ids.prefix, *special_ids.separator, *special_ids.suffix}
        if i is not None and i >= 0
    }


def _running(pipeline: Mapping[str, Any], special: Mapping[str, int]) -> Tokenizer:
    """The pipeline under which no text can spell a special entry, with nothing cut off, filled up or left to
    chance."""
    chance = secrets.token_hex(16)
    hidden = {token: f"{chance}{i}" for token, i in special.items()}
    model = (
        {**pipeline["model"], "dropout": None}
        if pipeline["model"]["type"] == "BPE"
        else dict(pipeline["model"])
    )
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {hidden.get(token, token): i for token, i in vocabulary.items()}
    else:
        model["vocab"] = [(hidden.get(token, token), score) for token, score in vocabulary]
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        merges = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
        model["merges"] = [
            (left, right) for left, right in merges if not {left, right, left + right} & hidden.keys()
        ]
    added = [
        {**token, "content": hidden.get(token["content"], token["content"])}
        for token in pipeline.get("added_tokens") or []
    ]
    return Tokenizer.from_str(
        json.dumps({**pipeline, "model": model, "added_tokens": added, "truncation": None, "padding": None})
    )


def _with_marks(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, with the marks (vowels and finals of Hangul too) that follow their last character and are in
    no other span."""
    begins, found = [begin for begin, _ in spans], []
    for at, (begin, end) in enumerate(spans):
        following = bisect_left(begins, end, lo=at + 1)
        limit = begins[following] if following < len(begins) else len(text)
        while begin < end < limit and (
            unicodedata.category(text[end])[0] == "M" or "\u1160" <= text[end] <= "\u11ff"
        ):
            end += 1
        found.append((begin, end))
    return found


def _settles(pipeline: Mapping[str, Any]) -> bool:
    """Whether what stands before a blank stays as it is, whatever comes after."""
    added = [token for token in pipeline.get("added_tokens") or [] if not token["special"]]
    if any(
        " " in token["content"] or token["lstrip"] or token["rstrip"] or token["single_word"]
        for token in added
    ):
        return False
    splitter = pipeline.get("pre_tokenizer") or {"type": None}
    parts = splitter["pretokenizers"] if splitter["type"] == "Sequence" else [splitter]
    return any(
        part["type"] in _CUT_AT_BLANKS and part.get("split", True) and part.get("use_regex", True)
        for part in parts
    )
