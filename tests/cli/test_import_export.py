"""Models in and out at the command line, and `--from`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of the hub with a vocabulary of bytes."""
    import torch
    from tests.interop.published import GPT, hf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("hub")
    entries = {"<|endoftext|>": 0} | {
        symbol: at for at, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), start=1)
    }
    made = Tokenizer(models.BPE(vocab=entries, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    hf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = hf.GPT2Config(
        **{**GPT, "vocab_size": 257, "n_positions": 40}, bos_token_id=0, eos_token_id=0
    )
    hf.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_hub_directory_goes_in_and_out(command: Command, hub: Path, tmp_path: Path) -> None:
    ran = command("import", hub, tmp_path / "run", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["model"], ran.json["task"]) == ("gpt", "text-generation")
    (note,) = ran.json["notes"]
    assert note.startswith("generation_config.json has no max_length: at most 20 new tokens")
    ran = command("export", tmp_path / "run", tmp_path / "out", "--format", "huggingface")
    assert ran.code == 0, ran.err
    assert "GPT2LMHeadModel" in ran.out
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert command("import", hub, tmp_path / "run").code == 2


def test_from_says_the_model_of_any_verb(command: Command, hub: Path) -> None:
    plain = command("score", hub, "--text", "a dog", "--json")
    assert plain.code == 0, plain.err
    assert command("score", "--text", "a dog", "--json", "--from", hub).out == plain.out
    assert command("score", f"--from={hub}", "--text", "a dog", "--json").out == plain.out
    assert command("models", "--from", hub).code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "hf://no/such-model", "OUT"], "is not in the cache"),
        (["score", "hf://no/such-model", "--text", "a"], "is not in the cache"),
        (
            ["export", "HUB", "OUT", "--format", "keras"],
            "--format must be one of huggingface, elmo, arpa, onnx",
        ),
        (["export", "HUB", "OUT", "--shard-size", "0"], "--shard-size must be at least 1"),
        (["export", "HUB", "x.arpa"], "an ARPA file holds an n-gram model"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    command: Command,
    hub: Path,
    tmp_path: Path,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    ran = command(
        *[
            {"HUB": hub, "OUT": tmp_path / "out", "x.arpa": tmp_path / "x.arpa"}.get(word, word)
            for word in words
        ]
    )
    assert ran.code in (1, 2)
    assert said in ran.err
    assert ran.err.count("\n") == 1
