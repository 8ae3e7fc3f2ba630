"""Whatever the process is given (closed or full streams, odd variables, little memory), a command does its
work or says in one line what is wrong."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cyclopts
import pytest

# imported here once, and not in each of the processes
import seqloom.workflows.models  # noqa: F401
from seqloom import errors
from seqloom.cli import failures, main, process, terminal
from seqloom.errors import DataError, FolderError, SeqloomError, UsageError

FULL = "/dev/full"


class Ended:
    """How a command ended in a process of its own."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def in_a_process(prepare: Callable[[], None], words: list[str], folder: Path) -> Ended:
    """Runs `prepare` and then a command in a fork of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    written = [folder / "out", folder / "err"]
    child = os.fork()
    if child == 0:
        # what hangs fails
        signal.alarm(60)
        for number, path in enumerate(written, start=1):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        code = 99
        try:
            prepare()
            main(words)
        except SystemExit as ended:
            # as the interpreter does at its end
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            code = ended.code if isinstance(ended.code, int) else 98
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), *(path.read_text() for path in written))


def closed(*numbers: int) -> Callable[[], None]:
    """Standard streams that were closed when the process began, as by `>&-`."""

    def prepare() -> None:
        for number in numbers:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)

    return prepare


def onto(place: str, *numbers: int) -> Callable[[], None]:
    def prepare() -> None:
        handle = os.open(place, os.O_WRONLY)
        for number in numbers:
            os.dup2(handle, number)

    return prepare


@pytest.mark.parametrize("numbers", [(1,), (2,), (0, 1), (0, 1, 2)])
def test_closed_streams_change_no_work(numbers: tuple[int, ...], tmp_path: Path) -> None:
    ended = in_a_process(closed(*numbers), ["models"], tmp_path)
    assert ended.code == 0
    assert ("recurrent" in ended.out) == (1 not in numbers)
    said = "seqloom: standard output is closed: the result is shown nowhere\n"
    assert ended.err == (said if 1 in numbers and 2 not in numbers else "")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    def prepare() -> None:
        closed(0, 1, 2)()
        process.prepare()
        # the first file that a command opens
        handle = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        assert handle > 2

    assert in_a_process(prepare, ["models"], tmp_path).code == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_standard_input_that_is_closed_is_an_error_where_it_is_read(
    trained: Path, tmp_path: Path
) -> None:
    ended = in_a_process(closed(0), ["predict", str(trained)], tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "seqloom: standard input: standard input must be open, but is closed; name a file\n"
    )


@pytest.mark.parametrize("words", [["models"], ["models", "gpt", "--json"], ["--help"]])
def test_a_full_standard_output_is_said_and_a_full_standard_error_is_not(
    words: list[str], tmp_path: Path
) -> None:
    ended = in_a_process(onto(FULL, 1), words, tmp_path)
    assert ended.code == 1
    assert ended.err.startswith("seqloom: ")
    assert ended.err.endswith(" (No space left on device)\n")
    assert in_a_process(onto(FULL, 2), words, tmp_path).code == 0
    assert in_a_process(onto(FULL, 1, 2), words, tmp_path).code == 1


@pytest.mark.parametrize("columns", ["0", "-3", "abc", "5", "9" * 30, " ", "80"])
def test_a_table_is_as_wide_as_can_be_believed(
    columns: str, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = command("models")
    assert (ran.code, ran.err) == (0, "")
    assert "recurrent" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("rank", ["abc", "-1", "1.5", "", "9" * 5000, "²", "3"])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_variable_of_torchrun_that_is_no_number_is_named(
    name: str, rank: str, trained: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    for variable, value in {"RANK": "0", "WORLD_SIZE": "2", name: rank}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(failures, "WORKER_WAITS", 0)
    ran = command("train", "--resume", trained)
    if rank == "3" and name == "WORLD_SIZE":
        # MASTER_ADDR is missing
        assert "must find each other at MASTER_ADDR" in ran.err
    else:
        assert f"{name} must be" in ran.err
    assert ran.code in (1, 2)
    assert len(ran.err.splitlines()) == 1


def test_too_little_memory_is_said_before_the_libraries_fail(tmp_path: Path) -> None:
    def prepare() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (500 * 2**20, hard))

    ended = in_a_process(prepare, ["models"], tmp_path)
    assert ended.code == 1
    assert ended.err == (
        "seqloom: memory is short: a process must have 768 MiB of addresses or more, but the limit is"
        " 500 MiB; raise it with: ulimit -v unlimited\n"
    )
    assert in_a_process(prepare, ["models", "--help"], tmp_path).code == 0


# Errors


class Panic(BaseException):
    """As those of libraries in Rust, which are no Exception."""


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (KeyboardInterrupt(), "", 130),
        (cyclopts.CycloptsError(msg="no\nsuch"), "no such (see seqloom --help)", 2),
        (UsageError("a"), "a", 2),
        (MemoryError(), "memory is short (MemoryError:)", 1),
        (ImportError("libtorch.so: failed to map segment"), "memory is short (ImportError: lib", 1),
        (RuntimeError("can't start new thread"), "memory is short (RuntimeError: can't", 1),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory is short (OSError", 1),
        (PermissionError(13, "Permission denied", "a\nb"), r"a\nb: the system refuses (Perm", 1),
        (OSError(5, "Input/output error"), "the system refuses (Input/output error)", 1),
        (ValueError("x"), "ValueError: x (run it again with --debug to see where)", 1),
        (Panic("x"), "Panic: x (run it again with --debug to see where)", 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: BaseException, line: str, code: int) -> None:
    failure = failures.failure_of(error)
    assert failure.line.startswith(line)
    assert failure.exit_code == code


@pytest.mark.parametrize(
    "made",
    [
        lambda text: UsageError(text),
        lambda text: DataError(text, "a.csv", 3),
        lambda text: DataError("a", text),
        lambda text: FolderError(text, Path("a")),
        lambda text: ValueError(text),
        lambda text: OSError(2, text, text),
        lambda text: MemoryError(text),
        lambda text: cyclopts.CycloptsError(msg=text),
    ],
)
@pytest.mark.parametrize("character", ["a", "ä", "😀", "\x1b", "\ud800", "\n", "a\n"])
def test_every_message_is_short(
    made: Callable[[str], BaseException], character: str, capfd: pytest.CaptureFixture[str]
) -> None:
    error = made(character * 100_000 + "; name another")
    failures.report(failures.failure_of(error))
    written = capfd.readouterr().err
    assert written.count("\n") == 1
    assert len(written.encode()) <= errors.LONGEST_MESSAGE + len("seqloom: \n")
    if isinstance(error, SeqloomError):
        assert len(str(error).encode("utf-8", "surrogatepass")) <= errors.LONGEST_MESSAGE
    # what to do stands at the end
    if isinstance(error, UsageError | FolderError):
        assert written.endswith("; name another\n")


@pytest.mark.parametrize("length", [499, 1999, 2000, 2001, 5000])
def test_only_what_is_too_long_is_cut(length: int) -> None:
    assert (errors.bounded("a" * length) == "a" * length) == (length <= 2000)
    assert len(errors.bounded("ä" * length).encode()) <= 2000


def test_a_notice_is_short_and_goes_on_where_standard_error_is_full(tmp_path: Path) -> None:
    def notice() -> None:
        onto(FULL, 2)()
        with terminal.notices_on_standard_error():
            for _ in range(3):
                logging.getLogger("seqloom").info("x" * 100_000)

    assert in_a_process(notice, ["models"], tmp_path).code == 0


def test_a_reader_that_goes_away_ends_the_command_unless_a_file_is_promised(tmp_path: Path) -> None:
    def write_to_nobody(promised: object) -> Callable[[], None]:
        def prepare() -> None:
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1)
            with terminal.even_if_nobody_reads(promised):
                for _ in range(3):
                    terminal.put("x")
                    terminal.flush_results()
            (tmp_path / "file").write_text("done")

        return prepare

    with pytest.raises(AssertionError):
        assert in_a_process(write_to_nobody(None), ["models"], tmp_path).code == 0
    assert not (tmp_path / "file").exists()
    assert in_a_process(write_to_nobody("file"), ["models"], tmp_path).code == 0
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("problem", [BrokenPipeError(32, "Broken pipe"), OSError(28, "full")])
def test_the_file_of_outputs_is_written_whatever_becomes_of_the_table(
    problem: OSError, trained: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr("seqloom.cli.use.evaluate.put_metrics", fail)
    monkeypatch.setattr("seqloom.cli.silence", lambda number: None)
    with pytest.raises(SystemExit):
        main(
            [
                "evaluate",
                str(trained),
                str(pairs / "val.jsonl"),
                "--outputs",
                str(tmp_path / "o.txt"),
            ]
        )
    assert (tmp_path / "o.txt").read_text().count("\n") > 1
