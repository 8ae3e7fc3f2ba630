"""A run may be stopped at any moment, in any way, and ends in the same bits.

Killed runs are processes forked by a warm server, which run this very file; a killed one dies of SIGKILL at
the k-th thing that it does to a file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.campaigns.processes import at_every_event

from seqloom import files, manifest
from seqloom.data.synthetic.pairs import reverse_task
from seqloom.errors import FolderError, UsageError
from seqloom.native.library import library
from seqloom.runs import run_folder
from seqloom.runs.unfinished_run import has_begun
from seqloom.training import metrics_log
from seqloom.training.checkpoints import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    checkpoints,
    newest_checkpoint,
    read_state,
)
from seqloom.training.loop import Progress
from seqloom.workflows.train import TrainResult, train

SETTINGS = [
    "data.tokenizer=characters",
    "train.max_steps=24",
    "train.evaluate_every=6",
    "train.log_every=4",
    "train.batch_rows=8",
    "train.accumulate=2",
    "train.threads=1",
    "model.dropout=0.3",
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
"""110 pairs in batches of 8: an epoch has 14 steps."""

Stop = Callable[[int], None]


def go_on(
    folder: Path,
    stop: Stop = lambda step: None,
    settings: tuple[str, ...] = (),
) -> TrainResult:
    """Starts the run in `folder` or goes on with it; `stop` is called after each step."""

    def progress(now: Progress) -> None:
        stop(now.step)

    unbegun = (folder / manifest.UNFINISHED).exists() and not has_begun(folder)
    if (folder / run_folder.RUN).exists() and not unbegun:
        return train(resume=folder, progress=progress)
    data, validation = (
        [str(folder.parent / f"{name}.{side}") for side in "ab"] for name in ("train", "validation")
    )
    return train(
        "translation",
        data,
        output_dir=folder,
        model="seq2seq:tiny",
        validation=validation,
        settings=[*SETTINGS, *settings],
        progress=progress,
    )


def write_data(place: Path) -> None:
    for name, seed, count in (("train", 1, 110), ("validation", 2, 6)):
        pairs = reverse_task(seed, count)
        for side, texts in zip("ab", zip(*pairs, strict=True), strict=True):
            (place / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    place = tmp_path_factory.mktemp("alone")
    write_data(place)
    assert go_on(place / "run").stopped == "max_steps"
    return place / "run"


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for how long it took and where it stood."""
    metrics = [
        json.loads(line) for line in (folder / metrics_log.METRICS).read_bytes().splitlines()
    ]
    kept: dict[str, Any] = {
        "metrics": [
            {key: v for key, v in line.items() if key != "tokens_per_second"} for line in metrics
        ]
    }
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        named_after_itself = path.parent == folder and path.name in (
            run_folder.RUN,
            metrics_log.METRICS,
            run_folder.DATA,
            manifest.MANIFEST,
            "README.md",
        )
        name = str(path.relative_to(folder))
        kept[name] = "" if named_after_itself else path.read_bytes()
        if path.name == manifest.MANIFEST and path.parent != folder:
            # beside it stands what metrics.jsonl and run.yaml were
            kept[name] = files.read_json(path)["files"]
    return kept


def assert_same(folder: Path, never_stopped: Path) -> None:
    one, other = outcome(folder), outcome(never_stopped)
    assert list(one) == list(other)
    for name in other:
        assert one[name] == other[name], name
    assert not [
        path for path in (folder.parent / ".seqloom-cache").iterdir() if path.suffix == ".tmp"
    ]


def kill_at_step(wanted: int, number: int) -> Stop:
    return lambda step: os.kill(os.getpid(), number) if step == wanted else None


# Killed at any moment


def forked(**arguments: Any) -> ForkServerProcess:
    """A process that runs this file as `run`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "pytest",
            "seqloom.workflows.train",
            "torch._dynamo",
            "seqloom.cli",
            "seqloom.data.synthetic.pairs",
        ]
    )
    process = context.Process(
        target=runpy.run_path, args=(__file__, {"ARGUMENTS": arguments}, "run")
    )
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def checkpoints_step(folder: Path) -> int:
    """The step that a resumed run would start from."""
    newest, _ = newest_checkpoint(folder)
    return read_state(newest).step if newest else 0


def test_killed_at_any_event_of_a_whole_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed leaves the files as they are at that moment; so a copy of them is gone on
    with."""
    settings = (
        "train.max_steps=2",
        "train.evaluate_every=1",
        "train.log_every=1",
        "train.batch_rows=2",
        "train.accumulate=1",
    )
    assert ended(forked(folder="run", place=str(place), settings=settings)) == 0
    copies = {
        tuple(contents(copy).items()): copy for copy in sorted((place.parent / "copies").iterdir())
    }
    assert len(copies) > 60
    assert sum((copy / "run" / "checkpoint-2.tmp").exists() for copy in copies.values()) > 6
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and nothing here hangs on it
    for copy in copies.values():
        monkeypatch.chdir(copy)
        # it names its data by their absolute paths: now those of the copy
        run_file = copy / "run" / run_folder.RUN
        if run_file.exists() and not (copy / "run" / manifest.MANIFEST).exists():
            run_file.write_text(run_file.read_text().replace(str(place), str(copy)))
        go_on(Path("run"), settings=settings)
        assert_same(copy / "run", place / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.slow
def test_killed_again_and_again(place: Path, never_stopped: Path) -> None:
    """From the empty folder to the sealed one, killed ones killed again; each process gets further than the
    one before."""
    folder, kills, reached = place / "run", 0, 0
    while (code := ended(forked(folder=str(folder), event=3 * kills + 1))) == -signal.SIGKILL:
        kills += 1
        assert kills < 100
        assert len(checkpoints(folder)) <= 3  # the last and the best, and the new one until they go
        before, reached = reached, checkpoints_step(folder)
        assert reached >= before  # what was whole is never lost
    assert code == 0
    assert kills > 15
    assert_same(folder, never_stopped)


def test_killed_between_steps(place: Path, never_stopped: Path) -> None:
    folder = place / "run"
    for step in (3, 4, 11, 13, 22):
        assert (
            ended(forked(folder=str(folder), step=step, signal=signal.SIGKILL)) == -signal.SIGKILL
        )
    go_on(folder)
    assert_same(folder, never_stopped)
    assert run_folder.load_run(folder).weights == folder / WEIGHTS


# Asked to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_twice_in_one_epoch_by_a_signal(
    place: Path, never_stopped: Path, number: signal.Signals, notices: list[str]
) -> None:
    folder = place / "run"
    for step in (5, 6, 10, 16):
        result = go_on(folder, kill_at_step(step, number))
        assert (result.stopped, result.step) == (number.name, step)
        assert (
            f"{number.name}: saving and stopping after this step (once more to stop at once)"
            in notices
        )
        assert read_state(checkpoints(folder)[0]).step == step
        assert not (folder / manifest.MANIFEST).exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert go_on(folder).stopped == "max_steps"
    assert_same(folder, never_stopped)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_command_ends_with_the_signals_code_at_once(
    place: Path, number: signal.Signals, code: int
) -> None:
    folder = place / "run"
    process = forked(folder=str(folder), settings=("train.max_steps=1000000",), command=True)
    wait_for(lambda: bool(checkpoints(folder)) if folder.exists() else False)
    began = time.monotonic()
    os.kill(process.pid or 0, number)
    assert ended(process) == code
    assert time.monotonic() - began < 10
    assert newest_checkpoint(folder)[0] is not None


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_two_signals_stop_at_once(place: Path, never_stopped: Path) -> None:
    folder = place / "run"
    assert (
        ended(forked(folder=str(folder), step=8, signal=signal.SIGTERM, twice=True))
        == -signal.SIGTERM
    )
    assert read_state(checkpoints(folder)[0]).step == 6
    go_on(folder)
    assert_same(folder, never_stopped)


# Resumed


def stopped(place: Path, step: int) -> Path:
    go_on(place / "run", kill_at_step(step, signal.SIGTERM))
    return place / "run"


def test_a_finished_run_is_left_alone_and_that_is_said(
    never_stopped: Path, notices: list[str]
) -> None:
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in never_stopped.rglob("*")
        if path.is_file()
    }
    result = go_on(never_stopped)
    assert (result.stopped, result.step, result.best_step) == ("finished", 24, 24)
    assert result.metrics["loss"] == pytest.approx(read_state(never_stopped / "checkpoint-24").best)
    assert notices == [
        (
            f"{never_stopped}: this run is finished (step 24), so there is nothing to do; for a longer one,"
            " train a new run"
        )
    ]
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


def test_a_finished_run_without_checkpoints_is_not_begun_again(
    place: Path, never_stopped: Path
) -> None:
    shutil.copytree(never_stopped, place / "run")
    shutil.rmtree(place / "run" / "checkpoint-24")
    assert go_on(place / "run").stopped == "finished"
    assert not checkpoints(place / "run")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage"),
    [(WEIGHTS, torn), (OPTIMIZER, flipped), (STATE, emptied), (manifest.MANIFEST, Path.unlink)],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_goes_on(
    place: Path, never_stopped: Path, name: str, damage: Callable[[Path], None], notices: list[str]
) -> None:
    folder = stopped(place, 15)
    damage(folder / "checkpoint-15" / name)
    go_on(folder)
    assert any(
        line.startswith("skipped a damaged checkpoint: checkpoint-15: ") and name in line
        for line in notices
    )
    assert any("at step 12 of 24" in line for line in notices)
    assert_same(folder, never_stopped)


def test_where_all_checkpoints_are_damaged_nothing_is_started(place: Path) -> None:
    folder = stopped(place, 15)
    torn(folder / "checkpoint-15" / WEIGHTS)
    torn(folder / "checkpoint-12" / OPTIMIZER)
    before = outcome(folder)
    with pytest.raises(FolderError) as caught:
        go_on(folder)
    message = str(caught.value)
    assert message.startswith(
        f"{folder}: every checkpoint is damaged, so nothing was started (checkpoint-15: {WEIGHTS} must have "
    )
    assert f"; checkpoint-12: {OPTIMIZER} must have " in message
    assert outcome(folder) == before


def test_half_a_line_of_metrics_goes(place: Path, never_stopped: Path) -> None:
    folder = stopped(place, 9)
    with open(folder / metrics_log.METRICS, "a") as file:
        file.write('{"step": 12, "loss": 1.0}\n{"step": 16, "lo')
    (folder / ".data.json.99.tmp").touch()
    go_on(folder)
    assert_same(folder, never_stopped)


def test_a_best_checkpoint_that_is_damaged_is_not_sealed(place: Path, notices: list[str]) -> None:
    folder = place / "run"
    # nothing changes, so the first validation stays the best
    settings = ("train.learning_rate=1e-12",)
    go_on(folder, kill_at_step(20, signal.SIGTERM), settings)
    flipped(folder / "checkpoint-6" / WEIGHTS)
    result = go_on(folder)
    assert notices[-1].startswith(
        "the best checkpoint (step 6) is damaged, so the last one (step 24) takes its place: "
    )
    assert result.best_step == 24
    assert (folder / WEIGHTS).samefile(folder / "checkpoint-24" / WEIGHTS)


# Refused


def test_changed_data_is_refused(place: Path) -> None:
    folder = stopped(place, 7)
    (place / "train.b").write_text((place / "train.b").read_text().replace("a", "b", 1))
    with pytest.raises(
        FolderError,
        match=r"a run must go on with the data it began with, but .*train\.b has changed; restore it, or",
    ):
        go_on(folder)


def test_a_second_process_is_refused(place: Path) -> None:
    folder = stopped(place, 7)
    before = outcome(folder)
    with (
        files.locked(folder / files.LOCK),
        pytest.raises(FolderError, match="another process is training into this folder"),
    ):
        go_on(folder)
    assert outcome(folder) == before
    process = forked(
        folder=str(place / "long"), settings=("train.max_steps=1000000",), command=True
    )
    wait_for(lambda: bool(checkpoints(place / "long")) if (place / "long").exists() else False)
    with pytest.raises(
        FolderError, match="another process is training into this folder; wait for it or stop it"
    ):
        go_on(place / "long")
    process.kill()
    assert ended(process) == -signal.SIGKILL
    assert (
        go_on(
            place / "long", kill_at_step(checkpoints_step(place / "long") + 1, signal.SIGTERM)
        ).stopped
        == "SIGTERM"
    )


def test_a_folder_that_is_not_empty_is_refused(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "thesis.tex").touch()
    with pytest.raises(
        UsageError,
        match="must be new or empty, but it holds something; name another --output-dir, or go on",
    ) as caught:
        go_on(place / "run")
    assert caught.value.exit_code == 2
    assert [path.name for path in (place / "run").iterdir()] == ["thesis.tex"]
    with pytest.raises(
        FolderError, match=r"must be a run folder to be resumed, but holds no run\.yaml"
    ):
        train(resume=place / "run")


def test_resume_takes_nothing_else(never_stopped: Path) -> None:
    with pytest.raises(
        UsageError, match="--resume goes on with a run as it was configured and takes nothing else"
    ):
        train(resume=never_stopped, settings=["train.max_steps=3"])


def test_a_run_that_goes_on_with_other_arithmetic_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    folder = place / "run"
    go_on(folder, kill_at_step(3, signal.SIGTERM))
    kernels = (
        f"torch {torch.__version__} on {torch.backends.cpu.get_cpu_capability()},"
        f" {'compiled' if library() else 'no compiled'} loops"
    )
    assert read_state(checkpoints(folder)[0]).kernels == kernels
    go_on(folder, kill_at_step(4, signal.SIGTERM))
    assert not [line for line in notices if "last bits" in line]
    monkeypatch.setattr("seqloom.workflows.train.describe_kernels", lambda _: "an abacus")
    go_on(folder, kill_at_step(5, signal.SIGTERM))
    told = (
        f"this run began with {kernels} and goes on with an abacus: the same order of data, but not the same"
        " last bits"
    )
    assert [line for line in notices if "last bits" in line] == [told]
    assert read_state(checkpoints(folder)[0]).kernels == "an abacus"


# What else a run keeps to


def test_patience_ends_a_run_for_good(place: Path) -> None:
    folder = place / "run"
    settings = ("train.learning_rate=1e-12", "train.patience=2", "train.evaluate_every=3")
    most = 0

    def look(_: int) -> None:
        nonlocal most
        most = max(most, len(checkpoints(folder)))

    result = go_on(folder, look, settings)
    assert (result.stopped, result.step, result.best_step) == ("patience", 9, 3)
    assert most == 2
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-9", "checkpoint-3"]
    assert (folder / WEIGHTS).samefile(folder / "checkpoint-3" / WEIGHTS)
    (folder / manifest.MANIFEST).unlink()  # killed before it was sealed
    result = go_on(folder)
    assert (result.stopped, result.step) == ("patience", 9)
    assert manifest.manifest_problem(folder) is None


def test_a_full_disk_stops_and_a_run_goes_on_when_there_is_room(
    tmp_path: Path, never_stopped: Path
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        write_data(place)
        ballast, folder = place / "ballast", place / "run"
        # at the next line of metrics, and in the next save
        for step, left in (
            (3, 0),
            (7, 8192),
            (13, 24576),
        ):

            def fill(now: int, step: int = step, left: int = left) -> None:
                if now == step:
                    ballast.write_bytes(b"x" * (shutil.disk_usage(place).free - left))

            before = {path: files.sha256(path) for path in folder.rglob("checkpoint-*/*")}
            with pytest.raises(
                FolderError,
                match=r"cannot be written \(No space left on device; 0\.0 MiB are free\)",
            ):
                go_on(folder, fill)
            ballast.unlink()
            assert not list(folder.glob("*.tmp"))
            assert all(
                files.sha256(path) == digest for path, digest in before.items() if path.exists()
            )
            assert newest_checkpoint(folder)[1] == []
        go_on(folder)
        assert_same(folder, never_stopped)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


if __name__ == "run":
    told: dict[str, Any] = globals()["ARGUMENTS"]
    run = Path(told["folder"])
    if "event" in told:
        at_every_event(
            lambda event, _: (
                os.kill(os.getpid(), signal.SIGKILL) if event == told["event"] else None
            )
        )

    def copy(event: int, _: str) -> None:
        shutil.copytree(".", f"../copies/{event:04}")

    if "place" in told:
        os.chdir(told["place"])
        at_every_event(copy)
    if "command" in told:
        from seqloom.cli import main

        settings = [f"--set={setting}" for setting in (*SETTINGS, *told["settings"])]
        pairs = [str(run.parent / f"train.{side}") for side in "ab"]
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        main(
            [
                "train",
                "translation",
                *pairs,
                "--output-dir",
                str(run),
                "--model",
                "seq2seq:tiny",
                *settings,
            ]
        )

    def stop(step: int) -> None:
        if step == told.get("step"):
            os.kill(os.getpid(), told["signal"])
            if "twice" in told:
                os.kill(os.getpid(), told["signal"])

    go_on(run, stop, told.get("settings", ()))
