"""Prompts and how a language model goes on with them: ids, text, pieces, the notice of a window that
slides."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.decoding.toys import Remembering
from torch import Tensor

from seqloom.config import DecodeConfig
from seqloom.decoding.string_constraints import cut_at
from seqloom.errors import UsageError
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.runs.progress import collect_logs
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.language_modeling.generate import TextGenerator, text_after
from seqloom.tasks.language_modeling.streamed_text import IncrementalText, StreamedText
from seqloom.tasks.translation.translate import decode_texts
from seqloom.text.special_tokens import BOS, EOS, SPECIAL_TOKENS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer

TEXTS = ["ein Hund läuft", "zwei Hunde laufen 🐕🐕", "日本語の犬 runs", "a dog runs, two dogs run"]
KINDS = {
    kind: train_tokenizer(TEXTS, kind, 300) for kind in ("bpe", "bytes", "characters", "words")
}


def writer(model: Any, tokenizer: TextTokenizer, **decode: Any) -> TextGenerator:
    bundle = LoadedRun(
        folder=Path("runs/tales"),
        task="text-generation",
        model_type="gpt",
        model=model,
        tokenizer=tokenizer,
        decode=DecodeConfig(**{"strategy": "sample"} | decode),
        weights=Path("none"),
    )
    return TextGenerator(bundle)


class Dictated:
    """A model that writes given ids and ends; the state is how many came."""

    context = None

    def __init__(self, ids: list[int], size: int) -> None:
        self.ids, self.size = [*ids, EOS], size
        self.read = list[list[int]]()
        self.calls = 0

    def __call__(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        self.calls += 1
        if state is None:
            self.read += tokens.tolist()
        state = torch.zeros(len(tokens), dtype=torch.long) if state is None else state + 1
        following = torch.tensor(self.ids)[state]
        return torch.nn.functional.one_hot(following, self.size)[:, None].float().log(), state


def dictated(ids: list[int], tokenizer: TextTokenizer) -> tuple[Dictated, TextGenerator]:
    model = Dictated(ids, tokenizer.vocabulary_size)
    return model, writer(model, tokenizer, max_length=1000)


@pytest.fixture(scope="module")
def gpt() -> GPT:
    """A model of random weights that looks at 12 tokens, and is far from uniform."""
    torch.manual_seed(0)
    size = KINDS["bpe"].vocabulary_size
    model = GPT(GPTConfig(vocabulary_size=size, context=12, width=16, layers=2, heads=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


# Text


def test_a_prompt_is_read_after_the_begin_mark_and_only_new_text_comes_out() -> None:
    tokenizer = KINDS["bpe"]
    (ids,) = tokenizer.encode([" läuft 🐕"])
    model, dictating = dictated(ids, tokenizer)
    for prompt in ("ein Hund", ""):
        ((one,),) = dictating.generate([prompt])
        assert (one.prompt, one.text, one.tokens, one.finished, one.sample) == (
            prompt,
            " läuft 🐕",
            ids,
            True,
            0,
        )
        assert one.log_probability == 0
        assert model.read.pop() == [BOS, *tokenizer.encode([prompt])[0]]


def test_words_are_joined_to_the_prompt() -> None:
    tokenizer = KINDS["words"]
    _, dictating = dictated(tokenizer.encode(["dog runs"])[0], tokenizer)
    ((after_prompt,),), ((alone,),) = dictating.generate(["a"]), dictating.generate([""])
    assert after_prompt.text == " dog runs"
    assert alone.text == "dog runs"
    assert list(dictating.stream("a")) == [" dog", " runs"]


def test_no_special_token_is_written_and_the_length_is_kept() -> None:
    model = Remembering(KINDS["bpe"].vocabulary_size)
    model.table[:, :16] += 6  # special tokens would be likely
    model.table[:, EOS] = -9
    (found,) = writer(model, KINDS["bpe"], n_best=5).generate([""])
    assert [len(one.tokens) for one in found] == [200] * 5
    assert min(token for one in found for token in one.tokens) >= len(SPECIAL_TOKENS)
    assert not any(one.finished for one in found)
    ((short,),) = writer(model, KINDS["bpe"]).generate([""], max_length=7)
    assert short.tokens == found[0].tokens[:7]


def test_outputs_of_a_beam_come_best_first() -> None:
    searching = writer(Remembering(KINDS["bpe"].vocabulary_size), KINDS["bpe"], strategy="beam")
    (found,) = searching.generate(["a"], beam=4, n_best=3, max_length=5)
    assert [one.sample for one in found] == [0, 1, 2]
    means = [one.log_probability / (len(one.tokens) + one.finished) for one in found]
    assert means == sorted(means, reverse=True)


@pytest.mark.usefixtures("one_thread")
def test_the_batch_changes_no_text(gpt: GPT) -> None:
    """Prompts of many lengths, shorter and longer than the context, padded on the left beside each other."""
    prompts = [
        "",
        "a dog",
        "two dogs run, a dog runs",
        "zwei Hunde laufen und ein Hund läuft auch und zwei Hunde",
        "日本語",
    ]
    writing = writer(
        gpt, KINDS["bpe"], n_best=2, max_length=30, temperature=1.3, top_p=0.95, seed=11
    )
    alone = [
        [(one.text, one.tokens) for one in writing.generate([prompt])[0]] for prompt in prompts
    ]
    for rows in (1, 2, 64):
        together = writing.generate(prompts, batch_rows=rows)
        assert [[(one.text, one.tokens) for one in found] for found in together] == alone
    backwards = writing.generate(prompts[::-1])[::-1]
    assert [[(one.text, one.tokens) for one in found] for found in backwards] == alone
    assert len({one for found in alone for one in str(found)}) > 5
    assert all(first != second for first, second in alone)


@pytest.mark.usefixtures("one_thread")
def test_progress_counts_every_token(gpt: GPT) -> None:
    made = list[int]()
    found = writer(gpt, KINDS["bpe"], n_best=2).generate(
        ["a", "b", "c"], made.append, max_length=30, batch_rows=2
    )
    assert sum(made) == sum(len(one.tokens) + one.finished for outputs in found for one in outputs)


@pytest.mark.usefixtures("one_thread")
def test_a_translation_model_can_sample_too() -> None:
    """Its samples share the memory of their source; n_best, seeds and batches mean the same."""
    torch.manual_seed(0)
    tokenizer = KINDS["bpe"]
    widths: dict[str, Any] = dict.fromkeys(
        ("width", "encoder_width", "embedding_width", "attention_width", "readout_width"), 8
    )
    model = Seq2Seq(Seq2SeqConfig(vocabulary_size=tokenizer.vocabulary_size, **widths)).eval()
    texts = ["a dog", "zwei Hunde laufen und ein Hund", "", "日本"]
    sampling = DecodeConfig(strategy="sample", n_best=3, max_length=12, seed=7)
    found = decode_texts(model, tokenizer, texts, sampling)
    assert [len(outputs) for outputs in found] == [3, 3, 1, 3]
    assert len({output.text for outputs in found for output in outputs}) == 10
    alone = [
        [output.text for output in decode_texts(model, tokenizer, [text], sampling)[0]]
        for text in texts
    ]
    assert [[output.text for output in outputs] for outputs in found] == alone
    narrow = decode_texts(model, tokenizer, texts, replace(sampling, top_k=1))
    greedy = decode_texts(model, tokenizer, texts, DecodeConfig(beam=1, max_length=12))
    assert [{output.text for output in outputs} for outputs in narrow] == [
        {outputs[0].text} for outputs in greedy
    ]


BLANKS: dict[str, tuple[str, str]] = {
    "bpe": ("a dog ", "have the blank before a word"),
    "words": ("a dog ", "does not read it there"),
    "whitespace": ("a dog  ", "does not read it there"),
    "wordpiece": ("a dog ", "does not read it there"),
    "unigram": ("a dog ", "does not read it there"),
    "bytes": ("a dog ", ""),
    "characters": ("a dog ", ""),
}


@pytest.mark.parametrize("kind", BLANKS)
def test_a_prompt_that_ends_in_a_blank_is_said_once_where_words_have_theirs_before_them(
    kind: str, notices: list[str]
) -> None:
    prompt, reason = BLANKS[kind]
    tokenizer = train_tokenizer(TEXTS, kind, 300)
    writing = writer(Dictated([20, 21], tokenizer.vocabulary_size), tokenizer, beam=1)
    writing.generate(["a dog", "", " "], max_length=1)
    assert notices == []
    writing.generate(["a dog", prompt, prompt], max_length=1)
    list(writing.stream(prompt, max_length=1))
    assert len(notices) == bool(reason)
    if reason:
        assert notices[0].startswith(f"the prompt {prompt!r} ends in a blank: ")
        assert reason in notices[0]


# Windows


def test_a_window_that_slides_is_said_once(notices: list[str]) -> None:
    model = Remembering(KINDS["bpe"].vocabulary_size, context=12)
    model.table[:, EOS] = -99
    writing = writer(model, KINDS["bpe"], n_best=3)
    writing.generate(["ab", "cd"], max_length=10)  # 3 tokens and 9 more are read
    assert notices == []
    writing.generate(["ab", "cd"], max_length=11)
    assert len(notices) == 1
    for _ in range(2):
        writing.generate(["ab", "cd"], max_length=40)
        assert notices == [
            (
                "the model looks at 12 tokens at most: where a text was longer, it went on from the last 6,"
                " read afresh"
            )
        ]


# Streams


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "changes", [{"seed": 3}, {"strategy": "beam", "beam": 1}, {"strategy": "beam", "beam": 3}]
)
def test_a_stream_is_the_text_in_pieces(changes: dict[str, Any], gpt: GPT) -> None:
    with collect_logs() as streamed:
        pieces = list(writer(gpt, KINDS["bpe"], max_length=40).stream("a dog", **changes))
    with collect_logs() as whole:
        ((one, *_),) = writer(gpt, KINDS["bpe"], max_length=40).generate(["a dog"], **changes)
    assert "".join(pieces) == one.text
    assert (len(pieces) > 10) == (changes.get("beam") != 3)
    assert streamed == whole
    assert "" not in pieces


def test_a_stream_comes_as_it_is_made() -> None:
    """The first piece is there before the second token is asked for."""
    model, dictating = dictated(KINDS["bytes"].encode(["ab"])[0], KINDS["bytes"])
    stream = dictating.stream("")
    assert (next(stream), model.calls) == ("a", 1)
    assert (next(stream), model.calls) == ("b", 2)


@given(st.text(max_size=20).filter(lambda text: "\ufffd" not in text and text.isprintable()))
def test_a_character_is_given_as_soon_as_its_last_byte_is_there(text: str) -> None:
    pieces = IncrementalText(KINDS["bytes"], [BOS])
    given_so_far = ""
    for character in text:
        for at, byte in enumerate(encoded := character.encode(), start=1):
            given_so_far += (piece := pieces.add(16 + byte))
            assert piece == (character if at == len(encoded) else "")
    assert given_so_far == text
    assert pieces.rest() == ""


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(st.data())
def test_pieces_join_to_the_text_whatever_the_tokens(kind: str, data: st.DataObject) -> None:
    """Half characters, bytes that are none, special tokens: joined it is what decoding all at once gives, and
    no piece is taken back."""
    tokenizer = KINDS[kind]
    some = st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=25)
    (prompt,) = tokenizer.encode([data.draw(st.sampled_from(["", "a dog", "日本", "zwei "]))])
    tokens = data.draw(some)
    pieces, joined = IncrementalText(tokenizer, [BOS, *prompt]), ""
    for at, token in enumerate(tokens, start=1):
        joined += pieces.add(token)
        assert text_after(tokenizer, prompt, tokens[:at]).startswith(joined)
    assert joined + pieces.rest() == text_after(tokenizer, prompt, tokens)


def test_bytes_that_never_form_a_character_are_given_out_as_they_come() -> None:
    """100,000 of them; at most one character waits, whatever came before."""
    pieces, given_out = IncrementalText(KINDS["bytes"], [BOS]), 0
    for number in range(1, 100_001):
        given_out += len(pieces.add(16 + 0x80 + number % 64))
        assert given_out >= number - 1
    assert given_out + len(pieces.rest()) == 100_000


@given(
    st.text("ab é犬", max_size=25),
    st.lists(st.text("ab é犬", min_size=1, max_size=4), min_size=1, max_size=4),
)
@example("aba", ["b", "aba"])
def test_no_part_of_a_stop_string_is_ever_given_out(text: str, stop: list[str]) -> None:
    """Byte by byte, so that a stop string is split at every place."""
    streamed, joined = StreamedText(KINDS["bytes"], [BOS], stop), ""
    expected = cut_at(text, stop)
    for byte in text.encode():
        joined += streamed.add(16 + byte)
        assert expected.startswith(joined)
    assert joined + streamed.rest() == expected


# Refusals


def test_a_model_of_another_task_is_refused() -> None:
    other = LoadedRun(
        folder=Path("runs/captions"),
        task="translation",
        model_type="seq2seq",
        model=torch.nn.Identity(),
        tokenizer=KINDS["bpe"],
        decode=DecodeConfig(),
        weights=Path("none"),
    )
    with pytest.raises(
        UsageError,
        match=(
            r"a model of translation cannot generate; use: seqloom predict"
            r" runs/captions$"
        ),
    ):
        TextGenerator(other)


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        (
            "beam",
            {"temperature": 0.5},
            (
                "temperature changes nothing with decode.strategy=beam: it needs"
                " decode.strategy=sample"
            ),
        ),
        ("beam", {"seed": 1}, "decode.seed changes nothing"),
        (
            "sample",
            {"beam": 3},
            (
                "decode.beam changes nothing with decode.strategy=sample: it needs"
                " decode.strategy=beam"
            ),
        ),
        ("sample", {"temperature": -1}, "decode.temperature must be greater than or equal to 0"),
        ("sample", {"strategy": "beam", "n_best": 9}, "decode.n_best must be at most decode.beam"),
    ],
)
def test_settings_that_cannot_be_or_would_change_nothing_are_refused(
    strategy: str, changes: dict[str, Any], message: str
) -> None:
    writing = writer(Remembering(KINDS["bpe"].vocabulary_size), KINDS["bpe"], strategy=strategy)
    with pytest.raises(UsageError, match=message):
        writing.generate([""], **changes)
    if "n_best" not in changes:  # a stream has one output
        with pytest.raises(UsageError, match=message):
            next(writing.stream("", **changes))


# Strings that end a text, that never come, and that it begins with


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [("a",), ("un", "s"), ("e", " "), ("🐕", "犬"), ("zzzzz",)])
def test_a_stop_string_ends_the_text_that_would_have_come_exactly_before_it(
    kind: str, stop: tuple[str, ...]
) -> None:
    """Also across tokens, in a batch, and piece by piece."""
    tokenizer = KINDS[kind]
    model, prompts = Remembering(tokenizer.vocabulary_size, seed=3), ["", "ein Hund", "dogs"]
    settings: dict[str, Any] = {"seed": 4, "n_best": 4, "max_length": 25}
    whole = writer(model, tokenizer).generate(prompts, **settings)
    cut_off = writer(model, tokenizer).generate(prompts, **settings, stop=stop)
    for prompt, longs, shorts in zip(prompts, whole, cut_off, strict=True):
        for long, short in zip(longs, shorts, strict=True):
            assert (
                short.text
                == long.text[
                    : min(
                        (long.text.index(s) for s in stop if s in long.text), default=len(long.text)
                    )
                ]
            )
            assert short.finished == (long.finished or short.text != long.text)
            assert short.tokens == long.tokens[: len(short.tokens)]
        pieces = list(writer(model, tokenizer).stream(prompt, **settings, stop=stop))
        assert "".join(pieces) == shorts[0].text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_what_is_banned_never_comes_and_what_is_asked_for_begins(kind: str, strategy: str) -> None:
    tokenizer = KINDS[kind]
    model = Remembering(tokenizer.vocabulary_size, seed=3)
    begin = "zwei Hunde"
    settings: dict[str, Any] = {
        "strategy": strategy,
        "n_best": 5,
        "max_length": 20,
        "ban": ["u", "og", "日"],
        "begin": begin,
    }
    with pytest.raises(UsageError) if kind == "words" else nullcontext():
        writer(model, tokenizer).generate(
            [""],
            **settings | {"begin": "zweiHunde 5"} if kind == "words" else settings | {"ban": []},
        )
    for outputs in writer(model, tokenizer).generate(
        ["", "dogs r"], **settings | {"begin": "", "ban": ["u", "og", "日"]}
    ):
        for one in outputs:
            assert not any(string in one.text for string in ("u", "og", "日"))
    for outputs in writer(model, tokenizer).generate(["", "dogs r"], **settings | {"ban": []}):
        assert len(outputs) == 5
        for one in outputs:
            assert one.text.strip().startswith(begin)


def test_translation_stops_bans_and_begins_too() -> None:
    tokenizer = KINDS["bpe"]
    torch.manual_seed(0)
    model = Seq2Seq(
        Seq2SeqConfig(
            vocabulary_size=tokenizer.vocabulary_size, embedding_width=8, encoder_width=8, width=8
        )
    ).eval()
    plain = DecodeConfig(beam=1, max_length=20)
    for text in TEXTS:
        ((whole,),) = decode_texts(model, tokenizer, [text], plain)
        letter = next(c for c in whole.text if c.isascii())
        ((short,),) = decode_texts(model, tokenizer, [text], replace(plain, stop=(letter,)))
        assert short.text == whole.text[: whole.text.index(letter)]
        ((other,),) = decode_texts(model, tokenizer, [text], replace(plain, ban=(letter,)))
        assert letter not in other.text
        ((begun,),) = decode_texts(model, tokenizer, [text], replace(plain, begin="zwei D"))
        assert begun.text.startswith("zwei D")
