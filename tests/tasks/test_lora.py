"""Training with LoRA: what it changes, what it keeps, how it goes on, and what PEFT makes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from tests.tasks.test_starting_point import WORDS, data_of, hub_model, metrics, task_of
from transformers import GPT2ForSequenceClassification, GPT2LMHeadModel

import seqloom
from seqloom.errors import FolderError, UsageError
from seqloom.runs.run_folder import load_run, open_model
from seqloom.training.loop import Progress
from seqloom.workflows.check import check
from seqloom.workflows.exchange import export_model, import_model
from seqloom.workflows.train import train

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
LORA = ("train.lora_rank=2", "train.learning_rate=0.02")
FAMILIES = ("transformer", "t5", "gpt")
FUSED = "attention.query_key_value.weight"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders, one of each family, named by it; and a GPT-2 of the hub."""
    folder = tmp_path_factory.mktemp("bases")
    for family in (*FAMILIES, "recurrent_lm"):
        training, validation = data_of(family, folder)
        train(
            task_of(family),
            [training],
            validation=[validation],
            output_dir=folder / family,
            model=f"{family}:tiny",
            settings=["train.max_steps=2", "decode.min_length=2", "decode.max_length=9"],
        )
    hub_model(folder / "hub")
    return folder


def tuned(base: Path, folder: Path, *settings: str, **options: Any) -> Path:
    """A run that starts from this base, with LoRA."""
    family = "gpt" if base.name == "hub" else base.name
    training, validation = data_of(family, folder)
    train(
        task_of(family),
        [training],
        validation=[validation],
        settings=["train.max_steps=4", *LORA, *settings],
        **{"output_dir": folder / "run", "start": base, **options},
    )
    return folder / "run"


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_adapted_rows_change(family: str, bases: Path, tmp_path: Path) -> None:
    before = load_file(bases / family / "model.safetensors")
    run = tuned(bases / family, tmp_path)
    after = load_file(run / "model.safetensors")
    for name, tensor in before.items():
        new = after[name]
        if name.endswith(FUSED):
            query, key, value = (
                torch.equal(*both) for both in zip(tensor.chunk(3), new.chunk(3), strict=True)
            )
            assert (query, key, value) == (False, True, False), name
        elif name.endswith("cross_attention.key_value.weight"):
            assert torch.equal(tensor.chunk(2)[0], new.chunk(2)[0])
            assert not torch.equal(tensor.chunk(2)[1], new.chunk(2)[1])
        else:
            changes = name.endswith("cross_attention.query.weight")
            assert torch.equal(tensor, new) != changes, name
    kept = load_file(run / "checkpoint-4" / "lora.safetensors")
    for name in kept:
        if name.endswith(".weight"):
            assert torch.equal(kept[name], before[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_in_the_same_bits(family: str, bases: Path, tmp_path: Path) -> None:
    def result(folder: Path, stop_at: int | None = None) -> list[bytes]:
        def progress(now: Progress) -> None:
            if now.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        folder.mkdir()
        every = (
            "train.evaluate_every=2",
            "model.dropout=0.3",
            "train.lora_targets=[key,feed-forward]",
        )
        run = tuned(bases / family, folder, *every, progress=progress)
        if stop_at is not None:
            train(resume=run)
        names = ("model.safetensors", "adapter/adapter_model.safetensors")
        return [(run / name).read_bytes() for name in names]

    assert result(tmp_path / "stopped", 1) == result(tmp_path / "whole")


def test_accumulated_micro_batches_change_nothing(bases: Path, tmp_path: Path) -> None:
    results = []
    for count in (1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        run = tuned(bases / "gpt", folder, f"train.accumulate={count}", "model.dropout=0")
        results.append(load_file(run / "adapter" / "adapter_model.safetensors"))
    for name, tensor in results[0].items():
        assert torch.allclose(tensor, results[1][name], rtol=1e-3, atol=1e-5)


def test_peft_opens_what_was_trained_from_a_model_of_the_hub(bases: Path, tmp_path: Path) -> None:
    run = tuned(bases / "hub", tmp_path, "train.lora_targets=[query,attention-output,feed-forward]")
    theirs: Any = GPT2LMHeadModel.from_pretrained(bases / "hub")
    adapter = peft.PeftModel.from_pretrained(theirs, run / "adapter")
    export_model(str(run), str(tmp_path / "merged"))
    exported: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "merged")
    batch = torch.tensor([[0, *load_run(run).tokenizer.encode(["the cat sees my house"])[0]]])
    with torch.no_grad():
        ours, base = (load_run(one).model(batch)[0] for one in (run, bases / "hub"))
        for other in (adapter(batch).logits, exported(batch).logits):
            assert torch.allclose(other, ours, rtol=0, atol=1e-6)
    assert float((base - ours).abs().max()) > 1e-3


def test_peft_opens_an_adapter_of_text_pairs(bases: Path, tmp_path: Path) -> None:
    """A GPT-2 that learns pairs is a language model to PEFT."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "the cat\tsees the house\n" * 40)
    train(
        "translation",
        [str(pairs)],
        output_dir=tmp_path / "run",
        start=bases / "hub",
        settings=["train.lora_rank=2", "train.max_steps=5", "train.learning_rate=0.05"],
    )
    base: Any = GPT2LMHeadModel.from_pretrained(bases / "hub")
    adapter = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")
    run = load_run(tmp_path / "run")
    batch = torch.tensor([[0, *run.tokenizer.encode(["the cat sees my house"])[0]]])
    with torch.no_grad():
        assert torch.allclose(adapter(batch).logits, run.model(batch, None)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, "hub"])
def test_the_adapter_of_a_run_opens_wherever_it_is(
    family: str, bases: Path, tmp_path: Path
) -> None:
    """Merged into its base, which a path beside it names; imported; and trained on."""
    run = tuned(bases / family, tmp_path)
    moved, base = tmp_path / "moved", tmp_path / "base"
    shutil.copytree(run / "adapter", moved)
    shutil.copytree(bases / family, base)
    path = moved / "adapter_config.json"
    content = json.loads(path.read_text())
    assert content["base_model_name_or_path"] == str(bases / family)
    assert ("seqloom_names" in content) == (family == "transformer")
    path.write_text(json.dumps({**content, "base_model_name_or_path": "../base"}))
    wanted = load_run(run).model.state_dict()
    import_model(str(moved), str(tmp_path / "imported"))
    for place in (moved, tmp_path / "imported"):
        for name, tensor in load_run(place).model.state_dict().items():
            assert torch.allclose(tensor, wanted[name], rtol=0, atol=1e-7), name
    with pytest.raises(UsageError, match="start from a whole model"):
        tuned(bases / family, tmp_path, start=moved)
    data = data_of("gpt" if family == "hub" else family, tmp_path)[1]
    loss = metrics(moved, data)["loss"]
    assert loss == pytest.approx(metrics(run, data)["loss"], abs=1e-5)


@pytest.mark.parametrize("base", ["gpt", "hub"])
def test_a_new_head_is_trained_and_kept(base: str, bases: Path, tmp_path: Path) -> None:
    """And so is the embedding of a GPT of the hub, which gets three special tokens."""
    labelled, run = tmp_path / "labelled.tsv", tmp_path / "run"
    rows = [f"the {word} {word}\t{word in WORDS[:6]}" for word in WORDS * 2]
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    train(
        "text-classification",
        [str(labelled)],
        validation=[str(labelled)],
        output_dir=run,
        start=bases / base,
        settings=["train.max_steps=3", "train.batch_rows=8", *LORA],
    )
    kept = load_file(run / "adapter" / "adapter_model.safetensors")
    after = load_file(run / "model.safetensors")
    assert torch.equal(kept["base_model.model.score.weight"], after["head.output.weight"])
    before = load_run(bases / base).model.state_dict()
    for name, tensor in before.items():
        whole = base == "hub" and name in ("embedding.weight", "output.weight")
        if not name.endswith(FUSED) and not whole and f"encoder.{name}" in after:
            assert torch.equal(after[f"encoder.{name}"], tensor), name
    if base == "gpt":
        return
    theirs: Any = GPT2ForSequenceClassification.from_pretrained(bases / base, num_labels=2)
    theirs.resize_token_embeddings(len(after["encoder.embedding.weight"]))
    adapter = peft.PeftModel.from_pretrained(theirs, run / "adapter")
    export_model(str(run), str(tmp_path / "merged"))
    merged: Any = GPT2ForSequenceClassification.from_pretrained(tmp_path / "merged")
    batch = torch.tensor([[len(before["embedding.weight"]), 5, 3, 20]])
    with torch.no_grad():
        assert torch.allclose(adapter(batch).logits, merged(batch).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        LORA,
        (*LORA, "train.lora_targets=[key,feed-forward]", "data.add_tokens=[<new>]"),
        ("train.freeze=[embedding]",),
        ("train.dtype=float64",),
        (*LORA, "train.dtype=float64"),
        (*LORA, "train.dtype=bfloat16", "train.accumulate=3"),
    ],
)
def test_the_check_counts_what_the_training_trains(
    settings: tuple[str, ...], bases: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training, validation = data_of("gpt", tmp_path)
    few = [*settings, "train.max_steps=1"]
    found = check("text-generation", [training], [], [], few, start=str(bases / "gpt")).training
    with caplog.at_level("INFO", logger="seqloom"):
        train(
            *("text-generation", [training]),
            validation=[validation],
            settings=few,
            output_dir=tmp_path / "run",
            start=bases / "gpt",
        )
    said = re.search(r"\(([\d,]+) parameters(?:, ([\d,]+) of them)?", caplog.text)
    assert said is not None
    every, trained = (int((one or said[1]).replace(",", "")) for one in said.groups())
    assert (found["parameters"], found["trained_parameters"]) == (every, trained)
    size = 8 if "train.dtype=float64" in settings else 4
    mebibytes = size * (every + 3 * trained) / 2**20
    assert found["memory_of_the_model_mib"] == pytest.approx(mebibytes, abs=0.051)


def test_the_check_measures_in_the_dtype_and_the_parts_of_the_training(
    bases: Path, tmp_path: Path
) -> None:
    training, _ = data_of("gpt", tmp_path)

    def activations(*settings: str) -> float:
        rows = ("train.batch_rows=30", "model.dropout=0", *settings)
        start = str(bases / "gpt")
        report = check("text-generation", [training], [], [], rows, start=start)
        return float(report.training["memory_of_the_longest_batch_mib"])

    whole = activations()
    assert activations("train.dtype=float64") > 1.5 * whole
    assert activations("train.dtype=bfloat16") < whole
    assert activations("train.accumulate=3") < 0.5 * whole


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        (
            "recurrent_lm",
            [],
            r"train.lora_rank needs a model with .* \(bert, gpt, t5, transformer, vit\)",
        ),
        ("gpt", ["train.lora_rank=999"], "train.lora_rank must be at most the smaller side"),
        ("gpt", ["train.lora_targets=[]"], "lora_targets"),
        ("gpt", ["train.lora_targets=[output]"], "lora_targets"),
        ("gpt", ["train.lora_alpha=0"], "lora_alpha"),
        ("gpt", ["train.freeze=[embedding]"], "train.freeze=embedding changes nothing"),
        ("gpt", ["train.lora_rank=null", "train.lora_alpha=3"], "nothing without train.lora_rank"),
    ],
)
def test_what_cannot_be_adapted_is_refused(
    base: str, settings: list[str], said: str, bases: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        tuned(bases / base, tmp_path, *settings)
    assert not (tmp_path / "run" / "run.yaml").exists()


def test_random_weights_are_not_adapted(tmp_path: Path) -> None:
    training, _ = data_of("gpt", tmp_path)
    with pytest.raises(UsageError, match=r"train.lora_rank needs --from"):
        train(
            "text-generation",
            [training],
            output_dir=tmp_path / "run",
            model="gpt:tiny",
            settings=["train.lora_rank=2"],
        )


def test_a_damaged_adapter_of_a_run_is_noticed(bases: Path, tmp_path: Path) -> None:
    run = tuned(bases / "gpt", tmp_path)
    path = run / "adapter" / "adapter_config.json"
    path.write_text(path.read_text().replace('"r": 4', '"r": 5'))
    with pytest.raises(FolderError, match=r"adapter/adapter_config.json is damaged"):
        open_model(run, "cpu")
    assert seqloom.load(bases / "gpt")
