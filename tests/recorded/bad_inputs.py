"""Inputs that are wrong: what seqloom says of them is recorded too."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.recorded.commands import (
    CNN,
    GPT,
    S2S,
    VIT,
    WORDS,
    Command,
    command,
    commands,
    sets,
    training,
)

Prepare = Callable[[Path], None]

SETUP = commands(f"""
for-bad-seq2seq: train translation data/train.tsv --output-dir s2s {WORDS} {S2S} {training(4)} --json
for-bad-gpt: train text-generation data/book.txt --output-dir gpt {WORDS} {GPT} {training(4)} --json
for-bad-ngram: train text-generation data/book.txt --output-dir kn --model ngram:bigram {WORDS} --json
for-bad-letters: train text-generation data/book.txt --output-dir letters --model ngram:bigram
    --set data.tokenizer=characters
for-bad-labels: train text-classification data/reviews.csv --output-dir cnn --model convolution:tiny
    {CNN} {WORDS} {training(4)} --json
for-bad-vit: train image-classification data/images.npz --output-dir vit --model vit:tiny {VIT}
    {training(4)} --json
""")
"""What the inputs below are about."""


def _written(name: str, content: str | bytes) -> Prepare:
    def prepare(work: Path) -> None:
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return prepare


def _copied(folder: str, copy: str, damage: Prepare) -> Prepare:
    """Copies a run folder and damages the copy."""

    def prepare(work: Path) -> None:
        shutil.copytree(work / folder, work / copy)
        damage(work / copy)

    return prepare


def _removed(*names: str) -> Prepare:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def _cut(name: str, size: int) -> Prepare:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return damage


def _changed(name: str, key: str, value: object) -> Prepare:
    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text("utf-8"))
        content[key] = value
        (folder / name).write_text(json.dumps(content), "utf-8")

    return damage


def _not_a_number(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4:] = struct.pack("<f", float("nan"))
    path.unlink()  # it is a link to the checkpoint's
    path.write_bytes(content)


def _unsealed(damage: Prepare) -> Prepare:
    """Damage of a folder whose manifest is made to agree with it."""

    def both(folder: Path) -> None:
        damage(folder)
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    return both


def _pickle(folder: Path) -> None:
    shutil.copytree(folder / "data" / "hub-bert", folder / "pickled")
    (folder / "pickled" / "model.safetensors").unlink()
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def _hub(name: str, key: str, value: object) -> Prepare:
    def prepare(work: Path) -> None:
        shutil.copytree(work / "data" / "hub-bert", work / name)
        _changed("config.json", key, value)(work / name)

    return prepare


MISPLACED = json.dumps(
    {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "a b",
                        "qas": [
                            {
                                "id": "q1",
                                "question": "c ?",
                                "answers": [{"text": "b", "answer_start": 0}],
                            }
                        ],
                    }
                ]
            }
        ]
    }
)
"""An answer that does not stand where it is said to stand."""
OTHER_RUN = "task: translation\noutput_dir: changed\ndata: {train: [x.tsv]}\n"


def _one_image_less(work: Path) -> None:
    np.savez(work / "odd.npz", images=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(2, np.uint8))


def bad(name: str, line: str, prepare: Prepare | None = None, stdin: bytes | str = b"") -> Command:
    """A command that must fail; what others before it have left in the folder `new` is gone."""

    def cleared(work: Path) -> None:
        shutil.rmtree(work / "new", ignore_errors=True)
        if prepare is not None:
            prepare(work)

    return command(f"bad-{name}", line, stdin, cleared, fails=True)


def trains(task: str, data: str, more: str = "") -> str:
    return f"train {task} {data} --output-dir new {more}"


def setting(name: str, value: str) -> Command:
    """A setting of a training that cannot be."""
    return bad(f"setting-{name}", trains("translation", "data/train.tsv", f"--set {name}={value}"))


BAD = [
    # the command line
    bad("verb", "trian translation"),
    bad("nothing", "train"),
    bad("flag", "train translation data/train.tsv --output-dir new --steps 3"),
    bad("flag-without-value", "train translation data/train.tsv --output-dir"),
    bad("no-folder", "predict"),
    bad("no-output", "train translation data/train.tsv"),
    bad("task", trains("translate", "data/train.tsv")),
    bad("task-of-others", trains("fill-mask", "data/book.txt")),
    bad("model", trains("translation", "data/train.tsv", "--model bert")),
    bad("model-unknown", trains("translation", "data/train.tsv", "--model lstm")),
    bad("size", trains("translation", "data/train.tsv", "--model seq2seq:huge")),
    bad("models-unknown", "models seq3seq"),
    bad("set-without-value", trains("translation", "data/train.tsv", "--set train.max_steps")),
    bad("set-section", trains("translation", "data/train.tsv", "--set training.max_steps=3")),
    bad("set-near", trains("translation", "data/train.tsv", "--set train.max_step=3")),
    bad("set-model-key", trains("translation", "data/train.tsv", "--set model.hidden=3")),
    bad(
        "set-several",
        trains(
            "translation",
            "data/train.tsv",
            "--set train.beta2=2 --set train.epochs=-1 --set data.nothing=1",
        ),
    ),
    setting("train.max_steps", "-3"),
    setting("train.max_steps", "many"),
    setting("train.learning_rate", "0"),
    setting("train.schedule", "sudden"),
    setting("train.best", "f1"),
    setting("train.device", "tpu"),
    setting("train.shift", "1"),
    setting("data.tokenizer", "syllables"),
    setting("data.format", "xml"),
    setting("model.dropout", "2"),
    setting("model.cell", "rnn"),
    setting("model.vocabulary_size", "9"),
    setting("head.crf", "true"),
    setting("decode.beam", "0"),
    bad(
        "model-heads",
        trains(
            "translation",
            "data/train.tsv",
            "--model transformer --set model.width=10 --set model.heads=4",
        ),
    ),
    bad(
        "model-window",
        trains(
            "text-generation", "data/book.txt", f"{GPT} {sets('train', 'window=99 max_steps=2')}"
        ),
    ),
    bad("idle-head", trains("token-classification", "data/tags.conllu", "--set head.pooling=max")),
    bad("idle-data", trains("text-classification", "data/reviews.csv", "--set data.document=file")),
    bad("from-task", trains("translation", "data/train.tsv", "--from data/hub-bert")),
    bad(
        "from-tokenizer",
        trains(
            "text-classification",
            "data/reviews.csv",
            "--from data/hub-bert --set data.tokenizer=words",
        ),
    ),
    bad("validation-stdin", trains("translation", "data/train.tsv", "--validation -")),
    bad("config-missing", "train --config missing.yaml"),
    bad(
        "config-broken",
        "train --config broken.yaml",
        _written("broken.yaml", "task: translation\n  data: [\n"),
    ),
    bad(
        "config-alias",
        "train --config alias.yaml",
        _written("alias.yaml", "task: &a translation\noutput_dir: *a\n"),
    ),
    bad(
        "config-twice",
        "train --config twice.yaml",
        _written("twice.yaml", "task: translation\ntask: translation\n"),
    ),
    bad("resume-nothing", "train --resume nowhere"),
    bad("resume-and-more", "train --resume s2s --set train.max_steps=9"),
    bad("output-exists", "train translation data/train.tsv --output-dir s2s"),
    # data
    bad("data-missing", trains("translation", "data/nothing.tsv")),
    bad("data-empty", trains("translation", "empty.tsv"), _written("empty.tsv", "")),
    bad(
        "data-header-only",
        trains("translation", "header.tsv"),
        _written("header.tsv", "source\ttarget\n"),
    ),
    bad("data-one-file", trains("translation", "data/train.en")),
    bad("data-unequal", trains("translation", "data/train.en data/val.de")),
    bad(
        "data-cells",
        trains("translation", "cells.tsv"),
        _written("cells.tsv", "source\ttarget\na\tb\nc\n"),
    ),
    bad("data-column", trains("translation", "data/train.tsv", "--set data.source=english")),
    bad(
        "data-quotes",
        trains("text-classification", "quotes.csv"),
        _written("quotes.csv", 'text,label\n"a,good\nb,bad\n'),
    ),
    bad(
        "data-jsonl",
        trains("translation", "lines.jsonl"),
        _written("lines.jsonl", '{"source": "a", "target": "b"}\n{"source": \n'),
    ),
    bad(
        "data-jsonl-kind",
        trains("translation", "kind.jsonl"),
        _written("kind.jsonl", '{"source": "a", "target": 3}\n'),
    ),
    bad(
        "data-utf-8",
        trains("translation", "latin.tsv"),
        _written("latin.tsv", b"source\ttarget\na\tsch\xf6n\n"),
    ),
    bad("data-long-line", trains("translation", "data/train.tsv", "--set data.max_line_bytes=20")),
    bad(
        "data-gz",
        trains("text-generation", "book.txt.gz"),
        _written("book.txt.gz", b"\x1f\x8b\x08\x00 no gzip"),
    ),
    bad(
        "data-conllu",
        trains("token-classification", "short.conllu"),
        _written("short.conllu", "1\tthe\tthe\n\n"),
    ),
    bad(
        "data-bio",
        trains("token-classification", "bad.bio", "--set data.format=conll"),
        _written("bad.bio", "the O\ndog I-THING\n\nthe B-THING\n"),
    ),
    bad(
        "data-one-label",
        trains("text-classification", "one.csv"),
        _written("one.csv", "text,label\na,x\nb,x\nc,x\n"),
    ),
    bad(
        "data-squad", trains("question-answering", "squad.json"), _written("squad.json", MISPLACED)
    ),
    bad(
        "data-choices",
        trains("multiple-choice", "one.jsonl"),
        _written("one.jsonl", '{"question": "a", "option1": "b", "option2": "c", "label": 7}\n'),
    ),
    bad("data-score", trains("sentence-similarity", "data/entails.tsv")),
    bad("data-images", trains("image-classification", "odd.npz"), _one_image_less),
    bad(
        "data-idx",
        trains("image-classification", "images-ubyte data/images-labels-idx1-ubyte"),
        _written("images-ubyte", b"\x00\x00\x08\x03\x00\x00"),
    ),
    bad(
        "data-idx-missing", trains("image-classification", "data/images-idx3-ubyte no-labels-ubyte")
    ),
    bad("check-jsonl", "check translation lines.jsonl --json"),
    bad("check-model", "check translation data/train.tsv --model seq2seq"),
    # run folders
    bad("folder-missing", "evaluate nowhere data/test.tsv"),
    bad("folder-other", "predict data data/test.en"),
    bad(
        "folder-truncated",
        "evaluate cut data/test.tsv",
        _copied("s2s", "cut", _cut("model.safetensors", 900)),
    ),
    bad(
        "folder-unsealed-truncated",
        "predict cut2 data/test.en",
        _copied("s2s", "cut2", _unsealed(_cut("model.safetensors", 900))),
    ),
    bad("folder-nan", "predict nan data/test.en", _copied("s2s", "nan", _unsealed(_not_a_number))),
    bad(
        "folder-manifest",
        "predict manifest data/test.en",
        _copied("s2s", "manifest", _not_a_number),
    ),
    bad(
        "folder-manifest-broken",
        "predict broken data/test.en",
        _copied("s2s", "broken", _cut("manifest.json", 40)),
    ),
    bad(
        "folder-config",
        "predict config data/test.en",
        _copied("s2s", "config", _unsealed(_changed("config.json", "cell", "rnn"))),
    ),
    bad(
        "folder-config-shape",
        "predict shape data/test.en",
        _copied("s2s", "shape", _unsealed(_changed("config.json", "width", 9))),
    ),
    bad(
        "folder-tokenizer",
        "predict tok data/test.en",
        _copied("s2s", "tok", _removed("tokenizer.json")),
    ),
    bad(
        "folder-no-weights",
        "predict none data/test.en",
        _copied("s2s", "none", _removed("model.safetensors", "manifest.json", "checkpoint-4")),
    ),
    bad(
        "resume-changed",
        "train --resume changed",
        _copied("s2s", "changed", _written("run.yaml", OTHER_RUN)),
    ),
    bad("pickle", "predict pickled -", _pickle, "a\n"),
    bad(
        "hub-option",
        "predict odd-hub -",
        _hub("odd-hub", "position_embedding_type", "relative_key"),
        "a\n",
    ),
    bad("hub-family", "predict odd-family -", _hub("odd-family", "model_type", "llama"), "a\n"),
    bad("hub-shape", "import odd-shape new", _hub("odd-shape", "hidden_size", 16)),
    # verbs and models that do not fit
    bad("evaluate-other-task", "evaluate s2s data/book.txt"),
    bad("evaluate-columns", "evaluate cnn data/train.tsv"),
    bad(
        "evaluate-unseen",
        "evaluate cnn unseen.csv",
        _written("unseen.csv", "text,label\na,good\nb,strange\n"),
    ),
    bad("evaluate-stride", "evaluate s2s data/test.tsv --stride 3"),
    bad("evaluate-outputs", "evaluate gpt data/held.txt --outputs outputs.txt"),
    bad("evaluate-outputs-exist", "evaluate cnn data/reviews-test.csv --outputs data/test.en"),
    bad("evaluate-train-setting", "evaluate s2s data/test.tsv --set train.seed=1"),
    bad("predict-language", "predict gpt data/held.txt"),
    bad("predict-idle", "predict s2s data/test.en --set decode.temperature=0.5"),
    bad("predict-n-best", "predict s2s data/test.en --set decode.n_best=9"),
    bad("predict-groups", "predict s2s data/test.en --set decode.beam=5 --set decode.groups=2"),
    bad("predict-images", "predict vit data/images-test.npz --set decode.beam=2"),
    bad("predict-reader-decode", "predict cnn data/reviews-test.csv --set decode.beam=2"),
    bad("predict-two-files", "predict s2s data/test.en data/val.en"),
    bad("predict-utf-8", "predict s2s -", None, b"a\n\xff\n"),
    bad("generate-translation", "generate s2s --prompt a"),
    bad("generate-greedy-idle", "generate gpt --set decode.strategy=beam --set decode.top_p=0.9"),
    bad("generate-sample-idle", "generate gpt --set decode.beam=3"),
    bad("generate-lengths", "generate gpt --set decode.min_length=9 --set decode.max_length=3"),
    bad("generate-both", "generate gpt data/prompts.txt --prompt a"),
    bad("score-translation", "score s2s --text a"),
    bad("score-pairs", "score gpt data/minimal.jsonl --pairs good"),
    bad("score-pairs-column", "score gpt data/minimal.jsonl --pairs good,worse"),
    bad("score-by", "score gpt data/held.txt --by kind"),
    bad("ensemble-one", "ensemble gpt --output-dir new"),
    bad("ensemble-tokenizers", "ensemble gpt letters --output-dir new"),
    bad("ensemble-weights", "ensemble gpt kn --weights 1 --output-dir new"),
    bad("complete-n", "complete gpt the --n 0"),
    bad("rescore-weights", "rescore gpt data/nbest.jsonl --weights lm=much"),
    bad("rescore-metric", "rescore gpt data/nbest.jsonl --metric ter"),
    bad(
        "rescore-lists",
        "rescore gpt bad-nbest.jsonl",
        _written("bad-nbest.jsonl", '{"id": "a", "nbest": []}\n'),
    ),
    bad("prompt-orders", "prompt gpt data/reviews-test.csv --template sentiment --orders 2"),
    bad("prompt-template", "prompt gpt data/reviews-test.csv --template data/reviews.csv"),
    bad("rescore-tune", "rescore gpt data/nbest.jsonl --tune data/nbest-unknown.jsonl"),
    bad(
        "degeneration-strategy",
        "degeneration gpt data/held.txt --strategies greedy+top_p=0.9 --output d.json",
    ),
    bad(
        "degeneration-long",
        "degeneration gpt data/held.txt --prompt-tokens 9 --new-tokens 90 --output d.json",
    ),
    bad("exact-beams", "exact s2s data/test.en --beams one"),
    bad("exact-sampling", "exact s2s data/test.en --set decode.strategy=sample --limit 1"),
    bad("explain-no-attention", "explain rnn 'the dog' --show attention"),
    bad("explain-rows", "explain s2s 'the dog' --rows 3"),
    bad("explain-output", "explain s2s 'the dog' --output picture.bmp"),
    bad("gradient-flow-gpt", "explain gpt data/held.txt --gradient-flow --output g.json"),
    bad("probe-task", "probe counting"),
    bad("probe-cells", "probe recall --cells elman,rnn --output p"),
    bad("probe-distances", "probe recall --distances far --output p"),
    bad("compare-task", "compare translation data/train.tsv --models seq2seq,t5 --output-dir c"),
    bad("compare-one", "compare text-classification data/reviews.csv --models bert --output-dir c"),
    bad(
        "compare-seed",
        "compare text-classification data/reviews.csv --models bert,convolution --output-dir c --set "
        "train.seed=2",
    ),
    bad("export-format", "export s2s new --format pickle"),
    bad("export-arpa", "export gpt new.arpa"),
    bad("export-seq2seq", "export s2s new"),
    bad("export-exists", "export gpt data"),
    bad("import-dtype", "import data/hub-bert new --dtype int8"),
    bad(
        "import-arpa",
        "import bad.arpa new",
        _written("bad.arpa", "\\data\\\nngram 1=2\n\n\\1-grams:\n-1 a\n"),
    ),
    bad("import-run", "import s2s new"),
    bad("hub-offline", "predict hf://nobody/nothing -", None, "a\n"),
]
