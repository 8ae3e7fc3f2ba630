"""No setting of a training is taken and ignored: a sample of all tasks, families and settings; all of them
with `python -m tests.laws.every_setting`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from tests.laws.every_setting import Case, cases, data_folder, judged

from seqloom.config import DataConfig
from seqloom.data.formats.form_settings import BY_FORM, unread_by

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLE = 40


def sample() -> list[Case]:
    every = [
        case for case in cases() if not case.setting.startswith("train.") or case.family != "ngram"
    ]
    chosen = np.random.default_rng(21).choice(len(every), SAMPLE, replace=False)
    return [every[index] for index in sorted(chosen)]


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[None]:
    yield
    shutil.rmtree(data_folder(), ignore_errors=True)
    data_folder.cache_clear()


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.name.replace(" ", "-"))
def test_a_setting_changes_the_run_or_is_refused(case: Case) -> None:
    verdict = judged(case)
    assert verdict.what in ("changes", "refused"), verdict.detail


SHOWN = [
    ("text-classification", "bert", "train.batch_tokens"),
    ("text-classification", "bert", "model.pooler"),
    ("text-generation", "recurrent_lm", "train.word_vectors"),
    ("token-classification", "bert", "data.stride"),
    ("token-classification", "convolution", "data.stride"),
    ("translation", "seq2seq", "train.min_steps"),
    ("translation", "seq2seq", "data.part"),
    ("translation", "seq2seq", "decode.diversity"),
    ("text-generation", "gpt", "decode.beam"),
    ("image-classification", "vit", "model.channels"),
]


@pytest.mark.parametrize("case", SHOWN, ids="-".join)
def test_settings_that_were_ignored_are_not(case: tuple[str, str, str]) -> None:
    assert judged(Case(*case)).what in ("changes", "refused")


def test_each_setting_of_a_form_is_a_setting_of_reading() -> None:
    assert unread_by(()) <= vars(DataConfig()).keys()
    assert unread_by(BY_FORM) == frozenset()
    assert "delimiter" in unread_by(["jsonl"])
    assert "delimiter" not in unread_by(["jsonl", "csv"])
