"""Run files and settings: what is accepted, and the one line that says what is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import SECTIONS, DataConfig, DecodeConfig, RunConfig, TrainConfig
from seqloom.errors import LONGEST_MESSAGE, UsageError
from seqloom.run_file import (
    apply_settings,
    known_keys,
    parse,
    read_run_file,
    read_yaml,
    run_file_text,
    unknown_key,
)

BASE = {"task": "translation", "output_dir": "runs/a"}


def run_of(text: str) -> RunConfig:
    return parse(RunConfig, BASE | read_yaml(text, "run.yaml"))


def test_a_run_file_gives_what_it_says() -> None:
    run = run_of(
        "data: {train: [a.en, a.de]}\ntrain: {learning_rate: 1e-4, clip_norm: 1}\nmodel: {name: seq2seq,"
        " width: 300}"
    )
    assert run.data.train == ("a.en", "a.de")
    assert run.train.learning_rate == 1e-4
    assert run.train.clip_norm == 1.0
    assert run.model == {"name": "seq2seq", "width": 300}


def test_the_resolved_file_reads_back_as_the_same_run(tmp_path: Path) -> None:
    run = run_of(
        "data: {train: [ä.en, 'no'], source: 'no'}\ntrain: {max_steps: 7, warmup_steps: 3}\ndecode: {beam: 2}"
    )
    (tmp_path / "run.yaml").write_text(run_file_text(run), "utf-8")
    assert parse(RunConfig, read_run_file(str(tmp_path / "run.yaml"))) == run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train: {lerning_rate: 1}",
            "no setting train.lerning_rate; did you mean train.learning_rate?",
        ),
        ("colour: red", "no setting colour; known are task"),
        ("train: {max_steps: -3}", "train.max_steps must be greater than or equal to 1, but is -3"),
        ("train: {max_steps: 2.5}", "train.max_steps must be a valid integer, but is 2.5"),
        ("train: {max_steps: true}", "train.max_steps must be a valid integer, but is True"),
        ("train: {epochs: .inf}", "train.epochs must be a finite number, but is inf"),
        ("train: {label_smoothing: 1.5}", "train.label_smoothing must be less than 1, but is 1.5"),
        (
            "train: {dtype: float16}",
            "train.dtype must be 'float32', 'bfloat16' or 'float64', but is 'float16'",
        ),
        (
            "data: {source: no}",
            "data.source must be text, but is False .YAML reads no, yes, on and off as such: quote it.",
        ),
        (
            "decode: {beam: 2, n_best: 3}",
            "decode.n_best must be at most decode.beam, but 3 is more than 2",
        ),
        (
            "train: {noise: mass}",
            "train.noise must be a list, but is 'mass'; write .mass.",
        ),
        ("train: 3", "train must be"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_of(text)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        run_of("train: {max_steps: 0, clip_norm: -1, epoch: 3}\ndecode: {beam: 0}")
    for part in ("train.max_steps", "train.clip_norm", "train.epoch;", "decode.beam"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x", "run.yaml:2: .*aliases"),
        ("a: !!python/object/apply:os.system [ls]", "run.yaml:1: .*tag"),
        ("a: 1\nb: 2\na: 3", "the key a occurs twice"),
        ("no: 1", "a key must be text, but is False: quote it"),
        ("a: [1", "run.yaml:.*YAML"),
        ("a: " + "[" * 5000, "run.yaml"),
    ],
)
def test_yaml_that_a_run_file_may_not_use(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_yaml(text, "run.yaml")


@pytest.mark.parametrize("content", [b"- a", b"", b"x" * (2**20 + 1)])
def test_a_run_file_is_a_small_mapping(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=r"must be (a mapping|at most 1048576 bytes)"):
        read_run_file(str(tmp_path / "run.yaml"))


def test_settings_change_a_copy() -> None:
    before: dict[str, Any] = {"train": {"max_steps": 1}}
    after = apply_settings(
        before, ["train.max_steps=5", "model.cell=lstm", "train.learning-rate=1e-3", "data.source="]
    )
    assert before == {"train": {"max_steps": 1}}
    assert after == {
        "train": {"max_steps": 5, "learning_rate": 0.001},
        "model": {"cell": "lstm"},
        "data": {"source": ""},
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.max_steps", "key=value"),
        ("max_steps=3", "no setting max_steps"),
        ("x.y=1", "no setting"),
    ],
)
def test_settings_that_are_none(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        apply_settings({}, [setting])


def test_text_is_taken_as_it_stands() -> None:
    settings = ["data.delimiter=|", "data.source=no", "data.target= a: b #", "data.encoding=null"]
    assert apply_settings({}, settings)["data"] == {
        "delimiter": "|",
        "source": "no",
        "target": " a: b #",
        "encoding": None,
    }


@pytest.mark.parametrize("section", ["data", "model", "train", "decode"])
def test_a_section_may_be_empty_but_must_be_a_mapping(tmp_path: Path, section: str) -> None:
    (tmp_path / "run.yaml").write_text(f"task: translation\n{section}: {{}}\n")
    assert read_run_file(str(tmp_path / "run.yaml"))[section] == {}
    for content in ("", "[a]", "3"):
        (tmp_path / "run.yaml").write_text(f"task: translation\n{section}: {content}\n")
        with pytest.raises(UsageError, match=f"{section} must be a mapping"):
            read_run_file(str(tmp_path / "run.yaml"))


def test_a_configuration_is_frozen_and_checked_where_it_is_made() -> None:
    with pytest.raises(AttributeError):
        TrainConfig().max_steps = 3  # type: ignore[misc]
    with pytest.raises(UsageError, match="n_best"):
        DecodeConfig(beam=1, n_best=2)


def test_the_old_name_of_a_tokenizer_kind_is_taken_with_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run_of("data: {tokenizer: blanks}").data.tokenizer == "whitespace"
    assert "blanks is now called whitespace" in caplog.text
    caplog.clear()
    assert run_of("data: {tokenizer: whitespace}").data.tokenizer == "whitespace"
    assert not caplog.text


ODD_VALUES = (
    *(
        "!!python/object:os.system x",
        "!!binary abc",
        "!!int abc",
        "!!timestamp x",
        "!!bool x",
        "!x y",
    ),
    *("2020-01-01", "2020-13-45", "1:30", "1e999", ".inf", ".nan", "9" * 5000, "0x" + "f" * 5000),
    *(
        "[" * 2000,
        "{a: " * 2000,
        "? a",
        "\0",
        "\ud800",
        "&a [*a]",
        "<<: 1",
        "%TAG",
        "'",
        "=",
        "~",
        "",
    ),
    "{" + ", ".join(f"k{number}: 1" for number in range(20_000)) + "}",
)


@pytest.mark.parametrize(
    "key", ["train.max_steps", "train.seed", "model.width", "decode.ban", "model.name"]
)
@pytest.mark.parametrize("value", ODD_VALUES, ids=range(len(ODD_VALUES)))
def test_whatever_a_setting_is_it_is_taken_or_refused_in_a_short_line(key: str, value: str) -> None:
    try:
        content = apply_settings({"task": "translation", "output_dir": "x"}, [f"{key}={value}"])
        parse(RunConfig, content)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    assert len(message.encode("utf-8", "surrogatepass")) <= LONGEST_MESSAGE


def test_a_column_may_be_a_number() -> None:
    data = parse(DataConfig, {"text": 6, "options": [1, "b"]}, "data.")
    assert (data.text, data.options) == ("6", ("1", "b"))


def test_numbers_have_both_bounds() -> None:
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            # infinity switches clipping off
            if field.name == "clip_norm":
                continue
            content = {field.name: 10**300}
            # what is no number is refused for that
            with pytest.raises(UsageError, match=f"{section}.{field.name}"):
                parse(kind, content, f"{section}.")


def test_a_run_file_of_20000_unknown_keys_is_refused_at_once(tmp_path: Path) -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(20_000))
    path = tmp_path / "many.yaml"
    path.write_text(f"task: translation\noutput_dir: x\ntrain: {{{keys}}}\n")
    with pytest.raises(UsageError, match="a mapping has more than 1000 keys"):
        read_run_file(str(path))
    few = {f"k{number}": 1 for number in range(999)}
    with pytest.raises(
        UsageError, match=r"no setting train\.k0.* and 989 more are wrong"
    ) as caught:
        parse(TrainConfig, few, "train.")
    assert len(str(caught.value)) <= LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train.beam", "did you mean decode.beam?"),
        ("train.k0", "known are train."),
        ("a.b", "known are task, output_dir, model, data, head, train, decode, evaluate"),
        ("trian.seed", "did you mean train.seed?"),
        ("decode.strategi", "did you mean decode.strategy?"),
    ],
)
def test_a_key_of_the_same_section_is_proposed(name: str, said: str) -> None:
    known = known_keys(RunConfig)
    assert said in unknown_key(name, known)
    assert "train.seed?" not in unknown_key("train.k0", known)
