"""Tokenizers of the field: the same ids as `transformers` and sentencepiece from the same files, exact
offsets, marks, refusals.

The tokenizers are tiny and trained here. The published ones are checked by
`benchmarks/tokenizers_of_the_field.py`.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from benchmarks.tokenizers_of_the_field import misplaced
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from seqloom import protocols
from seqloom.errors import FolderError, UsageError
from seqloom.protocols import SpecialTokenTemplate
from seqloom.text.hub.sentencepiece_model import (
    SentencePiece,
    SentencePieceModel,
    read_sentencepiece,
)
from seqloom.text.hub.special_ids import (
    TokenizerSpecials,
    notes_on_ids,
    special_ids_of,
    template_of,
)
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer
from seqloom.text.hub.tokenizer_files import TokenizerSettings, sentencepiece_tokenizer

TEXTS = [
    "The cat sat on the mat, and the dog sat on the log. It can't be 12.5% of 300!",
    "Der Hund läuft über die Straße; die Katze schläft, und der Hund lief über die Straße.",
    "naïve café 猫は寝る 猫 🐈 the cats, the dogs, the hats <s> </s> [MASK]",
] * 8
SPELLED = [
    "[MASK]",
    "[CLS]",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<mask>",
    "<|endoftext|>",
    "<extra_id_0>",
    "[UNK]",
    "▁",
    "##s",
    "</w>",
]

words = st.sampled_from(
    [
        *" ".join(TEXTS[:3]).split(),
        *SPELLED,
        "<0x41>",
        "e\u0301",
        "ﬁ",
        "½",
        "\u3000",
        "\u200b",
        "가",
        "\u1100\u1161",
    ]
)
any_text = st.one_of(
    st.text(max_size=40),
    st.lists(words, max_size=10).map(" ".join),
    st.lists(words, max_size=6).map("".join),
)


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )


def word_piece(folder: Path) -> dict[str, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False),
    )
    vocabulary = tokenizer.get_vocab()
    write(
        folder,
        vocab__txt="".join(
            f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)
        ),
    )
    return {"model_type": "bert", "vocab_size": len(vocabulary), "pad_token_id": 0}


def cased_word_piece(folder: Path) -> dict[str, Any]:
    config = word_piece(folder)
    write(folder, tokenizer_config__json={"do_lower_case": False, "tokenize_chinese_chars": False})
    return config


def pairs(folder: Path, tokenizer: Tokenizer, trainer: trainers.BpeTrainer) -> dict[str, int]:
    tokenizer.train_from_iterator(TEXTS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    write(
        folder,
        vocab__json=model["vocab"],
        merges__txt="#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]),
    )
    found: dict[str, int] = model["vocab"]
    return found


def byte_pairs(folder: Path, special: list[str]) -> dict[str, int]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return pairs(
        folder,
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )


def gpt2(folder: Path) -> dict[str, Any]:
    size = len(byte_pairs(folder, ["<|endoftext|>"]))
    return {"model_type": "gpt2", "vocab_size": size, "bos_token_id": 0, "eos_token_id": 0}


def roberta(folder: Path) -> dict[str, Any]:
    size = len(byte_pairs(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    return {
        "model_type": "roberta",
        "vocab_size": size,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }


def bart(folder: Path) -> dict[str, Any]:
    return roberta(folder) | {
        "model_type": "bart",
        "is_encoder_decoder": True,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": 0,
    }


def gpt1(folder: Path) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=160, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    return {"model_type": "openai-gpt", "vocab_size": len(pairs(folder, tokenizer, trainer))}


@cache
def sentencepiece_model(texts: tuple[str, ...] = tuple(TEXTS), **options: Any) -> bytes:
    written = io.BytesIO()
    importlib.import_module("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return written.getvalue()


def t5(folder: Path) -> dict[str, Any]:
    content = sentencepiece_model(vocab_size=120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(content)
    size = len(read_sentencepiece(folder / "spiece.model").pieces) + 100
    return {
        "model_type": "t5",
        "vocab_size": size + 7,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def marian(folder: Path) -> dict[str, Any]:
    source, target = (
        sentencepiece_model(vocab_size=120),
        sentencepiece_model(vocab_size=90, character_coverage=0.98),
    )
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    of_source, of_target = (
        [piece.text for piece in read_sentencepiece(folder / name).pieces[3:]]
        for name in ("source.spm", "target.spm")
    )
    # marian's vocabulary lacks pieces that its training never met
    known = [piece for at, piece in enumerate(of_source) if at % 7]
    entries = [
        *dict.fromkeys(["</s>", "<unk>", *sorted({*known, *of_target, "▁zzz"}), ">>de<<", "<pad>"])
    ]
    write(folder, vocab__json={token: i for i, token in enumerate(entries)})
    pad = len(entries) - 1
    return {
        "model_type": "marian",
        "vocab_size": pad + 1,
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
    }


def generic(kind: str) -> Callable[[Path], dict[str, Any]]:
    def made(folder: Path) -> dict[str, Any]:
        content = sentencepiece_model(vocab_size=130, model_type=kind, byte_fallback=False)
        (folder / "tokenizer.model").write_bytes(content)
        size = len(read_sentencepiece(folder / "tokenizer.model").pieces)
        return {"model_type": "other", "vocab_size": size, "bos_token_id": 1, "eos_token_id": 2}

    return made


FAMILIES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "bert": word_piece,
    "bert cased": cased_word_piece,
    "gpt2": gpt2,
    "roberta": roberta,
    "bart": bart,
    "gpt1": gpt1,
    "t5": t5,
    "marian": marian,
    "unigram": generic("unigram"),
    "sentencepiece bpe": generic("bpe"),
}
CLASSES = {
    "bert": "Bert",
    "bert cased": "Bert",
    "gpt2": "GPT2",
    "roberta": "Roberta",
    "bart": "Bart",
    "gpt1": "OpenAIGPT",
    "t5": "T5",
}


@cache
def made(family: str) -> tuple[Path, dict[str, Any], HubTokenizer]:
    """Its folder, its config.json and what is read of them."""
    folder = Path(mkdtemp(prefix="seqloom-"))
    config = FAMILIES[family](folder)
    write(folder, config__json=config)
    return folder, config, read_hub_tokenizer(folder, config)


@cache
def peer(family: str) -> Any:
    return getattr(
        importlib.import_module("transformers"), f"{CLASSES[family]}Tokenizer"
    ).from_pretrained(str(made(family)[0]))


@cache
def original(family: str) -> Any:
    processor = importlib.import_module("sentencepiece").SentencePieceProcessor
    name = {"t5": "spiece.model", "marian": "source.spm"}.get(family, "tokenizer.model")
    return processor(model_file=str(made(family)[0] / name))


def alone(tokenizer: HubTokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0]


# --- the same ids
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=40)
@given(text=any_text)
@example(text="")
@example(text=" ".join(SPELLED))
def test_ids_and_offsets_are_those_of_transformers(family: str, text: str) -> None:
    ours = made(family)[2]
    theirs = peer(family)(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    if family == "t5" and any(token in text for token in ("<unk>", "</s>", "<pad>", "<extra_id_")):
        return  # there they are found in the text all the same; sentencepiece does not
    ids, (spans,) = alone(ours, text), ours.offsets([text])
    assert ids == theirs["input_ids"]
    if family != "t5":  # whose marks we count in
        assert spans == [tuple(span) for span in theirs["offset_mapping"]]


NEW = ("<user>", "New York", "cat-like", "Äx")


@cache
def with_new_entries(family: str) -> tuple[HubTokenizer, Any]:
    """(ours, theirs), with further entries."""
    theirs = copy.deepcopy(peer(family))
    theirs.add_tokens(list(NEW))
    return made(family)[2].with_added_tokens(NEW), theirs


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=20)
@given(
    parts=st.lists(st.one_of(words, st.sampled_from(NEW)), max_size=8), join=st.sampled_from(" -")
)
@example(parts=["the", "<user>", "New York", "cat"], join=" ")
def test_added_entries_are_those_of_transformers(family: str, parts: list[str], join: str) -> None:
    ours, theirs = with_new_entries(family)
    text = join.join(parts)
    if family == "t5" and any(token in text for token in ("<unk>", "</s>", "<pad>", "<extra_id_")):
        return
    ids = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert alone(ours, text) == ids


@pytest.mark.parametrize("family", CLASSES)
def test_added_entries_are_written_and_read_back(family: str, tmp_path: Path) -> None:
    ours, theirs = with_new_entries(family)
    text = "the <user> in New York"
    decoded = ours.decode(alone(ours, text))
    wanted = theirs.decode(alone(ours, text), clean_up_tokenization_spaces=False)
    assert decoded.lower() == wanted.lower()
    # the spaces around an entry are no part of a text for a T5 and a GPT
    assert decoded.replace(" ", "").lower() == text.replace(" ", "").lower()
    assert family in ("gpt1", "t5") or decoded.lower() == text.lower()
    write(tmp_path, tokenizer__json=ours.to_json())
    config = {**made(family)[1], "vocab_size": ours.vocabulary_size}
    again = read_hub_tokenizer(tmp_path, config)
    assert (again.to_json(), again.token_bytes) == (ours.to_json(), ours.token_bytes)
    assert again.special_ids == ours.special_ids
    with pytest.raises(UsageError, match="must be new"):
        again.with_added_tokens(["<user>"])


def test_a_marian_gets_no_entries() -> None:
    with pytest.raises(UsageError, match="not for a Marian"):
        made("marian")[2].with_added_tokens(["<user>"])


@pytest.mark.parametrize("family", ["t5", "unigram", "sentencepiece bpe"])
@settings(max_examples=40)
@given(
    text=st.one_of(
        st.lists(words, max_size=10).map(" ".join), st.lists(words, max_size=6).map("".join)
    )
)
def test_ids_are_those_of_sentencepiece(family: str, text: str) -> None:
    assert alone(made(family)[2], text) == original(family).encode(text)


@settings(max_examples=40)
@given(text=st.lists(words, max_size=10).map(" ".join))
@example(text=TEXTS[0])
def test_marian_has_the_pieces_of_the_source_and_the_ids_of_the_vocabulary(text: str) -> None:
    folder, _, ours = made("marian")
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    expected = [vocabulary.get(piece, 1) for piece in original("marian").encode(text, out_type=str)]
    assert alone(ours, text) == expected
    code = vocabulary[">>de<<"]
    assert alone(ours, ">>de<<" + text) == [code, *expected]
    assert alone(ours, ">>xy<<" + text) == [1, *expected]


@cache
def marian_tokenizer() -> Any:
    with pytest.warns(UserWarning, match="sacremoses"):
        return importlib.import_module("transformers").MarianTokenizer.from_pretrained(
            str(made("marian")[0])
        )


@settings(max_examples=40)
@given(text=st.lists(words.filter(lambda word: word not in SPELLED), max_size=10).map(" ".join))
@example(text=TEXTS[1])
def test_both_sides_of_marian_are_those_of_transformers(text: str) -> None:
    ours, theirs = made("marian")[2], marian_tokenizer()
    assert ours.target is not ours
    for tokenizer, ids in (
        (ours, theirs(text).input_ids),
        (ours.target, theirs(text_target=text).input_ids),
    ):
        assert [*alone(tokenizer, text), 0] == ids
        assert (
            ours.decode(ids).strip()
            == tokenizer.decode(ids).strip()
            == theirs.decode(ids, skip_special_tokens=True)
        )


VIETNAMESE = "Tiếng Việt có dấu: ở đây những người bạn cũ đã kể những chuyện cổ tích rất hay"


@cache
def marian_of(byte_fallback: bool) -> tuple[HubTokenizer, Any]:
    """A Marian of Vietnamese with some codes of languages, and that of transformers."""
    folder = Path(mkdtemp())
    content = sentencepiece_model(
        vocab_size=420 if byte_fallback else 160,
        byte_fallback=byte_fallback,
        pad_id=-1,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        texts=(VIETNAMESE, *TEXTS[:1]),
    )
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(content)
    pieces = [piece.text for piece in read_sentencepiece(folder / "source.spm").pieces]
    entries = [*pieces, ">>ind<<", ">>cmn_Hans<<", "<pad>"]
    vocabulary = {token: i for i, token in enumerate(entries)}
    write(folder, vocab__json=vocabulary, tokenizer_config__json={"source_lang": "en"})
    pad = vocabulary["<pad>"]
    config = {
        "model_type": "marian",
        "vocab_size": len(entries),
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
    }
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = importlib.import_module("transformers").MarianTokenizer.from_pretrained(
            str(folder)
        )
    return read_hub_tokenizer(folder, config), theirs


forms = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])
codes = st.sampled_from(
    ["", ">>ind<<", ">>ind<< ", ">>xyz<< ", ">>IND<<", ">>a b<<", ">><<", " >>ind<<"]
)


@pytest.mark.parametrize("byte_fallback", [False, True])
@settings(max_examples=60)
@given(
    text=st.one_of(
        st.lists(words.filter(lambda word: word not in SPELLED), max_size=10).map(" ".join),
        st.text(alphabet="aeouiươâêô\u0300\u0301\u0302\u0303\u0309\u031b\u0323 <>0x4", max_size=12),
        st.text(max_size=12),
    ),
    form=forms,
    code=codes,
)
@example(text=VIETNAMESE, form="NFD", code="")
@example(text="naïve café, the Ödland", form="NFC", code=">>ind<< ")
@example(text="ươ\u0323\u0301 <0x41>", form="NFD", code="")
def test_ids_of_marian_are_those_of_transformers(
    byte_fallback: bool, text: str, form: Any, code: str
) -> None:
    """Whatever the form of Unicode is, the code of the language, and the letters that no piece has."""
    ours, theirs = marian_of(byte_fallback)
    text = code + unicodedata.normalize(form, text)
    if any(token in text for token in ("<unk>", "</s>", "<pad>")):
        return
    assert alone(ours, text) == theirs(text, add_special_tokens=False).input_ids
    assert misplaced(ours, text) == []


def test_bytes_of_marian_spell_the_text_again() -> None:
    ours, _ = marian_of(byte_fallback=True)
    for text in ("naïve café", "猫は寝る", "🐈 x"):
        assert ours.decode(alone(ours, text)) == text


def test_the_sides_of_marian_differ_in_their_pieces_and_share_the_rest(tmp_path: Path) -> None:
    _, config, source = made("marian")
    assert (source.target.token_bytes, source.target.special_ids) == (
        source.token_bytes,
        source.special_ids,
    )
    assert source.target.encode(TEXTS[:3]) != source.encode(TEXTS[:3])
    assert set(source.files) == {"source.spm", "target.spm", "vocab.json"}
    for name, content in source.files.items():
        (tmp_path / name).write_bytes(content)
    write(
        tmp_path,
        tokenizer__json=made("t5")[2].to_json(),
        added_tokens__json={"<pad>": config["pad_token_id"]},
    )
    # `transformers` does not look at a tokenizer.json there
    again = read_hub_tokenizer(tmp_path, config)
    assert again.files.keys() - source.files.keys() == {"added_tokens.json"}
    assert again.target.encode(TEXTS) == source.target.encode(TEXTS)
    (tmp_path / "target.spm").write_bytes(source.files["source.spm"])
    alike = read_hub_tokenizer(tmp_path, config)
    assert alike.target is alike
    assert (t5_made := made("t5")[2]).target is t5_made
    write(tmp_path, tokenizer_config__json={"separate_vocabs": True})
    with pytest.raises(FolderError, match="one vocabulary for both languages"):
        read_hub_tokenizer(tmp_path, config)


def test_the_json_of_marian_decodes_either_language() -> None:
    ours = made("marian")[2]
    library = Tokenizer.from_str(ours.to_json())
    for tokenizer in (ours, ours.target):
        ids = alone(tokenizer, TEXTS[1])
        assert library.decode(ids) == ours.decode(ids)


def test_the_likelier_merge_comes_first_wherever_its_piece_stands() -> None:
    pieces = [
        SentencePiece("<unk>", 0.0, 2),
        *(SentencePiece(text, -9.0, 1) for text in "▁abc"),
        SentencePiece("bc", -2.0, 1),
        SentencePiece("ab", -1.0, 1),
    ]
    model = SentencePieceModel(
        kind="bpe",
        pieces=pieces,
        charsmap=b"",
        add_dummy_prefix=True,
        remove_extra_whitespaces=True,
    )
    assert sentencepiece_tokenizer(model, TokenizerSettings({}), "other").encode("abc").tokens == [
        "▁",
        "ab",
        "c",
    ]


def test_the_first_sentinel_is_the_last_entry() -> None:
    _, config, ours = made("t5")
    sentinels = range(config["vocab_size"] - 107, config["vocab_size"] - 7)
    assert (
        ours.pieces(sentinels)
        == [f"<extra_id_{i}>" for i in reversed(range(100))]
        == peer("t5").convert_ids_to_tokens(list(sentinels))
    )


# --- laws
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(text=any_text)
@example(text=" ".join(SPELLED))
@example(text="".join(SPELLED))
def test_a_text_that_spells_a_special_token_stays_text(family: str, text: str) -> None:
    _, config, ours = made(family)
    named = json.loads(ours.to_json())["added_tokens"]
    special = {token["id"] for token in named if token["special"]} - {ours.special_ids.unk}
    assert not special & set(alone(ours, text))
    assert all(0 <= i < config["vocab_size"] for i in alone(ours, text))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(text=any_text)
@example(text="to\u0300an và e\u0301 e\u0301")
@example(text="\x080 the \x0bcat\x1f")
@example(text="0´\x1f the")
@example(text="\x1f0\r0")
def test_offsets_are_what_the_ids_spell(family: str, text: str) -> None:
    ours = made(family)[2]
    assert misplaced(ours, text) == []


def test_a_mark_belongs_to_its_character_unless_it_has_an_id() -> None:
    ours = made("t5")[2]
    assert ours.offsets(["la\u0308uf"]) == [[(0, 1), (0, 3), (3, 4), (4, 5)]]
    assert ours.offsets(["f\u0302"])[0][-2:] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("family", ["gpt2", "roberta", "bart"])
@settings(max_examples=40)
@given(text=any_text)
def test_bytes_decode_to_the_text(family: str, text: str) -> None:
    ours = made(family)[2]
    assert ours.decode(alone(ours, text)) == text
    assert b"".join(ours.token_bytes[i] for i in alone(ours, text)) == text.encode()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(data=st.data())
def test_pieces_side_by_side_are_the_text(family: str, data: st.DataObject) -> None:
    ours = made(family)[2]
    ids = data.draw(st.lists(st.integers(0, ours.vocabulary_size - 1), max_size=8))
    joined = b"".join(ours.token_bytes[i] for i in ids).decode("utf-8", "replace")
    assert ours.decode(ids) in (joined, joined.removeprefix(" "), joined.removesuffix(" "))
    if family in ("gpt2", "t5", "roberta"):
        plain = [i for i in ids if ours.token_bytes[i]]
        assert ours.decode(ids) == peer(family).decode(plain, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(text=any_text, more=any_text)
def test_what_a_text_settles_stays_whatever_comes_after_it(
    family: str, text: str, more: str
) -> None:
    ours = made(family)[2]
    ids, rest = ours.stable_prefix(text)
    assert alone(ours, text + more)[: len(ids)] == ids
    if family in ("gpt2", "roberta"):
        assert b"".join(ours.token_bytes[i] for i in ids) + rest == text.encode()


def test_the_rest_is_what_pieces_will_spell() -> None:
    def rests(family: str, *texts: str) -> list[bytes]:
        return [made(family)[2].stable_prefix(text)[1] for text in texts]

    assert rests("gpt2", "the c", "c") == [b" c", b"c"]
    assert rests("bert", "the C", "C", "", "the ") == [b" c", b" c", b"", b" "]
    assert rests("t5", "the C", "C", "", "the ") == [b" C", b" C", b"", b" "]
    assert rests("gpt1", "the C", "C", "", "the ") == [b"c", b"c", b"", b""]


@pytest.mark.parametrize("family", FAMILIES)
def test_its_json_is_read_back_as_the_same_tokenizer(family: str, tmp_path: Path) -> None:
    _, config, ours = made(family)
    write(tmp_path, tokenizer__json=ours.to_json())
    again = read_hub_tokenizer(tmp_path, config)
    assert again.to_json() == ours.to_json()
    assert again.fingerprint == ours.fingerprint
    assert (again.special_ids, again.token_bytes, again.kind) == (
        ours.special_ids,
        ours.token_bytes,
        ours.kind,
    )
    texts = [*TEXTS[:3], " ".join(SPELLED), ""]
    assert again.encode(texts) == ours.encode(texts) == [alone(ours, text) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_a_tokenizer_by_protocol(family: str) -> None:
    _, config, ours = made(family)
    tokenizer: protocols.StoredTokenizer = ours
    assert len(tokenizer.token_bytes) == tokenizer.vocabulary_size == config["vocab_size"]
    assert not any(tokenizer.token_bytes[i] for i in tokenizer.special_ids.forbidden)
    assert all(tokenizer.pieces(range(tokenizer.vocabulary_size)))
    assert tokenizer.encode([]) == []
    with pytest.raises(UsageError, match="list of texts"):
        tokenizer.encode("abc")
    with pytest.raises(UsageError, match=r"^text 1 .*surrogate"):
        tokenizer.encode(["a", "\ud800"])
    with pytest.raises(UsageError, match="an id must be from 0 to"):
        tokenizer.decode([config["vocab_size"]])


# --- marks
# -----------------------------------------------------------------------------------------------------------


def test_each_family_has_its_marks() -> None:
    def special_ids(family: str) -> dict[str, Any]:
        return {
            name: value
            for name, value in made(family)[2].special_ids._asdict().items()
            if name != "forbidden"
        }

    nothing = {
        "pad": -1,
        "bos": (),
        "eos": None,
        "unk": None,
        "prefix": (),
        "separator": (),
        "suffix": (),
        "mask": None,
    }
    assert special_ids("bert") == nothing | {
        "pad": 0,
        "unk": 1,
        "prefix": (2,),
        "separator": (3,),
        "suffix": (3,),
        "mask": 4,
    }
    assert special_ids("roberta") == nothing | {
        "pad": 1,
        "prefix": (0,),
        "separator": (2, 2),
        "suffix": (2,),
        "mask": 4,
    }
    assert special_ids("gpt2") == nothing | {"bos": (0,), "eos": 0}
    assert special_ids("gpt1") == nothing | {"unk": 0}
    assert special_ids("t5") == nothing | {
        "bos": (0,),
        "eos": 1,
        "unk": 2,
        "separator": (1,),
        "suffix": (1,),
    }
    assert special_ids("bart") == nothing | {
        "bos": (2, 0),
        "eos": 2,
        "prefix": (0,),
        "separator": (2, 2),
        "suffix": (2,),
        "mask": 4,
    }
    pad = made("marian")[1]["pad_token_id"]
    assert special_ids("marian") == nothing | {
        "bos": (pad,),
        "eos": 0,
        "unk": 1,
        "separator": (0,),
        "suffix": (0,),
    }


def test_a_model_never_writes_marks_or_ids_without_an_entry_but_sentinels() -> None:
    size = made("t5")[1]["vocab_size"]
    assert made("t5")[2].special_ids.forbidden == (0, 2, *range(size - 7, size))
    # its texts are forced to begin with 0
    assert made("bart")[2].special_ids.bos == (2, 0)
    assert made("bart")[2].special_ids.forbidden == (1, 4)
    assert made("gpt2")[2].special_ids.forbidden == ()


def test_what_generation_config_says_goes_before(tmp_path: Path) -> None:
    config = roberta(tmp_path) | {"model_type": "bart", "is_encoder_decoder": True}
    assert read_hub_tokenizer(tmp_path, config).special_ids.bos == (2,)
    generation = {
        "decoder_start_token_id": 7,
        "forced_bos_token_id": 8,
        "eos_token_id": [9, 2],
        "pad_token_id": None,
    }
    write(tmp_path, generation_config__json=generation)
    special_ids = read_hub_tokenizer(tmp_path, config).special_ids
    assert (special_ids.bos, special_ids.eos) == ((7, 8), 9)


def test_a_template_is_read_off_every_processor() -> None:
    template: Any = {
        "type": "TemplateProcessing",
        "pair": [
            {"SpecialToken": {"id": "a"}},
            {"Sequence": {"id": "A"}},
            {"SpecialToken": {"id": "b"}},
            {"Sequence": {"id": "B"}},
        ],
        "special_tokens": {"a": {"ids": [5, 6]}, "b": {"ids": [7]}},
    }
    assert template_of(template) == SpecialTokenTemplate((5, 6), (7,), ())
    sequence: Any = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    bert: Any = {"type": "BertProcessing", "cls": ["x", 1], "sep": ["y", 2]}
    roberta: Any = {"type": "RobertaProcessing", "cls": ["x", 1], "sep": ["y", 2]}
    assert template_of(sequence) == SpecialTokenTemplate((5, 6), (7,), ())
    assert template_of(bert) == SpecialTokenTemplate((1,), (2,), (2,))
    assert template_of(roberta) == SpecialTokenTemplate((1,), (2, 2), (2,))
    assert template_of(None) == template_of({"type": "ByteLevel"}) == SpecialTokenTemplate()


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("wrong", [-1, "2", True, 1.0])
def test_a_mark_that_is_no_id_is_refused_with_its_file(
    wrong: Any, name: str, tmp_path: Path
) -> None:
    ids = {"eos_token_id": wrong}
    config = gpt2(tmp_path) | (ids if name == "config.json" else {})
    if name != "config.json":
        write(tmp_path, generation_config__json=ids)
    with pytest.raises(FolderError, match=rf"/{name}: eos_token_id must be an id from 0 on"):
        read_hub_tokenizer(tmp_path, config)


def test_a_mark_beyond_the_vocabulary_is_left_out_for_the_tokenizers_own_and_said() -> None:
    """A small GPT-2 has the ids of the large one, which transformers writes by default."""
    own = TokenizerSpecials(bos=3, eos=4)
    for config in ({"model_type": "gpt2"}, {"model_type": "gpt2", "eos_token_id": [50256, 1]}):
        found = special_ids_of(config, 10, own, SpecialTokenTemplate())
        assert (found.bos, found.eos) == ((3,), 4)
        notes = notes_on_ids(config, None, 10)
        assert [note.split(" is ")[0] for note in notes] == [
            "bos_token_id=50256",
            "eos_token_id=50256",
        ]
        assert notes_on_ids(config, None, 50257) == []


def test_an_id_that_config_json_alone_has_is_said() -> None:
    config = {"model_type": "bart", "decoder_start_token_id": 7, "eos_token_id": 2}
    said = notes_on_ids(config, {"eos_token_id": 2}, 10)
    assert said == [
        "decoder_start_token_id=7 is that of config.json, as generation_config.json has none"
    ]
    # transformers begins with bos then
    assert notes_on_ids(config, {"eos_token_id": 2, "bos_token_id": 7}, 10) == []
    assert notes_on_ids(config, None, 10) == []


# --- what is refused, and what is not
# --------------------------------------------------------------------------------


def damaged(family: str, folder: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    """Its tokenizer.json, spoiled, is read."""
    _, config, ours = made(family)
    content = json.loads(ours.to_json())
    spoil(content)
    write(folder, tokenizer__json=content)
    read_hub_tokenizer(folder, config)


DAMAGE: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "no model": ("gpt2", lambda c: c.pop("model")),
    "another model": ("gpt2", lambda c: c["model"].update(type="Python")),
    "an id twice": ("gpt2", lambda c: c["model"]["vocab"].update(a=5)),
    "an id that is no number": ("gpt2", lambda c: c["model"]["vocab"].update(a="5")),
    "a negative id": ("gpt2", lambda c: c["model"]["vocab"].update(a=-5)),
    "more ids than the model": ("gpt2", lambda c: c["model"]["vocab"].update({"new": 9999})),
    "an entry twice": ("t5", lambda c: c["model"]["vocab"].append(c["model"]["vocab"][9])),
    "no pre-tokenizer that is known": ("bert", lambda c: c["pre_tokenizer"].update(type="Code")),
    "a decoder of speech": ("bert", lambda c: c["decoder"].update(type="CTC")),
    "a merge of nothing": ("gpt2", lambda c: c["model"]["merges"].append(["qq", "zz"])),
    "a processor without its tokens": ("bert", lambda c: c["post_processor"].pop("special_tokens")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tokenizer_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    family, spoil = DAMAGE[damage]
    with pytest.raises(
        FolderError, match=r"its tokenizer cannot be read: .*; get its files again$"
    ) as caught:
        damaged(family, tmp_path, spoil)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=text)
    with pytest.raises(FolderError, match="its tokenizer cannot be read"):
        read_hub_tokenizer(tmp_path, {"vocab_size": 10})


def test_no_files_at_all_are_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        FolderError,
        match=r"looked for were tokenizer\.json, vocab\.txt, vocab\.json with merges\.txt.*spiece\.model",
    ):
        read_hub_tokenizer(tmp_path, {})


def test_merges_are_refused_with_their_line(tmp_path: Path) -> None:
    config = gpt2(tmp_path)
    whole = (tmp_path / "merges.txt").read_text(encoding="utf-8")
    write(tmp_path, merges__txt=whole + "one\n")
    with pytest.raises(
        FolderError, match=rf"merges\.txt:{whole.count(chr(10)) + 1}: must be two pieces"
    ):
        read_hub_tokenizer(tmp_path, config)
    write(tmp_path, merges__txt=whole + "q zzz\n")
    with pytest.raises(FolderError, match=r"the merge q zzz of merges\.txt is not in vocab\.json"):
        read_hub_tokenizer(tmp_path, config)


@settings(max_examples=40)
@given(end=st.integers(0, 10_000))
def test_a_sentencepiece_file_that_was_cut_off_is_refused_or_reads_less(end: int) -> None:
    folder = Path(mkdtemp(prefix="seqloom-"))
    whole = sentencepiece_model(vocab_size=120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(whole[: end % len(whole)])
    said = ""
    try:
        read_sentencepiece(folder / "spiece.model")
    except FolderError as error:
        said = str(error)
    assert "\n" not in said


def test_pieces_scores_and_kinds_are_those_of_sentencepiece() -> None:
    model, processor = read_sentencepiece(made("t5")[0] / "spiece.model"), original("t5")
    for i, piece in enumerate(model.pieces):
        assert (piece.text, piece.score) == (processor.id_to_piece(i), processor.get_score(i))
    assert [i for i, piece in enumerate(model.pieces) if piece.kind == 3] == [0, 1]
    assert (model.unk_id, model.kind, model.add_dummy_prefix, model.remove_extra_whitespaces) == (
        2,
        "unigram",
        True,
        True,
    )


def test_truncation_padding_and_dropout_of_a_file_are_left_out_and_its_code_never_looked_at(
    tmp_path: Path,
) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["truncation"] = {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        fixed = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
        content["padding"] = fixed | {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
        content["model"]["dropout"] = 0.9

    damaged("gpt2", tmp_path, spoil)
    _, config, ours = made("gpt2")
    write(
        tmp_path,
        tokenizer_config__json={
            "auto_map": {"AutoTokenizer": ["evil.py", None]},
            "trust_remote_code": True,
        },
    )
    assert read_hub_tokenizer(tmp_path, config).encode(TEXTS) == ours.encode(TEXTS)


def test_entries_that_were_added_match_in_the_text_and_spell_it(tmp_path: Path) -> None:
    config = word_piece(tmp_path)
    size = config["vocab_size"]
    write(tmp_path, added_tokens__json={"covid-19": size})
    with pytest.raises(FolderError, match=f"ids up to {size}, but the model only {size}"):
        read_hub_tokenizer(tmp_path, config)
    ours = read_hub_tokenizer(tmp_path, config | {"vocab_size": size + 8})
    assert size in alone(ours, "the covid-19 cat")
    assert ours.decode(alone(ours, "the covid-19 cat")) == "the covid-19 cat"
    assert ours.special_ids.forbidden[-7:] == tuple(range(size + 1, size + 8))
    write(tmp_path, added_tokens__json={"covid-19": size + 3})
    with pytest.raises(FolderError, match=f"must have the id {size + 3}, but comes as {size}"):
        read_hub_tokenizer(tmp_path, config | {"vocab_size": size + 8})


@pytest.mark.parametrize("named_in", ["added_tokens.json", "tokenizer_config.json"])
def test_entries_beside_a_tokenizer_json_are_added(tmp_path: Path, named_in: str) -> None:
    """As in transformers; before, `<user>` was cut into pieces."""
    _, config, ours = made("gpt2")
    (tmp_path / "tokenizer.json").write_text(ours.to_json())
    size = len(json.loads(ours.to_json())["model"]["vocab"])
    size = max(size, *(one["id"] + 1 for one in json.loads(ours.to_json())["added_tokens"]))
    entry = {"content": "<user>", "special": False}
    content = {"<user>": size} if named_in[0] == "a" else {"added_tokens_decoder": {size: entry}}
    (tmp_path / named_in).write_text(json.dumps(content))
    again = read_hub_tokenizer(tmp_path, config | {"vocab_size": size + 1})
    theirs = importlib.import_module("transformers").GPT2Tokenizer.from_pretrained(tmp_path)
    assert size in theirs("the <user> cat").input_ids
    assert again.encode(["the <user> cat"]) == [theirs("the <user> cat").input_ids]
    assert again.encode(TEXTS) == ours.encode(TEXTS)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_settings_of_bert_override_its_tokenizer_json(tmp_path: Path, key: str, name: str) -> None:
    """As in transformers, whose class for any tokenizer.json alone overrides nothing."""
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"aAeé中文",
        "##a",
        "##A",
        "##e",
        "##é",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary, "##中", "##文"]) + "\n")
    library = importlib.import_module("transformers")
    library.BertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    kept = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write(tmp_path, tokenizer_config__json=kept | {key: False, "tokenizer_class": name})
    theirs = library.AutoTokenizer.from_pretrained(tmp_path)
    size = len(vocabulary) + 2
    ours = read_hub_tokenizer(
        tmp_path, {"model_type": "bert", "vocab_size": size, "pad_token_id": 0}
    )
    for text in ("aA Aé", "é 中文a"):
        assert ours.encode([text]) == [theirs(text, add_special_tokens=False).input_ids]


@pytest.mark.parametrize("newer", [True, False])
def test_which_file_names_the_special_tokens(tmp_path: Path, newer: bool) -> None:
    """The older file is read after the newer one, unless that holds `added_tokens_decoder`."""
    decoder: dict[str, Any] = {"added_tokens_decoder": {}} if newer else {}
    write(
        tmp_path,
        tokenizer_config__json={"eos_token": "a"} | decoder,
        special_tokens_map__json={"eos_token": "b"},
    )
    assert TokenizerSettings.of(tmp_path).token("eos") == ("a" if newer else "b")


def test_case_and_accents_are_as_the_settings_say() -> None:
    lower, cased = made("bert")[2], made("bert cased")[2]
    assert lower.decode(alone(lower, "Thé CAT")) == "the cat"
    assert cased.pieces(alone(cased, "THE cat")) == ["[UNK]", " cat"]
