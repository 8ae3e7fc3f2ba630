"""The run folder: opened whole, or refused with the file named."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import seqloom
from seqloom import files
from seqloom.errors import FolderError, UsageError
from seqloom.runs.new_model import build_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    pairs = [("a b c", "c b a"), ("b c d", "d c b"), ("a d", "d a"), ("c", "c")] * 8
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{s}\t{t}\n" for s, t in pairs))
    sizes = [
        f"model.{name}=8"
        for name in (
            "embedding_width",
            "encoder_width",
            "width",
            "attention_width",
            "readout_width",
        )
    ]
    settings = [
        *sizes,
        "model.tie_output=true",
        "train.max_steps=4",
        "train.evaluate_every=2",
        "data.tokenizer=characters",
    ]
    seqloom.train(
        "translation", [str(folder / "pairs.tsv")], output_dir=folder / "run", settings=settings
    )
    return folder / "run"


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def reseal(folder: Path) -> None:
    """Makes the manifest agree again, so that the check behind it is reached."""
    content = files.read_json(folder / "manifest.json")
    for name in content["files"]:
        path = folder / name
        content["files"][name] = {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
    files.write_json(folder / "manifest.json", content)


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (content | values).items() if v != "gone"}))


def test_a_folder_holds_what_the_field_expects(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "seq2seq"
    assert config["eos_token_id"] == 2
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
        "run.yaml",
        "metrics.jsonl",
        "data.json",
    ):
        assert (folder / name).is_file()
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: seqloom")
    assert "pairs.tsv" in card


def test_opened_twice_it_answers_the_same_and_ties_stay_tied(folder: Path) -> None:
    one, two = seqloom.load(folder), seqloom.load(folder)
    assert one.predict(["a b", "", "d"]) == two.predict(["a b", "", "d"])
    model: Any = one.run.model
    assert model.output.weight is model.target_embedding.weight


def test_while_it_trains_it_opens_at_its_best_checkpoint(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "model.safetensors").unlink()
    assert seqloom.load(folder).run.weights.parent.name.startswith("checkpoint-")


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors", "run.yaml"],
)
def test_one_flipped_bit_is_found_and_the_file_named(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(FolderError, match=f"{name} is damaged"):
        seqloom.load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match=r"tokenizer.json is missing"):
        seqloom.load(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "os.system"}, "model must be one of ngram, "),
        ({"width": 9}, "the weights must be this model's"),
        ({"vocabulary_size": 10**12}, "the weights must be this model's"),
        ({"width": -1}, "model.width must be at least 1"),
        ({"width": "eight"}, "model.width must be a valid integer"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "no setting model.auto_map"),
        ({"encoder_layers": 10**9}, "layers must be at most the number of tensors"),
        ({"vocabulary_size": "gone"}, "must say vocabulary_size, but does not"),
        ({"task": "gone"}, "must say task, but does not"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    folder: Path, values: dict[str, Any], message: str
) -> None:
    change(folder / "config.json", **values)
    reseal(folder)
    with pytest.raises(FolderError, match=message):
        seqloom.load(folder)


def test_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["output.bias"][3] = torch.nan
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model.safetensors")
    reseal(folder)
    with pytest.raises(FolderError, match=r"output.bias"):
        seqloom.load(folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04\x95", b"\xff" * 100])
def test_weights_that_are_no_safetensors_are_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(content)
    reseal(folder)
    with pytest.raises(FolderError, match="must be a safetensors file"):
        seqloom.load(folder)


def test_no_folder_and_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FolderError, match="must be a run folder"):
            seqloom.load(path)


def test_loading_runs_no_code_and_leaves_the_folder_alone(folder: Path) -> None:
    seen: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in (
            "pickle.find_class",
            "os.system",
            "subprocess.Popen",
            "socket.connect",
            "ctypes.dlopen",
        ):
            seen.append(event)
        if (
            watching
            and event == "open"
            and str(arguments[0]).startswith(str(folder))
            and "w" in str(arguments[1])
        ):
            seen.append(f"write {arguments[0]}")

    seqloom.load(folder)  # what is imported late is imported now
    sys.addaudithook(hook)
    seqloom.load(folder)
    watching = False
    assert seen == []


def test_unknown_sizes_and_fields_are_named() -> None:
    with pytest.raises(UsageError, match="size of seq2seq must be one of tiny"):
        build_model("seq2seq", "huge", 20, {})
    with pytest.raises(UsageError, match=r"model.dropot; did you mean model.dropout"):
        build_model("seq2seq", "tiny", 20, {"dropot": 0.1})
    with pytest.raises(UsageError, match=r"model.dropout must be in .*dot attention needs"):
        build_model("seq2seq", "tiny", 20, {"dropout": 2.0, "cell": "lstm", "attention": "dot"})


@pytest.mark.parametrize("name", ["vocabulary_size", "pad_id"])
def test_what_the_tokenizer_decides_cannot_be_set(name: str) -> None:
    with pytest.raises(UsageError, match=f"model.{name} comes from the tokenizer"):
        build_model("seq2seq", "tiny", 20, {name: 7})


def test_decode_settings_are_checked_whoever_changes_them(folder: Path) -> None:
    bundle = seqloom.load(folder).run
    assert bundle.decode_settings({"beam": 2}).beam == 2
    for changes in ({"beam": 2.0}, {"beam": 0}, {"n_best": 9}, {"bean": 2}):
        with pytest.raises(UsageError, match=r"decode\."):
            bundle.decode_settings(changes)
