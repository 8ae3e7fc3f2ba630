"""From a checkpoint to a masked language model, and from that to every task of encoders."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tests.tasks.fill_mask.test_training import SMALL, TEXT, trained
from tests.workflows.encoders import saved

import seqloom
from seqloom.errors import UsageError
from seqloom.runs.run_folder import load_run
from seqloom.text.special_tokens import BOS, EOS
from seqloom.workflows.exchange import export_model, import_model
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")
STILL = [
    "train.max_steps=1",
    "train.learning_rate=1e-30",
    "train.weight_decay=0",
    "train.batch_rows=6",
]
TEXTS = ["The cat <mask> the tree.", "<mask> dog likes the <mask>.", "<mask>", "A bi<mask>"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT.lower().replace("bird", "dogs"))
    return str(path)


def continued(start: Path, text: str, folder: Path, *settings: str) -> Any:
    train("fill-mask", [text], output_dir=folder, start=start, settings=[*STILL, *settings])
    return load_run(folder, "cpu")


@pytest.mark.parametrize("pairs", ["none", "next", "order"])
@pytest.mark.parametrize("kind", [hf.BertForMaskedLM, hf.BertForPreTraining, hf.BertModel])
def test_any_checkpoint_is_trained_on(kind: Any, pairs: str, text: str, tmp_path: Path) -> None:
    """Its weights are where it begins; heads that it lacks are new. It goes back as what it then is."""
    theirs = saved(tmp_path / "hub", kind).state_dict()
    run = continued(tmp_path / "hub", text, tmp_path / "run", f"train.sentence_pairs={pairs}")
    assert run.tokenizer.pieces([run.tokenizer.special_ids.mask]) == ["[MASK]"]
    export_model(str(tmp_path / "run"), str(tmp_path / "again"))
    has_pairs = pairs != "none" or kind is hf.BertForPreTraining
    architecture = hf.BertForPreTraining if has_pairs else hf.BertForMaskedLM
    content = json.loads((tmp_path / "again" / "config.json").read_text())
    assert content["architectures"] == [architecture.__name__]
    ours = architecture.from_pretrained(tmp_path / "again").state_dict()
    if kind is hf.BertModel:
        theirs = {f"bert.{name}": tensor for name, tensor in theirs.items()}
    shared = theirs.keys() & ours.keys()
    assert len(shared) > 30
    for name in shared:
        assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-20), name
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert tokenizer.mask_token == "[MASK]"


def test_a_run_goes_on_with_new_words(text: str, tmp_path: Path) -> None:
    """Also one of a RoBERTa that was exported; its tokenizer and its mask stay."""
    first = trained(text, tmp_path / "first", "roberta")
    export_model(str(first), str(tmp_path / "hub"))
    before = load_run(first, "cpu")
    for start in (first, tmp_path / "hub"):
        folder = tmp_path / f"from-{start.name}"
        run = continued(start, text, folder, "data.add_tokens=[xyzzy]", "train.mask_units=words")
        added = run.tokenizer.encode(["xyzzy"])[0]
        assert added[-1] == before.tokenizer.vocabulary_size
        assert run.model.config.vocabulary_size == before.tokenizer.vocabulary_size + 1
        old = before.model.state_dict()["embedding.weight"]
        new = run.model.state_dict()["embedding.weight"]
        assert torch.allclose(new[: len(old)], old, rtol=0, atol=1e-20)
        assert torch.allclose(new[-1], old.mean(dim=0), atol=1e-6)
        filled = seqloom.load(folder, "cpu").fill_masks(["the <mask> xyzzy"])
        assert len(filled[0].masks) == 1
        export_model(str(folder), str(tmp_path / f"out-{start.name}"))
        pipeline: Any = hf.pipeline("fill-mask", model=str(tmp_path / f"out-{start.name}"), top_k=5)
        found = [one["token"] for one in pipeline("the <mask> xyzzy")]
        assert found == [one.id for one in filled[0].masks[0]]


@pytest.mark.parametrize("kind", ["bert", "pairs", "roberta"])
def test_an_export_fills_masks_as_the_run_does(kind: str, text: str, tmp_path: Path) -> None:
    """In transformers, from text; and here, where it is opened as a directory of the hub."""
    folder = trained(text, tmp_path / "run", kind, "train.max_steps=20", "train.learning_rate=0.01")
    export_model(str(folder), str(tmp_path / "hub"))
    import_model(str(tmp_path / "hub"), str(tmp_path / "imported"))
    pipeline: Any = hf.pipeline("fill-mask", model=str(tmp_path / "hub"), top_k=4)
    ours = seqloom.load(folder, "cpu").fill_masks(TEXTS, 4)
    for other in ("hub", "imported"):
        again = seqloom.load(tmp_path / other, "cpu").fill_masks(TEXTS, 4)
        assert [one.text for one in again] == [one.text for one in ours]
    for text_with_masks, filled in zip(TEXTS, ours, strict=True):
        theirs = pipeline(text_with_masks)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        for mask, their in zip(filled.masks, theirs, strict=True):
            assert [one.id for one in mask] == [one["token"] for one in their]
            expected = pytest.approx([one["score"] for one in their], abs=1e-5)
            assert [one.probability for one in mask] == expected


NAMES = [f"{a}{b}" for a in "abcd" for b in "efghij"]


def questions() -> str:
    rows = []
    for name in NAMES:
        answers = {"text": [name], "answer_start": [4]}
        context = f"the {name} sees the dog."
        rows.append({"question": "who sees?", "context": context, "answers": answers})
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(header: str, *rows: str) -> str:
    return header + "".join(rows[number % 2].format(name) for number, name in enumerate(NAMES))


TASKS: dict[str, tuple[str, str, list[str]]] = {
    "text-classification": (
        "table.tsv",
        table("text\tsecond\tlabel\n", "the {}\ta tree\tyes\n", "the {}\ta mouse\tno\n"),
        ["data.second=second"],
    ),
    "sentence-similarity": (
        "table.tsv",
        table("text\tsecond\tscore\n", "the {}\ta tree\t1\n", "the {}\ta mouse\t4\n"),
        [],
    ),
    "token-classification": ("tags.conll", table("", "the O\n{} B-X\n\n", "a O\n{} B-X\n\n"), []),
    "question-answering": ("questions.jsonl", questions(), []),
    "multiple-choice": (
        "table.tsv",
        table("text\ta\tb\tlabel\n", "the {}\tsees\tlikes\ta\n", "the {}\tlikes\tsees\tb\n"),
        ["data.options=[a,b]"],
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_of_encoders_starts_from_it(
    task: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With its weights, and its pooler where it has one; two texts are read as in its training."""
    caplog.set_level(logging.INFO)
    start = trained(text, tmp_path / "start", "pairs")
    name, content, settings = TASKS[task]
    (tmp_path / name).write_text(content)
    train(
        task,
        [str(tmp_path / name)],
        output_dir=tmp_path / "tuned",
        start=start,
        settings=[*STILL[:3], *settings],
    )
    tuned = load_run(tmp_path / "tuned", "cpu")
    before = load_run(start, "cpu").model.state_dict()
    encoder = {
        name.removeprefix("encoder."): one
        for name, one in tuned.model.state_dict().items()
        if name.startswith("encoder.")
    }
    assert len(encoder) > 20
    for key, tensor in encoder.items():
        assert torch.allclose(tensor, before[key], rtol=0, atol=1e-20), key
    pooled = task not in ("token-classification", "question-answering")
    assert ("pooler" not in caplog.text) or not pooled
    if pooled:
        hidden = tuned.model.state_dict()["head.hidden.weight"]
        assert torch.allclose(hidden, before["pooler.weight"], rtol=0, atol=1e-20)
    export_model(str(tmp_path / "tuned"), str(tmp_path / "hub"))
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "hub")
    first, second = tokenizer("the"), tokenizer("the", "dog")
    ids = tuned.tokenizer.encode(["the", "dog"])
    assert first["input_ids"] == [BOS, *ids[0], EOS]
    assert second["input_ids"] == [BOS, *ids[0], EOS, *ids[1], EOS]


def test_positions_that_transformers_would_count_otherwise_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(table("text\tlabel\n", "the {}\tyes\n", "the {}\tno\n"))

    def exported(offset: int) -> None:
        train(
            "text-classification",
            [str(path)],
            output_dir=tmp_path / str(offset),
            model="bert:roberta-small",
            settings=[*SMALL[1:], "model.layers=1", f"model.position_offset={offset}"],
        )
        export_model(str(tmp_path / str(offset)), str(tmp_path / f"hub{offset}"))

    exported(1)
    with pytest.raises(UsageError, match="position_offset must be 1, but is 2"):
        exported(2)
