"""Rescoring as a whole: what is tuned is never worse on its lists, and files of any form say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqloom
from seqloom.config import DataConfig
from seqloom.data.readers.nbest import NBest
from seqloom.errors import DataError, UsageError
from seqloom.tasks.language_modeling.score import Scorer
from seqloom.workflows.analysis.rescore import (
    RescoreConfig,
    Rescored,
    half_and_half,
    model_names,
    parsed_weights,
    rescore,
)
from seqloom.workflows.train import train

WHO, VERB, WHAT = ("the cat", "a dog", "the bird"), ("sees", "likes"), ("it", "us", "them")
TEXTS = [f"{who} {verb} {what}" for who in WHO for verb in VERB for what in WHAT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two language models of other tokenizers, `spaced` and `letters`; `dev.jsonl` and `test.jsonl` with
    noisy lists and scores."""
    folder = tmp_path_factory.mktemp("rescore")
    (folder / "train.txt").write_text("".join(f"{text}\n" for text in TEXTS * 3))
    for name, tokenizer in (("spaced", "words"), ("letters", "characters")):
        settings = [f"data.tokenizer={tokenizer}", f"data.validation=[{folder / 'train.txt'}]"]
        train(
            "text-generation",
            [str(folder / "train.txt")],
            output_dir=folder / name,
            model="ngram:trigram",
            settings=settings,
        )
    for name, seed in (("dev", 0), ("test", 1)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in noisy(seed, 30))
        )
    return folder


def noisy(seed: int, count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    found = []
    for at in range(count):
        text = TEXTS[int(generator.integers(len(TEXTS)))]
        texts = [text]
        for _ in range(int(generator.integers(1, 6))):
            words = text.split()
            words[int(generator.integers(len(words)))] = str(
                generator.choice(["the", "cat", "us", "noise", ""])
            )
            texts.append(" ".join(words).strip())
        scores = [-3 * (one != text) + 4 * generator.standard_normal() for one in texts]
        order = np.argsort(scores)[::-1]
        found.append(
            {
                "id": f"u{at}",
                "ref": text,
                "nbest": [{"text": texts[i], "score": float(scores[i])} for i in order],
            }
        )
    return found


def rescored(
    folder: Path,
    path: Path | str = "test.jsonl",
    models: tuple[str, ...] = ("spaced", "letters"),
    **options: Any,
) -> Rescored:
    if "development" in options:
        options["development"] = str(folder / options["development"])
    changed: dict[str, Any] = {"data": DataConfig()} | options
    folders = [str(folder / name) for name in models]
    return rescore(RescoreConfig(folders=folders, path=str(folder / path), **changed))


@pytest.mark.parametrize("metric", ["wer", "cer", "exact_match", "bleu"])
def test_tuned_is_never_worse_on_its_own_lists_and_the_oracle_is_the_best(
    folder: Path, metric: str
) -> None:
    result = rescored(folder, development="dev.jsonl", metric=metric)
    better = 1 if metric in ("bleu", "exact_match") else -1
    for part, one in result.results.items():
        systems = one.systems
        assert list(systems) == [
            "first",
            "given alone",
            "spaced alone",
            "letters alone",
            "rescored",
            "oracle",
        ]
        assert all(better * systems["oracle"] >= better * value for value in systems.values())
        if part == "tuning":
            assert all(
                better * systems["rescored"] >= better * value
                for name, value in systems.items()
                if name != "oracle"
            )
    assert (
        better * result.results["test"].systems["rescored"]
        > better * result.results["test"].systems["first"]
    )


def test_lists_come_best_first_with_their_totals(folder: Path, tmp_path: Path) -> None:
    result = rescored(
        folder,
        models=("spaced",),
        weights="given=1,lm=2,words=-0.5",
        output=str(tmp_path / "out.jsonl"),
    )
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    given = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [line["id"] for line in given]
    scorer = Scorer(folder / "spaced")
    for line, before in zip(lines, given, strict=True):
        assert sorted((one["text"], one["score"]) for one in line["nbest"]) == sorted(
            (one["text"], one["score"]) for one in before["nbest"]
        )
        totals = [one["total"] for one in line["nbest"]]
        assert totals == sorted(totals, reverse=True)
        for one, score in zip(
            line["nbest"], scorer.score([one["text"] for one in line["nbest"]]), strict=True
        ):
            assert one["log_probability_spaced"] == pytest.approx(score.log_probability)
            assert one["total"] == pytest.approx(
                one["score"] + 2 * score.log_probability - 0.5 * len(one["text"].split())
            )
    assert [one.texts[0] for one in result.lists] == [line["nbest"][0]["text"] for line in lines]


def test_a_table_gives_the_result_of_its_lists(folder: Path, tmp_path: Path) -> None:
    rescored(folder, weights="given=1", output=str(tmp_path / "test.tsv"))
    table, lines = rescored(folder, tmp_path / "test.tsv"), rescored(folder)
    assert table.results["test"].systems == lines.results["test"].systems
    assert [one.texts for one in table.lists] == [one.texts for one in lines.lists]


def test_without_references_lists_are_rescored_and_not_measured(
    folder: Path, tmp_path: Path, notices: list[str]
) -> None:
    lines = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    (tmp_path / "bare.jsonl").write_text(
        "".join(json.dumps({"id": line["id"], "nbest": line["nbest"]}) + "\n" for line in lines)
    )
    result = rescored(folder, tmp_path / "bare.jsonl", development="dev.jsonl")
    assert list(result.results) == ["tuning"]
    assert [one.texts for one in result.lists] == [
        one.texts for one in rescored(folder, development="dev.jsonl").lists
    ]
    with pytest.raises(DataError, match="no list has a reference"):
        rescored(folder, development=str(tmp_path / "bare.jsonl"))
    del lines[0]["ref"]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rescored(folder, tmp_path / "some.jsonl").results["test"].lists == 29
    assert any("1 of 30 lists have no reference" in one for one in notices)


def test_the_default_is_half_and_half_and_without_a_score_the_models_alone(
    folder: Path, tmp_path: Path, notices: list[str]
) -> None:
    assert rescored(folder).weights == {"given": 0.5, "spaced": 0.25, "letters": 0.25, "words": 0}
    assert any("--tune" in one for one in notices)
    assert half_and_half(["a", "b", "words"]).tolist() == [0.5, 0.5, 0]
    (tmp_path / "bare.jsonl").write_text(
        '{"nbest": [{"text": "cat the it likes"}, {"text": "the cat likes it"}, {"text": ""}]}\n'
    )
    result = rescored(folder, tmp_path / "bare.jsonl", models=("spaced",))
    assert result.lists[0].texts[0] == "the cat likes it"
    assert result.results == {}
    with pytest.raises(DataError, match="have no score, but those of"):
        rescored(folder, tmp_path / "bare.jsonl", development="dev.jsonl")


def test_weights_by_name() -> None:
    features, models = ["given", "a", "b", "words"], ["a", "b"]
    assert parsed_weights("given=1, lm=20,words=-2e1", features, models).tolist() == [
        1,
        10,
        10,
        -20,
    ]
    assert parsed_weights("b=3", features, models).tolist() == [0, 0, 3, 0]
    for text, message in (
        ("a", "name=number"),
        ("a=x", "name=number"),
        ("a=nan", "name=number"),
        ("c=1", "can name"),
        ("", "name=number"),
        ("a=1e308", "1e\\+100 at most"),
    ):
        with pytest.raises(UsageError, match=message):
            parsed_weights(text, features, models)
    with pytest.raises(UsageError, match="no given score"):
        parsed_weights("given=1", features[1:], models)


def test_models_have_short_names_where_these_are_clear() -> None:
    assert model_names(["runs/a", "runs/b/"]) == ["a", "b"]
    assert model_names(["x/a", "y/a", "z/given"]) == ["x/a", "y/a", "z/given"]
    assert model_names(["given", "words/", "./lm", "a"]) == ["./given", "./words", "./lm", "a"]
    for one, other in (
        ("a", "a"),
        ("KN", "KN/"),
        ("x/KN", "./x/../x/KN"),
        ("a", str(Path.cwd() / "a")),
    ):
        with pytest.raises(UsageError, match=f"once, but {one} is given twice"):
            model_names([one, other])


def test_the_largest_scores_and_weights_that_are_taken_stay_finite(
    folder: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    for line in lines:
        for one in line["nbest"]:
            one["score"] = float(np.sign(one["score"])) * 1e100
    (tmp_path / "large.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    both: list[dict[str, Any]] = [
        {"weights": "given=1e100,lm=-1e100"},
        {"development": str(tmp_path / "large.jsonl")},
    ]
    for options in both:
        result = rescored(folder, tmp_path / "large.jsonl", **options)
        assert all(
            np.isfinite(np.asarray(fields["total"], float))
            for one in result.lists
            for fields in one.fields
        )
    lines[0]["nbest"][0]["score"] = -1e308
    (tmp_path / "large.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(
        DataError,
        match=r"'score' of hypothesis 1 of list 'u0' must be a finite number of size 1e\+100 at most",
    ):
        rescored(folder, tmp_path / "large.jsonl", weights="given=20")


def test_what_cannot_be_is_said_before_the_work(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "silent.jsonl").write_text('{"ref": "", "nbest": [{"text": "x"}]}\n')
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": "given=1", "development": "dev.jsonl"}, "given or tuned, not both"),
        (
            {"data": DataConfig(text="log_probability_spaced")},
            "data.text is 'log_probability_spaced', under which results are written",
        ),
        ({"metric": "per"}, "--metric must be one of wer, cer, bleu, exact_match"),
        ({"output": str(tmp_path / "there.jsonl")}, "must be a new file"),
        ({"output": str(tmp_path / "a.txt")}, "must end in .jsonl, .tsv"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=message):
            rescored(folder, **options)
    with pytest.raises(DataError, match="all references are empty"):
        rescored(folder, tmp_path / "silent.jsonl")


@pytest.mark.parametrize("model", ["seq2seq:tiny", "gpt:tiny", "recurrent_lm:tiny"])
def test_a_model_of_text_pairs_scores_each_hypothesis_after_its_source(
    model: str, folder: Path, tmp_path: Path
) -> None:
    """As the loss of a file of pairs counts it; from a table as from JSON."""
    pairs = [(text, text.upper()) for text in TEXTS]
    (tmp_path / "pairs.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs))
    train(
        "translation",
        [str(tmp_path / "pairs.tsv")],
        output_dir=tmp_path / "pairs",
        model=model,
        settings=["train.max_steps=3", "data.tokenizer=characters"],
    )
    hypotheses = [pairs[0][1], pairs[1][1]]
    content = {"id": "a", "source": pairs[0][0], "nbest": [{"text": text} for text in hypotheses]}
    (tmp_path / "lists.jsonl").write_text(json.dumps(content) + "\n")
    rows = [f"a\t{text}\t{pairs[0][0]}\n" for text in hypotheses]
    (tmp_path / "lists.tsv").write_text("id\ttext\tsource\n" + "".join(rows))
    found = []
    for name in ("lists.jsonl", "lists.tsv"):
        models = (str(tmp_path / "pairs"), "spaced")
        result = rescored(folder, tmp_path / name, models)
        (nbest,) = result.lists
        found.append({text: fields["log_probability_pairs"] for text, fields in scored(nbest)})
    assert found[0] == found[1]
    for text in hypotheses:
        (tmp_path / "one.tsv").write_text(f"{pairs[0][0]}\t{text}\n")
        metrics = seqloom.load(tmp_path / "pairs").evaluate([str(tmp_path / "one.tsv")]).metrics
        assert found[0][text] == pytest.approx(-metrics["loss"] * metrics["tokens"], rel=1e-4)
    with pytest.raises(DataError, match="one text under 'source', from which pairs translates"):
        rescored(folder, "test.jsonl", (str(tmp_path / "pairs"),))


def scored(nbest: NBest) -> list[tuple[str, Any]]:
    return list(zip(nbest.texts, nbest.fields, strict=True))
