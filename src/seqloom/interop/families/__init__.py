"""Every family of the hub that opens here. One dict."""

from __future__ import annotations

from seqloom.interop.families.bart import BART, MARIAN
from seqloom.interop.families.bert import BERT, ELECTRA, ROBERTA
from seqloom.interop.families.family import Architecture, HubFamily
from seqloom.interop.families.gpt import GPT1, GPT2
from seqloom.interop.families.t5 import T5
from seqloom.interop.families.vit import VIT

FAMILIES: dict[str, HubFamily] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": ELECTRA,
    "openai-gpt": GPT1,
    "gpt2": GPT2,
    "t5": T5,
    "bart": BART,
    "marian": MARIAN,
    "vit": VIT,
}
"""model_type of config.json -> the family. The only registry of what opens here."""

__all__ = ["FAMILIES", "Architecture", "HubFamily"]
