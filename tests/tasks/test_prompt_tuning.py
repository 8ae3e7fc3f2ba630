"""Prompt tuning from files to a run folder: what is saved, what is resumed, what is refused."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.test_starting_point import (
    FAMILIES,
    data_of,
    hub_model,
    metrics,
    task_of,
    train_families,
)

import seqloom
from seqloom.errors import FolderError, SeqloomError, UsageError
from seqloom.runs.run_folder import load_run
from seqloom.tasks.starting_point import first_prompt
from seqloom.text.special_tokens import SPECIAL_TOKENS
from seqloom.text.tokenizers import train_tokenizer
from seqloom.training.loop import Progress
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

PROMPT = ("train.prompt_length=3", "train.learning_rate=0.1")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders, one of each family, named by it."""
    return train_families(tmp_path_factory.mktemp("bases"))


def tune(base: Path, folder: Path, *settings: str, family: str = "t5", **options: Any) -> Path:
    """All learn from pairs but a GPT, which learns from texts unless the task is named."""
    kind = "gpt" if family == "gpt" else "t5"
    training, validation = data_of(kind, folder.parent)
    train(
        options.pop("task", task_of(kind)),
        [training],
        validation=[validation],
        output_dir=folder,
        start=base,
        settings=[*PROMPT, "train.max_steps=4", "train.evaluate_every=2", *settings],
        **options,
    )
    return folder


def model_in(folder: Path) -> Any:
    return load_run(folder).model


def files_of(folder: Path) -> dict[str, str]:
    """Name -> SHA-256."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_trains_and_saves_the_prompt_alone(family: str, bases: Path, tmp_path: Path) -> None:
    base = bases / family
    before = files_of(base)
    folder = tune(base, tmp_path / "prompt", family=family)
    assert files_of(base) == before
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < 2000
    tuned, model = model_in(folder), model_in(base)
    weights = {
        name.replace("embedding.table", "embedding"): weight
        for name, weight in tuned.base.state_dict().items()
    }
    for name, weight in model.state_dict().items():
        assert torch.equal(weights[name], weight)
    trained = tuned.prompt.weight.clone()
    first = first_prompt(load_run(base).tokenizer, 3, None, 0)
    assert not torch.isclose(trained, tuned.begin_with(first).prompt.weight).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_in_the_same_bits(family: str, bases: Path, tmp_path: Path) -> None:
    def prompt(name: str, stop_at: int | None = None) -> bytes:
        def progress(now: Progress) -> None:
            if now.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        folder = tune(bases / family, tmp_path / name, family=family, progress=progress)
        if stop_at is not None:
            train(resume=folder)
        return (folder / "model.safetensors").read_bytes()

    assert prompt("stopped", 3) == prompt("whole")


def test_several_prompts_share_a_base_and_answer_as_they_were_trained(
    bases: Path, tmp_path: Path
) -> None:
    """A language model reads pairs too, and a prompt that begins as words differs from one that is drawn."""
    folders = [
        tune(bases / "gpt", tmp_path / "text", family="gpt"),
        tune(bases / "gpt", tmp_path / "drawn", task="translation"),
        tune(bases / "gpt", tmp_path / "words", "train.prompt_text=the cat", task="translation"),
    ]
    prompts = [model_in(folder).prompt.weight for folder in folders]
    assert not torch.equal(prompts[1], prompts[2])
    assert len(seqloom.load(folders[0]).generate(["the cat"], seed=1)) == 1
    model = seqloom.load(folders[1])
    assert len(model.predict(["the cat sees", ""])) == 2
    many = model.n_best(["the cat"], strategy="beam", beam=4, n_best=4)
    assert len(many[0]) == 4


def test_a_checkpoint_of_the_hub_is_a_base(tmp_path: Path) -> None:
    hub_model(tmp_path / "hub")
    folder = tune(tmp_path / "hub", tmp_path / "prompt", family="gpt")
    # the model of 32 positions gives 3 of them to the prompt
    assert model_in(folder).context == 29
    assert metrics(folder, data_of("gpt", tmp_path)[1])["tokens"] > 0


def test_the_base_is_found_where_it_is_and_refused_where_it_is_another(
    bases: Path, tmp_path: Path
) -> None:
    place = tmp_path / "a" / "t5"
    shutil.copytree(bases / "t5", place)
    folder = tune(place, tmp_path / "a" / "prompt")
    (tmp_path / "a").rename(tmp_path / "b")
    moved = tmp_path / "b" / "prompt"
    expected = model_in(moved).base.state_dict()
    (tmp_path / "b" / "t5").rename(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match=f"must be at {place} .*but there is none; .*ln -s BASE"):
        load_run(moved)
    shutil.copytree(bases / "transformer", place)
    with pytest.raises(FolderError, match=f"that of {place} has other weights; put it back"):
        load_run(moved)
    (moved / "base").symlink_to(tmp_path / "elsewhere")
    found = model_in(moved).base.state_dict()
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    assert folder != moved


@pytest.mark.parametrize(
    ("settings", "start", "message"),
    [
        (["train.prompt_text=a"], "t5", "prompt_text changes nothing without train.prompt_length"),
        (["train.prompt_length=3"], None, "which --from names, and there is none"),
        ([*PROMPT, "train.freeze=[embedding]"], "t5", "train.freeze changes nothing where"),
        ([*PROMPT, "train.weight_decay=0.5"], "t5", "train.weight_decay changes nothing where"),
        ([*PROMPT, "model.dropout=0.5"], "t5", "model.dropout changes nothing where"),
        ([*PROMPT, "train.prompt_text= "], "t5", "must hold a word"),
        (["train.prompt_length=999"], "gpt", "must leave room for a text in model.context=64"),
        (PROMPT, "recurrent_lm", "a recurrent_lm carries its state on"),
        (["train.prompt_length=0"], "t5", "train.prompt_length must be greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(
    settings: list[str], start: str | None, message: str, bases: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(
            task_of(start or "t5"),
            [data_of(start or "t5", tmp_path)[0]],
            output_dir=tmp_path / "new",
            start=None if start is None else bases / start,
            settings=settings,
        )
    assert not (tmp_path / "new" / "run.yaml").exists()


def test_a_prompt_is_no_whole_model(bases: Path, tmp_path: Path) -> None:
    folder = tune(bases / "t5", tmp_path / "prompt")
    with pytest.raises(UsageError, match=r"this is a prompt for .*t5; name that model"):
        export_model(str(folder), str(tmp_path / "out"))
    with pytest.raises(
        UsageError, match="a training starts from a whole model, but this is a prompt"
    ):
        tune(folder, tmp_path / "second")


def test_a_source_must_leave_room_for_the_prompt(bases: Path, tmp_path: Path) -> None:
    data = tmp_path / "long.tsv"
    data.write_text("source\ttarget\n" + "".join(f"{'the ' * 30}{n}\tcat\n" for n in range(4)))
    base = tmp_path / "gpt"
    train(
        "translation",
        [str(data)],
        output_dir=base,
        model="gpt:tiny",
        settings=["train.max_steps=1", "model.context=42"],
    )
    for length in (1, 30):
        options: dict[str, Any] = {"output_dir": tmp_path / f"{length}", "start": base}
        settings = [f"train.prompt_length={length}", "train.max_steps=1"]
        if length == 1:
            train("translation", [str(data)], settings=settings, **options)
            continue
        with pytest.raises(SeqloomError, match=r"must fit into model.context=42 together"):
            train("translation", [str(data)], settings=settings, **options)


def test_a_prompt_begins_as_words_or_as_common_tokens() -> None:
    tokenizer = train_tokenizer(["the cat sees the dog in the old house"] * 3, "bpe", 300, "none")
    (ids,) = tokenizer.encode(["the cat"])
    assert first_prompt(tokenizer, len(ids) + 1, "the cat", 0) == (*ids, ids[0])
    assert first_prompt(tokenizer, 1, "the cat", 0) == (ids[0],)
    drawn = first_prompt(tokenizer, 200, None, 0)
    assert drawn == first_prompt(tokenizer, 200, None, 0) != first_prompt(tokenizer, 200, None, 1)
    assert min(drawn) >= len(SPECIAL_TOKENS)
    assert max(drawn) < tokenizer.vocabulary_size
