"""The tokenizer files of the field, each made into the content of a `tokenizer.json`: what `transformers`
builds of the same files.

    tokenizer.json                          as it is
    vocab.txt                               WordPiece (BERT, ELECTRA)
    vocab.json, merges.txt                  byte-level BPE (GPT-2, RoBERTa, BART), or BPE whose words end in `</w>` (GPT-1)
    source.spm, target.spm, vocab.json      Marian: pieces of sentencepiece, ids of vocab.json; they go before a tokenizer.json
    spiece.model, *.model                   sentencepiece, unigram or BPE (T5 and others)

Everything is data. Code that a file names (`auto_map`) is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from seqloom.errors import FolderError, printable
from seqloom.files import read_json
from seqloom.text.hub.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)

Side = Literal["source", "target"]
JSON, MARIAN, ADDED = "tokenizer.json", ("source.spm", "target.spm", "vocab.json"), "added_tokens.json"
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
LOOKED_FOR = (
    "tokenizer.json, vocab.txt, vocab.json with merges.txt, source.spm with target.spm and vocab.json, "
    + ", ".join(SENTENCEPIECE)
)
SENTINELS = 100
"""`<extra_id_99>` to `<extra_id_0>`, which stand after the pieces of T5."""
OTHER_SIDE = " "
"""Begins the entries of Marian's vocabulary that only the other language has: no text spells them, for a
blank is always a `▁`."""

_BLANK = "▁"
_LANGUAGE = re.compile(r">>.+<<\Z")


@final
class TokenizerSettings(NamedTuple):
    """`tokenizer_config.json` and `special_tokens_map.json`, where they are there; the first goes before."""

    content: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> TokenizerSettings:
        found: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).exists():
                found |= _object(folder / name)
        return cls(found)

    def token(self, role: str, usual: str | None = None) -> str | None:
        """The special token of a role such as "mask"; it may stand alone or with its options."""
        found = self.content.get(f"{role}_token", usual)
        found = found.get("content") if isinstance(found, dict) else found
        return found if isinstance(found, str) else None


def is_marian(folder: Path) -> bool:
    """Whether it has the pieces of two languages. `transformers` reads no tokenizer.json beside them, and one
    has only one language."""
    return all((folder / name).exists() for name in MARIAN)


def kept_files(folder: Path) -> tuple[str, ...]:
    """The files that must stand in a folder of ours for its tokenizer, beside tokenizer_config.json."""
    if not is_marian(folder):
        return (JSON,)
    return (*MARIAN, ADDED) if (folder / ADDED).exists() else MARIAN


def pipeline_of(folder: Path, config: Mapping[str, Any], side: Side) -> str:
    """The `tokenizer.json` of a folder, made of its other files where it has none. Raises FolderError where
    it has none of these either."""
    settings = TokenizerSettings.of(folder)
    if is_marian(folder):
        tokenizer = marian(folder, settings, side)
    elif (folder / JSON).exists():
        return _text(folder / JSON)
    elif (folder / "vocab.txt").exists():
        tokenizer = word_piece(folder, settings)
    elif (folder / "merges.txt").exists():
        tokenizer = byte_pairs(folder, settings, str(config.get("model_type", "")))
    elif found := next((folder / name for name in SENTENCEPIECE if (folder / name).exists()), None):
        tokenizer = sentence_pieces(read_sentencepiece(found), settings, str(config.get("model_type", "")))
    else:
        raise FolderError(
            f"{printable(str(folder))}: must hold the files of a tokenizer, but has none; looked for were"
            f" {LOOKED_FOR}"
        )
    _add_tokens(tokenizer, folder, settings)
    return str(tokenizer.to_str(pretty=True))


def word_piece(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """BERT's: greedy longest match within words; lower case unless `do_lower_case` is false (Devlin et al.
    2019)."""
    lines = _text(folder / "vocab.txt").removesuffix("\n").split("\n")
    vocabulary = {token: i for i, token in enumerate(lines)}
    usual = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    special = {role: settings.token(role, token) for role, token in usual.items()}
    unknown = _known(special["unk"], vocabulary, folder / "vocab.txt")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.content.get("tokenize_chinese_chars", True)),
        strip_accents=settings.content.get("strip_accents"),
        lowercase=bool(settings.content.get("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([token for token in special.values() if token in vocabulary])
    if special["cls"] in vocabulary and special["sep"] in vocabulary:
        begin, end = str(special["cls"]), str(special["sep"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[(begin, vocabulary[begin]), (end, vocabulary[end])],
        )
    return tokenizer


def byte_pairs(folder: Path, settings: TokenizerSettings, family: str) -> Tokenizer:
    """GPT-1's where words end in `</w>` (Radford et al. 2018), else byte-level (Radford et al. 2019) and,
    where it has them, with RoBERTa's marks. Merges whose pieces are not in vocab.json are refused.
    """
    vocabulary, merges = _vocabulary(folder / "vocab.json"), _merges(folder / "merges.txt")
    if family == "openai-gpt" or any(right.endswith("</w>") for _, right in merges):
        unknown = _known(settings.token("unk", "<unk>"), vocabulary, folder / "vocab.json")
        tokenizer = Tokenizer(_bpe(folder, vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        tokenizer.add_special_tokens([unknown])
        return tokenizer
    tokenizer = Tokenizer(_bpe(folder, vocabulary, merges))
    prefix = bool(settings.content.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    begin, end = settings.token("cls", "<s>"), settings.token("sep", "</s>")
    if family != "gpt2" and begin in vocabulary and end in vocabulary:
        special = [begin, settings.token("pad", "<pad>"), end, settings.token("unk", "<unk>")]
        tokenizer.add_special_tokens([token for token in special if token in vocabulary])
        if (mask := settings.token("mask", "<mask>")) in vocabulary:
            tokenizer.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
        trimmed = bool(settings.content.get("trim_offsets", True))
        tokenizer.post_processor = processors.RobertaProcessing(
            (str(end), vocabulary[str(end)]),
            (str(begin), vocabulary[str(begin)]),
            trim_offsets=trimmed,
            add_prefix_space=prefix,
        )
        return tokenizer
    special = [settings.token(role, "<|endoftext|>") for role in ("bos", "eos", "unk")]
    tokenizer.add_special_tokens(sorted({token for token in special if token in vocabulary}))
    return tokenizer


def sentence_pieces(model: SentencePieceModel, settings: TokenizerSettings, family: str) -> Tokenizer:
    """A model of sentencepiece. T5 cuts at all white space, and has sentinels after the pieces (Raffel et al.
    2020)."""
    t5 = family in ("t5", "mt5", "umt5") or settings.content.get("tokenizer_class") in (
        "T5Tokenizer",
        "T5TokenizerFast",
    )
    scores = [(piece.text, piece.score) for piece in model.pieces]
    if t5:
        extra = settings.content.get("extra_ids", SENTINELS)
        scores += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra))]
    tokenizer = Tokenizer(_sentencepiece_model(model, scores))
    special = [piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([*special, *(text for text, _ in scores[len(model.pieces) :])])
    tokenizer.add_tokens(
        [AddedToken(piece.text, normalized=False) for piece in model.pieces if piece.kind == USER_DEFINED]
    )
    if not t5:
        _sentencepiece_text(tokenizer, model)
        return tokenizer
    if model.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.charsmap)
    special_ids = pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme="always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), special_ids])
    tokenizer.decoder = decoders.Metaspace(replacement=_BLANK, prepend_scheme="always", split=True)
    _end_texts(tokenizer, settings)
    return tokenizer


def marian(folder: Path, settings: TokenizerSettings, side: Side) -> Tokenizer:
    """The pieces of one language, with the ids of vocab.json; a piece that is not in it comes after, and is
    unknown to the model."""
    if settings.content.get("separate_vocabs"):
        raise FolderError(
            f"{printable(str(folder))}: must have one vocabulary for both languages, but has two"
            " (separate_vocabs)"
        )
    model, path = read_sentencepiece(folder / f"{side}.spm"), folder / "vocab.json"
    vocabulary = _vocabulary(path)
    unknown = _known(settings.token("unk", "<unk>"), vocabulary, path)
    if model.kind != "unigram" or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise FolderError(
            f"{printable(str(path))}: must have the ids from 0 on, each once, and unigram pieces beside it;"
            " get the files again"
        )
    score = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    special = [
        unknown,
        *(t for t in (settings.token("eos", "</s>"), settings.token("pad", "<pad>")) if t in vocabulary),
    ]
    languages = [token for token in vocabulary if _LANGUAGE.match(token)]
    plain = {*score, *special, *languages}
    entries = [
        (token if token in plain else OTHER_SIDE + token)
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
    entries += [text for text in score if text not in vocabulary]
    tokenizer = Tokenizer(
        models.Unigram([(text, score.get(text, 0.0)) for text in entries], vocabulary[unknown], False)
    )
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in languages])
    _sentencepiece_text(tokenizer, model, decoders.Replace(OTHER_SIDE, ""))
    _end_texts(tokenizer, settings)
    return tokenizer


def _sentencepiece_model(model: SentencePieceModel, scores: list[tuple[str, float]]) -> models.Model:
    fallback = any(piece.kind == BYTE for piece in model.pieces)
    if model.kind == "unigram":
        return models.Unigram(scores, model.unknown, fallback)
    normal = {
        piece.text: (-piece.score, i)
        for i, piece in enumerate(model.pieces)
        if piece.kind in (NORMAL, UNUSED)
    }
    merges = [
        (*rank, piece[:n], piece[n:])
        for piece, rank in normal.items()
        for n in range(1, len(piece))
        if piece[:n] in normal
    ]
    return models.BPE(
        {text: i for i, (text, _) in enumerate(scores)},
        [(left, right) for *_, left, right in sorted(merges) if right in normal],
        unk_token=model.pieces[model.unknown].text,
        fuse_unk=True,
        byte_fallback=fallback,
    )


def _sentencepiece_text(tokenizer: Tokenizer, model: SentencePieceModel, *plain: decoders.Decoder) -> None:
    """What sentencepiece does to a text: its table, its blanks (U+0020 alone), a `▁` for each; and back,
    `plain` first."""
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.one_blank:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps.append(normalizers.Replace(" ", _BLANK))
    if model.dummy_prefix:  # the library adds no mark to a text that begins with one
        steps.append(normalizers.Replace(Regex(rf"\A{_BLANK}"), _BLANK * 2))
    tokenizer.normalizer = normalizers.Sequence(steps)
    across = any(
        _BLANK in piece.text[1:] for piece in model.pieces if piece.kind == NORMAL
    )  # pieces that go across words
    scheme = "always" if model.dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_BLANK, prepend_scheme=scheme, split=not across
    )
    parts: list[decoders.Decoder] = [
        *plain,
        decoders.Replace(_BLANK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    tokenizer.decoder = decoders.Sequence(
        [*parts, decoders.Strip(" ", 1, 0)] if model.dummy_prefix else parts
    )


def _end_texts(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    end = settings.token("eos", "</s>")
    if end is not None and (at := tokenizer.token_to_id(end)) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, at)]
        )


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: TokenizerSettings) -> None:
    """The entries that `tokenizer_config.json` or `added_tokens.json` add, which must get the ids that stand
    there."""
    wanted: dict[int, AddedToken] = {}
    if (folder / ADDED).exists():
        wanted = {i: AddedToken(token, normalized=True) for token, i in _vocabulary(folder / ADDED).items()}
    decoder = settings.content.get("added_tokens_decoder")
    try:
        for i, options in ({} if decoder is None else decoder).items():
            wanted[int(i)] = AddedToken(**{key: options[key] for key in options if key != "__type"})
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FolderError(
            f"{printable(str(folder))}: added_tokens_decoder of tokenizer_config.json must say of each id"
            f" what it adds, but does not ({printable(str(error))[:100]}); get the file again"
        ) from None
    for i, token in sorted(wanted.items()):
        if tokenizer.token_to_id(token.content) != i or token.special:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != i:
            raise FolderError(
                f"{printable(str(folder))}: the added token {printable(token.content)!r} must have the id"
                f" {i}, but comes as {tokenizer.token_to_id(token.content)}; its files do not belong together"
            )


def _bpe(
    folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> models.BPE:
    for left, right in merges:
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            merge = printable(f"{left} {right}")
            raise FolderError(
                f"{printable(str(folder))}: the merge {merge} of merges.txt is not in vocab.json; get the"
                " files again"
            )
    return models.BPE(vocabulary, merges, **options)


def _merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise FolderError(
                f"{printable(str(path))}:{number}: must be two pieces with a blank between, but is"
                f" {printable(line)[:50]!r}"
            )
        merges.append((left, right))
    return merges


def _vocabulary(path: Path) -> dict[str, int]:
    content = _object(path)
    wrong = next((token for token, i in content.items() if type(i) is not int or i < 0), None)
    if wrong is not None or len(set(content.values())) < len(content):
        which = (
            "two entries share one"
            if wrong is None
            else f"that of {printable(wrong)[:50]!r} is {printable(str(content[wrong]))[:50]}"
        )
        raise FolderError(
            f"{printable(str(path))}: ids must be numbers from 0 on, each once, but {which}; get the file"
            " again"
        )
    return content


def _known(token: str | None, vocabulary: Mapping[str, int], path: Path) -> str:
    if token is None or token not in vocabulary:
        raise FolderError(
            f"{printable(str(path))}: must hold {printable(str(token))!r} for what is unknown; get the file"
            " again"
        )
    return token


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise FolderError(
            f"{printable(str(path))}: must be an object of JSON, but is {type(content).__name__}; get the"
            " file again"
        )
    return content


def _text(path: Path, limit: int = 2**28) -> str:
    """The file with `\\n` at line ends."""
    try:
        if path.stat().st_size > limit:
            raise FolderError(
                f"{printable(str(path))}: must be at most {limit} bytes, but has {path.stat().st_size}"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FolderError(f"{printable(str(path))}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise FolderError(
            f"{printable(str(path))}: must be UTF-8, but byte {error.start} is not; get the file again"
        ) from None
