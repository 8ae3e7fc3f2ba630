"""Command lines as people of other programs give them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli import VERBS, app
from seqloom.cli.familiar_options import names_of_the_program, understood
from seqloom.cli.options import read_settings
from seqloom.config import SECTIONS
from seqloom.errors import UsageError
from seqloom.familiar_names import ANSWER_BY_NAME, MODEL_NAMES, OPTIONS, SETTINGS
from seqloom.models import all_families, model_family
from seqloom.run_file import apply_settings, known_keys, parse
from seqloom.tasks.settings import resolve

TRAIN = "train translation a.tsv --output-dir run"
UNDERSTOOD = {
    # Hugging Face
    f"{TRAIN} --learning_rate 5e-5 --num_train_epochs 3": "train.learning_rate=5e-5 train.epochs=3",
    f"{TRAIN} --per_device_train_batch_size 16 --max_steps 99": "train.batch_rows=16 train.max_steps=99",
    f"{TRAIN} --warmup_steps 10 --weight_decay 0.1": "train.warmup_steps=10 train.weight_decay=0.1",
    f"{TRAIN} --lr_scheduler_type linear --max_grad_norm 5": "train.schedule=linear train.clip_norm=5",
    f"{TRAIN} --label_smoothing_factor 0.1 --bf16": "train.label_smoothing=0.1 train.dtype=bfloat16",
    f"{TRAIN} --bf16 True --seed 7": "train.dtype=bfloat16 train.seed=7",
    f"{TRAIN} --eval_steps 50 --logging_steps=5": "train.evaluate_every=50 train.log_every=5",
    f"{TRAIN} --max_source_length 128": "data.max_length=128",
    "generate run --temperature 0.8 --top_p 0.9 --do_sample": (
        "decode.temperature=0.8 decode.top_p=0.9 decode.strategy=sample"
    ),
    "generate run --max_new_tokens 20 --top_k 40": "decode.max_length=20 decode.top_k=40",
    "predict run a.txt --num_beams 4 --num_return_sequences 2": "decode.beam=4 decode.n_best=2",
    "predict run a.txt --no_repeat_ngram_size 3": "decode.no_repeat_ngram=3",
    "predict run a.txt --per_device_eval_batch_size 8": "decode.batch_rows=8",
    # fairseq
    f"{TRAIN} --lr 0.0005 --lr-scheduler inverse_sqrt": (
        "train.learning_rate=0.0005 train.schedule=inverse_sqrt"
    ),
    f"{TRAIN} --max-tokens 4000 --max-update 100": "train.batch_tokens=4000 train.max_steps=100",
    f"{TRAIN} --warmup-updates 40 --clip-norm 0.1": "train.warmup_steps=40 train.clip_norm=0.1",
    f"{TRAIN} --source-lang en --target-lang de": "data.source=en data.target=de",
    f"{TRAIN} -s en -t de --dropout 0.3": "data.source=en data.target=de model.dropout=0.3",
    f"{TRAIN} --encoder-layers 1 --decoder-layers 1": "model.encoder_layers=1 model.decoder_layers=1",
    f"{TRAIN} --patience 3 --batch-size 32": "train.patience=3 train.batch_rows=32",
    "predict run a.txt --beam 5 --lenpen 0.6 --nbest 5": (
        "decode.beam=5 decode.length_penalty=0.6 decode.n_best=5"
    ),
    "predict run a.txt --sampling --sampling-topk 10": "decode.strategy=sample decode.top_k=10",
    "generate run --do_sample False": "decode.strategy=greedy",
    f"{TRAIN} --model seq2seq --brnn false --bf16 False": (
        "model.bidirectional=false train.dtype=float32"
    ),
    # OpenNMT, JoeyNMT, fastText
    f"{TRAIN} -train_steps 100 -valid_steps 10 -batch_size 64": (
        "train.max_steps=100 train.evaluate_every=10 train.batch_rows=64"
    ),
    f"{TRAIN} -learning_rate 1 -report_every 5 -word_vec_size 32": (
        "train.learning_rate=1 train.log_every=5 model.embedding_width=32"
    ),
    "predict run a.txt --beam-size 4 --n-best 2": "decode.beam=4 decode.n_best=2",
    "predict run a.txt --max-output-length 30 --batch_size 8": "decode.max_length=30 decode.batch_rows=8",
    "train text-classification a.csv --output-dir run -lr 0.5 -epoch 25": (
        "train.learning_rate=0.5 train.epochs=25"
    ),
}
"""A line -> the settings that it has in the end."""
RENAMED = {
    "train translation a.tsv --save-dir run --arch seq2seq:tiny": (
        "train translation a.tsv --output-dir run --model seq2seq:tiny"
    ),
    "train fill-mask a.txt --output_dir run --model_name_or_path folder": (
        "train fill-mask a.txt --output_dir run --from folder"
    ),
    "train --resume_from_checkpoint run": "train --resume run",
    "train translation a.tsv --output-dir run --validation_file b.tsv": (
        "train translation a.tsv --output-dir run --validation b.tsv"
    ),
}


def in_our_words(line: str) -> list[str]:
    verb, *words = shlex.split(line)
    return [verb, *understood(app, verb, words, lambda: names_of_the_program(VERBS))[0]]


@pytest.mark.parametrize(("line", "settings"), UNDERSTOOD.items())
def test_an_option_of_another_program_is_the_setting_that_it_means(
    line: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bound, _ = app.parse_args(in_our_words(line), exit_on_error=False, print_error=False)
    given = bound.arguments["settings"]
    assert " ".join(given) == settings
    if not line.startswith("train"):
        read_settings(given)
        return
    monkeypatch.chdir(tmp_path)
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_text("x\ty\n")
    task, data = bound.arguments["task"], bound.arguments["data"]
    run = resolve(task, data, "run", None, (), given, None)
    for section, values in apply_settings({}, given).items():
        resolved = run.model if section == "model" else vars(vars(run)[section])
        assert {key: resolved[key] for key in values} == values


@pytest.mark.parametrize(("line", "ours"), RENAMED.items())
def test_an_option_of_another_program_is_the_option_that_it_means(line: str, ours: str) -> None:
    assert in_our_words(line) == ours.split()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (f"{TRAIN} --gradient_accumulation_steps 4", "--set train.batch_rows=N"),
        (f"{TRAIN} --update-freq 8", "--set train.accumulate=PARTS"),
        (f"{TRAIN} --fp16", "--set train.dtype=bfloat16"),
        (f"{TRAIN} --optimizer adam", "the optimizer is AdamW"),
        (f"{TRAIN} --warmup_ratio 0.1", "--set train.warmup_steps=N"),
        (f"{TRAIN} --overwrite_output_dir", "name another --output-dir"),
        (f"{TRAIN} --criterion cross_entropy", "--set train.label_smoothing=0.1"),
        (f"{TRAIN} --learnig-rate 1", "did you mean --set train.learning_rate=VALUE"),
        (f"{TRAIN} --modle lstm", "did you mean --model"),
        (f"{TRAIN} --lr", "--lr needs a value, as in --set train.learning_rate=VALUE"),
        (f"{TRAIN} --lr --seed 3", "--lr needs a value"),
        ("models --lr 3", "models has no option --lr; verbs that train take --set"),
        ("import folder --output-dir run", "take the new folder as their last word"),
        ("predict", "predict needs FOLDER (see seqloom predict --help)"),
        ("export run", "export needs OUT (see seqloom export --help)"),
        ("generate run --prompt", "generate needs --prompt and a value after it"),
        ("explain run a --layer x", "(see seqloom explain --help)"),
        (
            "train text-generation a.txt --from no/model --output-dir run",
            "there is no such folder, nor its folder; the name of a model of the hub begins with hf://",
        ),
        ("predict run --beam-alpha 0.7", "not by ((5 + n) / 6)^α"),
        (f"{TRAIN} --max-sent-length 50", "longer texts are cut here, not left out"),
        (f"{TRAIN} --nhid 50", "--set model.feed_forward_width=N"),
        (f"{TRAIN} --train-from model.pt", "--resume FOLDER goes on with a run"),
        ("predict run --remove-bpe", "texts come out as texts"),
        ("trian text-generation a.txt", "there is no verb trian; did you mean seqloom train?"),
        ("lstm", "did you mean --model lstm?"),
        (f"{TRAIN} --model lstmm", "did you mean lstm?"),
        (
            f"{TRAIN} --set train.lr=3",
            "there is no setting train.lr; did you mean train.learning_rate?",
        ),
        (f"{TRAIN} --set decode.num_beams=3", "did you mean decode.beam?"),
        ("train translatoin a.tsv --output-dir run", "; did you mean translation?"),
        (
            "predict nowhere a.txt --beam 3",
            "nowhere: must be a run folder, but there is no such folder",
        ),
    ],
)
def test_what_means_nothing_is_answered_with_what_to_type(
    line: str, answer: str, command: Any
) -> None:
    ran = command(*shlex.split(line))
    assert ran.code in (1, 2)
    last = ran.err.splitlines()[-1]
    assert answer in last
    assert "('" not in last
    assert "Error" not in last


def test_a_value_that_looks_like_an_option_stays_the_value_of_an_option_of_ours() -> None:
    assert in_our_words("generate run --prompt --lr") == ["generate", "run", "--prompt", "--lr"]


def test_every_name_of_others_means_something_that_is_there() -> None:
    known = {key for section, kind in SECTIONS.items() for key in known_keys(kind, f"{section}.")}
    known |= {key for name in all_families() for key in known_keys(model_family(name)[0], "model.")}
    for setting in SETTINGS:
        key, equals, value = setting.partition("=")
        assert key in known
        section, _, name = key.partition(".")
        if equals and section in SECTIONS:
            parse(SECTIONS[section], {name: True if value == "true" else value}, f"{section}.")
    options = {
        name
        for verb in VERBS
        for one in app[verb].assemble_argument_collection()
        for name in one.names
    }
    assert options >= OPTIONS.keys()
    words = [name for names in (*SETTINGS.values(), *OPTIONS.values()) for name in names.split()]
    assert not ANSWER_BY_NAME.keys() & set(words)
    for families, fields in MODEL_NAMES.values():
        for family in families:
            config = model_family(family)[0]
            assert set(fields) <= set(vars(config)["__dataclass_fields__"])


@pytest.mark.parametrize(
    ("task", "name", "family", "cell"),
    [
        ("text-generation", "lstm", "recurrent_lm", "lstm"),
        ("text-classification", "gru:tiny", "recurrent", "gru"),
        ("translation", "rnn", "seq2seq", "elman"),
        ("text-classification", "cnn", "convolution", None),
        ("translation", "attention", "seq2seq", None),
        ("translation", "transformer", "transformer", None),
        ("text-generation", "transformer", "gpt", None),
    ],
)
def test_a_model_may_be_called_by_what_people_call_it(
    task: str, name: str, family: str, cell: str | None
) -> None:
    run = resolve(task, ["a.txt"], "run", name, (), (), None)
    assert run.model["name"] == family
    assert run.model.get("cell") == cell
    assert run.model["size"] == ("tiny" if name.endswith(":tiny") else "small")


def test_a_name_and_a_setting_may_not_contradict_each_other() -> None:
    with pytest.raises(
        UsageError, match=r"--model lstm is model.cell=lstm, but --set says model.cell=gru"
    ):
        resolve("text-generation", ["a.txt"], "run", "lstm", (), ["model.cell=gru"], None)


def test_quiet_shows_results_and_no_notices(command: Any, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c\n" * 9)
    ran = command(
        *("train", "text-generation", tmp_path / "t.txt", "--output-dir", tmp_path / "run"),
        *("--model", "ngram:bigram", "--quiet", "--set", "data.tokenizer=words"),
    )
    assert ran.code == 0
    assert ran.err == ""
    assert "perplexity" in ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_verbs_and_options(shell: Any) -> None:
    script = app.generate_completion(prog_name="seqloom", shell=shell)
    assert "text-classification" in script or "evaluate" in script
    assert "output-dir" in script


def test_the_help_names_the_exit_codes(command: Any) -> None:
    shown = " ".join(command("--help").out.split())
    assert "Exit codes: 0 done, 1 failed, 2 a wrong command line" in shown
    assert "--install-completion" in shown
