"""The kinds of tokenizers that seqloom trains: how each cuts a text, and what its pieces spell.

    characters, words, bytes      what their names say
    bpe                           merges of bytes           Sennrich et al. 2016 (arXiv:1508.07909, algorithm 1); Radford et al. 2019
    wordpiece                     the longest piece first   Schuster and Nakajima 2012; Devlin et al. 2019
    unigram                       the likeliest pieces      Kudo 2018 (arXiv:1804.10959)

Every kind has the special tokens as ids 0 to 15. They are plain entries of the vocabulary and never "added
tokens", which the library would look for inside the text. A text that spells `<s>` stays text, for every kind
cuts it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from seqloom.text.byte_symbols import spell_bytes
from seqloom.text.special_tokens import SPECIAL_TOKENS, UNK

Normalisation = Literal["none", "nfc", "lower"]
Vocabulary = dict[str, int]
Merges = list[tuple[str, str]]

SPECIALS: Vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
BLANK, CONTINUED = "▁", "##"
"""What begins a word in a piece of `unigram`, and what a piece of `wordpiece` begins with that goes on with a
word."""


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
    """A way to cut text into pieces."""

    summary: str
    smallest: int
    """The least number of ids that makes sense, the special ones included."""
    unknown: bool
    """Whether there are texts that it cannot spell."""
    text_separator: bytes = b""
    """What stands between the pieces of a decoded text."""
    space_prefix: bytes = b""
    """What pieces that begin a word spell first; the first one's is dropped from a decoded text."""
    model: Callable[[Learned], models.Model]
    blanks: Callable[[], list[normalizers.Normalizer]] = list
    """What is done to blanks, after `normalisation`."""
    split: Callable[[], pre_tokenizers.PreTokenizer | None]
    join: Callable[[], decoders.Decoder | None]
    spell: Callable[[str], bytes]
    """The UTF-8 that an entry of the vocabulary stands for."""
    settled: Callable[[str], int]
    """Up to where the tokens of a text stay, whatever comes after it."""


def units() -> pre_tokenizers.PreTokenizer:
    """Letters, digits and signs are cut apart before any merge, so no merge can spell `<s>`."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def pieces_of_words() -> pre_tokenizers.PreTokenizer:
    """Words with the blank before them, cut after a `<` that could begin `<s>` or `</s>`."""
    words = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always", split=True)
    return pre_tokenizers.Sequence(
        [words, pre_tokenizers.Split(Regex("<(?=[/a-z])"), "merged_with_previous")]
    )


def between_blanks() -> pre_tokenizers.PreTokenizer:
    """Words between white space, cut after a `<` that could begin `<s>` or `</s>`."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("<(?=[/a-z])"), "merged_with_previous")]
    )


def one_blank() -> list[normalizers.Normalizer]:
    """As sentencepiece does: no blanks at the ends, and one between words. Other white space is text."""
    return [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]


def _before_last_unit(text: str) -> int:
    """Where the last run of letters, digits, signs or blanks begins, its leading blank too: no merge goes
    across that place."""
    *_, before, last = [0, 0, *(begin for _, (begin, _) in units().pre_tokenize_str(text))]
    contraction = text[before:last] == "'" and text[last:] in (
        "r",
        "v",
        "l",
    )  # may become 're, 've, 'll: one unit each
    return before if contraction else last


def _before_last_word(
    text: str, cut: Callable[[], pre_tokenizers.PreTokenizer] = pre_tokenizers.Whitespace
) -> int:
    """Where the word begins that the text ends in, or the last one ends."""
    *_, (begin, end) = [(0, 0), *(span for _, span in cut().pre_tokenize_str(text))]
    return int(begin if end == len(text) else end)


def _before_last_blank(text: str) -> int:
    """Where the blanks begin that stand before the last word."""
    return (
        len(text.rstrip(" ").rpartition(" ")[0].rstrip(" "))
        if not text.endswith(" ")
        else len(text.rstrip(" "))
    )


def _spell_wordpiece(piece: str) -> bytes:
    return piece.removeprefix(CONTINUED).encode() if piece.startswith(CONTINUED) else b" " + piece.encode()


# A long text is one "word" of the kinds characters and bytes, so keeping words in a cache would be of no use
# there.
KINDS: dict[str, TokenizerKind] = {
    "characters": TokenizerKind(
        summary="one id for each character that occurs in training",
        smallest=len(SPECIALS) + 1,
        unknown=True,
        model=lambda learned: models.BPE(
            learned.vocabulary, [], unk_token=SPECIAL_TOKENS[UNK], cache_capacity=0
        ),
        split=lambda: None,
        join=decoders.Fuse,
        spell=str.encode,
        settled=len,
    ),
    "words": TokenizerKind(
        summary="the most frequent words; blanks are lost",
        smallest=len(SPECIALS) + 1,
        unknown=True,
        text_separator=b" ",
        model=lambda learned: models.WordLevel(learned.vocabulary, unk_token=SPECIAL_TOKENS[UNK]),
        split=pre_tokenizers.Whitespace,  # \w+|[^\w\s]+ never gives `<s>` as one word
        join=lambda: None,
        spell=str.encode,
        settled=_before_last_word,
    ),
    "blanks": TokenizerKind(
        summary="the most frequent words, as blanks divide them: for text that is tokenised already",
        smallest=len(SPECIALS) + 1,
        unknown=True,
        text_separator=b" ",
        model=lambda learned: models.WordLevel(learned.vocabulary, unk_token=SPECIAL_TOKENS[UNK]),
        split=between_blanks,
        join=lambda: None,
        spell=str.encode,
        settled=lambda text: _before_last_word(text, between_blanks),
    ),
    "bytes": TokenizerKind(
        summary="one id for each byte of UTF-8",
        smallest=len(SPECIALS) + 256,
        unknown=False,
        model=lambda learned: models.BPE(learned.vocabulary, [], cache_capacity=0),
        split=lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        join=decoders.ByteLevel,
        spell=spell_bytes,
        settled=len,
    ),
    "bpe": TokenizerKind(
        summary="frequent runs of bytes, the default",
        smallest=len(SPECIALS) + 256,
        unknown=False,
        model=lambda learned: models.BPE(learned.vocabulary, learned.merges),
        split=units,
        join=decoders.ByteLevel,
        spell=spell_bytes,
        settled=_before_last_unit,
    ),
    "wordpiece": TokenizerKind(
        summary="frequent parts of words, the longest first; blanks are lost",
        smallest=len(SPECIALS) + 1,
        unknown=True,
        space_prefix=b" ",
        model=lambda learned: models.WordPiece(
            learned.vocabulary, unk_token=SPECIAL_TOKENS[UNK], continuing_subword_prefix=CONTINUED
        ),
        split=pre_tokenizers.BertPreTokenizer,  # each sign is a word
        join=lambda: decoders.WordPiece(prefix=CONTINUED, cleanup=False),
        spell=_spell_wordpiece,
        settled=lambda text: _before_last_word(text, pre_tokenizers.BertPreTokenizer),
    ),
    "unigram": TokenizerKind(
        summary="the likeliest parts of words, by sentencepiece (an extra); runs of blanks become one",
        smallest=len(SPECIALS) + 1,
        unknown=True,
        space_prefix=b" ",
        model=lambda learned: models.Unigram(
            list(zip(by_id(learned.vocabulary), learned.scores, strict=True)), UNK, False
        ),
        blanks=one_blank,
        split=pieces_of_words,
        join=lambda: decoders.Metaspace(replacement=BLANK, prepend_scheme="always", split=True),
        spell=lambda piece: piece.replace(BLANK, " ").encode(),
        settled=_before_last_blank,
    ),
}


def by_id(vocabulary: Vocabulary) -> list[str]:
    """The entries in the order of their ids."""
    return sorted(vocabulary, key=vocabulary.__getitem__)


def normalizer_of(normalisation: Normalisation) -> normalizers.Normalizer | None:
    """Of characters alone."""
    if normalisation == "lower":
        return normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return normalizers.NFC() if normalisation == "nfc" else None


def assemble(kind: str, learned: Learned, normalisation: Normalisation) -> Tokenizer:
    """The pipeline of the library."""
    chosen = KINDS[kind]
    tokenizer = Tokenizer(chosen.model(learned))
    steps = chosen.blanks()
    if (normalizer := normalizer_of(normalisation)) is not None:
        steps = [normalizer, *steps]
    if steps:
        tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    if (split := chosen.split()) is not None:
        tokenizer.pre_tokenizer = split
    if (join := chosen.join()) is not None:
        tokenizer.decoder = join
    return tokenizer
