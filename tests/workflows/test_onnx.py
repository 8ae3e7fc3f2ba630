"""Models as ONNX graphs: every family against itself in torch, greedy decoding through onnxruntime, the
example that is written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seqloom.config import DataConfig, DecodeConfig, RunConfig
from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.strategies import BeamSearch
from seqloom.errors import MissingExtraError, SeqloomError, UsageError
from seqloom.interop.onnx import check
from seqloom.interop.onnx import graph as graph_module
from seqloom.interop.onnx.graph import ModelGraphs, Value, general, write_graph
from seqloom.interop.onnx.models import cases, exportable
from seqloom.models.bert import Bert, BertConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.models.vit import ViT, ViTConfig
from seqloom.runs import run_folder
from seqloom.runs.write_run import write_finished_run
from seqloom.text.special_tokens import BOS, EOS, PAD
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows import onnx

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["ein Hund läuft", "zwei Hunde laufen", "a dog runs, two dogs run"]
TOKENIZER = train_tokenizer(TEXTS, "characters", 300)
SIZE = TOKENIZER.vocabulary_size
MOST = 12


def drawn(model: Any, seed: int = 0) -> Any:
    """With every weight and bias drawn at random, so that no output is near another and no path is near 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def language_model(**changes: Any) -> RecurrentLM:
    sizes: dict[str, Any] = {"embedding_width": 6, "width": 8, "layers": 2, "tie_output": False}
    return RecurrentLM(RecurrentLMConfig(vocabulary_size=SIZE, **sizes | changes))


def recurrent(**changes: Any) -> Seq2Seq:
    sizes: dict[str, Any] = {
        "embedding_width": 6,
        "encoder_width": 5,
        "width": 8,
        "attention_width": 7,
        "readout_width": 9,
    }
    return Seq2Seq(Seq2SeqConfig(vocabulary_size=SIZE, **sizes | changes))


def transformer(**changes: Any) -> Transformer:
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    return Transformer(TransformerConfig(vocabulary_size=SIZE, **sizes | changes))


BART: dict[str, Any] = {
    "positions": "learned",
    "position_offset": 2,
    "context": 9,
    "norm": "after",
    "embedding_norm": True,
    "pad_id": -1,
}
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "lstm, two widths, joined": lambda: language_model(last_width=5, documents="joined"),
    "lstm, projected and normalised": lambda: language_model(
        projection=4, normalisation="layer", connection="residual"
    ),
    "gru-torch, adaptive": lambda: language_model(
        cell="gru-torch", output="adaptive", output_cutoffs=(20,)
    ),
    "elman, highway": lambda: language_model(cell="elman", connection="highway"),
    "seq2seq, gru, additive": lambda: recurrent(cell="gru"),
    "seq2seq, lstm, bilinear, reversed": lambda: recurrent(
        cell="lstm",
        attention="bilinear",
        attend_from="current",
        reverse_source=True,
        encoder_layers=2,
        decoder_layers=2,
    ),
    "seq2seq, no attention": lambda: recurrent(cell="elman", attention="none"),
    "gpt, rotary, norm after": lambda: GPT(
        GPTConfig(
            vocabulary_size=SIZE,
            width=8,
            heads=2,
            layers=2,
            positions="rotary",
            norm="after",
            pad_id=-1,
        )
    ),
    "transformer": transformer,
    "bart": lambda: transformer(**BART),
    "t5": lambda: T5(
        T5Config(
            vocabulary_size=SIZE,
            width=8,
            heads=2,
            head_width=6,
            encoder_layers=1,
            decoder_layers=2,
            pad_id=-1,
        )
    ),
    "bert": lambda: Bert(BertConfig(vocabulary_size=SIZE, width=8, heads=2, layers=1, pooler=True)),
    "electra": lambda: Bert(
        BertConfig(
            vocabulary_size=SIZE,
            width=8,
            heads=2,
            layers=1,
            embedding_width=6,
            head="replaced-token",
        )
    ),
    "roberta": lambda: Bert(
        BertConfig(
            vocabulary_size=SIZE,
            width=8,
            heads=2,
            layers=1,
            segments=1,
            position_offset=2,
            context=5,
        )
    ),
    "vit": lambda: ViT(
        ViTConfig(
            labels=("cat", "dog"),
            image_size=8,
            patch_size=4,
            channels=1,
            width=8,
            heads=2,
            layers=1,
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_does_what_its_model_does(family: str, tmp_path: Path) -> None:
    model = drawn(FAMILIES[family]())
    expected = cases(model)
    found = exportable(model)
    for graph in found.graphs:
        write_graph(graph, tmp_path)
    assert check.check(found, expected, tmp_path) < check.TOLERANCE / 2


def written_run(place: Path, model: Any, task: str, name: str) -> Path:
    run = RunConfig(
        task=task,
        output_dir=str(place),
        model={"name": name, "size": "tiny"},
        data=DataConfig(train=("none",)),
        decode=DecodeConfig(),
    )
    place.mkdir()
    write_finished_run(place, run, model, TOKENIZER, [], None)
    return place


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Any, Path, dict[str, Any]]]:
    """A language model and an encoder-decoder: (the model, the folder of its graphs, what the export
    said)."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("onnx")
    models = {
        "gpt": (
            drawn(
                GPT(
                    GPTConfig(
                        vocabulary_size=SIZE,
                        width=8,
                        heads=2,
                        layers=1,
                        context=32,
                        tie_output=False,
                    )
                )
            ),
            "text-generation",
        ),
        "seq2seq": (drawn(recurrent(cell="elman", bidirectional=False), seed=1), "translation"),
    }
    made = {}
    for name, (model, task) in models.items():
        folder = written_run(place / name, model, task, name)
        made[name] = (
            model,
            place / f"{name}-onnx",
            onnx.export_onnx(str(folder), str(place / f"{name}-onnx")),
        )
    return made


def greedy(folder: Path, prompt: list[int], source: list[int] | None) -> list[int]:
    """Greedy decoding by numpy and onnxruntime alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    about = json.loads((folder / "onnx.json").read_text("utf-8"))
    step = onnxruntime.InferenceSession(folder / "step.onnx", options)
    names = [value["name"] for value in about["state"]]
    known: dict[str, Any] = {
        value["name"]: np.zeros(
            [{"rows": 1, "past": 0}.get(size, size) for size in value["shape"]], value["type"]
        )
        for value in about["state"]
    }
    if source is not None:
        encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options)
        known |= zip(
            (value.name for value in encoder.get_outputs()),
            encoder.run(None, {"source": np.array([source])}),
            strict=True,
        )
    tokens, written = prompt, list[int]()
    while len(written) < MOST and EOS not in written:
        logits, *after = step.run(None, {"tokens": np.array([tokens]), **known})
        known |= zip(names, after, strict=True)
        tokens = [int(logits[0].argmax())]
        written += tokens
    return written


def generated(model: Any, state: Any, prompt: list[int]) -> list[int]:
    ((best,),) = generate(
        model,
        state,
        [prompt],
        [MOST],
        GenerationOptions(strategy=BeamSearch(width=1), eos=EOS, pad=PAD),
    )
    return [*best.tokens, *([EOS] if best.finished else [])]


def test_greedy_decoding_of_a_language_model_is_that_of_generate(
    exported: dict[str, tuple[Any, Path, Any]],
) -> None:
    model, folder, _ = exported["gpt"]
    texts = TOKENIZER.encode(["", "a dog", "zwei Hunde laufen"])
    found = [greedy(folder, [BOS, *ids], None) for ids in texts]
    assert found == [generated(model, None, [BOS, *ids]) for ids in texts]
    assert len({tuple(ids) for ids in found}) > 1


def test_greedy_decoding_of_an_encoder_decoder_is_that_of_generate(
    exported: dict[str, tuple[Any, Path, Any]],
) -> None:
    model, folder, _ = exported["seq2seq"]
    sources = [[*ids, EOS] for ids in TOKENIZER.encode(["a", "a dog", "zwei Hunde laufen"])]
    found = [greedy(folder, [BOS], source) for source in sources]
    with torch.inference_mode():
        assert found == [
            generated(model, model.encode(torch.tensor([source])), [BOS]) for source in sources
        ]
    assert len({tuple(ids) for ids in found}) > 1


@pytest.mark.parametrize("name", ["gpt", "seq2seq"])
def test_the_written_example_runs(
    name: str, exported: dict[str, tuple[Any, Path, dict[str, Any]]]
) -> None:
    folder = exported[name][1]
    (program,) = re.findall(
        r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL
    )
    assert "seqloom" not in program
    assert "torch" not in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("\n")


@pytest.mark.parametrize("name", ["gpt", "seq2seq"])
def test_a_graph_holds_no_path_of_the_machine_that_wrote_it(
    name: str, exported: dict[str, tuple[Any, Path, dict[str, Any]]]
) -> None:
    for graph in exported[name][1].glob("*.onnx"):
        assert b"seqloom" not in graph.read_bytes()


@pytest.mark.parametrize("name", ["gpt", "seq2seq"])
def test_onnx_json_says_what_the_graphs_take_and_give(
    name: str, exported: dict[str, tuple[Any, Path, dict[str, Any]]]
) -> None:
    import onnxruntime

    _, folder, said = exported[name]
    assert said["files"] == sorted(path.name for path in folder.iterdir())
    assert said["largest_difference"] < 1e-5
    about = json.loads((folder / "onnx.json").read_text("utf-8"))
    assert about["special_ids"]["bos"] == [BOS]
    assert (folder / run_folder.TOKENIZER).read_text("utf-8") == TOKENIZER.to_json()
    for graph in about["graphs"].values():
        session = onnxruntime.InferenceSession(folder / graph["file"])
        for told, true in (
            (graph["inputs"], session.get_inputs()),
            (graph["outputs"], session.get_outputs()),
        ):
            assert [(value["name"], value["shape"]) for value in told] == [
                (value.name, value.shape) for value in true
            ]
    step = about["graphs"]["step"]
    kept = [value["name"] for value in about["state"]]
    assert [value["name"] for value in step["inputs"]][1 : len(kept) + 1] == kept
    assert [value["name"] for value in step["outputs"]] == [
        "logits",
        *(f"next_{state}" for state in kept),
    ]


def test_an_export_that_disagrees_leaves_nothing(
    exported: dict[str, tuple[Any, Path, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model, folder, _ = exported["gpt"]
    changed = written_run(
        tmp_path / "run", drawn(GPT(model.config), seed=1), "text-generation", "gpt"
    )
    before = sorted(tmp_path.iterdir())
    # that of other weights
    monkeypatch.setattr(
        onnx, "write_graph", lambda graph, place: shutil.copy(folder / graph.file, place)
    )
    with pytest.raises(
        SeqloomError,
        match=r"^step\.onnx: must do what the model does .* logits differs by .* at call 1 ",
    ):
        onnx.export_onnx(str(changed), str(tmp_path / "out"))
    assert sorted(tmp_path.iterdir()) == before
    assert capfd.readouterr() == ("", "")


def test_a_small_difference_at_one_place_is_found(
    exported: dict[str, tuple[Any, Path, Any]],
) -> None:
    model, folder, _ = exported["gpt"]
    expected = cases(model)
    found = exportable(GPT(model.config))
    check.check(found, expected, folder)
    logits = expected[-1][-1].outputs["logits"]
    logits[-1, -1] += 2 * check.TOLERANCE * logits.abs().max()
    with pytest.raises(SeqloomError, match="at call 3 of shape"):
        check.check(found, expected, folder)


def test_not_a_number_is_a_difference(exported: dict[str, tuple[Any, Path, Any]]) -> None:
    model, folder, _ = exported["gpt"]
    expected = cases(model)
    expected[0][0].outputs["logits"][0, 0] = torch.nan
    with pytest.raises(SeqloomError, match="differs by nan"):
        check.check(exportable(GPT(model.config)), expected, folder)


def test_what_is_refused(
    exported: dict[str, tuple[Any, Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="must be new or empty"):
        onnx.export_onnx("none", str(exported["gpt"][1]))
    with pytest.raises(UsageError, match=r"without model\.maxent"):
        exportable(language_model(maxent=3, maxent_size=1000))
    with pytest.raises(UsageError, match=r"without model\.normalisation=batch"):
        exportable(recurrent(normalisation="batch"))
    with pytest.raises(UsageError, match=r"ONNX holds RecurrentLM, .* but this is a Linear"):
        exportable(nn.Linear(1, 1))
    monkeypatch.setattr(
        graph_module, "find_spec", lambda name: None if name == "onnxscript" else name
    )
    with pytest.raises(MissingExtraError, match=r"seqloom\[onnx\]"):
        onnx.export_onnx("none", str(tmp_path / "out"))


def test_the_general_case() -> None:
    with general():
        assert not torch.ones(2).all()
        assert torch.zeros(2).any()
        assert torch.ones(2, 3).all(dim=0).shape == (3,)
    assert torch.ones(2).all()


def test_a_state_starts_without_a_past() -> None:
    keys = Value("keys_0", ("rows", 2, "past", 4))
    assert keys.zeros({"rows": 3, "past": 0}).shape == (3, 2, 0, 4)
    assert ModelGraphs(None, None).state == ()
