"""explain --gradient-flow: a table, a picture and numbers of runs on the same pairs; mistakes are one
line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from seqloom.config import DataConfig
from seqloom.explaining.gradient_flow import GradientFlow, LayerFlow, NormCurve, StateFlow
from seqloom.runs.run_folder import load_run
from seqloom.workflows.analysis.gradient_flow import flow_panels

LSTM = (
    "model.cell=lstm",
    "model.attention=none",
    "model.bidirectional=false",
    "model.context=initial",
    "data.tokenizer=characters",
)


@pytest.fixture(scope="module")
def lstm(pairs: Path, narrow: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, with one context vector."""
    from seqloom.workflows.train import train

    folder = tmp_path_factory.mktemp("flow") / "lstm"
    settings = [word.removeprefix("--set=") for word in narrow if "attention_width" not in word] + [
        *LSTM,
        "train.max_steps=1",
        "train.batch_rows=4",
    ]
    train("translation", [str(pairs / "val.jsonl")], output_dir=folder, settings=settings)
    return folder


def one_line(ran: Any, code: int = 2) -> str:
    (line,) = ran.err.splitlines()
    assert (ran.code, ran.out) == (code, "")
    assert line.startswith("seqloom: ")
    return str(line)


def test_a_picture_and_a_table_for_each_run(
    command: Any, trained: Path, lstm: Path, pairs: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "flow.svg"
    ran = command(
        "explain",
        trained,
        pairs / "val.jsonl",
        "--gradient-flow",
        "--beside",
        lstm,
        "--output",
        picture,
    )
    assert ran.code == 0
    assert f"{trained.name}: gru" in ran.out
    assert "lstm: lstm" in ran.out
    assert f"gradient flow on 20 rows: {picture}" in ran.out
    drawn = picture.read_text("utf-8")
    assert all(
        word in drawn
        for word in (
            f">{trained.name}<",
            ">lstm: h<",
            ">lstm: c<",
            ">encoder 1 →<",
            ">encoder 1<",
            ">decoder 1<",
        )
    )
    assert "must be a new file" in one_line(
        command("explain", trained, pairs / "val.jsonl", "--gradient-flow", "--output", picture)
    )


def test_panels_show_what_a_logarithmic_axis_can() -> None:
    """Time runs to the right, the last step is at 0; medians that are 0 or not finite are left out, and a
    layer without any others."""

    def curve(*median: float) -> NormCurve:
        return NormCurve(mean=[9.0] * len(median), median=list(median), rows=[2] * len(median))

    def layer(name: str, gradient: NormCurve, jacobian: NormCurve) -> LayerFlow:
        flow = StateFlow(
            gradient_from_start=curve(9.0),
            gradient_from_end=gradient,
            gradient_per_step=1.0,
            jacobian=jacobian,
            jacobian_per_step=1.0,
        )
        about = {
            "direction": "forward",
            "cell": "elman",
            "width": 1,
            "steps": 3,
            "gates": {},
            "spectra": {},
            "exact": True,
        }
        return LayerFlow(name=name, states={"h": flow}, **about)  # type: ignore[arg-type]

    one = GradientFlow(
        loss=1.0,
        layers=(
            layer("a", curve(1.0, 0.5, 0.0), curve(2.0, 4.0, float("inf"))),
            layer("b", curve(0.0), curve(0.0)),
        ),
    )
    other = GradientFlow(loss=1.0, layers=(layer("a", curve(3.0), curve(0.0)),))
    ((gradients, jacobians),) = flow_panels({"one": one, "other": other})
    assert (gradients.title, jacobians.title) == ("a", "a")
    assert gradients.series == {"one": [(-1, 0.5), (0, 1.0)], "other": [(0, 3.0)]}
    assert jacobians.series == {"one": [(-1, 4.0), (0, 2.0)]}


def test_all_numbers_as_json(
    command: Any, lstm: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loss = command("evaluate", lstm, pairs / "val.jsonl", "--json").json["loss"]
    told = command("explain", lstm, pairs / "val.jsonl", "--gradient-flow", "--json").json
    assert (tmp_path / "gradient-flow.png").read_bytes().startswith(b"\x89PNG")
    assert (told["rows"], told["picture"]) == (20, "gradient-flow.png")
    flow = told["runs"]["lstm"]
    # the objective of the training, without smoothing
    assert flow["loss"] == pytest.approx(loss, rel=1e-4)
    encoder, decoder = flow["layers"]
    assert (encoder["name"], encoder["cell"], encoder["direction"], encoder["width"]) == (
        "encoder 1",
        "lstm",
        "forward",
        8,
    )
    assert set(encoder["gates"]) == set(decoder["spectra"]) == {"i", "f", "g", "o"}
    assert len(encoder["spectra"]["f"]["singular_values"]) == 8
    for state in ("h", "c"):
        # in float64
        assert encoder["states"][state]["jacobian"]["mean"][0] == pytest.approx(1, rel=1e-13)
        assert encoder["states"][state]["gradient_from_start"]["rows"][0] == 20
        assert len(encoder["states"][state]["gradient_from_start"]["mean"]) == encoder["steps"]


def test_the_first_usable_pairs_are_read(command: Any, lstm: Path, tmp_path: Path) -> None:
    rows = [
        {"source": "a b", "target": "a"},
        {"source": " ", "target": "a"},
        {"source": "a b c d", "target": "a"},
    ]
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + "not JSON\n"
    )
    flags = ("--gradient-flow", "--json", "--rows", "2", "--output")
    told = command("explain", lstm, tmp_path / "data.jsonl", *flags, tmp_path / "a.svg").json
    # 7 characters and </s>
    assert (told["rows"], told["runs"]["lstm"]["layers"][0]["steps"]) == (
        2,
        8,
    )
    cut = command(
        "explain",
        lstm,
        tmp_path / "data.jsonl",
        *flags,
        tmp_path / "b.svg",
        "--set",
        "data.max_length=3",
    ).json
    assert cut["runs"]["lstm"]["layers"][0]["steps"] == 4


def test_classifiers_and_mixtures_have_gradient_flow(command: Any, tmp_path: Path) -> None:
    """Each on its own kind of data, with the names of its layers."""
    from seqloom.tasks.language_modeling.mixture import mix
    from seqloom.workflows.train import train

    small = ["train.max_steps=1", "data.tokenizer=words"]
    book, labels, tags = (tmp_path / name for name in ("book.txt", "labels.csv", "tags.conll"))
    book.write_text("the red dog sees a cat\na cat runs in the park\n" * 10)
    labels.write_text("text,label\n" + "the red dog,yes\na cat runs far,no\n" * 6)
    tags.write_text("the\tO\ndog\tB-X\n\na\tO\ncat\tB-X\nruns\tO\n\n" * 6)
    for task, file, model in (
        ("text-generation", book, "recurrent_lm:tiny"),
        ("text-classification", labels, "recurrent:tiny"),
        ("token-classification", tags, "recurrent:tiny"),
    ):
        settings = [*small, "model.cell=gru"] if model == "recurrent_lm:tiny" else small
        train(
            task,
            [str(file)],
            validation=[str(file)],
            output_dir=tmp_path / task,
            model=model,
            settings=settings,
        )
    shutil.copytree(tmp_path / "text-generation", tmp_path / "again")
    members = [str(tmp_path / name) for name in ("text-generation", "again")]
    mix(members, str(tmp_path / "mixture"), None, [], DataConfig())
    expected = {
        "text-generation": (book, ["layer 1"]),
        "text-classification": (labels, ["encoder 1 →", "encoder 1 ←"]),
        "token-classification": (tags, ["encoder 1 →", "encoder 1 ←"]),
        "mixture": (book, ["member 1 layer 1", "member 2 layer 1"]),
    }
    flows = {}
    for name, (file, layers) in expected.items():
        picture = tmp_path / f"{name}.svg"
        words = ("--gradient-flow", "--rows", "4", "--json", "--output", picture)
        ran = command("explain", tmp_path / name, file, *words)
        assert ran.code == 0, ran.err
        flows[name] = ran.json["runs"][name]
        assert [layer["name"] for layer in flows[name]["layers"]] == layers
        for layer in flows[name]["layers"]:
            curve = layer["states"]["h"]["gradient_from_end"]["median"]
            assert all(0 <= value < 100 for value in curve)
            assert max(curve) > 0
    # two models that are one: its loss, and half of its gradient each
    alone, both = flows["text-generation"], flows["mixture"]
    assert both["loss"] == pytest.approx(alone["loss"])
    curves = [
        flow["layers"][0]["states"]["h"]["gradient_from_end"]["median"] for flow in (alone, both)
    ]
    assert curves[1] == pytest.approx([value / 2 for value in curves[0]])


def test_mistakes_are_one_line(
    command: Any, lstm: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: object) -> str:
        return one_line(command("explain", lstm, *words, "--output", tmp_path / "x.png"))

    data = pairs / "val.jsonl"
    assert "--target changes nothing of gradient-flow" in refused(
        data, "--gradient-flow", "--target", "a"
    )
    assert "needs data" in refused("--show", "gradient-flow")
    assert "rows must be at least 1, but is 0" in refused(data, "--gradient-flow", "--rows", "0")
    assert f"each run must be given once, but {lstm} is given twice" in refused(
        data, "--gradient-flow", "--beside", lstm
    )
    assert "at most 5 runs" in refused(data, "--gradient-flow", *["--beside", "other"] * 5)
    assert "nothing is decoded" in refused(data, "--gradient-flow", "--set", "decode.beam=1")
    assert "must be a run folder" in one_line(
        command("explain", lstm, data, "--gradient-flow", "--beside", tmp_path), 1
    )
    assert "--rows changes nothing of" in refused("a b", "--rows", "3")
    assert "--beside changes nothing of" in refused("a b", "--beside", lstm)
    assert "of translation, but 2 texts are given" in refused("a", "b")
    assert "must hold a word" in refused()
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(
        "seqloom.workflows.analysis.gradient_flow.load_run",
        lambda folder: replace(load_run(folder), model=nn.Linear(2, 2)),
    )
    message = refused(data, "--gradient-flow")
    assert message.startswith(f"seqloom: {lstm}: the model must have a recurrent layer")
