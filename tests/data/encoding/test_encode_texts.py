"""Texts, pairs, choices, words and questions as encoded rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.data.encoding.encode_questions import encode_questions
from seqloom.data.encoding.encode_texts import (
    EncodingOptions,
    encode_choices,
    encode_labelled,
    label_ids,
    multi_hot_labels,
    scores_of,
)
from seqloom.data.encoding.encode_words import encode_tagged, tag_ids
from seqloom.data.encoding.encoded_dataset import (
    EncodedDataset,
    RowTemplate,
    SequenceArray,
    row_template,
)
from seqloom.data.encoding.sliding_windows import merge_windows
from seqloom.data.readers.examples import (
    ChoiceQuestion,
    GoldAnswer,
    LabelledText,
    Question,
    TaggedWords,
)
from seqloom.errors import DataError
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, DELIMITER, EOS, SPECIAL_IDS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

MARKED = RowTemplate((BOS,), (DELIMITER,), (EOS,))


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_tokenizer(["a b c d e f g h"], "whitespace", 100)


def labelled(*texts: str | tuple[str, str], labels: Sequence[str] = ()) -> list[LabelledText]:
    pairs = [(one, None) if isinstance(one, str) else one for one in texts]
    named: list[tuple[str, ...]] = [(label,) for label in labels] or [()] * len(pairs)
    both = enumerate(zip(pairs, named, strict=True), start=2)
    return [
        LabelledText(text, second, label, None, "x.csv", at) for at, ((text, second), label) in both
    ]


def rows_of(items: EncodedDataset, tokenizer: TextTokenizer) -> list[str]:
    return [
        " ".join(tokenizer.pieces(items.tokens[row].tolist())) for row in range(len(items.tokens))
    ]


def test_a_text_and_a_pair_have_the_marks_and_segments_of_the_paper(
    tokenizer: TextTokenizer,
) -> None:
    options = EncodingOptions(tokenizer=tokenizer, template=MARKED)
    items = encode_labelled(
        labelled("a b", ("a", "c d"), labels=["x", "y"]), options, label_ids(["y", "x"])
    )
    assert rows_of(items, tokenizer) == ["<s> a b </s>", "<s> a <delim> c d </s>"]
    batch = items.batch(np.array([0, 1]))
    assert batch.segments.tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert batch.tokens[0, 4:].tolist() == [-1, -1]
    assert batch.targets.tolist() == [1, 0]
    assert batch.owner.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("pair", "rows"),
    [
        ("joined", ["<s> a <delim> b c </s>"]),
        ("compared", ["<s> a </s>", "<s> b c </s>"]),
        ("both_orders", ["<s> a <delim> b c </s>", "<s> b c <delim> a </s>"]),
    ],
)
def test_a_pair_is_encoded_in_three_ways(
    tokenizer: TextTokenizer, pair: str, rows: list[str]
) -> None:
    items = encode_labelled(
        labelled(("a", "b c")),
        EncodingOptions(tokenizer=tokenizer, template=MARKED, pair=pair),
        scores_of,
    )
    assert rows_of(items, tokenizer) == rows
    assert len(items) == 1
    assert items.batch(np.array([0])).owner.tolist() == [0] * len(rows)


def test_each_option_is_a_row_with_the_text_before_it(tokenizer: TextTokenizer) -> None:
    choices = [
        ChoiceQuestion("a", ("b", "c", "d"), 2, "x", 1),
        ChoiceQuestion("e", ("f", "g"), None, "x", 2),
    ]
    items = encode_choices(choices, EncodingOptions(tokenizer=tokenizer, template=MARKED))
    assert rows_of(items, tokenizer)[2:4] == ["<s> a <delim> d </s>", "<s> e <delim> f </s>"]
    batch = items.batch(np.array([1, 0]))
    assert batch.owner.tolist() == [0, 0, 1, 1, 1]
    assert batch.targets.tolist() == [IGNORE, 2]


def test_the_longer_of_two_texts_gives_way_where_texts_may_be_cut(tokenizer: TextTokenizer) -> None:
    pair = ("a b c d e f", "g h")
    options = EncodingOptions(
        tokenizer=tokenizer, template=MARKED, model_max_length=8, max_length=100
    )
    assert rows_of(encode_labelled(labelled(pair), options, scores_of), tokenizer) == [
        "<s> a b c <delim> g h </s>"
    ]
    assert options.truncation.notices() == [
        "1 text is cut to what is read at most (the longest has 8 tokens)"
    ]
    turned = EncodingOptions(
        tokenizer=tokenizer, template=MARKED, model_max_length=8, max_length=100
    )
    assert rows_of(encode_labelled(labelled(pair[::-1]), turned, scores_of), tokenizer) == [
        "<s> g h <delim> a b c </s>"
    ]


@given(first=st.integers(0, 30), second=st.integers(0, 30), room=st.integers(2, 40))
def test_a_cut_pair_fills_its_room_and_keeps_half_of_each(
    tokenizer: TextTokenizer, first: int, second: int, room: int
) -> None:
    options = EncodingOptions(
        tokenizer=tokenizer,
        template=RowTemplate((), (), ()),
        model_max_length=room,
        max_length=1000,
    )
    items = encode_labelled(labelled(("a " * first, "b " * second)), options, scores_of)
    row = items.tokens[0].tolist() if first + second else []
    kept = items.second_start[0] if first + second else 0
    assert len(row) == min(first + second, room)
    assert kept >= min(first, room // 2)
    assert len(row) - kept >= min(second, room // 2)


def test_what_the_model_cannot_read_is_an_error_where_nothing_may_be_cut(
    tokenizer: TextTokenizer,
) -> None:
    options = EncodingOptions(tokenizer=tokenizer, template=MARKED, model_max_length=4)
    with pytest.raises(
        DataError,
        match=r"x\.csv:3: a text must have at most 4 tokens .* 2 have more \(the longest 6\).*max_length=4",
    ):
        encode_labelled(labelled("a b", "a b c", "a b c d"), options, scores_of)


def test_a_text_of_no_tokens_is_read_all_the_same(tokenizer: TextTokenizer) -> None:
    items = encode_labelled(
        labelled("", "a"),
        EncodingOptions(tokenizer=tokenizer, template=RowTemplate((), (), ())),
        scores_of,
    )
    assert (items.batch(np.array([0, 1])).tokens >= 0).sum(dim=1).tolist() == [1, 1]


def test_several_labels_are_a_row_of_zeros_and_ones() -> None:
    examples = [
        LabelledText("a", None, ("x", "z"), None, "f", 1),
        LabelledText("a", None, (), None, "f", 2),
    ]
    assert multi_hot_labels(["x", "y", "z"])(examples).tolist() == [[1, 0, 1], [0, 0, 0]]


def test_labels_that_are_not_known_are_not_trained() -> None:
    assert label_ids(["x"])(labelled("a", "b", labels=["x", "new"])).tolist() == [0, IGNORE]


# --- words with tags
# -------------------------------------------------------------------------------------------------


def test_a_word_is_asked_for_at_its_first_token(tokenizer: TextTokenizer) -> None:
    bpe = train_tokenizer(["low lower lowest"], "bytes", 300)
    items = encode_tagged(
        [TaggedWords(("low", "er"), ("A", "B"), "f", 1)],
        EncodingOptions(tokenizer=bpe, template=MARKED),
        tag_ids(["A", "B"]),
    )
    batch = items.batch(np.array([0]))
    assert batch.places.tolist() == [[1, 4]]
    assert batch.targets.tolist() == [[0, 1]]


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.sampled_from(["a", "b", "longer", "<s>", "\u200b", "é"]), max_size=40),
    room=st.integers(1, 12),
    stride=st.integers(0, 11),
)
def test_as_many_answers_come_out_as_words_went_in(
    words: list[str], room: int, stride: int
) -> None:
    """Whatever the words, and however short the windows: a word that no token spells keeps its place."""
    letters = train_tokenizer(["a b longer"], "characters", 100)
    options = EncodingOptions(
        tokenizer=letters, template=MARKED, model_max_length=room + 2, stride=min(stride, room - 1)
    )
    tags = tuple(str(at) for at in range(len(words)))
    items = encode_tagged(
        [TaggedWords(tuple(words), tags, "f", 1)] if words else [], options, tag_ids(tags)
    )
    if not words:
        assert len(items) == 0
        return
    assert max(items.tokens.lengths) <= room + 2
    answers = []
    for item in range(len(items)):
        batch = items.batch(np.array([item]))
        assert ((batch.places >= 0) & (batch.places < batch.tokens.shape[1])).all()
        answers.append(batch.targets[0].tolist())  # a model that is right everywhere
    assert merge_windows(items.windows[0], answers, len(words)) == list(range(len(words)))


def test_the_letters_of_each_word_stand_at_its_step(tokenizer: TextTokenizer) -> None:
    examples = [TaggedWords(("ab", "c"), (), "f", 1), TaggedWords(("c", "ab", "ab"), (), "f", 2)]
    options = EncodingOptions(
        tokenizer=tokenizer, template=RowTemplate((), (DELIMITER,), ()), alphabet=("a", "b")
    )
    batch = encode_tagged(examples, options, tag_ids(())).batch(np.array([0, 1]))
    assert batch.characters.tolist() == [[[1, 2], [0, -1], [-1, -1]], [[0, -1], [1, 2], [1, 2]]]


# --- questions
# -------------------------------------------------------------------------------------------------------


def test_a_window_is_asked_for_the_answer_where_it_holds_all_of_it() -> None:
    bytes_of = train_tokenizer(["x"], "bytes", 300)
    question = Question("q1", "?", "ab cd ef", (GoldAnswer(3, "cd"),), None, "f", 1)
    # room for 5 bytes
    options = EncodingOptions(tokenizer=bytes_of, template=MARKED, model_max_length=9, stride=2)
    items = encode_questions([question], options)
    assert items.windows[0] == [(0, 5), (3, 8)]
    assert np.asarray(items.targets).tolist() == [[4, 5], [1, 2]]
    batch = items.batch(np.array([0, 1]))
    assert batch.places.tolist() == [[0, 3, 4, 5, 6, 7], [0, 3, 4, 5, 6, 7]]
    assert [bytes_of.decode([i]) for i in batch.tokens[1, 3:8].tolist()] == list("cd ef")


def test_a_question_without_an_answer_points_at_the_first_step() -> None:
    bytes_of = train_tokenizer(["x"], "bytes", 300)
    items = encode_questions(
        [Question("q", "?", "ab", (), None, "f", 1)],
        EncodingOptions(tokenizer=bytes_of, template=MARKED),
    )
    assert np.asarray(items.targets).tolist() == [[0, 0]]


def test_a_question_that_leaves_no_room_is_an_error() -> None:
    bytes_of = train_tokenizer(["x"], "bytes", 300)
    with pytest.raises(
        DataError, match=r"f:7: a row must have room for the question and some of its context"
    ):
        encode_questions(
            [Question("q", "long question", "ab", (), None, "f", 7)],
            EncodingOptions(tokenizer=bytes_of, template=MARKED, model_max_length=12),
        )


# --- marks and batches
# -----------------------------------------------------------------------------------------------


def test_each_family_has_its_marks() -> None:
    hub = SPECIAL_IDS._replace(prefix=(101,), separator=(102,), suffix=(102,))
    assert row_template(SPECIAL_IDS, "bert", True, 50) == MARKED
    assert row_template(SPECIAL_IDS, "recurrent", True, 50) == RowTemplate((), (DELIMITER,), ())
    assert row_template(hub, "bert", False, 50) == RowTemplate((101,), (102,), (102,))
    # trained from scratch
    assert row_template(hub, "gpt", False, 50) == RowTemplate((50,), (51,), (52,))


def test_a_worker_without_rows_trains_nothing(tokenizer: TextTokenizer) -> None:
    items = encode_labelled(
        labelled("a", "b", labels=["x", "y"]),
        EncodingOptions(tokenizer=tokenizer, template=MARKED),
        label_ids(["x", "y"]),
    )
    batch = items.load(np.array([], np.int64), np.array([1, 0]))
    assert batch.targets.tolist() == [IGNORE]
    scores = encode_labelled(
        labelled("a", labels=["1.5"]),
        EncodingOptions(tokenizer=tokenizer, template=MARKED),
        scores_of,
    )
    assert torch.isnan(scores.load(np.array([], np.int64), np.array([0])).targets).all()


def test_an_array_keeps_its_sequences_apart() -> None:
    sequences = SequenceArray.of([[1, 2], [], [3]])
    assert [one.tolist() for one in (sequences[0], sequences[1], sequences[2])] == [[1, 2], [], [3]]
    assert sequences.padded(np.array([2, 0, 1]), -1).tolist() == [[3, -1], [1, 2], [-1, -1]]
