"""Sentence vectors: equal to the reference's for every pooling, whatever stands beside a text; and how well
they agree with scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from tests.workflows.encoders import TEXTS, pooled_as, saved

import seqloom
from seqloom.cli import main
from seqloom.errors import DataError, FolderError, UsageError
from seqloom.interop.sentence_transformers import Pooling, read_pooling, write_pooling
from seqloom.runs.run_folder import load_run
from seqloom.tasks.encoders import sentence_vectors
from seqloom.tasks.encoders.sentence_vectors import SentenceEncoder, cosine
from seqloom.workflows.evaluate import evaluate
from seqloom.workflows.exchange import export_model, import_model

pytestmark = pytest.mark.usefixtures("one_thread")
TABLE = (
    "x\t4.5\tthe cat sleeps\ta cat sleeps\nx\t0.5\tthe dog runs\tthe big house\textra\nx\t3\ta log\tthe log"
    " and the mat\nx\t3\tcats\tdogs\n"
)


def reference(
    folder: Path, model: Any, texts: list[str], mode: str = "mean_tokens", most: int = 16
) -> NDArray[np.float32]:
    """What sentence-transformers computes, one text at a time, not divided by its length."""
    tokenizer: Any = hf.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        with torch.inference_mode():
            states = model(
                **tokenizer(text, truncation=True, max_length=most, return_tensors="pt")
            ).last_hidden_state[0]
        pool = {
            "mean_tokens": lambda s: s.mean(0),
            "cls_token": lambda s: s[0],
            "max_tokens": lambda s: s.amax(0),
            "mean_sqrt_len_tokens": lambda s: s.sum(0) / math.sqrt(len(s)),
        }[mode]
        found.append(pool(states).numpy())  # type: ignore[no-untyped-call]
    return np.stack(found)


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens"])
def test_vectors_are_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    model = saved(tmp_path)
    wanted = reference(tmp_path, model, TEXTS, mode, 9)
    pooled_as(tmp_path, mode, normalise=False, max_seq_length=9)
    assert np.abs(seqloom.load(tmp_path).vectors(TEXTS) - wanted).max() < 1e-5
    pooled_as(tmp_path, mode, max_seq_length=9)
    for budget in (1, 25, 10_000):
        monkeypatch.setitem(sentence_vectors.BUDGET, "cpu", budget)
        found = seqloom.load(tmp_path, "cpu").vectors(TEXTS)
        assert np.abs(found - wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).max() < 1e-5


def test_modes_stand_side_by_side_in_the_order_of_the_reference(tmp_path: Path) -> None:
    model = saved(tmp_path)
    pooled_as(tmp_path, "mean_tokens", "cls_token", normalise=False)
    wanted = np.concatenate(
        [reference(tmp_path, model, TEXTS, mode) for mode in ("cls_token", "mean_tokens")], axis=1
    )
    assert np.abs(seqloom.load(tmp_path).vectors(TEXTS) - wanted).max() < 1e-5


def test_without_its_files_the_mean_is_taken_and_said(tmp_path: Path, notices: list[str]) -> None:
    model = saved(tmp_path)
    encoder = SentenceEncoder(load_run(tmp_path))
    assert np.abs(encoder.encode(TEXTS) - reference(tmp_path, model, TEXTS)).max() < 1e-5
    assert "the mean over all tokens is taken" in notices[0]
    assert encoder.encode([]).shape == (0, 12)


def test_what_is_too_long_is_cut_and_counted(tmp_path: Path, notices: list[str]) -> None:
    model = saved(tmp_path)
    pooled_as(tmp_path, "mean_tokens", normalise=False, max_seq_length=5)
    encoder = SentenceEncoder(load_run(tmp_path))
    found = list(encoder.stream(iter(TEXTS), chunk=2))
    assert np.abs(np.stack(found) - reference(tmp_path, model, TEXTS, most=5)).max() < 1e-5
    assert notices == ["4 texts were cut to 5 tokens"]
    pooled_as(tmp_path, "mean_tokens", max_seq_length=1)
    with pytest.raises(FolderError, match="must have room for its marks"):
        SentenceEncoder(load_run(tmp_path))


def test_lower_case(tmp_path: Path) -> None:
    saved(tmp_path)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**content, "do_lower_case": False}))
    pooled_as(tmp_path, "mean_tokens", do_lower_case=True)
    one, two = seqloom.load(tmp_path).vectors(["THE CAT", "the cat"])
    pooled_as(tmp_path, "mean_tokens", do_lower_case=False)
    three, four = seqloom.load(tmp_path).vectors(["THE CAT", "the cat"])
    assert np.allclose(one, two)
    assert np.allclose(two, four)
    assert not np.allclose(three, four)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            lambda f: pooled_as(f, "weightedmean_tokens"),
            "the pooling must be one of .*, but is pooling_mode_weightedmean_tokens",
        ),
        (lambda f: pooled_as(f), "pooling.modes"),
        (lambda f: pooled_as(f, "mean_tokens", max_seq_length=0), "pooling.max_length"),
        (lambda f: (f / "1_Pooling" / "config.json").unlink(), "must say how states are pooled"),
        (
            lambda f: (f / "modules.json").write_text(
                '[{"type": "a.Transformer", "path": ""}, {"type": "Dense", "path": "x"}]'
            ),
            "but are .*Dense",
        ),
        (
            lambda f: (f / "modules.json").write_text(
                '[{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../x"}]'
            ),
            r"is \.\./x",
        ),
        (
            lambda f: (f / "modules.json").write_text(
                '[{"type": "Transformer", "path": "0"}, {"type": "Pooling", "path": "x"}]'
            ),
            "lies in 0",
        ),
        (lambda f: (f / "modules.json").write_text("[3]"), "must be a list of modules"),
    ],
)
def test_files_that_are_not_understood_are_refused(
    tmp_path: Path, break_it: Any, message: str
) -> None:
    pooled_as(tmp_path, "mean_tokens")
    break_it(tmp_path)
    with pytest.raises(FolderError, match=message):
        read_pooling(tmp_path)


@pytest.mark.parametrize(
    "pooling",
    [
        Pooling(),
        Pooling(modes=("cls", "mean-sqrt"), normalise=True, max_length=7, lower_case=True),
        Pooling(modes=("max",)),
    ],
)
def test_what_is_written_is_read(tmp_path: Path, pooling: Pooling) -> None:
    write_pooling(tmp_path, pooling, 12)
    assert read_pooling(tmp_path) == pooling
    # a newer form
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": ["cls", "mean_sqrt_len_tokens"]})
    )
    assert (read_pooling(tmp_path) or pooling).modes == ("cls", "mean-sqrt")


def test_similarity_of_a_table_without_header(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], notices: list[str]
) -> None:
    model = saved(tmp_path)
    (tmp_path / "sts.csv").write_text(TABLE)
    rows = [line.split("\t") for line in TABLE.splitlines()]
    one, two = (
        reference(tmp_path, model, [row[at] for row in rows]).astype(np.float64) for at in (2, 3)
    )
    cosines, scores = (
        (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1),
        [float(row[1]) for row in rows],
    )
    data = {"format": "tsv", "header": False, "text": "3", "second": "4", "score": "2"}
    found = evaluate(tmp_path, [str(tmp_path / "sts.csv")], data, {})
    assert found.metrics["pearson"] == pytest.approx(
        100 * stats.pearsonr(cosines, scores)[0], abs=1e-3
    )
    assert found.metrics["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, scores)[0])
    assert found.metrics["pairs"] == 4
    assert np.allclose([float(text) for text in found.outputs], cosines, atol=1e-5)
    assert any(
        "1 line kept unchanged: the row has other cells than the first" in one
        and "sts.csv:2" in one
        for one in notices
    )
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(tmp_path), str(tmp_path / "sts.csv"), "--set", "decode.beam=2"])
    assert "leave it out" in capfd.readouterr().err


def test_columns_are_known_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "a.csv").write_text(
        'id,sentence1,sentence2,label\n1,"the cat, a dog",dogs,1\n2,the log,a log,5\n3,mat,house,2.5\n'
    )
    (tmp_path / "a.jsonl").write_text(
        '{"sentence_A": "the cat, a dog", "sentence_B": "dogs", "score": 1}\n'
        '{"sentence_A": "the log", "sentence_B": "a log", "score": "5"}\n'
        '{"sentence_A": "mat", "sentence_B": "house", "score": 2.5}\n'
    )
    one, two = (evaluate(tmp_path, [str(tmp_path / name)], {}, {}) for name in ("a.csv", "a.jsonl"))
    assert one.metrics == two.metrics
    assert one.outputs == two.outputs
    assert one.metrics["pairs"] == 3
    first, _, last = one.examples
    assert (first.place, first.input, first.truth) == (
        f"{tmp_path}/a.csv:2",
        "the cat, a dog ||| dogs",
        "1",
    )
    assert last._replace(place="") == two.examples[2]._replace(place="")
    assert [example.answer for example in one.examples] == one.outputs


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a\tb\tfour\n", {}, r"sts.tsv:1: the score must be a number, but is 'four'"),
        ("a\tb\tnan\n", {}, "must be a number"),
        ("a\tb\n", {}, "must have 3 columns, but has 2"),
        ("a\tb\t1\n", {}, "at least two pairs"),
        (
            "a\tb\t1\n",
            {"header": False, "text": "1", "second": "2", "score": "4"},
            "there is no column '4' for data.score",
        ),
        (
            "a\tb\t1\n",
            {"header": False, "score": "last"},
            r"leave out data\.header=false, or give the column's number",
        ),
        (
            "a\tb\t1\n",
            {"header": False, "score": "3"},
            r"say which with --set data\.text=NAME --set data\.second=NAME",
        ),
        (
            "a\tb\t1\na\tb\n",
            {"header": False, "text": "1", "second": "2", "score": "3"},
            "sts.tsv:2: the row must have 3 cells",
        ),
    ],
)
def test_tables_that_are_wrong_are_refused(
    tmp_path: Path, text: str, settings: dict[str, Any], message: str
) -> None:
    saved(tmp_path)
    (tmp_path / "sts.tsv").write_text(text)
    with pytest.raises((DataError, UsageError), match=message):
        evaluate(tmp_path, [str(tmp_path / "sts.tsv")], settings, {})


def test_the_verb_writes_one_vector_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    wanted = seqloom.load(tmp_path).vectors(TEXTS)
    for flags, read in (
        (["--json"], lambda line: json.loads(line)["vector"]),
        ([], lambda line: [float(one) for one in line.split(" ")]),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["predict", str(tmp_path), str(tmp_path / "texts.txt"), *flags])
        found = np.array([read(line) for line in capfd.readouterr().out.splitlines()])
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 1e-6
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(tmp_path), str(tmp_path / "texts.txt"), "--set", "decode.n_best=2"])
    assert "decode.n_best changes nothing in predict of" in capfd.readouterr().err


def test_cosine() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    assert cosine(x, np.array([[6.0, 8.0], [1.0, 0.0], [-2.0, -2.0]])) == pytest.approx([1, 0, -1])


def test_pooling_goes_through_import_and_export(tmp_path: Path) -> None:
    saved(tmp_path / "hub")
    pooled_as(tmp_path / "hub", "cls_token", normalise=False)
    import_model(str(tmp_path / "hub"), str(tmp_path / "run"))
    export_model(str(tmp_path / "run"), str(tmp_path / "again"))
    first, *others = (
        SentenceEncoder(load_run(tmp_path / name)).encode(TEXTS) for name in ("hub", "run", "again")
    )
    for other in others:
        np.testing.assert_array_equal(first, other)
