"""Human and decoded texts side by side: scoring and decoding agree, and what a text is depends on nothing
else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.language_modeling.test_generate import KINDS

from seqloom.config import DataConfig, DecodeConfig
from seqloom.decoding.generate import GenerationOptions
from seqloom.decoding.hypotheses import Hypothesis
from seqloom.decoding.strategies import BeamSearch
from seqloom.errors import DataError, SeqloomError, UsageError
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from seqloom.runs.decoding_names import strategy_settings
from seqloom.runs.progress import collect_logs
from seqloom.runs.run_folder import LoadedRun
from seqloom.tasks.language_modeling.generate import TextGenerator
from seqloom.text.special_tokens import EOS, UNK
from seqloom.workflows.analysis import degeneration as module
from seqloom.workflows.analysis.degeneration import (
    DegenerationConfig,
    HumanText,
    continue_prompts,
    read_human_texts,
)

TEXTS = ["a dog", "zwei Hunde laufen", "two dogs run", "ein Hund", "dog dog dog"]
CONTEXT = 24


def bundle_of(model: Any, kind: str) -> LoadedRun:
    return LoadedRun(
        folder=Path("runs/tales"),
        task="text-generation",
        model_type="gpt",
        model=model,
        tokenizer=KINDS[kind],
        decode=DecodeConfig(strategy="sample", temperature=9.0),  # must not count
        weights=Path("none"),
    )


@pytest.fixture(scope="module", params=["gpt", "recurrent_lm"])
def run(request: pytest.FixtureRequest) -> LoadedRun:
    """A model of random weights, far from uniform."""
    torch.manual_seed(0)
    size = KINDS["bpe"].vocabulary_size
    model: torch.nn.Module = (
        GPT(GPTConfig(vocabulary_size=size, context=CONTEXT, width=16, layers=2, heads=2))
        if request.param == "gpt"
        else RecurrentLM(RecurrentLMConfig(vocabulary_size=size, width=16, embedding_width=16))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return bundle_of(model.eval(), "bpe")


@pytest.fixture
def human_texts() -> list[HumanText]:
    """Prompts of several lengths."""
    return [HumanText(at, ids, [16], False) for at, ids in enumerate(KINDS["bpe"].encode(TEXTS))]


def written(outputs: list[Hypothesis]) -> list[tuple[list[int], bool]]:
    return [(one.tokens, one.finished) for one in outputs]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "name", ["greedy", "beam=4", "sampling", "top_k=5", "top_p=0.9+temperature=1.5"]
)
def test_probabilities_of_the_tokens_make_the_probability_of_the_hypothesis(
    name: str, run: LoadedRun, human_texts: list[HumanText]
) -> None:
    """Scoring reads a text at once, decoding step by step and in a batch: both say the same."""
    outputs = continue_prompts(run, human_texts, strategy_settings(name, 1), 12)
    scored = module.score_continuations(run, human_texts, written(outputs))
    assert any(len(one.tokens) > 5 for one in outputs)
    for hypothesis, one in zip(outputs, scored, strict=True):
        assert len(one.log_probs) == len(hypothesis.tokens) + hypothesis.finished
        assert float(one.log_probs.sum()) == pytest.approx(
            hypothesis.log_probability, rel=1e-5, abs=1e-5
        )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["greedy", "beam=4", "sampling", "greedy+no_repeat_ngram=2"])
def test_the_batch_changes_no_text(
    name: str, run: LoadedRun, human_texts: list[HumanText], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = strategy_settings(name, 5)
    together = continue_prompts(run, human_texts, settings, 10)
    monkeypatch.setattr(module, "ROWS", 2)
    assert written(continue_prompts(run, human_texts, settings, 10)) == written(together)


@pytest.mark.usefixtures("one_thread")
def test_each_text_draws_numbers_of_its_own_those_of_generate(run: LoadedRun) -> None:
    """Text number i is sample i of its prompt: with one stream for all, equal prompts would have equal
    texts."""
    (ids,) = KINDS["bpe"].encode(["a dog"])
    human_texts = [HumanText(at, ids, [16], False) for at in range(4)]
    outputs = continue_prompts(run, human_texts, strategy_settings("sampling", 2), 10)
    (samples,) = TextGenerator(run).generate(
        ["a dog"], temperature=1.0, seed=2, n_best=4, max_length=10
    )
    assert [one.tokens for one in outputs] == [one.tokens for one in samples]
    assert len({tuple(one.tokens) for one in outputs}) == 4


def test_rules_that_leave_nothing_are_an_error(
    run: LoadedRun, human_texts: list[HumanText], monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible = [lambda _, log_probs: torch.full_like(log_probs, -torch.inf)]
    nothing = GenerationOptions(strategy=BeamSearch(), eos=2, pad=0, processors=impossible)
    monkeypatch.setattr(module, "generation_options", lambda *_: nothing)
    with pytest.raises(SeqloomError, match="must leave a token that may come next"):
        continue_prompts(run, human_texts, strategy_settings("greedy", 0), 10)


def test_no_strategy_at_all_is_refused(tmp_path: Path) -> None:
    config = DegenerationConfig(output=str(tmp_path / "x.png"), strategies=[])
    with pytest.raises(UsageError, match="needs a strategy such as greedy"):
        module.degeneration("none", ["none"], {}, config)


# What is read


def read(
    tmp_path: Path, lines: list[str], prompt: int, new: int, limit: int = 50, kind: str = "words"
) -> tuple[list[HumanText], int, list[str]]:
    (tmp_path / "texts.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
    with collect_logs() as notices:
        some, short = read_human_texts(
            bundle_of(None, "words"),
            [str(tmp_path / "texts.txt")],
            DataConfig(),
            prompt,
            new,
            limit,
        )
    return some, short, notices


def test_a_document_is_long_enough_with_its_end(tmp_path: Path) -> None:
    """Prompt and continuation must be there in full; the end mark is a token of the continuation."""
    words = KINDS["words"].encode(["a dog runs dogs run"])[0]
    lines = [
        "a dog runs",
        "a dog runs dogs",
        "a dog runs dogs run",
        "",
        "a dog runs dogs run a",
        "a",
    ]
    some, short, notices = read(tmp_path, lines, 2, 3)
    assert some == [
        HumanText(1, words[:2], words[2:4], True),
        HumanText(2, words[:2], words[2:5], False),
        HumanText(3, words[:2], words[2:5], False),
    ]
    assert short == 2
    assert (
        "3 texts: the first 2 tokens of each are the prompt, 3 more are compared; 2 documents were too short"
        in notices
    )
    assert [one.document for one in read(tmp_path, lines, 2, 3, limit=1)[0]] == [1]
    (only,) = read(tmp_path, ["a dog"], 2, 1)[0]
    assert (only.continuation, only.finished) == ([], True)


def test_unknown_words_stay_what_the_model_sees(tmp_path: Path) -> None:
    some, _, notices = read(tmp_path, ["a wolf runs wolf fox a", "a dog runs a dog run"], 2, 4)
    assert some[0].prompt[1] == UNK
    assert [one.continuation.count(UNK) for one in some] == [2, 0]
    assert "2 tokens of the human texts are <unk>: scored as such, and never decoded" in notices


def test_texts_that_are_too_short_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=(
            r"must have 116 tokens, prompt and all, but the longest of 2 has 4; ask for fewer with"
            r" --new-tokens"
        ),
    ):
        read(tmp_path, ["a dog", "a dog runs"], 16, 100)


def test_people_end_where_their_text_does(run: LoadedRun) -> None:
    """The end mark's probability counts where the text ends, and no later token ever does."""
    (ids,) = KINDS["bpe"].encode(["two dogs run"])
    open_, ended = module.score_continuations(
        run, [HumanText(0, ids[:2], ids[2:], False)] * 2, [(ids[2:], False), (ids[2:], True)]
    )
    assert len(ended.log_probs) == len(open_.log_probs) + 1 == len(ids) - 1
    assert np.array_equal(ended.log_probs[:-1], open_.log_probs)
    with torch.inference_mode():
        model: Any = run.model
        logits, _ = model(torch.tensor([[1, *ids]]), None)
    assert ended.log_probs[-1] == pytest.approx(float(logits[0, -1].log_softmax(-1)[EOS]), rel=1e-5)


def test_what_fits_the_context_is_read_at_once(run: LoadedRun, notices: list[str]) -> None:
    context = getattr(run.model, "context", None)
    if context is None:
        assert module.fitting_new_tokens(run, 900, None) == 100
        return
    assert module.fitting_new_tokens(run, 4, None) == CONTEXT - 4
    assert notices == ["20 new tokens instead of 100: the model looks at 24 tokens"]
    assert module.fitting_new_tokens(run, 4, 20) == 20
    for prompt, new in ((4, 21), (24, None)):
        with pytest.raises(
            SeqloomError, match="must sum to at most the model's context of 24 tokens"
        ):
            module.fitting_new_tokens(run, prompt, new)
