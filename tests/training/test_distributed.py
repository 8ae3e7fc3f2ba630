"""Two real workers: they train what one does, and fail together with one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqloom.data.synthetic.pairs import reverse_task
from seqloom.runs import run_folder
from seqloom.training import metrics_log
from seqloom.training.checkpoints import OPTIMIZER, STREAM_STATES, WEIGHTS, checkpoints, read_state
from seqloom.workflows.train import train

SETTINGS = [
    "data.tokenizer=characters",
    "train.max_steps=9",
    "train.evaluate_every=4",
    "train.log_every=3",
    "train.batch_rows=8",
    "train.dtype=float64",
    "train.threads=1",
    "model.dropout=0.0",
    *(
        f"model.{name}=8"
        for name in (
            "width",
            "encoder_width",
            "embedding_width",
            "attention_width",
            "readout_width",
        )
    ),
]
"""33 pairs in batches of 8: the last batch of an epoch has one row, fewer than there are workers."""


ENVIRONMENT = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command `seqloom ARGUMENTS` in two workers, as `torchrun` starts and ends them."""
    launcher = [
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]
    command = [sys.executable, "-m", *launcher, "-m", "seqloom", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=ENVIRONMENT | environment,
        check=False,
        timeout=300,
    )


def two_workers(script: str, *arguments: str) -> list[str]:
    """What a script prints in each of two workers that nobody watches over."""
    shared = ENVIRONMENT | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    command = [sys.executable, "-c", script, *arguments]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=shared | {"RANK": rank})
        for rank in "01"
    ]
    try:
        return [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def write_pairs(folder: Path) -> tuple[list[str], list[str]]:
    """(training files, validation files)."""
    for name, seed, count in (("train", 1, 33), ("validation", 2, 10)):
        for side, texts in zip("ab", zip(*reverse_task(seed, count), strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))
    training, validation = (
        [str(folder / f"{name}.{side}") for side in "ab"] for name in ("train", "validation")
    )
    return training, validation


FAILING_WORKERS = r"""
import json, os, sys
import torch
import torch.distributed as dist
from seqloom.errors import DataError, MissingExtraError, SeqloomError, TrainingError, UsageError
from seqloom.training.distributed import joined_world

def told(world, *errors):
    try:
        with world.together():
            if errors[world.rank] is not None:
                raise errors[world.rank]
    except SeqloomError as error:
        return [type(error).__name__, str(error), error.exit_code]

with joined_world() as world:
    heard = [
        told(world, None, None),
        told(world, DataError("is empty, \u00e4\u20ac\ud800", "a.txt", 3), None),
        told(world, None, UsageError("there is no such thing")),
        told(world, DataError("the first"), UsageError("the second")),
        told(world, None, MissingExtraError("a chart", "plot")),
    ]
    seconds = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    print(json.dumps([heard, seconds]), flush=True)
    if world.rank == 1:
        os._exit(0)
    try:
        world.barrier()
    except TrainingError as error:
        print(error)
"""


def test_workers_fail_together() -> None:
    first, second = two_workers(FAILING_WORKERS)
    extra = (
        "a chart needs the extra `plot`, which is not installed; install it with:"
        " pip install 'seqloom[plot]'"
    )
    heard = [
        None,
        ["DataError", "a.txt:3: is empty, ä€\ud800", 2],
        ["UsageError", "there is no such thing", 2],
        ["DataError", "the first", 2],
    ]
    mine, seconds = json.loads(first.splitlines()[0])
    assert mine == [*heard, ["SeqloomError", extra, 1]]
    assert json.loads(second)[0] == [*heard, ["MissingExtraError", extra, 1]]
    assert seconds == 24 * 60 * 60  # the first worker may tokenise for hours
    # and yet a death is noticed at once
    assert "one has ended or cannot be reached" in first.splitlines()[1]


PREPARE = """
import sys, time
from pathlib import Path
from seqloom.training.distributed import joined_world
from seqloom.tasks.settings import resolve
from seqloom.tasks.training_data import prepare_data
from seqloom.tasks.translation import training_data as prepare
from seqloom.registry import task_to_train
from seqloom.runs.unfinished_run import remove_run_files

folder, *files = sys.argv[1:]
config = resolve("translation", files[:2], folder, None, files[2:], ["data.tokenizer=characters"], None)
with joined_world() as world:
    if not world.first:
        read = prepare.read_pair_list
        prepare.read_pair_list = lambda *given: time.sleep(1) or read(*given)  # the first is far ahead
    prepared = prepare_data(task_to_train("translation").training_data, config, Path(folder), world)
    if world.first:
        remove_run_files(Path(folder))
    print(len(prepared.store), len(prepared.validation), prepared.tokenizer.fingerprint)
"""


def test_what_the_first_worker_removes_no_other_writes_again(tmp_path: Path) -> None:
    training, validation = write_pairs(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    first, second = two_workers(PREPARE, str(folder), *training, *validation)
    assert first == second
    assert first.startswith("33 10 ")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_what_is_wrong_is_said_once_and_the_folder_can_be_used_again(tmp_path: Path) -> None:
    training, validation = write_pairs(tmp_path)
    missing, folder = str(tmp_path / "missing"), tmp_path / "run"
    late = tmp_path / "late"
    late.mkdir()  # the first worker is the last to see what is wrong, and must still be heard
    (late / "sitecustomize.py").write_text(
        "import os, time\ntime.sleep(os.environ.get('RANK') == '0')\n"
    )
    for files, setting, problem in (
        ([training[0], missing], "train.threads=1", f"{missing}: there is no such file"),
        (
            training,
            "train.max_stps=3",
            "there is no setting train.max_stps; did you mean train.max_steps?",
        ),
        (training, "model.widht=3", "there is no setting model.widht; did you mean model.width?"),
    ):
        command = [
            "train",
            "translation",
            *files,
            "--validation",
            *validation,
            "--output-dir",
            str(folder),
            f"--set={setting}",
        ]
        done = torchrun(*command, PYTHONPATH=str(late))
        assert [line for line in done.stderr.splitlines() if line.startswith("seqloom: ")] == [
            f"seqloom: {problem}"
        ]
        assert "gloo" not in done.stderr
        assert done.stdout == ""
        assert not folder.exists() or [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.slow
def test_two_workers_end_where_one_does(tmp_path: Path) -> None:
    training, validation = write_pairs(tmp_path)
    settings = [f"--set={setting}" for setting in SETTINGS]
    two, one = tmp_path / "two", tmp_path / "one"
    command = [
        "train",
        "translation",
        *training,
        "--validation",
        *validation,
        "--model",
        "seq2seq:tiny",
    ]
    done = torchrun(*command, "--output-dir", str(two), *settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"folder: {two}") == 1  # only the first worker speaks
    threads = torch.get_num_threads()
    train(
        "translation",
        training,
        output_dir=one,
        model="seq2seq:tiny",
        validation=validation,
        settings=SETTINGS,
    )
    torch.set_num_threads(threads)
    assert [path.name for path in checkpoints(two)] == [path.name for path in checkpoints(one)]
    for name in (WEIGHTS, OPTIMIZER):
        mine, theirs = (load_file(checkpoints(folder)[0] / name) for folder in (one, two))
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.allclose(mine[key], theirs[key], rtol=1e-9, atol=1e-12), key
    assert read_state(checkpoints(two)[0]).tokens == read_state(checkpoints(one)[0]).tokens
    for mine, theirs in zip(metrics_log.read(one), metrics_log.read(two), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine.keys() - {"tokens_per_second"}:
            assert theirs[key] == pytest.approx(mine[key], rel=1e-6)
    run_folder.load_run(two)


@pytest.mark.slow
def test_streams_of_two_workers_are_those_of_one(tmp_path: Path) -> None:
    """Seven streams over two workers: the states of both are in the checkpoint of the first."""
    (tmp_path / "text.txt").write_text(
        "".join(
            f"line {number * number % 17} of a text with {number % 5} words\n"
            for number in range(120)
        )
    )
    model = ["model.width=6", "model.embedding_width=5", "model.dropout=0"]
    train_settings = [
        "train.max_steps=6",
        "train.evaluate_every=3",
        "train.batch_rows=7",
        "train.window=8",
        "train.dtype=float64",
        "train.threads=1",
    ]
    settings = ["data.tokenizer=words", *model, *train_settings]
    two, one = tmp_path / "two", tmp_path / "one"
    command = [
        "train",
        "text-generation",
        str(tmp_path / "text.txt"),
        "--model",
        "recurrent_lm:tiny",
        "--output-dir",
        str(two),
    ]
    done = torchrun(*command, *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done.stderr
    threads = torch.get_num_threads()
    train(
        "text-generation",
        [str(tmp_path / "text.txt")],
        output_dir=one,
        model="recurrent_lm:tiny",
        settings=settings,
    )
    torch.set_num_threads(threads)
    for name in (WEIGHTS, STREAM_STATES):
        mine, theirs = (load_file(checkpoints(folder)[0] / name) for folder in (one, two))
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.allclose(mine[key], theirs[key], rtol=1e-9, atol=1e-12), key
    assert len(load_file(checkpoints(two)[0] / STREAM_STATES)["0"]) == 7
