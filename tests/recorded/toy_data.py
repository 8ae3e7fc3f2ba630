"""Small made-up data of every form that seqloom reads: the same bytes at every time and on every machine.

The recording (`record.py`) and the old run folders (`tests/fixtures`) stand on these files: whoever changes
one makes both anew.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

NOUNS = {
    "dog": "hund",
    "cat": "katze",
    "bird": "vogel",
    "house": "haus",
    "park": "park",
    "boat": "boot",
}
ADJECTIVES = {"red": "rot", "green": "gruen", "small": "klein", "big": "gross", "old": "alt"}
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet", "paints": "malt"}
GOOD, BAD = ("good", "lovely", "bright", "warm"), ("bad", "awful", "dull", "cold")
COLOURS = ("red", "green", "old")


class Draw:
    """Numbers that look random and are the same everywhere, whatever the version of Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2654435761 % 2**32

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        self._state = (self._state * 1664525 + 1013904223) % 2**32
        return (self._state >> 8) % bound

    def of(self, choices: Sequence[str]) -> str:
        """One of several."""
        return choices[self.below(len(choices))]

    def number(self) -> float:
        """A number between -1 and 1."""
        return self.below(20001) / 10000 - 1


def write_data(folder: Path) -> None:
    """All files; the folder must not be there yet."""
    folder.mkdir(parents=True)
    _write_pairs(folder)
    _write_texts(folder)
    _write_labels(folder)
    _write_tags(folder)
    _write_questions(folder)
    _write_choices(folder)
    _write_nbest(folder)
    _write_images(folder)
    write_bert(folder / "hub-bert", "BertForMaskedLM")
    write_bert(folder / "hub-vectors", "BertModel")


def _lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")


def _objects(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    _lines(path, [json.dumps(row, ensure_ascii=False) for row in rows])


def _phrase(draw: Draw) -> list[str]:
    words = ["the"] + ([draw.of(list(ADJECTIVES))] if draw.below(2) else [])
    return [*words, draw.of(list(NOUNS))]


def sentence(draw: Draw) -> str:
    """A sentence of three to seven words."""
    return " ".join([*_phrase(draw), draw.of(list(VERBS)), *_phrase(draw)])


def _translated(text: str) -> str:
    words = {"the": "das"} | NOUNS | ADJECTIVES | VERBS
    return " ".join(words[word] for word in text.split())


def _write_pairs(folder: Path) -> None:
    for name, seed, count in (("train", 1, 60), ("val", 2, 12), ("test", 3, 8)):
        draw = Draw(seed)
        texts = [sentence(draw) for _ in range(count)]
        _lines(folder / f"{name}.en", texts)
        _lines(folder / f"{name}.de", [_translated(text) for text in texts])
        _lines(
            folder / f"{name}.tsv",
            ["source\ttarget", *(f"{text}\t{_translated(text)}" for text in texts)],
        )
        _objects(folder / f"{name}.jsonl", [{"source": t, "target": _translated(t)} for t in texts])


def _write_texts(folder: Path) -> None:
    for name, seed, count in (("book", 4, 80), ("dev", 5, 12), ("held", 6, 10)):
        draw = Draw(seed)
        _lines(folder / f"{name}.txt", [sentence(draw) + "." for _ in range(count)])
    draw, rows = Draw(7), []
    for number in range(8):
        words = sentence(draw).split()
        kind = "order" if number % 2 else "agreement"
        rows.append({"good": " ".join(words), "bad": " ".join(reversed(words)), "kind": kind})
    _objects(folder / "minimal.jsonl", rows)
    _lines(folder / "prompts.txt", ["the red dog", "", "the cat likes"])


def _review(draw: Draw) -> tuple[str, str]:
    label = draw.of(("good", "bad"))
    words = GOOD if label == "good" else BAD
    return f"the {draw.of(list(NOUNS))} is {draw.of(words)} and {draw.of(words)}", label


def _write_labels(folder: Path) -> None:
    for name, seed, count in (("reviews", 8, 60), ("reviews-test", 9, 16)):
        draw = Draw(seed)
        rows = [_review(draw) for _ in range(count)]
        _lines(
            folder / f"{name}.csv", ["text,label", *(f'"{text}",{label}' for text, label in rows)]
        )
        _objects(folder / f"{name}.jsonl", [{"text": text, "label": label} for text, label in rows])
        _lines(folder / f"{name}.fasttext", [f"__label__{label} {text}" for text, label in rows])
        _lines(folder / f"{name}.input.txt", [text for text, _ in rows])
    for name, seed, count in (("topics", 10, 40), ("topics-test", 11, 10)):
        draw, topics = Draw(seed), ["text\tlabel"]
        for _ in range(count):
            text = sentence(draw)
            topics.append(f"{text}\t{'|'.join(word for word in COLOURS if word in text.split())}")
        _lines(folder / f"{name}.tsv", topics)
    for name, seed, count in (("entails", 12, 40), ("entails-test", 13, 10)):
        draw, pairs = Draw(seed), ["premise\thypothesis\tlabel"]
        for number in range(count):
            text = sentence(draw)
            pairs.append(
                f"{text}\t{text if number % 2 else sentence(draw)}\t{'same' if number % 2 else 'other'}"
            )
        _lines(folder / f"{name}.tsv", pairs)
    for name, seed, count in (("alike", 14, 40), ("alike-test", 15, 12)):
        draw, scored = Draw(seed), ["sentence1,sentence2,score"]
        for _ in range(count):
            one, other = sentence(draw), sentence(draw)
            shared = len(set(one.split()) & set(other.split()))
            scored.append(f"{one},{other},{shared / 2:g}")
        _lines(folder / f"{name}.csv", scored)


def _write_tags(folder: Path) -> None:
    kinds = (
        dict.fromkeys(NOUNS, "NOUN")
        | dict.fromkeys(ADJECTIVES, "ADJ")
        | dict.fromkeys(VERBS, "VERB")
    )
    for name, seed, count in (("tags", 16, 40), ("tags-test", 17, 10)):
        draw, conllu, spans = Draw(seed), [], []
        for number in range(count):
            words = sentence(draw).split()
            conllu.append(f"# sent_id = {number + 1}")
            inside = False
            for place, word in enumerate(words, start=1):
                kind = kinds.get(word, "DET")
                head = "0\troot" if place == 1 else "1\tdep"
                conllu.append(f"{place}\t{word}\t{word}\t{kind}\t_\t_\t{head}\t_\t_")
                tag = ("I-THING" if inside else "B-THING") if kind in ("ADJ", "NOUN") else "O"
                inside = kind == "ADJ"
                spans.append(f"{word} {tag}")
            conllu.append("")
            spans.append("")
        _lines(folder / f"{name}.conllu", conllu)
        _lines(folder / f"{name}.bio", spans)


def _write_questions(folder: Path) -> None:
    for name, seed, count in (("squad", 18, 24), ("squad-test", 19, 6)):
        draw, articles = Draw(seed), []
        for number in range(count):
            subject, thing = draw.of(list(NOUNS)), draw.of(list(NOUNS))
            context = f"the {subject} sees the {draw.of(list(ADJECTIVES))} {thing} ."
            start = context.index(" sees the ") + len(" sees the ")
            answer = context[start : context.index(" .")]
            entry = {
                "id": f"{name}-{number}",
                "question": f"what does the {subject} see ?",
                "answers": [{"text": answer, "answer_start": start}],
            }
            articles.append(
                {"title": f"a{number}", "paragraphs": [{"context": context, "qas": [entry]}]}
            )
        (folder / f"{name}.json").write_text(
            json.dumps({"version": "1.1", "data": articles}), "utf-8"
        )


def _write_choices(folder: Path) -> None:
    for name, seed, count in (("choices", 20, 40), ("choices-test", 21, 10)):
        draw, rows = Draw(seed), []
        for _ in range(count):
            noun, right = draw.of(list(NOUNS)), draw.below(2)
            options = [f"it is {draw.of(BAD)}", f"it is {draw.of(BAD)}"]
            options[right] = f"it is {draw.of(GOOD)}"
            question = f"what of the {noun} ?"
            rows.append(
                {"question": question, "option1": options[0], "option2": options[1], "label": right}
            )
        _objects(folder / f"{name}.jsonl", rows)


def _write_nbest(folder: Path) -> None:
    for name, seed, count in (("nbest", 22, 10), ("nbest-dev", 23, 10)):
        draw, lists = Draw(seed), []
        for number in range(count):
            right = sentence(draw)
            words = right.split()
            texts = [" ".join([*words[:-1], draw.of(list(NOUNS))]), right, " ".join(words[::-1])]
            entries = [{"text": text, "score": -1.5 - draw.below(100) / 50} for text in texts]
            lists.append({"id": f"{name}-{number}", "ref": right, "nbest": entries})
        _objects(folder / f"{name}.jsonl", lists)
        unknown = [{key: value for key, value in one.items() if key != "ref"} for one in lists]
        _objects(folder / f"{name}-unknown.jsonl", unknown)


def _images(seed: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Grey images of 8 x 8 pixels: a bright left half is 0, a bright upper half is 1."""
    draw = Draw(seed)
    images = np.zeros((count, 8, 8), np.uint8)
    labels = np.array([draw.below(2) for _ in range(count)], np.uint8)
    for image, label in zip(images, labels, strict=True):
        for row in range(8):
            for column in range(8):
                bright = (row if label else column) < 4
                image[row, column] = (180 if bright else 20) + draw.below(40)
    return images, labels


def _write_images(folder: Path) -> None:
    for name, seed, count in (("images", 24, 40), ("images-test", 25, 8)):
        images, labels = _images(seed, count)
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
        (folder / f"{name}-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, count, 8, 8) + images.tobytes()
        )
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, count) + labels.tobytes()
        )


PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    *NOUNS,
    *ADJECTIVES,
    *VERBS,
    ".",
    "##s",
    "a",
)
WIDTH = 8


def write_bert(folder: Path, architecture: str) -> None:
    """A Hugging Face directory of a BERT of one layer with made-up weights."""
    folder.mkdir()
    config = {
        "model_type": "bert",
        "architectures": [architecture],
        "vocab_size": len(PIECES),
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "hidden_act": "gelu",
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 32}
        ),
        "utf-8",
    )
    _lines(folder / "vocab.txt", PIECES)
    masked = architecture == "BertForMaskedLM"
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": (32, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    block = "encoder.layer.0."
    sized = {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (2 * WIDTH, WIDTH)}
    sized |= {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
    sized |= {"output.dense": (WIDTH, 2 * WIDTH)}
    for name, (out, width) in sized.items():
        shapes |= {f"{block}{name}.weight": (out, width), f"{block}{name}.bias": (out,)}
    norms = [
        "embeddings.LayerNorm",
        f"{block}attention.output.LayerNorm",
        f"{block}output.LayerNorm",
    ]
    shapes |= {f"{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")}
    if masked:
        head = "cls.predictions."
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes |= {f"{head}bias": (len(PIECES),), f"{head}transform.dense.weight": (WIDTH, WIDTH)}
        shapes |= {
            f"{head}transform.{part}": (WIDTH,)
            for part in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")
        }
    else:
        shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    draw, tensors = Draw(26), {}
    for name, shape in shapes.items():
        offset = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        values = [offset + draw.number() / 2 for _ in range(int(np.prod(shape)))]
        tensors[name] = np.array(values, "<f4").reshape(shape)
    write_safetensors(folder / "model.safetensors", tensors)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Tensors of float32 as a safetensors file: the length of a JSON header, the header, the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in tensors.items():
        data = tensor.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    path.write_bytes(struct.pack("<Q", len(written)) + written + body)
