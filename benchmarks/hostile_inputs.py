"""Mutated inputs and hostile folders: each is read, or refused in one short line that is no internal error.

    python -m benchmarks.hostile_inputs inputs --count 40000
    python -m benchmarks.hostile_inputs folders --count 500

`tests/test_hostile_inputs.py` runs a few of each. What is drawn depends on the seed alone.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqloom import files, tensor_files
from seqloom.cli.failures import failure_of
from seqloom.config import DataConfig, RunConfig
from seqloom.data.formats.read_report import ReadReport
from seqloom.data.images.image_files import read_pictures
from seqloom.data.readers.documents import read_documents
from seqloom.data.readers.labelled import read_labelled
from seqloom.data.readers.multiple_choice import read_choices
from seqloom.data.readers.nbest import read_nbest
from seqloom.data.readers.records import read_pairs
from seqloom.data.readers.squad import read_questions
from seqloom.data.readers.tagged import read_tagged
from seqloom.errors import LONGEST_MESSAGE, SeqloomError
from seqloom.manifest import MANIFEST
from seqloom.models.ngrams.arpa import read_arpa
from seqloom.run_file import parse, read_run_file
from seqloom.tasks.model import load
from seqloom.text.hub.sentencepiece_model import read_sentencepiece
from seqloom.text.vectors.word_vectors import read_word_vectors
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

LONGEST = 30
"""Seconds that one input may take."""
ODD = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\r",
        b"\n\n",
        b"\t",
        b'"',
        b"\\",
        b"{",
        b"[" * 2000,
        b"null",
    ),
    *(
        b"NaN",
        b"1e999",
        b"-1",
        b"9" * 5000,
        b"\xef\xbb\xbf",
        b"\\ud800",
        b"\\u0000",
        b"a" * 100_000,
        b"-",
    ),
)
"""What is put into an input."""


def _archive(content: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in content.items():
            file.writestr(name, text)
    return memory.getvalue()


def _arrays() -> bytes:
    memory = io.BytesIO()
    np.savez(memory, images=np.arange(48, dtype=np.uint8).reshape(3, 4, 4), labels=np.arange(3))
    return memory.getvalue()


def _of_data(read: Callable[..., Any]) -> Callable[[Path], object]:
    """A reader of data files, with an odd line refused and skipped in turn."""

    def both(path: Path) -> object:
        policy: Any = "skip" if path.stat().st_size % 2 else "error"
        options = DataConfig(on_bad_line=policy)
        return sum(1 for _ in read([str(path)], options, ReadReport()))

    return both


def _arpa(path: Path) -> object:
    with files.open_binary(str(path)) as file:
        return read_arpa(file, str(path))


def _run_file(path: Path) -> object:
    return parse(RunConfig, read_run_file(str(path)))


SQUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The king sees a dog.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who ?",
                            "answers": [{"text": "king", "answer_start": 4}],
                        }
                    ],
                }
            ],
        }
    ]
}
ARPA = (
    "\\data\\\nngram 1=4\nngram 2=2\n\n\\1-grams:\n-99\t<s>\t-0.3\n-0.7\t</s>\n-1.0\t<unk>\n-0.5\ta\t-0.2\n\n"
    "\\2-grams:\n-0.4\t<s> a\n-0.3\ta </s>\n\n\\end\\\n"
)
TENSORS = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
PAIRS = b"source\ttarget\na cat\tun chat\na dog\tun chien\n"
SEEDS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "pairs.tsv": (PAIRS, _of_data(read_pairs)),
    "pairs.csv": (PAIRS.replace(b"\t", b","), _of_data(read_pairs)),
    "pairs.tsv.gz": (gzip.compress(PAIRS, mtime=0), _of_data(read_pairs)),
    "pairs.jsonl": (
        b'{"source": "a", "target": "b"}\n{"source": "c", "target": "d"}\n',
        _of_data(read_pairs),
    ),
    "texts.txt": (b"one two\nthree\n\nfour\n", _of_data(read_documents)),
    "labels.csv": (b"text,label\nfine,pos\nbad,neg\n", _of_data(read_labelled)),
    "labels.json": (
        b'{"train": [{"text": "a", "label": "x"}, ["b", "y"]]}',
        _of_data(read_labelled),
    ),
    "labels.txt": (b"__label__pos fine\n__label__neg bad\n", _of_data(read_labelled)),
    "labels.zip": (_archive({"pos/1.txt": b"fine", "neg/1.txt": b"bad"}), _of_data(read_labelled)),
    "words.conll": (b"the O\nking B-PER\n\nsees O\na O\n", _of_data(read_tagged)),
    "words.conllu": (
        b"# a\n1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n\n",
        _of_data(read_tagged),
    ),
    "squad.json": (json.dumps(SQUAD).encode(), _of_data(read_questions)),
    "choices.jsonl": (
        b'{"text": "a", "option1": "b", "option2": "c", "label": 1}\n',
        _of_data(read_choices),
    ),
    "nbest.jsonl": (
        b'{"source": "a", "nbest": [{"text": "b"}, {"text": "c"}]}\n',
        lambda path: list(read_nbest(str(path), DataConfig(), ReadReport())),
    ),
    "images.npz": (_arrays(), lambda path: list(read_pictures([str(path)]))),
    "model.arpa": (ARPA.encode(), _arpa),
    "vectors.txt": (
        b"2 3\nthe 1 2 3\nking 4 5 6\n",
        lambda path: read_word_vectors(str(path)),
    ),
    "run.yaml": (
        b"task: translation\noutput_dir: x\ntrain: {max_steps: 6, seed: 1}\n",
        _run_file,
    ),
    "config.json": (b'{"model_type": "gpt2", "n_layer": 2, "n_head": [1, 2.5]}', files.read_json),
    "spiece.model": (
        b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02\x0a\x08\x0a\x01a\x15\x00\x00\x80\xbf",
        read_sentencepiece,
    ),
    "model.safetensors": (
        len(TENSORS).to_bytes(8, "little") + TENSORS + bytes(8),
        tensor_files.read_header,
    ),
}
"""Name -> a whole input, and what reads it."""


VALUES: tuple[object, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1e308,
        2**70,
        2**31,
        "",
        "x" * 1000,
        "\0",
        "\ud800",
        [],
        {},
        [[]],
        {"a": {}},
        [None],
    ),
)
"""What is put in place of a value of JSON."""


def _other_value(content: bytes, chosen: random.Random) -> bytes:
    """JSON with another value somewhere."""
    whole = json.loads(content.splitlines()[0] if content.count(b"\n{") else content)
    part = whole
    while True:
        keys = list(part) if isinstance(part, dict) else range(len(part))
        if not keys:
            return json.dumps(whole).encode()
        key = chosen.choice(list(keys))
        if not isinstance(part[key], dict | list) or chosen.random() < 0.3:
            part[key] = chosen.choice(VALUES)
            return json.dumps(whole).encode()
        part = part[key]


def mutated(content: bytes, chosen: random.Random) -> bytes:
    """A few changes: bits flipped, parts cut, put twice or swapped, and what is odd put in."""
    damage = bytearray(content)
    if chosen.random() < 0.3 and content[:1] == b"{":
        return _other_value(content, chosen)
    for _ in range(chosen.choice((1, 1, 2, 4))):
        at = chosen.randrange(len(damage) + 1)
        end = min(len(damage), at + chosen.choice((1, 2, 8, 40)))
        kind = chosen.randrange(6)
        if kind == 0 and at < len(damage):
            damage[at] ^= 1 << chosen.randrange(8)
        elif kind == 1:
            del damage[at:end]
        elif kind == 2:
            damage[at:at] = damage[at:end] * chosen.choice((1, 2, 50))
        elif kind == 3:
            damage[at:end] = chosen.choice(ODD)
        elif kind == 4:
            damage[at:end] = chosen.randbytes(end - at)
        elif chosen.random() < 0.3:
            del damage[at:]
    return bytes(damage)


def outcome(read: Callable[[], object]) -> str:
    """`read`, `refused`, or what is wrong."""
    began = time.monotonic()
    try:
        read()
        result = "read"
    # what is found here is whatever may be raised
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        failure = failure_of(error)
        result = "refused"
        if not isinstance(error, SeqloomError):
            result = f"internal: {failure.line[:300]}"
        elif len(str(error).encode("utf-8", "surrogatepass")) > LONGEST_MESSAGE:
            result = "a message that is too long"
        elif "\n" in str(error):
            result = f"a message of several lines: {str(error)[:300]!r}"
    seconds = time.monotonic() - began
    return f"took {seconds:.0f} s" if seconds > LONGEST else result


def inputs(count: int, seed: int, folder: Path) -> Counter[str]:
    """Reads so many mutated inputs, each kind as often."""
    found: Counter[str] = Counter()
    names = sorted(SEEDS)
    for number in range(count):
        name = names[number % len(names)]
        content, read = SEEDS[name]
        path = folder / name
        path.write_bytes(mutated(content, random.Random(f"{seed} {number}")))
        result = outcome(partial(read, path))
        found[result if result in ("read", "refused") else f"{name} {number}: {result}"] += 1
    return found


def make_models(folder: Path) -> list[Path]:
    """The run folders of three small models, and one of them as a Hugging Face directory, twice."""
    (folder / "t.txt").write_text("the king sees a dog\na dog likes the king\n" * 40)
    (folder / "p.tsv").write_text("source\ttarget\n" + "a b c\tc b a\nb c\tc b\n" * 40)
    settings = ["data.tokenizer=words", "train.max_steps=1"]
    small = ["model.width=8", "model.layers=1", "model.heads=2"]
    wanted = {
        "ngram:bigram": ("text-generation", "t.txt", settings[:1]),
        "gpt:tiny": ("text-generation", "t.txt", [*settings, *small]),
        "seq2seq:tiny": ("translation", "p.tsv", settings),
    }
    made = []
    for model, (task, data, given) in wanted.items():
        place = folder / model.partition(":")[0]
        train(task, [str(folder / data)], output_dir=place, model=model, settings=given)
        made.append(place)
    # as it comes from the hub: nothing vouches for its files
    export_model(str(folder / "gpt"), str(folder / "hub"), "huggingface")
    return [*made, folder / "hub", folder / "hub"]


def harm(path: Path, chosen: random.Random) -> None:
    """Puts what does not belong there in place of a file."""
    content = path.read_bytes()
    kind = chosen.choice(
        ("bytes", "bytes", "bytes", "pipe", "device", "folder", "link", "none", "huge")
    )
    path.unlink()
    if kind == "bytes":
        path.write_bytes(mutated(content, chosen))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(chosen.choice(("/dev/zero", "/dev/random", "/dev/full", "/dev/tty")))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(chosen.choice(("nowhere", path.name, "/proc/self/mem", "/etc/passwd")))
    elif kind == "huge":
        path.write_bytes(content)
        os.truncate(path, 2**40)


def _stop(*_: object) -> None:
    raise TimeoutError(f"no end in {LONGEST} s")


def hostile_folders(count: int, seed: int, folder: Path) -> Counter[str]:
    """Opens so many model folders of which one or two files were harmed. Most run folders have no manifest,
    which would vouch for the files."""
    models = make_models(folder)
    found: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _stop)
    for number in range(count):
        chosen = random.Random(f"{seed} {number}")
        model = models[number % len(models)]
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        if chosen.random() < 0.7:
            (copy / MANIFEST).unlink(missing_ok=True)
            newest = max(copy.glob("checkpoint-*"), default=None)
            places = [copy] if newest is None else [copy, newest, newest]
        else:
            places = [copy]
        names = sorted(path for place in places for path in place.iterdir() if path.is_file())
        for path in chosen.sample(names, k=chosen.choice((1, 1, 2))):
            if path.is_file():
                harm(path, chosen)
        signal.alarm(LONGEST)
        result = outcome(partial(load, copy))
        signal.alarm(0)
        known = result in ("read", "refused")
        found[result if known else f"{model.name} {number}: {result}"] += 1
    return found


def main() -> None:
    """Prints how many were read, refused, and what is wrong; exit status 1 where something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("inputs", "folders"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    campaign = inputs if given.what == "inputs" else hostile_folders
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(given.count, given.seed, Path(folder))
    for result, number in sorted(found.items()):
        print(f"{number:6} {result}")
    print(f"{given.count} {given.what}, seed {given.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(bool(found.keys() - {"read", "refused"}))


if __name__ == "__main__":
    main()
