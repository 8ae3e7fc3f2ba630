"""Language models from text to a sealed folder and back: every family, stopped and resumed, split over
micro-batches, mixed, exported."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqloom.config import DataConfig
from seqloom.errors import DataError, FolderError, SeqloomError, UsageError
from seqloom.runs import run_folder
from seqloom.runs.run_folder import load_run
from seqloom.tasks.language_modeling.arpa import export_arpa, import_arpa
from seqloom.tasks.language_modeling.mixture import mix
from seqloom.tasks.language_modeling.score import Scorer, contrast
from seqloom.training import metrics_log
from seqloom.training.checkpoints import STREAM_STATES, WEIGHTS, newest_checkpoint
from seqloom.training.loop import Progress
from seqloom.workflows.analysis.gradient_flow import explain_gradient_flow
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.train import TrainResult, train

SETTINGS = [
    "data.tokenizer=words",
    "train.max_steps=12",
    "train.evaluate_every=4",
    "train.log_every=3",
    "train.batch_rows=6",
    "train.window=8",
    "train.threads=1",
    "train.learning_rate=0.01",
]
FAMILIES = {
    "gpt:tiny": [
        "model.width=8",
        "model.layers=1",
        "model.heads=2",
        "model.context=8",
        "model.dropout=0.2",
    ],
    "recurrent_lm:tiny": ["model.width=8", "model.embedding_width=8", "model.dropout=0.2"],
    "ngram:trigram": [],
}
AWD = [
    "model.cell=gru",
    "model.layers=2",
    "model.weight_dropout=0.3",
    "model.variational_dropout=true",
    "model.embedding_dropout=0.1",
]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sentences(seed: int, count: int) -> str:
    """Lines of a small grammar: what follows a word depends on it."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        subject, verb = chance.choice(
            [("the cat", "sleeps"), ("the cats", "sleep"), ("a dog", "barks"), ("two dogs", "bark")]
        )
        lines.append(
            f"{subject} {chance.choice(['', 'here ', 'there '])}{verb}"
            f" {chance.choice(['today', 'now', 'and then ' + verb])} ."
        )
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    (place / "train.txt").write_text(sentences(1, 200))
    (place / "val.txt").write_text(sentences(2, 40))
    return place


def made(
    texts: Path,
    folder: Path,
    model: str,
    *settings: str,
    stop: Callable[[int], None] = lambda step: None,
) -> TrainResult:
    return train(
        "text-generation",
        [str(texts / "train.txt")],
        output_dir=folder,
        model=model,
        validation=[str(texts / "val.txt")],
        settings=[
            setting
            for setting in [*SETTINGS, *FAMILIES[model], *settings]
            if not (model.startswith("ngram") and setting.startswith("train."))
        ],
        progress=lambda now: stop(now.step),
    )


@pytest.fixture(scope="module")
def folders(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained model of each family."""
    before = torch.get_num_threads()
    place = tmp_path_factory.mktemp("runs")
    for model in FAMILIES:
        assert (
            made(
                texts,
                place / model.partition(":")[0],
                model,
                "train.max_steps=160",
                "train.evaluate_every=80",
            ).stopped
            == "max_steps"
        )
    torch.set_num_threads(before)
    return {model: place / model.partition(":")[0] for model in FAMILIES}


@pytest.mark.parametrize("model", FAMILIES)
def test_a_folder_gives_the_numbers_of_its_training(
    model: str, folders: dict[str, Path], texts: Path
) -> None:
    folder = folders[model]
    trained = metrics_log.validation(
        folder, max(line["step"] for line in metrics_log.read(folder) if "validation_loss" in line)
    )
    metrics = evaluate(
        folder, [str(texts / "val.txt")], {}, {}, stride=8 if "gpt" in model else None
    ).metrics
    best = min(
        line["validation_loss"] for line in metrics_log.read(folder) if "validation_loss" in line
    )
    assert metrics["loss"] == pytest.approx(best, rel=1e-5)
    assert metrics["perplexity"] < 12  # 24 words and an end: it has learnt something
    for name in ("documents", "tokens", "words", "bytes"):
        assert metrics[name] == trained[name]
    text = (texts / "val.txt").read_text()
    assert metrics["bytes"] == len(text) - 40
    assert metrics["words"] == len(text.split())
    assert metrics["tokens"] == len(text.split()) + 40


@pytest.mark.parametrize("model", FAMILIES)
def test_a_sentence_beats_its_words_in_disorder(model: str, folders: dict[str, Path]) -> None:
    scorer = Scorer(folders[model])
    good, bad, end = scorer.score(
        ["the cat sleeps today .", "sleeps the . today cat", ""], tokens=True
    )
    assert good.log_probability > bad.log_probability
    assert end.tokens == 1
    assert [token.token for token in good.table] == ["the", "cat", "sleeps", "today", ".", "</s>"]
    assert sum(np.log(token.probability) for token in good.table) == pytest.approx(
        good.log_probability, rel=1e-5
    )
    assert sum(token.surprisal for token in good.table) == pytest.approx(
        -good.log_probability / np.log(2), rel=1e-5
    )


@pytest.mark.parametrize("model", FAMILIES)
def test_a_text_given_a_prompt_is_the_rest_of_the_whole(
    model: str, folders: dict[str, Path]
) -> None:
    scorer = Scorer(folders[model])
    (rest,) = scorer.score(["sleeps now ."], prompt="the cat")
    whole, prompt = scorer.score(["the cat sleeps now .", "the cat"])
    assert rest.log_probability == pytest.approx(
        whole.log_probability - prompt.log_probability_without_end, rel=1e-5
    )
    assert rest.tokens == 4


@pytest.mark.parametrize(
    ("model", "more"), [("gpt:tiny", []), ("recurrent_lm:tiny", []), ("recurrent_lm:tiny", AWD)]
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_stopped_and_resumed_is_never_stopped(
    model: str, more: list[str], accumulate: int, texts: Path, tmp_path: Path
) -> None:
    """With the state of the streams: a resumed run that began them anew would end elsewhere."""
    settings = [*more, f"train.accumulate={accumulate}", "train.batch_rows=6"]
    made(texts, tmp_path / "whole", model, *settings)

    class Killed(Exception):
        pass

    def kill(step: int) -> None:
        if step == 10:
            raise Killed

    with pytest.raises(Killed):
        made(texts, tmp_path / "run", model, *settings, stop=kill)
    checkpoint, _ = newest_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-8"
    assert (checkpoint / STREAM_STATES).exists() == model.startswith("recurrent")
    train(resume=tmp_path / "run")
    whole, run = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "run"))
    assert all(torch.equal(whole[name], run[name]) for name in whole)


def test_a_carried_state_makes_a_difference(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the law above would not see if nothing were carried."""
    made(texts, tmp_path / "carried", "recurrent_lm:tiny")
    monkeypatch.setattr(
        "seqloom.training.stream_states.StreamStates.get", lambda self, streams: None
    )
    made(texts, tmp_path / "anew", "recurrent_lm:tiny")
    carried, anew = (load_file(tmp_path / name / WEIGHTS) for name in ("carried", "anew"))
    assert not all(torch.equal(carried[name], anew[name]) for name in carried)


@pytest.mark.parametrize("model", ["gpt:tiny", "recurrent_lm:tiny"])
def test_micro_batches_change_nothing(model: str, texts: Path, tmp_path: Path) -> None:
    still = ["model.dropout=0", "train.dtype=float64"] + (
        ["model.embedding_dropout=0"] if "gpt" in model else []
    )
    for accumulate in (1, 2, 4):
        made(texts, tmp_path / str(accumulate), model, *still, f"train.accumulate={accumulate}")
    one, *others = (load_file(tmp_path / str(accumulate) / WEIGHTS) for accumulate in (1, 2, 4))
    for other in others:
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-7, atol=1e-9)


def test_without_validation_files_documents_are_held_out(
    texts: Path, tmp_path: Path, notices: list[str]
) -> None:
    data = [str(texts / "train.txt")]
    train(
        "text-generation",
        data,
        output_dir=tmp_path / "run",
        model="ngram:bigram",
        settings=["data.tokenizer=words"],
    )
    assert any("4 documents held out by seed 0" in line for line in notices)
    content = json.loads((tmp_path / "run" / run_folder.DATA).read_text())
    assert (content["training"]["documents"], content["validation"]["documents"]) == (196, 4)


def test_mixtures_with_given_and_with_tuned_weights(
    folders: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    members = [str(folder) for folder in folders.values()]
    dev = str(texts / "val.txt")
    given = mix(members, str(tmp_path / "given"), "1,1,2", (), DataConfig())
    assert list(given["weights"].values()) == [0.25, 0.25, 0.5]
    tuned = mix(members, str(tmp_path / "tuned"), None, [dev], DataConfig())
    losses = [
        evaluate(folder, [dev], {}, {}).metrics["loss"]
        for folder in [*members, str(tmp_path / "given")]
    ]
    loss = evaluate(tmp_path / "tuned", [dev], {}, {}).metrics["loss"]
    assert loss == pytest.approx(tuned["loss"], rel=1e-6)
    assert loss < min(losses) + 1e-6  # no single member and no other weights do better
    assert load_run(tmp_path / "tuned").model_type == "ensemble"


def test_an_arpa_file_out_and_in_again_is_the_same_model(
    folders: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    lines = (texts / "val.txt").read_text().splitlines()
    expected = [one.log_probability for one in Scorer(folders["ngram:trigram"]).score(lines)]
    for name in ("model.arpa", "model.arpa.gz"):
        sizes = export_arpa(str(folders["ngram:trigram"]), str(tmp_path / name))
        assert import_arpa(str(tmp_path / name), str(tmp_path / f"{name}-in")) == sizes
        found = [one.log_probability for one in Scorer(tmp_path / f"{name}-in").score(lines)]
        assert found == pytest.approx(expected, abs=1e-4)
        with pytest.raises(SeqloomError, match="a new file, but there is one"):
            export_arpa(str(folders["ngram:trigram"]), str(tmp_path / name))


def test_pairs_are_told_apart_by_group(folders: dict[str, Path], tmp_path: Path) -> None:
    rows = [
        {"good": "the cat sleeps now .", "bad": "the cat sleep now .", "kind": "agreement"},
        {"good": "two dogs bark today .", "bad": "two dogs barks today .", "kind": "agreement"},
        {"good": "a dog barks now .", "bad": "now barks dog a .", "kind": "order"},
        {"good": "a dog . now", "bad": "a dog . now", "kind": "tie"},
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "other.jsonl").write_text(json.dumps(rows[0]) + "\n")
    paths = [str(tmp_path / "pairs.jsonl"), str(tmp_path / "other.jsonl")]
    ngram = str(folders["ngram:trigram"])
    (found,) = contrast([ngram], paths, "good", "bad", "kind", DataConfig())
    assert found.pairs == {"agreement": 3, "order": 1, "tie": 1}
    assert found.accuracy("agreement")[0] == 100
    assert found.accuracy("tie")[0] == 50
    assert found.accuracy()[0] == pytest.approx(90)
    turned, _ = contrast([ngram, ngram], paths, "bad", "good", None, DataConfig())
    assert turned.pairs == {"pairs": 4, "other": 1}
    assert turned.accuracy()[0] == pytest.approx(10)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((UsageError, DataError, FolderError)) as refused:
        call()
    return str(refused.value)


def test_what_cannot_be_is_said_in_a_line(
    folders: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    ngram, gpt = str(folders["ngram:trigram"]), str(folders["gpt:tiny"])
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "not.arpa").write_text("hello\n")
    quiet = DataConfig()

    def silent(_: str) -> None:
        pass

    assert "at least 2 run folders" in refusal(
        lambda: mix([ngram], str(tmp_path / "a"), None, (), quiet)
    )
    assert "not both" in refusal(
        lambda: mix([ngram, gpt], str(tmp_path / "b"), "1,1", ["x"], quiet)
    )
    for weights in ("1", "1,-1", "a,b", "0,0", "1,nan"):
        with pytest.raises(UsageError, match="--weights must be 2 numbers"):
            mix([ngram, gpt], str(tmp_path / "c"), weights, (), quiet)
    assert "an n-gram model, but this is a gpt" in refusal(
        lambda: export_arpa(gpt, str(tmp_path / "x.arpa"))
    )
    assert "not.arpa:1" in refusal(
        lambda: import_arpa(str(tmp_path / "not.arpa"), str(tmp_path / "d"))
    )
    assert "stride must be from 1" in refusal(
        lambda: evaluate(gpt, [str(texts / "val.txt")], {}, {}, stride=99)
    )
    assert "no documents" in refusal(lambda: evaluate(gpt, [str(tmp_path / "empty.txt")], {}, {}))
    window = ["train.window=99", "data.tokenizer=words"]
    said = refusal(
        lambda: train(
            "text-generation",
            [str(texts / "train.txt")],
            output_dir=tmp_path / "e",
            model="gpt:tiny",
            settings=window,
        )
    )
    assert "train.window must be at most model.context" in said
    assert not (tmp_path / "e" / run_folder.RUN).exists()


def test_the_window_of_progress_is_heard(texts: Path, tmp_path: Path) -> None:
    heard: list[Progress] = []
    train(
        "text-generation",
        [str(texts / "train.txt")],
        output_dir=tmp_path / "run",
        model="gpt:tiny",
        settings=[*SETTINGS, *FAMILIES["gpt:tiny"]],
        progress=heard.append,
    )
    assert [now.step for now in heard] == list(range(1, 13))
    assert heard[-1].loss < heard[0].loss


def test_gradient_flow_of_a_language_model_is_that_of_its_training(
    folders: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    run, val = folders["recurrent_lm:tiny"], [str(texts / "val.txt")]
    report = explain_gradient_flow([run], val, {}, rows=40, output=str(tmp_path / "flow.svg"))
    assert report.rows == 40
    (flow,) = report.flows.values()
    assert flow.loss == pytest.approx(evaluate(run, val, {}, {}).metrics["loss"], rel=1e-4)
    (tmp_path / "book.txt").write_text((texts / "val.txt").read_text())
    book = {"document": "file"}
    report = explain_gradient_flow(
        [run],
        [str(tmp_path / "book.txt")],
        book,
        rows=2,
        output=str(tmp_path / "book.svg"),
    )
    assert report.rows == 2  # of one document
    with pytest.raises(UsageError, match="recurrent"):
        explain_gradient_flow([folders["gpt:tiny"]], val, {}, output=str(tmp_path / "none.svg"))
