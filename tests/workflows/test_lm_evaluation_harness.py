"""The model of lm-evaluation-harness, against a stand-in for the harness; `benchmarks/prompts.py` runs it
beside the real one."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import seqloom
from seqloom.errors import MissingExtraError, UsageError
from seqloom.evaluation.perplexity import score_texts

MODULE = "seqloom.workflows.lm_evaluation_harness"
ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "tests" / "fixtures" / "runs"


class Instance(NamedTuple):
    """A request of the harness."""

    args: tuple[Any, ...]


class HarnessModel:
    """What the harness has as the base of its models."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our module with the parts of the harness that it uses; `registered` has the models by name."""
    registered: dict[str, Any] = {}

    def register_model(name: str) -> Any:
        return lambda kind: registered.setdefault(name, kind)

    parts = {name: ModuleType(name) for name in ("lm_eval", "lm_eval.models", "lm_eval.api")}
    model, registry = ModuleType("lm_eval.api.model"), ModuleType("lm_eval.api.registry")
    vars(model)["LM"], vars(registry)["register_model"] = HarnessModel, register_model
    for name, module in {**parts, model.__name__: model, registry.__name__: registry}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE), registered
    sys.modules.pop(MODULE, None)


def test_the_harness_finds_the_model_by_its_name_and_by_an_entry_point(harness: Any) -> None:
    module, registered = harness
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert registered == {"seqloom": module.SeqloomLM}
    assert project["entry-points"]["lm_eval.models"] == {"seqloom": f"{MODULE}:SeqloomLM"}
    assert project["scripts"]["seqloom-lm-eval"] == f"{MODULE}:main"
    assert callable(module.main)


@pytest.mark.parametrize("name", ["text-gpt", "text-ngram", "text-mixture"])
def test_the_three_questions_of_the_harness_are_answered(harness: Any, name: str) -> None:
    model = harness[0].SeqloomLM(str(RUNS / name), device="cuda:0", batch_size=4)
    run = seqloom.load(RUNS / name).run

    def log_prob(text: str) -> float:
        (ids,) = run.tokenizer.encode([text])
        return score_texts(run.model, [ids], run.tokenizer.special_ids)[0].prefix

    requests = [("the red", " dog"), ("the red", " cat sees"), ("", "the dog")]
    found = model.loglikelihood([Instance(args) for args in requests])
    for (context, continuation), (value, _) in zip(requests, found, strict=True):
        expected = log_prob(context + continuation) - (log_prob(context) if context else 0)
        assert value == pytest.approx(expected, abs=1e-4)
    rolling = model.loglikelihood_rolling([Instance(("the red dog",)), Instance(("a cat",))])
    assert rolling == pytest.approx([log_prob("the red dog"), log_prob("a cat")], abs=1e-4)
    (text,) = model.generate_until(
        [Instance(("the red", {"until": ["\n"], "max_gen_toks": 3, "temperature": 0.0}))]
    )
    (greedy,) = model.loglikelihood([Instance(("the red", text))])
    assert greedy[1]


def test_a_model_of_text_pairs_has_no_likelihood_of_a_text_alone(harness: Any) -> None:
    model = harness[0].SeqloomLM(str(RUNS / "translation-t5"))
    ((value, _),) = model.loglikelihood([Instance(("a dog", " Hund"))])
    assert value < 0
    with pytest.raises(UsageError, match="is a model of translation; choose tasks with answers"):
        model.loglikelihood_rolling([Instance(("a",))])


def test_generation_options_become_settings_of_decoding(harness: Any) -> None:
    settings = harness[0].decode_settings
    assert settings({"until": "\n\n", "do_sample": False, "temperature": 0.7}) == {
        "stop": ["\n\n"],
        "max_length": 256,
    }
    assert settings({"do_sample": True, "top_p": 0.9, "max_gen_toks": 5}) == {
        "stop": [],
        "max_length": 5,
        "strategy": "sample",
        "top_p": 0.9,
    }
    with pytest.raises(UsageError, match="the generation option 'num_beams' is not known"):
        settings({"num_beams": 4})


def test_without_the_harness_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'seqloom\[lm-eval\]'"):
        importlib.import_module(MODULE)
