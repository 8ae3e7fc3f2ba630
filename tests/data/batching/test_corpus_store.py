"""The store of a corpus is the documents' ids, each ended by `</s>`, in one row; made once, whole or not at
all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.batching.test_token_store import Codes, place_of

import seqloom.data.batching.corpus_store
from seqloom.data.batching.corpus_store import CorpusStore, Totals, build_corpus, open_corpus
from seqloom.data.readers.documents import DocumentPiece
from seqloom.errors import DataError
from seqloom.text.special_tokens import SPECIAL_IDS

PIECES = [
    DocumentPiece("ab c", "a.txt", 1, False),
    DocumentPiece(" d", "a.txt", 1, False),
    DocumentPiece("\n", "a.txt", 1, True),
    DocumentPiece("é 💡\x03", "a.txt", 3, True),
    DocumentPiece("x", "b.txt", 2, True),
]


@pytest.fixture(autouse=True, params=[1, 300, 10**6])
def chunks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(seqloom.data.batching.corpus_store, "CHUNK", request.param)


def build(
    folder: Path, pieces: list[DocumentPiece] = PIECES, tokenizer: Codes | None = None
) -> CorpusStore:
    return build_corpus(lambda: pieces, tokenizer or Codes(), {"text": "1"}, folder)


def test_it_is_the_documents_in_a_row(tmp_path: Path) -> None:
    store = build(tmp_path)
    assert store.tokens.tolist() == [
        *map(ord, "ab c d\n"),
        2,
        *map(ord, "é 💡\x03"),
        2,
        ord("x"),
        2,
    ]
    assert isinstance(store.tokens, np.memmap)
    assert store.offsets.tolist() == [0, 8, 13, 15]
    assert [store.document(number).tolist() for number in range(len(store))] == [
        list(map(ord, text)) for text in ("ab c d\n", "é 💡\x03", "x")
    ]
    assert store.lines.tolist() == [1, 3, 2]
    assert [store.place(position) for position in (0, 7, 8, 12, 13, 14)] == [
        "a.txt:1",
        "a.txt:1",
        "a.txt:3",
        "a.txt:3",
        "b.txt:2",
        "b.txt:2",
    ]


def test_where_nothing_ends_a_text_documents_follow_each_other(tmp_path: Path) -> None:
    tokenizer = Codes()
    tokenizer.special_ids = SPECIAL_IDS._replace(eos=None, unk=ord("b"))
    store, ended = build(tmp_path, tokenizer=tokenizer), build(tmp_path)
    assert store.tokens.tolist() == [*map(ord, "ab c d\n"), *map(ord, "é 💡\x03"), ord("x")]
    assert [store.document(number).tolist() for number in range(3)] == [
        ended.document(number).tolist() for number in range(3)
    ]
    assert (store.totals.ids, store.totals.documents, store.totals.unknown) == (12, 3, 1)
    again = build(tmp_path, tokenizer=tokenizer)
    assert again.document(2).tolist() == [ord("x")]


def test_totals(tmp_path: Path) -> None:
    heard: list[int] = []
    store = build_corpus(
        lambda: PIECES, Codes(), {}, tmp_path, lambda totals: heard.append(totals.ids)
    )
    assert store.totals == Totals(
        documents=3, ids=15, unknown=1, bytes=7 + 8 + 1, characters=12, words=6
    )
    assert heard[-1] == 15
    assert heard == sorted(heard)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(
        st.lists(st.text(st.sampled_from("ab \né"), max_size=9), min_size=1, max_size=3),
        min_size=1,
        max_size=9,
    )
)
def test_pieces_and_chunks_change_nothing(texts: list[list[str]], tmp_path: Path) -> None:
    pieces = [
        DocumentPiece(text, "a", 1, at == len(parts) - 1)
        for parts in texts
        for at, text in enumerate(parts)
    ]
    store = build_corpus(lambda: pieces, Codes(300), {"texts": texts}, tmp_path)
    assert store.tokens.dtype == np.uint16
    assert [store.document(number).tolist() for number in range(len(store))] == [
        list(map(ord, "".join(parts))) for parts in texts
    ]
    assert (np.asarray(store.tokens)[store.offsets[1:] - 1] == 2).all()
    assert store.totals.characters == sum(len("".join(parts)) for parts in texts)


def test_it_is_made_once(tmp_path: Path) -> None:
    first, second = Codes(), Codes()
    one, other = build(tmp_path, tokenizer=first), build(tmp_path, tokenizer=second)
    assert first.calls
    assert not second.calls
    assert other.tokens.tolist() == one.tokens.tolist()
    assert other.totals == one.totals


ARRAYS = ("tokens.bin.uint32", "offsets.npy", "lines.npy", "meta.json")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in ARRAYS for damage in ("cut", "missing")),
        ("files.jsonl", "missing"),
    ],
)
def test_a_damaged_store_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    build(tmp_path)
    path = place_of(tmp_path) / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-8])
    assert open_corpus(place_of(tmp_path)) is None
    assert build(tmp_path).document(2).tolist() == [ord("x")]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[DocumentPiece]:
        yield from PIECES
        raise DataError("is bad", "b.txt", 3)

    with pytest.raises(DataError, match=r"b\.txt:3: is bad"):
        build_corpus(failing, Codes(), {}, tmp_path)
    with pytest.raises(DataError, match="at least one document"):
        build_corpus(lambda: iter(()), Codes(), {}, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_another_kind_of_store_is_not_taken_for_it(tmp_path: Path) -> None:
    build(tmp_path)
    shutil.copy(place_of(tmp_path) / "meta.json", tmp_path / "meta.json")
    assert open_corpus(tmp_path) is None


def test_reading_goes_only_a_chunk_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(seqloom.data.batching.corpus_store, "CHUNK", 1)
    read, ahead = 0, []

    def pieces() -> Iterator[DocumentPiece]:
        nonlocal read
        for number in range(50):
            read += 1
            yield DocumentPiece("x", "a", number + 1, True)

    build_corpus(
        pieces, Codes(), {}, tmp_path, lambda totals: ahead.append(read - totals.documents)
    )
    assert max(ahead) <= 2
