"""Entries that a user adds to a tokenizer: never split, with rows of their own, kept in exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.tasks.test_starting_point import STILL, WORDS, data_of, hub_model, task_of
from transformers import AutoTokenizer, GPT2LMHeadModel

from seqloom.errors import UsageError
from seqloom.runs.run_folder import load_run
from seqloom.text.tokenizer_kinds import KINDS
from seqloom.text.tokenizers import TextTokenizer, train_tokenizer
from seqloom.workflows.exchange import export_model
from seqloom.workflows.train import train

ADDED = ("<user>", "New York", "cat-like")
SETTING = "data.add_tokens=[<user>, New York, cat-like]"
TEXTS = (
    "the <user> cat",
    "the<user>cat <user><user>",
    "in New York cat-like",
    "<user>",
    "new york",
)
SEEN = ["the cat sat, in the new old house york dogs < user > like- "] * 3
FAMILIES = ("seq2seq", "transformer", "t5", "gpt", "recurrent_lm")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_ours_finds_them_whole(kind: str) -> None:
    before = train_tokenizer(SEEN, kind, 320)
    tokenizer = before.with_added_tokens(ADDED)
    first = before.vocabulary_size
    assert tokenizer.vocabulary_size == first + 3
    for text in TEXTS:
        (ids,) = tokenizer.encode([text])
        assert [i - first for i in ids if i >= first] == [
            number for word in text.replace("New York", "New_York").split() for number in _in(word)
        ]
    spaced = "the <user> cat"
    assert tokenizer.decode(tokenizer.encode([spaced])[0]) == spaced
    again = TextTokenizer.from_json(tokenizer.to_json())
    assert (again.to_json(), again.token_bytes) == (tokenizer.to_json(), tokenizer.token_bytes)


def _in(word: str) -> list[int]:
    word = word.replace("New_York", "New York")
    return [number for number, token in enumerate(ADDED) for _ in range(word.count(token))]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_typed_may_still_become_one(kind: str) -> None:
    """Whatever comes next, the ids of a stable prefix stay."""
    tokenizer = train_tokenizer(SEEN, kind, 320).with_added_tokens(ADDED)
    for text in (*TEXTS, "the cat sat New York cat"):
        whole = tokenizer.encode([text])[0]
        for end in range(len(text) + 1):
            ids, _ = tokenizer.stable_prefix(text[:end])
            assert whole[: len(ids)] == ids, text[:end]


@pytest.mark.parametrize("family", FAMILIES)
def test_new_rows_begin_at_the_mean_of_the_others(family: str, tmp_path: Path) -> None:
    training, validation = data_of(family, tmp_path)
    given: dict[str, Any] = {"validation": [validation]}
    common = ["train.max_steps=2", "decode.max_length=9"]
    train(
        task_of(family),
        [training],
        output_dir=tmp_path / "base",
        model=f"{family}:tiny",
        settings=common,
        **given,
    )
    train(
        task_of(family),
        [training],
        output_dir=tmp_path / "run",
        start=tmp_path / "base",
        settings=[*STILL, SETTING],
        **given,
    )
    base, run = load_run(tmp_path / "base"), load_run(tmp_path / "run")
    config: Any = run.model.config
    size = base.tokenizer.vocabulary_size
    assert run.tokenizer.encode(["<user>"]) == [[size]]
    assert config.vocabulary_size == size + 3
    before, after = base.model.state_dict(), run.model.state_dict()
    grown = [name for name in before if before[name].shape != after[name].shape]
    assert grown
    for name, tensor in before.items():
        assert torch.equal(after[name][: len(tensor)] if tensor.dim() else after[name], tensor)
        if name in grown and tensor.is_floating_point():
            assert torch.allclose(
                after[name][size:], tensor.mean(dim=0).expand(3, *tensor.shape[1:])
            )


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("lora", [False, True])
def test_they_survive_an_export_and_are_those_of_transformers(lora: bool, tmp_path: Path) -> None:
    hub_model(tmp_path / "hub")
    training, validation = data_of("gpt", tmp_path)
    train(
        "text-generation",
        [training],
        validation=[validation],
        output_dir=tmp_path / "run",
        start=tmp_path / "hub",
        settings=["train.max_steps=2", SETTING, *(["train.lora_rank=2"] if lora else [])],
    )
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "hub")
    theirs.add_tokens(list(ADDED))
    export_model(str(tmp_path / "run"), str(tmp_path / "export"))
    exported: Any = AutoTokenizer.from_pretrained(tmp_path / "export")
    run, again = load_run(tmp_path / "run"), load_run(tmp_path / "export")
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        for tokenizer in (run.tokenizer, again.tokenizer):
            assert tokenizer.encode([text]) == [ids]
            assert tokenizer.decode(ids) == text == theirs.decode(ids)
        assert exported(text, add_special_tokens=False).input_ids == ids
        assert exported.decode(ids) == text
    model: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "export")
    batch = torch.tensor([run.tokenizer.encode(["the <user> cat"])[0]])
    with torch.no_grad():
        wanted = run.model(batch)[0]
        assert torch.allclose(model(batch).logits, wanted, rtol=0, atol=1e-6)
        if lora:
            base: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "hub")
            base.resize_token_embeddings(run.tokenizer.vocabulary_size)
            adapter = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")
            assert torch.allclose(adapter(batch).logits, wanted, rtol=0, atol=1e-6)


def test_a_new_tokenizer_has_them_and_an_export_too(tmp_path: Path) -> None:
    training, validation = data_of("gpt", tmp_path)
    train(
        "text-generation",
        [training],
        validation=[validation],
        output_dir=tmp_path / "run",
        model="gpt:tiny",
        settings=["train.max_steps=2", SETTING],
    )
    export_model(str(tmp_path / "run"), str(tmp_path / "export"))
    exported: Any = AutoTokenizer.from_pretrained(tmp_path / "export")
    tokenizer = load_run(tmp_path / "run").tokenizer
    for text in TEXTS:
        (ids,) = tokenizer.encode([text])
        assert exported(text, add_special_tokens=False).input_ids == ids
        assert exported.decode(ids) == text == tokenizer.decode(ids)


def test_a_task_with_a_head_has_them(tmp_path: Path) -> None:
    hub_model(tmp_path / "hub")
    labelled = tmp_path / "labelled.tsv"
    rows = [f"the <user> {word}\t{word in WORDS[:6]}" for word in WORDS * 2]
    labelled.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    options: dict[str, Any] = {"validation": [str(labelled)]}
    train(
        "text-classification",
        [str(labelled)],
        output_dir=tmp_path / "run",
        start=tmp_path / "hub",
        settings=["train.max_steps=2", "train.batch_rows=8", SETTING],
        **options,
    )
    run, hub = load_run(tmp_path / "run"), load_run(tmp_path / "hub")
    config: Any = run.model.config
    size = hub.tokenizer.vocabulary_size
    assert run.tokenizer.encode(["<user>New York"]) == [[size, size + 1]]
    # the entries, then three special tokens
    assert config.encoder["vocabulary_size"] == size + 6
    with pytest.raises(UsageError, match="special tokens after those of its tokenizer"):
        train(
            "text-classification",
            [str(labelled)],
            output_dir=tmp_path / "next",
            start=tmp_path / "run",
            settings=["data.add_tokens=[<other>]"],
            **options,
        )


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("[the]", "must be new, but there is"),
        ("[<user>, <user>]", "must differ"),
        ("['  ']", "must not be blank"),
        ("[</s>]", "must be new"),
        ("[ABC, abc]", "another one is in it"),
    ],
)
def test_what_cannot_be_added_is_refused(tokens: str, said: str, tmp_path: Path) -> None:
    training, validation = data_of("gpt", tmp_path)
    with pytest.raises(UsageError, match=said):
        train(
            "text-generation",
            [training],
            validation=[validation],
            output_dir=tmp_path / "run",
            model="gpt:tiny",
            settings=["data.normalisation=lower", f"data.add_tokens={tokens}"],
        )
    assert not (tmp_path / "run" / "run.yaml").exists()
