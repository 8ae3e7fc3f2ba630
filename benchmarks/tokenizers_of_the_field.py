"""Real tokenizers of the field beside `transformers`: the same ids, exact offsets, and how long it takes.

    python -m benchmarks.tokenizers_of_the_field DATA_FOLDER [--lines 10000]

DATA_FOLDER holds tokenizers/ (GPT-2, GPT, BERT cased and uncased, T5) and texts of many languages. Each
tokenizer is read from the files that it was published as. Beside it stand what `transformers` builds of the
same files, and the first programs where they are to be had: BERT's in Python, sentencepiece for T5. Lines
that differ are counted and their numbers printed. Two things are no errors: `transformers` (and its T5 alone)
takes a text that spells `<unk>` for the special token, as sentencepiece does not; and BERT in Python composes
characters first, as the program that BERT was published with does not, so it gets texts that are composed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks import report
from benchmarks.measuring import interleaved
from seqloom.text.hub.tokenizer import HubTokenizer, read_hub_tokenizer

Encode = Callable[[Sequence[str]], list[list[int]]]

FILES = {
    "gpt2": {"encoder.json.gz": "vocab.json", "vocab.bpe.gz": "merges.txt"},
    "openai-gpt": {"encoder_bpe_40000.json.gz": "vocab.json", "vocab_40000.bpe.gz": "merges.txt"},
    "bert-base-cased": {"vocab.txt": "vocab.txt"},
    "bert-base-uncased": {"vocab.txt": "vocab.txt"},
    "t5-base": {"spiece.model": "spiece.model"},
}
"""As they were published, and as the hub calls them."""

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257},
    "openai-gpt": {"model_type": "openai-gpt", "vocab_size": 40478},
    "bert-base-cased": {"model_type": "bert", "vocab_size": 28996},
    "bert-base-uncased": {"model_type": "bert", "vocab_size": 30522},
    "t5-base": {
        "model_type": "t5",
        "vocab_size": 32128,
        "decoder_start_token_id": 0,
        "is_encoder_decoder": True,
    },
}
CLASSES = {
    "gpt2": "GPT2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "bert": "BertTokenizer",
    "t5": "T5Tokenizer",
}


def unpacked(data: Path, name: str, folder: Path) -> Path:
    """A folder as the hub has it."""
    folder = folder / name
    folder.mkdir()
    for source, target in FILES[name].items():
        content = (data / "tokenizers" / name / source).read_bytes()
        (folder / target).write_bytes(
            gzip.decompress(content) if source.endswith(".gz") else content
        )
    settings = {"do_lower_case": name == "bert-base-uncased"} if name.startswith("bert") else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return folder


def texts_of(data: Path, count: int) -> list[str]:
    """Lines of many languages, so many of each source that all together are `count`."""
    sources = [
        *(lines(data / "multi30k" / f"val.{language}.gz") for language in ("en", "de", "fr", "cs")),
        *(questions(path) for path in sorted((data / "xquad").glob("xquad.*.json.gz"))),
        *(lines(path) for path in sorted((data / "udhr").glob("*.txt"))),
        lines(data / "tatoeba_en_zh" / "cmn.txt.gz"),
        *(lines(path) for path in sorted((data / "tweeteval" / "emotion").glob("train_text.txt*"))),
        *(lines(path) for path in sorted((data / "tweeteval" / "irony").glob("train_text.txt*"))),
        (
            line[9:]
            for line in lines(data / "ud_marathi_ufal" / "mr_ufal-ud-train.conllu")
            if line.startswith("# text = ")
        ),
        *(lines(path) for path in sorted((data / "wikitext2").glob("*test*"))),
    ]
    found: list[str] = []
    while sources and len(found) < count:
        for source in list(sources):  # one of each in turn
            line = next(source, None)
            if line is None:
                sources.remove(source)
            elif line.strip():
                found.append(line)
    return found[:count]


def lines(path: Path) -> Iterator[str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    yield from content.decode("utf-8").split("\n")


def questions(path: Path) -> Iterator[str]:
    for article in json.loads(gzip.decompress(path.read_bytes()))["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"]
            yield from (one["question"] for one in paragraph["qas"])


def first_program(name: str, folder: Path) -> Encode | None:
    """What cut the text when the model was published."""
    if name == "t5-base":
        processor = importlib.import_module("sentencepiece").SentencePieceProcessor(
            model_file=str(folder / "spiece.model")
        )
        return lambda texts: processor.encode(list(texts))
    if name.startswith("bert"):
        legacy = importlib.import_module(
            "transformers.models.bert.tokenization_bert_legacy"
        ).BertTokenizerLegacy
        slow = legacy(str(folder / "vocab.txt"), do_lower_case=name.endswith("uncased"))
        return lambda texts: [
            slow.convert_tokens_to_ids(slow.tokenize(text, split_special_tokens=True))
            for text in texts
        ]
    return None


def misplaced(tokenizer: HubTokenizer, text: str) -> list[tuple[int, int]]:
    """Spans that are not what their ids spell. Ids whose spans overlap are looked at together: they are of
    one character. What the tokenizer changes (case, forms of characters, blanks) is changed in both."""
    (ids,), (spans,) = tokenizer.encode([text]), tokenizer.offsets([text])
    groups: list[tuple[int, int, list[int]]] = []
    for i, (begin, end) in zip(ids, spans, strict=True):
        if groups and begin < groups[-1][1]:
            before = groups.pop()
            groups.append((min(begin, before[0]), max(end, before[1]), [*before[2], i]))
        else:
            groups.append((begin, end, [i]))
    wrong = [] if len(ids) == len(spans) else [(0, 0)]
    for at, (begin, end, group) in enumerate(groups):
        inside = 0 <= begin <= end <= len(text) and (at == 0 or groups[at - 1][1] <= begin)
        spelled = b"".join(tokenizer.token_bytes[i] for i in group)
        known = tokenizer.special_ids.unk not in group
        if not inside or (
            known
            and plain(tokenizer, text[begin:end])
            != plain(tokenizer, spelled.decode("utf-8", "replace"))
        ):
            wrong.append((begin, end))
    return wrong


@lru_cache(maxsize=100_000)
def plain(tokenizer: HubTokenizer, text: str) -> str:
    """As the tokenizer reads it, without spaces."""
    return "".join(tokenizer.normalised(text).replace("▁", " ").split())


def compared(name: str, data: Path, texts: list[str], folder: Path) -> dict[str, Any]:
    """How many lines differ from each, and how fast it is."""
    transformers: Any = importlib.import_module("transformers")
    begun = time.perf_counter()
    ours = read_hub_tokenizer(folder, CONFIGS[name])
    loading = time.perf_counter() - begun
    peer = getattr(transformers, CLASSES[CONFIGS[name]["model_type"]]).from_pretrained(str(folder))
    options = {
        "add_special_tokens": False,
        "split_special_tokens": True,
        "return_attention_mask": False,
        "verbose": False,
    }
    theirs = peer(texts, return_offsets_mapping=True, **options)
    ids, spans = ours.encode(texts), ours.offsets(texts)
    composed = [
        unicodedata.normalize("NFC", text) if name.startswith("bert") else text for text in texts
    ]
    first = first_program(name, folder)
    library = Tokenizer.from_str(ours.to_json())
    library.encode_special_tokens = True
    timing = interleaved(
        {
            "seqloom": lambda: ours.encode(texts),
            "tokenizers": lambda: library.encode_batch_fast(texts, add_special_tokens=False),
        },
        rounds=3,
    )
    return {
        "tokenizer": name,
        "ids": sum(map(len, ids)),
        "lines_unlike_transformers": unlike(ids, theirs["input_ids"]),
        "of_these_spell_a_special_token": sum(
            "<unk>" in texts[at] for at in unlike(ids, theirs["input_ids"])
        ),
        "lines_unlike_first_program": (
            None if first is None else unlike(ours.encode(composed), first(composed))
        ),
        "offsets_unlike_transformers": sum(
            tuple(one) != tuple(other)
            for at in range(len(texts))
            if ids[at] == theirs["input_ids"][at]
            for one, other in zip(spans[at], theirs["offset_mapping"][at], strict=True)
        ),
        "offsets_misplaced": sum(len(misplaced(ours, text)) for text in texts),
        "loading_seconds": loading,
        "time_of_tokenizers": timing.ratio("seqloom", "tokenizers")._asdict(),
    }


def unlike(ours: list[list[int]], theirs: list[list[int]]) -> list[int]:
    """Which lines differ."""
    return [at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]


def main() -> None:
    """Compares all five."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    arguments = parser.parse_args()
    texts = texts_of(arguments.data, arguments.lines)
    print(
        f"{len(texts):,} lines, {sum(len(text.encode()) for text in texts) / 1e6:.2f} MB,"
        f" {len(set(''.join(texts))):,} characters"
    )
    points = []
    with tempfile.TemporaryDirectory() as place:
        for name in FILES:
            points.append(
                compared(name, arguments.data, texts, unpacked(arguments.data, name, Path(place)))
            )
            print(json.dumps(points[-1]))
    header = [
        "",
        "ids",
        "lines unlike transformers",
        "spell `<unk>`",
        "unlike the first program",
        "offsets unlike transformers",
        "misplaced",
        "loading, s",
        "time, tokenizers 1",
    ]
    print(report.table(header, [shown(point) for point in points]))


def shown(point: dict[str, Any]) -> list[str]:
    first = point["lines_unlike_first_program"]
    return [
        point["tokenizer"],
        f"{point['ids']:,}",
        str(len(point["lines_unlike_transformers"])),
        str(point["of_these_spell_a_special_token"]),
        "" if first is None else str(len(first)),
        str(point["offsets_unlike_transformers"]),
        str(point["offsets_misplaced"]),
        f"{point['loading_seconds']:.2f}",
        f"{point['time_of_tokenizers']['median']:.2f}",
    ]


if __name__ == "__main__":
    main()
