"""Run folders of small random models that write texts and end some of them, and what seqloom and transformers
write with such a folder and its export."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import nn

from seqloom.cli import main
from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.models import model_family
from seqloom.runs.write_run import write_finished_run
from seqloom.text.special_tokens import EOS, SPECIAL_IDS, UNK
from seqloom.text.tokenizers import train_tokenizer

hf: Any = transformers
hf.utils.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()

TEXTS = [
    "the king sees a dog",
    "a small bird, a fox.",
    "My old friend calls  twice",
    "the red fox in the rain </s> runs",
    "<s> the <pad> queen <unk> .",
    "Ein Häuschen für 2 Bären",
]
"""Some spell special tokens, have letters that the tokenizer never saw, or spaces of several kinds."""
TRAINED_ON = [*TEXTS[:4], "rain and sun over the old town", "a dog runs in the park at night ."] * 4
WIDTH: dict[str, Any] = {"width": 24, "heads": 2}
LAYERS: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2}
BART: dict[str, Any] = {
    "norm": "after",
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "output_bias": True,
    "context": 64,
}
MARIAN: dict[str, Any] = {
    "norm": "after",
    "positions": "sinusoidal-halves",
    "output_bias": True,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "gpt",
        "text-generation",
        {"layers": 2, "context": 64, "activation": "gelu-tanh"},
    ),
    "openai-gpt": (
        "gpt",
        "text-generation",
        {"layers": 2, "context": 64, "activation": "gelu-tanh", "norm": "after"},
    ),
    "t5": (
        "t5",
        "translation",
        {"encoder_layers": 2, "decoder_layers": 2, "head_width": 8},
    ),
    "t5 v1.1": (
        "t5",
        "translation",
        LAYERS
        | {"gated": True, "activation": "gelu-tanh", "tie_output": False, "scale_output": False},
    ),
    "bart": ("transformer", "translation", LAYERS | BART),
    "marian": ("transformer", "translation", LAYERS | MARIAN),
}
"""Family of the hub -> our family, its task, and fields that the hub's family needs."""


class Texts(NamedTuple):
    """What a model writes for each text, and the log-probability or score of it."""

    texts: list[str]
    scores: list[float]


def write_run(
    folder: Path,
    family: str,
    kind: str = "bpe",
    normalisation: Any = "none",
    seed: int = 0,
    **decode: Any,
) -> Path:
    """The run folder of a random model with these settings of decoding."""
    folder.mkdir(parents=True)
    name, task, fields = FAMILIES[family]
    tokenizer = train_tokenizer(TRAINED_ON, kind, 300, normalisation)
    config_class, model_class, _ = model_family(name)
    never = [one for one in SPECIAL_IDS.forbidden if one != UNK or not tokenizer.has_unknown]
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "suppressed_ids": tuple(never), **WIDTH}
    torch.manual_seed(seed)
    model = model_class(config_class(**sizes, **fields)).eval()
    sharpen(model)
    run = RunConfig(
        task=task,
        output_dir=str(folder),
        model={"name": name, "size": "tiny", **fields},
        data=DataConfig(train=("data.tsv",)),
        decode=DecodeConfig(**decode),
    )
    write_finished_run(folder, run, model, tokenizer, [], None)
    return folder


@torch.no_grad()
def sharpen(model: nn.Module) -> None:
    """Far from uniform, so that texts differ, with an end mark that comes now and then."""
    last = [name for name, one in model.named_parameters() if "norm" in name][-2:]
    for name, one in model.named_parameters():
        if one.dim() > 1:
            nn.init.normal_(one, std=0.35)
        elif name in last and name.endswith("weight"):
            nn.init.normal_(one, std=3.5)
    model.get_parameter("embedding.weight")[EOS] *= 1.6


def command_line(*args: str, given: str = "") -> str:
    """The program in this process: arguments and standard input -> what it writes."""
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8")
    out, error = io.BytesIO(), io.BytesIO()
    sys.stdout, sys.stderr = io.TextIOWrapper(out, "utf-8"), io.TextIOWrapper(error, "utf-8")
    status: object = 0
    try:
        main([*args])
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        written, said = out.getvalue().decode(), error.getvalue().decode()
        sys.stdin, sys.stdout, sys.stderr = streams
    assert not status, said
    return written


def our_texts(folder: Path, task: str) -> Texts:
    """By the command line."""
    verb = "generate" if task == "text-generation" else "predict"
    out = command_line(verb, str(folder), "-", "--json", given="\n".join(TEXTS) + "\n")
    rows = [json.loads(line) for line in out.splitlines()]
    if verb == "generate":
        rows = [row for row in rows if not row["sample"]]
        return Texts([row["text"] for row in rows], [row["log_probability"] for row in rows])
    best = [row["outputs"][0] for row in rows]
    return Texts([one["text"] for one in best], [one["score"] for one in best])


def their_texts(folder: Path, task: str) -> list[str]:
    """By `AutoTokenizer`, the model and its `generate`, with nothing else than the files."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    causal = task == "text-generation"
    kind = hf.AutoModelForCausalLM if causal else hf.AutoModelForSeq2SeqLM
    model = kind.from_pretrained(folder).eval()
    texts = []
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**given)[0]
        before = given["input_ids"].shape[1] if causal else 0
        whole = tokenizer.decode(ids, skip_special_tokens=True)
        prompt = tokenizer.decode(ids[:before], skip_special_tokens=True)
        texts.append(whole[len(prompt) :])
    return texts
