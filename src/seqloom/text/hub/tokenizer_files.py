"""The tokenizer files of the hub, each converted to the content of a `tokenizer.json`: what `transformers`
builds from the same files.

    tokenizer.json                       as it is
    vocab.txt                            WordPiece (BERT, ELECTRA)
    vocab.json, merges.txt               byte-level BPE (GPT-2, RoBERTa, BART), or BPE of words with `</w>`
                                         (GPT-1)
    source.spm, target.spm, vocab.json   Marian: pieces of sentencepiece, ids of vocab.json; a tokenizer.json
                                         beside them is not read
    spiece.model, *.model                sentencepiece, unigram or BPE (T5 and others)

Everything is data. Code that a file names (`auto_map`) is never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from seqloom.errors import FolderError, printable, shown
from seqloom.files import is_there, read_json_object, read_text
from seqloom.json_values import JsonObject
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
from seqloom.text.tokenizer_kinds import METASPACE, single_spaces
from seqloom.text.tokenizers_library import panics_are_errors

Side = Literal["source", "target"]
JSON, ADDED = "tokenizer.json", "added_tokens.json"
MARIAN = ("source.spm", "target.spm", "vocab.json")
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
KNOWN_FILES = (
    "tokenizer.json, vocab.txt, vocab.json with merges.txt, source.spm with target.spm and vocab.json, "
    + ", ".join(SENTENCEPIECE)
)
BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast")
BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""A key of tokenizer_config.json -> that of the normalizer, which it overrides in these classes."""
SENTINELS = 100
"""`<extra_id_99>` to `<extra_id_0>`, which T5 has after its pieces."""
OTHER_LANGUAGE = " "
"""Begins the entries of Marian's vocabulary that are no pieces of the language: those of the other one, codes
of languages, bytes. No text spells them, as a space is always a `▁`."""
MAX_BYTES = 2**28
"""Of a file of a tokenizer; the largest in use have 35 MB."""


@final
class TokenizerSettings(NamedTuple):
    """`tokenizer_config.json` and `special_tokens_map.json`, where they are there. The first overrides where
    it has `added_tokens_decoder`, else the second, as in transformers."""

    content: JsonObject

    @classmethod
    def of(cls, folder: Path) -> TokenizerSettings:
        content: dict[str, object] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if is_there(folder / name):
                read = read_json_object(folder / name)
                newer = name == "special_tokens_map.json" or "added_tokens_decoder" in read
                content = {**content, **read} if newer else {**read, **content}
        return cls(content)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.content.get(name, default))

    def token(self, role: str, default: str | None = None) -> str | None:
        """The special token of a role such as "mask": a string, or an object with its options."""
        match self.content.get(f"{role}_token", default):
            case str(token) | {"content": str(token)}:
                return token
        return None

    def tokens(self, defaults: Mapping[str, str], vocabulary: Mapping[str, int]) -> list[str]:
        """The special tokens of these roles that a vocabulary has."""
        tokens = [self.token(role, default) for role, default in defaults.items()]
        return [token for token in tokens if token is not None and token in vocabulary]


def is_marian(folder: Path) -> bool:
    """Whether it has the pieces of two languages. `transformers` reads no tokenizer.json beside them, as that
    has only one language."""
    return all(is_there(folder / name) for name in MARIAN)


def tokenizer_file_names(folder: Path) -> tuple[str, ...]:
    """The files that the tokenizer of a run folder is read from, beside tokenizer_config.json."""
    if not is_marian(folder):
        return (JSON,)
    return (*MARIAN, ADDED) if is_there(folder / ADDED) else MARIAN


def tokenizer_json(folder: Path, family: str, side: Side) -> str:
    """The `tokenizer.json` of a folder, made of its other files where it has none. Raises FolderError if
    it has none of these either."""
    settings = TokenizerSettings.of(folder)
    sentencepiece = next((folder / name for name in SENTENCEPIECE if is_there(folder / name)), None)
    if is_marian(folder):
        tokenizer = marian_tokenizer(folder, settings, side)
    elif is_there(folder / JSON):
        text = _normalised_as_set(read_text(folder / JSON, MAX_BYTES), settings)
        names = [token.content for token in _added_tokens(folder, settings).values()]
        if all(json.dumps(name) in text or f'"{name}"' in text for name in names):
            return text
        # transformers adds what the other files name beside it
        with panics_are_errors("load"):
            tokenizer = Tokenizer.from_str(text)
    elif is_there(folder / "vocab.txt"):
        tokenizer = wordpiece_tokenizer(folder, settings)
    elif is_there(folder / "merges.txt"):
        tokenizer = bpe_tokenizer(folder, settings, family)
    elif sentencepiece is not None:
        tokenizer = sentencepiece_tokenizer(read_sentencepiece(sentencepiece), settings, family)
    else:
        raise FolderError(
            f"must hold the files of a tokenizer, but has none; looked for were {KNOWN_FILES}",
            folder,
        )
    _add_tokens(tokenizer, folder, settings)
    return str(tokenizer.to_str(pretty=True))


def _normalised_as_set(text: str, settings: TokenizerSettings) -> str:
    """A tokenizer.json whose BERT normalizer does what tokenizer_config.json says, as the class of
    transformers does it. What is damaged comes back as it is, and is found later."""
    given = {
        key: settings.content[name]
        for name, key in BERT_NORMALIZER.items()
        if type(settings.content.get(name)) is bool
    }
    if not given or settings.content.get("tokenizer_class", BERT_CLASSES[0]) not in BERT_CLASSES:
        return text
    try:
        pipeline = json.loads(text)
    except (ValueError, RecursionError):
        return text
    match pipeline:
        case {"normalizer": {"type": "BertNormalizer"} as normalizer} if (
            normalizer != normalizer | given
        ):
            return json.dumps(pipeline | {"normalizer": normalizer | given}, ensure_ascii=False)
    return text


def wordpiece_tokenizer(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """BERT's: greedy longest match within words; lower case unless `do_lower_case` is false (Devlin et al.
    2019)."""
    path = folder / "vocab.txt"
    lines = read_text(path, MAX_BYTES).removesuffix("\n").split("\n")
    vocabulary = {token: i for i, token in enumerate(lines)}
    roles = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    unk = _require_unknown(settings.token("unk", roles["unk"]), vocabulary, path)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
    accents = settings.content.get("strip_accents")
    strip_accents = None if accents is None else bool(accents)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=strip_accents,
        lowercase=settings.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(settings.tokens(roles, vocabulary))
    begin, end = settings.token("cls", roles["cls"]), settings.token("sep", roles["sep"])
    if begin is not None and end is not None and begin in vocabulary and end in vocabulary:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[(begin, vocabulary[begin]), (end, vocabulary[end])],
        )
    return tokenizer


def bpe_tokenizer(folder: Path, settings: TokenizerSettings, family: str) -> Tokenizer:
    """GPT-1's where words end in `</w>` (Radford et al. 2018), else byte-level (Radford et al. 2019) and,
    where it has them, with the special tokens of RoBERTa. Merges whose pieces are not in vocab.json are
    refused.
    """
    path = folder / "vocab.json"
    vocabulary, merges = _read_vocabulary(path), _read_merges(folder / "merges.txt")
    _check_merges(folder, vocabulary, merges)
    if family == "openai-gpt" or any(right.endswith("</w>") for _, right in merges):
        unk = _require_unknown(settings.token("unk", "<unk>"), vocabulary, path)
        tokenizer = Tokenizer(
            models.BPE(vocabulary, merges, unk_token=unk, end_of_word_suffix="</w>")
        )
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        tokenizer.add_special_tokens([unk])
        return tokenizer
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    space_prefix = settings.flag("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space_prefix)
    tokenizer.decoder = decoders.ByteLevel()
    begin, end = settings.token("cls", "<s>"), settings.token("sep", "</s>")
    if family == "gpt2" or not (
        begin is not None and end is not None and {begin, end} <= vocabulary.keys()
    ):
        special = settings.tokens(dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"), vocabulary)
        tokenizer.add_special_tokens(sorted(set(special)))
        return tokenizer
    roles = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}
    tokenizer.add_special_tokens(settings.tokens(roles, vocabulary))
    for mask in settings.tokens({"mask": "<mask>"}, vocabulary):
        tokenizer.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]),
        (begin, vocabulary[begin]),
        trim_offsets=settings.flag("trim_offsets", True),
        add_prefix_space=space_prefix,
    )
    return tokenizer


def sentencepiece_tokenizer(
    model: SentencePieceModel, settings: TokenizerSettings, family: str
) -> Tokenizer:
    """A model of sentencepiece. T5 splits at all white space, and has sentinels after the pieces (Raffel et
    al. 2020)."""
    classes = ("T5Tokenizer", "T5TokenizerFast")
    t5 = family in ("t5", "mt5", "umt5") or settings.content.get("tokenizer_class") in classes
    scores = [(piece.text, piece.score) for piece in model.pieces]
    if t5:
        count = settings.content.get("extra_ids", SENTINELS)
        if type(count) is not int:
            raise FolderError(
                f"tokenizer_config.json: extra_ids must be a number, but is {shown(count)}"
            )
        scores += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(count))]
    tokenizer = Tokenizer(_sentencepiece_model(model, scores))
    special = [piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([*special, *(text for text, _ in scores[len(model.pieces) :])])
    user_defined = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    if not t5:
        _process_as_sentencepiece(tokenizer, model)
        return tokenizer
    if model.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.charsmap)
    words = pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.decoder = decoders.Metaspace(
        replacement=METASPACE, prepend_scheme="always", split=True
    )
    _append_eos(tokenizer, settings)
    return tokenizer


def marian_tokenizer(folder: Path, settings: TokenizerSettings, side: Side) -> Tokenizer:
    """The pieces of one language, with the ids of vocab.json. Pieces that are not in it get ids after those,
    and are unknown to the model."""
    if settings.content.get("separate_vocabs"):
        raise FolderError(
            "must have one vocabulary for both languages, but has two (separate_vocabs)", folder
        )
    model, path = read_sentencepiece(folder / f"{side}.spm"), folder / "vocab.json"
    vocabulary = _read_vocabulary(path)
    unk = _require_unknown(settings.token("unk", "<unk>"), vocabulary, path)
    if model.kind != "unigram" or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise FolderError(
            "must have the ids from 0 on, each once, and unigram pieces beside it; get the files again",
            path,
        )
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    special = [unk, *settings.tokens({"eos": "</s>", "pad": "<pad>"}, vocabulary)]
    own = {*scores, *special}
    entries = [
        token if token in own else OTHER_LANGUAGE + token
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
    entries += [text for text in scores if text not in vocabulary]
    tokenizer = Tokenizer(
        models.Unigram([(text, scores.get(text, 0.0)) for text in entries], vocabulary[unk], False)
    )
    tokenizer.add_special_tokens(special)
    _process_as_sentencepiece(tokenizer, model, decoders.Replace(OTHER_LANGUAGE, ""))
    _append_eos(tokenizer, settings)
    return tokenizer


def _sentencepiece_model(
    model: SentencePieceModel, scores: list[tuple[str, float]]
) -> models.Model:
    byte_fallback = any(piece.kind == BYTE for piece in model.pieces)
    if model.kind == "unigram":
        return models.Unigram(scores, model.unk_id, byte_fallback)
    # The score of a piece is the order of its merge; several splits of it may be in the vocabulary.
    ranks = {
        piece.text: (-piece.score, i)
        for i, piece in enumerate(model.pieces)
        if piece.kind in (NORMAL, UNUSED)
    }
    merges = []
    for piece, rank in ranks.items():
        for n in range(1, len(piece)):
            if piece[:n] in ranks and piece[n:] in ranks:
                merges.append((rank, piece[:n], piece[n:]))
    return models.BPE(
        {text: i for i, (text, _) in enumerate(scores)},
        [(left, right) for _, left, right in sorted(merges)],
        unk_token=model.pieces[model.unk_id].text,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _process_as_sentencepiece(
    tokenizer: Tokenizer, model: SentencePieceModel, *first_decoders: decoders.Decoder
) -> None:
    """What sentencepiece does to a text: its charsmap, its spaces (U+0020 alone), a `▁` for each; and back,
    `first_decoders` first."""
    steps: list[normalizers.Normalizer] = (
        [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    )
    if model.remove_extra_whitespaces:
        steps += single_spaces()
    steps.append(normalizers.Replace(" ", METASPACE))
    if model.add_dummy_prefix:
        # the library adds no ▁ to a text that begins with one
        steps.append(normalizers.Replace(Regex(rf"\A{METASPACE}"), METASPACE * 2))
    tokenizer.normalizer = normalizers.Sequence(steps)
    crosses_words = any(
        METASPACE in piece.text[1:] for piece in model.pieces if piece.kind == NORMAL
    )
    scheme = "always" if model.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=METASPACE, prepend_scheme=scheme, split=not crosses_words
    )
    parts = [
        *first_decoders,
        decoders.Replace(METASPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if model.add_dummy_prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)


def _append_eos(tokenizer: Tokenizer, settings: TokenizerSettings) -> None:
    eos = settings.token("eos", "</s>")
    if eos is not None and (i := tokenizer.token_to_id(eos)) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, i)]
        )


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: TokenizerSettings) -> None:
    """Adds the entries of the other files, which must get the ids that the files give them."""
    for i, token in sorted(_added_tokens(folder, settings).items()):
        if tokenizer.token_to_id(token.content) != i or token.special:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != i:
            raise FolderError(
                f"the added token {printable(token.content)!r} must have the id {i}, but comes as"
                f" {tokenizer.token_to_id(token.content)}; its files do not belong together",
                folder,
            )


def _added_tokens(folder: Path, settings: TokenizerSettings) -> dict[int, AddedToken]:
    """The entries that `tokenizer_config.json` or `added_tokens.json` add, by their ids."""
    added: dict[int, AddedToken] = {}
    if is_there(folder / ADDED):
        entries = _read_vocabulary(folder / ADDED)
        added = {i: AddedToken(token, normalized=True) for token, i in entries.items()}
    decoder = settings.content.get("added_tokens_decoder")
    try:
        if decoder is not None:
            added |= _decoded_tokens(decoder)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FolderError(
            "added_tokens_decoder of tokenizer_config.json must say of each id what it adds, but does not"
            f" ({shown(error, 100)}); get the file again",
            folder,
        ) from None
    return added


def _decoded_tokens(decoder: Any) -> dict[int, AddedToken]:
    tokens = {}
    for i, options in decoder.items():
        tokens[int(i)] = AddedToken(**{key: options[key] for key in options if key != "__type"})
    return tokens


def _check_merges(folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    for left, right in merges:
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise FolderError(
                f"the merge {printable(f'{left} {right}')} of merges.txt is not in vocab.json; get the"
                " files again",
                folder,
            )


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_text(path, MAX_BYTES).split("\n"), 1):
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise FolderError(
                f"must be two pieces with a space between, but is {shown(line)!r}",
                f"{path}:{number}",
            )
        merges.append((left, right))
    return merges


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    problem = ""
    for token, i in read_json_object(path, MAX_BYTES).items():
        # isinstance would take True for 1
        if type(i) is int and i >= 0:
            vocabulary[token] = i
        else:
            problem = problem or f"that of {shown(token)!r} is {shown(i)}"
    if len(set(vocabulary.values())) < len(vocabulary):
        problem = problem or "two entries share one"
    if problem:
        raise FolderError(
            f"ids must be numbers from 0 on, each once, but {problem}; get the file again", path
        )
    return vocabulary


def _require_unknown(token: str | None, vocabulary: Mapping[str, int], path: Path) -> str:
    if token is None or token not in vocabulary:
        raise FolderError(
            f"must hold {printable(str(token))!r} for what is unknown; get the file again", path
        )
    return token
