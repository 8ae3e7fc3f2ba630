"""BLEU is cut into words as the script of the references needs it, to sacreBLEU's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import sacrebleu

from seqloom.errors import UsageError
from seqloom.evaluation import writing_systems
from seqloom.evaluation.text_metrics import bleu
from seqloom.evaluation.word_errors import bleu_metric
from seqloom.evaluation.writing_systems import (
    bleu_tokenizer_of,
    require_bleu_tokenizer,
    script_without_spaces,
)

TEXTS = {
    "zh": ["我今天没有时间去学校。", "他在 2019 年买了一台 iPhone 手机。"],
    "ja": ["今日は学校に行く時間がありません。", "東京でラーメンを食べました。"],
    "th": ["วันนี้ฉันไม่มีเวลาไปโรงเรียน", "เขาซื้อโทรศัพท์เมื่อปีที่แล้ว"],
    "lo": ["ມື້ນີ້ຂ້ອຍບໍ່ມີເວລາໄປໂຮງຮຽນ", "ຂ້ອຍກິນເຂົ້າ"],
    "km": ["ថ្ងៃនេះខ្ញុំមិនមានពេលទៅសាលារៀនទេ", "គាត់បានទិញទូរស័ព្ទ"],
    "my": ["ဒီနေ့ကျောင်းသွားဖို့အချိန်မရှိဘူး", "သူဖုန်းဝယ်ခဲ့တယ်"],
    "bo": ["བོད་སྐད་ནི་བོད་པའི་སྐད་ཡིག་ཡིན།", "ང་སློབ་གྲྭ་བ་ཡིན།"],
    "ko": ["오늘은 학교에 갈 시간이 없습니다.", "그는 작년에 전화기를 샀다."],
    "en": ["He said 你好 to me, and I said it back.", "Nothing else happened that day."],
    "hi": ["आज मेरे पास स्कूल जाने का समय नहीं है।", "उसने फ़ोन खरीदा।"],
    "ru": ["Сегодня у меня нет времени идти в школу.", "Он купил телефон."],
}
EXPECTED = dict.fromkeys(TEXTS, "13a") | {"zh": "zh", "ja": "char"}
EXPECTED |= dict.fromkeys(("th", "lo", "km", "my", "bo"), "char")


@pytest.fixture(autouse=True)
def no_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where MeCab is not installed, whether it is or not."""
    installed = writing_systems._installed
    monkeypatch.setattr(
        writing_systems,
        "_installed",
        lambda *names: installed(*names) and not {"MeCab", "mecab_ko"} & set(names),
    )


@pytest.mark.parametrize("language", TEXTS)
def test_the_tokenizer_of_bleu_is_that_of_the_script(language: str) -> None:
    assert bleu_tokenizer_of(TEXTS[language]) == EXPECTED[language]


@pytest.mark.parametrize("language", TEXTS)
def test_bleu_is_that_of_sacrebleu_called_with_this_tokenizer(language: str) -> None:
    references = TEXTS[language]
    # nearly right: one character of each is lost
    outputs = [text[:3] + text[4:] for text in references]
    name = bleu_tokenizer_of(references)
    score = bleu(outputs, references, name)
    assert score.value == sacrebleu.corpus_bleu(outputs, [references], tokenize=name).score
    assert score.value > 25
    assert f"tok:{name}" in score.signature
    assert bleu(references, references, name).value == pytest.approx(100)


@pytest.mark.parametrize("name", ["13a", "zh", "char", "intl"])
def test_the_counts_for_intervals_and_rescoring_are_of_the_same_tokenizer(name: str) -> None:
    references = [text for texts in TEXTS.values() for text in texts]
    outputs = [text[:3] + text[4:] for text in references]
    metric = bleu_metric(name)
    counts = sum(
        metric.statistics(reference, [output])[0]
        for reference, output in zip(references, outputs, strict=True)
    )
    assert float(metric.value(counts)) == pytest.approx(bleu(outputs, references, name).value)


def test_japanese_is_cut_by_mecab_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_systems, "_installed", lambda *_: True)
    assert bleu_tokenizer_of(TEXTS["ja"]) == "ja-mecab"


def test_a_script_is_that_of_most_words() -> None:
    assert script_without_spaces(["the word 猫 means cat"]) is None
    assert script_without_spaces(["iPhone 手机很好用"]) == "Chinese"
    assert script_without_spaces(["", "...", "123"]) is None


def test_a_tokenizer_that_sacrebleu_cannot_use_here_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r'needs MeCab .*pip install "sacrebleu\[ja\]"'):
        require_bleu_tokenizer("ja-mecab")
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(writing_systems, "_installed", lambda *_: True)
    with pytest.raises(UsageError, match=r"flores200 needs .*fetch it from https://"):
        require_bleu_tokenizer("flores200")
    for name in ("13a", "zh", "char", "intl", "none"):
        require_bleu_tokenizer(name)
