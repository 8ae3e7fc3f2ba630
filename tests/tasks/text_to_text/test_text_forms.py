"""Examples of each task as texts, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.campaigns.text_forms import FilesOfTask, outcome

from seqloom.config import EvaluateConfig, MixedTaskConfig
from seqloom.data.readers.examples import (
    GoldAnswer,
    LabelledText,
    Question,
    TaggedWords,
    TextPair,
)
from seqloom.errors import DataError, UsageError
from seqloom.protocols import Evaluation
from seqloom.tasks.text.classification import Classification
from seqloom.tasks.text_to_text.evaluate_tasks import joined
from seqloom.tasks.text_to_text.mixed_task import mixed_task
from seqloom.tasks.text_to_text.scores import HowToScore, main_score, score_texts
from seqloom.tasks.text_to_text.text_forms import (
    AnswerForm,
    LabelForm,
    NumberForm,
    PairForm,
    TagForm,
    check_names,
    number_text,
)
from seqloom.tasks.translation import measures
from seqloom.text.tokenizer_kinds import KINDS
from seqloom.text.tokenizers import train_tokenizer

LABELS = ("ABBR", "DESC:manner", "num ber", "2")
TAGS = ("NOUN", "B-PER", "``", ".")
TEXTS = [
    LabelledText(f"a text about {label}", None, (label,), None, "a", n)
    for n, label in enumerate(LABELS)
]
SCORES = [
    LabelledText("one", "two", (score,), None, "a", 1) for score in ("0", "3.8", "5.000", "-1.2")
]
QUESTIONS = [
    Question("1", "Who?", "It is Ann.", (GoldAnswer(6, "Ann"),), None, "a", 1),
    Question("2", "Why?", "It is Ann.", (), None, "a", 1),
]
SENTENCES = [
    TaggedWords(("NOUN", "NOUN", "a b", ".", "``"), ("``", "NOUN", ".", "NOUN", "B-PER"), "a", 1),
    TaggedWords((".",), (".",), "a", 2),
]
PAIRS = [TextPair("a dog", "ein Hund", "a", 1)]
FORMS: list[tuple[Any, Any, Any, list[Any]]] = [
    (LabelForm(prefix="p: ", labels=LABELS), None, TEXTS, list(LABELS)),
    (NumberForm(prefix="p ", step=0.2), None, SCORES, [0.0, 3.8, 5.0, -1.2]),
    (AnswerForm(prefix=""), None, QUESTIONS, ["Ann", ""]),
    (TagForm(prefix="p: ", labels=TAGS), None, SENTENCES, [one.tags for one in SENTENCES]),
    (PairForm(prefix="p: "), measures.TRANSLATION, PAIRS, ["ein Hund"]),
]
IDS = ["labels", "numbers", "answers", "tags", "pairs"]


def tokenizer_of(kind: str) -> Any:
    texts = [form.target(one) for form, _, examples, _ in FORMS for one in examples]
    return train_tokenizer([*texts, *LABELS, *TAGS, "a_b"], kind, 400)


@pytest.mark.parametrize(("form", "measure", "examples", "answers"), FORMS, ids=IDS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("words", "wordpiece")])
def test_the_text_of_an_answer_is_read_as_that_answer(
    form: Any, measure: Any, examples: Any, answers: Any, kind: str
) -> None:
    """Through a tokenizer, too; and every metric says that all is right."""
    how = HowToScore(tokenizer_of(kind), EvaluateConfig(), resamples=0)
    texts = how.written([form.target(one) for one in examples])
    assert form.read(examples, texts, how.written) == answers
    metrics = score_texts(form, measure, examples, texts, how).metrics
    if measure is None:  # BLEU of two words is 0
        assert main_score(form, measure, metrics) == pytest.approx(100)
    assert metrics.get("unreadable", 0) == 0
    for name in ("accuracy", "f1", "exact_match", "macro_f1"):
        if name in metrics:
            assert metrics[name] in (1, 100), name
    if "pearson" in metrics:
        assert metrics["pearson"] == pytest.approx(100)


@given(st.floats(-50, 50, allow_nan=False))
def test_numbers_are_rounded_as_t5_does(value: float) -> None:
    """np.round(x * 5) / 5, as the published preprocessing does, up to the ties that binary numbers hide."""
    written = number_text(repr(value), 0.2)
    assert abs(float(written) - value) <= 0.1 + 1e-9
    assert abs(float(written) - np.round(value * 5) / 5) < 1e-9 or abs(
        value * 5 % 1 - 0.5
    ) == pytest.approx(0, abs=1e-9)
    assert len(written.rpartition(".")[2]) == 1
    assert written != "-0.0"


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        ("2.5", 0.2, "2.4"),
        ("3.84", 0.2, "3.8"),
        ("-0.05", 0.2, "0.0"),
        ("0.4", 0.25, "0.50"),
        ("7", 5.0, "5.0"),
        ("1e2", 0.05, "100.00"),
    ],
)
def test_a_number_has_the_decimals_of_its_step(value: str, step: float, text: str) -> None:
    assert number_text(value, step) == text


def test_sources_are_as_t5_has_them() -> None:
    single = LabelForm(prefix="cola sentence: ", labels=LABELS)
    assert single.source(TEXTS[0]) == "cola sentence: a text about ABBR"
    assert (
        NumberForm(prefix="stsb ", step=0.2).source(SCORES[0])
        == "stsb sentence1: one sentence2: two"
    )
    assert AnswerForm(prefix="").source(QUESTIONS[0]) == "question: Who? context: It is Ann."
    assert TagForm(prefix="pos: ", labels=TAGS).source(SENTENCES[0]) == "pos: NOUN NOUN a_b . ``"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("I PRON am AUX", ("PRON", "AUX", None)),
        ("I PRON em AUX here ADV", ("PRON", None, "ADV")),
        ("am AUX here ADV", (None, "AUX", "ADV")),
        ("I AUX am NOTAG here", ("AUX", None, None)),
        ("", (None, None, None)),
    ],
)
def test_a_word_that_is_left_out_or_changed_has_no_tag(text: str, tags: Any) -> None:
    form = TagForm(prefix="", labels=("PRON", "AUX", "ADV"))
    example = TaggedWords(("I", "am", "here"), ("PRON", "AUX", "ADV"), "a", 1)
    assert form.read([example], [text], list) == [tags]


def test_a_text_that_is_no_answer_is_wrong_and_counted() -> None:
    how = HowToScore(tokenizer_of("bpe"), EvaluateConfig(), resamples=20)
    labels = score_texts(FORMS[0][0], None, TEXTS, ["ABBR", "ABBR", "nothing", "2"], how)
    assert labels.metrics["accuracy"] == 0.5
    assert labels.metrics["unreadable"] == 1
    assert labels.details["labels"]["(no label)"]["support"] == 0
    assert labels.details["labels"]["num ber"]["recall"] == 0
    numbers = score_texts(FORMS[1][0], None, SCORES, ["0.0", "3.8", "five", "-1.2"], how)
    assert numbers.metrics["unreadable"] == 1
    assert numbers.metrics["mean_squared_error"] == pytest.approx((5 + 1.2) ** 2 / 4)
    tags = score_texts(FORMS[3][0], None, SENTENCES, ["NOUN ``", ". ."], how)
    assert tags.metrics["unreadable"] == 4
    assert tags.metrics["accuracy"] == pytest.approx(2 / 6)


def test_several_tasks_have_the_mean_of_their_main_metrics() -> None:
    tasks = [
        mixed_task(
            "one",
            MixedTaskConfig(task="text-classification"),
            Classification(kind="classification"),
        ),
        mixed_task("two", MixedTaskConfig(task="translation"), None),
    ]
    found = [
        Evaluation({"accuracy": 0.5, "loss": 2.0}, outputs=["a"]),
        Evaluation({"bleu": 20.0, "loss": 1.0}, {"bleu": "v"}, ["b"]),
    ]
    together = joined(tasks, found)
    assert together.metrics == {
        "loss": 1.5,
        "score": 35,
        "one_accuracy": 0.5,
        "one_loss": 2,
        "two_bleu": 20,
        "two_loss": 1,
    }
    assert (together.signatures, together.outputs) == ({"two_bleu": "v"}, ["a", "b"])
    # nothing is decoded where the loss chooses
    assert "score" not in joined(tasks, [Evaluation(one.metrics) for one in found]).metrics


def test_what_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(DataError, match="a tag must have no blank"):
        FORMS[3][0].target(TaggedWords(("a",), ("B PER",), "a", 3))
    with pytest.raises(DataError, match="at most 1,000,000,000,000,000 times"):
        FORMS[1][0].target(SCORES[0]._replace(labels=("1e40",)))
    lower = HowToScore(
        train_tokenizer(["yes Yes no"], "bpe", 300, "lower"), EvaluateConfig(), resamples=0
    )
    with pytest.raises(UsageError, match="makes 'yes' of 'Yes', 'yes'"):
        check_names(("no", "Yes", "yes"), lower.written)


def test_the_campaign_finds_nothing_lost(tmp_path: Path) -> None:
    path = tmp_path / "tags.conll"
    path.write_text("I PRON\nam AUX\n\nyou PRON\n``\t``\n".replace(" ", "\t"))
    one = FilesOfTask("token-classification", path.name, {})
    assert outcome(one, path, 300) == (2, 4, 0, 100)
