"""The kinds of tokenizers that seqloom trains: how each splits a text, and what its entries spell.

    characters, words, bytes   what their names say
    whitespace                 words as spaces, tabs and line ends divide them
    bpe                        merges of bytes           Sennrich et al. 2016 (arXiv:1508.07909, algorithm 1);
                                                         Radford et al. 2019
    wordpiece                  the longest piece first   Schuster and Nakajima 2012; Devlin et al. 2019
    unigram                    the likeliest pieces      Kudo 2018 (arXiv:1804.10959)

Every kind has the special tokens as ids 0 to 15. They are plain entries of the vocabulary and never "added
tokens", which the library would look for inside a text. A text that spells `<s>` stays text, because the
pre-tokenizer of every kind splits it, and that of `whitespace` marks it. `<unk>` alone is the unknown word of
`words` and `whitespace`, as the texts of benchmarks (Penn Treebank, WikiText) mean it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from seqloom.text.byte_symbols import symbols_to_bytes
from seqloom.text.segment_encoder import ALL_CUTS, Cuts
from seqloom.text.special_tokens import MASK, MASK_TOKEN, SPECIAL_TOKENS, UNK, sentinel

Normalisation = Literal["none", "nfc", "lower"]
Vocabulary = dict[str, int]
Merges = list[tuple[str, str]]
PreTokenizer = pre_tokenizers.PreTokenizer

SPECIALS: Vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
UNKNOWN_WORD = SPECIAL_TOKENS[UNK]
WORD_KINDS = ("words", "whitespace")
"""Kinds that take `<unk>` in a text for the unknown word."""
METASPACE = "▁"
"""Begins the words of `unigram`, in place of a space."""
CONTINUATION = "##"
"""Begins the pieces of `wordpiece` that continue a word."""
SPELLED = "\U0010fffe"
"""Begins the words of `whitespace` that spell a special token. It is no character, so no text has it."""
BLANKS = r" \t\n\v\f\r"
"""What divides the words of `whitespace`, as in KenLM. Other white space may be part of a word."""


@final
class Learned(NamedTuple):
    """What training finds."""

    vocabulary: Vocabulary
    merges: Merges
    """Of bpe, in their order."""
    scores: list[float]
    """Of unigram: log p of each entry, in the order of ids."""


@final
@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """A tokenisation algorithm."""

    summary: str
    min_vocabulary: int = len(SPECIALS) + 1
    """The smallest useful number of ids, the special ones included."""
    has_unknown: bool = True
    """Whether there are texts that it cannot spell."""
    text_separator: bytes = b""
    """What joins the pieces of a decoded text."""
    space_prefix: bytes = b""
    """What pieces that begin a word start with; dropped at the beginning of a decoded text."""
    model: Callable[[Learned], models.Model]
    normalizers: Callable[[], list[normalizers.Normalizer]] = list
    """Applied after those of the setting `normalisation`."""
    pre_tokenizer: Callable[[], PreTokenizer | None]
    decoder: Callable[[], decoders.Decoder | None]
    token_bytes: Callable[[str], bytes]
    """The UTF-8 of an entry of the vocabulary."""
    stable_length: Callable[[str], int]
    """The length of the prefix of a text whose tokens stay, whatever comes after the text."""
    cuts: Cuts = ALL_CUTS
    """Where a text may be cut without any change to its ids."""
    former: TokenizerKind | None = None
    """As it was in earlier versions: how a tokenizer that was trained then goes on."""


def _byte_level() -> PreTokenizer:
    """Splits letters, digits and signs before any merge, so no merge can spell `<s>`."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _without_tags(words: PreTokenizer) -> PreTokenizer:
    """Also splits after a `<` that could begin `<s>` or `</s>`."""
    tags = pre_tokenizers.Split(Regex("<(?=[/a-z])"), "merged_with_previous")
    return pre_tokenizers.Sequence([words, tags])


def _metaspace() -> PreTokenizer:
    """Words with the space before them."""
    return _without_tags(
        pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="always", split=True)
    )


def _words() -> PreTokenizer:
    """Runs of letters and digits, runs of signs, and the unknown word. `<s>` is never one word."""
    words = Regex(rf"{UNKNOWN_WORD}|\w+|(?:(?!{UNKNOWN_WORD})[^\w\s])+")
    return pre_tokenizers.Split(words, "removed", invert=True)


def _whitespace() -> PreTokenizer:
    """Words between spaces, tabs and line ends."""
    return pre_tokenizers.Split(Regex(f"[{BLANKS}]+"), "removed")


def _former_whitespace() -> PreTokenizer:
    return _without_tags(pre_tokenizers.WhitespaceSplit())


def _mark_special_words() -> list[normalizers.Normalizer]:
    """A word that spells a special token, except `<unk>`, is marked as a word."""
    tokens = [token for token in SPECIAL_TOKENS if token != UNKNOWN_WORD]
    names = "|".join([*(token[1:] for token in tokens), r"extra_id_\d+>"])
    return [
        normalizers.Replace(
            Regex(f"(?<![^{BLANKS}])<(?=(?:{names})(?![^{BLANKS}]))"), f"{SPELLED}<"
        )
    ]


def word_entry(word: str) -> str:
    """The entry of a word in the vocabulary of `whitespace`."""
    return SPELLED + word if word in SPECIAL_TOKENS or is_sentinel(word) else word


def is_sentinel(entry: str) -> bool:
    """Whether it names a corrupted span."""
    return re.fullmatch(r"<extra_id_\d+>", entry) is not None


def sentinels_of(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of the sentinels, number 0 first: the last entries, in descending order."""
    entries = by_id(vocabulary)
    count = 0
    while count < len(entries) and entries[-1 - count] == sentinel(count):
        count += 1
    return tuple(len(entries) - 1 - number for number in range(count))


def with_mask(learned: Learned) -> Learned:
    """The same with a mask in place of a reserved entry."""
    renamed = {SPECIAL_TOKENS[MASK]: MASK_TOKEN}
    vocabulary = {renamed.get(entry, entry): i for entry, i in learned.vocabulary.items()}
    return learned._replace(vocabulary=vocabulary)


def with_sentinels(learned: Learned, count: int) -> Learned:
    """The same with so many sentinels as its last entries."""
    size = len(learned.vocabulary)
    added = {sentinel(count - 1 - place): size + place for place in range(count)}
    scores = [*learned.scores, *[0.0] * count] if learned.scores else []
    return Learned({**learned.vocabulary, **added}, learned.merges, scores)


def single_spaces() -> list[normalizers.Normalizer]:
    """As sentencepiece does: no spaces at the ends, and one between words. Other white space stays."""
    return [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]


def _before_last_unit(text: str) -> int:
    """Where the last run of letters, digits, signs or spaces begins, with the space before it: no merge
    crosses that place."""
    *_, before, last = [0, 0, *(begin for _, (begin, _) in _byte_level().pre_tokenize_str(text))]
    # 'r may still become 're, 'v 've and 'l 'll, each of which is one unit
    unfinished = text[before:last] == "'" and text[last:] in ("r", "v", "l")
    return before if unfinished else last


def _before_last_word(pre_tokenizer: Callable[[], PreTokenizer]) -> Callable[[str], int]:
    """Where the word begins that the text ends in, or where the last word ends."""

    def stable_length(text: str) -> int:
        *_, (begin, end) = [(0, 0), *(span for _, span in pre_tokenizer().pre_tokenize_str(text))]
        inside_word = end == len(text)
        return int(begin) if inside_word else int(end)

    return stable_length


def _before_last_space(text: str) -> int:
    """Where the spaces begin that come before the last word."""
    words = text if text.endswith(" ") else text.rpartition(" ")[0]
    return len(words.rstrip(" "))


def _wordpiece_bytes(piece: str) -> bytes:
    if piece.startswith(CONTINUATION):
        return piece.removeprefix(CONTINUATION).encode()
    return b" " + piece.encode()


def _word_level(learned: Learned) -> models.Model:
    return models.WordLevel(learned.vocabulary, unk_token=SPECIAL_TOKENS[UNK])


def _wordpiece(learned: Learned) -> models.Model:
    unk = SPECIAL_TOKENS[UNK]
    return models.WordPiece(
        learned.vocabulary, unk_token=unk, continuing_subword_prefix=CONTINUATION
    )


def _unigram(learned: Learned) -> models.Model:
    entries = list(zip(by_id(learned.vocabulary), learned.scores, strict=True))
    return models.Unigram(entries, UNK, False)


def _words_kind(
    summary: str,
    pre_tokenizer: Callable[[], PreTokenizer],
    steps: Callable[[], list[normalizers.Normalizer]] = list,
    former: Callable[[], PreTokenizer] | None = None,
    cuts: Cuts = ALL_CUTS,
) -> TokenizerKind:
    return TokenizerKind(
        summary=summary,
        text_separator=b" ",
        model=_word_level,
        normalizers=steps,
        pre_tokenizer=pre_tokenizer,
        decoder=lambda: None,
        token_bytes=lambda entry: entry.removeprefix(SPELLED).encode(),
        stable_length=_before_last_word(pre_tokenizer),
        cuts=cuts,
        former=None if former is None else _words_kind(summary, former, cuts=cuts),
    )


# `characters` and `bytes` take a whole text for one word, so a cache of words would be useless there.
KINDS: dict[str, TokenizerKind] = {
    "characters": TokenizerKind(
        summary="one id for each character that occurs in training",
        model=lambda learned: models.BPE(
            learned.vocabulary, [], unk_token=SPECIAL_TOKENS[UNK], cache_capacity=0
        ),
        pre_tokenizer=lambda: None,
        decoder=decoders.Fuse,
        token_bytes=str.encode,
        stable_length=len,
    ),
    "words": _words_kind(
        "the most frequent words, and runs of signs; spaces are lost",
        _words,
        former=pre_tokenizers.Whitespace,
    ),
    "whitespace": _words_kind(
        "the most frequent words, as spaces divide them: for text that is tokenised already",
        _whitespace,
        _mark_special_words,
        former=_former_whitespace,
        cuts=Cuts.SPACES | Cuts.LINES,
    ),
    "bytes": TokenizerKind(
        summary="one id for each byte of UTF-8",
        min_vocabulary=len(SPECIALS) + 256,
        has_unknown=False,
        model=lambda learned: models.BPE(learned.vocabulary, [], cache_capacity=0),
        pre_tokenizer=lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoder=decoders.ByteLevel,
        token_bytes=symbols_to_bytes,
        stable_length=len,
    ),
    "bpe": TokenizerKind(
        summary="frequent runs of bytes, the default",
        min_vocabulary=len(SPECIALS) + 256,
        has_unknown=False,
        model=lambda learned: models.BPE(learned.vocabulary, learned.merges),
        pre_tokenizer=_byte_level,
        decoder=decoders.ByteLevel,
        token_bytes=symbols_to_bytes,
        stable_length=_before_last_unit,
    ),
    "wordpiece": TokenizerKind(
        summary="frequent parts of words, the longest first; spaces are lost",
        space_prefix=b" ",
        model=_wordpiece,
        pre_tokenizer=pre_tokenizers.BertPreTokenizer,  # each sign is a word
        decoder=lambda: decoders.WordPiece(prefix=CONTINUATION, cleanup=False),
        token_bytes=_wordpiece_bytes,
        stable_length=_before_last_word(pre_tokenizers.BertPreTokenizer),
    ),
    "unigram": TokenizerKind(
        summary="the likeliest parts of words, by sentencepiece (an extra); runs of spaces become one",
        space_prefix=b" ",
        model=_unigram,
        normalizers=single_spaces,
        pre_tokenizer=_metaspace,
        decoder=lambda: decoders.Metaspace(
            replacement=METASPACE, prepend_scheme="always", split=True
        ),
        token_bytes=lambda piece: piece.replace(METASPACE, " ").encode(),
        stable_length=_before_last_space,
        cuts=Cuts.SPACES,
    ),
}


def by_id(vocabulary: Vocabulary) -> list[str]:
    """The entries in the order of their ids."""
    return sorted(vocabulary, key=vocabulary.__getitem__)


def normalizer_of(normalisation: Normalisation) -> normalizers.Normalizer | None:
    """The normalizer of the setting `normalisation`."""
    if normalisation == "lower":
        return normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return normalizers.NFC() if normalisation == "nfc" else None


def assemble(chosen: TokenizerKind, learned: Learned, normalisation: Normalisation) -> Tokenizer:
    """The pipeline of the library."""
    tokenizer = Tokenizer(chosen.model(learned))
    steps = chosen.normalizers()
    if (normalizer := normalizer_of(normalisation)) is not None:
        steps = [normalizer, *steps]
    if steps:
        tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    if (pre_tokenizer := chosen.pre_tokenizer()) is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if (decoder := chosen.decoder()) is not None:
        tokenizer.decoder = decoder
    return tokenizer
