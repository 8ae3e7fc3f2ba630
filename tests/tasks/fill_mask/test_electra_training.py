"""Training an ELECTRA: from text to a generator and a discriminator that transformers opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tests.tasks.fill_mask.test_training import SMALL, TEXT, prepared

import seqloom
from seqloom.data.batching.pair_batches import shard
from seqloom.data.encoding.masks import MaskOptions, apply_masks
from seqloom.errors import FolderError, UsageError
from seqloom.models.electra import Electra, discriminator_loss, generator_loss
from seqloom.protocols import MaskedBatch
from seqloom.runs.run_folder import load_run
from seqloom.runs.settings import read_resumed
from seqloom.shapes import IGNORE
from seqloom.tasks.fill_mask.replaced_scores import entropy, measure_replaced
from seqloom.tasks.fill_mask.training_data import prepare_masked_corpus
from seqloom.tasks.settings import resolve
from seqloom.text.special_tokens import MASK, PAD
from seqloom.workflows.check import check
from seqloom.workflows.exchange import export_model, import_model
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")
MASKED = ["The cat <mask> the tree.", "<mask> dog likes the <mask>."]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(scope="module")
def folder(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its export in `hub` beside it."""
    place = tmp_path_factory.mktemp("electra")
    train("fill-mask", [text], output_dir=place / "run", model="electra:tiny", settings=SMALL)
    export_model(str(place / "run"), str(place / "hub"))
    return place


def first_batch(folder: Path) -> tuple[Electra, MaskedBatch]:
    data = prepare_masked_corpus(read_resumed(folder), folder, first=False)
    rows = next(data.batches(0, 0))
    model: Any = load_run(folder, "cpu").model
    return model, data.load(rows, rows)


@torch.no_grad()
def test_the_export_opens_in_transformers_with_the_same_losses(folder: Path) -> None:
    """Of the same text, masks and replacements, to 1e-5."""
    model, batch = first_batch(folder / "run")
    out = model(batch.tokens, batch.targets, batch.uniform, batch.segments)
    mask = batch.tokens >= 0
    read = {"attention_mask": mask.long(), "token_type_ids": batch.segments}
    generator: Any = hf.ElectraForMaskedLM.from_pretrained(folder / "hub" / "generator")
    found = generator(batch.tokens.where(mask, PAD), labels=batch.targets, **read)
    total, count = generator_loss(out, batch.targets)
    assert float(found.loss) == pytest.approx(float(total / count), abs=1e-5)
    discriminator: Any = hf.ElectraForPreTraining.from_pretrained(folder / "hub")
    found = discriminator(out.tokens, labels=out.replaced.long(), **read)
    total, count = discriminator_loss(out, batch.tokens)
    assert float(found.loss) == pytest.approx(float(total / count), abs=1e-5)
    both = model.masked_loss(batch)
    expected = generator_loss(out, batch.targets).total / both.count + 50 * total / count
    assert float(both.total / both.count) == pytest.approx(float(expected), rel=1e-5)


def test_from_text_to_text_it_answers_as_in_transformers(folder: Path) -> None:
    ours = seqloom.load(folder / "run", "cpu").fill_masks(MASKED, n_best=3)
    pipeline: Any = hf.pipeline("fill-mask", str(folder / "hub" / "generator"), device="cpu")
    for text, filled in zip(MASKED, ours, strict=True):
        theirs = pipeline(text, top_k=3)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        for mine, their in zip(filled.masks, theirs, strict=True):
            assert [one.id for one in mine] == [one["token"] for one in their]
            assert [one.probability for one in mine] == pytest.approx(
                [one["score"] for one in their], abs=1e-5
            )
    texts = ["The cat sees the tree.", "A bird"]
    found = seqloom.load(folder / "hub", "cpu").replaced(texts)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "hub")
    model: Any = hf.ElectraForPreTraining.from_pretrained(folder / "hub")
    for text, tokens in zip(texts, found, strict=True):
        with torch.no_grad():
            scores = model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
        expected = scores.sigmoid().tolist()
        assert [one.replaced for one in tokens] == pytest.approx(expected, abs=1e-5)


def test_a_task_head_takes_the_discriminator(folder: Path, tmp_path: Path) -> None:
    rows = "".join(
        f"{label}\tThe {label} sees {number} trees.\n"
        for number in range(12)
        for label in ("cat", "dog")
    )
    (tmp_path / "labelled.tsv").write_text("label\ttext\n" + rows)
    train(
        "text-classification",
        [str(tmp_path / "labelled.tsv")],
        output_dir=tmp_path / "head",
        start=folder / "run",
        settings=["train.max_steps=1", "train.learning_rate=1e-30", "data.max_length=20"],
    )
    before: Any = load_run(folder / "run", "cpu").model
    after: Any = load_run(tmp_path / "head", "cpu").model
    tensors = dict(after.encoder.named_parameters())
    for name, tensor in before.discriminator.named_parameters():
        if not name.startswith(("head.", "replaced.")):
            assert torch.allclose(tensors[name], tensor, rtol=0, atol=1e-20), name
    export_model(str(tmp_path / "head"), str(tmp_path / "hub"))
    theirs: Any = hf.pipeline("text-classification", str(tmp_path / "hub"), device="cpu", top_k=2)
    texts = ["The cat sees 3 trees.", "A dog"]
    ours = seqloom.load(tmp_path / "head", "cpu").predict(texts)
    for mine, answer in zip(ours, theirs(texts), strict=True):
        assert {one["label"] for one in answer} == {"cat", "dog"}
        assert answer[0]["score"] == pytest.approx(mine["probability"], abs=1e-5)


def test_it_is_trained_further_from_its_run_and_from_its_export(
    folder: Path, text: str, tmp_path: Path
) -> None:
    import_model(str(folder / "hub"), str(tmp_path / "imported"))
    for start in (folder / "run", tmp_path / "imported"):
        settings = ["train.max_steps=2", "train.batch_rows=6", "data.add_tokens=[zyx]"]
        output = tmp_path / start.name / "more"
        train("fill-mask", [text], output_dir=output, start=start, settings=settings)
        before, after = (load_run(one, "cpu") for one in (start, output))
        assert after.model_type == "electra"
        assert after.tokenizer.vocabulary_size == before.tokenizer.vocabulary_size + 1
        table: Any = after.model.state_dict()["discriminator.embedding.weight"]
        old: Any = before.model.state_dict()["discriminator.embedding.weight"]
        torch.testing.assert_close(table[: len(old)], old, rtol=0, atol=0.02)
    with pytest.raises(UsageError, match=r"trained further with its generator.*seqloom import"):
        train("fill-mask", [text], output_dir=tmp_path / "no", start=folder / "hub")


def test_what_is_drawn_is_the_same_for_any_number_of_workers(text: str, tmp_path: Path) -> None:
    data = prepared(text, tmp_path, "electra")
    torch.manual_seed(1)
    model: Any = data.build().model.eval()
    rows = next(data.batches(0, 0))
    whole = data.load(rows, rows)
    tokens = model(whole.tokens, whole.targets, whole.uniform).tokens
    assert bool(((whole.uniform >= 0) & (whole.uniform < 1)).all())
    for workers in (2, 4):
        for rank in range(workers):
            batch = data.load(shard(rows, rank, workers), rows)
            width = batch.tokens.shape[1]
            again = model(batch.tokens, batch.targets, batch.uniform).tokens
            assert torch.equal(again, tokens[rank::workers, :width])
    other = data.load(*[next(data.batches(1, 0))] * 2)
    assert not torch.equal(other.uniform, whole.uniform)


def test_a_killed_training_goes_on_to_the_same_bits(text: str, tmp_path: Path) -> None:
    settings = [*SMALL, "train.max_steps=6", "train.evaluate_every=2"]
    train(
        "fill-mask", [text], output_dir=tmp_path / "whole", model="electra:tiny", settings=settings
    )
    with pytest.raises(KeyboardInterrupt):
        train(
            "fill-mask",
            [text],
            output_dir=tmp_path / "killed",
            model="electra:tiny",
            settings=settings,
            progress=_stop_at(3),
        )
    train(resume=tmp_path / "killed")
    one, other = (
        load_run(tmp_path / name, "cpu").model.state_dict() for name in ("whole", "killed")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def _stop_at(step: int) -> Any:
    def progress(seen: Any) -> None:
        if seen.step == step:
            raise KeyboardInterrupt

    return progress


def test_the_generator_reads_masks_and_true_tokens_but_none_at_random(
    text: str, tmp_path: Path
) -> None:
    data = prepared(text, tmp_path, "electra")
    options: MaskOptions = data.rows.options
    ids = torch.arange(8, data.tokenizer.vocabulary_size).repeat(400).numpy()
    row = apply_masks(ids, options, np.random.default_rng(0))
    chosen = row.targets != IGNORE
    read = row.inputs[chosen]
    assert ((read == MASK) | (read == row.targets[chosen])).all()
    assert (read == MASK).mean() == pytest.approx(0.85, abs=0.02)
    free = ~options.protected[ids]
    assert chosen.sum() / free.sum() == pytest.approx(0.15, abs=0.003)


def test_what_is_measured_is_what_the_losses_say(text: str, tmp_path: Path) -> None:
    data = prepared(text, tmp_path, "electra")
    torch.manual_seed(0)
    model: Any = data.build().model.eval()
    found = measure_replaced(model, data.rows, data.validation)
    assert found == measure_replaced(model, data.rows, data.validation)
    assert found == data.validate(model)
    assert found["loss"] == pytest.approx(found["masked_loss"] + 50 * found["replaced_loss"])
    wrong = found["masked_tokens"] * (1 - found["sampled_accuracy"] / 100)
    assert found["replaced_percent"] == pytest.approx(100 * wrong / found["tokens"])
    assert found["base_loss"] == entropy(found["replaced_percent"] / 100)
    assert entropy(0) == 0
    assert entropy(0.5) == pytest.approx(0.6931, abs=1e-4)
    # one that says the share of replaced tokens everywhere has the loss of the base
    with torch.no_grad():
        model.discriminator.replaced.weight.zero_()
        share = found["replaced_percent"] / 100
        model.discriminator.replaced.bias.fill_(torch.tensor(share / (1 - share)).log())
    again = measure_replaced(model, data.rows, data.validation)
    assert again["replaced_loss"] == pytest.approx(found["base_loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["train.sentence_pairs=next"], "is for bert, but an electra learns nothing of pairs"),
        (["model.generator_fraction=0"], "must be above 0 and at most 1, but is 0"),
        (["model.head=none"], "head"),
        (["model.discriminator_weight=0"], "must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(
    settings: list[str], said: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        train(
            "fill-mask",
            [text],
            output_dir=tmp_path / "run",
            model="electra:tiny",
            settings=[*SMALL, *settings],
        )
    assert not (tmp_path / "run" / "run.yaml").exists()


def test_it_is_evaluated_and_checked_on_documents(folder: Path, text: str, tmp_path: Path) -> None:
    report = check("fill-mask", [text], (), (), SMALL, model="electra:tiny")
    assert report.training["masks"] == "tokens"
    (tmp_path / "few.txt").write_text("The cat sees the tree.\nThe dog likes the mouse.\n")
    metrics = seqloom.load(folder / "run", "cpu").evaluate([str(tmp_path / "few.txt")]).metrics
    assert metrics["loss"] == pytest.approx(metrics["masked_loss"] + 50 * metrics["replaced_loss"])
    assert {"base_loss", "replaced_accuracy", "pseudo_perplexity"} <= set(metrics)


def test_the_best_checkpoint_is_not_that_of_the_lowest_loss(
    folder: Path, text: str, tmp_path: Path
) -> None:
    """That is lowest early, while the samples of the generator are easy to find."""

    def best(model: str | None, start: Path | None = None, *settings: str) -> str:
        run = resolve("fill-mask", [text], tmp_path, model, (), settings, None, start)
        return run.train.best

    assert best("electra:tiny") == best(None, folder / "run") == "masked_accuracy"
    assert best("bert:tiny") == best(None, folder / "hub" / "generator") == "loss"
    assert best("electra:tiny", None, "train.best=loss") == "loss"
    with pytest.raises(FolderError, match="there is no such folder"):
        best(None, tmp_path / "nowhere")


def test_the_log_has_both_losses(folder: Path) -> None:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {"validation_masked_loss", "validation_replaced_loss", "validation_base_loss"} <= set(
        records[-1]
    )
