"""Training a masked language model: from text to a model that fills masks and that others start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import seqloom
from seqloom.cli import main
from seqloom.data.batching.corpus_windows import WindowPlan
from seqloom.data.batching.pair_batches import shard
from seqloom.errors import DataError, UsageError
from seqloom.protocols import MaskedBatch
from seqloom.registry import find_task
from seqloom.runs.run_folder import load_run
from seqloom.runs.settings import read_resumed
from seqloom.shapes import IGNORE
from seqloom.tasks.fill_mask.masked_scores import measure_masked
from seqloom.tasks.fill_mask.training_data import MaskedCorpus, prepare_masked_corpus
from seqloom.tasks.settings import resolve
from seqloom.testing import check_objective, check_task
from seqloom.text.special_tokens import BOS, EOS, MASK, PAD
from seqloom.text.tokenizer_kinds import KINDS as TOKENIZERS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.training.objectives import MaskedLanguageModelling
from seqloom.workflows.check import check
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

SENTENCES = [
    f"The {a} {b} the {c}."
    for a in ("cat", "dog", "bird")
    for b in ("sees", "likes")
    for c in ("mouse", "tree")
]
TEXT = "\n".join(" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in range(12)) + "\n"
SMALL = ["train.batch_rows=6", "train.max_steps=3", "model.width=16", "model.context=24"]
ROBERTA = ["model.layers=2", "model.heads=2"]
KINDS: dict[str, tuple[str, list[str], Any]] = {
    "bert": ("bert:tiny", [], hf.BertForMaskedLM),
    "pairs": ("bert:bert-tiny", [], hf.BertForPreTraining),
    "order": ("bert:tiny", ["train.sentence_pairs=order"], hf.BertForPreTraining),
    "roberta": ("bert:roberta-small", ROBERTA, hf.RobertaForMaskedLM),
    "roberta-base": ("bert:roberta-base", ROBERTA, hf.RobertaForMaskedLM),
    "spans": (
        "bert:tiny",
        ["train.mask_units=spans", "train.static_masks=true"],
        hf.BertForMaskedLM,
    ),
    "electra": ("electra:tiny", [], None),
}


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def prepared(text: str, folder: Path, kind: str, *settings: str) -> MaskedCorpus:
    model, more, _ = KINDS[kind]
    run = resolve("fill-mask", [text], "", model, (), [*SMALL, *more, *settings], None)
    return prepare_masked_corpus(run, folder, first=True)


def trained(text: str, folder: Path, kind: str, *settings: str) -> Path:
    model, more, _ = KINDS[kind]
    train("fill-mask", [text], output_dir=folder, model=model, settings=[*SMALL, *more, *settings])
    return folder


@pytest.mark.parametrize("kind", sorted({*TOKENIZERS} - {"whitespace"}))
def test_the_mask_is_an_entry_that_no_text_spells_by_itself(kind: str) -> None:
    plain = train_tokenizer([TEXT, "<mask> <mask> <mask>"], kind, 300)
    tokenizer = TextTokenizer.from_json(plain.with_mask().to_json())
    ids = tokenizer.special_ids
    assert (ids.mask, ids.prefix, ids.separator, ids.suffix) == (MASK, (BOS,), (EOS,), (EOS,))
    assert tokenizer.pieces([MASK, EOS]) == ["<mask>", "</s>"]
    spelled = "the <mask>dog<mask>"
    assert tokenizer.encode([spelled]) == plain.encode([spelled]) == plain.encode_masked([spelled])
    assert MASK not in tokenizer.encode([spelled])[0]
    parts = [tokenizer.encode([part])[0] for part in ("the", "dog", "")]
    assert tokenizer.encode_masked([spelled, ""]) == [[*parts[0], MASK, *parts[1], MASK], []]
    assert plain.special_ids.mask is None


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_the_laws_of_tasks(kind: str, text: str, tmp_path: Path) -> None:
    model, settings, _ = KINDS[kind]
    task = find_task("fill-mask")
    assert task is not None
    masked = tmp_path / "masked.txt"
    masked.write_text("The cat <mask> the tree.\n<mask> dog likes the <mask>.\n")
    task_settings = [*SMALL, *settings]
    task_settings.remove("train.max_steps=3")
    check_task(task, [text], test=[str(masked)], model=model, settings=task_settings)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "electra"])
def test_the_loss_is_that_of_transformers(kind: str, text: str, tmp_path: Path) -> None:
    """The same weights, rows, masks and labels, by the classes that pre-train."""
    folder = trained(text, tmp_path / "run", kind)
    export_model(str(folder), str(tmp_path / "hub"))
    theirs = KINDS[kind][2].from_pretrained(tmp_path / "hub").eval()
    run = load_run(folder, "cpu")
    data = prepare_masked_corpus(read_resumed(folder), folder, first=False)
    rows = next(data.batches(0, 0))
    batch = data.load(rows, rows)
    with torch.no_grad():
        ours = MaskedLanguageModelling()(run.model, batch)
        segments = {} if kind.startswith("roberta") else {"token_type_ids": batch.segments}
        labelled = kind in ("pairs", "order")
        labels = {"next_sentence_label": batch.labels} if labelled else {}
        found = theirs(
            input_ids=batch.tokens.where(batch.tokens >= 0, PAD),
            attention_mask=(batch.tokens >= 0).long(),
            labels=batch.targets,
            **segments,
            **labels,
        )
    assert int(ours.count) == int((batch.targets != IGNORE).sum()) > 10
    assert bool((batch.labels != IGNORE).all()) is labelled
    assert float(found.loss) == pytest.approx(float(ours.total / ours.count), abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "pairs", "electra"])
def test_a_batch_may_be_split_in_any_way(kind: str, text: str, tmp_path: Path) -> None:
    """Over workers and micro-batches, also where some have no rows: masks, loss and gradient stay. The loss
    is the mean of the tokens plus the mean of the labels of the whole batch."""
    data = prepared(text, tmp_path, kind)
    torch.manual_seed(0)
    model = data.build().model.double().eval()
    objective = data.objective()
    rows = next(data.batches(0, 0))
    whole = data.load(rows, rows)
    check_objective(objective, model, whole)
    model.requires_grad_(False)
    expected = objective(model, whole)
    for parts in (2, 4, 9):
        losses = []
        for part in range(parts):
            some = shard(rows, part, parts)
            batch = data.load(some, rows)
            width = batch.tokens.shape[1]
            if len(some):
                assert torch.equal(batch.tokens, whole.tokens[part::parts, :width])
                assert torch.equal(batch.targets, whole.targets[part::parts, :width])
            losses.append(objective(model, batch))
        total, count = (sum(parts) for parts in zip(*losses, strict=True))
        assert int(count) == int(expected.count)
        assert float(total) == pytest.approx(float(expected.total), rel=1e-12)
    none = whole._replace(labels=torch.full_like(whole.labels, IGNORE))
    of_tokens = objective(model, none)
    of_labels = float(expected.total - of_tokens.total) / int(expected.count)
    if kind != "pairs":
        assert of_labels == 0
    else:
        assert of_labels == pytest.approx(mean_label_loss(model, whole), rel=1e-6)


def mean_label_loss(model: Any, batch: MaskedBatch) -> float:
    logits = model.next_sentence(model.pooled(model.encode_batch(batch)))
    return float(torch.nn.functional.cross_entropy(logits, batch.labels))


@pytest.mark.parametrize("kind", ["bert", "pairs", "electra"])
@pytest.mark.parametrize("static", [False, True])
def test_rows_are_a_function_of_seed_epoch_and_position(
    kind: str, static: bool, text: str, tmp_path: Path
) -> None:
    """Each epoch has masks of its own, unless they are static; a training that starts anywhere in it has the
    same."""
    data = prepared(text, tmp_path, kind, f"train.static_masks={str(static).lower()}")
    seen = {}
    for epoch in (0, 1):
        batches = list(data.batches(epoch, 0))
        assert [one.tolist() for one in data.batches(epoch, 2)] == [
            one.tolist() for one in batches[2:]
        ]
        loaded = [data.load(rows, rows) for rows in batches]
        again = [data.load(rows, rows) for rows in batches]
        for one, other in zip(loaded, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        seen[epoch] = sorted(row for one in loaded for row in shown(one))
    assert (seen[0] == seen[1]) is static
    other_seed = prepared(
        text, tmp_path, kind, "train.seed=1", f"train.static_masks={str(static).lower()}"
    )
    rows = next(other_seed.batches(0, 0))
    assert not set(shown(other_seed.load(rows, rows))) <= set(seen[0])


def shown(batch: MaskedBatch) -> list[str]:
    rows = zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)
    return [str([(a, b) for a, b in zip(*row, strict=True) if a >= 0]) for row in rows]


def test_full_rows_hold_every_token_once(text: str, tmp_path: Path) -> None:
    """Windows cross documents, with what ends a text between two."""
    data = prepared(text, tmp_path, "bert")
    ids = data.tokenizer.special_ids
    read: list[int] = []
    for rows in data.batches(1, 0):
        for row in rows.tolist():
            held = data.rows.text(data.corpus, row).ids.tolist()
            assert (held[0], held[-1]) == (ids.prefix[0], ids.suffix[0])
            assert len(held) <= 24
            read += [one for one in held[1:-1] if one != ids.suffix[0]]
    kept = data.corpus.tokens[data.corpus.tokens != ids.eos]
    assert sorted(read) == sorted(kept.tolist())
    assert isinstance(data.rows.texts.plan, WindowPlan)  # type: ignore[attr-defined]


def test_a_second_text_needs_another_document(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a second text from another document"):
        trained(text, tmp_path / "run", "pairs", "data.document=file")
    assert not (tmp_path / "run" / "run.yaml").exists()
    trained(text, tmp_path / "order", "order", "data.document=file")


def test_files_are_measured_as_validation_data_are(text: str, tmp_path: Path) -> None:
    """Under masks that are always the same; pairs where there are other documents."""
    folder = trained(text, tmp_path / "run", "pairs")
    data = prepare_masked_corpus(read_resumed(folder), folder, first=False)
    model = load_run(folder, "cpu").model
    expected = measure_masked(model, data.rows, data.corpus)
    held = data.corpus.totals.documents
    assert (held, data.validation.totals.documents) == (11, 1)
    assert {"pair_accuracy", "pair_loss", "masked_accuracy", "masked_loss"} < expected.keys()
    assert expected["loss"] == expected["masked_loss"] + expected["pair_loss"]
    for name in ("masked_loss", "masked_accuracy", "masked_perplexity", "pair_loss"):
        assert expected[f"{name}_low"] < expected[name] < expected[f"{name}_high"]
    # one document has no other
    assert "pairs" not in measure_masked(model, data.rows, data.validation)
    kept = tmp_path / "kept.txt"
    lines = TEXT.splitlines(keepends=True)
    dropped = int(data.validation.lines[0]) - 1
    kept.write_text("".join(lines[:dropped] + lines[dropped + 1 :]))
    found = seqloom.load(folder, "cpu").evaluate([str(kept)]).metrics
    assert {name: found[name] for name in expected} == expected
    assert found["pseudo_perplexity"] > 1


def test_check_shows_what_is_read_and_what_is_to_be_predicted(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, settings, _ = KINDS["pairs"]
    report = check("fill-mask", [text], (), (), [*SMALL, *settings], model=model)
    content = json.loads(json.dumps(report.to_json()))
    training, first = content["training"], content["first_batch"][0]
    assert 5 < training["tokens_that_an_epoch_trains_about"] / training["batches_an_epoch"] < 30
    assert training["parameters"] > 1000
    assert training["seconds_a_step"] > 0
    assert first["label"] in ("next", "from another document")
    assert len(first["inputs"]) == len(first["targets"])
    true = [one.strip() for one in first["targets"] if one is not None]
    words = [one for setting in [*SMALL, *settings] for one in ("--set", setting)]
    with pytest.raises(SystemExit, match="0"):
        main(["check", "fill-mask", text, "--model", model, *words])
    shown = capfd.readouterr().out
    assert all(f"⟦{one}" in shown for one in true)


def test_text_of_which_nothing_can_be_masked_is_not_measured(text: str, tmp_path: Path) -> None:
    """Otherwise its loss would be 0."""
    unknown = tmp_path / "unknown.txt"
    unknown.write_text("\u732b \u72d7\n")
    with pytest.raises(DataError, match="must hold a token that can be masked"):
        train(
            "fill-mask",
            [text],
            validation=[str(unknown)],
            output_dir=tmp_path / "run",
            model="bert:tiny",
            settings=SMALL,
        )
    folder = trained(text, tmp_path / "good", "bert")
    with pytest.raises(DataError, match="must hold a token that can be masked"):
        seqloom.load(folder, "cpu").evaluate([str(unknown)])


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("bert", ["train.noise_span=4"], "is for train.mask_units=spans, but that is tokens"),
        ("bert", ["model.pooler=true"], "is trained by pairs of sentences"),
        ("bert", ["train.window=25"], "must be at most model.context=24, but is 25"),
        ("bert", ["train.window=3"], "must have room for special tokens and two others"),
        ("bert", ["data.tokenizer=whitespace"], "may spell <mask>"),
        ("bert", ["train.noise=[mass]"], "train.noise changes nothing for fill-mask"),
    ],
)
def test_what_cannot_be_is_refused(
    kind: str, settings: list[str], said: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        trained(text, tmp_path / "run", kind, *settings)
    assert not (tmp_path / "run" / "run.yaml").exists()
