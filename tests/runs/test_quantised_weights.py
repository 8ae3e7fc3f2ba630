"""`decode.weights`: what it changes, where it cannot be, and that it is never ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom import load
from seqloom.config import DecodeConfig
from seqloom.errors import UsageError
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.native.library import OFF, library
from seqloom.protocols import State
from seqloom.runs.quantised_weights import QuantisedModel, stored_weights
from seqloom.runs.run_folder import LoadedRun, load_run
from seqloom.stored_weight import QuantisedWeight
from seqloom.tasks.language_modeling.language_model import LanguageModel
from seqloom.text.special_tokens import BOS
from seqloom.text.tokenizers import train_tokenizer
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.models import model_of_run
from seqloom.workflows.stored_weights import export_stored
from seqloom.workflows.train import train

compiled = pytest.mark.skipif(
    library() is None, reason="the compiled step needs a C++ compiler when the project is installed"
)
TOKENIZER = train_tokenizer(["a dog runs", "two dogs run"], "bytes", 300)
SIZE = TOKENIZER.vocabulary_size


def gpt(**changes: Any) -> GPT:
    torch.manual_seed(0)
    options: dict[str, Any] = {"context": 12, "width": 16, "layers": 1, "heads": 2}
    return GPT(GPTConfig(vocabulary_size=SIZE, **options | changes)).eval()


def recurrent(**changes: Any) -> RecurrentLM:
    return RecurrentLM(RecurrentLMConfig(vocabulary_size=SIZE, width=8, **changes)).eval()


def run_of(model: nn.Module, **decode: Any) -> LoadedRun:
    return LoadedRun(
        folder=Path("runs/tales"),
        task="text-generation",
        model_type="gpt",
        model=model,
        tokenizer=TOKENIZER,
        decode=DecodeConfig(**decode),
        weights=Path("none"),
    )


@pytest.fixture
def switched_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library.cache_clear()
    monkeypatch.setenv(OFF, "0")
    yield
    library.cache_clear()


@compiled
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (recurrent(normalisation="layer"), "its layers are normalised"),
        (nn.Linear(1, 1), "only gpt, recurrent_lm, seq2seq, transformer, t5"),
        (gpt(output="adaptive", tie_output=False), "model.output=full"),
        (gpt().double(), "its weights are not in float32 on a CPU"),
    ],
)
def test_where_it_cannot_be_one_line_says_why(model: nn.Module, reason: str) -> None:
    with pytest.raises(UsageError, match=f"must be float32 here, but is int8: .*{reason}"):
        run_of(model).decode_settings({"weights": "int8"})


@pytest.mark.usefixtures("switched_off")
def test_without_the_compiled_step_it_is_refused_and_float32_is_not() -> None:
    run = run_of(gpt(), weights="bfloat16")
    with pytest.raises(UsageError, match="is bfloat16: SEQLOOM_NATIVE=0 forbids"):
        run.decode_settings({})
    assert run.decoder(run.decode_settings({"weights": "float32"})) is run.model


@dataclass
class Folder:
    run: str
    text: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    place = tmp_path_factory.mktemp("stored")
    (place / "text.txt").write_text("a few words of text\n" * 40)
    text = str(place / "text.txt")
    settings = ["data.tokenizer=bytes", "train.max_steps=2", "decode.weights=int8"]
    train(
        "text-generation",
        [text],
        output_dir=place / "run",
        model="gpt:tiny",
        settings=settings,
    )
    return Folder(str(place / "run"), text)


@compiled
def test_every_verb_that_writes_uses_what_the_folder_says(
    trained: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Tensor] = []
    original = QuantisedModel.read

    def seen(self: QuantisedModel, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        read.append(tokens)
        return original(self, tokens, state)

    monkeypatch.setattr(QuantisedModel, "read", seen)
    model = LanguageModel(load_run(trained.run))
    uses: list[Callable[[], object]] = [
        lambda: model.generate(["a few"], max_length=3),
        lambda: list(model.stream("a few", max_length=3)),
        lambda: model.complete("a fe"),
    ]
    for use in uses:
        use()
        assert read
        read.clear()
    model.generate(["a few"], max_length=3, weights="float32")
    assert not read


@compiled
@pytest.mark.parametrize("replaced", [False, True])
def test_float32_weights_are_given_back_to_their_file(trained: Folder, replaced: bool) -> None:
    run = load_run(trained.run)
    if replaced:  # nothing in the file is what is in memory
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.add_(1e-3)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    places = {name: value.data_ptr() for name, value in run.model.state_dict().items()}
    with torch.inference_mode():
        decoder = run.decoder(run.decode_settings({}))
    assert not any(parameter.is_inference() for parameter in run.model.parameters())
    assert run.decoder(run.decode_settings({})) is decoder
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name])
        # the file is opened once more, and nothing of it was read but for a comparison
        assert (value.data_ptr() != places[name]) is not replaced


@compiled
def test_evaluate_measures_what_is_asked_for(trained: Folder, notices: list[str]) -> None:
    losses = {
        weights: evaluate(trained.run, [trained.text], {}, {"weights": weights}).metrics["loss"]
        for weights in ("float32", "bfloat16", "int8")
    }
    assert len({*losses.values()}) == 3
    assert losses["int8"] == pytest.approx(losses["float32"], rel=0.01)
    assert "measured with weights stored in int8" in notices
    differs = (
        "measured with weights stored in float32; texts are written with int8 (decode.weights)"
    )
    assert differs in notices


def test_a_training_of_another_family_refuses_it(trained: Folder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"decode\.weights needs a model with a compiled step"):
        train(
            "text-generation",
            [trained.text],
            output_dir=tmp_path / "run",
            model="ngram",
            settings=["decode.weights=int8"],
        )


@compiled
def test_a_recurrent_model_writes_and_is_measured_with_them(
    trained: Folder, tmp_path: Path
) -> None:
    settings = ["data.tokenizer=bytes", "train.max_steps=2", "decode.weights=int8"]
    run = str(tmp_path / "run")
    train(
        "text-generation",
        [trained.text],
        output_dir=run,
        model="recurrent_lm:tiny",
        settings=settings,
    )
    assert model_of_run(run)["step of decoding"].startswith("compiled")
    model = LanguageModel(load_run(run))
    (texts,) = model.generate(["a few"], strategy="greedy", max_length=20)
    (greedy,) = model.run.quantised.values()
    state, read = None, torch.tensor([[BOS, *model.run.tokenizer.encode(["a few"])[0]]])
    written = []
    with torch.inference_mode():
        for _ in range(3):
            logits, state = greedy(read, state)
            read = logits[:, -1:, 4:].argmax(dim=-1) + 4
            written.append(int(read))
    assert texts[0].text.startswith(model.run.tokenizer.decode(written))
    losses = {
        weights: evaluate(run, [trained.text], {}, {"weights": weights}).metrics["loss"]
        for weights in ("float32", "int8")
    }
    assert losses["int8"] != losses["float32"]
    assert losses["int8"] == pytest.approx(losses["float32"], rel=0.01)


@compiled
@pytest.mark.parametrize("model", ["gpt", "recurrent_lm", "seq2seq", "transformer", "t5"])
def test_a_model_of_pairs_writes_and_is_measured_with_them(model: str, tmp_path: Path) -> None:
    sources = [f"{n * n * n} {n}" for n in range(9)]
    lines = [f"{source}\tof {len(source)} words" for source in sources]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    run, pairs = str(tmp_path / "run"), [str(tmp_path / "pairs.tsv")]
    settings = ["data.tokenizer=bytes", "train.max_steps=2", "decode.weights=bfloat16"]
    train("translation", pairs, output_dir=run, model=f"{model}:tiny", settings=settings)
    translator = load(run)
    written = translator.predict(sources, max_length=9)
    found = evaluate(run, pairs, {}, {"max_length": 9})
    assert translator.run.quantised.keys() == {"bfloat16"}
    # so does the float32 model with the rounded weights
    with torch.no_grad():
        for weight in stored_weights(translator.model):
            weight.copy_(QuantisedWeight.of(weight, "bfloat16").restored())
    assert translator.predict(sources, max_length=9, weights="float32") == written
    whole = evaluate(run, pairs, {}, {"max_length": 9, "weights": "float32"})
    assert found.metrics["loss"] != whole.metrics["loss"]
    assert found.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=0.01)
    # and so does a folder that holds only these
    stored = str(tmp_path / "stored")
    export_stored(run, stored, "bfloat16")
    for weights in ("bfloat16", "float32"):
        assert load(stored).predict(sources, max_length=9, weights=weights) == written
    assert evaluate(stored, pairs, {}, {"max_length": 9}).metrics == found.metrics


@compiled
def test_a_folder_says_how_it_decodes(trained: Folder) -> None:
    said = model_of_run(trained.run)
    assert said["step of decoding"].startswith("compiled, for ")
    assert said["weights in decoding"] == "int8"


@pytest.mark.usefixtures("switched_off")
def test_a_folder_says_why_it_does_not(trained: Folder) -> None:
    said = model_of_run(trained.run)["step of decoding"]
    assert said == "by torch: SEQLOOM_NATIVE=0 forbids the compiled step"
