"""Readers from and to directories of the hub: the same labels in the pipelines of `transformers`, whatever
order labels have."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from PIL import Image
from tests.workflows.encoders import SIZES, VOCABULARY, pooled_as
from torch import nn

import seqloom
from seqloom import files, manifest
from seqloom.config import RunConfig
from seqloom.data.encoding.encoded_dataset import row_template
from seqloom.data.images.preprocessing import Preprocessing
from seqloom.data.readers.examples import TaggedWords
from seqloom.errors import UsageError
from seqloom.models.vit import ViT, ViTConfig
from seqloom.protocols import EncodedBatch
from seqloom.runs import run_folder
from seqloom.runs.write_run import write_finished_run
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder, cosine
from seqloom.tasks.text.predictor import load_reader
from seqloom.workflows.exchange import export_model, import_model

hf: Any = transformers
pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("z", "a", "m m")
PAIRS = [
    ("the cat sleeps.", "a dog runs on the mat"),
    ("a dog", "the big house and the small log"),
    ("run, run!", "undo"),
]
TEXTS = [
    "the cat sleeps.",
    "a dog runs on the big mat and",
    "cats",
    "undo the run, the house!",
    "the the the",
    "a cat, a dog",
]


def silent(_: str) -> None:
    pass


def saved(folder: Path, head: str, **changes: Any) -> None:
    """A random BERT with a head, of WordPiece."""
    torch.manual_seed(0)
    named = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: at for at, label in enumerate(LABELS)},
    }
    model = getattr(hf, f"BertFor{head}")(hf.BertConfig(**{**SIZES, **named, **changes})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{one}\n" for one in VOCABULARY))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, **roles})
    )


def through(folder: Path, tmp_path: Path) -> Path:
    """In and out again."""
    import_model(str(folder), str(tmp_path / "run"))
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    return tmp_path / "out"


def answers(folder: Path, task: str, asked: list[Any], **options: Any) -> list[Any]:
    """Of a pipeline."""
    pipe = hf.pipeline(task, model=str(folder))
    return [pipe(one, **options) for one in asked]


def ours(folder: Path, texts: list[Any]) -> list[tuple[str, float]]:
    return [(one["label"], one["probability"]) for one in load_reader(folder).predict(texts)]


def pipeline_pairs(folder: Path, pairs: list[tuple[str, str]]) -> list[tuple[str, float]]:
    asked = [{"text": one, "text_pair": other} for one, other in pairs]
    return [(one["label"], one["score"]) for one in answers(folder, "text-classification", asked)]


def same(one: list[tuple[str, float]], two: list[tuple[str, float]]) -> bool:
    return [label for label, _ in one] == [label for label, _ in two] and [
        p for _, p in one
    ] == pytest.approx([p for _, p in two], abs=1e-5)


def test_labels_of_texts_and_pairs_are_those_of_the_pipeline_in_and_out(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", "SequenceClassification")
    out = through(tmp_path / "theirs", tmp_path)
    before, after = (
        [(one[0]["label"], one[0]["score"]) for one in answers(path, "text-classification", TEXTS)]
        for path in (tmp_path / "theirs", out)
    )
    assert same(before, after)
    assert len({label for label, _ in before}) > 1
    for folder in (tmp_path / "theirs", tmp_path / "run", out):
        assert same(ours(folder, TEXTS), before)
        assert same(ours(folder, PAIRS), pipeline_pairs(tmp_path / "theirs", PAIRS))
    assert same(pipeline_pairs(out, PAIRS), pipeline_pairs(tmp_path / "theirs", PAIRS))
    assert load_reader(tmp_path / "run").head_task.labels == LABELS
    assert json.loads((out / "config.json").read_text())["id2label"] == {
        "0": "z",
        "1": "a",
        "2": "m m",
    }


def test_several_labels_and_numbers_are_those_of_the_pipeline(tmp_path: Path) -> None:
    saved(tmp_path / "several", "SequenceClassification", problem_type="multi_label_classification")
    out = through(tmp_path / "several", tmp_path / "one")
    for found, mine in zip(
        answers(out, "text-classification", TEXTS, top_k=None),
        load_reader(out).predict(TEXTS),
        strict=True,
    ):
        assert {one["label"]: one["score"] for one in found} == pytest.approx(
            mine["probabilities"], abs=1e-5
        )
    saved(
        tmp_path / "number",
        "SequenceClassification",
        id2label={0: "LABEL_0"},
        label2id={"LABEL_0": 0},
    )
    out = through(tmp_path / "number", tmp_path / "two")
    expected = [number for _, number in pipeline_pairs(out, PAIRS)]
    assert [
        one["score"] for one in load_reader(tmp_path / "two" / "run").predict(PAIRS)
    ] == pytest.approx(expected, abs=1e-5)
    assert run_folder.task_of(out) == "sentence-similarity"


def test_tags_of_words_are_those_of_the_pipeline(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", "TokenClassification")
    out = through(tmp_path / "theirs", tmp_path)
    words = [
        tuple(text.replace(",", " ,").replace(".", " .").replace("!", " !").split())
        for text in TEXTS
    ]
    for folder in (tmp_path / "run", out):
        replies = load_reader(folder).answer([TaggedWords(one, (), "text", 1) for one in words])
        for one, reply, pieces in zip(
            words,
            replies,
            answers(out, "token-classification", [" ".join(one) for one in words]),
            strict=True,
        ):
            starts = [sum(len(word) + 1 for word in one[:at]) for at in range(len(one))]
            tags = {piece["start"]: piece["entity"] for piece in pieces}
            assert reply.content["tags"] == [tags[start] for start in starts]


def test_spans_are_those_of_their_model(tmp_path: Path) -> None:
    """The library has no pipeline for them any more; so model and tokenizer are asked as its documentation
    says."""
    saved(tmp_path / "theirs", "QuestionAnswering", id2label=None, label2id=None)
    out = through(tmp_path / "theirs", tmp_path)
    theirs, tokenizer = (
        hf.AutoModelForQuestionAnswering.from_pretrained(out).eval(),
        hf.AutoTokenizer.from_pretrained(out),
    )
    bundle = run_folder.load_run(tmp_path / "run")
    layout = row_template(
        bundle.tokenizer.special_ids, "bert", False, bundle.tokenizer.vocabulary_size
    )
    for pair in PAIRS:
        row = layout.joined(*bundle.tokenizer.encode(pair))
        tokens, places = torch.tensor([row.tokens]), torch.arange(len(row.tokens))[None]
        segments = (places >= row.second_start).long()
        batch = EncodedBatch(
            tokens,
            segments,
            tokens.new_zeros(1, 0, 0),
            tokens.new_zeros(1),
            places,
            tokens.new_zeros(1, 2),
        )
        with torch.no_grad():
            given = tokenizer(*pair, return_tensors="pt")
            found = theirs(**given)
            expected = torch.stack([found.start_logits, found.end_logits], dim=-1)
            torch.testing.assert_close(bundle.model(batch), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(given.input_ids, tokens)


def test_a_cosine_begins_as_good_as_the_vectors_of_its_encoder(
    tmp_path: Path, notices: list[str]
) -> None:
    """What the hub's heads have over two texts in one row, a hidden layer and [CLS], is not for texts
    apart."""
    saved(tmp_path / "theirs", "MaskedLM")
    rows = [("the cat sleeps", "the dog sleeps", 4.0), ("a dog runs", "the big house", 1.0)] * 6
    lines = "".join(
        f"{first}\t{second} {at}\t{score}\n" for at, (first, second, score) in enumerate(rows)
    )
    (tmp_path / "data.tsv").write_text("sentence1\tsentence2\tscore\n" + lines)
    settings = ["head.pair=cosine", "train.max_steps=1", "train.learning_rate=1e-9"]
    args = [str(tmp_path / "data.tsv")]
    start = tmp_path / "theirs"
    pooled_as(start, "mean_tokens")
    seqloom.train(
        "sentence-similarity",
        args,
        output_dir=tmp_path / "one",
        start=start,
        settings=settings[1:],
    )
    assert sum("--set head.pair=cosine begins as good" in line for line in notices) == 1
    seqloom.train(
        "sentence-similarity", args, output_dir=tmp_path / "run", start=start, settings=settings
    )
    vectors = SentenceEncoder(run_folder.load_run(tmp_path / "theirs")).encode(
        [*rows[0][:2], *rows[1][:2]]
    )
    near = [
        float(cosine(u[None].astype(np.float64), v[None].astype(np.float64))[0])
        for u, v in (vectors[:2], vectors[2:])
    ]
    found = load_reader(tmp_path / "run").predict([rows[0][:2], rows[1][:2]])
    assert [one["score"] for one in found] == pytest.approx([1 + 3 * one for one in near], abs=1e-4)


@pytest.mark.parametrize("none", [True, False])
def test_that_questions_may_have_no_answer_goes_along(none: bool, tmp_path: Path) -> None:
    saved(
        tmp_path / "theirs",
        "QuestionAnswering",
        id2label=None,
        label2id=None,
        **({"may_be_none": True} if none else {}),
    )
    out = through(tmp_path / "theirs", tmp_path)
    assert [
        run_folder.open_model(folder)[0]["may_be_none"] for folder in (tmp_path / "run", out)
    ] == [
        none,
        none,
    ]


def table(folder: Path, pairs: bool = False) -> str:
    """Forty texts with three labels, in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        "the",
        "a",
        "cat",
        "dog",
        "runs",
        "sleeps",
        "on",
        "mat",
        "log",
        "and",
        "in",
        "house",
        "big",
        "small",
    ]
    lines = ["text\tsecond\tlabel" if pairs else "text\tlabel"]
    for at in range(40):
        text = " ".join(words[(at * (k + 3) + k) % len(words)] for k in range(5 + at % 4))
        lines.append("\t".join([text, *([f"{text} {at}"] if pairs else []), LABELS[at % 3]]))
    (folder / "data.tsv").write_text("\n".join(lines) + "\n")
    return str(folder / "data.tsv")


SHORT = [
    "train.max_steps=4",
    "train.evaluate_every=4",
    "train.learning_rate=0.01",
    "data.vocabulary=300",
]


@pytest.mark.parametrize(("kind", "segments"), [("wordpiece", 1), ("bpe", 2)])
def test_a_reader_of_our_own_gives_the_same_labels_in_the_pipeline(
    kind: str, segments: int, tmp_path: Path
) -> None:
    settings = [*SHORT, f"data.tokenizer={kind}", f"model.segments={segments}", "model.layers=1"]
    data = table(tmp_path, pairs=True)
    seqloom.train(
        "text-classification",
        [data],
        output_dir=tmp_path / "run",
        model="bert:tiny",
        settings=settings,
    )
    result = export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    assert result["architecture"] == "BertForSequenceClassification"
    found = pipeline_pairs(tmp_path / "out", PAIRS)
    assert same(found, ours(tmp_path / "run", PAIRS))
    assert same(found, ours(tmp_path / "out", PAIRS))
    alone = [
        (one[0]["label"], one[0]["score"])
        for one in answers(tmp_path / "out", "text-classification", TEXTS)
    ]
    assert same(alone, ours(tmp_path / "run", TEXTS))
    long = "the cat sleeps " * 100
    assert (
        hf.AutoTokenizer.from_pretrained(tmp_path / "out")(long, truncation=True).input_ids[-1] == 2
    )
    assert (
        len(hf.AutoTokenizer.from_pretrained(tmp_path / "out")(long, truncation=True).input_ids)
        == 128
    )
    assert list(hf.AutoConfig.from_pretrained(tmp_path / "out").id2label.values()) == list(
        load_reader(tmp_path / "run").head_task.labels
    )


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_tagger_of_our_own_gives_the_same_tags_in_the_pipeline(kind: str, tmp_path: Path) -> None:
    sentences = [
        line.split("\t")[0].split() for line in Path(table(tmp_path)).read_text().splitlines()[1:]
    ]
    tagged = "\n".join(
        "".join(f"{word}\t{'NOUN' if len(word) > 3 else 'X'}\n" for word in one)
        for one in sentences
    )
    (tmp_path / "data.conll").write_text(tagged)
    settings = [*SHORT, f"data.tokenizer={kind}", "model.layers=1"]
    seqloom.train(
        "token-classification",
        [str(tmp_path / "data.conll")],
        output_dir=tmp_path / "run",
        model="bert:tiny",
        settings=settings,
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    words = [tuple(one) for one in sentences[:8]]
    replies = load_reader(tmp_path / "run").answer(
        [TaggedWords(one, (), "text", 1) for one in words]
    )
    for one, reply, pieces in zip(
        words,
        replies,
        answers(tmp_path / "out", "token-classification", [" ".join(one) for one in words]),
        strict=True,
    ):
        starts = [sum(len(word) + 1 for word in one[:at]) for at in range(len(one))]
        # which may be a blank
        first = [next(piece for piece in pieces if piece["start"] >= start - 1) for start in starts]
        assert reply.content["tags"] == [piece["entity"] for piece in first]
        assert reply.content["probabilities"] == pytest.approx(
            [float(piece["score"]) for piece in first], abs=1e-5
        )


@pytest.mark.parametrize("pairs", [False, True])
def test_a_causal_reader_of_our_own_gives_the_same_labels_in_the_pipeline(
    pairs: bool, tmp_path: Path
) -> None:
    settings = [*SHORT, "data.tokenizer=bpe", "model.layers=1"]
    seqloom.train(
        "text-classification",
        [table(tmp_path, pairs=pairs)],
        output_dir=tmp_path / "run",
        model="gpt:tiny",
        settings=settings,
    )
    assert (
        export_model(str(tmp_path / "run"), str(tmp_path / "out"))["architecture"]
        == "GPT2ForSequenceClassification"
    )
    assert same(pipeline_pairs(tmp_path / "out", PAIRS), ours(tmp_path / "run", PAIRS))
    alone = [
        (one[0]["label"], one[0]["score"])
        for one in answers(tmp_path / "out", "text-classification", TEXTS)
    ]
    assert same(alone, ours(tmp_path / "run", TEXTS))
    assert same(alone, ours(tmp_path / "out", TEXTS))


def test_what_the_hub_has_no_place_for_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    settings = [*SHORT, "data.tokenizer=bytes", "head.pooling=mean"]
    seqloom.train(
        "text-classification",
        [table(tmp_path)],
        output_dir=tmp_path / "run",
        model="bert:tiny",
        settings=settings,
    )
    with pytest.raises(
        UsageError,
        match=r"head.pooling=first, but this model has mean: it cannot be written as one",
    ):
        export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_was_fine_tuned_goes_back(tmp_path: Path, notices: list[str]) -> None:
    """From masked tokens to labels: another head, other labels, the tokenizer that came."""
    saved(tmp_path / "theirs", "MaskedLM")
    settings = ["train.max_steps=2", "train.evaluate_every=2"]
    seqloom.train(
        "text-classification",
        [table(tmp_path)],
        output_dir=tmp_path / "run",
        start=tmp_path / "theirs",
        settings=settings,
    )
    assert (
        "not read: the head of masked tokens (5 tensors), which the model here has not got"
        in notices
    )
    assert (
        "new, and to be trained: head.hidden.weight, head.hidden.bias, head.output.weight, head.output.bias"
        in notices
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    assert same(pipeline_pairs(tmp_path / "out", PAIRS), ours(tmp_path / "run", PAIRS))
    assert hf.AutoConfig.from_pretrained(tmp_path / "out").architectures == [
        "BertForSequenceClassification"
    ]
    assert tokenizers.Tokenizer.from_file(
        str(tmp_path / "out" / "tokenizer.json")
    ).get_vocab_size() == len(VOCABULARY)


def test_a_head_of_the_same_labels_comes_along_in_its_own_order(
    tmp_path: Path, notices: list[str]
) -> None:
    """Which is no order of ours; and it goes on with it when it was stopped."""
    saved(tmp_path / "theirs", "SequenceClassification")
    expected = ours(tmp_path / "theirs", TEXTS)
    settings = [
        "train.max_steps=2",
        "train.evaluate_every=1",
        "train.learning_rate=1e-30",
        "train.weight_decay=0",
    ]
    data, run = table(tmp_path), tmp_path / "run"
    whole = seqloom.train(
        "text-classification",
        [data],
        output_dir=run,
        start=tmp_path / "theirs",
        settings=settings,
    )
    assert not any("new, and to be trained" in one for one in notices)
    assert load_reader(run).head_task.labels == LABELS
    assert same(ours(run, TEXTS), expected)
    (run / manifest.MANIFEST).unlink()
    shutil.rmtree(run / "checkpoint-2")
    assert seqloom.train(resume=run).metrics == whole.metrics
    assert same(ours(run, TEXTS), expected)


def saved_gpt(folder: Path, kind: Any, words: list[str], **options: Any) -> None:
    """A causal model of these words with its tokenizer."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    sizes = {
        "n_embd": 12,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": len(words),
        "n_positions": 20,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = kind(hf.GPT2Config(**sizes, **options))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    hf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|endoftext|>").save_pretrained(
        folder
    )


def test_a_causal_checkpoint_that_came_with_its_head_reads_no_marks(tmp_path: Path) -> None:
    words = ["<|endoftext|>", *VOCABULARY]
    saved_gpt(
        tmp_path / "theirs",
        hf.GPT2ForSequenceClassification,
        words,
        id2label=dict(enumerate(LABELS)),
        pad_token_id=0,
    )
    out = through(tmp_path / "theirs", tmp_path)
    texts = [text for text in TEXTS if text]
    expected = [
        (one[0]["label"], one[0]["score"])
        for one in answers(tmp_path / "theirs", "text-classification", texts)
    ]
    for folder in (tmp_path / "theirs", tmp_path / "run", out):
        assert same(ours(folder, texts), expected)
    assert same(
        [(one[0]["label"], one[0]["score"]) for one in answers(out, "text-classification", texts)],
        expected,
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_a_causal_checkpoint_that_was_fine_tuned_goes_back_with_its_marks(
    pairs: bool, tmp_path: Path
) -> None:
    """Start, delimiter and extract become entries of its tokenizer, whose names no other entry has."""
    saved_gpt(tmp_path / "theirs", hf.GPT2LMHeadModel, ["<|endoftext|>", *VOCABULARY, "<start>"])
    settings = ["train.max_steps=4", "train.evaluate_every=2", "train.learning_rate=0.01"]
    data = table(tmp_path, pairs=pairs)
    seqloom.train(
        "text-classification",
        [data],
        output_dir=tmp_path / "run",
        start=tmp_path / "theirs",
        settings=settings,
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "out"))
    asked: list[Any] = PAIRS if pairs else TEXTS
    expected = (
        pipeline_pairs(tmp_path / "out", asked)
        if pairs
        else [
            (one[0]["label"], one[0]["score"])
            for one in answers(tmp_path / "out", "text-classification", asked)
        ]
    )
    for folder in ("run", "out"):
        assert same(ours(tmp_path / folder, asked), expected)
    special_ids = range(len(VOCABULARY) + 2, len(VOCABULARY) + 5)
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "out").convert_ids_to_tokens(
        special_ids
    ) == [
        "<<start>>",
        "<delimiter>",
        "<extract>",
    ]


def test_what_says_how_rows_are_cut_is_said_to_be_left_behind(tmp_path: Path) -> None:
    settings = [*SHORT, "data.tokenizer=bytes", "model.layers=1", "data.max_length=20"]
    seqloom.train(
        "text-classification",
        [table(tmp_path)],
        output_dir=tmp_path / "run",
        model="bert:tiny",
        settings=settings,
    )
    notes: Any = export_model(str(tmp_path / "run"), str(tmp_path / "out"))["notes"]
    (note,) = notes
    assert note.startswith("data.max_length=20 of the training is not kept")
    long = ["the cat sleeps " * 3]
    cut = load_reader(tmp_path / "out", {"max_length": 20}).predict(long)
    assert cut == load_reader(tmp_path / "run").predict(long)
    assert cut != load_reader(tmp_path / "out").predict(long)


@pytest.mark.parametrize("channels", [1, 3])
def test_labels_of_images_are_those_of_transformers(channels: int, tmp_path: Path) -> None:
    """Where they are resized, the two round to other pixels, by one at most."""
    config = ViTConfig(
        image_size=16, patch_size=4, channels=channels, labels=LABELS, width=12, layers=1, heads=2
    )
    torch.manual_seed(0)
    model = ViT(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    run = RunConfig(
        task="image-classification", output_dir="run", model={"name": "vit", "size": "tiny"}
    )
    (tmp_path / "run").mkdir()
    prepared = Preprocessing.published(16, channels).to_json()
    files.write_json(tmp_path / "run" / run_folder.PREPROCESSOR, prepared)
    write_finished_run(tmp_path / "run", run, model, None, [], None)
    notes: Any = export_model(str(tmp_path / "run"), str(tmp_path / "out"))["notes"]
    assert [one.startswith("the model reads grey images") for one in notes] == [True] * (
        channels == 1
    )
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "out")
    random = np.random.default_rng(0)
    for number, (size, mode) in enumerate([((16, 16), "RGB"), ((16, 16), "L"), ((40, 21), "RGBA")]):
        pixels = random.integers(0, 256, (*size, 4), dtype=np.uint8)
        picture = Image.fromarray(pixels, "RGBA").convert(mode)
        picture.save(tmp_path / f"{number}.png")
        given = processor(picture.convert("L" if channels == 1 else "RGB"), return_tensors="pt")
        with torch.no_grad():
            expected = theirs(**given).logits.softmax(-1)[0].tolist()
        near = 1e-5 if size == (16, 16) and (mode == "L" or channels == 3) else 0.02
        for folder in ("run", "out"):
            (found,) = seqloom.load(tmp_path / folder).predict([str(tmp_path / f"{number}.png")])
            assert list(found.probabilities.values()) == pytest.approx(expected, abs=near)
