"""Training that starts from a trained model: its weights, its tokenizer, its settings of decoding; resumed to
the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import seqloom
from seqloom.errors import UsageError
from seqloom.manifest import MANIFEST, entry, read_list, write_list
from seqloom.runs.run_folder import load_run
from seqloom.tasks.training_data import impossible_targets
from seqloom.text.tokenizers import train_tokenizer
from seqloom.training.loop import Progress
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

WORDS = ["the", "a", "cat", "dog", "house", "tree", "runs", "sees", "old", "new", "my", "in", "on"]
FAMILIES = ("seq2seq", "transformer", "t5", "gpt", "recurrent_lm")
STILL = ("train.learning_rate=1e-30", "train.weight_decay=0", "train.max_steps=1")
"""Steps so small that no weight changes."""


def task_of(family: str) -> str:
    return "text-generation" if family in ("gpt", "recurrent_lm") else "translation"


def data_of(family: str, folder: Path) -> list[str]:
    """(training file, validation file)"""
    generator = torch.Generator().manual_seed(0)
    lines = []
    for _ in range(60):
        chosen = torch.randint(len(WORDS), (5,), generator=generator).tolist()
        lines.append(" ".join(WORDS[i] for i in chosen))
    if task_of(family) == "translation":
        lines = ["source\ttarget", *(f"{line}\t{line.upper()}" for line in lines)]
    suffix = "tsv" if task_of(family) == "translation" else "txt"
    paths = [folder / f"train.{suffix}", folder / f"validation.{suffix}"]
    paths[0].write_text("\n".join(lines[:50]) + "\n")
    paths[1].write_text("\n".join([*lines[:1], *lines[50:]]) + "\n")
    return [str(path) for path in paths]


def train_families(folder: Path, *settings: str) -> Path:
    """Trains a model of each family for three steps, in folders that are named by it."""
    for family in FAMILIES:
        training, validation = data_of(family, folder)
        train(
            task_of(family),
            [training],
            validation=[validation],
            output_dir=folder / family,
            model=f"{family}:tiny",
            settings=["train.max_steps=3", "decode.max_length=9", *settings],
        )
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders, one of each family, named by it."""
    return train_families(tmp_path_factory.mktemp("trained"), "decode.min_length=2")


def metrics(folder: Path, data: str) -> dict[str, float]:
    return dict(seqloom.load(folder).evaluate([data]).metrics)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_begins_with_the_weights_and_the_vocabulary_of_the_folder(
    family: str, trained: Path, tmp_path: Path
) -> None:
    training, validation = data_of(family, tmp_path)
    new = tmp_path / "new"
    train(
        task_of(family),
        [training],
        validation=[validation],
        output_dir=new,
        start=trained / family,
        settings=STILL,
    )
    before, after = load_run(trained / family), load_run(new)
    assert metrics(new, validation) == metrics(trained / family, validation)
    assert after.tokenizer.to_json() == before.tokenizer.to_json()
    assert after.decode == before.decode


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_in_the_same_bits(family: str, trained: Path, tmp_path: Path) -> None:
    training, validation = data_of(family, tmp_path)

    def start(folder: Path, stop_at: int | None = None) -> bytes:
        def progress(now: Progress) -> None:
            if now.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        train(
            task_of(family),
            [training],
            validation=[validation],
            output_dir=folder,
            start=trained / family,
            settings=["train.max_steps=6", "train.evaluate_every=2", "model.dropout=0.3"],
            progress=progress,
        )
        if stop_at is not None:
            train(resume=folder)
        return (folder / "model.safetensors").read_bytes()

    assert start(tmp_path / "stopped", 3) == start(tmp_path / "whole")


def hub_model(folder: Path) -> Any:
    """A GPT-2 of transformers, with a tokenizer of byte-level BPE."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, 300, special_tokens=["<|endoftext|>"])
    end = "<|endoftext|>"
    wrapped: Any = PreTrainedTokenizerFast
    wrapped(tokenizer_object=tokenizer._tokenizer, bos_token=end, eos_token=end).save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: Any = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    return model.eval()


def test_a_checkpoint_of_the_hub_goes_on_as_it_was(tmp_path: Path) -> None:
    """Another text, the same weights: its loss is that of transformers, and it goes back to the hub."""
    theirs = hub_model(tmp_path / "hub")
    training, validation = data_of("gpt", tmp_path)
    new = tmp_path / "new"
    train(
        "text-generation",
        [training],
        validation=[validation],
        output_dir=new,
        start=tmp_path / "hub",
        settings=STILL,
    )
    run = load_run(new)
    ids = [0, *run.tokenizer.encode(["the cat sees my house"])[0], 0]
    batch = torch.tensor([ids])
    with torch.no_grad():
        wanted = float(theirs(batch, labels=batch).loss) * (len(ids) - 1)
    (scored,) = seqloom.load(new).score(["the cat sees my house"])
    assert scored.log_probability == pytest.approx(-wanted, abs=1e-4)
    export_model(str(new), str(tmp_path / "back"))
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "back")
    for name, tensor in theirs.state_dict().items():
        assert torch.allclose(back.state_dict()[name], tensor, rtol=0, atol=1e-20)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": ["data.vocabulary=50"]}, "--from brings its own tokenizer"),
        ({"settings": ["model.width=40"]}, "a model keeps the sizes that it had"),
        ({"settings": ["model.pad_id=3"]}, "model.pad_id comes from the tokenizer"),
        ({"settings": ["model.attention_width=9"]}, "a model keeps the sizes that it had"),
        ({"settings": ["model.context=initial"]}, "it needs model.attention to be none"),
        ({"model": "t5"}, "--from brings its own model"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    changes: dict[str, Any], said: str, trained: Path, tmp_path: Path
) -> None:
    training, validation = data_of("seq2seq", tmp_path)
    with pytest.raises(UsageError, match=said):
        train(
            "translation",
            [training],
            validation=[validation],
            output_dir=tmp_path / "new",
            start=trained / "seq2seq",
            **changes,
        )
    assert not (tmp_path / "new" / "run.yaml").exists()


def test_a_model_of_another_kind_is_refused(trained: Path, tmp_path: Path) -> None:
    """One that counts, and one with labels in place of words."""
    training, _ = data_of("gpt", tmp_path)
    train("text-generation", [training], output_dir=tmp_path / "ngram", model="ngram:bigram")
    labelled = tmp_path / "labelled.tsv"
    rows = [f"{word}\t{word in WORDS[:6]}" for word in WORDS]
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    train(
        "text-classification",
        [str(labelled)],
        output_dir=tmp_path / "labels",
        model="gpt:tiny",
        settings=["train.max_steps=1"],
    )
    for start, said in (
        (tmp_path / "ngram", "estimated without gradients"),
        (tmp_path / "labels", "starts from a model that writes text"),
        (trained / "seq2seq", "must be one of gpt"),
    ):
        with pytest.raises(UsageError, match=said):
            train("text-generation", [training], output_dir=tmp_path / "new", start=start)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_a_text_may_hold_has_probability(
    family: str, trained: Path, tmp_path: Path
) -> None:
    """A byte-level vocabulary spells every text, so `<unk>` is no target either. A model of an earlier
    version gave all ids some; one that is trained on from it does so no longer."""
    bytes_and_end = torch.tensor([2, *range(16, 16 + 256)])
    training, validation = data_of(family, tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(trained / family, old)
    content = json.loads((old / "config.json").read_text())
    assert content.pop("suppressed_ids") == [0, 1, *range(3, 16)]
    (old / "config.json").write_text(json.dumps(content))
    sealed = read_list(old / MANIFEST)
    listed = sealed.pop("files") | {"config.json": entry(old / "config.json")}
    write_list(old / MANIFEST, listed, **sealed)
    train(
        task_of(family),
        [training],
        validation=[validation],
        output_dir=new,
        start=old,
        settings=STILL,
    )
    for folder, all_ids in ((trained / family, False), (old, True), (new, False)):
        model: Any = load_run(folder).model
        state = model.encode(torch.tensor([[20, 2]])) if "encode" in dir(model) else None
        p = model(torch.tensor([[1, 20]]), state)[0].softmax(-1)
        assert p[..., :16].gt(0).all() == all_ids
        assert (p[..., bytes_and_end] > 0).all()
        left_out = [0, 1, *range(3, 16)]
        assert p[..., left_out].eq(0).all() == (not all_ids)


def test_special_ids_that_an_objective_predicts_are_targets(trained: Path) -> None:
    tokenizer = load_run(trained / "gpt").tokenizer
    assert impossible_targets(tokenizer) == (0, 1, *range(3, 16))
    assert impossible_targets(tokenizer, (4, 5)) == (0, 1, 3, *range(6, 16))
    words = train_tokenizer(["a b c"], "words", 20)
    assert impossible_targets(words) == (0, 1, *range(4, 16))
